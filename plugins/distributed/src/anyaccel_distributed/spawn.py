"""Spawn: replicas of a function, from a notebook or session that has no script."""

from __future__ import annotations

import inspect
import io
import json
import linecache
import marshal  # noqa: TID251 - no data file: what this process writes, its own new processes read
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from anyaccel.errors import ConfigError, FrameworkError
from anyaccel_distributed.processes import run_replicas

_LINES_KEPT = 40
_CALL = """
import importlib, json, linecache, pickle, sys, traceback
path, source, name, arguments = json.loads(sys.argv[1])
sys.path[:0] = [each for each in path if each not in sys.path]
if name is None:
    with open(source, "rb") as file:
        cells, function = pickle.load(file)
    linecache.cache.update(cells)
    sys.excepthook = lambda *error: traceback.print_exception(*error)  # before 3.13 the built-in one reads files only
else:
    function = getattr(importlib.import_module(source), name)
function(**arguments)
"""


def spawn(function: Callable[..., object], *, replicas: int, arguments: Mapping[str, Any] | None = None) -> None:
    """Call a function in several new processes of this machine, which split the batches of its training phases.

    Their output is printed here. The function returns nothing to this process: save results in it, and load them here.

    Args:
        function: Any function. One of a module is imported by the processes. One that was defined in a notebook, an
            interactive session or another function is copied into them with the variables it uses.
        replicas: Number of processes.
        arguments: Arguments of the function, by name, as JSON values.

    Raises:
        ConfigError: the function uses something that cannot be copied, the arguments are not JSON, or `replicas` is
            below 1.
        FrameworkError: a replica failed; the message has the end of its output, with its traceback.
    """
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 1:
        raise ConfigError(f"spawn: replicas={replicas!r} is not a number of processes", hint="write replicas=2")
    if not callable(function):
        raise ConfigError(f"spawn: {function!r} is not a function", hint="pass a function without calling it")
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", repr(function))
    plain = dict(arguments or {})
    try:
        json.dumps(plain)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"spawn: the arguments are not JSON values: {error}",
            hint="pass numbers, strings and lists, such as the path of a file",
        ) from None
    path = [str(Path(folder).absolute()) for folder in sys.path]
    printed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="anyaccel-spawn-") as folder:  # of this user alone
        loaded = None if module is None or module == "__main__" else sys.modules.get(module)
        if getattr(loaded, "__file__", None) is not None and getattr(loaded, name, None) is function:
            label, call = f"{module}.{name}", [path, module, name, plain]
        else:
            label, file = name, Path(folder, "function.pickle")
            file.write_bytes(_pickled(function, name))
            call = [path, str(file), None, plain]
        command = [sys.executable, "-u", "-c", _CALL, json.dumps(call)]
        status = run_replicas(command, replicas, printed=printed.append)
    if status:
        raise FrameworkError(
            f"{label}: a replica of {replicas} ended with exit status {status}:\n"
            + "".join(printed[-_LINES_KEPT:]).rstrip(),
            hint="call the function in this process to debug it",
        )


def _pickled(function: Callable[..., object], name: str) -> bytes:
    """Return a function by value, with the variables it uses and the lines of the cells that define it.

    Tracebacks show these lines, and functions that read their source, such as TensorFlow's AutoGraph, need them.
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, CodeType):  # with the name of its cell, which cloudpickle leaves out
                return marshal.loads, (marshal.dumps(value),)
            return super().reducer_override(value)

    def dumps(value: object) -> bytes:
        file = io.BytesIO()
        Pickler(file).dump(value)
        return file.getvalue()

    cells = {key: entry for key, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None}  # no files
    try:
        return dumps((cells, function))
    except Exception as error:  # objects raise what they like
        problem, what = error, ""
    if inspect.isfunction(function):
        used = inspect.getclosurevars(function)
        for variable, value in {**used.globals, **used.nonlocals}.items():
            try:
                dumps(value)
            except Exception as error:  # as above
                problem, what = error, f"its variable {variable!r}: "
                break
    raise ConfigError(
        f"spawn: {name!r} cannot be copied into another process: {what}{type(problem).__name__}: {problem}",
        hint="create open files, loops, locks and the like inside the function",
    )
