"""Sourcing: what a phase is given as its data, where these are a source rather than rows."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from contextlib import closing
from functools import cached_property
from typing import Any

import numpy as np

from anyaccel.data import BatchSource, FeatureSet, FeatureSetView, MapSource, Rows, Source, as_source
from anyaccel.data.roles import listed
from anyaccel.data.transforms.fitted_transform import relevant_transforms
from anyaccel.errors import PhaseError
from anyaccel.phases.kinds import TrainPhase
from anyaccel.phases.phase import Data, Phase


class ItemRows(Rows):
    """The rows of a source of items: counted at once, read when a column is asked for."""

    def __init__(self, source: MapSource) -> None:
        super().__init__(source.label, source.example.schema)
        self.source = source

    def __len__(self) -> int:
        return self.source.rows

    @cached_property
    def whole(self) -> FeatureSet:
        """All items in memory."""
        return collected(self.source)

    def array(self, name: str) -> np.ndarray:
        """As of `Rows`."""
        return self.whole.array(name)

    def column(self, name: str) -> Any:
        """As of `Rows`."""
        return self.whole.column(name)

    def to_arrow(self) -> Any:
        """As of `Rows`."""
        return self.whole.to_arrow()

    def view(self) -> FeatureSetView:
        """As of `Rows`."""
        return self.whole.view()

    def select(self, features: Any = None, targets: Any = None, tags: Any = None) -> Any:
        """As of `Rows`."""
        return self.whole.select(features, targets, tags)


def collected(source: Source) -> FeatureSet:
    """All rows of one epoch of a source as a feature set in host memory.

    Raises:
        SourceError: it cannot be read.
    """
    if isinstance(source, MapSource):
        columns = dict(source.gather(np.arange(source.rows)))
    else:
        assert isinstance(source, BatchSource)
        with closing(source.batches(0)) as batches:
            parts = [{name: np.array(column) for name, column in batch.items()} for batch in batches]
        columns = {name: np.concatenate([part[name] for part in parts]) for name in source.columns}
    return FeatureSet.from_dict(source.label, columns, source.features, source.targets, source.tags)


def rows_given(
    part: Phase,
    sets: Mapping[str, FeatureSet],
    *,
    read: bool,
    kept: MutableMapping[tuple[str, str], FeatureSet] | None = None,
) -> tuple[Data, Source | None]:
    """The data of a phase as rows, and the source that is to be streamed, if there is one.

    A TrainPhase streams a source: its rows are an example then. Other phases need all rows in host memory and read
    it whole, if `read`. If not, nothing is read of a loader or generator as it is, which would lose its first batch:
    the rows of the graph's feature set stand for it.

    Args:
        part: the phase, or its validation.
        sets: the feature sets that it needs data of.
        read: whether rows are needed.
        kept: what was read whole, by label of the part and of the feature set; read once by whoever keeps it.

    Raises:
        PhaseError: a source beside other feature sets, several, or one for a graph whose data were transformed.
        SourceError: what is neither rows nor a source, or a source that cannot be read.
    """
    given = part.data if isinstance(part.data, Mapping) else None
    if given is None and len(sets) != 1:
        _refuse_alone(part, sets)
        return part.data, None
    mapping = dict(given) if given is not None else {_label(part.data, sets): part.data}
    _check_labels(part, mapping, sets)
    found = {name: as_source(name, one, sets[name]) for name, one in mapping.items() if name in sets}
    sources = {name: one for name, one in found.items() if one is not None}
    streamed = _streamed(part, sets, sources)
    for name, one in sources.items():
        if isinstance(one, FeatureSet):
            mapping[name] = one
        elif not read and isinstance(one, BatchSource) and one is not mapping[name]:
            mapping[name] = sets[name]
        elif one is streamed or not read:
            mapping[name] = ItemRows(one) if isinstance(one, MapSource) else one.example
        else:
            memory = {} if kept is None else kept
            mapping[name] = memory.get((part.label, name)) or memory.setdefault((part.label, name), collected(one))
    return (mapping, streamed) if sources else (part.data, None)


def _streamed(part: Phase, sets: Mapping[str, FeatureSet], found: Mapping[str, Source | FeatureSet]) -> Source | None:
    """The source that a TrainPhase streams."""
    sources = [one for one in found.values() if isinstance(one, Source)]
    for name, one in found.items():
        if isinstance(one, Source):
            _check_transforms(part, one, sets[name])
    if not sources or not isinstance(part, TrainPhase):
        return None
    if len(sets) > 1:
        raise PhaseError(
            f"phase {part.label!r} trains on {', '.join(sets)} and has a source among their data",
            available="a source is streamed, and feeds a graph with one feature set",
            hint="bring all columns by one source, or read it into memory: FeatureSet.from_dict(...)",
        )
    return sources[0]


def _check_transforms(part: Phase, source: Source, known: FeatureSet) -> None:
    """Rows of a source come as they are, and would give wrong numbers where the graph's were transformed."""
    made = relevant_transforms(known.transforms, known.features)
    if made:
        raise PhaseError(
            f"phase {part.label!r} was given the source {source.label!r}, whose rows come as they are",
            available=f"the features of the graph's data were transformed: {listed(made[::-1])}",
            hint=f"read it into memory, FeatureSet.from_dict(...).transform_like({known.label}), "
            "or wire a graph to the source: source.reference()",
        )


def _label(data: Any, sets: Mapping[str, FeatureSet]) -> str:
    return data.label if isinstance(data, (Rows, Source)) else next(iter(sets))


def _check_labels(part: Phase, mapping: Mapping[str, Any], sets: Mapping[str, FeatureSet]) -> None:
    for name, one in mapping.items():
        if isinstance(one, Source) and name not in sets:
            raise PhaseError(
                f"phase {part.label!r} was given the source {name!r}",
                available=f"the graph takes {', '.join(sets)}",
                hint=f"if these are such data, say so: data={{{next(iter(sets), 'LABEL')!r}: source}}",
            )


def _refuse_alone(part: Phase, sets: Mapping[str, FeatureSet]) -> None:
    if isinstance(part.data, Source):
        raise PhaseError(
            f"phase {part.label!r} was given the source {part.data.label!r} alone",
            available=f"the graph takes {', '.join(sets)}",
            hint="give data={'LABEL': ..., ...}, rows for each feature set",
        )
