"""Extensions: what one module adds to another that does not know it, registered under the name of a point.

A module that can be extended asks for `extensions("POINT")`. Who extends it registers an object when it is imported, or
is named by an entry point `POINT` of the group `anyaccel.extension_points` and imported when it is first asked for.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any

from anyaccel.distributions import EXTENSIONS, entry_points, loaded

_registered: dict[str, list[Any]] = {}
_lock = threading.Lock()


def extend(point: str, extension: Any) -> None:
    """Register an extension, an object or the text `"module:name"` of one, once."""
    registered = _registered.setdefault(point, [])
    if extension not in registered:
        registered.append(extension)


def extensions(point: str) -> list[Any]:
    """The extensions of a point in the order of registration, without those whose package is not installed."""
    registered = _registered.get(point, [])
    for reference in [extension for extension in registered if isinstance(extension, str)]:
        module, _, name = reference.partition(":")
        try:
            found = [getattr(import_module(module), name)]
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            found = []
        with _lock:
            if reference in registered:  # or another thread, or what was imported, has asked meanwhile
                position = registered.index(reference)
                registered[position : position + 1] = found
    return [*registered, *(loaded(entry) for entry in entry_points(EXTENSIONS) if entry.name == point)]
