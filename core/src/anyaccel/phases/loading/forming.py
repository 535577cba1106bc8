"""Forming: the batches of a source as a plan loads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anyaccel.data.casting import first_unrepresentable
from anyaccel.errors import ColumnError
from anyaccel.graph import Column
from anyaccel.phases.loading import device_columns

Batch = Mapping[str, np.ndarray]
"""Arrays in host memory by name of column, [rows, *shape]."""


def formed(column: Column, batch: Batch, out: np.ndarray, classes: int | None) -> None:
    """Put the rows of a batch into memory as the plan loads them: joined, cast and shaped.

    Raises:
        ColumnError: class indices out of range, or integers that are not exact as the floats they are joined with.
    """
    if len(column.columns) == 1:
        np.copyto(out, batch[column.columns[0]].reshape(out.shape), casting="unsafe")
    else:
        _join(column, batch, out)
    if classes is not None:
        device_columns.check_classes(column, out, classes)


def _join(column: Column, batch: Batch, out: np.ndarray) -> None:
    start = 0
    for name in column.columns:
        part = batch[name]
        _check_exact(column, name, part, out.dtype)
        part = part[:, None] if part.ndim == 1 else part
        np.copyto(out[..., start : start + part.shape[-1]], part, casting="unsafe")
        start += part.shape[-1]


def _check_exact(column: Column, name: str, part: np.ndarray, dtype: np.dtype[Any]) -> None:
    if part.dtype.kind not in "iu" or dtype.kind != "f":
        return
    found = first_unrepresentable(part, dtype)
    if found is not None:
        raise ColumnError(
            f"column {name!r} is joined with floats as {dtype}: row {found[0]} holds {found[1]}",
            available=f"{dtype} holds integers to 2**{np.finfo(dtype).nmant + 1} exactly",
            hint=f"make them smaller in the source, or take {name!r} out of this reference",
        )
