"""Outputs that a model gives in training only (auxiliary heads): named ones are found, and others refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from anyaccel.adapter.example_spec import ExampleSpec
from anyaccel.backend import Compute
from anyaccel.data import Reference, joined_array
from anyaccel.data.rows import Rows
from anyaccel.errors import GraphError, PhaseError, ShapeError
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.graph.node_values import path_name
from anyaccel.graph.nodes import ModelNode, Node, column_name
from anyaccel.segment import OutputSpec, TensorSpec

Outputs = Sequence[OutputSpec]


def infer_training(
    node: ModelNode, backend: Compute, names: Sequence[str], inputs: Sequence[TensorSpec]
) -> tuple[OutputSpec, ...]:
    """What a node's built model returns in training; empty where that is not known.

    Args:
        node: the node.
        backend: of its model.
        names: of its inputs.
        inputs: their specs; where the model does not accept zeros in training, it gets samples of its columns.

    Raises:
        ShapeError: nothing that a graph could use.
    """
    arguments = (node.arguments,) if node.arguments else ()
    try:
        returned = backend.infer_training(node.model, inputs, *arguments)
        if not returned and (columns := example_columns(node)):
            returned = backend.infer_training(node.model, with_examples(names, inputs, columns), *arguments)
        return tuple(returned)
    except ShapeError as error:
        problem = f"node {node.label!r}: {error.problem}"
        raise ShapeError(problem, available=error.available, hint=error.hint) from error


def with_batch(returned: Outputs) -> list[OutputSpec]:
    """The outputs of a node among what its model returns."""
    return [output for output in returned if output.batch_axis is not None]


def matched(evaluated: Outputs, training: Outputs) -> list[OutputSpec | None] | None:
    """The outputs in training, those of evaluation first, found by their paths or else in order; None if they differ.

    In the place of an output that only evaluation gives, such as a cache, is None, if others have the same paths.

    Args:
        evaluated: what a model returns in evaluation.
        training: what it returns in training.
    """
    usual, given = with_batch(evaluated), with_batch(training)
    by_path = {output.path: output for output in given}
    named: list[OutputSpec | None] = [by_path.get(output.path) for output in usual]
    first = next((found for found in (named, [*given[: len(usual)]]) if _same_specs(usual, found)), None)
    if first is None and any(named) and _same_specs(usual, [own or usual[i] for i, own in enumerate(named)]):
        first = named
    return None if first is None else [*first, *(output for output in given if output not in first)]


def _same_specs(usual: Outputs, training: Sequence[OutputSpec | None]) -> bool:
    return [output.spec for output in usual] == [output and output.spec for output in training]


def named_beyond(node: ModelNode, evaluated: Outputs, training: Outputs) -> list[OutputSpec]:
    """The outputs that a node names, and that its model gives in training only; none if others differ too."""
    outputs, count = matched(evaluated, training) or [], len(with_batch(evaluated))
    is_named = node.outputs is not None and len(node.outputs) == len(outputs) > count
    return [output for output in outputs[count:] if output is not None] if is_named else []


def check_training_outputs(label: str, evaluated: Outputs, extra: int, training: Outputs) -> None:
    """Check that a model gives in training what the graph knows of.

    Args:
        label: of its node, which is trained.
        evaluated: what it returns in evaluation.
        extra: number of its named outputs that exist in training only.
        training: what it returns in training; empty if that is not known.

    Raises:
        PhaseError: it gives something else.
    """
    usual, given, outputs = with_batch(evaluated), with_batch(training), matched(evaluated, training)
    if not training:
        return
    if outputs is not None and len(outputs) == len(usual) + extra:
        _check_batch_values(label, evaluated, training)
        return
    problem = f"node {label!r}: its model gives {_shown(given)} in training, but {_shown(usual)} in evaluation"
    if outputs is not None and len(outputs) > len(usual):
        names = [path_name((output or usual[i]).path) for i, output in enumerate(outputs)]
        names = names if all(map(str.isidentifier, names)) else [f"out{i}" for i in range(len(outputs))]
        raise PhaseError(
            problem,
            cause="outputs that exist only in training have names, and losses of their own",
            hint=f"name all, those of evaluation first: ModelNode({label!r}, ..., outputs={names}), with losses such "
            f"as AppliedLoss(..., on={label!r}, inputs=['outputs.{names[-1]}', 'targets'], label='{names[-1]}'); or "
            "switch the others off in the model",
        )
    raise PhaseError(
        problem,
        cause="the same outputs in both modes; in training, more may follow them",
        hint="wrap the model in one that returns the same outputs in both modes",
    )


def _check_batch_values(label: str, evaluated: Outputs, training: Outputs) -> None:
    """A loss that a model computes in training alone would be left out of the gradients."""
    known = {output.path for output in evaluated}
    for output in training:
        if output.batch_axis is None and not output.spec.shape and output.path not in known:
            raise PhaseError(
                f"node {label!r}: its model gives {path_name(output.path)!r}, one number for a batch, in training only",
                available="losses of a model that it returns in both modes: AppliedLoss.from_output(...)",
                hint="return it in evaluation, too, or leave it out in training",
            )


def check_not_taken(label: str, names: Sequence[str], training: Sequence[OutputSpec | None], taken: set[str]) -> None:
    """Check that what a model gives in evaluation only is read by no other node and no loss of a phase that trains it.

    Args:
        label: of its node.
        names: of its outputs in evaluation.
        training: the same outputs in training, as `matched`.
        taken: names of the values that nodes and losses read.

    Raises:
        PhaseError: one is read.
    """
    for name, output in zip(names, training, strict=False):
        if output is None and name in taken:
            raise PhaseError(
                f"node {label!r}: its model gives {name.removeprefix(label + '.')!r} in evaluation, not in training",
                available=", ".join(name for name, given in zip(names, training, strict=False) if given is not None),
                hint=f"let no loss and no other node read it, freeze {label!r}, or let the model return it in training",
            )


def training_results(evaluated: Outputs, training: Outputs, count: int) -> list[OutputSpec | None]:
    """The first `count` outputs in training, those of evaluation first; as in evaluation where nothing is known."""
    return (matched(evaluated, training) or [*with_batch(evaluated)])[:count]


def _shown(outputs: Outputs) -> str:
    specs = ", ".join(str(output.spec) for output in outputs)
    return f"{len(outputs)} output{'s' * (len(outputs) != 1)} ({specs} per sample)"


def values_read(losses: Iterable[AppliedLoss], inputs: Iterable[Sequence[str]]) -> set[str]:
    """Names of the values that losses and nodes read.

    Args:
        losses: of a phase.
        inputs: names of the inputs of each node.
    """
    return {name for loss in losses for name in _output_names(loss)} | {name for names in inputs for name in names}


def training_only_inputs(losses: Iterable[AppliedLoss], names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """By label of each loss that takes some, the outputs among its inputs that exist only in training.

    Args:
        losses: of a phase.
        names: the outputs that exist only in training.
    """
    taken = {loss.label: tuple(name for name in _output_names(loss) if name in names) for loss in losses}
    return {label: inputs for label, inputs in taken.items() if inputs}


def _output_names(loss: AppliedLoss) -> list[str]:
    return [f"{loss.on}.{text.partition('.')[2]}" if text.startswith("outputs.") else text for text in loss.inputs]


def check_in_training(taken: Mapping[str, Sequence[str]], in_training: Collection[str]) -> None:
    """Check that the nodes whose training-only outputs are taken, by label of a loss, run in training mode.

    Raises:
        PhaseError: one does not.
    """
    for label, names in taken.items():
        for name in names:
            node = name.partition(".")[0]
            if node not in in_training:
                raise PhaseError(
                    f"the loss {label!r} takes {name!r}, an output that exists only in training, and node {node!r} is "
                    "frozen",
                    hint=f"unfreeze the node, graph.unfreeze({node!r}), or leave the loss out",
                )


def check_not_wired(node: str, upstream: str, training_only: Collection[str]) -> None:
    """Check that a node is not fed by an output that exists only in training: it could not be evaluated.

    Raises:
        GraphError: it is.
    """
    if upstream in training_only:
        raise GraphError(
            f"node {node!r} takes {upstream!r}, an output that exists only in training",
            hint="compute what follows it inside the model, and give that output a loss",
        )


# -- samples of a node's columns, for shape inference of models that do not accept zeros -------------------------------


N_SAMPLES = 3  # the largest batch that models are called with


def example_columns(node: Node) -> dict[str, np.ndarray]:
    """The first samples of each column that a node takes, by the name of the value; of sources there are none."""
    columns = {}
    for upstream in node.upstreams:
        if isinstance(upstream, Reference) and isinstance(upstream.feature_set, Rows) and len(upstream.feature_set):
            rows = upstream.feature_set.take(np.arange(min(N_SAMPLES, len(upstream.feature_set))))
            columns[column_name(upstream)] = joined_array(rows, upstream.features)
    return columns


def with_examples(
    names: Sequence[str], specs: Sequence[TensorSpec], columns: Mapping[str, np.ndarray]
) -> tuple[TensorSpec, ...]:
    """Specs of values with the samples that there are of them, in the shape that the node takes."""
    return tuple(
        ExampleSpec(spec.shape, spec.dtype, columns[name].reshape(-1, *spec.shape)) if name in columns else spec
        for name, spec in zip(names, specs, strict=True)
    )
