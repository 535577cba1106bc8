"""Links: a segment with the program that computes it, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anyaccel.backend import ComputingBackend, Program
from anyaccel.device import Device
from anyaccel.segment import Segment

Pairs = dict[str, tuple[Any, Any]]
"""Losses as (sum, weight), by label."""


@dataclass(frozen=True, slots=True)
class Link:
    """A segment at work. `live` says whether gradients flow through it."""

    segment: Segment
    backend: ComputingBackend
    program: Program
    live: bool

    @property
    def trains(self) -> bool:
        """Whether it is computed in training mode: dropout without a parameter in sight is random, too."""
        return self.live or any(op.trainable and op.model is not None for op in self.segment.operations)

    def device_of(self, name: str) -> Device:
        """The device on which one of its outputs comes."""
        return next(operation.device for operation in self.segment.operations if name in operation.outputs)


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses still on their devices: means [count or more, labels] of `count` equal steps, or pairs of one step."""

    backend: ComputingBackend
    batch: int
    labels: tuple[str, ...]
    means: Any = None
    count: int = 0
    pairs: Pairs | None = None

    def is_ready(self) -> bool:
        """Whether they are computed; those of one step count as such."""
        return self.means is None or self.backend.is_ready(self.means)
