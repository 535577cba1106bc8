"""Input columns: which columns of feature sets a phase loads, in which dtype and shape, and to which device."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anyaccel.data import FeatureSet, Reference, joined_changes, joined_spec
from anyaccel.data.roles import brief
from anyaccel.errors import ColumnError, SamplerError
from anyaccel.graph import topology
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.graph.nodes import Node
from anyaccel.graph.plan_entries import Assignment, Column
from anyaccel.graph.shape_inference import Shapes, cast, lifted
from anyaccel.segment import TensorSpec
from anyaccel.suggestions import did_you_mean


class ColumnSelection(NamedTuple):
    """Columns of a feature set, read from a stream of its sampler; None is the first stream."""

    feature_set: FeatureSet
    names: tuple[str, ...]
    stream: str | None = None

    def __str__(self) -> str:
        return self._named("+".join(self.names))

    @property
    def shown(self) -> str:
        """The name for people: of many columns the first."""
        return self._named(brief(self.names))

    def _named(self, columns: str) -> str:
        stream = "" if self.stream is None else f"@{self.stream}"
        return f"{self.feature_set.label}.{columns}{stream}"


class ColumnTable:
    """The columns of a phase: one for every form, stream and device in which it is needed.

    Args:
        streams: the streams of each feature set's sampler, by label; of other feature sets any stream may be read.
    """

    def __init__(self, streams: Mapping[str, Sequence[str]]) -> None:
        self._streams = streams
        self._columns: dict[tuple[object, ...], Column] = {}

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns so far."""
        return tuple(self._columns.values())

    def want(self, selection: ColumnSelection, spec: TensorSpec, to: Assignment, role: str) -> Column:
        """The column of a selection in this form on a node's device; created on first use.

        Raises:
            SamplerError: the sampler of its feature set has no such stream.
        """
        (feature_set, names, _), stream = selection, self._stream(selection)
        key = (feature_set.label, names, stream, to.framework, to.device, spec)
        if key not in self._columns:
            self._columns[key] = Column(
                name=self._free_name(str(selection._replace(stream=stream or None))),
                feature_set=feature_set.label,
                columns=names,
                framework=to.framework,
                device=to.device,
                spec=spec,
                stored=joined_spec(feature_set, names),
                backend=to.backend,
                native_device=to.native_device,
                pinned=to.pinned,
                role=role,
                stream=stream,
                joined=joined_changes(feature_set, names),
                ragged=feature_set.is_ragged(names[0]) and _keeps_length(spec, joined_spec(feature_set, names)),
            )
        return self._columns[key]

    def _stream(self, selection: ColumnSelection) -> str:
        """The stream that is read, `""` for the first."""
        stream, known = selection.stream or "", self._streams.get(selection.feature_set.label)
        if known is not None:
            check_stream(stream, selection.feature_set.label, known)
        return "" if known and stream == known[0] else stream

    def _free_name(self, base: str) -> str:
        """`base`, numbered if another column has this name: users' names may contain any separator used here."""
        taken = {column.name for column in self._columns.values()}
        others = (f"{base}#{i}" for i in itertools.count(2))
        return next(name for name in itertools.chain([base], others) if name not in taken)


def _keeps_length(spec: TensorSpec, stored: TensorSpec) -> bool:
    """Whether a column arrives with the axis along which its rows differ in length."""
    return spec.shape[:1] == stored.shape[:1]


def feature_column(table: ColumnTable, reference: Reference, shapes: Shapes, to: Assignment) -> Column:
    """The column of a reference as a node takes it: floating values in its dtype, scalars as [1] if it needs that."""
    spec = cast(joined_spec(reference.feature_set, reference.features), shapes.dtypes[to.node])
    spec = lifted(spec) if to.node in shapes.lifted else spec
    return table.want(
        ColumnSelection(reference.feature_set, reference.features, reference.stream), spec, to, "features"
    )


def check_stream(stream: str, label: str, known: Sequence[str]) -> None:
    """Check that the sampler of a feature set has a stream; `""` is its first.

    Raises:
        SamplerError: it does not.
    """
    if stream and stream not in known:
        other_sampler = "use a sampler that has it, such as a PairSampler or a TripletSampler"
        raise SamplerError(
            f"the sampler of {label!r} has no stream {stream!r}, which is read",
            available=", ".join(known),
            hint=did_you_mean(stream, known) if len(known) > 1 else other_sampler,
        )


def targets_of(loss: AppliedLoss, nodes: Mapping[str, Node]) -> ColumnSelection:
    """The columns that `"targets"` means for a loss: the targets of the data that feed its node, in their stream.

    Raises:
        ColumnError: there are none, or several.
    """
    references = (ref for ref in topology.references(loss.on, nodes) if ref.targets)
    selections = {ColumnSelection(ref.feature_set, ref.targets, ref.stream) for ref in references}
    if len(selections) == 1:
        return selections.pop()
    if not selections:
        raise ColumnError(
            f"the loss on {loss.on!r} has the input 'targets', but the data that feed this node have no targets",
            hint="name target_keys in the feature set, or columns in reference(targets=[...])",
        )
    raise ColumnError(
        f"the loss on {loss.on!r} has the input 'targets', but several data sets with targets feed this node",
        available=", ".join(sorted(selection.shown for selection in selections)),
        hint="name one of these in inputs=",
    )


def named_column(text: str, nodes: Mapping[str, Node]) -> ColumnSelection | None:
    """The columns that `"FEATURE_SET.COLUMN"` names; None if it names no feature set of the graph.

    `"FEATURE_SET.A+B"` names two, joined; `"FEATURE_SET.COLUMN@STREAM"` another stream than the first.

    Raises:
        ColumnError: the feature set has no such column.
    """
    label, _, rest = text.partition(".")
    feature_set = topology.feature_sets(nodes.values()).get(label)
    if feature_set is None:
        return None
    columns, _, stream = (rest, "", "") if rest in feature_set.columns or "@" not in rest else rest.rpartition("@")
    names = (columns,) if columns in feature_set.columns else tuple(columns.split("+"))
    for name in names:
        feature_set.spec(name)
    return ColumnSelection(feature_set, names, stream or None)
