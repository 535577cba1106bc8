"""StepCosts: capability to measure the work of a step without its devices."""

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
        flops: Floating-point operations of the forward and backward pass, two for each multiplication with an addition;
            only matrix multiplications and convolutions. None if unknown.
        activations: By node, bytes that its forward pass keeps for its backward pass, with its outputs.
    """

    flops: int | None = None
    activations: Mapping[str, int] = field(default_factory=dict)


class StepCosts(Capability):
    """Capability: measure the work of a training step, for `Run.measure_step` and for plans of nodes with `remat`."""

    @abstractmethod
    def step_cost(self, segment: Segment, batch_size: int) -> StepCost:
        """Measure a training step of `batch_size` rows; nothing that the segment holds changes, and no device is used.

        Raises:
            CapabilityError: such models cannot be measured.
        """

    def activations(self, segment: Segment, batch_size: int) -> Mapping[str, int]:
        """Return only the activations of `step_cost`, which may take less time.

        Raises:
            CapabilityError: such models cannot be measured.
        """
        return self.step_cost(segment, batch_size).activations
