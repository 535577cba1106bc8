"""MemoryFigures: capability to predict the memory of a phase, for plans."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from anyaccel.capability import Capability
from anyaccel.device import Device
from anyaccel.segment import Segment, TensorSpec


class MemoryFigures(Capability):
    """Capability: predict the memory of models and steps before anything is placed; without it, a plan says `not
    covered`.
    """

    allocates: ClassVar[bool] = False
    """Whether `step_memory` allocates what a step does, in host memory; plans leave it out where that is much."""

    @abstractmethod
    def buffers(self, model: Any) -> Mapping[str, TensorSpec]:
        """Return the spec of every buffer of a built model, by name; shapes are whole, without a batch."""

    def step_memory(
        self, segment: Segment, batch_size: int, n_microbatches: int = 1, n_steps: int = 2
    ) -> Mapping[Device, int] | None:
        """Return the peak bytes of a step on each device of a segment; None, the default, if unknown.

        This is a training step if the segment has groups, otherwise a forward pass. Gradients, activations and
        temporary copies are counted; parameters, buffers, optimizer state and columns are not. The devices do not have
        to be on this machine, and nothing that the segment holds changes.

        Args:
            segment: The segment; its models are at their current place, not where its operations say.
            batch_size: Rows of a step.
            n_microbatches: Number of parts in which they are computed.
            n_steps: Steps of an epoch; fewer may be examined if more steps need no more memory.
        """
        return None
