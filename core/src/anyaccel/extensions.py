"""Extensions: objects that one module adds to another that does not know it, registered under the name of a point.

A module that can be extended calls `extensions("POINT")`, or `sole_extension("POINT")` if there can be only one. An
extending module registers an object when it is imported, or is named by an entry point `POINT` of the group
`anyaccel.extension_points` and imported when it is first requested.
"""

from __future__ import annotations

from typing import Any

from anyaccel.distributions import EXTENSIONS, entry_points, loaded, named
from anyaccel.errors import PluginError

_registered: dict[str, list[Any]] = {}


def extend(point: str, extension: Any) -> None:
    """Register an extension once."""
    registered = _registered.setdefault(point, [])
    if extension not in registered:
        registered.append(extension)


def extensions(point: str) -> list[Any]:
    """Return the extensions of a point: those registered, in their order, and those of installed distributions."""
    offered = (loaded(entry) for entry in entry_points(EXTENSIONS) if entry.name == point)
    return [*_registered.get(point, []), *offered]


def sole_extension(point: str) -> Any:
    """Return the extension of a point that can have only one, or None.

    Raises:
        PluginError: it has several.
    """
    named(EXTENSIONS, point)  # raises an error that names two distributions
    several = extensions(point)
    if len(several) > 1:
        raise PluginError(f"{several[0]!r} and {several[1]!r} both extend {point!r}", hint="register one")
    return several[0] if several else None
