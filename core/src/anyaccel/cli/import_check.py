"""Loads the plugins in sequence, printing the name of each. `plugin_loading` runs it in a child process."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from anyaccel.plugin_loader import installed
from anyaccel.registry import Registry

MARK = "anyaccel-import "


class _Announced:
    """An entry point that prints its name when it is loaded."""

    def __init__(self, entry: Any) -> None:
        self._entry = entry
        self.name, self.value, self.dist = entry.name, entry.value, entry.dist

    def load(self) -> Any:
        announce(self.name)
        return self._entry.load()


def announce(name: str) -> None:
    """Print a name on its own line; `""` says that all plugins are loaded."""
    sys.stdout.write(f"\n{MARK}{name}\n")
    sys.stdout.flush()


def _entries() -> Iterable[Any]:
    return map(_Announced, installed())


if __name__ == "__main__":
    Registry(entry_points=_entries).load()
    announce("")
