"""StepCosts: what a backend may say of the work of a step, measured without its devices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from anyaccel.capability import Capability
from anyaccel.segment import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """The work of one step.

    Attributes:
        flops: floating-point operations of the forward and backward pass, two for each multiplication with an addition;
            of matrix products and convolutions alone. None where that is not known.
        activations: by node, bytes that its forward pass leaves until its backward pass, with its outputs.
    """

    flops: int | None = None
    activations: Mapping[str, int] = field(default_factory=dict)


class StepCosts(Capability):
    """Capability: the work of a training step. `Run.measure_step` asks for it, and plans of nodes with `remat`."""

    @abstractmethod
    def step_cost(self, segment: Segment, batch_size: int) -> StepCost:
        """Of a training step of so many rows; nothing that the segment holds changes, and no device is used.

        Raises:
            CapabilityError: it cannot be told of such models.
        """

    def activations(self, segment: Segment, batch_size: int) -> Mapping[str, int]:
        """The activations of `step_cost` alone, which it may tell in less time.

        Raises:
            CapabilityError: they cannot be told of such models.
        """
        return self.step_cost(segment, batch_size).activations
