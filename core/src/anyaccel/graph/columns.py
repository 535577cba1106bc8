"""Which columns a phase loads, in which dtype and shape, and for whom."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

from anyaccel.data import FeatureSet, Reference, joined_spec
from anyaccel.errors import ColumnError, RecipeError, ShapeError
from anyaccel.graph import wiring
from anyaccel.graph.nodes import Node
from anyaccel.graph.plan import Assignment, Column
from anyaccel.graph.shapes import Shapes, cast, is_floating
from anyaccel.recipes import AppliedLoss
from anyaccel.segment import TensorSpec

_ELEMENTWISE = ("mse", "mae", "binary_cross_entropy")


class ColumnTable:
    """The columns of a phase, each once for every form and device that it is wanted in."""

    def __init__(self) -> None:
        self._columns: dict[tuple[object, ...], Column] = {}

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns so far."""
        return tuple(self._columns.values())

    def want(self, source: FeatureSet, names: tuple[str, ...], spec: TensorSpec, to: Assignment, role: str) -> Column:
        """The column for these names in this form on a node's device; made on first use."""
        key = (source.label, names, to.framework, to.device, spec)
        if key not in self._columns:
            name = self._free(f"{source.label}.{'+'.join(names)}")
            stored = joined_spec(source, names)
            self._columns[key] = Column(
                name, source.label, names, to.framework, to.device, spec, stored, to.pinned, role
            )
        return self._columns[key]

    def _free(self, base: str) -> str:
        """A name that no column has; those of feature sets may look like any that is made here."""
        taken = {column.name for column in self._columns.values()}
        others = (f"{base}#{i}" for i in itertools.count(2))
        return next(name for name in itertools.chain([base], others) if name not in taken)


def feature_column(table: ColumnTable, reference: Reference, shapes: Shapes, to: Assignment) -> Column:
    """The column that a node takes for a reference: floating values in the node's dtype."""
    spec = cast(joined_spec(reference.feature_set, reference.features), shapes.dtypes[to.node])
    return table.want(reference.feature_set, reference.features, spec, to, "features")


def targets_of(loss: AppliedLoss, nodes: Mapping[str, Node]) -> tuple[FeatureSet, tuple[str, ...]]:
    """The target columns that `"targets"` means for a loss: those of the data that feed its node.

    Raises:
        ColumnError: there is none, or it is not clear which.
    """
    found = {(ref.feature_set, ref.targets) for ref in wiring.references(loss.on, nodes) if ref.targets}
    if len(found) == 1:
        return found.pop()
    if not found:
        raise ColumnError(
            f"the loss on {loss.on!r} takes 'targets', and the data that feed this node have none",
            remedy="name target_keys in the feature set, or columns in reference(targets=[...])",
        )
    names = sorted(f"{source.label}.{'+'.join(columns)}" for source, columns in found)
    raise ColumnError(
        f"the loss on {loss.on!r} takes 'targets', and there are several",
        there=", ".join(names),
        remedy="name one of these in inputs=",
    )


def named_column(text: str, nodes: Mapping[str, Node]) -> tuple[FeatureSet, tuple[str, ...]] | None:
    """The feature set and columns that `"FEATURE_SET.COLUMN"` names; None if it names no feature set of the graph.

    `"FEATURE_SET.A+B"` are two, joined.

    Raises:
        ColumnError: the feature set has no such column.
    """
    label, _, rest = text.partition(".")
    source = wiring.feature_sets(nodes.values()).get(label)
    if source is None:
        return None
    names = (rest,) if rest in source.columns else tuple(rest.split("+"))
    for name in names:
        source.spec(name)
    return source, names


def target_spec(loss: AppliedLoss, source: FeatureSet, names: tuple[str, ...], output: TensorSpec) -> TensorSpec:
    """The form in which a column is compared with an output by a loss, so that nothing broadcasts or changes silently.

    Raises:
        ShapeError: the shapes do not fit; names the node and both.
        RecipeError: the dtype does not fit.
    """
    stored, name = joined_spec(source, names), f"{source.label}.{'+'.join(names)}"
    if loss.loss.own is not None:
        return _for_own(cast(stored, output.dtype), output)
    if loss.loss.name == "cross_entropy" and not is_floating(stored.dtype):
        return _class_indices(loss, stored, output, name)
    if not is_floating(stored.dtype):
        dtypes = dict.fromkeys(names, output.dtype)
        raise RecipeError(
            f"{loss.loss.name} on {loss.on!r} compares {output.dtype} outputs with {name}, which is {stored.dtype}",
            remedy=f"say what the integers mean: feature_set.cast({dtypes}, keep_splits=True)",
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
    indices = loss.loss.name == "cross_entropy" and not is_floating(other.dtype)
    if other.shape != (output.shape[:-1] if indices else output.shape):
        raise _unfit(loss, other, output, name)


def is_indices(loss: AppliedLoss, target: TensorSpec) -> bool:
    """Whether a target in this form holds class indices."""
    return loss.loss.own is None and loss.loss.name == "cross_entropy" and not is_floating(target.dtype)


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
        there=f"it takes {wants}",
        remedy=f"change the model's output_shape, or choose another column{_class_cast(loss, stored, name)}",
    )


def _class_cast(loss: AppliedLoss, stored: TensorSpec, name: str) -> str:
    if loss.loss.name != "cross_entropy" or not is_floating(stored.dtype) or math.prod(stored.shape) != 1:
        return ""
    return f", or if these are class indices say so: feature_set.cast({{{name.partition('.')[2]!r}: 'int64'}})"
