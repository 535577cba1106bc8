"""Shell completion: the scripts, which click generates, and the values that can be completed."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

if TYPE_CHECKING:
    from anyaccel.registry import Registry

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_ANYACCEL_COMPLETE"


def run(shell: str, group: click.Command) -> None:
    """Print the completion script of a shell."""
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    sys.stdout.write(completion_class(group, {}, "anyaccel", _VARIABLE).source())


def frameworks(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return frameworks that installed plugins run."""
    return _complete(incomplete, lambda registry: registry.frameworks)


def plugins(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return installed plugins."""
    return _complete(incomplete, lambda registry: (plugin.name for plugin in registry.plugins))


def kinds(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return kinds of device that plugins serve; listing the devices themselves would take too long."""
    return _complete(incomplete, lambda registry: (kind for backend in registry.backends for kind in backend.kinds))


def _complete(incomplete: str, names: Callable[[Registry], Iterable[str]]) -> list[CompletionItem]:
    """Return the names that start with `incomplete`; output and errors of plugins are dropped while a user types."""
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            from anyaccel.registry import registry

            candidates = sorted(set(names(registry())))
    except Exception:
        return []
    return [CompletionItem(name) for name in candidates if name.startswith(incomplete)]
