"""Loss binding: from an AppliedLoss to a segment's loss term, with its inputs in the form in which it compares them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType

from anyaccel.adapter.optimizers import unmatched_patterns
from anyaccel.backend import ComputingBackend
from anyaccel.data.roles import listed
from anyaccel.errors import ColumnError, ShapeError, SpecError
from anyaccel.formulas import LOSSES, OPTIMIZERS
from anyaccel.graph import input_columns, loss_columns, topology
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.graph.nodes import Node
from anyaccel.graph.plan_entries import Assignment
from anyaccel.graph.shape_inference import Shapes, is_floating
from anyaccel.segment import LossTerm, TensorSpec
from anyaccel.specs import FROM_OUTPUT, Loss, Optimizer


def check_supported(label: str, spec: Loss | Optimizer, backend: ComputingBackend) -> None:
    """Check that a node's backend can build a loss or optimizer.

    Raises:
        SpecError: it cannot.
    """
    if isinstance(spec, Optimizer) and spec.groups and not backend.parameter_groups:
        raise SpecError(
            f"node {label!r}: {backend.framework} does not support groups of parameters, which the optimizer has",
            hint="leave groups out, or give nodes optimizers of their own: ModelNode(..., optimizer=...)",
        )
    reason = backend.unsupported_reason(spec)
    if reason:
        what = "loss" if isinstance(spec, Loss) else "optimizer"
        raise SpecError(
            f"node {label!r}: {backend.framework} does not support the {what} {spec.name!r}: {reason}",
            hint=f"use a named {what}: {', '.join(LOSSES if isinstance(spec, Loss) else OPTIMIZERS)}",
        )


def check_patterns(optimizer: Optimizer, parameters: Sequence[str]) -> None:
    """Check that each pattern of an optimizer's groups is that of a parameter of some node that it trains.

    Raises:
        SpecError: one is not.
    """
    unmatched = unmatched_patterns(optimizer, parameters)
    if unmatched:
        raise SpecError(
            f"optimizer {optimizer.name!r}: no parameter has a name like {unmatched[0]!r}, the pattern of a group",
            available=listed(parameters),
            hint="write a pattern of names, with * for any text: groups={'*bias': {'weight_decay': 0.0}}",
        )


def _check_takes(loss: AppliedLoss, inputs: tuple[str, ...]) -> None:
    """Check that a function takes as many values as the loss has; it would fail in the first step."""
    try:
        inspect.signature(loss.loss.own).bind(*inputs)
    except TypeError as error:
        raise SpecError(
            f"the loss {loss.loss.name!r} on {loss.on!r} is called with {', '.join(inputs)}, and cannot be: {error}",
            hint="write def loss(outputs, targets), or name what it takes in inputs=[...]",
        ) from None


@dataclass(frozen=True, slots=True)
class LossBinder:
    """Makes the loss terms of a phase, and adds the target columns that they need to a column table."""

    nodes: Mapping[str, Node]
    shapes: Shapes
    assigned: Mapping[str, Assignment]
    table: input_columns.ColumnTable

    def term(self, loss: AppliedLoss) -> LossTerm:
        """The term of a loss.

        Raises:
            ColumnError, ShapeError, SpecError: an input does not exist, does not fit, or is ambiguous.
        """
        assignment = self.assigned[loss.on]
        check_supported(loss.on, loss.loss, assignment.backend)
        if loss.loss.own is None and loss.loss.name == FROM_OUTPUT:
            return self._from_output(loss, assignment)
        outputs = {text: self._outputs(loss, text) for text in loss.inputs}
        if loss.loss.own is None:
            self._check_named(loss, outputs)
        first = next((names[0] for names in outputs.values() if names), self.shapes.outputs[loss.on][0])
        spec = self.shapes.specs[first]
        positions = loss_columns.positions(loss, spec) if loss.loss.own is None else ()
        loss_columns.check_weighing(loss, spec, assignment.backend, by_column=not outputs[loss.inputs[-1]])
        inputs = tuple(name for text in loss.inputs for name in outputs[text] or (self._target(loss, text, spec),))
        if isinstance(loss.loss.own, FunctionType):
            _check_takes(loss, inputs)
        return LossTerm(
            label=loss.label,
            on=loss.on,
            loss=loss.loss,
            inputs=(*inputs, *self._weights(loss, spec, positions)),
            device=assignment.device,
            weight=loss.weight,
            elements=math.prod(positions),
        )

    def _weights(self, loss: AppliedLoss, output: TensorSpec, positions: tuple[int, ...] | None) -> Iterator[str]:
        """The columns that weigh a loss, which `positions` has for each sample; None for any shape."""
        for text in loss.weights:
            chosen = input_columns.named_column(text, self.nodes)
            if chosen is None:
                raise ColumnError(
                    f"the loss on {loss.on!r} is weighted by {text!r}, which is not a column of this graph",
                    available=", ".join(f"{label}.COLUMN" for label in topology.feature_sets(self.nodes.values())),
                    hint="write 'FEATURE_SET.COLUMN'",
                )
            spec = loss_columns.weight_spec(loss, chosen, output, positions)
            yield self.table.want(chosen, spec, self.assigned[loss.on], "weights").name

    def _from_output(self, loss: AppliedLoss, assignment: Assignment) -> LossTerm:
        """A loss that the node's model computes; it is weighted by the rows of the node's first input."""
        name = f"{loss.on}.{loss.inputs[0].partition('.')[2]}"
        name = self.shapes.aliases.get(name, name)
        whole = self.shapes.batch_values(loss.on)
        known = [*whole, *(each for each in self.shapes.specs if each.startswith(f"{loss.on}."))]
        if name not in (*known, loss.on):
            raise ColumnError(
                f"the loss on {loss.on!r} is the output {name!r}, which its model does not return",
                available=", ".join(known) or f"{loss.on} (its only output)",
                hint="name an output; a model that computes a loss only if it gets targets needs them as an input",
            )
        spec = whole[name].spec if name in whole else self.shapes.specs[name]
        if spec.shape or not is_floating(spec.dtype):
            raise ShapeError(
                f"the loss on {loss.on!r} is the output {name!r}, {spec}, which is no loss",
                available="a floating scalar for a batch, or for each sample",
                hint="let the model return the mean over the batch",
            )
        loss_columns.check_weighing(loss, spec, assignment.backend, by_column=True)
        inputs = (name, self.shapes.inputs[loss.on][0], *self._weights(loss, spec, None))
        return LossTerm(
            label=loss.label, on=loss.on, loss=loss.loss, inputs=inputs, device=assignment.device, weight=loss.weight
        )

    def _outputs(self, loss: AppliedLoss, text: str) -> tuple[str, ...]:
        """The outputs that an input names: `outputs`, `outputs.NAME`, a label or `label.NAME`; none for a column."""
        name = f"{loss.on}.{text.partition('.')[2]}" if text.startswith("outputs.") else text
        name = self.shapes.aliases.get(name, name)
        if text == "outputs" or name in self.nodes:
            return self.shapes.outputs[loss.on if text == "outputs" else name]
        if name in self.shapes.specs and name.partition(".")[0] in self.nodes:
            return (name,)
        if text == "targets" or input_columns.named_column(text, self.nodes) is not None:
            return ()
        raise ColumnError(
            f"the loss on {loss.on!r} has the input {text!r}, which is nothing in this graph",
            available="outputs, targets, " + ", ".join(self.shapes.specs),
            hint="use one of these names",
        )

    def _check_named(self, loss: AppliedLoss, outputs: Mapping[str, tuple[str, ...]]) -> None:
        what = f"{loss.loss.name} on {loss.on!r}"
        if len(loss.inputs) != 2:
            raise SpecError(
                f"{what} compares two values, got {len(loss.inputs)} inputs", hint="write inputs=['outputs', 'targets']"
            )
        several = next((names for names in outputs.values() if len(names) > 1), ())
        if several:
            raise SpecError(
                f"{what}: {several[0].partition('.')[0]!r} has several outputs",
                available=", ".join(several),
                hint="write inputs=['outputs.NAME', 'targets']",
            )
        first, second = (outputs[text] for text in loss.inputs)
        if not first and not LOSSES[loss.loss.name].symmetric:
            raise SpecError(
                f"{what}: its first input, {loss.inputs[0]!r}, is not an output",
                hint="write inputs=['outputs', 'targets'], in this order",
            )
        if first and second:
            specs = self.shapes.specs
            loss_columns.check_outputs(loss, specs[first[0]], specs[second[0]], second[0])

    def _target(self, loss: AppliedLoss, text: str, output: TensorSpec) -> str:
        assignment = self.assigned[loss.on]
        named = None if text == "targets" else input_columns.named_column(text, self.nodes)
        chosen = named or input_columns.targets_of(loss, self.nodes)
        is_own = loss.loss.own is not None and text == loss.inputs[1]
        takes = assignment.backend.loss_targets(loss.loss) if is_own else None
        spec = loss_columns.target_spec(loss, chosen, output, takes)
        if loss_columns.is_indices(loss, spec):
            spec = replace(spec, dtype=assignment.backend.index_dtype)
        elif loss.loss.own is not None:
            spec = replace(spec, dtype=assignment.backend.loaded_dtype(spec.dtype))
        return self.table.want(chosen, spec, assignment, "targets").name
