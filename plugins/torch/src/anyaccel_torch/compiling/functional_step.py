"""One training step as a function of values: what goes in is left as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from anyaccel_torch.compiling.spec import Plan, Whole
from anyaccel_torch.compiling.updates import clipped, updated

State = tuple[list[Tensor], list[list[Tensor]], list[Tensor]]
"""The pieces, the slots of each, and the buffers."""

Loop = Callable[[Any, Any, Any], Any]
"""As torch's scan: function of (carry, one of xs), first carry, xs; gives the last carry and the outputs stacked."""


def step(whole: Whole, plan: Plan, state: State, values: list[Tensor], row: Tensor, loop: Loop) -> Any:
    """The state after a step, and its mean losses.

    Args:
        whole: the modules and what is done with them.
        plan: what belongs to this.
        state: of now.
        values: the inputs of one batch.
        row: the numbers of this step [rules, WIDTH].
        loop: how to repeat something, for the parts of a batch.
    """
    pieces, slots, buffers = state
    if plan.parts == 1:
        grads, losses, buffers = _gradients(whole, plan, pieces, buffers, values)
    else:
        grads, losses, buffers = _summed(whole, plan, pieces, buffers, values, loop)
    rules = [plan.rules[piece.rule] for piece in plan.pieces]
    grads = clipped(grads, [(rule.clip, rule.group) for rule in rules])
    new, kept = [], []
    for piece, rule, value, held, grad in zip(plan.pieces, rules, pieces, slots, grads, strict=True):
        found = updated(rule.name, dict(rule.settings), value, held, grad, row[piece.rule])
        new.append(found[0])
        kept.append(found[1])
    return (new, kept, buffers), losses


def _gradients(
    whole: Whole, plan: Plan, pieces: list[Tensor], buffers: list[Tensor], values: list[Tensor]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Gradients, mean losses and new buffers of some rows."""

    def total(pieces: list[Tensor], buffers: list[Tensor], values: list[Tensor]) -> Any:
        held = [buffer.clone() for buffer in buffers]
        given: list[Any] = [v.clone() if i in plan.written else v for i, v in enumerate(values)]
        named = {**_named(plan, pieces), **dict(zip(plan.buffers, held, strict=True))}
        losses = torch.func.functional_call(whole, named, ([*given, *[None] * plan.rest],))
        weighted = [weight * loss for weight, loss in zip(plan.weights, losses, strict=True) if weight]
        whole_loss = weighted[0]
        for other in weighted[1:]:
            whole_loss = whole_loss + other
        return whole_loss, ([loss.detach().clone() for loss in losses], held)

    grads, (_, (losses, held)) = torch.func.grad_and_value(total, has_aux=True)(pieces, buffers, values)
    return grads, losses, held


def _named(plan: Plan, pieces: Sequence[Tensor]) -> dict[str, Tensor]:
    """The parameters by name, as parts of the pieces."""
    named: dict[str, Tensor] = {}
    for piece, value in zip(plan.pieces, pieces, strict=True):
        if len(piece.names) == 1:
            named[piece.names[0]] = value.view(piece.shapes[0])
            continue
        for name, shape, part in zip(piece.names, piece.shapes, torch.split(value, list(piece.sizes)), strict=True):
            named[name] = part.view(shape)
    return named


def _summed(
    whole: Whole, plan: Plan, pieces: list[Tensor], buffers: list[Tensor], values: list[Tensor], loop: Loop
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """As `_gradients`, of equal parts of the rows one after the other: means of gradients and losses."""

    def part(carry: Any, given: list[Tensor]) -> Any:
        sums, held = carry
        grads, losses, held = _gradients(whole, plan, pieces, held, given)
        added = [one + grad / plan.parts for one, grad in zip(sums, grads, strict=True)]
        return (added, [buffer.clone() for buffer in held]), losses

    cut = [value.view(plan.parts, value.shape[0] // plan.parts, *value.shape[1:]) for value in values]
    (grads, held), losses = loop(part, ([torch.zeros_like(piece) for piece in pieces], buffers), cut)
    return grads, [loss.mean() for loss in losses], held


def repeated(function: Callable[[Any, Any], Any], carry: Any, xs: list[Tensor]) -> Any:
    """A `Loop` that writes every repetition down."""
    found: list[list[Tensor]] = []
    for i in range(xs[0].shape[0]):
        carry, outputs = function(carry, [x[i] for x in xs])
        found.append(outputs)
    return carry, [torch.stack(list(column)) for column in zip(*found, strict=True)]
