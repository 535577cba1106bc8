"""Where the tensors of an optimizer's state belong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from anyaccel_torch.tree_utils import mapped


def place_state(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Move the state to where the parameters are, but leave on the host the step counts that torch reads there."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for key, value in state.items():
                state[key] = _to(value, where(key, group, parameter))
    return optimizer


def where(key: str, group: Mapping[str, Any], parameter: Tensor) -> torch.device:
    """The device of a part of a parameter's state: the host for step counts that torch reads there."""
    on_host = key == "step" and not group.get("capturable") and not group.get("fused")
    return torch.device("cpu") if on_host else parameter.device


def _to(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else mapped(value, lambda item: _to(item, device))
