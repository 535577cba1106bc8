"""LoadableShapes: capability for values whose shape changes when the model loads them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from anyaccel.capability import Capability
from anyaccel.segment import TensorSpec


class LoadableShapes(Capability):
    """Capability: models that accept values of other shapes than their current ones, such as observers before any
    batch.
    """

    @abstractmethod
    def loadable_shapes(self, model: Any, given: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        """Return the values that `load_state` accepts although their shape in the model differs now; changes nothing.

        Args:
            model: A built model.
            given: The values to load whose shapes differ from those of the model, by their names in its state.
        """
