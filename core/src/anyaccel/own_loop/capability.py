"""The capability by which a backend brings the loops of its framework; light, for the tables of backends."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from anyaccel.capability import Capability


class OwnLoops(Capability):
    """Capability `own_loops`: models of the framework are trained by loops of the user's own."""

    @property
    @abstractmethod
    def loop(self) -> type[Any]:
        """The class derived from `Loop`, which stands above this module."""
