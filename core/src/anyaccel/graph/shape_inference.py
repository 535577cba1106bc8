"""Shapes and frameworks of every value in a graph, inferred once from the data and the models."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from anyaccel import rng
from anyaccel.backend import Compute
from anyaccel.data import Reference, joined_spec
from anyaccel.errors import (
    AmbiguousOwnerError,
    AnyaccelError,
    EstimatorError,
    FrameworkError,
    GraphError,
    MoveError,
    NoBackendError,
    ShapeError,
)
from anyaccel.graph import topology
from anyaccel.graph.data_format_check import check_layouts
from anyaccel.graph.memory_sharing import announce
from anyaccel.graph.nodes import ConcatNode, ModelNode, Node, column_name, shown_name
from anyaccel.install_hints import hint_of
from anyaccel.numpy_backend.estimator import Estimator
from anyaccel.numpy_backend.estimator_methods import is_estimator, is_fittable, no_predict_error
from anyaccel.registry import Registry
from anyaccel.segment import TensorSpec


@dataclass(frozen=True, slots=True)
class Shapes:
    """What is known of a graph once it is built; all mappings go by node label or by value name.

    `order` is topological. `inputs` and `outputs` name each node's values. `specs` has every value: columns as they
    are stored, outputs as the models give them. `dtypes` is the floating dtype that a node wants, or None. Estimators
    that are not fitted yet give nothing that is known: `unfitted` has their labels, and of them and of all nodes that
    they feed there are no outputs. `lifted` has the labels of nodes that take no bare number per sample, and receive a
    column of these as [1].
    """

    order: tuple[str, ...]
    frameworks: Mapping[str, str]
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]
    specs: Mapping[str, TensorSpec]
    dtypes: Mapping[str, str | None]
    unfitted: tuple[str, ...] = ()
    lifted: frozenset[str] = frozenset()

    def wanted(self, label: str) -> tuple[TensorSpec, ...]:
        """A node's inputs as it receives them: columns of floating numbers in its own dtype, outputs as they are."""
        made = {name for names in self.outputs.values() for name in names}
        lift = label in self.lifted
        return tuple(_received(name, self.specs, made, self.dtypes[label], lift) for name in self.inputs[label])


def _received(
    name: str, specs: Mapping[str, TensorSpec], made: Container[str], dtype: str | None, lift: bool = False
) -> TensorSpec:
    if name in made:
        return specs[name]
    return lifted(cast(specs[name], dtype)) if lift else cast(specs[name], dtype)


def _all_received(
    names: Sequence[str], specs: Mapping[str, TensorSpec], made: Container[str], dtype: str | None, lift: bool = False
) -> list[TensorSpec]:
    return [_received(name, specs, made, dtype, lift) for name in names]


def lifted(spec: TensorSpec) -> TensorSpec:
    """A bare number per sample as [1]; all else as it is."""
    return spec if spec.shape else replace(spec, shape=(1,))


def cast(spec: TensorSpec, dtype: str | None) -> TensorSpec:
    """The specification with floating values in `dtype`; integers never change."""
    return replace(spec, dtype=dtype) if dtype and is_floating(spec.dtype) else spec


def is_floating(dtype: str) -> bool:
    """Whether a dtype, by name, is of floating numbers (`bfloat16` too)."""
    return "float" in dtype


def frameworks_of(nodes: Mapping[str, Node], order: Sequence[str], found: Registry) -> dict[str, str]:
    """The framework of each node: a model's owner, and for a ConcatNode that of its consumer (else of its source).

    Raises:
        NoBackendError, AmbiguousOwnerError, FrameworkError: as `Registry.owner` does, with the node named.
        EstimatorError: something that can be fitted and has no `predict`.
    """
    frameworks: dict[str, str] = {}
    for label in order:
        node = nodes[label]
        if isinstance(node, ModelNode):
            if node.framework is None and _is_estimator(node.model, found):
                node.model = Estimator(node.model)
            frameworks[label] = _framework(node, found)
    for label in reversed(order):
        if label not in frameworks:
            after = [frameworks[other] for other in topology.consumers(label, nodes) if other in frameworks]
            frameworks[label] = after[0] if after else ""
    for label in order:
        if not frameworks[label]:
            before = [frameworks[other] for other in topology.parents(nodes[label], nodes)]
            frameworks[label] = next(filter(None, before), "numpy")
    return frameworks


def _is_estimator(model: Any, found: Registry) -> bool:
    """Models of known frameworks may have a `fit` of their own, and are no estimators, served or not."""
    return is_estimator(model) and not found.owners(model) and hint_of(type(model)) is None


def _framework(node: ModelNode, found: Registry) -> str:
    try:
        if node.framework is None:
            return found.owner(node.model)
        found.kinds(node.framework)
    except NoBackendError as error:
        foreign = is_fittable(node.model) and hint_of(type(node.model)) is None
        known: AnyaccelError = no_predict_error(node.model) if foreign else error
        raise type(known)(f"node {node.label!r}: {known.problem}", available=known.available, hint=known.hint) from None
    except (AmbiguousOwnerError, FrameworkError) as error:
        raise type(error)(f"node {node.label!r}: {error.problem}", available=error.available, hint=error.hint) from None
    return node.framework


def infer(nodes: Mapping[str, Node], found: Registry, seed: int) -> Shapes:
    """Infer every value's specification, building what is still unbuilt with weights from `seed`.

    Raises:
        ShapeError: a model does not take what feeds it; names the node and both shapes.
    """
    order = topology.topological(nodes)
    frameworks = frameworks_of(nodes, order, found)
    announce(frameworks.values(), found)
    _wrap(nodes, frameworks, found)
    specs: dict[str, TensorSpec] = {}
    inputs: dict[str, tuple[str, ...]] = {}
    outputs: dict[str, tuple[str, ...]] = {}
    dtypes: dict[str, str | None] = {}
    made: set[str] = set()
    lift: set[str] = set()
    for label in reversed(order):
        dtypes[label] = _dtype(nodes[label], label, nodes, dtypes, found, frameworks)
    for label in order:
        node = nodes[label]
        if not all(outputs[before] for before in topology.parents(node, nodes)):
            inputs[label] = outputs[label] = ()
            continue
        inputs[label] = _inputs(node, outputs, specs)
        takes = partial(_all_received, inputs[label], specs, made, dtypes[label])
        recast, compute = _recast(label, nodes, specs, dtypes), found.computing(frameworks[label])
        bare = [specs[name] for name in inputs[label] if name not in made and not specs[name].shape]
        results, raised = _given_out(
            node, takes, bare, partial(_outputs, node, compute=compute, seed=seed, recast=recast)
        )
        lift |= {label} if raised else set()
        outputs[label] = _values(node, len(results))
        specs.update(zip(outputs[label], results, strict=True))
        made.update(outputs[label])
        if isinstance(node, ModelNode) and dtypes[label] is None:
            dtypes[label] = found.computing(frameworks[label]).dtype_of(node.model)
    check_layouts(nodes, frameworks, specs, found)
    return Shapes(tuple(order), frameworks, inputs, outputs, specs, dtypes, unfitted(nodes), frozenset(lift))


def _given_out(
    node: Node,
    takes: Callable[..., list[TensorSpec]],
    bare: Sequence[TensorSpec],
    compute: Callable[[list[TensorSpec]], Sequence[TensorSpec]],
) -> tuple[Sequence[TensorSpec], bool]:
    """What a node gives, and whether the bare numbers among its columns had to enter as `[1]` for it."""
    try:
        return compute(takes()), False
    except ShapeError as refused:
        if not bare or not isinstance(node, ModelNode) or isinstance(node.model, Estimator):
            raise
        try:
            return compute(takes(lift=True)), True
        except ShapeError as again:  # which says more where it is the dtype that does not fit
            raise refused if all(is_floating(spec.dtype) for spec in bare) else again from None


def unfitted(nodes: Mapping[str, Node]) -> tuple[str, ...]:
    """Labels of the estimators that are not fitted."""
    models = {label: getattr(node, "model", None) for label, node in nodes.items()}
    return tuple(label for label, model in models.items() if isinstance(model, Estimator) and not model.is_fitted)


def _values(node: Node, count: int) -> tuple[str, ...]:
    if not count:
        return ()
    return node.value_names(count) if isinstance(node, ModelNode) else (node.label,)


def _wrap(nodes: Mapping[str, Node], frameworks: Mapping[str, str], found: Registry) -> None:
    """Let every node hold what can hold a model's values; nodes that share a model go on sharing it."""
    held: dict[int, Any] = {}
    for label, node in nodes.items():
        if isinstance(node, ModelNode):
            model = node.model
            if id(model) not in held:
                held[id(model)] = found.computing(frameworks[label]).wrap(model)
            node.model = held[id(model)]


def _dtype(
    node: Node,
    label: str,
    nodes: Mapping[str, Node],
    known: Mapping[str, str | None],
    found: Registry,
    frameworks: Mapping[str, str],
) -> str | None:
    if isinstance(node, ModelNode):
        return found.computing(frameworks[label]).dtype_of(node.model)
    return next((known[other] for other in topology.consumers(label, nodes) if known.get(other)), None)


def _inputs(node: Node, outputs: Mapping[str, tuple[str, ...]], specs: dict[str, TensorSpec]) -> tuple[str, ...]:
    names: list[str] = []
    for upstream in node.upstreams:
        if isinstance(upstream, Reference):
            name, spec = column_name(upstream), joined_spec(upstream.feature_set, upstream.features)
            if specs.setdefault(name, spec) != spec:
                raise GraphError(
                    f"node {node.label!r}: {shown_name(upstream)!r} names two different inputs",
                    available=f"{specs[name]} and {spec}",
                    hint="rename the column that has a '+' in its name",
                )
            names.append(name)
        else:
            names.extend(_outputs_named(node, upstream, outputs))
    return tuple(names)


def _outputs_named(node: Node, upstream: str, outputs: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    label, _, output = upstream.partition(".")
    if not output:
        return outputs[label]
    if upstream not in outputs[label]:
        raise topology.unknown_node(
            f"node {node.label!r} takes {upstream!r}, which {label!r} does not give", upstream, outputs[label]
        )
    return (upstream,)


def _recast(
    label: str, nodes: Mapping[str, Node], specs: Mapping[str, TensorSpec], dtypes: Mapping[str, str | None]
) -> str:
    """What to write where a node may not take the dtype in which an estimator gives floating numbers."""
    wanted = dtypes[label]
    for other in topology.parents(nodes[label], nodes):
        spec, estimator = specs.get(other), isinstance(getattr(nodes[other], "model", None), Estimator)
        if estimator and spec is not None and is_floating(spec.dtype) and wanted not in (None, spec.dtype):
            return f"let {other!r} give what this node takes: Estimator(..., output_dtype={wanted!r})"
    return ""


def _outputs(node: Node, given: Sequence[TensorSpec], compute: Compute, seed: int, recast: str) -> Sequence[TensorSpec]:
    if isinstance(node, ConcatNode):
        return [_joined(node, given)]
    try:
        return compute.infer(node.model, given, rng.key(seed, "weights", node.label))
    except EstimatorError as error:
        raise EstimatorError(
            f"node {node.label!r}: {error.problem}", available=error.available, hint=error.hint
        ) from error.__cause__
    except (ShapeError, MoveError) as error:
        feeds = ", ".join(up if isinstance(up, str) else shown_name(up) for up in node.upstreams)
        shown = ", ".join(map(str, given))
        raise type(error)(
            f"node {node.label!r} does not take {shown} from {feeds}: {error.problem}",
            available=error.available,
            hint=recast or error.hint,
        ) from error.__cause__  # what is said twice is shown once


def _joined(node: ConcatNode, given: Sequence[TensorSpec]) -> TensorSpec:
    first = given[0]
    axis = node.axis if node.axis >= 0 else node.axis + len(first.shape)
    if not 0 <= axis < len(first.shape):
        raise ShapeError(
            f"node {node.label!r} joins along axis {node.axis}",
            available=f"samples of shape {list(first.shape)}",
            hint="choose an axis of a sample, without the batch; join scalars in one reference([...])",
        )
    rest = [(spec.dtype, spec.shape[:axis], spec.shape[axis + 1 :]) for spec in given]
    if any(len(spec.shape) != len(first.shape) for spec in given) or any(other != rest[0] for other in rest):
        raise ShapeError(
            f"node {node.label!r} cannot join {' and '.join(map(str, given))} along axis {node.axis}",
            hint="let them agree in dtype and in every other axis",
        )
    size = sum(spec.shape[axis] for spec in given)
    return replace(first, shape=(*first.shape[:axis], size, *first.shape[axis + 1 :]))
