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
    """The parameters as torch's optimizers take them: alone, or in groups with settings."""
    if not groups:
        return list(parameters)
    by_settings: dict[int, dict[str, Any]] = {}
    for parameter in parameters:
        own = groups.get(parameter, spec)
        by_settings.setdefault(id(own), {"params": [], **torch_settings(own)})["params"].append(parameter)
    return list(by_settings.values())


def torch_settings(spec: Optimizer) -> dict[str, Any]:
    """The settings of a spec by torch's names."""
    settings = {"lr": spec.lr, **spec.settings}
    if spec.own is None and "nesterov" in settings:
        settings["nesterov"] = settings["nesterov"] and settings["momentum"] > 0  # torch refuses it without momentum
    return settings
