"""Losses at their place: what each is called with, in the form in which it is compared."""

from __future__ import annotations

from collections.abc import Mapping

from anyaccel.data import FeatureSet, joined_spec
from anyaccel.errors import ColumnError, RecipeError
from anyaccel.graph import columns as cols
from anyaccel.graph.nodes import Node
from anyaccel.graph.plan import Assignment
from anyaccel.graph.shapes import Shapes
from anyaccel.recipes import AppliedLoss, Loss, Optimizer
from anyaccel.registry import Registry
from anyaccel.segment import LossTerm, TensorSpec


def check_accepted(label: str, recipe: Loss | Optimizer, framework: str, found: Registry) -> None:
    """Make sure that a node's framework can build a recipe.

    Raises:
        RecipeError: it cannot.
    """
    refusal = found.computing(framework).refuses(recipe)
    if refusal:
        what = "loss" if isinstance(recipe, Loss) else "optimizer"
        raise RecipeError(
            f"node {label!r} is of {framework}, which does not take the {what} {recipe.name!r}: {refusal}",
            remedy=f"use a named {what}, or one of {framework}'s own",
        )


class Terms:
    """Makes the terms of a phase, and asks a column table for the targets that they need."""

    def __init__(
        self,
        nodes: Mapping[str, Node],
        shapes: Shapes,
        assigned: Mapping[str, Assignment],
        table: cols.ColumnTable,
        found: Registry,
    ) -> None:
        self._nodes = nodes
        self._shapes = shapes
        self._assigned = assigned
        self._table = table
        self._found = found

    def term(self, loss: AppliedLoss) -> LossTerm:
        """A loss as a segment has it.

        Raises:
            ColumnError, ShapeError, RecipeError: what it is called with is not there, does not fit, or is not clear.
        """
        check_accepted(loss.on, loss.loss, self._shapes.frameworks[loss.on], self._found)
        if loss.loss.own is None and len(loss.inputs) != 2:
            raise RecipeError(f"{loss.loss.name} on {loss.on!r} compares two values, and is given {len(loss.inputs)}")
        inputs = tuple(name for text in loss.inputs for name in self._input(loss, text))
        return LossTerm(loss.label, loss.on, loss.loss, inputs, self._assigned[loss.on].device, loss.weight)

    def _input(self, loss: AppliedLoss, text: str) -> tuple[str, ...]:
        if text == "outputs":
            return self._shapes.outputs[loss.on]
        column = cols.targets_of(loss, self._nodes) if text == "targets" else cols.named_column(text, self._nodes)
        return self._values(loss, text) if column is None else (self._target(loss, *column),)

    def _values(self, loss: AppliedLoss, text: str) -> tuple[str, ...]:
        """Outputs of a node by name: `outputs.NAME` of the loss's own, a label, or `label.NAME`."""
        name = f"{loss.on}.{text.partition('.')[2]}" if text.startswith("outputs.") else text
        if name in self._nodes:
            return self._shapes.outputs[name]
        if name in self._shapes.specs and name.partition(".")[0] in self._nodes:
            return (name,)
        raise ColumnError(
            f"the loss on {loss.on!r} takes {text!r}, which is nothing in this graph",
            there="outputs, targets, " + ", ".join(self._shapes.specs),
            remedy="use one of these names",
        )

    def _target(self, loss: AppliedLoss, source: FeatureSet, names: tuple[str, ...]) -> str:
        stored = joined_spec(source, names)
        spec = cols.target_spec(loss, stored, self._compared(loss), f"{source.label}.{'+'.join(names)}")
        return self._table.want(source, names, spec, self._assigned[loss.on], "targets").name

    def _compared(self, loss: AppliedLoss) -> TensorSpec:
        """The output that a loss compares its targets with: the first that it names, else its node's only one."""
        named = (f"{loss.on}.{text.partition('.')[2]}" for text in loss.inputs if text.startswith("outputs."))
        name = next((name for name in named if name in self._shapes.specs), None)
        outputs = self._shapes.outputs[loss.on]
        if name is None and len(outputs) > 1 and loss.loss.own is None:
            raise RecipeError(
                f"{loss.loss.name} on {loss.on!r}: the node has several outputs",
                there=", ".join(outputs),
                remedy="write inputs=['outputs.NAME', 'targets']",
            )
        return self._shapes.specs[name or outputs[0]]
