"""CallSite: which line, node, edge and phase a transfer belongs to, read from the stack when it happens.

So nothing is noted beforehand, and code that is not observed pays nothing. Inside anyaccel and its plugins these names
of local variables have a meaning: `op` or `operation` is the operation of a node, `edge` is what crosses between nodes
(a text, or a tuple of words and the value's name), and `run` is that of a phase.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

_USERS, _NAMED = "the user's", "has names"
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


class CallSites:
    """Finds call sites. What a function is, its module tells once: a ledger may be told thousands of events a second.

    Args:
        inner: top-level modules whose code is not the user's.
    """

    def __init__(self, inner: Iterable[str] = ()) -> None:
        self._inner = frozenset(inner) - {"__main__"}  # where a plugin may be, too
        self._roles: dict[int, tuple[str, CodeType]] = {}  # by id: the hash of a code object reads all of it

    def here(self) -> CallSite:
        """Where the caller stands."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
        line, names, roles = "", {"node": "", "edge": "", "phase": ""}, self._roles
        while frame is not None and not (line and names["phase"]):
            known = roles.get(id(frame.f_code))
            role = self._role(frame) if known is None else known[0]
            if role == _NAMED:
                _read_names(frame.f_locals, names)
            elif role == _USERS and not line:
                line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back
        phases = _running[0]() if _running and not names["phase"] and not line else ()
        return CallSite(
            line=line or f"thread {threading.current_thread().name}",
            node=names["node"],
            edge=names["edge"],
            phase=phases[0] if len(phases) == 1 else names["phase"],
        )

    def _role(self, frame: FrameType) -> str:
        """Whether a function is the user's, or anyaccel's with variables that mean something, or neither."""
        code, root = frame.f_code, str(frame.f_globals.get("__name__", "")).partition(".")[0]
        role = "" if root in _STANDARD or root in self._inner else _USERS
        if root == "anyaccel" or root.startswith("anyaccel_"):
            variables = (*code.co_varnames, *code.co_freevars, *code.co_cellvars)
            role = "" if _MEANT.isdisjoint(variables) else _NAMED
        self._roles[id(code)] = role, code
        return role


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
