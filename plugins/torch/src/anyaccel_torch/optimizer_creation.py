"""Torch optimizers of optimizer specs, and what such an optimizer keeps for each parameter."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from anyaccel.adapter import settings_of
from anyaccel.adapter.layer_optimizers import reads_names
from anyaccel.errors import SpecError
from anyaccel.formulas import OPTIMIZERS
from anyaccel.specs import Optimizer, Schedule
from anyaccel_torch import keras
from anyaccel_torch.divided_gradients import is_dtensor
from anyaccel_torch.error_translation import first_line
from anyaccel_torch.named_optimizers import NATIVE, RuleOptimizer, slot_names
from anyaccel_torch.optimizer_state import ExpectedSlots, not_encodable

_FUSED_ON = frozenset({"cpu", "cuda", "xpu"})


def create_optimizer(
    spec: Optimizer,
    parameters: list[nn.Parameter],
    *,
    groups: Mapping[nn.Parameter, Optimizer] | None = None,
    sparse: bool = False,
    variables: Mapping[nn.Parameter, Any] | None = None,
    originals: Mapping[nn.Parameter, nn.Parameter] | None = None,
) -> torch.optim.Optimizer:
    """The spec as a torch optimizer over `parameters`, fused where torch supports it and gradients are not `sparse`.

    `groups` has the settings of parameters that are in a group of the spec, `variables` those of Keras whose values
    parameters are, and `originals` what parameters are copies of.

    Raises:
        SpecError: a class that is no optimizer of torch, needs a closure, or does not take the settings.
    """
    given = torch_groups(spec, parameters, groups)
    if spec.own is not None:
        if isinstance(spec.own, torch.optim.Optimizer):
            return _copy_of(spec.own, spec, parameters, originals or {})
        return _create_own(spec.own, spec, given, variables)
    if spec.name not in NATIVE:
        return RuleOptimizer(given, OPTIMIZERS[spec.name], lr=spec.lr, **spec.settings)
    create: Callable[..., torch.optim.Optimizer] = NATIVE[spec.name].create
    return create(given, **torch_settings(spec), **_implementation(spec, parameters, sparse=sparse))


def grouped_settings(
    spec: Optimizer, members: Mapping[str, Mapping[str, nn.Parameter]]
) -> dict[nn.Parameter, Optimizer]:
    """The settings of each parameter that is in a group of the spec.

    Args:
        spec: has the groups.
        members: parameters by node and name.

    Raises:
        SpecError: a group has a momentum where others have none, which torch keeps for all parameters or for none.
    """
    if not spec.groups:
        return {}
    named = [(name, parameter) for own in members.values() for name, parameter in own.items()]
    found = {parameter: settings_of(spec, name, parameter) for name, parameter in named}
    for each in found.values():
        if spec.own is None and spec.name in NATIVE and slot_names(each) != slot_names(spec):
            raise SpecError(
                f"optimizer {spec.name!r} has momentum={spec.settings['momentum']}, and a group of it has "
                f"momentum={each.settings['momentum']}",
                hint="give all groups a momentum, or none",
            )
    return {parameter: each for parameter, each in found.items() if each is not spec}


def torch_groups(
    spec: Optimizer, parameters: Sequence[nn.Parameter], groups: Mapping[nn.Parameter, Optimizer] | None
) -> list[Any]:
    """The parameters as torch's optimizers take them: alone, or in groups with settings.

    Named optimizers get DTensors in groups of their own, as torch has no function for lists of both.
    """
    apart = spec.own is None and len({is_dtensor(parameter) for parameter in parameters}) > 1
    if not (groups or apart):
        return list(parameters)
    by_settings: dict[Any, dict[str, Any]] = {}
    for parameter in parameters:
        own = (groups or {}).get(parameter, spec)
        key = id(own), apart and is_dtensor(parameter)
        by_settings.setdefault(key, {"params": [], **torch_settings(own)})["params"].append(parameter)
    return list(by_settings.values())


def torch_settings(spec: Optimizer) -> dict[str, Any]:
    """The settings of a spec by torch's names."""
    settings = {"lr": spec.lr, **spec.settings}
    if spec.own is None and spec.name in NATIVE and "nesterov" in settings:
        settings["nesterov"] = settings["nesterov"] and settings["momentum"] > 0  # torch refuses it without momentum
    return settings


def _implementation(spec: Optimizer, parameters: list[nn.Parameter], *, sparse: bool) -> dict[str, bool]:
    # torch's fused SGD leaves most 16-bit parameters on the CPU unchanged (pytorch#191763).
    narrow = any(p.itemsize < 4 and p.device.type == "cpu" for p in parameters)
    divided = any(map(is_dtensor, parameters))  # for which torch has no fused SGD
    if NATIVE[spec.name].create is torch.optim.SGD and (narrow or divided):
        return {"foreach": True}
    types = {parameter.device.type for parameter in parameters}
    alike = len(types) == 1 and all(parameter.is_floating_point() for parameter in parameters)
    return {"fused": True} if alike and types <= _FUSED_ON and not sparse else {"foreach": True}


def _create_own(
    own: Any, spec: Optimizer, parameters: Sequence[Any], variables: Mapping[nn.Parameter, Any] | None
) -> torch.optim.Optimizer:
    """An optimizer of a class, a `functools.partial` of one, or a function of parameters that gives one."""
    available = f"{', '.join(OPTIMIZERS)}; or a class of torch.optim, or one derived from torch.optim.Optimizer"
    if keras.is_optimizer(own):
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
        raise SpecError(
            f"{spec.name} cannot be created with settings {settings}: {first_line(error)}",
            hint="correct the settings of Optimizer(...)",
        ) from error
    if not isinstance(made, torch.optim.Optimizer):
        raise _no_optimizer(spec, available)
    return made


def _copy_of(
    own: torch.optim.Optimizer,
    spec: Optimizer,
    parameters: Sequence[nn.Parameter],
    originals: Mapping[nn.Parameter, nn.Parameter],
) -> torch.optim.Optimizer:
    """An optimizer like an object that was given, over parameters of the object's; it keeps its own state.

    Before each step it gets what the object's groups have then, so that torch's schedulers have an effect.
    """
    _check_object(own, spec)
    number_of = {id(p): i for i, group in enumerate(own.param_groups) for p in group["params"]}
    members: dict[int, list[nn.Parameter]] = {}
    for parameter in parameters:
        number = number_of.get(id(originals.get(parameter, parameter)))
        if number is None:
            raise SpecError(
                f"the {spec.name} that was given lacks a parameter of shape {list(parameter.shape)} that is trained",
                hint="create it with all parameters of the node's model, and switch off requires_grad of those that "
                "stay as they are; or give its class",
            )
        members.setdefault(number, []).append(parameter)
    made: Any = object.__new__(type(own))
    vars(made).update({name: copy(value) if isinstance(value, dict) else value for name, value in vars(own).items()})
    vars(made).pop("step", None)  # a scheduler's, which counts the steps of the object
    given = {parameter: own.state.get(originals.get(parameter, parameter)) for parameter in parameters}
    made.state = defaultdict(dict, {parameter: deepcopy(begun) for parameter, begun in given.items() if begun})
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


def warn_of_lost_steps(spec: Optimizer) -> None:
    """Warn where an object that a graph has trained with begins again without the state of these steps."""
    if isinstance(spec.own, torch.optim.Optimizer) and spec.own in _with_state_elsewhere:
        _with_state_elsewhere.discard(spec.own)
        warnings.warn(
            f"the {spec.name} that was given has trained a graph, which has what it kept of these steps, such as "
            "moments: here it begins again without. Hint: train that graph further, or give a new optimizer.",
            stacklevel=2,
        )


def _warn_of_own_step(own: torch.optim.Optimizer, *_: Any) -> None:
    warn_of_lost_steps(Optimizer(own))


def _check_object(own: torch.optim.Optimizer, spec: Optimizer) -> None:
    """Refuse objects whose state or behaviour a copy would not have, and settings besides theirs."""
    name = spec.name
    _refuse_closure(type(own), spec, ", ".join(OPTIMIZERS))
    settings = [*spec.settings, *(["groups"] if spec.groups else []), *(["lr"] if spec.lr != 1.0 else [])]
    settings += ["schedule"] if spec.schedule != Schedule() else []
    if settings:
        raise SpecError(
            f"the {name} that was given is an object with groups and rates, but got {', '.join(settings)} besides",
            hint=f"set them in the object, or give its class: Optimizer(torch.optim.{name}, {settings[0]}=...)",
        )
    if any(kept and float(kept.get("step", 1)) for kept in own.state.values()):  # some keep zeros from the beginning
        raise SpecError(
            f"the {name} that was given has done steps already, whose state would be lost",
            hint="give a new one, from model.parameters()",
        )
    step: Any = vars(own).get("step")
    inner = [key for key, value in vars(own).items() if isinstance(value, torch.optim.Optimizer)]
    if inner or (step is not None and not hasattr(step, "_wrapped_by_lr_sched")):
        raise SpecError(
            f"the {name} that was given has "
            + (f"another optimizer in it, {inner[0]}" if inner else "another function as its step"),
            hint="create and step it in a step of your own: TrainPhase(step=function)",
        )


def _no_optimizer(spec: Optimizer, available: str) -> SpecError:
    return SpecError(
        f"{spec.name} is not an optimizer of torch", available=available, hint="use one of the available optimizers"
    )


def _refuse_closure(cls: type[torch.optim.Optimizer], spec: Optimizer, available: str) -> None:
    closure = inspect.signature(cls.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise SpecError(
            f"{spec.name} needs a closure that computes the loss several times per step, which phases do not give",
            available=available,
            hint="use another optimizer, or create it in a step of your own: TrainPhase(step=function)",
        )


def trial_state(spec: Optimizer, parameter: nn.Parameter, variable: Any = None) -> dict[str, Any] | None:
    """The state of a copy of a parameter after a step of an optimizer class without a gradient; None if it fails.

    `variable` is that of Keras whose value the parameter is.
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
    """What an optimizer keeps for each parameter; a class is asked by a trial step for each shape.

    `variables` are those of Keras whose values parameters are.
    """
    if spec.own is None:
        return dict.fromkeys(parameters, ExpectedSlots(frozenset(slot_names(spec))))
    trials: dict[Any, dict[str, Any] | None] = {}
    for parameter in parameters:
        key = _trial_key(spec, parameter, variables)
        if key not in trials:
            trials[key] = trial_state(spec, parameter, variables.get(parameter))
    _warn_of_lost_state(spec, list(trials.values()))
    return {p: ExpectedSlots.of(trials[_trial_key(spec, p, variables)] or {}) for p in parameters}


def _trial_key(spec: Optimizer, parameter: nn.Parameter, variables: Mapping[nn.Parameter, Any]) -> Any:
    if isinstance(spec.own, torch.optim.Optimizer):
        return id(parameter)  # its groups may differ
    by_name = parameter in variables and keras.is_optimizer(spec.own) and reads_names(spec.own, keras.library().module)
    return parameter.shape, parameter.dtype, parameter.device, variables[parameter].path if by_name else None


def _warn_of_lost_state(spec: Optimizer, trials: Sequence[Mapping[str, Any] | None]) -> None:
    """What cannot be continued is said, once for an optimizer."""
    lost = sorted({name for trial in trials for name in not_encodable(trial or {})})
    if lost:
        warnings.warn(
            f"the optimizer {spec.name} keeps {', '.join(lost)} for each parameter, which a new phase does not "
            "continue: tensors, numbers, text, and containers of these last",
            stacklevel=2,
        )
    if None in trials:
        warnings.warn(
            f"the optimizer {spec.name} fails in a trial step with a gradient of zeros, so that it is unknown what it "
            "keeps: a new phase starts it afresh",
            stacklevel=2,
        )
