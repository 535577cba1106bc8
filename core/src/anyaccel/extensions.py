"""Extensions: what a feature adds to a module below it, registered by name and imported when it is first needed.

A module that can be extended asks for `extensions("POINT")`, and knows nothing of those who answer. The table of
features in `anyaccel/__init__.py` registers them; a feature that is not installed extends nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_registered: dict[str, list[str]] = {}


def extend(point: str, where: str) -> None:
    """Register an extension, an object named as `"module:name"`; a second registration of it changes nothing."""
    names = _registered.setdefault(point, [])
    if where not in names:
        names.append(where)


def extensions(point: str) -> list[Any]:
    """The extensions of a point in the order of registration, without those whose package is not installed."""
    loaded = []
    for where in _registered.get(point, ()):
        module, _, name = where.partition(":")
        try:
            loaded.append(getattr(import_module(module), name))
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
    return loaded
