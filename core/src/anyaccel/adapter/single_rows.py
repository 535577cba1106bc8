"""SingleRows: capability for models that cannot be trained with a batch of one row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from anyaccel.capability import Capability
from anyaccel.segment import Operation, TensorSpec


class SingleRows(Capability):
    """Capability: models that fail in training with a batch of one row, as batch normalization may."""

    @abstractmethod
    def single_row_reason(self, operation: Operation, inputs: Sequence[TensorSpec]) -> str:
        """Return the framework's error for a training step with one row; `""` if it works, or if that is unknown.

        Args:
            operation: A node that is trained, with a built model, which does not change.
            inputs: Specs of the node's inputs.
        """
