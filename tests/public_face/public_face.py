"""What is public, as lines of text: names, with the parameters, their kinds and defaults of what is called.

`anyaccel.txt` and a file for each plugin in this folder have the lines of today. A test of each distribution compares
them, so that whatever is added, changed or removed shows in the diff of a change. To write them all again, where the
plugins and their frameworks are installed: `python tests/public_face/public_face.py`.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

from anyaccel.distributions import MODULES

HERE = Path(__file__).parent
CONTRACT_MODULES = (
    "anyaccel.adapter",
    "anyaccel.backend",
    "anyaccel.hookspecs",
    "anyaccel.program",
    "anyaccel.segment",
)
CAPABILITIES = (
    "anyaccel.machine.ExpectedDevices",
    *("anyaccel.precision.ComputesPrecision", "anyaccel.precision.ScalesLosses"),
    *("anyaccel.Backend", "anyaccel.Compute", "anyaccel.Exchange", "anyaccel.Memory", "anyaccel.AsyncCopy"),
    *("anyaccel.Program", "anyaccel.MultiStepProgram", "anyaccel.CompileEstimate", "anyaccel.hookimpl"),
)
"""What plugins are written against; the rest is for users. A capability is in the package of its feature."""
HOW_TO_WRITE = "If that is meant, write it into the file: python tests/public_face/public_face.py PACKAGE"
_PLAIN = (str, int, float, bool, type(None), tuple, frozenset)


def lines(package: str) -> list[str]:
    """The lines of a distribution, sorted; of core, those of the contract of plugins follow under a heading."""
    module = importlib.import_module(package)
    seen: dict[int, str] = {}
    face = [*_of_module(module, seen)]
    if package != "anyaccel":  # what was public as a package of anyaccel is so where it is now
        moved = [name for name in MODULES.values() if name.startswith(f"{package}.")]
        return sorted([*face, *(line for name in moved for line in _of_module(importlib.import_module(name), seen))])
    for part in pkgutil.iter_modules(module.__path__):
        name = f"anyaccel.{part.name}"
        if name in CONTRACT_MODULES or (part.ispkg and hasattr(importlib.import_module(name), "__all__")):
            face += _of_module(importlib.import_module(name), seen)
    of_contract = re.compile(rf"({'|'.join(map(re.escape, (*CONTRACT_MODULES, *CAPABILITIES)))})\b")
    contract = [line for line in face if of_contract.match(line)]
    users = [line for line in face if not of_contract.match(line)]
    return [*sorted(users), "", "# The contract of plugins", "", *sorted(contract)]


def changes(package: str) -> str:
    """How the lines of a distribution differ from its file; empty if they do not."""
    file = HERE / f"{package}.txt"
    before = file.read_text(encoding="utf-8").splitlines()
    return "\n".join(difflib.unified_diff(before, lines(package), file.name, "as it is now", lineterm="", n=0))


def _of_module(module: ModuleType, seen: dict[int, str]) -> Iterator[str]:
    """Lines of the names in `__all__`, or of what a module without it defines."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    for name in names:
        if module.__name__ == "anyaccel.cli":  # `main` is the function, or the module of that name once it is imported
            continue
        yield from _of_value(f"{module.__name__}.{name}", getattr(module, name), seen)


def _of_value(path: str, value: Any, seen: dict[int, str]) -> Iterator[str]:
    """The line of a value; below a class or module, those of its public members."""
    if (inspect.isclass(value) or inspect.isfunction(value)) and id(value) in seen:
        yield f"{path} is {seen[id(value)]}"
    elif inspect.ismodule(value):
        for name, member in vars(value).items():
            if inspect.isclass(member) and member.__module__ == value.__name__ and not name.startswith("_"):
                yield from _of_value(f"{path}.{name}", member, seen)
    elif inspect.isclass(value):
        seen[id(value)] = path
        bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
        yield f"{path}{_signature(value)}: class{f' of {bases}' if bases else ''}"
        yield from _of_members(path, value)
    elif get_origin(value) is not None:
        yield f"{path}: alias of types"
    elif callable(value):
        seen[id(value)] = path
        yield f"{path}{_signature(value)}"
    else:
        yield f"{path} = {_shown(value)}"


def _of_members(path: str, of: type) -> Iterator[str]:
    """Lines of the members that a class has from anyaccel, whichever of its bases they are from."""
    for name in dir(of):
        owner = next((base for base in of.__mro__ if name in vars(base)), None)
        if name.startswith("_") or owner is None or not owner.__module__.startswith("anyaccel"):
            continue
        member = inspect.getattr_static(of, name)
        function = getattr(member, "__func__", member)
        abstract = " (abstract)" if getattr(member, "__isabstractmethod__", False) else ""
        if isinstance(member, (classmethod, staticmethod)):
            yield f"{path}.{name}{_signature(function)}: {type(member).__name__}{abstract}"
        elif inspect.isfunction(function):
            yield f"{path}.{name}{_signature(function)}{abstract}"
        elif isinstance(member, _PLAIN):
            yield f"{path}.{name} = {_shown(member)}"
        else:
            yield f"{path}.{name}: attribute{abstract}"


def _signature(of: Any) -> str:
    """Parameters with kinds and defaults, without annotations."""
    if inspect.isclass(of) and "__init__" not in vars(of) and of.__base__.__module__ == "numpy":
        return "(...)"  # NumPy's own, which only some of its versions tell
    try:
        signature = inspect.signature(of)
    except (TypeError, ValueError):  # of a class that C wrote
        return "(...)"
    parameters = [
        parameter.replace(annotation=parameter.empty, default=_Shown(parameter.default))
        if parameter.default is not parameter.empty
        else parameter.replace(annotation=parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return str(inspect.Signature(parameters))


class _Shown:
    """A default value that is printed in the same way by every process."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return _shown(self.value)


def _shown(value: Any) -> str:
    """The text of a value, without addresses, and of a class or function its name."""
    if isinstance(value, str) and value == sys.platform:
        return "sys.platform"
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(repr, value))})"
    if inspect.isclass(value) or inspect.isroutine(value):
        return str(value.__qualname__)
    return re.sub(r"\s+", " ", re.sub(r" at 0x[0-9a-f]+", "", repr(value)))


if __name__ == "__main__":
    plugins = [f"anyaccel_{path.parent.name}" for path in HERE.parents[1].glob("plugins/*/pyproject.toml")]
    for package in sys.argv[1:] or ["anyaccel", *(name for name in plugins if find_spec(name) is not None)]:
        (HERE / f"{package}.txt").write_text("\n".join(lines(package)) + "\n", encoding="utf-8")
        print("written:", HERE / f"{package}.txt")
