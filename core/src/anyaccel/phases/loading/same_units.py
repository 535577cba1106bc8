"""Same units: data of a phase have the transforms and the padding of the graph's data, or numbers would be wrong."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from anyaccel.data import FeatureSet, FeatureSetView, Rows
from anyaccel.data.arrow_columns import padding_of
from anyaccel.data.roles import listed
from anyaccel.data.transforms import relevant_transforms
from anyaccel.errors import ColumnError, PhaseError


def check_same_units(label: str, rows: Rows, known: FeatureSet, taken: Collection[str]) -> None:
    """Check that rows are in the units of the graph's data; otherwise models, losses and metrics would return wrong
    numbers.

    Args:
        label: Label of the phase.
        rows: Its data.
        known: Data that the graph was built on.
        taken: Names of the columns other than features that the phase uses: targets of losses and metrics, and weights.

    Raises:
        PhaseError: features or used columns have other transforms, or are padded with another value.
    """
    table = rows.feature_set if isinstance(rows, FeatureSetView) else rows
    if table is known:
        return
    names = dict.fromkeys([*known.features, *(name for name in taken if name in table.columns)])
    if isinstance(table, FeatureSet):
        expected, applied = (relevant_transforms(data.transforms, [*names])[::-1] for data in (known, table))
        alike = (one.is_like(other) for one, other in zip(expected, applied, strict=False))
        if len(expected) != len(applied) or not all(alike):
            difference = "with other transforms than" if applied else "without the transforms of"
            raise PhaseError(
                f"phase {label!r} was given {table.label!r} {difference} the graph's data",
                cause=f"the graph's data: {listed(expected)}; given: {listed(applied)}",
                hint="name a split of the graph's feature set, or pass fresh.transform_like(data) for untransformed "
                "data",
            )
    for name in names:
        wanted, own = _pad_value(known, name), _pad_value(table, name)
        if own is not None and wanted is not None and own != wanted:
            raise PhaseError(
                f"phase {label!r} received {rows.label!r}, but its column {name!r} is padded with {own}",
                cause=f"the graph's data are padded with {wanted}",
                hint=f"create it with pad={{{name!r}: {wanted}}}",
            )


def _pad_value(rows: Rows, name: str) -> float | None:
    padding = padding_of(rows.schema.field(name)) if name in rows.columns else None
    return None if padding is None else padding.value


def check_source_units(label: str, source: str, known: FeatureSet) -> None:
    """Check that the rows of a source, which come as they are, are in the units of the graph's data.

    Raises:
        PhaseError: features of the graph's data are transformed.
    """
    transforms = relevant_transforms(known.transforms, known.features)
    if transforms:
        raise PhaseError(
            f"phase {label!r} received the source {source!r}, whose rows are not transformed",
            cause=f"the graph's data have the transforms {listed(transforms[::-1])}",
            hint=f"read it into memory, FeatureSet.from_dict(...).transform_like({known.label}), "
            "or build the graph on the source: source.reference()",
        )


def check_created_columns(rows: Rows, known: FeatureSet | None, columns: Sequence[str]) -> None:
    """Check that no column is missing because a transform of the graph's data has created it.

    Raises:
        ColumnError: one is.
    """
    missing = [name for name in columns if name not in rows.columns]
    makers = relevant_transforms(known.transforms, missing[:1]) if known is not None and missing else []
    if makers and not any(missing[0] in transform.columns for transform in makers):
        raise ColumnError(
            f"{rows.label!r} has no column {missing[0]!r}, which a transform added to the graph's data",
            cause=f"columns: {listed(rows.columns)}; the transform: {makers[0]}",
            hint="pass fresh.transform_like(data), where fresh has the input columns of the transform",
        )
