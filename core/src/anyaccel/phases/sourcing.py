"""Sourcing: what a phase is given as its data, where these are a source rather than rows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import cached_property
from typing import Any

import numpy as np

from anyaccel.data import BatchSource, FeatureSet, FeatureSetView, Items, Rows, Source, as_source
from anyaccel.errors import PhaseError
from anyaccel.phases.kinds import TrainPhase
from anyaccel.phases.phase import Data, Phase


class ItemRows(Rows):
    """The rows of a source of items: counted at once, read when a column is asked for."""

    def __init__(self, source: Items) -> None:
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
    if isinstance(source, Items):
        columns = dict(source.gather(np.arange(source.rows)))
    else:
        assert isinstance(source, BatchSource)
        with closing(source.batches(0)) as batches:
            parts = [{name: np.array(column) for name, column in batch.items()} for batch in batches]
        columns = {name: np.concatenate([part[name] for part in parts]) for name in source.columns}
    return FeatureSet.from_dict(source.label, columns, source.features, source.targets, source.tags)


def rows_given(part: Phase, sets: Mapping[str, FeatureSet], *, read: bool) -> tuple[Data, Source | None]:
    """The data of a phase as rows, and the source that is to be streamed, if there is one.

    A TrainPhase streams a source: its rows are an example then. Other phases need all rows in host memory and read
    it whole, if `read`.

    Raises:
        PhaseError: a source beside other feature sets, or several.
        SourceError: what is neither rows nor a source, or a source that cannot be read.
    """
    given = part.data if isinstance(part.data, Mapping) else None
    if given is None and len(sets) != 1:
        _refuse_alone(part, sets)
        return part.data, None
    mapping = dict(given) if given is not None else {_label(part.data, sets): part.data}
    _check_labels(part, mapping, sets)
    found = {name: as_source(name, one, sets[name]) if name in sets else None for name, one in mapping.items()}
    if not any(one is not None for one in found.values()):
        return part.data, None
    streamed: Source | None = None
    training = isinstance(part, TrainPhase)
    for name, one in found.items():
        if one is not None:
            mapping[name] = _as_rows(one, training=training, read=read)
            streamed = one if training and isinstance(one, Source) else streamed
    if streamed is not None and len(sets) > 1:
        raise PhaseError(
            f"phase {part.label!r} trains on {', '.join(sets)} and has a source among their data",
            there="a source is streamed, and feeds a graph with one feature set",
            remedy="bring all columns by one source, or read it into memory: FeatureSet.from_dict(...)",
        )
    return mapping, streamed


def _as_rows(one: Source | FeatureSet, *, training: bool, read: bool) -> Rows:
    if isinstance(one, FeatureSet):
        return one
    if training:
        return ItemRows(one) if isinstance(one, Items) else one.example
    return collected(one) if read else one.example


def _label(data: Any, sets: Mapping[str, FeatureSet]) -> str:
    return data.label if isinstance(data, (Rows, Source)) else next(iter(sets))


def _check_labels(part: Phase, mapping: Mapping[str, Any], sets: Mapping[str, FeatureSet]) -> None:
    for name, one in mapping.items():
        if isinstance(one, Source) and name not in sets:
            raise PhaseError(
                f"phase {part.label!r} was given the source {name!r}",
                there=f"the graph takes {', '.join(sets)}",
                remedy=f"if these are such data, say so: data={{{next(iter(sets), 'LABEL')!r}: source}}",
            )


def _refuse_alone(part: Phase, sets: Mapping[str, FeatureSet]) -> None:
    if isinstance(part.data, Source):
        raise PhaseError(
            f"phase {part.label!r} was given the source {part.data.label!r} alone",
            there=f"the graph takes {', '.join(sets)}",
            remedy="give data={'LABEL': ..., ...}, rows for each feature set",
        )
