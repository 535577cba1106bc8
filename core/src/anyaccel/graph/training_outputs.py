"""Outputs that a model gives in training only (auxiliary heads): named ones are found, and others refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from anyaccel.errors import GraphError, PhaseError
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.graph.nodes import ModelNode
from anyaccel.segment import TensorSpec

Specs = Sequence[TensorSpec]


def named_beyond(node: ModelNode, evaluated: Specs, training: Specs) -> tuple[TensorSpec, ...]:
    """Specs of the outputs that a node names, and that its model gives in training only; none if others differ too."""
    goes_on = tuple(training[: len(evaluated)]) == tuple(evaluated)
    is_named = node.outputs is not None and len(node.outputs) == len(training) > len(evaluated)
    return tuple(training[len(evaluated) :]) if goes_on and is_named else ()


def check_training_outputs(label: str, usual: Specs, extra: Specs, training: Specs) -> None:
    """Check that a model gives in training what the graph knows of.

    Args:
        label: of its node, which is trained.
        usual: specs of its outputs in evaluation.
        extra: specs of those that exist in training only.
        training: what it gives in training; empty if that is not known.

    Raises:
        PhaseError: it gives something else.
    """
    if not training or tuple(training) == (*usual, *extra):
        return
    problem = f"node {label!r}: its model gives {_shown(training)} in training, but {_shown(usual)} in evaluation"
    if tuple(training[: len(usual)]) == tuple(usual) and len(training) > len(usual):
        names = [f"out{i}" for i in range(len(training))]
        raise PhaseError(
            problem,
            available="outputs that exist only in training have names, and losses of their own",
            hint=f"name all, those of evaluation first: ModelNode({label!r}, ..., outputs={names}), with losses such "
            f"as AppliedLoss(..., on={label!r}, inputs=['outputs.{names[-1]}', 'targets'], label='{names[-1]}'); or "
            "switch the others off in the model",
        )
    raise PhaseError(
        problem,
        available="the same outputs in both modes; in training, more may follow them",
        hint="wrap the model in one that returns the same outputs in both modes",
    )


def _shown(specs: Specs) -> str:
    return f"{len(specs)} output{'s' * (len(specs) != 1)} ({', '.join(map(str, specs))} per sample)"


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
