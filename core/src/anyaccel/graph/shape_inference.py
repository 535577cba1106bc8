"""Shape inference: framework, backend and shapes of every node of a graph, from the data and the models."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from anyaccel import rng
from anyaccel.adapter.call_layout import batch_axes_of, is_positional
from anyaccel.adapter.example_spec import ExampleSpec
from anyaccel.adapter.outer_contexts import left_contexts
from anyaccel.backend import Backend, Compute, ComputingBackend, Memory
from anyaccel.data import Reference, joined_array, joined_spec
from anyaccel.data.rows import Rows
from anyaccel.device import Device
from anyaccel.distributions import NAMES, home_of, missing, named
from anyaccel.errors import (
    ENVIRONMENT_ERRORS,
    AnyaccelError,
    EstimatorError,
    GraphError,
    MemoryShareError,
    MissingDistributionError,
    MoveError,
    NoBackendError,
    PhaseError,
    ShapeError,
)
from anyaccel.extensions import extensions
from anyaccel.graph import topology
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.graph.nodes import ConcatNode, ModelNode, Node, features_of
from anyaccel.graph.plan import Plan
from anyaccel.install_hints import hint_of, is_like_an_estimator
from anyaccel.registry import Registry, registry
from anyaccel.segment import OutputSpec, Path, TensorSpec
from anyaccel.suggestions import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """The shapes, dtypes and names of a built graph, by node label or by value name.

    Attributes:
        order: Labels in topological order.
        frameworks: Framework of each node.
        backends: Backend of each node's framework regardless of a device; a plan's assignments have the backends that
            compute.
        inputs, outputs: Names of each node's values; an unfitted estimator, and every node that it feeds, has no
            outputs.
        specs: Spec of every value: columns as stored, outputs as the models return them.
        dtypes: Dtype of each node's floating inputs after casting, or None.
        arguments: By node, the path of each input in the call of its model; empty if they are positional.
        returned: By node, the return value of its model in evaluation; its outputs are those with a batch.
        aliases: Other names of values: `LABEL.PATH` of an only output, which has the name `LABEL`.
        unfitted: Labels of the estimators that are not fitted.
        lifted: Labels of the nodes that take a scalar column as [1].
        training_only: Names of the outputs that exist only in training, for each node that has them; `specs` has them.
        training: Return value of each node's model in training, if it was requested.
        examples: Samples of the columns of each node whose model does not accept zeros, by the names of the values.
    """

    order: tuple[str, ...]
    frameworks: Mapping[str, str]
    backends: Mapping[str, ComputingBackend] = field(compare=False, repr=False)
    inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    outputs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    dtypes: dict[str, str | None] = field(default_factory=dict)
    arguments: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    returned: dict[str, tuple[OutputSpec, ...]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    unfitted: tuple[str, ...] = ()
    lifted: set[str] = field(default_factory=set)
    training_only: dict[str, tuple[str, ...]] = field(default_factory=dict)
    training: dict[str, tuple[OutputSpec, ...]] = field(default_factory=dict, compare=False, repr=False)
    examples: dict[str, dict[str, np.ndarray]] = field(default_factory=dict, compare=False, repr=False)

    def batch_values(self, label: str) -> dict[str, OutputSpec]:
        """Return the values that a node's model returns once for a whole batch, such as a loss, by `LABEL.PATH`."""
        return {
            f"{label}.{path_name(output.path)}": output
            for output in self.returned.get(label, ())
            if output.batch_axis is None
        }

    def wanted(self, label: str) -> tuple[TensorSpec, ...]:
        """Return the specs of a node's inputs as it receives them: floating columns in its own dtype, outputs
        unchanged.
        """
        specs = []
        for name in self.inputs[label]:
            spec = self.specs[name]
            if not self.is_computed(name):
                spec = cast(spec, self.dtypes[label])
                spec = lifted(spec) if label in self.lifted else spec
            specs.append(spec)
        examples = self.examples.get(label)
        return with_examples(self.inputs[label], specs, examples) if examples else tuple(specs)

    def is_computed(self, name: str) -> bool:
        """Return whether a value is an output of a node, not a column; no feature set is named like a node."""
        return name.partition(".")[0] in self.outputs


def lifted(spec: TensorSpec) -> TensorSpec:
    """Return a scalar per sample as [1]; other specs unchanged."""
    return spec if spec.shape else replace(spec, shape=(1,))


def cast(spec: TensorSpec, dtype: str | None) -> TensorSpec:
    """Return the spec with floating values in `dtype`; other dtypes and None change nothing."""
    return replace(spec, dtype=dtype) if dtype and is_floating(spec.dtype) else spec


def is_floating(dtype: str) -> bool:
    """Whether a dtype, by name, is a floating one (including `bfloat16`)."""
    return "float" in dtype


def infer(nodes: Mapping[str, Node], registry: Registry, seed: int) -> Shapes:
    """Infer the spec of every value, and build unbuilt models with weights from `seed`.

    Raises:
        ShapeError: a model does not accept its inputs; names the node and both shapes.
        NoBackendError, AmbiguousOwnerError, FrameworkError: a model's framework is unknown; names the node.
        MissingDistributionError: the distribution that creates a model from an estimator is not installed.
        AnyaccelError: no model can be created from an object.
    """
    order = topology.topological(nodes)
    # The framework of a ConcatNode is that of its consumer, otherwise of its source, otherwise NumPy.
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
    if len(set(frameworks.values())) > 1:
        share_while_building(frameworks.values(), registry)
    # Replace models by what their backend wraps them in; nodes that share a model share the wrapper.
    backends: dict[str, ComputingBackend] = {}
    wrapped: dict[int, Any] = {}
    unfitted: list[str] = []
    for label, node in nodes.items():
        backend = backends[label] = registry.computing(frameworks[label])
        if isinstance(node, ModelNode):
            model = node.model
            if id(model) not in wrapped:
                try:
                    with _named_framework(node):
                        wrapped[id(model)] = backend.wrap(model)
                except GraphError as error:
                    prefix = "" if error.problem.startswith("node ") else f"node {label!r}: "
                    raise type(error)(
                        prefix + error.problem, available=error.available, hint=error.hint
                    ) from error.__cause__
            node.model = wrapped[id(model)]
        if not node.kind.has_outputs:
            unfitted.append(label)
    shapes = Shapes(order=tuple(order), frameworks=frameworks, backends=backends, unfitted=tuple(unfitted))
    with left_contexts(backends.values()):
        for label in reversed(order):
            node = nodes[label]
            if isinstance(node, ModelNode):
                with _named_framework(node):
                    shapes.dtypes[label] = backends[label].dtype_of(node.model)
            else:
                dtypes = (shapes.dtypes.get(other) for other in topology.consumers(label, nodes))
                shapes.dtypes[label] = next(filter(None, dtypes), None)
        for label in order:
            if all(map(shapes.outputs.get, topology.parents(nodes[label], nodes))):
                _infer_node(label, nodes, shapes, seed)
            else:  # it depends on an estimator that is not fitted
                shapes.inputs[label] = shapes.outputs[label] = ()
        if len(nodes) > 1:
            check_data_formats(nodes, backends, shapes.specs)
    return shapes


def _framework(node: ModelNode, registry: Registry) -> str:
    """Return the framework of a node's model, or of the model that an extension creates from an unowned object."""
    try:
        if node.framework is not None:
            registry.kinds(node.framework)
            return node.framework
        try:
            return registry.owner(node.model)
        except NoBackendError:
            # Models of known frameworks may have a `fit`, too, whether a plugin is installed or not.
            if hint_of(type(node.model)) is not None:
                raise
            made = (make(node.model) for make in extensions("node_models"))
            model = next((model for model in made if model is not None), None)
            if model is None and is_like_an_estimator(node.model) and not named(NAMES, "Estimator"):
                what = f"node {node.label!r}: what fits and predicts with a {type(node.model).__name__}"
                raise missing(home_of(NAMES, "Estimator"), what) from None
            if model is None:
                raise
        node.model = model
        return registry.owner(model)
    except MissingDistributionError:
        raise
    except AnyaccelError as error:
        raise type(error)(f"node {node.label!r}: {error.problem}", available=error.available, hint=error.hint) from None


@contextmanager
def _named_framework(node: ModelNode) -> Iterator[None]:
    """Translate errors of a backend that was named as framework= for a model that it does not know.

    Raises:
        GraphError: instead of the backend's error.
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
            hint="pass a model of this framework, or leave framework= out",
        ) from error


# -- shapes ------------------------------------------------------------------------------------------------------------


def _infer_node(label: str, nodes: Mapping[str, Node], shapes: Shapes, seed: int) -> None:
    """Add the values of a node to the shapes of those before it."""
    node, backend = nodes[label], shapes.backends[label]
    for upstream in node.upstreams if shapes.training_only else ():
        if isinstance(upstream, str) and upstream in shapes.training_only.get(upstream.partition(".")[0], ()):
            raise GraphError(
                f"node {label!r} takes {upstream!r}, an output that exists only in training",
                hint="move the following computation into the model, and put the loss on its output",
            )
    shapes.inputs[label] = input_names(node, shapes.outputs, shapes.aliases, shapes.specs)
    names_of_outputs = None
    if isinstance(node, ModelNode):
        check_call(node, backend)
        shapes.arguments[label], names_of_outputs = node.arguments, node.outputs
    returned = _returned(node, nodes, shapes, seed)
    outputs = with_batch(returned)
    extra: Sequence[OutputSpec] = ()
    if isinstance(node, ModelNode) and 0 < len(outputs) < len(names_of_outputs or ()):
        training = infer_training(node, backend, shapes.inputs[label], shapes.wanted(label))
        in_training = matched(returned, training) or []
        if len(in_training) == len(names_of_outputs or ()):  # it names more than the outputs of evaluation
            extra = [output for output in in_training[len(outputs) :] if output is not None]
    every = [*outputs, *extra]
    if every and names_of_outputs is not None and len(names_of_outputs) != len(every):
        raise GraphError(
            f"node {label!r} names {len(names_of_outputs)} outputs, but its model returns {len(every)}",
            hint="name all outputs, or none",
        )
    names: list[str] = []
    for i, output in enumerate(every):
        path = f"{label}.{names_of_outputs[i] if names_of_outputs else path_name(output.path)}"
        names.append(label if len(every) == 1 and names_of_outputs is None else path)
        shapes.specs[names[i]] = output.spec
    if names == [label] and outputs[0].path:
        shapes.aliases[path] = label
    shapes.outputs[label] = tuple(names[: len(outputs)])
    if extra:
        shapes.training_only[label] = tuple(names[len(outputs) :])
    shapes.returned[label] = tuple(returned)
    if isinstance(node, ModelNode) and shapes.dtypes[label] is None:
        shapes.dtypes[label] = backend.dtype_of(node.model)


def _returned(node: Node, nodes: Mapping[str, Node], shapes: Shapes, seed: int) -> Sequence[OutputSpec]:
    """Return the outputs of a node's model for zeros or, if it does not accept these, for samples of the data.

    In both cases, scalar columns enter as [1] if the model does not accept them otherwise.
    """
    label = node.label
    try:
        return _called(node, nodes, shapes, seed)
    except ShapeError as error:
        if not isinstance(node, ModelNode) or not node.kind.tries_other_inputs:
            raise
        scalars = [
            shapes.specs[name]
            for name in shapes.inputs[label]
            if not shapes.is_computed(name) and not shapes.specs[name].shape
        ]
        if scalars:
            shapes.lifted.add(label)
            try:
                return _called(node, nodes, shapes, seed)
            except ShapeError as again:  # it says more where it is the dtype that does not fit
                shapes.lifted.discard(label)
                refused = error if all(is_floating(spec.dtype) for spec in scalars) else again
        examples = {} if label in shapes.examples else example_columns(node)
        if not examples and not scalars:
            raise
        if not examples:
            raise refused from refused.__cause__
    shapes.examples[label] = examples
    return _returned(node, nodes, shapes, seed)


def _called(node: Node, nodes: Mapping[str, Node], shapes: Shapes, seed: int) -> Sequence[OutputSpec]:
    """Return the outputs of a node for its inputs as they are.

    Raises:
        AnyaccelError: the model does not accept them.
    """
    label = node.label
    specs = shapes.wanted(label)
    if isinstance(node, ConcatNode):
        return [OutputSpec((), concatenated(node, specs))]
    try:
        with _named_framework(node):
            key = rng.key(seed, "weights", label)
            return shapes.backends[label].infer_outputs(node.model, specs, node.arguments, key)
    except EstimatorError as error:
        raise EstimatorError(
            f"node {label!r}: {error.problem}", available=error.available, hint=error.hint
        ) from error.__cause__
    except (GraphError, MoveError) as error:
        if isinstance(error, GraphError) and not isinstance(error, ShapeError):  # the model's own code failed
            problem = f"node {label!r}: {error.problem}"
            raise GraphError(problem, available=error.available, hint=error.hint) from error.__cause__
        feeds = ", ".join(up if isinstance(up, str) else features_of(up).shown for up in node.upstreams)
        problem = f"node {label!r} does not accept {', '.join(map(str, specs))} from {feeds}: {error.problem}"
        hint = error.hint
        dtype = shapes.dtypes[label]
        for other in topology.parents(node, nodes):  # an estimator's floating output may have the wrong dtype
            spec = shapes.specs.get(other)
            if spec is not None and is_floating(spec.dtype) and dtype is not None and dtype != spec.dtype:
                cast_hint = nodes[other].kind.dtype_hint(other, dtype)
                if cast_hint:
                    hint = cast_hint
                    break
        raise type(error)(problem, available=error.available, hint=hint) from error.__cause__
    except AnyaccelError:
        raise
    except Exception as error:  # ENVIRONMENT_ERRORS
        error.add_note(f"raised while building node {label!r} and trying it with two small batches")
        raise


# -- concatenation: what a ConcatNode gives for inputs of known specs --------------------------------------------------


def concatenated(node: ConcatNode, specs: Sequence[TensorSpec]) -> TensorSpec:
    """Return the spec of the concatenation of a node's inputs.

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
    models = {label: node for label, node in nodes.items() if isinstance(node, ModelNode)}
    formats = {label: backends[label].data_format(node.model) for label, node in models.items()}
    for label, node in models.items():
        for upstream in node.upstreams:
            source = upstream.partition(".")[0] if isinstance(upstream, str) else ""
            produced, wanted = formats.get(source, ("", ""))[1], formats[label][0]
            if produced and wanted and produced != wanted:
                spec = specs.get(str(upstream))
                shape = "" if spec is None else f" {list(spec.shape)}"
                raise ShapeError(
                    f"node {label!r} ({backends[label].framework}) expects images as {wanted}, but "
                    f"{source!r} ({backends[source].framework}) returns them as {produced}{shape}",
                    hint=f"add a model between them that moves the channels, or build one of them {produced}",
                )


# -- Outputs that a model gives in training only (auxiliary heads): named ones are found, and others refused -----------


Outputs = Sequence[OutputSpec]


def infer_training(
    node: ModelNode, backend: Compute, names: Sequence[str], inputs: Sequence[TensorSpec]
) -> tuple[OutputSpec, ...]:
    """Return the outputs of a node's built model in training; empty if unknown, or the same as in evaluation.

    Args:
        node: The node.
        backend: Backend of its model.
        names: Names of its inputs.
        inputs: Their specs; if the model does not accept zeros in training, it receives samples of its columns.

    Raises:
        ShapeError: the model returns nothing that a graph could use.
    """
    arguments = (node.arguments,) if node.arguments else ()
    try:
        returned = backend.infer_training(node.model, inputs, *arguments)
        if returned is not None and not returned and (columns := example_columns(node)):
            returned = backend.infer_training(node.model, with_examples(names, inputs, columns), *arguments)
        return tuple(returned or ())
    except ShapeError as error:
        problem = f"node {node.label!r}: {error.problem}"
        raise ShapeError(problem, available=error.available, hint=error.hint) from error


def with_batch(returned: Outputs) -> list[OutputSpec]:
    """Return the outputs of a node among what its model returns."""
    return [output for output in returned if output.batch_axis is not None]


def matched(evaluated: Outputs, training: Outputs) -> list[OutputSpec | None] | None:
    """Return the outputs in training, those of evaluation first, matched by path or by order; None if they differ.

    If the other outputs have the same paths, an output that only evaluation has, such as a cache, is replaced by None.

    Args:
        evaluated: Outputs of a model in evaluation.
        training: Outputs of the model in training.
    """
    usual, trained = with_batch(evaluated), with_batch(training)
    by_path = {output.path: output for output in trained}
    named: list[OutputSpec | None] = [by_path.get(output.path) for output in usual]
    first = next((candidate for candidate in (named, [*trained[: len(usual)]]) if _same_specs(usual, candidate)), None)
    if first is None and any(named) and _same_specs(usual, [name or usual[i] for i, name in enumerate(named)]):
        first = named
    return None if first is None else [*first, *(output for output in trained if output not in first)]


def _same_specs(usual: Outputs, training: Sequence[OutputSpec | None]) -> bool:
    return [output.spec for output in usual] == [output and output.spec for output in training]


def check_training_outputs(label: str, shapes: Shapes, losses: Iterable[AppliedLoss], labels: Iterable[str]) -> None:
    """Check that a model returns the expected outputs in training, with which all that is read exists in both modes.

    Args:
        label: Label of its node, which is trained.
        shapes: The shapes of the graph, with the outputs of the model in training.
        losses: Losses of the phase.
        labels: Labels of the nodes that take part in it.

    Raises:
        PhaseError: it returns something else, or a loss or another node reads an output that exists in evaluation only.
    """
    evaluated, training = shapes.returned[label], shapes.training[label]
    usual, trained, outputs = with_batch(evaluated), with_batch(training), matched(evaluated, training)
    if outputs is not None and len(outputs) == len(usual) + len(shapes.training_only.get(label, ())):
        # a loss that the model computes only in training would be left out of the gradients
        paths = {output.path for output in evaluated}
        for output in training:
            if output.batch_axis is None and not output.spec.shape and output.path not in paths:
                raise PhaseError(
                    f"node {label!r}: its model returns {path_name(output.path)!r}, one number for a batch, only in "
                    "training",
                    available="a loss that the model returns in both modes: AppliedLoss.from_output(...)",
                    hint="return it in evaluation too, or leave it out in training",
                )
        if None in outputs:
            read = {name for loss in losses for name in _output_names(loss)}
            read.update(name for other in labels for name in shapes.inputs[other])
            in_both = [name for name, spec in zip(shapes.outputs[label], outputs, strict=False) if spec is not None]
            for name in shapes.outputs[label]:
                if name in read and name not in in_both:
                    raise PhaseError(
                        f"node {label!r}: its model returns {name.removeprefix(label + '.')!r} in evaluation, but not "
                        "in training",
                        available=", ".join(in_both),
                        hint=f"do not use it in losses or other nodes, freeze {label!r}, or return it in training too",
                    )
        return
    problem = f"node {label!r}: its model returns {_shown(trained)} in training, but {_shown(usual)} in evaluation"
    if outputs is not None and len(outputs) > len(usual):
        names = [path_name((output or usual[i]).path) for i, output in enumerate(outputs)]
        names = names if all(map(str.isidentifier, names)) else [f"out{i}" for i in range(len(outputs))]
        raise PhaseError(
            problem,
            cause="outputs that exist only in training need names and separate losses",
            hint=f"name all outputs, starting with those of evaluation: ModelNode({label!r}, ..., outputs={names}), "
            "with losses such "
            f"as AppliedLoss(..., on={label!r}, inputs=['outputs.{names[-1]}', 'targets'], label='{names[-1]}'); or "
            "disable the others in the model",
        )
    raise PhaseError(
        problem,
        cause="the same outputs in both modes; in training, more outputs may follow",
        hint="wrap the model in one that returns the same outputs in both modes",
    )


def _shown(outputs: Outputs) -> str:
    specs = ", ".join(str(output.spec) for output in outputs)
    return f"{len(outputs)} output{'s' * (len(outputs) != 1)} ({specs} per sample)"


def training_only_inputs(losses: Iterable[AppliedLoss], names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return, by label of each loss that takes some, the outputs among its inputs that exist only in training.

    Args:
        losses: Losses of a phase.
        names: The outputs that exist only in training.
    """
    taken = {loss.label: tuple(name for name in _output_names(loss) if name in names) for loss in losses}
    return {label: inputs for label, inputs in taken.items() if inputs}


def _output_names(loss: AppliedLoss) -> list[str]:
    return [f"{loss.on}.{text.partition('.')[2]}" if text.startswith("outputs.") else text for text in loss.inputs]


# -- samples of a node's columns, for shape inference of models that do not accept zeros -------------------------------


N_SAMPLES = 3  # the largest batch that models are called with


def example_columns(node: Node) -> dict[str, np.ndarray]:
    """Return the first samples of each column that a node takes, by the name of the value; none for sources."""
    columns = {}
    for upstream in node.upstreams:
        if isinstance(upstream, Reference) and isinstance(upstream.feature_set, Rows) and len(upstream.feature_set):
            rows = upstream.feature_set.take(np.arange(min(N_SAMPLES, len(upstream.feature_set))))
            columns[str(features_of(upstream))] = joined_array(rows, upstream.features)
    return columns


def with_examples(
    names: Sequence[str], specs: Sequence[TensorSpec], columns: Mapping[str, np.ndarray]
) -> tuple[TensorSpec, ...]:
    """Return specs of values with their available samples, in the shape that the node takes."""
    return tuple(
        ExampleSpec(spec.shape, spec.dtype, columns[name].reshape(-1, *spec.shape)) if name in columns else spec
        for name, spec in zip(names, specs, strict=True)
    )


# -- Values of a node: the names of what it takes and gives, and whether its model's call has arguments of these names


def path_name(path: Path) -> str:
    """Return a path as text: its steps, joined by dots."""
    return ".".join(map(str, path))


# -- inputs ------------------------------------------------------------------------------------------------------------


def input_names(
    node: Node, outputs: Mapping[str, Sequence[str]], aliases: Mapping[str, str], specs: dict[str, TensorSpec]
) -> tuple[str, ...]:
    """Return names of the values that a node takes, in order; adds those of columns to `specs`.

    Args:
        node: The node.
        outputs: Names of the values of each node.
        aliases: Other names of values.
        specs: Specs of the values so far.

    Raises:
        GraphError: an upstream that does not exist, or is several values where one is required.
    """
    names: list[str] = []
    for upstream in node.upstreams:
        if isinstance(upstream, Reference):
            if len(upstream.features) > 1 and not node.kind.joins_integers:
                inner = {name: upstream.feature_set.spec(name) for name in upstream.features}
                vectors = [name for name, spec in inner.items() if spec.shape and "int" in spec.dtype]
                if len(vectors) > 1:
                    casts = dict.fromkeys(vectors, "float32")
                    inputs = ", ".join(
                        f"{name!r}: {upstream.feature_set.label}.reference({name!r})" for name in vectors
                    )
                    raise GraphError(
                        f"node {node.label!r} would get the integer columns {', '.join(vectors)} as one input, "
                        "joined end to end",
                        hint=f"pass each as a separate input, by the model's argument name: {{{inputs}}}; or, if these "
                        "are numbers rather than ids, convert them to floats: "
                        f"{upstream.feature_set.label}.cast({casts})",
                    )
            name, spec = str(features_of(upstream)), joined_spec(upstream.feature_set, upstream.features)
            if specs.setdefault(name, spec) != spec:
                raise GraphError(
                    f"node {node.label!r}: {features_of(upstream).shown!r} is two different inputs, {specs[name]} "
                    f"and {spec}",
                    hint="rename the column that has a '+' in its name",
                )
            names.append(name)
        else:
            label, _, output = upstream.partition(".")
            available = tuple(outputs[label])
            if not output and len(available) > 1 and isinstance(node, ModelNode) and node.arguments:
                raise GraphError(
                    f"node {node.label!r} takes {upstream!r} as one argument, but it has several outputs",
                    available=", ".join(available),
                    hint=f"name one: {available[0]!r}",
                )
            if output and upstream not in available and upstream not in aliases:
                problem = f"node {node.label!r} takes {upstream!r}, which {label!r} does not output"
                raise topology.unknown_node(problem, upstream, available)
            names.extend((aliases.get(upstream, upstream),) if output else available)
    return tuple(names)


# -- the call ----------------------------------------------------------------------------------------------------------


def check_call(node: ModelNode, backend: ComputingBackend) -> None:
    """Check that a model can be called with what feeds its node, to the extent that names tell.

    Raises:
        GraphError: the backend has no keywords, the model has no such argument, or a column would be taken as another
            argument than that of its name.
    """
    node.kind.check_inputs(node)
    if any(batch_axes_of(node.arguments)) and not getattr(backend, "moves_batch_axis", False):
        raise GraphError(
            f"node {node.label!r}: {backend.framework} calls models with the batch on the first axis",
            hint="leave batch_axis out, and move the axis in the model",
        )
    by_name = node.arguments and not is_positional(node.arguments)
    if by_name and not backend.calls_by_keyword:
        raise GraphError(
            f"node {node.label!r}: {backend.framework} calls models with positional arguments only",
            hint="pass a flat list of upstreams, in the order of the model's inputs",
        )
    signature = backend.signature(node.model)
    if signature is None:
        return
    parameters = signature.parameters
    if by_name:
        known = [name for name, it in parameters.items() if it.kind in (it.POSITIONAL_OR_KEYWORD, it.KEYWORD_ONLY)]
        takes_any = any(it.kind is it.VAR_KEYWORD for it in parameters.values())
        passed = [path[0] for path in node.arguments]
        for name in passed:
            if isinstance(name, str) and name not in known and not takes_any:
                raise GraphError(
                    f"node {node.label!r}: its model has no input {name!r}",
                    available=", ".join(known),
                    hint=did_you_mean(name, known, "use one of these names"),
                )
        missing = [name for name in known if parameters[name].default is inspect.Parameter.empty and name not in passed]
        if missing and not any(isinstance(name, int) for name in passed):
            raise GraphError(
                f"node {node.label!r}: its model needs the input {missing[0]!r}, which is missing",
                available=", ".join(known),
                hint=f"add it: {{{missing[0]!r}: feature_set.reference(...), ...}}",
            )
        return
    positional, by_keyword = [], []
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            positional.append(name)
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            by_keyword.append(name)
    if by_keyword and len(by_keyword) == len(parameters):
        raise GraphError(
            f"node {node.label!r}: its model takes its inputs by name, but they are passed by position",
            available=", ".join(by_keyword),
            hint=f"pass a dict: {{{', '.join(f'{name!r}: ...' for name in by_keyword)}}}",
        )
    columns = []
    for upstream in node.upstreams:
        if isinstance(upstream, Reference) and len(upstream.features) == 1:
            columns.append(upstream.features[0])
    # Streams of a sampler take one column at several places.
    if 1 < len(columns) == len(node.upstreams) and len(set(columns)) == len(columns):
        for taken, name in zip(positional, columns, strict=False):
            if name != taken and name in parameters:
                inputs = ", ".join(f"{name!r}: ..." for name in columns)
                raise GraphError(
                    f"node {node.label!r}: the column {name!r} would be the argument {taken!r} of its "
                    f"model, but the model has an argument {name!r}",
                    available=f"arguments in this order: {', '.join(positional)}",
                    hint=f"pass the inputs by name: {{{inputs}}}",
                )


# -- Memory sharing: frameworks of one graph that use the same device are told to leave memory to each other -----------


User = tuple[str, Device]
"""A framework and a device that it uses."""


def share_while_building(frameworks: Iterable[str], registry: Registry) -> None:
    """Make the frameworks of a graph that is being built share every device that several of them could use.

    Building uses the frameworks, which then reserve memory, before devices are assigned. A refusal is ignored here; it
    is an error in `share` if it matters.
    """
    names = set(frameworks)
    users: dict[Device, list[Backend]] = {}
    for backend in registry.backends:
        if backend.framework in names and backend.capability(Memory) is not None:
            for device in (device for device in registry.ask(backend, "devices") if device.kind != "cpu"):
                users.setdefault(device, []).append(backend)
    for device, backends in users.items():
        if len({backend.framework for backend in backends}) > 1:
            for backend in backends:
                _share(backend, device, len(backends))


def share(plan: Plan) -> None:
    """Make the frameworks of a plan share their common devices; called before anything is placed.

    Raises:
        MemoryShareError: a framework reserved the memory of a device before; has that framework's hint.
    """
    backends: dict[User, Backend] = {}
    for assignment in plan.assignments:
        if assignment.device.kind != "cpu":
            backends[assignment.framework, assignment.device] = assignment.backend
    shared: dict[User, set[str]] = {}
    for first, second in combinations(sorted(backends, key=str), 2):
        if first[0] == second[0]:
            continue
        one, other = (registry().ask(backends[user], "device_info", user[1]).identity for user in (first, second))
        is_same = one == other if one and other else first[1] == second[1]  # without identities, by kind and index
        if is_same:
            shared.setdefault(first, set()).add(second[0])
            shared.setdefault(second, set()).add(first[0])
    for (framework, device), others in sorted(shared.items(), key=str):
        refusal = _share(backends[framework, device], device, len(others) + 1)
        if refusal:
            raise MemoryShareError(
                f"phase {plan.phase!r} uses {device} from {framework} and from {', '.join(sorted(others))}: {refusal}"
            )


def _share(backend: Backend, device: Device, count: int) -> str:
    memory = backend.capability(Memory)
    return "" if memory is None else memory.share(device, 1 / count)
