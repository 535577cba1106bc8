"""Losses at their place: what each is called with, in the form in which it is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from anyaccel.errors import ColumnError, SpecError
from anyaccel.graph import input_columns as cols
from anyaccel.graph.nodes import Node
from anyaccel.graph.plan import Assignment
from anyaccel.graph.shape_inference import Shapes
from anyaccel.registry import Registry
from anyaccel.segment import LossTerm, TensorSpec
from anyaccel.specs import AppliedLoss, Loss, Optimizer

_SYMMETRIC = ("mse", "mae")


def check_accepted(label: str, recipe: Loss | Optimizer, framework: str, found: Registry) -> None:
    """Make sure that a node's framework can build a recipe.

    Raises:
        SpecError: it cannot.
    """
    refusal = found.computing(framework).unsupported_reason(recipe)
    if refusal:
        what = "loss" if isinstance(recipe, Loss) else "optimizer"
        raise SpecError(
            f"node {label!r} is of {framework}, which does not take the {what} {recipe.name!r}: {refusal}",
            hint=f"use a named {what}, or one of {framework}'s own",
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
            ColumnError, ShapeError, SpecError: what it is called with is not there, does not fit, or is not clear.
        """
        check_accepted(loss.on, loss.loss, self._shapes.frameworks[loss.on], self._found)
        given = {text: self._outputs(loss, text) for text in loss.inputs}
        if loss.loss.own is None:
            self._check_named(loss, given)
        first = next((names[0] for names in given.values() if names), self._shapes.outputs[loss.on][0])
        inputs = tuple(
            name
            for text in loss.inputs
            for name in given[text] or (self._target(loss, text, self._shapes.specs[first]),)
        )
        return LossTerm(loss.label, loss.on, loss.loss, inputs, self._assigned[loss.on].device, loss.weight)

    def _outputs(self, loss: AppliedLoss, text: str) -> tuple[str, ...]:
        """The outputs that a text names: `outputs`, `outputs.NAME`, a label or `label.NAME`; none if it is a column."""
        own = f"{loss.on}.{text.partition('.')[2]}" if text.startswith("outputs.") else text
        if text == "outputs" or own in self._nodes:
            return self._shapes.outputs[loss.on if text == "outputs" else own]
        if own in self._shapes.specs and own.partition(".")[0] in self._nodes:
            return (own,)
        if text == "targets" or cols.named_column(text, self._nodes) is not None:
            return ()
        raise ColumnError(
            f"the loss on {loss.on!r} takes {text!r}, which is nothing in this graph",
            available="outputs, targets, " + ", ".join(self._shapes.specs),
            hint="use one of these names",
        )

    def _check_named(self, loss: AppliedLoss, given: Mapping[str, tuple[str, ...]]) -> None:
        if len(loss.inputs) != 2:
            raise SpecError(
                f"{loss.loss.name} on {loss.on!r} compares two values, and is given {len(loss.inputs)}",
                hint="write inputs=['outputs', 'targets']",
            )
        several = next((names for names in given.values() if len(names) > 1), ())
        if several:
            raise SpecError(
                f"{loss.loss.name} on {loss.on!r}: {several[0].partition('.')[0]!r} has several outputs",
                available=", ".join(several),
                hint="write inputs=['outputs.NAME', 'targets']",
            )
        first, second = (given[text] for text in loss.inputs)
        if not first and loss.loss.name not in _SYMMETRIC:
            raise SpecError(
                f"{loss.loss.name} on {loss.on!r} is called with {loss.inputs[0]!r} first, which is no output",
                hint="write inputs=['outputs', 'targets'], in this order",
            )
        if first and second:
            specs = self._shapes.specs
            cols.check_outputs(loss, specs[first[0]], specs[second[0]], second[0])

    def _target(self, loss: AppliedLoss, text: str, output: TensorSpec) -> str:
        named = None if text == "targets" else cols.named_column(text, self._nodes)
        chosen = named or cols.targets_of(loss, self._nodes)
        spec = cols.target_spec(loss, chosen.source, chosen.names, output)
        if cols.is_indices(loss, spec):
            spec = replace(spec, dtype=self._found.computing(self._shapes.frameworks[loss.on]).index_dtype)
        return self._table.want(chosen, spec, self._assigned[loss.on], "targets").name
