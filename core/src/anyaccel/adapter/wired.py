"""How the values of a segment hang together: what operations and losses are given, and what goes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyaccel.adapter.layout import Layout
from anyaccel.adapter.losses import loss_function
from anyaccel.adapter.ops import ArrayOps, Judged
from anyaccel.adapter.values import Values
from anyaccel.segment import LossTerm, Operation, Segment


class Wired:
    """A segment's operations and losses over `Values`.

    Attributes:
        segment: what is computed.
        ops: by which framework.
        layout: where values and parameters are.

    Raises:
        RecipeError: a loss that the framework lacks.
        GraphError: two different models, one of which learns, share a parameter.
    """

    def __init__(self, segment: Segment, ops: ArrayOps, layout: Layout | None = None) -> None:
        self.segment = segment
        self.ops = ops
        self.layout = Layout(segment, ops) if layout is None else layout
        self._losses = [(term, loss_function(ops, term)) for term in segment.losses]

    def begin(self, inputs: Sequence[Any]) -> Values:
        """The values of a step so far: its inputs, None for those that it lacks."""
        values = Values(self.ops, self.layout.home)
        for name, value in zip(self.segment.inputs, inputs, strict=True):
            values.put(name, value)
        return values

    def given(self, op: Operation, values: Values) -> tuple[Any, ...] | None:
        """An operation's inputs, on its device; None if this step lacks one, as it then does the outputs."""
        if values.lacks(op.inputs):
            self.enter(op, (None,) * len(op.outputs), values)
            return None
        return tuple(values.on(name, op.device) for name in op.inputs)

    def enter(self, op: Operation, outputs: Sequence[Any], values: Values) -> None:
        """Add what an operation gave."""
        for name, output in zip(op.outputs, outputs, strict=True):
            values.put(name, output)

    def outputs(self, values: Values) -> tuple[Any, ...]:
        """What other segments take; None for what this step lacks."""
        return tuple(values.home(name) for name in self.segment.outputs)

    def judge(self, values: Values) -> list[tuple[LossTerm, Judged]]:
        """Every loss whose inputs there are, on its device."""
        return [
            (term, loss([values.on(name, term.device) for name in term.inputs]))
            for term, loss in self._losses
            if not values.lacks(term.inputs)
        ]


def pairs(judged: Sequence[tuple[LossTerm, Judged]]) -> dict[str, tuple[Any, Any]]:
    """Losses as (sum, weight), by label."""
    return {term.label: (loss.sum, loss.weight) for term, loss in judged}
