"""abacus for anyaccel. Importing this does not import abacus."""

from __future__ import annotations

from anyaccel import Backend, hookimpl
from anyaccel_abacus.backend import AbacusBackend

contract = 2
"""The version of the contract of backends that this plugin is written for."""


@hookimpl
def backends() -> list[Backend]:
    """The one backend of this plugin."""
    return [AbacusBackend()]
