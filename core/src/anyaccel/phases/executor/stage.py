"""Pipeline stage: a segment with the program that computes it, and the losses that it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anyaccel.backend import ComputingBackend, Program
from anyaccel.device import Device
from anyaccel.segment import Segment

LossPairs = dict[str, tuple[Any, Any]]
"""Losses as (sum, weight), by label."""


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """A segment and its program. `has_gradient` says whether gradients flow through it."""

    segment: Segment
    backend: ComputingBackend
    program: Program
    has_gradient: bool

    @property
    def in_train_mode(self) -> bool:
        """Whether it is computed in training mode; dropout is random even where there is no parameter."""
        return self.has_gradient or any(op.trainable and op.model is not None for op in self.segment.operations)

    def device_of(self, name: str) -> Device:
        """The device of one of its outputs."""
        return next(operation.device for operation in self.segment.operations if name in operation.outputs)


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses still on their devices: means [n_steps or more, labels] of equal steps, or pairs of a single step.

    Attributes:
        backend: whose tensors they are.
        batch_size: rows of each step; 0 for pairs, which have weights of their own.
        labels: of the losses.
        means: of several steps, and after them the weights of the losses in `weighted`; None for pairs.
        n_steps: how many rows of `means` count.
        pairs: sum and weight of one step, by label; None for means.
        weighted: labels of the losses that weigh rows or positions; others weigh as much as their batch.
        elements: by label, how many elements of a row a loss is a mean over, as pairs count these; 1 by default.
    """

    backend: ComputingBackend
    batch_size: int
    labels: tuple[str, ...]
    means: Any = None
    n_steps: int = 0
    pairs: LossPairs | None = None
    weighted: tuple[str, ...] = ()
    elements: Mapping[str, int] = field(default_factory=dict)

    def is_ready(self) -> bool:
        """Whether they are computed, without waiting; pairs count as such."""
        return self.means is None or self.backend.is_ready(self.means)
