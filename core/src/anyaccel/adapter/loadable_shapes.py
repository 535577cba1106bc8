"""LoadableShapes: what a backend may say of values whose shape a model's own loading changes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from anyaccel.capability import Capability
from anyaccel.segment import TensorSpec


class LoadableShapes(Capability):
    """Capability: models that take values of other shapes than they have now, as of observers that saw no batch yet."""

    @abstractmethod
    def loadable_shapes(self, model: Any, given: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        """The values that `load_state` takes although the model has them in another shape now; changes nothing.

        Args:
            model: a built model.
            given: the values to load whose shapes differ from those of the model, by their names in its state.
        """
