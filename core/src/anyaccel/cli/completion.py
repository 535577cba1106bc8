"""Completion in shells: the script of each, which click makes, and what may stand for a name."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_ANYACCEL_COMPLETE"


def run(shell: str, group: click.Command) -> None:
    """Print the script that a shell's start-up file is to run."""
    made = get_completion_class(shell)
    assert made is not None
    sys.stdout.write(made(group, {}, "anyaccel", _VARIABLE).source())


def frameworks(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Frameworks that are served here."""
    return _starting(incomplete, lambda found: found.frameworks)


def plugins(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Plugins that are installed."""
    return _starting(incomplete, lambda found: (plugin.name for plugin in found.plugins))


def kinds(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Kinds of device that are served; which devices there are would have to be asked of the hardware."""
    return _starting(incomplete, lambda found: (kind for backend in found.backends for kind in backend.kinds))


def _starting(incomplete: str, names: Any) -> list[CompletionItem]:
    """Those names that begin so. What plugins say, or what is wrong with one, is not told while somebody types."""
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            from anyaccel.registry import registry

            found = sorted(set(names(registry())))
    except Exception:
        return []
    return [CompletionItem(name) for name in found if name.startswith(incomplete)]
