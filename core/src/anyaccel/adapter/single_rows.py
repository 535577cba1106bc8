"""SingleRows: what a backend may say of models that cannot be trained with a batch of one row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from anyaccel.capability import Capability
from anyaccel.segment import Operation, TensorSpec


class SingleRows(Capability):
    """Capability: models that a batch of one row makes fail in training, as batch normalization may."""

    @abstractmethod
    def single_row_reason(self, operation: Operation, inputs: Sequence[TensorSpec]) -> str:
        """What the framework says of a training step with one row; `""` if it takes one, or if that is not known.

        Args:
            operation: a node that is trained, whose model is built; it is left as it was.
            inputs: the specs of the node's inputs.
        """
