"""A training step as a function of values; arguments are not changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from anyaccel_torch.compiling.device_loss_scale import scale_after
from anyaccel_torch.compiling.spec import SegmentModule, StepSpec
from anyaccel_torch.optimizers import updated
from anyaccel_torch.replaced_tensors import call_with

State = tuple[list[Tensor], list[list[Tensor]], list[Tensor], list[Tensor]]
"""The blocks, the optimizer slots of each, the buffers, and the array of `DeviceLossScale` where losses are scaled."""

Loop = Callable[[Any, Any, Any], Any]
"""As torch's scan: function of (carry, one of xs), first carry, xs; gives the last carry and the outputs stacked."""


def bound_step(
    module: SegmentModule, spec: StepSpec, xs: list[Tensor], loop: Loop
) -> tuple[Callable[[State, list[Tensor]], Any], list[Tensor]]:
    """Return a step as a function of the state and one element of each of `xs`, and these `xs`.

    Args:
        module: Modules of the segment.
        spec: Everything else that a step does.
        xs: Inputs of many steps, and the coefficients of all rules [steps, ...].
        loop: Function that repeats a function over micro-batches.
    """
    if spec.loss_scale is None:
        return lambda state, x: step(module, spec, state, x[:-1], x[-1], loop), xs
    table = xs[-1]

    def body(state: State, x: list[Tensor]) -> Any:
        n_counted = x[-1] - state[3][0][2].long()  # optimizers count no step that is skipped
        return step(module, spec, state, x[:-1], table.index_select(0, n_counted.reshape(1))[0], loop)

    return body, [*xs[:-1], torch.arange(table.shape[0], device=table.device)]


def step(module: SegmentModule, spec: StepSpec, state: State, values: list[Tensor], scalars: Tensor, loop: Loop) -> Any:
    """Return the state after a step, and its mean losses.

    Args:
        module: Modules of the segment.
        spec: Everything else that a step does.
        state: Current state.
        values: Inputs of one batch.
        scalars: Coefficients of all rules in this step, in sequence.
        loop: Function that repeats a function over micro-batches.
    """
    blocks, slots, buffers, scale = state
    gradients = _gradients if spec.n_microbatches == 1 else partial(_accumulated_gradients, loop=loop)
    grads, losses, buffers = gradients(module, spec, (blocks, slots, buffers, scale), values)
    if spec.loss_scale is None:
        return (*_stepped(spec, blocks, slots, grads, scalars), buffers, scale), losses
    inverse = 1 / scale[0][0]
    grads = [(grad * inverse).to(grad.dtype) for grad in grads]
    finite = torch.stack([grad.isfinite().all() for grad in grads]).all()
    after = _stepped(spec, blocks, slots, grads, scalars)
    kept = tree_map(partial(torch.where, finite), after, (blocks, slots))
    return (*kept, buffers, [scale_after(spec.loss_scale, scale[0], finite)]), losses


def _stepped(
    spec: StepSpec, blocks: list[Tensor], slots: list[list[Tensor]], grads: list[Tensor], scalars: Tensor
) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Return blocks and slots after an optimizer step with these gradients."""
    rules = [spec.rules[block.rule] for block in spec.blocks]
    grads = _clipped(grads, [(rule.clip_norm, rule.group) for rule in rules])
    limits = [rule.clip_value for rule in rules]
    grads = [g if limit is None else g.clamp(-limit, limit) for g, limit in zip(grads, limits, strict=True)]
    new_blocks, new_slots = [], []
    numbers: list[dict[str, Tensor]] = []
    for rule in spec.rules:
        first = sum(map(len, numbers))
        numbers.append({name: scalars[first + i] for i, name in enumerate(rule.coefficients)})
    for block, rule, value, held, grad in zip(spec.blocks, rules, blocks, slots, grads, strict=True):
        wide = torch.promote_types(value.dtype, torch.float32)
        coefficients = {name: number.to(wide) for name, number in numbers[block.rule].items()}
        named = dict(zip(rule.slots, held, strict=True))
        new, kept = updated(rule.optimizer, dict(rule.settings), value, named, grad, coefficients)
        new_blocks.append(new)
        new_slots.append([kept[name] for name in rule.slots])
    return new_blocks, new_slots


def _gradients(
    module: SegmentModule, spec: StepSpec, state: State, values: list[Tensor]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return gradients of the blocks, times the loss scale; mean losses and new buffers."""
    blocks, _, buffers, scale = state

    def total(blocks: list[Tensor], buffers: list[Tensor], values: list[Tensor]) -> Any:
        new_buffers = [buffer.clone() for buffer in buffers]
        inputs: list[Any] = [v.clone() if i in spec.mutated else v for i, v in enumerate(values)]
        named = {**_named_parameters(spec, blocks), **dict(zip(spec.buffers, new_buffers, strict=True))}
        losses = call_with(module, named, dict(spec.places), [*inputs, *[None] * spec.n_computed])
        result: Any = None
        for weight, loss in zip(spec.weights, losses, strict=True):
            if weight:
                weighted = weight * loss * scale[0][0].to(loss.dtype) if scale else weight * loss
                result = weighted if result is None else result + weighted
        return result, ([loss.detach().clone() for loss in losses], new_buffers)

    if spec.recomputes:  # by the tape of autograd: torch recomputes marked values only in such graphs
        leaves = [block.detach().requires_grad_() for block in blocks]
        with torch.enable_grad():
            loss, (losses, new_buffers) = total(leaves, buffers, values)
            taped = torch.autograd.grad(loss, leaves)
        return list(taped), losses, [buffer.detach() for buffer in new_buffers]
    grads, (_, (losses, new_buffers)) = torch.func.grad_and_value(total, has_aux=True)(blocks, buffers, values)
    return grads, losses, new_buffers


def _named_parameters(spec: StepSpec, blocks: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the parameters by name, as views of the blocks."""
    named: dict[str, Tensor] = {}
    for block, value in zip(spec.blocks, blocks, strict=True):
        if len(block.names) == 1:
            named[block.names[0]] = value.view(block.shapes[0])
            continue
        for name, shape, part in zip(block.names, block.shapes, torch.split(value, list(block.sizes)), strict=True):
            named[name] = part.view(shape)
    return named


def _accumulated_gradients(
    module: SegmentModule, spec: StepSpec, state: State, values: list[Tensor], *, loop: Loop
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return `_gradients` of equal micro-batches in sequence: means of gradients and losses."""
    n_parts, (blocks, slots, buffers, scale) = spec.n_microbatches, state

    def accumulate(carry: Any, microbatch: list[Tensor]) -> Any:
        sums, held = carry
        grads, losses, held = _gradients(module, spec, (blocks, slots, held, scale), microbatch)
        added = [total + grad / n_parts for total, grad in zip(sums, grads, strict=True)]
        return (added, [buffer.clone() for buffer in held]), losses

    parts = [value.view(n_parts, value.shape[0] // n_parts, *value.shape[1:]) for value in values]
    (grads, held), losses = loop(accumulate, ([torch.zeros_like(block) for block in blocks], buffers), parts)
    return grads, [loss.mean() for loss in losses], held


def unrolled_loop(function: Callable[[Any, Any], Any], carry: Any, xs: list[Tensor]) -> Any:
    """Return a `Loop` that writes every repetition down."""
    outputs: list[list[Tensor]] = []
    for i in range(xs[0].shape[0]):
        carry, output = function(carry, [x[i] for x in xs])
        outputs.append(output)
    return carry, [torch.stack(list(column)) for column in zip(*outputs, strict=True)]


def _clipped(grads: Sequence[Tensor], groups: Sequence[tuple[float | None, int]]) -> list[Tensor]:
    """Return gradients scaled so that those of one group have at most its norm; `groups` has norm and group of each."""
    squares: dict[int, Tensor] = {}
    for grad, (norm, group) in zip(grads, groups, strict=True):
        if norm is not None:
            square = grad.to(torch.promote_types(grad.dtype, torch.float32)).square().sum()
            squares[group] = squares[group] + square if group in squares else square
    clipped = []
    for grad, (norm, group) in zip(grads, groups, strict=True):
        factor = None if norm is None else torch.clamp(norm / (squares[group].sqrt() + 1e-6), max=1.0)
        clipped.append(grad if factor is None else (grad * factor).to(grad.dtype))
    return clipped
