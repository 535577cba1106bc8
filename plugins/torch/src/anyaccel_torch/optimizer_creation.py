"""Torch optimizers of optimizer specs, and what such an optimizer keeps for each parameter."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from anyaccel.errors import SpecError
from anyaccel.specs import Optimizer
from anyaccel_torch import keras
from anyaccel_torch.error_translation import first_line
from anyaccel_torch.optimizer_groups import is_dtensor, torch_groups, torch_settings
from anyaccel_torch.optimizer_state import ExpectedSlots, named_slots, not_encodable

_FUSED_ON = frozenset({"cpu", "cuda", "xpu"})
_CLASSES: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def create_optimizer(
    spec: Optimizer,
    parameters: list[nn.Parameter],
    *,
    groups: Mapping[nn.Parameter, Optimizer] | None = None,
    sparse: bool = False,
) -> torch.optim.Optimizer:
    """The spec as a torch optimizer over `parameters`, fused where torch supports it and gradients are not `sparse`.

    `groups` has the settings of parameters that are in a group of the spec.

    Raises:
        SpecError: a class that is no optimizer of torch, needs a closure, or does not take the settings.
    """
    given = torch_groups(spec, parameters, groups)
    if spec.own is not None:
        return _create_own(spec.own, spec, given)
    create: Callable[..., torch.optim.Optimizer] = _CLASSES[spec.name]
    return create(given, **torch_settings(spec), **_implementation(spec, parameters, sparse=sparse))


def _implementation(spec: Optimizer, parameters: list[nn.Parameter], *, sparse: bool) -> dict[str, bool]:
    # torch's fused SGD leaves most 16-bit parameters on the CPU unchanged (pytorch#191763).
    narrow = any(p.itemsize < 4 and p.device.type == "cpu" for p in parameters)
    divided = any(map(is_dtensor, parameters))  # for which torch has no fused SGD
    if spec.name in ("sgd", "momentum") and (narrow or divided):
        return {"foreach": True}
    types = {parameter.device.type for parameter in parameters}
    alike = len(types) == 1 and all(parameter.is_floating_point() for parameter in parameters)
    return {"fused": True} if alike and types <= _FUSED_ON and not sparse else {"foreach": True}


def _create_own(own: Any, spec: Optimizer, parameters: Sequence[Any]) -> torch.optim.Optimizer:
    """An optimizer of a class, a `functools.partial` of one, or a function of parameters that gives one."""
    available = f"{', '.join(_CLASSES)}; or a class of torch.optim, or one derived from torch.optim.Optimizer"
    if keras.is_optimizer(own) and isinstance(own, type):
        from anyaccel_torch.keras_optimizers import KerasOptimizer

        return KerasOptimizer(parameters, spec, lr=spec.lr, **spec.settings)
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


def slot_names(spec: Optimizer, parameters: list[nn.Parameter]) -> set[str]:
    """Names of what an optimizer keeps per parameter, except its step; a class is asked by a trial step."""
    if spec.own is None:
        return set(named_slots(spec.settings))
    return set(ExpectedSlots.of(trial_state(spec, parameters[0]) or {}).names)


def trial_state(spec: Optimizer, parameter: nn.Parameter) -> dict[str, Any] | None:
    """The state of a copy of a parameter after a step of an optimizer class without a gradient; None if it fails."""
    for layout in (torch.strided, torch.sparse_coo):
        copy = nn.Parameter(parameter.detach().clone())
        copy.grad = torch.zeros_like(copy) if layout is torch.strided else torch.zeros_like(copy, layout=layout)
        optimizer = create_optimizer(spec, [copy])
        try:
            optimizer.step()
        except Exception:  # SparseAdam takes sparse gradients alone; others have reasons of their own
            continue
        return dict(optimizer.state.get(copy, {}))
    return None


def expected_slots(spec: Optimizer, parameters: Sequence[nn.Parameter]) -> dict[nn.Parameter, ExpectedSlots]:
    """What an optimizer keeps for each parameter; a class is asked by a trial step for each shape."""
    if spec.own is None:
        return dict.fromkeys(parameters, ExpectedSlots(frozenset(named_slots(spec.settings))))
    trials: dict[Any, dict[str, Any] | None] = {}
    for parameter in parameters:
        key = (parameter.shape, parameter.dtype, parameter.device)
        if key not in trials:
            trials[key] = trial_state(spec, parameter)
    _warn_of_lost_state(spec, list(trials.values()))
    return {p: ExpectedSlots.of(trials[p.shape, p.dtype, p.device] or {}) for p in parameters}


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
