"""Models larger than a device: the names of `anyaccel_offload.torch`, which this module had in version 0.1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyaccel.distributions import missing

try:
    from anyaccel_offload import torch as _moved
except ModuleNotFoundError as error:
    if error.name != "anyaccel_offload":
        raise
    raise missing("anyaccel-offload", "anyaccel_torch.big_models") from None

if TYPE_CHECKING:
    from anyaccel_offload.torch import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_moved, name)


def __dir__() -> list[str]:
    return dir(_moved)
