"""Whether steps can be compiled on this machine, checked before anything is started; and torch's reasons in short."""

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

_INSTALL_HINTS = {
    "linux": "install one, for example with apt-get install g++, or set CXX to its path",
    "darwin": "install one with xcode-select --install, or set CXX to its path",
    "win32": "install the Build Tools for Visual Studio, and start from their prompt",
}
_UNINFORMATIVE = ("higher order operator doesn't work", "raised:")
_UNTRACEABLE = ("Unsupported", "UncapturedHigherOrderOpError", "DataDependentOutputException", "UserError")


def compiler() -> str:
    """Return the path of the C++ compiler that torch would use, or `""`."""
    default = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    return shutil.which(os.environ.get("CXX") or default) or ""


def check() -> None:
    """Check that C++ can be compiled against Python.

    Raises:
        CompileError: there is no compiler, or it lacks Python's header files; or the user has disabled compiling.
    """
    for name in ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"):
        if os.environ.get(name, "0") not in ("", "0"):
            raise CompileError(f"torch's compiler is disabled by {name}={os.environ[name]}", hint=f"unset {name}")
    if not compiler():
        cxx = os.environ.get("CXX")
        reason = f"CXX={cxx} is not a program" if cxx else "CXX is not set, and the usual compiler is not on the path"
        raise CompileError(
            f"steps cannot be compiled: there is no C++ compiler ({reason})",
            hint=_INSTALL_HINTS.get(sys.platform, _INSTALL_HINTS["linux"]),
        )
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        raise CompileError(
            f"steps cannot be compiled: Python's header files are missing (no Python.h in {headers})",
            hint="install python3-dev, or python3-devel",
        )


def scan() -> Callable[..., Any] | None:
    """Return torch's scan operator, None if this torch has none. It is private: its place may change."""
    try:
        operator: Callable[..., Any] = import_module("torch._higher_order_ops.scan").scan
    except (ImportError, AttributeError):
        return None
    return operator


def compile_error(error: Exception, label: str) -> CompileError:
    """Return the error that stopped a compilation, in one line."""
    if isinstance(error, CompileError):
        return error
    if isinstance(error, AnyaccelError):
        return CompileError(f"steps of segment {label!r} cannot be compiled: {error.problem}", hint=error.hint)
    # torch puts the line that says why after `Explanation:`, or after a first line that says nothing
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    explained = next((line.partition(":")[2].strip() for line in lines if line.startswith("Explanation:")), "")
    informative = [line for line in lines if not any(phrase in line for phrase in _UNINFORMATIVE)]
    reason = explained or (informative[0] if informative else first_line(error)) or "no reason was given"
    kind, reason = type(error).__name__, reason[:300]
    if kind in _UNTRACEABLE or "data-dependent" in reason or "graph break" in reason:
        return CompileError(
            f"steps of segment {label!r} cannot be traced: {reason}",
            hint="avoid Python that depends on the values of tensors (if x.sum() > 0, x.item()), and print calls",
        )
    return CompileError(f"steps of segment {label!r} cannot be compiled: {kind}: {reason}")
