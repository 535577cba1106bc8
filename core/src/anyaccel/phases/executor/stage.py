"""Pipeline stage: a segment with the program that computes it, and the losses that it gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

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


class StepReplicas(Protocol):
    """What the replicas of a step exchange; called by all of them in the same order."""

    sharded: bool
    """Whether gradients are summed over the replicas as soon as they are computed."""
    multi_step: bool
    """Whether a program of theirs may take several steps in one call, for which nothing is exchanged beside it."""

    def begin_step(self, sizes: Sequence[int]) -> None:
        """Where they are summed so: a step begins, in parts of so many rows."""

    def begin_reading(self) -> None:
        """Where parameters are divided: models are read next, for which all replicas gather them."""

    def loss_weights(
        self, inputs: Sequence[tuple[PipelineStage, Sequence[Any]]], n_rows: float
    ) -> list[dict[str, Any]]:
        """As `ReplicaGroup.loss_weights`, for stages with the inputs that their losses are weighed by."""

    def overlap_backward(self, stages: Sequence[PipelineStage]) -> list[PipelineStage]:
        """As `ReplicaGroup.overlap_backward`, for stages."""

    def expect_gradients(self, weight: float, factor: float) -> None:
        """As `ReplicaGroup.expect_gradients`, for all stages that `overlap_backward` gave."""

    def average(self, stages: Iterable[PipelineStage], weight: float) -> None:
        """Replace the gradients of these stages by their means over all replicas, weighted by rows."""

    def end_step(self) -> None:
        """The step is done."""
