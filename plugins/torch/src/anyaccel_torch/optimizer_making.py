"""Optimizer recipes made into torch's optimizers."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import Tensor, nn

from anyaccel.errors import SpecError
from anyaccel.specs import Optimizer
from anyaccel_torch.error_translation import first_line

_FUSED_ON = frozenset({"cpu", "cuda", "xpu"})
_CLASSES: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def make(recipe: Optimizer, parameters: list[nn.Parameter], *, sparse: bool = False) -> torch.optim.Optimizer:
    """The recipe as an optimizer of torch over `parameters`, fused where torch has that; not for `sparse` gradients.

    Raises:
        SpecError: a class that is no optimizer of torch, needs a closure, or does not take the settings.
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
        raise SpecError(f"{recipe.name} is not an optimizer of torch", available=known, hint="use one of these")
    closure = inspect.signature(cls.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        asked = f"{recipe.name} wants to compute the loss itself, several times in a step"
        raise SpecError(asked, available=known, hint="use another, or run your own loop for it")
    made: Callable[..., torch.optim.Optimizer] = cls
    try:
        return made(parameters, lr=recipe.lr, **recipe.settings)
    except (TypeError, ValueError) as error:
        asked, given = f"{recipe.name} cannot be made: {first_line(error)}", ", ".join(("lr", *recipe.settings))
        raise SpecError(asked, available=f"settings {given}", hint="correct the settings of Optimizer(...)") from error


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
