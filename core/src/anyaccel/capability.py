"""Capability: the base class of what a backend can do beside placing, exchanging and computing."""

from __future__ import annotations

from abc import ABC
from typing import Any


class Capability(ABC):  # noqa: B024 - those of each kind have abstract methods
    """An object that does one thing for a backend, and is made from it when it is first asked for.

    A class derived from a capability is entered in `Backend.capabilities`, or given by the hook `capabilities`.

    Args:
        backend: whose capability it is, also an attribute.
    """

    def __init__(self, backend: Any = None) -> None:
        self.backend = self if backend is None else backend  # a backend that derives from it is its own
