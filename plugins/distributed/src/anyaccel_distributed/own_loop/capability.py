"""The capability of backends that support custom training loops; light, for the tables of backends."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from anyaccel.capability import Capability


class OwnLoops(Capability):
    """Capability `own_loops`: models of the framework can be trained by custom loops."""

    @property
    @abstractmethod
    def loop(self) -> type[Any]:
        """The subclass of `Loop`, which depends on this module."""
