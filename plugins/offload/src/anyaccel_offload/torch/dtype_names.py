"""Dtypes from users: torch's objects, or their names."""

from __future__ import annotations

from typing import Any

import torch

from anyaccel.arguments import check
from anyaccel.errors import ConfigError


def named_dtype(where: str, dtype: Any, name: str = "dtype", *, any_kind: bool = False) -> torch.dtype | None:
    """Return a torch dtype for itself or for text such as `"float16"` or `"torch.float16"`; None for None.

    Args:
        where: Beginning of an error message.
        dtype: Value from the user.
        name: Name of the argument.
        any_kind: Whether to accept dtypes other than floating ones.

    Raises:
        ConfigError: The value is not a dtype.
    """
    found: Any = getattr(torch, dtype.removeprefix("torch."), dtype) if isinstance(dtype, str) else dtype
    fits = lambda it: it is None or (isinstance(it, torch.dtype) and (any_kind or it.is_floating_point))  # noqa: E731
    check(ConfigError, where, name, found, fits, "a floating dtype of torch, or None", "torch.bfloat16")
    made: torch.dtype | None = found
    return made
