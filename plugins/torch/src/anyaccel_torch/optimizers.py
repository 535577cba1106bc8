"""Optimizer recipes made into torch's optimizers, and their state by node and slot."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.errors import RecipeError
from anyaccel.recipes import Optimizer
from anyaccel.segment import NodeState, ParameterGroup
from anyaccel_torch.faults import first_line
from anyaccel_torch.trees import mapped

SLOTS = {"velocity": "momentum_buffer", "m": "exp_avg", "v": "exp_avg_sq"}
"""torch's names for the slots of named optimizers."""

_FUSED_ON = frozenset({"cpu", "cuda", "xpu"})
_CLASSES: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}

Members = Mapping[str, Mapping[str, nn.Parameter]]
"""Parameters of a group: by node, by name."""


def make(recipe: Optimizer, parameters: list[nn.Parameter], *, sparse: bool = False) -> torch.optim.Optimizer:
    """The recipe as an optimizer of torch over `parameters`, fused where torch has that; not for `sparse` gradients.

    Raises:
        RecipeError: a class that is no optimizer of torch, needs a closure, or does not take the settings.
    """
    if recipe.own is not None:
        return _own(recipe.own, recipe, parameters)
    settings = dict(recipe.settings)
    if "nesterov" in settings:
        settings["nesterov"] = settings["nesterov"] and settings["momentum"] > 0  # torch refuses it without momentum
    made: Callable[..., torch.optim.Optimizer] = _CLASSES[recipe.name]
    return made(parameters, lr=recipe.lr, **settings, **_kernels(recipe, parameters, sparse=sparse))


def _kernels(recipe: Optimizer, parameters: list[nn.Parameter], *, sparse: bool) -> dict[str, bool]:
    # torch's fused SGD leaves most parameters of 16 bits on the CPU as they are (pytorch#191763).
    if recipe.name in ("sgd", "momentum") and any(one.itemsize < 4 and one.device.type == "cpu" for one in parameters):
        return {"foreach": True}
    types = {parameter.device.type for parameter in parameters}
    alike = len(types) == 1 and all(parameter.is_floating_point() for parameter in parameters)
    return {"fused": True} if alike and types <= _FUSED_ON and not sparse else {"foreach": True}


def _own(cls: type, recipe: Optimizer, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    known = f"names: {', '.join(_CLASSES)}; or a class of torch.optim, or derived from its Optimizer"
    if not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)):
        raise RecipeError(f"{recipe.name} is not an optimizer of torch", there=known, remedy="use one of these")
    closure = inspect.signature(cls.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        asked = f"{recipe.name} wants to compute the loss itself, several times in a step"
        raise RecipeError(asked, there=known, remedy="use another, or run your own loop for it")
    made: Callable[..., torch.optim.Optimizer] = cls
    try:
        return made(parameters, lr=recipe.lr, **recipe.settings)
    except (TypeError, ValueError) as error:
        asked, given = f"{recipe.name} cannot be made: {first_line(error)}", ", ".join(("lr", *recipe.settings))
        raise RecipeError(asked, there=f"settings {given}", remedy="correct the settings of Optimizer(...)") from error


def place_state(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Move the state to where the parameters are, but leave on the host the step counts that torch reads there."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for key, value in state.items():
                state[key] = _to(value, _where(key, group, parameter))
    return optimizer


def _where(key: str, group: Mapping[str, Any], parameter: Tensor) -> torch.device:
    on_host = key == "step" and not group.get("capturable") and not group.get("fused")
    return torch.device("cpu") if on_host else parameter.device


def _to(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else mapped(value, lambda item: _to(item, device))


def slots_of(recipe: Optimizer, parameters: list[nn.Parameter]) -> set[str]:
    """Names of the tensors that a recipe keeps for a parameter, beside the step; a class is asked by a trial step."""
    if recipe.own is None:
        momentum = recipe.settings.get("momentum")
        return {"m", "v"} if momentum is None else {"velocity"} if momentum > 0 else set()
    tiny = nn.Parameter(parameters[0].new_zeros([1] * parameters[0].ndim))
    tiny.grad = torch.zeros_like(tiny)
    probe = make(recipe, [tiny])
    try:
        probe.step()
    except Exception:  # it cannot be asked: then nothing is known to fit, and the state starts afresh
        return set()
    return {key for key, value in probe.state[tiny].items() if key != "step" and isinstance(value, Tensor)}


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

    Raises:
        RecipeError: see `make`.
    """

    def __init__(
        self, group: ParameterGroup, members: Members, states: Mapping[str, NodeState], *, sparse: bool = False
    ) -> None:
        self.name = group.name
        self.members = members
        self.parameters = [parameter for named in members.values() for parameter in named.values()]
        self._recipe = group.optimizer
        self._names = SLOTS if self._recipe.own is None else {}
        scheduled = self._recipe.schedule.name != "constant" or self._recipe.schedule.warmup
        self._rate = self._recipe.rate if scheduled else None
        self._optimizer = make(self._recipe, self.parameters, sparse=sparse) if self.parameters else None
        given = {node: states[node] for node in members if node in states}
        slots = slots_of(self._recipe, self.parameters) if given and self.parameters else set()
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
        parameters, step, norm = self.parameters, optimizer.step, self._recipe.clip_norm if clip else None

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
            group["lr"] = rate(self._done(group["params"][0]))

    def _parts(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        by_steps: dict[int, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            by_steps.setdefault(self._done(parameter), []).append(parameter)
        return [{**group, "params": parameters} for parameters in by_steps.values()]

    def _done(self, parameter: nn.Parameter) -> int:
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
        if scale is not None:
            for parameter in self.parameters:
                if parameter.grad is not None:  # anew: it may be a view of what another framework handed over
                    factor = scale.to(parameter.grad.device) if isinstance(scale, Tensor) else scale
                    parameter.grad = (parameter.grad * factor).to(parameter.grad.dtype)
        self._step()

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
        if self._recipe.own is None and self._recipe.settings.get("momentum", 0) > 0:
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
            where = _where("step", optimizer.param_groups[0], parameter)
            state["step"] = torch.tensor(float(step), dtype=torch.float32, device=where)

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
