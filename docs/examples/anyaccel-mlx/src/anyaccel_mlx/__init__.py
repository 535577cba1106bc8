"""MLX for anyaccel: on the Apple GPU (`mps`) and the CPU. Importing this package does not import MLX."""

from __future__ import annotations

from typing import Any

from anyaccel import hookimpl
from anyaccel_mlx.backend import MlxBackend

__all__ = ["MlxBackend", "SequentialMLP", "backends"]

contract = 2
"""The version of the contract of backends that this plugin is written for."""


@hookimpl
def backends() -> list[Any]:
    """The one backend of this plugin; MLX is imported when it is first asked for something."""
    return [MlxBackend()]


def __getattr__(name: str) -> Any:
    if name != "SequentialMLP":
        raise AttributeError(f"module 'anyaccel_mlx' has no attribute {name!r}")
    from anyaccel_mlx.models import SequentialMLP  # imports MLX

    return SequentialMLP
