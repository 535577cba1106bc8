"""NaN in the data of a TrainPhase: told once, before it has turned every loss and parameter to NaN in silence."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from anyaccel.data import Rows, joined_array
from anyaccel.errors import NaNWarning
from anyaccel.graph import Column, Plan
from anyaccel.numpy_backend import Estimator
from anyaccel.phases.kinds import TrainPhase
from anyaccel.phases.phase import Phase
from anyaccel.segment import Segment


def notes(
    phase: Phase,
    plan: Plan,
    segments: Sequence[Segment],
    rows: Mapping[str, Rows],
    arrays: Mapping[str, np.ndarray],
) -> tuple[str, ...]:
    """A note for each column whose NaN would go to what a TrainPhase trains by gradients.

    Features count where no estimator, which may know what to do with NaN, stands before the node that is trained;
    targets where a named loss takes them: a loss of the user's own may leave out what is NaN.

    Args:
        phase: any phase; of others than a TrainPhase there is nothing to tell.
        plan: of the phase.
        segments: that carry it out, in the order of computation.
        rows: the data of the phase, by feature set.
        arrays: the columns of the plan as they are loaded, by name; those of a source are not known beforehand.
    """
    if not isinstance(phase, TrainPhase):
        return ()
    reached = _reached(segments)
    known = [column for column in plan.columns if column.name in reached and column.name in arrays]
    found = [column for column in known if _has_nan(arrays[column.name])]
    return tuple(dict.fromkeys(_told(found, rows)))


def warn(label: str, told: Sequence[str]) -> None:
    """Warn of what `notes` gave for the phase of this label.

    Warns:
        NaNWarning: once for all of them.
    """
    if told:
        warnings.warn(f"phase {label!r}: {'. '.join(told)}.", NaNWarning, stacklevel=7)


def _reached(segments: Sequence[Segment]) -> set[str]:
    """Names of the values that go to trained nodes and named losses, through all that hands NaN on."""
    trained = {label for segment in segments for group in segment.groups for label in group.nodes}
    behind: dict[str, set[str]] = {}
    found: set[str] = set()
    for operation in (one for segment in segments for one in segment.operations):
        given = {name for taken in operation.inputs for name in behind.get(taken, {taken})}
        behind.update(dict.fromkeys(operation.outputs, set() if isinstance(operation.model, Estimator) else given))
        found |= given if operation.label in trained else set()
    for term in (one for segment in segments for one in segment.losses if one.loss.own is None):
        found.update(name for taken in term.inputs for name in behind.get(taken, {taken}))
    return found


def _has_nan(array: np.ndarray) -> bool:
    """Whether any number is NaN; the smallest one is then, and finding it takes no memory."""
    if array.dtype.kind != "f":
        return False
    with np.errstate(invalid="ignore"):
        return bool(np.isnan(array.min(initial=np.inf)))


def _told(found: Sequence[Column], rows: Mapping[str, Rows]) -> Iterator[str]:
    for column in found:
        its = rows[column.feature_set]
        for name in column.columns:
            count = _rows_with_nan(joined_array(its, (name,)))
            if count:
                role = "features" if column.role == "features" else "targets"
                yield (
                    f"{role} {name!r} hold NaN in {count} of {len(its)} rows; losses will be NaN. "
                    f"Hint: {_remedy(role, its.label, name)}"
                )


def _rows_with_nan(array: np.ndarray) -> int:
    if array.dtype.kind != "f":
        return 0
    return int(np.isnan(array.reshape(len(array), -1)).any(axis=1).sum())


def _remedy(role: str, label: str, name: str) -> str:
    if role == "features":
        return f"{label}.fit_transform(SimpleImputer(), [{name!r}], fit_on='train')"
    return f"train without these rows, data={label}.split('train').filter({{{name!r}: np.isfinite}})"
