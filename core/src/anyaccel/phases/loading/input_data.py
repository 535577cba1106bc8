"""Input data: turns the data that a user passed to a phase into rows by feature set, or into a source that is
streamed.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from anyaccel import interrupts
from anyaccel.data import BatchSource, FeatureSet, FeatureSetView, MapSource, Rows, Source, as_source
from anyaccel.data.arrow_columns import pads_of
from anyaccel.data.readers.hf_datasets import are_splits
from anyaccel.data.roles import listed
from anyaccel.data.transforms import relevant_transforms
from anyaccel.errors import ColumnError, PhaseError
from anyaccel.phases.loading.prefetch import prefetch
from anyaccel.user_level import user_level


@dataclass(frozen=True, slots=True)
class PhaseSources:
    """The sources of a phase and of its validation.

    Attributes:
        batches: Sources of batches, including those created from a loader or generator of the user: they may be open,
            and the workers of a loader run until they are closed.
        read: Sources that were read into memory, by label of the phase and of the feature set.
    """

    batches: list[BatchSource] = field(default_factory=list)
    read: dict[tuple[str, str], FeatureSet] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InputData:
    """The data of a phase, or of its validation.

    Attributes:
        rows: Rows by feature set; an example of a source that is streamed.
        source: The source that is streamed; None if all rows are in memory.
    """

    rows: dict[str, Rows]
    source: Source | None


def input_data(
    label: str,
    data: Any,
    sets: Mapping[str, FeatureSet],
    *,
    may_stream: bool,
    equal_lengths: bool,
    read: bool,
    opened: PhaseSources,
) -> InputData:
    """Return the data of a phase as rows, and the source that is streamed, if any; other sources are read into memory.

    Args:
        label: Label of the phase.
        data: Name of a split, rows, a source, or a mapping from feature sets to these.
        sets: Feature sets that the phase needs data of.
        may_stream: Whether a source may be streamed.
        equal_lengths: Whether one sampler draws from all feature sets, which then need equally many rows.
        read: Whether rows are needed; if not, a loader or generator is not touched.
        opened: Sources that are opened, to be closed, and those that were read, so that each source is read once.

    Raises:
        PhaseError, SourceError, SplitError: data that do not fit the graph or cannot be read, or an unknown split.
    """
    source: Source | None = None
    if isinstance(data, Mapping) or len(sets) == 1:
        by_label = (
            dict(data)
            if isinstance(data, Mapping)
            else {(data.label if isinstance(data, (Rows, Source)) else next(iter(sets))): data}
        )
        for name, value in by_label.items():
            if isinstance(value, Source) and name not in sets:
                raise PhaseError(
                    f"phase {label!r} received the source {name!r}",
                    cause=f"the graph takes {', '.join(sets)}",
                    hint=f"if these are the right data, pass data={{{next(iter(sets), 'LABEL')!r}: source}}",
                )
        sources: dict[str, Source | FeatureSet] = {}
        for name, value in by_label.items():
            made = None if isinstance(value, (str, Rows)) or name not in sets else as_source(name, value, sets[name])
            if made is not None:
                sources[name] = made
            if isinstance(made, BatchSource):
                opened.batches.append(made)
        for name, value in sources.items():
            if not isinstance(value, Source):
                continue
            # Its rows come as they are, and would have to be in the units of the graph's data.
            transforms = relevant_transforms(sets[name].transforms, sets[name].features)
            if transforms:
                raise PhaseError(
                    f"phase {label!r} received the source {value.label!r}, whose rows are not transformed",
                    cause=f"the graph's data have the transforms {listed(transforms[::-1])}",
                    hint=f"read it into memory, FeatureSet.from_dict(...).transform_like({sets[name].label}), "
                    "or build the graph on the source: source.reference()",
                )
            source = value if may_stream else None
        if source is not None and len(sets) > 1:
            raise PhaseError(
                f"phase {label!r} trains on {', '.join(sets)}, but at least one of these is a source",
                cause="a graph with a streamed source can have only one feature set",
                hint="put all columns into one source, or read it into memory: FeatureSet.from_dict(...)",
            )
        for name, value in sources.items():
            key = (label, sets[name].label)
            if not isinstance(value, Source):
                by_label[name] = value
            elif not read and isinstance(value, BatchSource) and value is not by_label[name]:
                by_label[name] = sets[name]
            elif value is source or not read:
                by_label[name] = MapSourceRows(value) if isinstance(value, MapSource) else value.example
            else:
                if key not in opened.read:
                    opened.read[key] = read_source(value)
                by_label[name] = opened.read[key]
        data = by_label if sources else data
    elif isinstance(data, Source):
        raise PhaseError(
            f"phase {label!r} received only the source {data.label!r}",
            cause=f"the graph takes {', '.join(sets)}",
            hint="pass data={'LABEL': ..., ...} with rows for each feature set",
        )
    by_label = (
        dict(data)
        if isinstance(data, Mapping)
        else (dict.fromkeys(sets, data) if isinstance(data, str) else {_rows(label, data).label: data})
    )
    unknown = sorted(set(by_label) - set(sets))
    missing = sorted(set(sets) - set(by_label))
    if unknown or missing:
        splits_hint = ""
        if are_splits(data):
            kind, first = type(data).__name__, next(iter(data))
            splits_hint = (
                f"choose a split of the {kind}: data=splits[{first!r}]; FeatureSet.from_arrow('LABEL', splits) has "
                "them all"
            )
        raise PhaseError(
            f"phase {label!r} has data for {', '.join(sorted(by_label)) or 'nothing'}",
            cause=f"the graph takes {', '.join(sets)}",
            hint=splits_hint or _labels_hint(unknown, missing, sorted(set(by_label) - set(unknown))),
        )
    rows = {
        name: sets[name].split(one) if isinstance(one, str) else _rows(label, one) for name, one in by_label.items()
    }
    counts = {name: len(indices) for name, indices in rows.items()}
    if equal_lengths and len(set(counts.values())) > 1:
        raise PhaseError(
            f"phase {label!r} has different numbers of rows",
            cause=", ".join(f"{name}: {count}" for name, count in counts.items()),
            hint="use the same number of rows in each feature set, or a separate sampler for each",
        )
    if not counts:
        raise PhaseError(
            f"phase {label!r} has nothing to compute",
            cause="no losses, metrics or outputs",
            hint="leave outputs out to store the outputs of all output nodes, or name some",
        )
    if not all(counts.values()):
        raise PhaseError(f"phase {label!r} has no rows", hint="choose another split")
    return InputData(rows, source)


class MapSourceRows(Rows):
    """The rows of a MapSource: counted at once, read when a column is asked for."""

    def __init__(self, source: MapSource) -> None:
        super().__init__(source.label, source.example.schema)
        self.source = source

    def __len__(self) -> int:
        return self.source.rows

    @cached_property
    def in_memory(self) -> FeatureSet:
        """All items, read once."""
        return read_source(self.source)

    def array(self, name: str) -> np.ndarray:
        return self.in_memory.array(name)

    def column(self, name: str) -> Any:
        return self.in_memory.column(name)

    def to_arrow(self) -> Any:
        return self.in_memory.to_arrow()

    def view(self) -> FeatureSetView:
        return self.in_memory.view()

    def select(self, features: Any = None, target: Any = None, tags: Any = None) -> Any:
        return self.in_memory.select(features, target, tags)


def read_source(source: Source) -> FeatureSet:
    """Return all rows of one epoch of a source as a feature set in host memory.

    Raises:
        SourceError: it cannot be read.
    """
    columns: dict[str, Any]
    if isinstance(source, MapSource):
        columns = source.read()
    else:
        assert isinstance(source, BatchSource)
        left_out = getattr(source, "dropped_rows", 0)
        if left_out:  # what is evaluated is all rows, or the reader is told
            message = f"source {source.label!r} leaves {left_out} of its rows out: its loader has drop_last=True. "
            hint = "Hint: use drop_last=False in the loader for an evaluation."
            warnings.warn(message + hint, UserWarning, stacklevel=user_level())
        # In a thread: Ctrl-C must not fall into the functions of a loader that start and end its workers.
        with interrupts.deferred(), closing(prefetch(partial(source.batches, 0))) as batches:
            parts = [{name: np.array(column) for name, column in batch.items()} for batch in batches]
        columns = {
            name: [row for part in parts for row in part[name]]
            if name in source.pads
            else np.concatenate([part[name] for part in parts])
            for name in source.columns
        }
    pads = {name: replace(pad, mask=None) for name, pad in source.pads.items()}
    return FeatureSet.from_dict(source.label, columns, source.features, source.targets, source.tags, pad=pads)


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
        if len(expected) != len(applied) or not all(
            one.is_like(other) for one, other in zip(expected, applied, strict=True)
        ):
            difference = "with other transforms than" if applied else "without the transforms of"
            raise PhaseError(
                f"phase {label!r} was given {table.label!r} {difference} the graph's data",
                cause=f"the graph's data: {listed(expected)}; given: {listed(applied)}",
                hint="name a split of the graph's feature set, or pass fresh.transform_like(data) for untransformed "
                "data",
            )
    expected_pads, pads = pads_of(known.schema), pads_of(table.schema)
    for name in names:
        if name in pads and name in expected_pads and pads[name].value != expected_pads[name].value:
            raise PhaseError(
                f"phase {label!r} received {rows.label!r}, but its column {name!r} is padded with {pads[name].value}",
                cause=f"the graph's data are padded with {expected_pads[name].value}",
                hint=f"create it with pad={{{name!r}: {expected_pads[name].value}}}",
            )


def check_created_columns(rows: Rows, known: FeatureSet, columns: Sequence[str]) -> None:
    """Check that no column is missing because a transform of the graph's data has created it.

    Raises:
        ColumnError: one is.
    """
    missing = next(name for name in columns if name not in rows.columns)
    makers = relevant_transforms(known.transforms, [missing])
    if makers and not any(missing in transform.columns for transform in makers):
        raise ColumnError(
            f"{rows.label!r} has no column {missing!r}, which a transform added to the graph's data",
            cause=f"columns: {listed(rows.columns)}; the transform: {makers[0]}",
            hint="pass fresh.transform_like(data), where fresh has the input columns of the transform",
        )


def _labels_hint(unknown: Sequence[str], missing: Sequence[str], known: Sequence[str]) -> str:
    """Return what to write if the labels of the data are not those of the graph's feature sets."""
    if len(unknown) == len(missing) == 1:
        return f"if {unknown[0]!r} are the right data, pass data={{{missing[0]!r}: {unknown[0]}}}"
    example = f"give data={{{', '.join(f'{name!r}: ...' for name in [*known, *missing])}}}, a split or view for each"
    if not known:
        return example
    first = known[0]
    return (
        f"{example}; or compute only the nodes fed by {first!r}: data={{{first!r}: {first}['SPLIT']}}, outputs=['NODE']"
    )


def _rows(label: str, data: Any) -> Rows:
    if not isinstance(data, Rows):
        raise PhaseError(
            f"phase {label!r} cannot take its data from {type(data).__name__}",
            hint="pass the name of a split, a FeatureSet or a view",
        )
    return data
