"""Parameter groups at work: torch's optimizers, and their state by node and slot."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.segment import NodeState, ParameterGroup
from anyaccel_torch.optimizer_making import make as make
from anyaccel_torch.optimizer_making import slots_of as slots_of
from anyaccel_torch.optimizer_state import place_state as place_state
from anyaccel_torch.optimizer_state import where

SLOTS = {"velocity": "momentum_buffer", "m": "exp_avg", "v": "exp_avg_sq"}
"""torch's names for the slots of named optimizers."""

Members = Mapping[str, Mapping[str, nn.Parameter]]
"""Parameters of a group: by node, by name."""


def _resumed(given: NodeState, named: Mapping[str, nn.Parameter], slots: set[str]) -> NodeState:
    if not named:  # a node whose parameters all are in another's model, too
        return NodeState(given.step)
    kept = {name: values for name, values in given.slots.items() if values}
    fits = kept.keys() <= named.keys() and all(
        set(values) == slots and all(value.shape in ((), named[name].shape) for value in values.values())
        for name, values in kept.items()
    )
    return NodeState(given.step, kept) if fits and (kept or not slots) else NodeState()


@dataclass(frozen=True, slots=True)
class Kept:
    """A copy of what an optimizer changes: steps done, state by parameter, its groups."""

    ran: dict[str, int]
    state: dict[Tensor, dict[str, Any]]
    groups: list[dict[str, Any]]


class GroupOptimizer:
    """A parameter group at work.

    The state of an earlier phase is gone on with where it is one of this recipe and these parameters; else a node
    starts afresh.

    Args:
        group: its name, recipe and nodes.
        members: its parameters by node and name, each parameter once.
        states: optimizer state of earlier phases by node; it is copied.
        sparse: whether some gradients will be sparse.

    `recipe` is its optimizer's; `acts` counts what may have parted the step counts of its parameters: single steps, and
    going back to a copy.

    Raises:
        SpecError: see `make`.
    """

    def __init__(
        self, group: ParameterGroup, members: Members, states: Mapping[str, NodeState], *, sparse: bool = False
    ) -> None:
        self.name, self.recipe = group.name, group.optimizer
        self.acts = 0
        self.members = members
        self.parameters = [parameter for named in members.values() for parameter in named.values()]
        self._names = SLOTS if self.recipe.own is None else {}
        scheduled = self.recipe.schedule.name != "constant" or self.recipe.schedule.warmup
        self._rate = self.recipe.rate if scheduled else None
        self._optimizer = make(self.recipe, self.parameters, sparse=sparse) if self.parameters else None
        given = {node: states[node] for node in members if node in states}
        slots = slots_of(self.recipe, self.parameters) if given and self.parameters else set()
        resumed = {node: _resumed(state, members[node], slots) for node, state in given.items()}
        self._before = {node: resumed.get(node, NodeState()).step for node in members}
        self._ran = dict.fromkeys(members, 0)
        self._counting = [(node, tuple(named.values())) for node, named in members.items() if named]
        self._node = {each: node for node, named in members.items() for each in named.values()}
        self._parted = True
        if self._optimizer is not None:
            self._install(self._optimizer, resumed)
        self._step = self.stepper(clip=False)

    # -- stepping --------------------------------------------------------------------------------------------------

    def stepper(self, *, clip: bool) -> Callable[[], None]:
        """A function that does one step with the gradients there are, clipped first if `clip` and the recipe say so."""
        optimizer = self._optimizer
        if optimizer is None:
            return lambda: None
        parameters, step, norm = self.parameters, optimizer.step, self.recipe.clip_norm if clip else None

        def run() -> None:
            if norm is not None:
                nn.utils.clip_grad_norm_(parameters, norm)
            if self._rate is not None:
                self._set_rates(self._rate, optimizer.param_groups)
            step()
            self._count()

        return run

    def _set_rates(self, rate: Callable[[int], float], groups: list[dict[str, Any]]) -> None:
        """Nodes count their steps apart: those that have done as many go together in a group of torch's."""
        if self._parted:
            groups[:] = [part for group in groups for part in self._parts(group)]
            self._parted = False
        for group in groups:
            group["lr"] = rate(self.done(group["params"][0]))

    def _parts(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        by_steps: dict[int, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            by_steps.setdefault(self.done(parameter), []).append(parameter)
        return [{**group, "params": parameters} for parameters in by_steps.values()]

    def done(self, parameter: nn.Parameter) -> int:
        """How many steps a parameter's node has done over its whole life."""
        return self._before[node := self._node[parameter]] + self._ran[node]

    def _count(self) -> None:
        """A node that no gradient reached does not count the step."""
        for node, parameters in self._counting:
            for parameter in parameters:
                if parameter.grad is not None:
                    self._ran[node] += 1
                    break
            else:
                self._parted = True

    def apply(self, scale: Any = None) -> None:
        """One step with the gradients, times `scale` (a number, or a scalar tensor on any device) if it is given."""
        self.acts += 1
        if scale is not None:
            for parameter in self.parameters:
                if parameter.grad is not None:  # anew: it may be a view of what another framework handed over
                    factor = scale.to(parameter.grad.device) if isinstance(scale, Tensor) else scale
                    parameter.grad = (parameter.grad * factor).to(parameter.grad.dtype)
        self._step()

    # -- steps that are done elsewhere -----------------------------------------------------------------------------

    def rates(self, parameter: nn.Parameter, count: int) -> list[float]:
        """Learning rates of the next `count` steps of a parameter; a single one where it does not change."""
        if self._rate is None:
            return [self.recipe.lr]
        first = self.done(parameter)
        return [self._rate(step) for step in range(first, first + count)]

    def own_steps(self, parameter: nn.Parameter) -> int:
        """Steps that the parameter itself has done, which may be fewer than its node's; waits for the device."""
        step = self._state_of(parameter).get("step")
        return self.done(parameter) if step is None else int(step)

    def slot_tensors(self, parameter: nn.Parameter, names: Sequence[str]) -> list[Tensor]:
        """What torch keeps for a parameter under `names`: the very tensors, zeros where there was nothing yet."""
        state = self._state_of(parameter)
        if names and names[0] not in state and "betas" in self.recipe.settings:
            self._begin(parameter, 0)
        for name in names:
            if name not in state:
                state[name] = torch.zeros_like(parameter, requires_grad=False)
        return [state[name] for name in names]

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Any]:
        state: dict[str, Any] = {} if self._optimizer is None else self._optimizer.state[parameter]
        return state

    def _begin(self, parameter: nn.Parameter, step: int) -> None:
        if self._optimizer is not None:
            device = where("step", self._optimizer.param_groups[0], parameter)
            self._optimizer.state[parameter]["step"] = torch.full((), float(step), dtype=torch.float32, device=device)

    @torch.no_grad()
    def advance(self, parameters: Sequence[nn.Parameter], count: int) -> None:
        """Count `count` steps that were done to parameters and slots elsewhere."""
        for node in dict.fromkeys(self._node[parameter] for parameter in parameters):
            self._ran[node] += count
        steps = [state["step"] for each in parameters if "step" in (state := self._state_of(each))]
        if steps:
            torch._foreach_add_(steps, count)

    @torch.no_grad()
    def stats(self) -> tuple[Tensor, Tensor]:
        """Squared L2 norm of the gradients, and whether all are finite; scalars on the first parameter's device."""
        grads, home = self._grads(), self.parameters[0].device if self.parameters else torch.device("cpu")
        if not grads:
            return torch.zeros((), device=home), torch.ones((), dtype=torch.bool, device=home)
        grads = [grad.coalesce().values() if grad.is_sparse else grad for grad in grads]
        norms = [torch.linalg.vector_norm(grad.float() if grad.itemsize < 4 else grad).to(home) for grad in grads]
        finite = [grad.isfinite().all().to(home) for grad in grads]
        return torch.stack(norms).square().sum(), torch.stack(finite).all()

    def _grads(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    # -- state -----------------------------------------------------------------------------------------------------

    def _install(self, optimizer: torch.optim.Optimizer, resumed: Mapping[str, NodeState]) -> None:
        for node, state in resumed.items():
            for name, slots in state.slots.items():
                self._fill(optimizer, self.members[node][name], state.step, slots)
        if self.recipe.own is None and self.recipe.settings.get("momentum", 0) > 0:
            # torch's fused SGD wants all velocities or none, and a parameter may get its first gradient later
            for parameter in self.parameters:
                zeros = torch.zeros_like(parameter, requires_grad=False)
                optimizer.state[parameter].setdefault("momentum_buffer", zeros)

    def _fill(
        self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter, step: int, slots: Mapping[str, Any]
    ) -> None:
        state = optimizer.state[parameter]
        for slot, value in slots.items():
            state[self._names.get(slot, slot)] = value.detach().to(parameter.device, copy=True)
        if "velocity" not in slots:
            device = where("step", optimizer.param_groups[0], parameter)
            state["step"] = torch.full((), float(step), dtype=torch.float32, device=device)

    def states(self, *, copies: bool) -> dict[str, NodeState]:
        """State by node: steps over its whole life, and slots by parameter; copies, or the very tensors."""
        return {
            node: NodeState(
                self._before[node] + self._ran[node],
                {name: slots for name, parameter in named.items() if (slots := self._slots(parameter, copies=copies))},
            )
            for node, named in self.members.items()
        }

    def _slots(self, parameter: nn.Parameter, *, copies: bool) -> dict[str, Tensor]:
        if self._optimizer is None:
            return {}
        ours = {theirs: name for name, theirs in self._names.items()}
        found = self._optimizer.state.get(parameter, {}).items()
        kept = {ours.get(key, key): value for key, value in found if key != "step" and isinstance(value, Tensor)}
        return {name: value.clone() for name, value in kept.items()} if copies else kept

    def snapshot(self) -> Kept:
        """A copy of steps, state and settings."""
        if self._optimizer is None:
            return Kept(dict(self._ran), {}, [])
        state = {parameter: _copied(inner) for parameter, inner in self._optimizer.state.items()}
        groups = [_copied_group(group) for group in self._optimizer.param_groups]
        return Kept(dict(self._ran), state, groups)

    def restore(self, kept: Kept) -> None:
        """Go back to a copy, which stays as it is."""
        self.acts += 1
        self._ran = dict(kept.ran)
        if self._optimizer is None:
            return
        self._optimizer.state.clear()
        for parameter, inner in kept.state.items():
            self._optimizer.state[parameter] = _copied(inner)
        self._optimizer.param_groups[:] = [_copied_group(group) for group in kept.groups]
        self._parted = True


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.clone() if isinstance(value, Tensor) else copy.deepcopy(value) for key, value in state.items()}


def _copied_group(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if key == "params" else copy.deepcopy(value) for key, value in group.items()}
