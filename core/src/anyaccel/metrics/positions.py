"""Positions: the samples or positions of outputs and targets that a metric counts, one after the other."""

from __future__ import annotations

import numpy as np

from anyaccel.errors import SpecError
from anyaccel.metrics.class_values import same_axes


def within(lengths: np.ndarray, width: int) -> np.ndarray:
    """Which of `width` positions are those of rows of these lengths, bool [n, width].

    Raises:
        SpecError: a row is longer.
    """
    longest = int(lengths.max(initial=0))
    if longest > width:
        problem = f"outputs have {width} positions, and targets up to {longest}"
        raise SpecError(problem, hint="measure a node that gives an output for each position of its targets")
    return np.arange(width) < lengths[:, None]


def without_class_axis(outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Targets [..., 1] of scores [..., classes] as [...]."""
    is_column = targets.ndim == outputs.ndim > 1 and targets.shape[-1] == 1 < outputs.shape[-1]
    return targets[..., 0] if is_column else targets


def mask_of(values: np.ndarray, targets: np.ndarray, mask: str) -> np.ndarray:
    """A column that says what counts as bools over the first axes of the targets.

    Args:
        values: of the column: True and False, or 1 and 0, [n] or with further of the first axes.
        targets: [n, ...].
        mask: name of the column, for messages.

    Raises:
        SpecError: other values, or other axes than the first of the targets.
    """
    if not np.isin(values, (0, 1)).all():
        raise SpecError(f"the mask {mask} has other values than 0 and 1", hint="name a column of 0 and 1, or of bools")
    while values.ndim > 1 and values.shape[-1] == 1 and values.shape != targets.shape[: values.ndim]:
        values = values[..., 0]
    if values.shape != targets.shape[: values.ndim]:
        shapes = f"{list(values.shape)}, and the targets {list(targets.shape)}"
        raise SpecError(f"the mask {mask} is {shapes}", hint="name a mask with the first axes of the targets")
    return values.astype(bool)


def counted(
    outputs: np.ndarray, targets: np.ndarray, mask: np.ndarray | None, ignore_index: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """The outputs and targets that count, [m, ...] each; as they are if nothing is left out.

    Args:
        outputs: [n, ...].
        targets: [n, ...].
        mask: bools over the first axes of both; None if all count.
        ignore_index: the integer target that does not count.

    Raises:
        SpecError: nothing counts, or outputs and targets have no positions in common.
    """
    if ignore_index is not None:
        if targets.dtype.kind not in "iub":
            problem = (
                f"ignore_index={ignore_index} is for targets that are class indices, and these are {targets.dtype}"
            )
            raise SpecError(problem, hint="leave ignore_index out, or name a mask: Metric(..., mask='DATA.COLUMN')")
        valid = targets != ignore_index
        mask = valid if mask is None else valid & mask.reshape(*mask.shape, *[1] * (valid.ndim - mask.ndim))
    if mask is None:
        return outputs, targets
    if outputs.shape[: mask.ndim] != mask.shape:
        if not same_axes(outputs, mask):
            problem = f"outputs {list(outputs.shape)} do not have the positions of targets {list(targets.shape)}"
            raise SpecError(problem, hint="say where the classes are: Metric(..., class_axis=1)")
        outputs = outputs.reshape(mask.shape)
    if not mask.any():
        raise SpecError("no position counts", hint="look at the mask, or at ignore_index, and the targets")
    return outputs[mask], targets[mask]


def flattened(outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores [n, ..., classes] of positions and their classes [n, ...] as [m, classes] and [m]; others as they are."""
    if outputs.ndim > 2 and outputs.shape[:-1] == targets.shape:
        return outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1)
    return outputs, targets
