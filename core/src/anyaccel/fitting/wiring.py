"""Wiring of `fit`: which column feeds which argument of the model, and which loss compares which output and target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyaccel.arguments import shown
from anyaccel.backend import Compute
from anyaccel.data import FeatureSet, Source
from anyaccel.data.roles import Names, listed, names_of
from anyaccel.errors import PhaseError
from anyaccel.graph import AppliedLoss, ModelGraph
from anyaccel.graph.nodes import Upstream
from anyaccel.registry import registry
from anyaccel.specs import Loss

Features = Names | Mapping[str, Names]
"""Names of columns to join, or a mapping from arguments of the model's call to names."""


def feature_names(features: Features, targets: Names) -> Names:
    """Return the columns to read as features; a target that a model takes by name stays a target."""
    if not isinstance(features, Mapping):
        return features
    names = dict.fromkeys(name for columns in features.values() for name in names_of(columns))
    return [name for name in names if name not in names_of(targets)]


def inputs_of(model: Any, data: FeatureSet | Source, features: Features) -> Upstream | dict[str, Upstream]:
    """Return the inputs of the node: columns by argument, or one reference that joins all features.

    A model that requires several arguments named like features receives these features by name.

    Raises:
        PhaseError: The model requires several arguments, and they have other names.
    """
    if isinstance(features, Mapping):
        return {name: data.reference(columns) for name, columns in features.items()}
    owners = registry().owners(model)
    signature = registry().computing(owners[0]).signature(model) if owners else None
    parameters = () if signature is None else signature.parameters.values()
    named = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    needed = [parameter.name for parameter in named if parameter.default is parameter.empty]
    if len(needed) < 2:
        return data.reference()
    missing = [name for name in needed if name not in data.features]
    if missing:
        raise PhaseError(
            f"fit: the model needs the inputs {', '.join(needed)}, but no feature is called {missing[0]!r}",
            available=f"features: {listed(data.features)}",
            hint=f"assign the columns: features={{{', '.join(f'{name!r}: COLUMN' for name in needed)}}}",
        )
    return {name: data.reference(name) for name in needed}


class FitLosses:
    """The losses of a fit: one, one per target, or AppliedLoss objects.

    Args:
        losses: A loss, a mapping from target columns to losses, or one or several AppliedLoss; None for no loss.

    Raises:
        PhaseError, SpecError: An object is not a loss.
    """

    def __init__(self, losses: Any) -> None:
        self._by_target: dict[str, Loss] = {}
        self._applied: tuple[AppliedLoss, ...] = ()
        if isinstance(losses, Mapping):
            wrong = [name for name in losses if not isinstance(name, str)]
            if wrong or not losses:
                raise PhaseError(
                    f"fit: loss={shown(losses)} must have columns of targets as its keys",
                    hint="write loss={'COLUMN': 'mse', 'OTHER': 'cross_entropy'}",
                )
            self._by_target = {name: _loss(loss) for name, loss in losses.items()}
        elif isinstance(losses, AppliedLoss):
            self._applied = (losses,)
        elif isinstance(losses, (list, tuple)):
            wrong = [loss for loss in losses if not isinstance(loss, AppliedLoss)]
            if wrong or not losses:
                raise PhaseError(
                    f"fit: loss={shown(losses)} is not a list of AppliedLoss objects",
                    available="a loss, {'COLUMN': loss, ...}, or AppliedLoss objects",
                    hint="write loss={'COLUMN': 'mse', 'OTHER': 'cross_entropy'}",
                )
            self._applied = tuple(losses)
        elif losses is not None:
            self._applied = (AppliedLoss(_loss(losses), on="model", label="model"),)

    @property
    def targets(self) -> list[str] | None:
        """The targets that have separate losses; None if unknown."""
        return list(self._by_target) or None

    @property
    def known(self) -> tuple[AppliedLoss, ...]:
        """The losses, before their outputs are known."""
        return self._applied or tuple(AppliedLoss(loss, label=name) for name, loss in self._by_target.items())

    def of(self, column: str) -> Loss | None:
        """Return the named loss that compares a target; None if it is a framework's own, or unknown."""
        loss = self._by_target.get(column)
        for applied in self._applied:
            compared = [name.partition(".")[2] for name in applied.inputs if not name.startswith("outputs")]
            if loss is None and ("targets" in applied.inputs or column in compared):
                loss = applied.loss
        return None if loss is None or loss.own is not None else loss

    def n_classes(self, column: str, data: FeatureSet) -> int | None:
        """Return the number of classes of a framework's own loss for a target; None for named losses and numbers."""
        losses = [self._by_target.get(column), *(applied.loss for applied in self._applied)]
        loss = next((loss for loss in losses if loss is not None and loss.own is not None), None)
        if loss is None or "int" not in data.spec(column).dtype:
            return None
        backends = (backend for backend in registry().backends_in_use if isinstance(backend, Compute))
        takes_classes = any((takes := backend.loss_targets(loss)) and takes.kind == "classes" for backend in backends)
        return int(data.array(column).max()) + 1 if takes_classes else None

    def applied(self, graph: ModelGraph) -> tuple[AppliedLoss, ...]:
        """Return the losses of the phase over a graph with one node and one feature set.

        Raises:
            PhaseError: There are several, and the model has no outputs with these names.
        """
        (label,), (node,) = graph.feature_sets, graph.nodes
        missing = [
            name
            for name in self._by_target
            if len(self._by_target) > 1 and f"{node}.{name}" not in graph.shapes.outputs[node]
        ]
        if missing:
            names, outputs = (
                [*self._by_target],
                [output.partition(".")[2] or "one" for output in graph.shapes.outputs[node]],
            )
            raise PhaseError(
                f"fit: loss has {listed(self._by_target)}, but the model has no output {missing[0]!r}",
                available=f"outputs: {listed(outputs)}",
                hint=f"return a dict with these keys from the model, or name its outputs in order: outputs={names}",
            )
        several = len(self._by_target) > 1
        return self._applied or tuple(
            AppliedLoss(
                loss, on="model", inputs=(f"outputs.{name}" if several else "outputs", f"{label}.{name}"), label=name
            )
            for name, loss in self._by_target.items()
        )


def _loss(loss: Any) -> Loss:
    return loss if isinstance(loss, Loss) else Loss(loss)
