"""Loading: the columns of a plan, from Arrow to the devices, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from anyaccel.data import FeatureSet, FeatureSetView, Rows, joined_spec, loadable_array
from anyaccel.data.roles import listed
from anyaccel.data.transforms.fitted_transform import relevant_transforms
from anyaccel.errors import ColumnError, PhaseError
from anyaccel.graph import Column, Plan, Resolution
from anyaccel.phases.phase import Data
from anyaccel.registry import registry


@dataclass(frozen=True, slots=True)
class Feed:
    """Columns on their devices, by value name, and the lane that the rows of each come from, (set, stream)."""

    columns: Mapping[str, Any]
    lanes: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def lane(self, name: str) -> tuple[str, str]:
        """The feature set of a column, and the stream that it is read from, `""` for the first."""
        return self.lanes.get(name, ("", ""))


def rows_of(label: str, data: Data, sets: Mapping[str, FeatureSet], *, together: bool = True) -> dict[str, Rows]:
    """The rows that a phase runs over, by feature set; `together` if one sampler draws from all of them.

    Raises:
        PhaseError: a feature set without data, data for none, or different numbers of rows that are drawn together.
        SplitError: a split that a feature set does not have.
    """
    given = dict(data) if isinstance(data, Mapping) else _for_each(label, data, sets)
    strange = sorted(set(given) - set(sets))
    missing = sorted(set(sets) - set(given))
    if strange or missing:
        raise PhaseError(
            f"phase {label!r} has data for {', '.join(sorted(given)) or 'nothing'}",
            available=f"the graph takes {', '.join(sets)}",
            hint=_for_these(strange, missing, sorted(set(given) - set(strange))),
        )
    rows = {name: sets[name].split(one) if isinstance(one, str) else _rows(label, one) for name, one in given.items()}
    counts = {name: len(one) for name, one in rows.items()}
    if together and len(set(counts.values())) > 1:
        raise PhaseError(
            f"phase {label!r} has different numbers of rows",
            available=", ".join(f"{name}: {count}" for name, count in counts.items()),
            hint="batches are drawn together: give each feature set the same number of rows, or a sampler of its own",
        )
    if not counts:
        raise PhaseError(
            f"phase {label!r} has nothing to compute",
            available="no losses, metrics or outputs",
            hint="leave outputs out for all tails, or name some",
        )
    for name, one in rows.items():
        _check_transforms(label, one, sets[name])
    if not all(counts.values()):
        raise PhaseError(f"phase {label!r} has no rows", hint="choose another split")
    return rows


def _for_these(strange: Sequence[str], missing: Sequence[str], fitting: Sequence[str]) -> str:
    """What to write where data were given under labels that are not those of the graph's feature sets."""
    if len(strange) == len(missing) == 1:
        return f"if {strange[0]!r} are such data, say so: data={{{missing[0]!r}: {strange[0]}}}"
    each = f"give data={{{', '.join(f'{name!r}: ...' for name in [*fitting, *missing])}}}, a split or view for each"
    if not fitting:
        return each
    one = fitting[0]
    return f"{each}; or compute only what {one!r} feeds: data={{{one!r}: {one}['SPLIT']}}, outputs=['NODE']"


def _check_transforms(label: str, rows: Rows, known: FeatureSet) -> None:
    """Features of other units would go through a graph that was made for its data's, and give wrong numbers."""
    given = _source(rows)
    if given is known or not isinstance(given, FeatureSet):
        return
    wanted, found = (relevant_transforms(one.transforms, known.features)[::-1] for one in (known, given))
    if len(wanted) == len(found) and all(one.is_like(other) for one, other in zip(wanted, found, strict=True)):
        return
    other = "with other transforms than" if found else "as it was before the transforms of"
    raise PhaseError(
        f"phase {label!r} was given {rows.label!r} {other} the graph's data",
        available=f"the graph's data: {listed(wanted)}; given: {listed(found)}",
        hint="name a split of the graph's feature set, or give fresh.transform_like(data) of fresh data as they came",
    )


def _source(rows: Rows) -> Rows:
    return rows.feature_set if isinstance(rows, FeatureSetView) else rows


def _for_each(label: str, data: str | Rows, sets: Mapping[str, FeatureSet]) -> dict[str, str | Rows]:
    if isinstance(data, str):
        return dict.fromkeys(sets, data)
    return {_rows(label, data).label: data}


def _rows(label: str, data: Any) -> Rows:
    if not isinstance(data, Rows):
        raise PhaseError(
            f"phase {label!r} cannot take its data from {type(data).__name__}",
            hint="give a split's name, a FeatureSet or a view",
        )
    return data


def prepare(
    plan: Plan,
    rows: Mapping[str, Rows],
    classes: Mapping[str, int],
    known: Mapping[str, FeatureSet] = MappingProxyType({}),
) -> dict[str, np.ndarray]:
    """The columns in host memory, in the form in which the plan loads them; nothing has moved.

    Args:
        plan: whose columns.
        rows: the data, by feature set.
        classes: for columns of class indices, the number of classes, by value name.
        known: the feature sets that the graph was made for, by label, to tell where a missing column came from.

    Raises:
        ColumnError: data that are not what the plan was made for, or class indices out of range.
    """
    arrays: dict[str, np.ndarray] = {}
    for column in plan.columns:
        twin = next((one for one in plan.columns if one.name in arrays and _same(one, column)), None)
        counted = classes.get(column.name)
        _check_made(column, rows[column.feature_set], known.get(column.feature_set))
        if twin is None or classes.get(twin.name) != counted:
            arrays[column.name] = _prepared(column, rows[column.feature_set], counted)
        else:
            arrays[column.name] = arrays[twin.name]
    return arrays


def _same(one: Column, other: Column) -> bool:
    """Whether two columns are one in memory: only their streams differ."""
    return replace(one, name="", stream="", role="") == replace(other, name="", stream="", role="")


def _check_made(column: Column, rows: Rows, known: FeatureSet | None) -> None:
    """A column that is missing because a transform of the graph's data made it."""
    missing = [name for name in column.columns if name not in rows.columns]
    makers = relevant_transforms(known.transforms, missing[:1]) if known is not None else []
    if makers and not any(missing[0] in one.columns for one in makers):
        raise ColumnError(
            f"{rows.label!r} has no column {missing[0]!r}, which the graph's data have from a transform",
            available=f"columns: {listed(rows.columns)}; the transform: {makers[0]}",
            hint="give fresh.transform_like(data), with the columns that it was made of",
        )


def _prepared(column: Column, rows: Rows, classes: int | None) -> np.ndarray:
    found = joined_spec(rows, column.columns)
    if found != column.stored:
        raise ColumnError(
            f"{column.shown} is {found} in these data", available=f"the graph was built for {column.stored}"
        )
    try:
        array = loadable_array(rows, column.columns, column.spec.dtype).reshape(len(rows), *column.spec.shape)
        if classes is not None:
            check_classes(column, array, classes)
        return array
    except TypeError:
        raise ColumnError(
            f"{column.shown} cannot be made {column.spec.dtype} in host memory", hint="keep the model in float32"
        ) from None


def check_classes(column: Column, array: np.ndarray, classes: int) -> None:
    """Make sure that class indices are some of so many classes.

    Raises:
        ColumnError: one is not.
    """
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= classes:
        raise ColumnError(
            f"{column.shown} has the class index {low if low < 0 else high}",
            available=f"the model gives {classes} classes, 0 to {classes - 1}",
            hint="change the model's output_shape, or the column",
        )


def class_counts(resolution: Resolution) -> dict[str, int]:
    """The number of classes for each column of class indices: the smallest, where several losses take it."""
    loaded = {column.name: column.spec for column in resolution.plan.columns}
    counts: dict[str, int] = {}
    for term in (term for segment in resolution.segments for term in segment.losses):
        if term.loss.name == "cross_entropy" and term.loss.own is None:
            logits, target = term.inputs
            if target in loaded and "int" in loaded[target].dtype and logits in resolution.shapes.specs:
                here = resolution.shapes.specs[logits].shape[0]
                counts[target] = min(here, counts.get(target, here))
    return counts


def load(plan: Plan, arrays: Mapping[str, np.ndarray], loaded: Callable[[int], None] | None = None) -> Feed:
    """Put prepared columns on their devices, and give away what can be; what several streams read is there once.

    Args:
        plan: which columns go where.
        arrays: the columns, by value name.
        loaded: is told the bytes of each when it is there.
    """
    columns: dict[str, Any] = {}
    for column in plan.columns:
        twin = next((one for one in plan.columns if one.name in columns and _same(one, column)), None)
        if twin is not None and arrays[twin.name] is arrays[column.name]:
            columns[column.name] = columns[twin.name]
            continue
        backend = registry().computing(column.framework, column.device.kind)
        array = arrays[column.name]
        if array.flags.writeable and not column.pinned:  # memory of its own; what the feature set owns is read-only
            columns[column.name] = backend.from_host_owned(array, column.device)
        else:
            columns[column.name] = backend.from_host(array, column.device, pinned=column.pinned)
        if loaded is not None:
            loaded(array.nbytes)
    return Feed(columns, {column.name: (column.feature_set, column.stream) for column in plan.columns})
