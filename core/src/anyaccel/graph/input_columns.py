"""Which columns a phase loads, in which dtype and shape, and for whom."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from anyaccel.data import FeatureSet, Reference, joined_changes, joined_spec
from anyaccel.data.roles import brief
from anyaccel.errors import ColumnError, SamplerError, ShapeError, SpecError
from anyaccel.graph import topology
from anyaccel.graph.nodes import Node
from anyaccel.graph.plan import Assignment, Column
from anyaccel.graph.shape_inference import Shapes, cast, is_floating, lifted
from anyaccel.segment import TensorSpec
from anyaccel.specs import AppliedLoss
from anyaccel.suggestions import did_you_mean

_ELEMENTWISE = ("mse", "mae", "binary_cross_entropy")


class Chosen(NamedTuple):
    """Columns of a feature set, read from a stream of its sampler; None is the first."""

    source: FeatureSet
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
        return f"{self.source.label}.{columns}{stream}"


class ColumnTable:
    """The columns of a phase, each once for every form, stream and device that it is wanted in.

    Args:
        streams: names of the streams of each feature set's sampler, by label; of others any may be read.
    """

    def __init__(self, streams: Mapping[str, Sequence[str]]) -> None:
        self._streams = streams
        self._columns: dict[tuple[object, ...], Column] = {}

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns so far."""
        return tuple(self._columns.values())

    def want(self, chosen: Chosen, spec: TensorSpec, to: Assignment, role: str) -> Column:
        """The column for a choice in this form on a node's device; made on first use.

        Raises:
            SamplerError: the sampler of its feature set has no such stream.
        """
        (source, names, _), stream = chosen, self._stream(chosen)
        key = (source.label, names, stream, to.framework, to.device, spec)
        if key not in self._columns:
            name = self._free(str(chosen._replace(stream=stream or None)))
            stored, joined = joined_spec(source, names), joined_changes(source, names)
            self._columns[key] = Column(
                name, source.label, names, to.framework, to.device, spec, stored, to.pinned, role, stream, joined
            )
        return self._columns[key]

    def _stream(self, chosen: Chosen) -> str:
        """The stream that is read, `""` for the first."""
        stream, there = chosen.stream or "", self._streams.get(chosen.source.label)
        if there is not None:
            check_stream(stream, chosen.source.label, there)
        return "" if there and stream == there[0] else stream

    def _free(self, base: str) -> str:
        """A name that no column has; those of feature sets may look like any that is made here."""
        taken = {column.name for column in self._columns.values()}
        others = (f"{base}#{i}" for i in itertools.count(2))
        return next(name for name in itertools.chain([base], others) if name not in taken)


def feature_column(table: ColumnTable, reference: Reference, shapes: Shapes, to: Assignment) -> Column:
    """The column that a node takes for a reference: floating values in the node's dtype, bare numbers as it can."""
    spec = cast(joined_spec(reference.feature_set, reference.features), shapes.dtypes[to.node])
    spec = lifted(spec) if to.node in shapes.lifted else spec
    return table.want(Chosen(reference.feature_set, reference.features, reference.stream), spec, to, "features")


def check_stream(stream: str, label: str, there: Sequence[str]) -> None:
    """Make sure that the sampler of a feature set has a stream; `""` is its first.

    Raises:
        SamplerError: it has not; the message has the closest.
    """
    if not stream or stream in there:
        return
    several = "use a sampler that has it, such as a PairSampler or a TripletSampler"
    raise SamplerError(
        f"the stream {stream!r} of {label!r} is read, and its sampler has no such stream",
        available=", ".join(there),
        hint=did_you_mean(stream, there) if len(there) > 1 else several,
    )


def targets_of(loss: AppliedLoss, nodes: Mapping[str, Node]) -> Chosen:
    """The target columns that `"targets"` means for a loss: those of the data that feed its node, in their stream.

    Raises:
        ColumnError: there is none, or it is not clear which.
    """
    references = (ref for ref in topology.references(loss.on, nodes) if ref.targets)
    found = {Chosen(ref.feature_set, ref.targets, ref.stream) for ref in references}
    if len(found) == 1:
        return found.pop()
    if not found:
        raise ColumnError(
            f"the loss on {loss.on!r} takes 'targets', and the data that feed this node have none",
            hint="name target_keys in the feature set, or columns in reference(targets=[...])",
        )
    raise ColumnError(
        f"the loss on {loss.on!r} takes 'targets', and there are several",
        available=", ".join(sorted(one.shown for one in found)),
        hint="name one of these in inputs=",
    )


def named_column(text: str, nodes: Mapping[str, Node]) -> Chosen | None:
    """The columns that `"FEATURE_SET.COLUMN"` names; None if it names no feature set of the graph.

    `"FEATURE_SET.A+B"` are two, joined; `"FEATURE_SET.COLUMN@STREAM"` is read from another stream than the first.

    Raises:
        ColumnError: the feature set has no such column.
    """
    label, _, rest = text.partition(".")
    source = topology.feature_sets(nodes.values()).get(label)
    if source is None:
        return None
    whole, _, stream = (rest, "", "") if rest in source.columns or "@" not in rest else rest.rpartition("@")
    names = (whole,) if whole in source.columns else tuple(whole.split("+"))
    for name in names:
        source.spec(name)
    return Chosen(source, names, stream or None)


def target_spec(loss: AppliedLoss, source: FeatureSet, names: tuple[str, ...], output: TensorSpec) -> TensorSpec:
    """The form in which a column is compared with an output by a loss, so that nothing broadcasts or changes silently.

    Raises:
        ShapeError: the shapes do not fit; names the node and both.
        SpecError: the dtype does not fit.
    """
    stored, name = joined_spec(source, names), f"{source.label}.{brief(names)}"
    if loss.loss.own is not None:
        return _for_own(cast(stored, output.dtype), output)
    _refuse_one_class(loss, output)
    if loss.loss.name == "cross_entropy" and not is_floating(stored.dtype):
        return _class_indices(loss, stored, output, name)
    if not is_floating(stored.dtype):
        dtypes = dict.fromkeys(names, output.dtype)
        raise SpecError(
            f"{loss.loss.name} on {loss.on!r} compares {output.dtype} outputs with {name}, which is {stored.dtype}",
            hint=f"say what the integers mean: feature_set.cast({dtypes}, keep_splits=True)",
        )
    if loss.loss.name == "cross_entropy" and len(output.shape) != 1:
        raise _unfit(loss, stored, output, name)
    return replace(stored, dtype=output.dtype, shape=_aligned(loss, stored, output, name))


def _for_own(stored: TensorSpec, output: TensorSpec) -> TensorSpec:
    """For a loss of the user's own, which may compare what it likes: only single axes are aligned, so that [n] does
    not broadcast against [n, 1]."""
    same = _without_ones(stored.shape) == _without_ones(output.shape)
    return replace(stored, shape=output.shape) if same else stored


def check_outputs(loss: AppliedLoss, output: TensorSpec, other: TensorSpec, name: str) -> None:
    """Make sure that a named loss can compare two outputs as they are.

    Raises:
        ShapeError: it would have to broadcast or align them.
    """
    _refuse_one_class(loss, output)
    indices = loss.loss.name == "cross_entropy" and not is_floating(other.dtype)
    if other.shape != (output.shape[:-1] if indices else output.shape):
        raise _unfit(loss, other, output, name)


def is_indices(loss: AppliedLoss, target: TensorSpec) -> bool:
    """Whether a target in this form holds class indices."""
    return loss.loss.own is None and loss.loss.name == "cross_entropy" and not is_floating(target.dtype)


def _refuse_one_class(loss: AppliedLoss, output: TensorSpec) -> None:
    """The softmax of one logit is 1, whatever the logit: such a loss would be 0 and train nothing."""
    if loss.loss.name == "cross_entropy" and output.shape and math.prod(output.shape) == 1:
        raise ShapeError(
            f"cross_entropy on node {loss.on!r} compares classes, and its output {output} has one: one class has "
            "nothing to tell apart",
            hint="for a number use 'mse', for yes or no 'binary_cross_entropy', else give an output for each class",
        )


def _class_indices(loss: AppliedLoss, stored: TensorSpec, output: TensorSpec, name: str) -> TensorSpec:
    if len(output.shape) != 1 or math.prod(stored.shape) != 1 or stored.dtype == "bool":
        raise _unfit(loss, stored, output, name)
    return TensorSpec((), "int64")


def _aligned(loss: AppliedLoss, stored: TensorSpec, output: TensorSpec, name: str) -> tuple[int, ...]:
    if _without_ones(stored.shape) != _without_ones(output.shape):
        raise _unfit(loss, stored, output, name)
    return output.shape


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(extent for extent in shape if extent != 1)


def _unfit(loss: AppliedLoss, stored: TensorSpec, output: TensorSpec, name: str) -> ShapeError:
    wants = (
        "the same shape"
        if loss.loss.name in _ELEMENTWISE
        else "logits [classes] and one class index, or probabilities [classes]"
    )
    return ShapeError(
        f"{loss.loss.name} on node {loss.on!r} cannot compare its output {output} with {name}, {stored}; "
        "losses never broadcast",
        available=f"it takes {wants}",
        hint=f"change the model's output_shape, or choose another column{_class_cast(loss, stored, name)}",
    )


def _class_cast(loss: AppliedLoss, stored: TensorSpec, name: str) -> str:
    if loss.loss.name != "cross_entropy" or not is_floating(stored.dtype) or math.prod(stored.shape) != 1:
        return ""
    return f", or if these are class indices say so: feature_set.cast({{{name.partition('.')[2]!r}: 'int64'}})"
