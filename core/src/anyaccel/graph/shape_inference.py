"""Shape inference: framework, backend and shapes of every node of a graph, from the data and the models."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from anyaccel import rng
from anyaccel.adapter.outer_contexts import left_contexts
from anyaccel.backend import Compute, ComputingBackend
from anyaccel.distributions import NAMES, home_of, missing, named
from anyaccel.errors import (
    ENVIRONMENT_ERRORS,
    AnyaccelError,
    EstimatorError,
    GraphError,
    MissingDistributionError,
    MoveError,
    NoBackendError,
    ShapeError,
)
from anyaccel.extensions import extensions
from anyaccel.graph import node_values, topology
from anyaccel.graph.memory_sharing import share_while_building
from anyaccel.graph.nodes import ConcatNode, ModelNode, Node, shown_name
from anyaccel.graph.training_outputs import (
    check_not_wired,
    example_columns,
    infer_training,
    named_beyond,
    with_examples,
)
from anyaccel.install_hints import hint_of, is_like_an_estimator
from anyaccel.registry import Registry
from anyaccel.segment import OutputSpec, Path, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """What is known of a built graph, by node label or by value name.

    Attributes:
        order: labels in topological order.
        frameworks: of each node.
        backends: the backend that each node's framework has without regard to a device; a plan's assignments have the
            backends that compute.
        inputs, outputs: names of each node's values; an estimator that is not fitted, and every node that it feeds,
            has no outputs.
        specs: of every value: columns as they are stored, outputs as the models give them.
        dtypes: dtype to which each node's floating inputs are cast, or None.
        arguments: by node, the path of each input in the call of its model; empty where they are positional.
        returned: by node, what its model returns in evaluation; its outputs are those with a batch.
        aliases: other names of values: `LABEL.PATH` of an only output, which has the name `LABEL`.
        unfitted: labels of the estimators that are not fitted.
        lifted: labels of the nodes that take a scalar column as [1].
        training_only: names of the outputs that exist only in training, of each node that has such; `specs` has them.
        training: what each node's model returns in training, as far as that was asked for.
        examples: samples of the columns of each node whose model does not accept zeros, by the names of the values.
    """

    order: tuple[str, ...]
    frameworks: Mapping[str, str]
    backends: Mapping[str, ComputingBackend] = field(compare=False, repr=False)
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]
    specs: Mapping[str, TensorSpec]
    dtypes: Mapping[str, str | None]
    arguments: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    returned: Mapping[str, tuple[OutputSpec, ...]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    unfitted: tuple[str, ...] = ()
    lifted: frozenset[str] = frozenset()
    training_only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    training: dict[str, tuple[OutputSpec, ...]] = field(default_factory=dict, compare=False, repr=False)
    examples: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict, compare=False, repr=False)

    def batch_values(self, label: str) -> dict[str, OutputSpec]:
        """What a node's model returns once for a whole batch, such as a loss, by `LABEL.PATH`."""
        whole = (output for output in self.returned.get(label, ()) if output.batch_axis is None)
        return {f"{label}.{node_values.path_name(output.path)}": output for output in whole}

    def wanted(self, label: str) -> tuple[TensorSpec, ...]:
        """Specs of a node's inputs as it receives them: floating columns in its own dtype, outputs as they are."""
        computed = {name for names in self.outputs.values() for name in names}
        names, dtype, lift = self.inputs[label], self.dtypes[label], label in self.lifted
        specs = [_received(name, self.specs, computed, dtype, lift) for name in names]
        return with_examples(names, specs, self.examples.get(label, {}))


def _received(
    name: str, specs: Mapping[str, TensorSpec], computed: Container[str], dtype: str | None, lift: bool
) -> TensorSpec:
    if name in computed:
        return specs[name]
    return lifted(cast(specs[name], dtype)) if lift else cast(specs[name], dtype)


def lifted(spec: TensorSpec) -> TensorSpec:
    """A scalar per sample as [1]; other specs as they are."""
    return spec if spec.shape else replace(spec, shape=(1,))


def cast(spec: TensorSpec, dtype: str | None) -> TensorSpec:
    """The spec with floating values in `dtype`; other dtypes and None change nothing."""
    return replace(spec, dtype=dtype) if dtype and is_floating(spec.dtype) else spec


def is_floating(dtype: str) -> bool:
    """Whether a dtype, by name, is a floating one (including `bfloat16`)."""
    return "float" in dtype


def unfitted(nodes: Mapping[str, Node]) -> tuple[str, ...]:
    """Labels of the estimators that are not fitted."""
    return tuple(label for label, node in nodes.items() if not node.kind.has_outputs)


def infer(nodes: Mapping[str, Node], registry: Registry, seed: int) -> Shapes:
    """Infer the spec of every value, and build models that are not built yet with weights from `seed`.

    Raises:
        ShapeError: a model does not accept what feeds it; names the node and both shapes.
        NoBackendError, AmbiguousOwnerError, FrameworkError: a model's framework is unknown; names the node.
        MissingDistributionError: what makes a model of an estimator is not installed.
        AnyaccelError: an object of which no model can be made.
    """
    order = topology.topological(nodes)
    frameworks = _frameworks(nodes, order, registry)
    share_while_building(frameworks.values(), registry)
    backends = {label: registry.computing(framework) for label, framework in frameworks.items()}
    _wrap_models(nodes, backends)
    with left_contexts(backends.values()):
        return _Inference(nodes, order, frameworks, backends, seed).run()


# -- frameworks --------------------------------------------------------------------------------------------------------


def _frameworks(nodes: Mapping[str, Node], order: Sequence[str], registry: Registry) -> dict[str, str]:
    """The framework of each node: of a ConcatNode that of its consumer, else of its source, else NumPy."""
    frameworks: dict[str, str] = {}
    for label in order:
        node = nodes[label]
        if isinstance(node, ModelNode):
            frameworks[label] = _framework(node, registry)
    for label in reversed(order):
        if label not in frameworks:
            after = [frameworks[other] for other in topology.consumers(label, nodes) if other in frameworks]
            frameworks[label] = after[0] if after else ""
    for label in order:
        if not frameworks[label]:
            before = [frameworks[other] for other in topology.parents(nodes[label], nodes)]
            frameworks[label] = next(filter(None, before), "numpy")
    return frameworks


def _framework(node: ModelNode, registry: Registry) -> str:
    """The framework of a node's model; for an object that no framework owns, that of what an extension makes of it."""
    try:
        if node.framework is not None:
            registry.kinds(node.framework)
            return node.framework
        try:
            return registry.owner(node.model)
        except NoBackendError:
            # Models of known frameworks may have a `fit`, too, whether a plugin is installed or not.
            model = None if hint_of(type(node.model)) is not None else _made_of(node)
            if model is None:
                raise
        node.model = model
        return registry.owner(model)
    except MissingDistributionError:
        raise
    except AnyaccelError as error:
        raise type(error)(f"node {node.label!r}: {error.problem}", available=error.available, hint=error.hint) from None


def _made_of(node: ModelNode) -> Any:
    """The model that an extension makes of the object of a node; None if none does."""
    made = (make(node.model) for make in extensions("node_models"))
    model = next((model for model in made if model is not None), None)
    if model is None and is_like_an_estimator(node.model) and not named(NAMES, "Estimator"):
        what = f"node {node.label!r}: what fits and predicts with a {type(node.model).__name__}"
        raise missing(home_of(NAMES, "Estimator"), what) from None
    return model


def _wrap_models(nodes: Mapping[str, Node], backends: Mapping[str, ComputingBackend]) -> None:
    """Replace models by what their backend wraps them in; nodes that share a model share the wrapper."""
    wrapped: dict[int, Any] = {}
    for label, node in nodes.items():
        if isinstance(node, ModelNode):
            model = node.model
            if id(model) not in wrapped:
                try:
                    with _named_framework(node):
                        wrapped[id(model)] = backends[label].wrap(model)
                except GraphError as error:
                    problem = error.problem if error.problem.startswith("node ") else f"node {label!r}: {error.problem}"
                    raise type(error)(problem, available=error.available, hint=error.hint) from error.__cause__
            node.model = wrapped[id(model)]


@contextmanager
def _named_framework(node: ModelNode) -> Iterator[None]:
    """Errors of a backend that was named as framework= for a model that it does not know.

    Raises:
        GraphError: in place of whatever the backend raised.
    """
    try:
        yield
    except (AnyaccelError, *ENVIRONMENT_ERRORS):
        raise
    except Exception as error:
        if node.framework is None:
            raise
        raise GraphError(
            f"node {node.label!r}: {node.framework} cannot use a {type(node.model).__name__} as a model "
            f"({type(error).__name__}: {error})",
            hint="give a model of this framework, or leave framework= out",
        ) from error


# -- shapes ------------------------------------------------------------------------------------------------------------


class _Inference:
    """One inference: goes through the nodes in topological order."""

    def __init__(
        self,
        nodes: Mapping[str, Node],
        order: Sequence[str],
        frameworks: Mapping[str, str],
        backends: Mapping[str, ComputingBackend],
        seed: int,
    ) -> None:
        self._nodes = nodes
        self._order = order
        self._frameworks = frameworks
        self._backends = backends
        self._seed = seed
        self._specs: dict[str, TensorSpec] = {}
        self._inputs: dict[str, tuple[str, ...]] = {}
        self._outputs: dict[str, tuple[str, ...]] = {}
        self._dtypes: dict[str, str | None] = {}
        self._arguments: dict[str, tuple[Path, ...]] = {}
        self._returned: dict[str, tuple[OutputSpec, ...]] = {}
        self._aliases: dict[str, str] = {}
        self._computed: set[str] = set()
        self._lifted: set[str] = set()
        self._training_only: dict[str, tuple[str, ...]] = {}
        self._examples: dict[str, dict[str, np.ndarray]] = {}

    def run(self) -> Shapes:
        for label in reversed(self._order):
            self._dtypes[label] = self._dtype(label)
        for label in self._order:
            self._infer(label, self._nodes[label])
        check_data_formats(self._nodes, self._backends, self._specs)
        return Shapes(
            order=tuple(self._order),
            frameworks=self._frameworks,
            backends=self._backends,
            inputs=self._inputs,
            outputs=self._outputs,
            specs=self._specs,
            dtypes=self._dtypes,
            arguments=self._arguments,
            returned=self._returned,
            aliases=self._aliases,
            unfitted=unfitted(self._nodes),
            lifted=frozenset(self._lifted),
            training_only=self._training_only,
            examples=self._examples,
        )

    def _dtype(self, label: str) -> str | None:
        node = self._nodes[label]
        if isinstance(node, ModelNode):
            with _named_framework(node):
                return self._backends[label].dtype_of(node.model)
        dtypes = (self._dtypes.get(other) for other in topology.consumers(label, self._nodes))
        return next(filter(None, dtypes), None)

    def _infer(self, label: str, node: Node) -> None:
        if not all(self._outputs[parent] for parent in topology.parents(node, self._nodes)):
            self._inputs[label] = self._outputs[label] = ()  # it depends on an estimator that is not fitted
            return
        for upstream in (each for each in node.upstreams if isinstance(each, str)):
            check_not_wired(label, upstream, self._training_only.get(upstream.partition(".")[0], ()))
        self._inputs[label] = node_values.input_names(node, self._outputs, self._aliases, self._specs)
        if isinstance(node, ModelNode):
            node_values.check_call(node, self._backends[label])
            self._arguments[label] = node.arguments
        self._add_outputs(label, node, self._results(label, node))
        if isinstance(node, ModelNode) and self._dtypes[label] is None:
            self._dtypes[label] = self._backends[label].dtype_of(node.model)

    def _add_outputs(self, label: str, node: Node, returned: Sequence[OutputSpec]) -> None:
        outputs = [output for output in returned if output.batch_axis is not None]
        extra = self._training_beyond(label, node, returned)
        every = [*outputs, *extra]
        names = node_values.output_names(node, [output.path for output in every]) if every else ()
        self._specs.update(zip(names, (output.spec for output in every), strict=True))
        self._outputs[label] = names[: len(outputs)]
        if extra:
            self._training_only[label] = names[len(outputs) :]
        self._computed.update(names)
        self._returned[label] = tuple(returned)
        if names == (label,) and outputs[0].path:
            self._aliases[f"{label}.{node_values.path_name(outputs[0].path)}"] = label

    def _results(self, label: str, node: Node) -> Sequence[OutputSpec]:
        """What a node's model returns, for zeros or, if it does not accept these, for samples of the data."""
        try:
            return self._lifted_if_needed(label, node)
        except ShapeError:
            if not isinstance(node, ModelNode) or not node.kind.tries_other_inputs:
                raise
            self._examples[label] = example_columns(node)
            if not self._examples[label]:
                raise
        return self._lifted_if_needed(label, node)

    def _lifted_if_needed(self, label: str, node: Node) -> Sequence[OutputSpec]:
        """What a node's model returns; scalar columns enter as [1] if the model does not accept them otherwise."""
        names = self._inputs[label]
        scalars = [self._specs[name] for name in names if name not in self._computed and not self._specs[name].shape]
        try:
            return self._given(label, node, lift=False)
        except ShapeError as refused:
            if not scalars or not isinstance(node, ModelNode) or not node.kind.tries_other_inputs:
                raise
            try:
                results = self._given(label, node, lift=True)
            except ShapeError as again:  # it says more where it is the dtype that does not fit
                raise refused if all(is_floating(spec.dtype) for spec in scalars) else again from None
        self._lifted.add(label)
        return results

    def _given(self, label: str, node: Node, *, lift: bool) -> Sequence[OutputSpec]:
        specs = self._received(label, lift=lift)
        if isinstance(node, ConcatNode):
            return [OutputSpec((), concatenated(node, specs))]
        return _outputs(node, specs, self._backends[label], self._seed, self._cast_hint(label))

    def _received(self, label: str, *, lift: bool) -> Sequence[TensorSpec]:
        names, dtype = self._inputs[label], self._dtypes[label]
        specs = [_received(name, self._specs, self._computed, dtype, lift) for name in names]
        return with_examples(names, specs, self._examples.get(label, {}))

    def _training_beyond(self, label: str, node: Node, returned: Sequence[OutputSpec]) -> Sequence[OutputSpec]:
        """The outputs that a node names beyond those of evaluation."""
        count = sum(output.batch_axis is not None for output in returned)
        if not isinstance(node, ModelNode) or not count or len(node.outputs or ()) <= count:
            return ()
        specs = self._received(label, lift=label in self._lifted)
        training = infer_training(node, self._backends[label], self._inputs[label], specs)
        return named_beyond(node, returned, training)

    def _cast_hint(self, label: str) -> str:
        """What to do where a node may refuse the dtype of an estimator's floating output."""
        dtype = self._dtypes[label]
        for other in topology.parents(self._nodes[label], self._nodes):
            spec = self._specs.get(other)
            if spec is not None and is_floating(spec.dtype) and dtype is not None and dtype != spec.dtype:
                hint = self._nodes[other].kind.dtype_hint(other, dtype)
                if hint:
                    return hint
        return ""


def _outputs(
    node: ModelNode, specs: Sequence[TensorSpec], backend: Compute, seed: int, cast_hint: str
) -> Sequence[OutputSpec]:
    try:
        with _named_framework(node):
            key = rng.key(seed, "weights", node.label)
            return backend.infer_outputs(node.model, specs, node.arguments, key)
    except EstimatorError as error:
        raise EstimatorError(
            f"node {node.label!r}: {error.problem}", available=error.available, hint=error.hint
        ) from error.__cause__
    except GraphError as error:
        if not isinstance(error, ShapeError):  # the model's own code failed
            problem = f"node {node.label!r}: {error.problem}"
            raise GraphError(problem, available=error.available, hint=error.hint) from error.__cause__
        raise _not_accepted(node, specs, error, cast_hint) from error.__cause__  # the message has the error itself
    except MoveError as error:
        raise _not_accepted(node, specs, error, cast_hint) from error.__cause__
    except AnyaccelError:
        raise
    except Exception as error:  # ENVIRONMENT_ERRORS
        error.add_note(f"raised while node {node.label!r} was built and tried with two small batches")
        raise


def _not_accepted(
    node: ModelNode, specs: Sequence[TensorSpec], error: ShapeError | MoveError, cast_hint: str
) -> ShapeError | MoveError:
    feeds = ", ".join(up if isinstance(up, str) else shown_name(up) for up in node.upstreams)
    problem = f"node {node.label!r} does not accept {', '.join(map(str, specs))} from {feeds}: {error.problem}"
    return type(error)(problem, available=error.available, hint=cast_hint or error.hint)


# -- concatenation: what a ConcatNode gives for inputs of known specs --------------------------------------------------


def concatenated(node: ConcatNode, specs: Sequence[TensorSpec]) -> TensorSpec:
    """The spec of what a node joins.

    Raises:
        ShapeError: specs that cannot be joined along its axis.
    """
    first = specs[0]
    axis = node.axis if node.axis >= 0 else node.axis + len(first.shape)
    if not 0 <= axis < len(first.shape):
        raise ShapeError(
            f"node {node.label!r} has no axis {node.axis}: its inputs are samples of shape {list(first.shape)}",
            hint="choose an axis of a sample, without the batch; join scalars in one reference([...])",
        )
    rest = {(spec.dtype, spec.shape[:axis], spec.shape[axis + 1 :]) for spec in specs}
    if any(len(spec.shape) != len(first.shape) for spec in specs) or len(rest) > 1:
        raise ShapeError(
            f"node {node.label!r} cannot concatenate {' and '.join(map(str, specs))} along axis {node.axis}",
            hint="use equal dtypes, and equal extents along every other axis",
        )
    extent = sum(spec.shape[axis] for spec in specs)
    return replace(first, shape=(*first.shape[:axis], extent, *first.shape[axis + 1 :]))


# -- data format check: models that feed each other must read the axes of an image in the same order -------------------


def check_data_formats(
    nodes: Mapping[str, Node], backends: Mapping[str, ComputingBackend], specs: Mapping[str, TensorSpec]
) -> None:
    """Check every edge between two models whose data formats are known.

    Raises:
        ShapeError: one is channels_first and the other channels_last, which shapes alone might not show.
    """
    formats = {
        label: backends[label].data_format(node.model) for label, node in nodes.items() if isinstance(node, ModelNode)
    }
    for label in formats:
        for upstream in nodes[label].upstreams:
            source = upstream.partition(".")[0] if isinstance(upstream, str) else ""
            given, wanted = formats.get(source, ("", ""))[1], formats[label][0]
            if given and wanted and given != wanted:
                spec = specs.get(str(upstream))
                shape = "" if spec is None else f" {list(spec.shape)}"
                raise ShapeError(
                    f"node {label!r} ({backends[label].framework}) reads images as {wanted}, and {source!r} "
                    f"({backends[source].framework}) gives them as {given}{shape}",
                    hint=f"put a model between them that moves the channels, or build one of them {given}",
                )
