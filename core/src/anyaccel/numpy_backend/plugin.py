"""The plugin module of the NumPy backend; the plugin loader names it as an entry point names any other plugin's."""

from __future__ import annotations

from collections.abc import Iterable

from anyaccel.hookspecs import hookimpl
from anyaccel.numpy_backend.backend import NumpyBackend

contract = 2
"""The version of the contract of backends that this plugin is written for."""


@hookimpl
def backends() -> Iterable[NumpyBackend]:
    """Return the NumPy backend."""
    return [NumpyBackend()]
