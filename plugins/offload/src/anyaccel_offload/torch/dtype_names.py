"""Dtypes as users write them: torch's objects, or their names."""

from __future__ import annotations

from typing import Any

import torch

from anyaccel.arguments import check
from anyaccel.errors import ConfigError


def named_dtype(where: str, given: Any, name: str = "dtype", *, any_kind: bool = False) -> torch.dtype | None:
    """A dtype of torch, of itself or of text such as `"float16"` or `"torch.float16"`; None for None.

    Args:
        where: begins the text of an error.
        given: what the user wrote.
        name: of the argument.
        any_kind: whether others than floating ones are taken.

    Raises:
        ConfigError: it is none.
    """
    found: Any = getattr(torch, given.removeprefix("torch."), given) if isinstance(given, str) else given
    fits = lambda it: it is None or (isinstance(it, torch.dtype) and (any_kind or it.is_floating_point))  # noqa: E731
    check(ConfigError, where, name, found, fits, "a floating dtype of torch, or None", "torch.bfloat16")
    made: torch.dtype | None = found
    return made
