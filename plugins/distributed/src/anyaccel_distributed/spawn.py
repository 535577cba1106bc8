"""Spawn: replicas of a function, from a notebook or session that has no script."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from anyaccel.errors import ConfigError, FrameworkError
from anyaccel_distributed.processes import run_replicas

_LINES_KEPT = 40
_CALL = """
import importlib, json, sys
path, module, name, arguments = json.loads(sys.argv[1])
sys.path[:0] = [each for each in path if each not in sys.path]
getattr(importlib.import_module(module), name)(**arguments)
"""


def spawn(function: Callable[..., object], *, replicas: int, arguments: Mapping[str, Any] | None = None) -> None:
    """Call a function in several new processes of this machine, which split the batches of its training phases.

    Their output is printed here. The function returns nothing to this process: save results in it, and load them here.

    Args:
        function: A function of a module that can be imported; one that was written in a notebook cannot.
        replicas: Number of processes.
        arguments: Arguments of the function, by name, as JSON values.

    Raises:
        ConfigError: the function cannot be imported, the arguments are not JSON, or `replicas` is below 1.
        FrameworkError: a replica failed; the message has the end of its output, with its traceback.
    """
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 1:
        raise ConfigError(f"spawn: replicas={replicas!r} is not a number of processes", hint="write replicas=2")
    module, name = _importable(function)
    call = json.dumps([[str(Path(path).absolute()) for path in sys.path], module, name, _plain(arguments)])
    printed: list[str] = []
    status = run_replicas([sys.executable, "-u", "-c", _CALL, call], replicas, printed=printed.append)
    if status:
        raise FrameworkError(
            f"{module}.{name}: a replica of {replicas} ended with exit status {status}:\n"
            + "".join(printed[-_LINES_KEPT:]).rstrip(),
            hint="call the function in this process to debug it",
        )


def _importable(function: Callable[..., object]) -> tuple[str, str]:
    """Return module and name of a function, if another process finds it there."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not callable(function) or not isinstance(module, str):
        raise ConfigError(f"spawn: {function!r} is not a function", hint="pass a function of a module")
    source = getattr(sys.modules.get(module), "__file__", None)
    if (
        module == "__main__"
        or source is None
        or "." in name
        or getattr(sys.modules[module], name, None) is not function
    ):
        raise ConfigError(
            f"spawn: another process cannot import {name!r} of {module!r}",
            available="functions at the top level of a module in a file",
            hint="write the function into a file (%%writefile training.py in a notebook) and import it from there",
        )
    return module, name


def _plain(arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    plain = dict(arguments or {})
    try:
        json.dumps(plain)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"spawn: the arguments are not JSON values: {error}",
            hint="pass numbers, strings and lists, such as the path of a file",
        ) from None
    return plain
