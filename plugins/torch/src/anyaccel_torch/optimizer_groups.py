"""Groups of an optimizer spec as parameter groups of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from anyaccel.adapter import settings_of
from anyaccel.errors import SpecError
from anyaccel.specs import Optimizer
from anyaccel_torch.optimizer_state import named_slots


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
        if spec.own is None and named_slots(each.settings) != named_slots(spec.settings):
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


def lists_of_one_kind(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The parameters that are DTensors, and the others, for functions of torch that do not take both at once."""
    kinds = ([each for each in parameters if is_dtensor(each) is divided] for divided in (True, False))
    return [kind for kind in kinds if kind]


def is_dtensor(tensor: Any) -> bool:
    """Whether a tensor is a DTensor, without an import of torch.distributed."""
    return hasattr(tensor, "device_mesh")


def torch_settings(spec: Optimizer) -> dict[str, Any]:
    """The settings of a spec by torch's names."""
    settings = {"lr": spec.lr, **spec.settings}
    if spec.own is None and "nesterov" in settings:
        settings["nesterov"] = settings["nesterov"] and settings["momentum"] > 0  # torch refuses it without momentum
    return settings
