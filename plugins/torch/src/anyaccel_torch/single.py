"""A segment's steps taken apart: forward, pullback and update, one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.backend import MultiStepProgram
from anyaccel_torch.error_translation import telling
from anyaccel_torch.forward_plan import Wiring
from anyaccel_torch.losses import BoundLoss
from anyaccel_torch.optimizers import GroupOptimizer
from anyaccel_torch.state_guard import Lent, Modes

Losses = dict[str, tuple[Tensor, Tensor]]


class OneByOne(MultiStepProgram):
    """What a program does step by step when others take part; it is given its parts by `TorchProgram`."""

    _wiring: Wiring
    _losses: list[BoundLoss]
    _outputs: list[int]
    _pulled: list[int]
    _rest: list[None]
    _modules: dict[nn.Module, bool]
    _modes: Modes
    _groups: list[GroupOptimizer]
    _trained: list[nn.Parameter]
    _lent: Lent

    @torch.no_grad()
    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], Losses]:
        """As `Program.forward`; an input that a module writes to is copied before."""
        self._enter(training=False)
        with telling(f"a batch of segment {self.segment.label!r}"):
            values = self._computed(inputs, training=False)
            return tuple(values[i] for i in self._outputs), self._judged(values)

    def _judged(self, values: Sequence[Any]) -> Losses:
        """The losses whose inputs there are."""
        found: Losses = {}
        for loss in self._losses:
            if not any(values[i] is None for i in loss.slots):
                found[loss.label] = loss.parts(values)
        return found

    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], Losses, Callable[[Sequence[Any]], tuple[Any, ...]]]:
        """As `Program.forward_pullback`; the pullback is one backward pass over total loss and outputs."""
        self._enter(training=True)
        leaves = {i: inputs[i].detach().requires_grad_() for i in self._pulled if inputs[i] is not None}
        with telling(f"a batch of segment {self.segment.label!r}"):
            # torch forbids a module to write into a leaf, as an in-place activation would: it gets a copy
            given = [leaves[i].clone() if i in leaves else tensor for i, tensor in enumerate(inputs)]
            values = self._computed(given, training=True)
            losses = self._judged(values)
            there = [loss for loss in self._losses if loss.label in losses]
            terms = [losses[loss.label][0] * self._factor(loss.label, loss.weight, losses, scale) for loss in there]
        outputs = [values[i] for i in self._outputs]

        def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
            seeds = [(term, None) for term in terms]
            seeds += [pair for pair in zip(outputs, cotangents, strict=True) if pair[1] is not None]
            seeds = [pair for pair in seeds if pair[0] is not None and pair[0].requires_grad]
            try:
                with telling(f"the pullback of segment {self.segment.label!r}"):
                    if seeds:
                        torch.autograd.backward([root for root, _ in seeds], [start for _, start in seeds])
                    return tuple(_cotangent(leaves.get(i)) for i in self._pulled)
            finally:  # an error keeps this function, and with it the graph, though its frame is cleared
                for held in (terms, outputs, leaves):
                    held.clear()

        detached = {label: (total.detach(), weight) for label, (total, weight) in losses.items()}
        return tuple(output if output is None else output.detach() for output in outputs), detached, pullback

    def _factor(self, label: str, weight: float, losses: Losses, scale: Mapping[str, Any] | None) -> Any:
        return weight / losses[label][1] if scale is None else scale[label]

    def _computed(self, inputs: Sequence[Any], *, training: bool) -> list[Any]:
        """All values. An input that a module writes to is copied before: it belongs to somebody else."""
        with self._lent.given(inputs, training=training) as given:
            values = [*given, *self._rest]
            if any(tensor is None for tensor in inputs):
                self._wiring.partly(values)
            else:
                for run in self._wiring.runs:
                    run(values)
        return values

    def _enter(self, *, training: bool) -> None:
        """Set modes where they differ: another program over the same modules may have set them meanwhile."""
        for module, trained in self._modules.items():
            self._modes.enter(module, training=training and trained)

    # -- gradients -------------------------------------------------------------------------------------------------

    def grad_stats(self) -> dict[str, tuple[Any, Any]]:
        """As `Program.grad_stats`; each on the device of the group's first parameter."""
        return {group.name: group.stats() for group in self._groups}

    @torch.no_grad()
    def clip_factor(self, limit: float, squares: Sequence[Any]) -> Any:
        """As `Program.clip_factor`; nothing is waited for."""
        total = squares[0]
        for square in squares[1:]:
            total = total + square.to(total.dtype)
        return torch.clamp(limit / (total.sqrt() + 1e-6), max=1.0)

    def map_gradients(self, fn: Callable[[Any], Any]) -> None:
        """As `Program.reduce`; a parameter that no loss reached has no gradient, and `fn` is not called for it."""
        with telling(f"the gradients of segment {self.segment.label!r}"):
            for parameter in self._trained:
                if parameter.grad is not None:
                    parameter.grad = fn(parameter.grad)

    def optimizer_step(self, scale: Mapping[str, Any] | None = None) -> None:
        """As `Program.apply`; does not clip, which whoever gives `scale` has done."""
        with telling(f"an optimizer step of segment {self.segment.label!r}"):
            for group in self._groups:
                group.apply(None if scale is None else scale.get(group.name))
        self.zero_grad()

    def zero_grad(self) -> None:
        """As `Program.discard`."""
        for parameter in self._trained:
            parameter.grad = None


def _cotangent(leaf: Tensor | None) -> Tensor | None:
    """What came back to an input: zeros where nothing did, None where there was no input."""
    return torch.zeros_like(leaf) if leaf is not None and leaf.grad is None else getattr(leaf, "grad", None)
