"""Extensions: what one module adds to another that does not know it, registered under the name of a point.

A module that can be extended asks for `extensions("POINT")`. Who extends it registers an object when it is imported, or
is named by an entry point `POINT` of the group `anyaccel.extension_points` and imported when it is first asked for.
"""

from __future__ import annotations

from typing import Any

from anyaccel.distributions import EXTENSIONS, entry_points, loaded

_registered: dict[str, list[Any]] = {}


def extend(point: str, extension: Any) -> None:
    """Register an extension once."""
    registered = _registered.setdefault(point, [])
    if extension not in registered:
        registered.append(extension)


def extensions(point: str) -> list[Any]:
    """The extensions of a point: those registered, in their order, and those of installed distributions."""
    offered = (loaded(entry) for entry in entry_points(EXTENSIONS) if entry.name == point)
    return [*_registered.get(point, []), *offered]
