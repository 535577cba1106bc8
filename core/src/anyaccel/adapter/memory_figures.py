"""MemoryFigures: what a backend may say of the memory that a phase will need, for plans."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from anyaccel.capability import Capability
from anyaccel.device import Device
from anyaccel.segment import Segment, TensorSpec


class MemoryFigures(Capability):
    """Capability: memory of models and steps before anything is placed. A plan says `not covered` without it."""

    allocates: ClassVar[bool] = False
    """Whether `step_memory` allocates what a step does, in host memory; plans leave it out where that is much."""

    @abstractmethod
    def buffers(self, model: Any) -> Mapping[str, TensorSpec]:
        """Spec of every buffer of a built model, by name; shapes are whole, there is no batch."""

    def step_memory(
        self, segment: Segment, batch_size: int, n_microbatches: int = 1, n_steps: int = 2
    ) -> Mapping[Device, int] | None:
        """Bytes that a step takes on each device of a segment at its peak; None, the default, where it is not known.

        Of a training step where the segment has groups, else of a forward pass. Parameters, buffers, optimizer state
        and columns do not count; gradients, activations and temporary copies do. Devices need not be here, and nothing
        that the segment holds changes.

        Args:
            segment: its models are where they are, and not where its operations say.
            batch_size: rows of a step.
            n_microbatches: in how many parts they are computed.
            n_steps: steps of an epoch; fewer may be looked at where more take no more.
        """
        return None
