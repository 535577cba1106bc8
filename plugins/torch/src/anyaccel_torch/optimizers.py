"""The parameters of a group, and the torch optimizer that steps them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.segment import NodeState, ParameterGroup
from anyaccel.specs import Optimizer, Schedule
from anyaccel_torch import divided_gradients
from anyaccel_torch.divided_gradients import is_dtensor, lists_of_one_kind
from anyaccel_torch.keras import constrained_step
from anyaccel_torch.named_optimizers import counts_steps, slot_names
from anyaccel_torch.optimizer_creation import create_optimizer, expected_slots, grouped_settings, warn_of_lost_steps
from anyaccel_torch.optimizer_state import (
    ExpectedSlots,
    OptimizerSnapshot,
    SharedState,
    load_slots,
    matching_state,
    own_slots,
    read_slots,
    read_steps,
    set_step,
)

Members = Mapping[str, Mapping[str, nn.Parameter]]
"""Parameters of a group: by node, by name."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """Steps done by each node, and a copy of the optimizer, None if there is none."""

    steps: dict[str, int]
    optimizer: OptimizerSnapshot | None


class GroupOptimizer:
    """The parameters of a group and the torch optimizer that steps them.

    The state of an earlier phase is continued if it is one of this spec and these parameters; else a node starts
    afresh.

    Args:
        group: its name, optimizer spec and nodes.
        members: its parameters by node and name, each parameter once.
        states: optimizer states of earlier phases by node; they are copied.
        switched_off: names of the nodes' parameters that are not trained; what earlier phases kept for them is kept.
        sparse: whether some gradients will be sparse.
        constraints: what parameters go through after each step.
        variables: those of Keras whose values parameters are.

    Attributes:
        spec: the optimizer spec.
        revision: changes when the step counts of parameters may have diverged: by single steps, and by `restore`.

    Raises:
        SpecError: see `create_optimizer`.
    """

    def __init__(
        self,
        group: ParameterGroup,
        members: Members,
        states: Mapping[str, NodeState],
        *,
        switched_off: Mapping[str, Collection[str]] | None = None,
        sparse: bool = False,
        constraints: Mapping[nn.Parameter, Callable[[Any], Any]] | None = None,
        variables: Mapping[nn.Parameter, Any] | None = None,
    ) -> None:
        self.name, self.spec = group.name, group.optimizer
        self.revision = 0
        self.members = members
        self.parameters = [parameter for named in members.values() for parameter in named.values()]
        self._alike = lists_of_one_kind(self.parameters)
        self._divided = any(map(is_dtensor, self.parameters))
        self._grouped = grouped_settings(self.spec, members)
        self.constraints = {p: constraint for p, constraint in (constraints or {}).items() if p in set(self.parameters)}
        self._variables = variables or {}
        self._torch_slots = slot_names(self.spec) if self.spec.own is None else {}
        self._counts_steps = counts_steps(self.spec)
        derived = type(self.spec).rate is not Optimizer.rate  # a rate of the user's own, by which lr is multiplied
        scheduled = self.spec.schedule != Schedule() or derived
        self._rate = self.spec.rate if scheduled else None
        self._factor = (lambda step: self.spec.rate(step) / self.spec.lr) if derived else self.spec.schedule.factor
        self._optimizer = (
            create_optimizer(self.spec, self.parameters, groups=self._grouped, sparse=sparse, variables=self._variables)
            if self.parameters
            else None
        )
        for torch_group in self._optimizer.param_groups if scheduled and self._optimizer is not None else ():
            torch_group.setdefault("initial_lr", torch_group["lr"])  # as torch's schedulers call it
        self._shared = None if self.spec.own is None or self._optimizer is None else SharedState(self._optimizer)
        self._steps = dict.fromkeys(members, 0)
        self._counted = [(node, tuple(named.values())) for node, named in members.items() if named]
        self._node = {parameter: node for node, named in members.items() for parameter in named.values()}
        self._diverged = True
        resumed = self._load({node: states[node] for node in members if node in states}, switched_off or {})
        self._steps_before = {node: resumed.get(node, NodeState()).step for node in members}
        if not any(self._steps_before.values()):
            warn_of_lost_steps(self.spec)
        self._step = self.stepper(clip=False)

    def settings_of(self, parameter: nn.Parameter) -> Optimizer:
        """The spec with the settings of a parameter's group."""
        return self._grouped.get(parameter, self.spec)

    def _load(self, states: Mapping[str, NodeState], others: Mapping[str, Collection[str]]) -> dict[str, NodeState]:
        """Continue the states that match; returns what each node starts with."""
        expected = expected_slots(self.spec, self.parameters, self._variables) if states else {}
        resumed = {
            node: matching_state(state, self.members[node], others.get(node, ()), expected)
            for node, state in states.items()
        }
        self._held = {
            node: self._held_slots(states[node], others.get(node, ()))
            for node, state in resumed.items()
            if state.step == states[node].step
        }
        if self._optimizer is None:
            return resumed
        for node, state in sorted(resumed.items(), key=lambda item: item[1].step):  # those of the longest trained win
            self._load_node(self._optimizer, node, state, expected)
        if not self._counts_steps:
            # torch's fused SGD needs all velocities or none, and a parameter may get its first gradient later
            for parameter in self.parameters:
                self.slot_tensors(parameter)
        return resumed

    def _load_node(
        self,
        optimizer: torch.optim.Optimizer,
        node: str,
        state: NodeState,
        expected: Mapping[nn.Parameter, ExpectedSlots],
    ) -> None:
        if self._shared is not None:
            for held in self._held.get(node, {}).values():
                self._shared.load(held)
        for name, values in state.slots.items():
            parameter = self.members[node][name]
            like = expected[parameter].like
            load_slots(optimizer, parameter, state.step, values, self._torch_slots, like, counts=self._counts_steps)
            if self._shared is not None:
                self._shared.load(values, parameter)

    def _held_slots(self, state: NodeState, names: Collection[str]) -> dict[str, dict[str, Tensor]]:
        """Slots of parameters that are switched off, each with its own step where steps matter."""
        own = {"step": torch.tensor(state.step)} if self._counts_steps else {}
        return {name: {**own, **values} for name, values in state.slots.items() if values and name in names}

    # -- stepping --------------------------------------------------------------------------------------------------

    def stepper(self, *, clip: bool) -> Callable[[], None]:
        """A function that does one step with the current gradients, clipped first as the spec says.

        Args:
            clip: whether by a norm, too, which may be that of several segments.
        """
        optimizer = self._optimizer
        if optimizer is None:
            return lambda: None
        clips = self.spec.clip_value is not None or (clip and self.spec.clip_norm is not None)
        step = constrained_step(optimizer.step, self.constraints)

        def run() -> None:
            if clips:
                self._clip()
            if self._rate is not None:
                self._set_rates(optimizer.param_groups)
            step()
            self._count()

        return run

    def _clip(self) -> None:
        """Clip the gradients as the spec says: by their norm, or by value."""
        if self.spec.clip_norm is not None and self._divided:
            divided_gradients.clip_norm(self.parameters, self.spec.clip_norm)
        elif self.spec.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.spec.clip_norm)
        if self.spec.clip_value is not None:
            for parameters in self._alike:
                nn.utils.clip_grad_value_(parameters, self.spec.clip_value)

    def live(self) -> torch.optim.Optimizer | None:
        """The torch optimizer itself, of which from now on every step clips, sets the rates and counts."""
        if self._optimizer is not None:
            # A GradScaler then divides gradients itself, before they are clipped, and skips what is not finite, where
            # fused optimizers do both in a step that would count.
            vars(self._optimizer)["_step_supports_amp_scaling"] = False
            self._optimizer.register_step_pre_hook(self._before_live_step)
            finish = constrained_step(self._count, self.constraints)
            self._optimizer.register_step_post_hook(lambda *_: finish())
        return self._optimizer

    def _before_live_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """Sets the rates and clips; what `step(closure)` is given clips after each call. Returns its new arguments."""
        if self._rate is not None:
            self._set_rates(optimizer.param_groups)
        if self.spec.clip_norm is None and self.spec.clip_value is None:
            return None
        closure = next((given for given in (*args[1:], *kwargs.values()) if callable(given)), None)
        if closure is None:
            self._clip()
            return None

        def clipped() -> Any:
            loss = closure()
            self._clip()
            return loss

        new = {id(closure): clipped}
        return (
            tuple(new.get(id(given), given) for given in args),
            {name: new.get(id(given), given) for name, given in kwargs.items()},
        )

    def _set_rates(self, groups: list[dict[str, Any]]) -> None:
        """Set each group's own rate times the schedule's factor.

        Parameters of a group whose nodes have done the same number of steps stay together.
        """
        if self._diverged:
            groups[:] = [part for group in groups for part in self._by_steps(group)]
            self._diverged = False
        for group in groups:
            group["lr"] = group["initial_lr"] * self._factor(self.steps(group["params"][0]))

    def _by_steps(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        by_steps: dict[int, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            by_steps.setdefault(self.steps(parameter), []).append(parameter)
        return [{**group, "params": parameters} for parameters in by_steps.values()]

    def steps(self, parameter: nn.Parameter) -> int:
        """How many steps a parameter's node has done over its whole life."""
        return self._steps_before[node := self._node[parameter]] + self._steps[node]

    def _count(self) -> None:
        """Count the step for each node that a gradient reached."""
        for node, parameters in self._counted:
            for parameter in parameters:
                if parameter.grad is not None:
                    self._steps[node] += 1
                    break
            else:
                self._diverged = True

    def step_scaled(self, scale: Any = None) -> None:
        """One step with the gradients, times `scale` (a number, or a scalar tensor on any device) if it is given."""
        self.revision += 1
        if scale is not None:
            for parameter in self.parameters:
                if parameter.grad is not None:  # a new tensor: it may be a view of another framework's memory
                    factor = scale.to(parameter.grad.device) if isinstance(scale, Tensor) else scale
                    parameter.grad = (parameter.grad * factor).to(parameter.grad.dtype)
        self._step()

    @torch.no_grad()
    def grad_stats(self) -> tuple[Tensor, Tensor]:
        """Squared L2 norm of the gradients, and whether all are finite; scalars on the first parameter's device."""
        grads = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        device = self.parameters[0].device if self.parameters else torch.device("cpu")
        if not grads:
            return torch.zeros((), device=device), torch.ones((), dtype=torch.bool, device=device)
        if self._divided:
            return divided_gradients.whole_stats(grads)
        grads = [grad.coalesce().values() if grad.is_sparse else grad for grad in grads]
        norms = [torch.linalg.vector_norm(grad.float() if grad.itemsize < 4 else grad).to(device) for grad in grads]
        finite = [grad.isfinite().all().to(device) for grad in grads]
        return torch.stack(norms).square().sum(), torch.stack(finite).all()

    # -- compiled steps --------------------------------------------------------------------------------------------

    def rates(self, parameter: nn.Parameter, count: int) -> list[float]:
        """Learning rates of the next `count` steps of a parameter; a single one if it is constant."""
        spec = self.settings_of(parameter)
        if self._rate is None:
            return [spec.lr]
        first = self.steps(parameter)
        return [spec.rate(step) for step in range(first, first + count)]

    def custom_steps(self, parameter: nn.Parameter) -> int:
        """Steps of the parameter itself, which may be fewer than its node's; waits for the device."""
        step = self._state_of(parameter).get("step")
        return self.steps(parameter) if step is None else int(step)

    def slot_tensors(self, parameter: nn.Parameter) -> list[Tensor]:
        """The slots of a parameter of a named optimizer, in their order; created as zeros before the first step."""
        state, names = self._state_of(parameter), slot_names(self.settings_of(parameter)).values()
        if self._counts_steps and "step" not in state and self._optimizer is not None:
            set_step(self._optimizer, parameter, 0)
        for name in names:
            if name not in state:
                state[name] = torch.zeros_like(parameter, requires_grad=False)
        return [state[name] for name in names]

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Any]:
        state: dict[str, Any] = {} if self._optimizer is None else self._optimizer.state[parameter]
        return state

    @torch.no_grad()
    def count_steps(self, parameters: Sequence[nn.Parameter], count: int) -> None:
        """Count `count` steps that compiled code did to parameters and slots."""
        for node in dict.fromkeys(self._node[parameter] for parameter in parameters):
            self._steps[node] += count
        own = [state["step"] for parameter in parameters if "step" in (state := self._state_of(parameter))]
        if own:
            torch._foreach_add_(own, count)

    # -- state -----------------------------------------------------------------------------------------------------

    def states(self, *, copies: bool) -> dict[str, NodeState]:
        """State by node: steps over its whole life, and slots by parameter; copies, or the very tensors."""
        return {
            node: NodeState(self._steps_before[node] + self._steps[node], _cloned(slots) if copies else slots)
            for node, slots in ((node, self._slots(node)) for node in self.members)
        }

    def _slots(self, node: str) -> dict[str, dict[str, Tensor]]:
        """Slots of a node, those of switched-off parameters as they were given."""
        result = {name: own_slots(values) | _step_of(values) for name, values in self._held.get(node, {}).items()}
        if self._optimizer is None:
            return result
        shared = {} if self._shared is None else self._shared.slots()
        named, count = self.members[node], self._steps_before[node] + self._steps[node]
        steps = read_steps(self._optimizer, named.values())
        for i, (name, parameter) in enumerate(named.items()):
            slots = read_slots(self._optimizer, parameter, self._torch_slots)
            step = steps.get(parameter, count)
            if step != count or (parameter in steps and not slots):
                slots["step"] = torch.tensor(step)
            for slot, value in shared.get(parameter, {}).items():
                if i == 0 or value.ndim == 0:  # larger ones are kept once
                    slots[slot] = value
            if slots:
                result[name] = slots
        return result

    def snapshot(self) -> GroupSnapshot:
        """A copy of step counts, state and settings."""
        optimizer = None if self._optimizer is None else OptimizerSnapshot.of(self._optimizer)
        return GroupSnapshot(dict(self._steps), optimizer)

    def restore(self, snapshot: GroupSnapshot) -> None:
        """Go back to a snapshot, which stays usable."""
        self.revision += 1
        self._steps = dict(snapshot.steps)
        if self._optimizer is not None and snapshot.optimizer is not None:
            snapshot.optimizer.restore(self._optimizer)
            self._diverged = True


def _step_of(slots: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {"step": slots["step"]} if "step" in slots else {}


def _cloned(slots: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    return {name: {slot: value.clone() for slot, value in values.items()} for name, values in slots.items()}
