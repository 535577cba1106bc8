"""Same units: the rows of a phase are transformed and padded as those of the data that its graph was built for."""

from __future__ import annotations

from collections.abc import Collection

from anyaccel.data import FeatureSet, FeatureSetView, Rows
from anyaccel.data.padding import padding_of
from anyaccel.data.roles import listed
from anyaccel.data.transforms.fitted_transform import relevant_transforms
from anyaccel.errors import PhaseError


def check_same_units(label: str, rows: Rows, known: FeatureSet, taken: Collection[str]) -> None:
    """Check that rows are in the units of the graph's data, or models, losses and metrics would give wrong numbers.

    Args:
        label: of the phase.
        rows: its data.
        known: what the graph was built on.
        taken: names of the columns besides features that the phase takes: targets of losses and metrics, and weights.

    Raises:
        PhaseError: features or taken columns have other transforms, or are padded with another value.
    """
    given = rows.feature_set if isinstance(rows, FeatureSetView) else rows
    if given is known:
        return
    names = dict.fromkeys([*known.features, *(name for name in taken if name in given.columns)])
    if isinstance(given, FeatureSet):
        _check_transforms(label, given, known, [*names])
    for name in names:
        expected, own = _pad_value(known, name), _pad_value(given, name)
        if own is not None and expected is not None and own != expected:
            raise PhaseError(
                f"phase {label!r} was given {rows.label!r}, whose column {name!r} is padded with {own}",
                cause=f"the graph's data are padded with {expected}",
                hint=f"make it with pad={{{name!r}: {expected}}}",
            )


def _check_transforms(label: str, given: FeatureSet, known: FeatureSet, names: list[str]) -> None:
    expected, applied = (relevant_transforms(data.transforms, names)[::-1] for data in (known, given))
    if len(expected) == len(applied) and all(one.is_like(other) for one, other in zip(expected, applied, strict=True)):
        return
    difference = "with other transforms than" if applied else "as it was before the transforms of"
    raise PhaseError(
        f"phase {label!r} was given {given.label!r} {difference} the graph's data",
        cause=f"the graph's data: {listed(expected)}; given: {listed(applied)}",
        hint="name a split of the graph's feature set, or give fresh.transform_like(data) of untransformed data",
    )


def _pad_value(rows: Rows, name: str) -> float | None:
    padding = padding_of(rows.schema.field(name)) if name in rows.columns else None
    return None if padding is None else padding.value
