"""Pullback: the backward pass over the losses and outputs of one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from anyaccel_torch.overlapped_exchange import OverlappedExchange


class Pullback:
    """Gives cotangents of inputs for those of outputs, once; see `Program.forward_pullback`.

    Args:
        terms: losses times their factors.
        outputs: of the segment; None where it has none.
        leaves: inputs that have cotangents, by position.
        pulled: positions of the inputs whose cotangents are given.
        exchange: of the gradients while they are computed; None for none.
        translate: translates errors of the pass.
    """

    def __init__(
        self,
        terms: list[Tensor],
        outputs: list[Tensor | None],
        leaves: dict[int, Tensor],
        pulled: Sequence[int],
        exchange: OverlappedExchange | None,
        translate: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._terms, self._outputs, self._leaves = terms, outputs, leaves
        self._pulled, self._exchange, self._translate = pulled, exchange, translate

    def __call__(self, cotangents: Sequence[Any]) -> tuple[Tensor | None, ...]:
        """The cotangents of inputs; gradients are accumulated into the parameters."""
        roots: list[tuple[Tensor | None, Any]] = [(term, None) for term in self._terms]
        roots += [pair for pair in zip(self._outputs, cotangents, strict=True) if pair[1] is not None]
        live = [(root, start) for root, start in roots if root is not None and root.requires_grad]
        del roots
        try:
            with self._translate("the pullback"):
                self._backward(live)
                return tuple(_cotangent(self._leaves.get(i)) for i in self._pulled)
        finally:  # an error's traceback keeps this object and its frames, and with them the autograd graph
            for held in (self._terms, self._outputs, self._leaves, live):
                held.clear()

    def _backward(self, roots: Sequence[tuple[Tensor, Any]]) -> None:
        if self._exchange is not None:
            self._exchange.begin_pass()
        if roots:
            torch.autograd.backward([root for root, _ in roots], [start for _, start in roots])
        if self._exchange is not None:
            self._exchange.end_pass()


def _cotangent(leaf: Tensor | None) -> Tensor | None:
    """The gradient that reached an input: zeros if none did, None if there was no input."""
    return torch.zeros_like(leaf) if leaf is not None and leaf.grad is None else getattr(leaf, "grad", None)
