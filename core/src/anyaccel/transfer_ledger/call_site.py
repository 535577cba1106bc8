"""CallSite: which line, node, edge and phase a transfer belongs to, read from the stack when it happens.

So nothing is noted beforehand, and code that is not observed pays nothing. Inside anyaccel and its plugins these names
of local variables have a meaning: `op` or `operation` is the operation of a node, `edge` is what crosses between nodes
(a text, or a tuple of words and the value's name), and `run` is that of a phase.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

_MEANT = frozenset({"op", "operation", "edge", "run"})
_STANDARD = frozenset({*sys.stdlib_module_names, "anyaccel", "numpy"}) - {"__main__"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """Where something happened.

    Attributes:
        line: `file:line` of the innermost code outside anyaccel, its plugins, their frameworks and Python's own
            library; of a thread that has no such code, the thread's name.
        node: label of the node that was computing; `""` for none.
        edge: what was crossing between nodes; `""` for nothing.
        phase: label of the phase; `""` outside phases, or where several run at once and the thread is of none.
    """

    line: str
    node: str = ""
    edge: str = ""
    phase: str = ""


_running: list[Callable[[], Sequence[str]]] = []


def register_running(labels: Callable[[], Sequence[str]]) -> None:
    """Let `labels` say which phases are running; for events of threads that are not the phase's own."""
    _running[:] = [labels]


def call_site(inner: Collection[str] = ()) -> CallSite:
    """Where the caller's caller stands; `inner` are top-level modules whose code is not the user's."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    line, names = "", {"node": "", "edge": "", "phase": ""}
    while frame is not None and not (line and names["phase"]):
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if root == "anyaccel" or root.startswith("anyaccel_"):
            if _has_names(frame.f_code):
                _read_names(frame.f_locals, names)
        elif not line and root not in _STANDARD and root not in inner:
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    phases = _running[0]() if _running and not names["phase"] and not line else ()
    return CallSite(
        line=line or f"thread {threading.current_thread().name}",
        node=names["node"],
        edge=names["edge"],
        phase=phases[0] if len(phases) == 1 else names["phase"],
    )


@functools.cache
def _has_names(code: CodeType) -> bool:
    """Whether a function has variables that mean something; reading those of a frame takes a microsecond."""
    return not _MEANT.isdisjoint((*code.co_varnames, *code.co_freevars, *code.co_cellvars))


def _read_names(local: Mapping[str, Any], names: dict[str, str]) -> None:
    """What the variables of one frame say; inner frames come first, and stay."""
    if not names["node"]:
        names["node"] = _text(getattr(local.get("op", local.get("operation")), "label", ""))
    if not names["edge"]:
        edge = local.get("edge", "")
        names["edge"] = "{} {!r}".format(*edge) if type(edge) is tuple and len(edge) == 2 else _text(edge)
    if not names["phase"]:
        names["phase"] = _text(getattr(getattr(local.get("run"), "phase", None), "label", ""))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
