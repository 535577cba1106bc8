"""Whether steps can be compiled here at all, found out before anything is begun; and what went wrong, in short."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from anyaccel.errors import AnyaccelError, CompileError
from anyaccel_torch.error_translation import first_line

REMEDY = {
    "linux": "install one, such as with apt-get install g++, or set CXX to its path",
    "darwin": "install one with xcode-select --install, or set CXX to its path",
    "win32": "install the Build Tools for Visual Studio, and start from their prompt",
}
_EMPTY = ("higher order operator doesn't work", "raised:")
_UNTRACEABLE = ("Unsupported", "UncapturedHigherOrderOpError", "DataDependentOutputException", "UserError")


def compiler() -> str:
    """Path of the C++ compiler that torch would use, `""` where there is none."""
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    return shutil.which(os.environ.get("CXX") or usual) or ""


def check() -> None:
    """Nothing, where C++ can be compiled against Python.

    Raises:
        CompileError: there is no compiler, or it lacks Python's header files; or the user has switched compiling off.
    """
    off = next((name for name in ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE") if _is_set(name)), "")
    if off:
        raise CompileError("torch is not to compile", available=f"{off}={os.environ[off]}", hint=f"unset {off}")
    remedy = REMEDY.get(sys.platform, REMEDY["linux"])
    if not compiler():
        there = (
            f"CXX={os.environ['CXX']}, which is no program" if os.environ.get("CXX") else "no CXX in the environment"
        )
        raise CompileError("steps cannot be compiled: there is no C++ compiler", available=there, hint=remedy)
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        asked = "steps cannot be compiled: Python's header files are missing"
        raise CompileError(asked, available=f"no Python.h in {headers}", hint="install python3-dev, or python3-devel")


def _is_set(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


def scan() -> Callable[..., Any] | None:
    """torch's scan operator, None where this torch has none. It is private: its place may change."""
    try:
        found: Callable[..., Any] = import_module("torch._higher_order_ops.scan").scan
    except (ImportError, AttributeError):
        return None
    return found


def told(error: Exception, label: str) -> CompileError:
    """What stopped a compilation, in one line."""
    if isinstance(error, CompileError):
        return error
    kind, words = type(error).__name__, _reason(error)
    if isinstance(error, AnyaccelError):
        return CompileError(f"steps of segment {label!r} cannot be compiled: {error.problem}", hint=error.hint)
    if kind in _UNTRACEABLE or "data-dependent" in words or "graph break" in words:
        return CompileError(
            f"steps of segment {label!r} cannot be traced: {words}",
            hint="avoid Python that depends on the values of tensors (if x.sum() > 0, x.item()), prints and the like",
        )
    return CompileError(f"steps of segment {label!r} cannot be compiled: {kind}: {words}")


def _reason(error: Exception) -> str:
    """The line that says why: torch puts it after an `Explanation:` or after a first line that says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line.partition(":")[2].strip() for line in lines if line.startswith("Explanation:")), "")
    plain = [line for line in lines if not any(words in line for words in _EMPTY)]
    return (said or (plain[0] if plain else first_line(error)) or "no reason was given")[:300]
