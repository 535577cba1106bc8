"""The parameters of a group, and the torch optimizer that steps them."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from anyaccel.adapter import settings_of
from anyaccel.adapter.layer_optimizers import reads_names
from anyaccel.errors import SpecError
from anyaccel.formulas import OPTIMIZERS, OptimizerRule
from anyaccel.segment import NodeState, ParameterGroup
from anyaccel.specs import Optimizer, Schedule
from anyaccel.user_level import user_level
from anyaccel_torch import array_functions, divided_gradients, keras
from anyaccel_torch.divided_gradients import is_dtensor, lists_of_one_kind
from anyaccel_torch.error_translation import first_line
from anyaccel_torch.keras import constrained_step
from anyaccel_torch.optimizer_state import (
    ExpectedSlots,
    OptimizerSnapshot,
    SharedState,
    encoded_slots,
    load_slots,
    matching_state,
    not_encodable,
    own_slots,
    read_steps,
    set_step,
)

Members = Mapping[str, Mapping[str, nn.Parameter]]
"""Parameters of a group: by node, by name."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """Steps done by each node, and a copy of the optimizer, or None."""

    steps: dict[str, int]
    optimizer: OptimizerSnapshot | None


class GroupOptimizer:
    """The parameters of a group and the torch optimizer that steps them.

    The state of an earlier phase is continued if it belongs to this spec and these parameters; otherwise a node starts
    from scratch.

    Args:
        group: Name, optimizer spec and nodes of the group.
        members: Its parameters by node and name, each parameter once.
        states: Optimizer states of earlier phases by node; they are copied.
        switched_off: Names of the nodes' parameters that are not trained; their state from earlier phases is kept.
        sparse: Whether some gradients will be sparse.
        constraints: Functions applied to parameters after each step.
        variables: Keras variables of the parameters.

    Attributes:
        spec: The optimizer spec.
        revision: Changes when the step counts of parameters may have diverged: by single steps, and by `restore`.

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
        self.parameters: list[nn.Parameter] = []
        self._node: dict[nn.Parameter, str] = {}
        self._counted: list[tuple[str, tuple[nn.Parameter, ...]]] = []
        for node, named in members.items():
            self.parameters += named.values()
            self._node.update(dict.fromkeys(named.values(), node))
            if named:
                self._counted.append((node, tuple(named.values())))
        self._alike = lists_of_one_kind(self.parameters) if self.spec.clip_value is not None else []
        self._divided = any(map(is_dtensor, self.parameters))
        self._grouped = grouped_settings(self.spec, members) if self.spec.groups else {}
        self.constraints: dict[nn.Parameter, Callable[[Any], Any]] = {}
        for parameter, constraint in (constraints or {}).items():
            if parameter in self._node:
                self.constraints[parameter] = constraint
        self._variables = variables or {}
        self._torch_slots = slot_names(self.spec) if self.spec.own is None else {}
        # whether the state of each parameter may have the number of its steps
        self._counts_steps = self.spec.own is not None or self.spec.name not in NATIVE or NATIVE[self.spec.name].counts
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
        self._diverged = True
        self._held: dict[str, dict[str, dict[str, Tensor]]] = {}  # slots of parameters that are switched off, by node
        self._steps_before = dict.fromkeys(members, 0)
        self._load(states, switched_off or {})
        if not any(self._steps_before.values()):
            warn_of_lost_steps(self.spec)
        self._step = self.stepper(clip=False)

    def settings_of(self, parameter: nn.Parameter) -> Optimizer:
        """Return the spec with the settings of a parameter's group."""
        return self._grouped.get(parameter, self.spec)

    def _load(self, states: Mapping[str, NodeState], others: Mapping[str, Collection[str]]) -> None:
        """Continue the states that match, with their steps."""
        is_begun = not states.keys().isdisjoint(self.members)
        expected = expected_slots(self.spec, self.parameters, self._variables) if is_begun else {}
        resumed: dict[str, NodeState] = {}
        for node in self.members:
            if node in states:
                before, names = states[node], others.get(node, ())
                resumed[node] = matching_state(before, self.members[node], names, expected)
                self._steps_before[node] = resumed[node].step
                if resumed[node].step == before.step:  # those that are switched off, with their step if steps matter
                    own = {"step": torch.tensor(before.step)} if self._counts_steps else {}
                    kept = before.slots.items()
                    self._held[node] = {name: {**own, **values} for name, values in kept if values and name in names}
        if self._optimizer is None:
            return
        for node, state in sorted(resumed.items(), key=lambda item: item[1].step):  # those of the longest trained win
            if self._shared is not None:
                for held in self._held.get(node, {}).values():
                    self._shared.load(held)
            for name, values in state.slots.items():
                parameter = self.members[node][name]
                load_slots(
                    self._optimizer,
                    parameter,
                    state.step,
                    values,
                    self._torch_slots,
                    expected[parameter].like,
                    counts=self._counts_steps,
                )
                if self._shared is not None:
                    self._shared.load(values, parameter)
        if not self._counts_steps:
            # torch's fused SGD needs all velocities or none, and a parameter may get its first gradient later
            for parameter in self.parameters:
                self.slot_tensors(parameter)

    # -- stepping --------------------------------------------------------------------------------------------------

    def stepper(self, *, clip: bool) -> Callable[[], None]:
        """Return a function that runs one step with the current gradients, clipped first as the spec defines.

        Args:
            clip: Whether to clip by a norm, too, which may cover several segments.
        """
        optimizer = self._optimizer
        if optimizer is None:
            return lambda: None
        clips = self.spec.clip_value is not None or (clip and self.spec.clip_norm is not None)
        step = constrained_step(optimizer.step, self.constraints) if self.constraints else optimizer.step

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
        """Return the torch optimizer itself; from now on, each of its steps clips, sets the rates and counts."""
        if self._optimizer is not None:
            # A GradScaler then divides gradients itself, before they are clipped, and skips what is not finite, where
            # fused optimizers do both in a step that would count.
            vars(self._optimizer)["_step_supports_amp_scaling"] = False
            self._optimizer.register_step_pre_hook(self._before_live_step)
            finish = constrained_step(self._count, self.constraints) if self.constraints else self._count
            self._optimizer.register_step_post_hook(lambda *_: finish())
        return self._optimizer

    def _before_live_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """Set the rates and clip; the closure of `step(closure)` clips after each call. Return its new arguments."""
        if self._rate is not None:
            self._set_rates(optimizer.param_groups)
        if self.spec.clip_norm is None and self.spec.clip_value is None:
            return None
        closure = next((argument for argument in (*args[1:], *kwargs.values()) if callable(argument)), None)
        if closure is None:
            self._clip()
            return None

        def clipped() -> Any:
            loss = closure()
            self._clip()
            return loss

        new = {id(closure): clipped}
        return (
            tuple(new.get(id(argument), argument) for argument in args),
            {name: new.get(id(argument), argument) for name, argument in kwargs.items()},
        )

    def _set_rates(self, groups: list[dict[str, Any]]) -> None:
        """Set each group's own rate times the schedule's factor.

        Parameters of a group whose nodes have done the same number of steps stay together.
        """
        if self._diverged:
            whole = list(groups)
            groups.clear()
            for group in whole:
                by_steps: dict[int, list[nn.Parameter]] = {}
                for parameter in group["params"]:
                    by_steps.setdefault(self.steps(parameter), []).append(parameter)
                groups += [{**group, "params": parameters} for parameters in by_steps.values()]
            self._diverged = False
        for group in groups:
            group["lr"] = group["initial_lr"] * self._factor(self.steps(group["params"][0]))

    def steps(self, parameter: nn.Parameter) -> int:
        """Return the number of steps of a parameter's node over its whole life."""
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
        """Run one step with the gradients, times `scale` (a number, or a scalar tensor on any device) if given."""
        self.revision += 1
        if scale is not None:
            for parameter in self.parameters:
                if parameter.grad is not None:  # a new tensor: it may be a view of another framework's memory
                    factor = scale.to(parameter.grad.device) if isinstance(scale, Tensor) else scale
                    parameter.grad = (parameter.grad * factor).to(parameter.grad.dtype)
        self._step()

    @torch.no_grad()
    def grad_stats(self) -> tuple[Tensor, Tensor]:
        """Return the squared L2 norm of the gradients, and whether all are finite; scalars on the first parameter's
        device.
        """
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
        """Return learning rates of the next `count` steps of a parameter; a single one if it is constant."""
        spec = self.settings_of(parameter)
        if self._rate is None:
            return [spec.lr]
        first = self.steps(parameter)
        return [spec.rate(step) for step in range(first, first + count)]

    def custom_steps(self, parameter: nn.Parameter) -> int:
        """Return the steps of the parameter itself, which may be fewer than its node's; waits for the device."""
        step = self._state_of(parameter).get("step")
        return self.steps(parameter) if step is None else int(step)

    def slot_tensors(self, parameter: nn.Parameter) -> list[Tensor]:
        """Return the slots of a parameter of a named optimizer, in their order; created as zeros before the first
        step.
        """
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
        states: dict[str, NodeState] = {}
        shared = {} if self._shared is None else self._shared.slots()
        core_slots = {theirs: name for name, theirs in self._torch_slots.items()}
        for node, named in self.members.items():
            result: dict[str, dict[str, Tensor]] = {}
            for name, values in self._held.get(node, {}).items():  # those of switched-off parameters are unchanged
                result[name] = own_slots(values) | ({"step": values["step"]} if "step" in values else {})
            count = self._steps_before[node] + self._steps[node]
            if self._optimizer is not None:
                steps = read_steps(self._optimizer, named.values())
                for i, (name, parameter) in enumerate(named.items()):
                    # `state` is a defaultdict: an entry for a parameter without gradients would look like a step done
                    slots = encoded_slots(self._optimizer.state.get(parameter, {}), core_slots)
                    step = steps.get(parameter, count)
                    if step != count or (parameter in steps and not slots):
                        slots["step"] = torch.tensor(step)
                    for slot, value in shared.get(parameter, {}).items():
                        if i == 0 or value.ndim == 0:  # larger ones are kept once
                            slots[slot] = value
                    if slots:
                        result[name] = slots
            if copies:
                result = {name: {slot: v.clone() for slot, v in values.items()} for name, values in result.items()}
            states[node] = NodeState(count, result)
        return states

    def snapshot(self) -> GroupSnapshot:
        """A copy of step counts, state and settings."""
        if self._optimizer is None:
            return GroupSnapshot(dict(self._steps), None)
        is_custom = self.spec.own is not None  # those of torch by name keep everything in their state and groups
        return GroupSnapshot(dict(self._steps), OptimizerSnapshot.of(self._optimizer, has_attributes=is_custom))

    def restore(self, snapshot: GroupSnapshot) -> None:
        """Go back to a snapshot, which stays usable."""
        self.revision += 1
        self._steps = dict(snapshot.steps)
        if self._optimizer is not None and snapshot.optimizer is not None:
            snapshot.optimizer.restore(self._optimizer)
            self._diverged = True


# -- Torch optimizers of optimizer specs, and what such an optimizer keeps for each parameter --------------------------


_FUSED_ON = {"cpu"}, {"cuda"}, {"xpu"}


def create_optimizer(
    spec: Optimizer,
    parameters: list[nn.Parameter],
    *,
    groups: Mapping[nn.Parameter, Optimizer] | None = None,
    sparse: bool = False,
    variables: Mapping[nn.Parameter, Any] | None = None,
    originals: Mapping[nn.Parameter, nn.Parameter] | None = None,
) -> torch.optim.Optimizer:
    """Return the spec as a torch optimizer over `parameters`, fused if supported and gradients are not `sparse`.

    `groups` has the settings of parameters that are in a group of the spec, `variables` the Keras variables of the
    parameters, and `originals` the parameters that they were copied from.

    Raises:
        SpecError: a class that is not an optimizer of torch, needs a closure, or does not take the settings.
    """
    if isinstance(spec.own, torch.optim.Optimizer):
        return _copy_of(spec.own, spec, parameters, originals or {})
    # Named optimizers get DTensors in separate groups, because torch has no function for lists of both.
    by_settings: dict[Any, dict[str, Any]] = {}
    types, is_narrow, is_floating, is_divided = set(), False, True, False
    for parameter in parameters:
        device_type, divided = parameter.device.type, is_dtensor(parameter)
        types.add(device_type)
        is_narrow, is_divided = is_narrow or (parameter.itemsize < 4 and device_type == "cpu"), is_divided or divided
        is_floating = is_floating and parameter.is_floating_point()
        settings = (groups or {}).get(parameter, spec)
        key = id(settings), spec.own is None and divided
        if key not in by_settings:
            by_settings[key] = {"params": [], **torch_settings(settings)}
        by_settings[key]["params"].append(parameter)
    torch_parameters = list(by_settings.values()) if groups or len(by_settings) > 1 else list(parameters)
    if spec.own is not None:
        return _create_own(spec.own, spec, torch_parameters, variables)
    if spec.name not in NATIVE:
        return RuleOptimizer(torch_parameters, OPTIMIZERS[spec.name], lr=spec.lr, **spec.settings)
    create: Callable[..., torch.optim.Optimizer] = NATIVE[spec.name].create
    is_fused = is_floating and not sparse and types in _FUSED_ON
    if create is torch.optim.SGD and (is_narrow or is_divided):
        # torch's fused SGD leaves most 16-bit parameters on the CPU unchanged (pytorch#191763), and takes no DTensors.
        is_fused = False
    return create(torch_parameters, **torch_settings(spec), **{"fused" if is_fused else "foreach": True})


def grouped_settings(
    spec: Optimizer, members: Mapping[str, Mapping[str, nn.Parameter]]
) -> dict[nn.Parameter, Optimizer]:
    """Return the settings of each parameter that is in a group of the spec.

    Args:
        spec: The spec with the groups.
        members: Parameters by node and name.

    Raises:
        SpecError: a group has a momentum but others have none; torch stores one for all parameters or for none.
    """
    named = [(name, parameter) for named_parameters in members.values() for name, parameter in named_parameters.items()]
    found = {parameter: settings_of(spec, name, parameter) for name, parameter in named}
    for settings in found.values():
        if spec.own is None and spec.name in NATIVE and slot_names(settings) != slot_names(spec):
            raise SpecError(
                f"optimizer {spec.name!r} has momentum={spec.settings['momentum']}, but a group "
                f"of it has momentum={settings.settings['momentum']}",
                hint="set a momentum for all groups, or for none",
            )
    return {parameter: settings for parameter, settings in found.items() if settings is not spec}


def torch_settings(spec: Optimizer) -> dict[str, Any]:
    """Return the settings of a spec by torch's names."""
    settings = {"lr": spec.lr, **spec.settings}
    if spec.own is None and spec.name in NATIVE and "nesterov" in settings:
        settings["nesterov"] = settings["nesterov"] and settings["momentum"] > 0  # torch refuses it without momentum
    return settings


def _create_own(
    own: Any, spec: Optimizer, parameters: Sequence[Any], variables: Mapping[nn.Parameter, Any] | None
) -> torch.optim.Optimizer:
    """Return an optimizer of a class, a `functools.partial` of one, or a function of parameters that gives one."""
    available = f"{', '.join(OPTIMIZERS)}; or a class of torch.optim, or one derived from torch.optim.Optimizer"
    if keras.library().is_optimizer(own):
        from anyaccel_torch.keras_optimizers import KerasOptimizer

        return KerasOptimizer(parameters, spec, variables, lr=spec.lr, **spec.settings)
    function = own.func if isinstance(own, functools.partial) else own
    if isinstance(function, type) and issubclass(function, torch.optim.Optimizer):
        _refuse_closure(function, spec, available)
    elif isinstance(function, type) or not callable(function):
        raise _no_optimizer(spec, available)
    create: Callable[..., Any] = own
    try:
        made = create(parameters, lr=spec.lr, **spec.settings)
    except (TypeError, ValueError) as error:
        settings = ", ".join(("lr", *spec.settings))
        hint = "correct the settings of Optimizer(...)"
        if not isinstance(function, type):
            hint = "pass the class, Optimizer(torch.optim.Adam, lr=1e-3), or a function of parameters and lr"
        problem = f"{spec.name} cannot be created with settings {settings}: {first_line(error)}"
        raise SpecError(problem, hint=hint) from error
    if not isinstance(made, torch.optim.Optimizer):
        raise _no_optimizer(spec, available)
    return made


def _copy_of(
    own: torch.optim.Optimizer,
    spec: Optimizer,
    parameters: Sequence[nn.Parameter],
    originals: Mapping[nn.Parameter, nn.Parameter],
) -> torch.optim.Optimizer:
    """Return an optimizer like a given object, over parameters of the object's; it has separate state.

    Before each step it takes over the current groups of the object, so that torch's schedulers have an effect.
    """
    # Refuse objects whose state or behaviour a copy would not have, and settings in addition to theirs.
    name = spec.name
    _refuse_closure(type(own), spec, ", ".join(OPTIMIZERS))
    settings = [*spec.settings, *(["groups"] if spec.groups else []), *(["lr"] if spec.lr != 1.0 else [])]
    settings += ["schedule"] if spec.schedule != Schedule() else []
    if settings:
        raise SpecError(
            f"the {name} is an object with groups and rates, but also got {', '.join(settings)}",
            hint=f"set them in the object, or pass its class: Optimizer(torch.optim.{name}, {settings[0]}=...)",
        )
    if any(kept and float(kept.get("step", 1)) for kept in own.state.values()):  # some keep zeros from the beginning
        raise SpecError(
            f"the {name} has already done steps, and its state would be lost",
            hint="create a new one from model.parameters()",
        )
    step: Any = vars(own).get("step")
    inner = [key for key, value in vars(own).items() if isinstance(value, torch.optim.Optimizer)]
    if inner or (step is not None and not hasattr(step, "_wrapped_by_lr_sched")):
        raise SpecError(
            f"the {name} has " + (f"another optimizer in it, {inner[0]}" if inner else "another function as its step"),
            hint="create and step it in a custom step: TrainPhase(step=function)",
        )
    number_of = {id(p): i for i, group in enumerate(own.param_groups) for p in group["params"]}
    members: dict[int, list[nn.Parameter]] = {}
    for parameter in parameters:
        number = number_of.get(id(originals.get(parameter, parameter)))
        if number is None:
            raise SpecError(
                f"the {spec.name} lacks a trained parameter of shape {list(parameter.shape)}",
                hint="create it with all parameters of the node's model, and set requires_grad=False "
                "for frozen ones; or pass its class",
            )
        members.setdefault(number, []).append(parameter)
    made: Any = object.__new__(type(own))
    vars(made).update({name: copy(value) if isinstance(value, dict) else value for name, value in vars(own).items()})
    vars(made).pop("step", None)  # a scheduler's, which counts the steps of the object
    states = {parameter: own.state.get(originals.get(parameter, parameter)) for parameter in parameters}
    made.state = defaultdict(dict, {parameter: deepcopy(begun) for parameter, begun in states.items() if begun})
    groups = [(own.param_groups[number], members[number]) for number in sorted(members)]
    made.param_groups = [{**group, "params": trained} for group, trained in groups]
    sources = [group for group, _ in groups]

    def update_groups(*_: Any) -> None:
        vars(own)["_opt_called"] = True  # torch's schedulers warn where they step before the optimizer
        for mine, theirs in zip(made.param_groups, sources, strict=True):
            mine.update({name: value for name, value in theirs.items() if name != "params"})

    if originals:  # a trial, which hooks of the user's need not hear of
        vars(made).update(_optimizer_step_pre_hooks=OrderedDict(), _optimizer_step_post_hooks=OrderedDict())
    else:
        made.register_step_pre_hook(update_groups)
        made.register_step_post_hook(lambda *_: _with_state_elsewhere.add(own) if any(made.state.values()) else None)
        if own not in _watched:  # a copy has this hook too, and is never among those with state elsewhere
            _watched.add(own)
            own.register_step_pre_hook(_warn_of_own_step)
    return made  # type: ignore[no-any-return]


_with_state_elsewhere: WeakSet[torch.optim.Optimizer] = WeakSet()
"""Objects of the user's of which a copy has done steps, and has the state in their place."""
_watched: WeakSet[torch.optim.Optimizer] = WeakSet()


def warn_of_lost_steps(spec: Optimizer, level: int = 0) -> None:
    """Warn where an object that a graph has trained with begins again without the state of these steps.

    `level` is the `stacklevel` of the user's code, if it is not the code that runs a phase.
    """
    if isinstance(spec.own, torch.optim.Optimizer) and spec.own in _with_state_elsewhere:
        _with_state_elsewhere.discard(spec.own)
        warnings.warn(
            f"the {spec.name} has already trained another graph, which has its state, such as "
            "moments: here it starts without. Hint: continue to train that graph, or pass a new optimizer.",
            stacklevel=level or user_level(),
        )


def _warn_of_own_step(own: torch.optim.Optimizer, *_: Any) -> None:
    level, frame = 2, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(("anyaccel_torch.", "torch.")):
        level, frame = level + 1, frame.f_back
    warn_of_lost_steps(Optimizer(own), level)


def _no_optimizer(spec: Optimizer, available: str) -> SpecError:
    return SpecError(
        f"{spec.name} is not an optimizer of torch", available=available, hint="use one of the available optimizers"
    )


def _refuse_closure(cls: type[torch.optim.Optimizer], spec: Optimizer, available: str) -> None:
    closure = inspect.signature(cls.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise SpecError(
            f"{spec.name} needs a closure that computes the loss several times per step, which phases do not provide",
            available=available,
            hint="use another optimizer, or create it in a custom step: TrainPhase(step=function)",
        )


def trial_state(spec: Optimizer, parameter: nn.Parameter, variable: Any = None) -> dict[str, Any] | None:
    """Return the state of a copied parameter after a step of an optimizer class without a gradient; None if it fails.

    `variable` is the Keras variable of the parameter.
    """
    for layout in (torch.strided, torch.sparse_coo):
        trial = nn.Parameter(parameter.detach().clone())
        trial.grad = torch.zeros_like(trial) if layout is torch.strided else torch.zeros_like(trial, layout=layout)
        optimizer = create_optimizer(
            spec, [trial], variables={} if variable is None else {trial: variable}, originals={trial: parameter}
        )
        if not any(parameter is trial for group in optimizer.param_groups for parameter in group["params"]):
            return None  # a function that takes no notice of the parameters, and would step the user's
        try:
            optimizer.step()
        except Exception:  # SparseAdam takes sparse gradients alone; others have reasons of their own
            continue
        return dict(optimizer.state.get(trial, {}))
    return None


def expected_slots(
    spec: Optimizer, parameters: Sequence[nn.Parameter], variables: Mapping[nn.Parameter, Any]
) -> dict[nn.Parameter, ExpectedSlots]:
    """Return the slots of an optimizer for each parameter; a class is asked by a trial step for each shape.

    `variables` are the Keras variables of the parameters.
    """
    if spec.own is None:
        return dict.fromkeys(parameters, ExpectedSlots(frozenset(slot_names(spec))))
    trials: dict[Any, dict[str, Any] | None] = {}
    for parameter in parameters:
        key = _trial_key(spec, parameter, variables)
        if key not in trials:
            trials[key] = trial_state(spec, parameter, variables.get(parameter))
    lost = sorted({name for trial in trials.values() for name in not_encodable(trial or {})})
    if lost:
        warnings.warn(
            f"the optimizer {spec.name} keeps {', '.join(lost)} for each parameter, which is lost in a new "
            "phase: only tensors, numbers, text, and containers of these are kept",
            stacklevel=user_level(),
        )
    if None in trials.values():
        warnings.warn(
            f"the optimizer {spec.name} fails in a trial step with zero gradients, so its state is "
            "unknown: a new phase starts it from scratch",
            stacklevel=user_level(),
        )
    return {p: ExpectedSlots.of(trials[_trial_key(spec, p, variables)] or {}) for p in parameters}


def _trial_key(spec: Optimizer, parameter: nn.Parameter, variables: Mapping[nn.Parameter, Any]) -> Any:
    if isinstance(spec.own, torch.optim.Optimizer):
        return id(parameter)  # its groups may differ
    by_name = (
        parameter in variables
        and keras.library().is_optimizer(spec.own)
        and reads_names(spec.own, keras.library().module)
    )
    return parameter.shape, parameter.dtype, parameter.device, variables[parameter].path if by_name else None


# -- Named optimizers in torch: by a class of torch where there is one, else by their formula --------------------------


class Native(NamedTuple):
    """A class of torch that computes a named optimizer.

    Attributes:
        create: The class.
        slots: Torch's names of the slots of the formula.
        counts: Whether the state of each parameter has the number of its steps.
    """

    create: type[torch.optim.Optimizer]
    slots: Mapping[str, str]
    counts: bool


_SGD = Native(torch.optim.SGD, {"velocity": "momentum_buffer"}, counts=False)
_MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq"}
NATIVE: dict[str, Native] = {
    "sgd": _SGD,
    "momentum": _SGD,
    "adam": Native(torch.optim.Adam, _MOMENTS, counts=True),
    "adamw": Native(torch.optim.AdamW, _MOMENTS, counts=True),
}


def slot_names(spec: Optimizer) -> dict[str, str]:
    """Return the slots of a named optimizer, each with its name in torch's state."""
    renamed = NATIVE[spec.name].slots if spec.name in NATIVE else {}
    return {slot: renamed.get(slot, slot) for slot in OPTIMIZERS[spec.name].slots(spec.settings)}


def updated(
    rule: OptimizerRule,
    settings: Mapping[str, Any],
    value: Tensor,
    slots: Mapping[str, Tensor],
    gradient: Tensor,
    coefficients: Mapping[str, Any],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a parameter and its slots after a step of a rule; parameters of 16 bits are updated in float32."""
    wide = torch.promote_types(value.dtype, torch.float32)
    held = {name: slot.to(wide) for name, slot in slots.items()}
    moved, kept = rule.update(settings, array_functions, value.to(wide), gradient.to(wide), held, coefficients)
    return moved.to(value.dtype), {name: slot.to(slots[name].dtype) for name, slot in kept.items()}


class RuleOptimizer(torch.optim.Optimizer):
    """A named optimizer that torch has no class for, by its formula.

    Args:
        parameters: Parameters, as for any optimizer of torch.
        rule: The formula.
        settings: The learning rate and the formula's settings, for groups that have no others.
    """

    def __init__(self, parameters: Any, rule: OptimizerRule, **settings: Any) -> None:
        super().__init__(parameters, settings)
        self._rule = rule

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            settings = {name: group[name] for name in self._rule.settings}
            names = self._rule.slots(settings)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "step" not in state:
                    state["step"] = torch.zeros(())
                for name in names:
                    if name not in state:
                        state[name] = torch.zeros_like(parameter, requires_grad=False)
                state["step"] += 1
                step = int(state["step"])
                numbers = self._rule.coefficients(settings, np, group["lr"], step)
                gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
                moved, kept = updated(
                    self._rule,
                    settings,
                    parameter,
                    {name: state[name] for name in names},
                    gradient,
                    {name: float(number) for name, number in numbers.items()},
                )
                parameter.copy_(moved)
                state.update(kept)
        return loss
