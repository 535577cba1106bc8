"""CallSite: the line, node, edge and phase of a transfer, read from the stack when it happens.

So nothing is recorded beforehand, and code that is not observed costs nothing. Inside anyaccel and its plugins these
names of local variables have a meaning: `op` or `operation` is the operation of a node, `edge` is the value that
crosses between nodes (a text, or a tuple of words and the value's name), and `run` is that of a phase.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from types import CodeType, FrameType
from typing import Any

from anyaccel.extensions import extend, extensions

_NODE, _EDGE, _PHASE, _USERS = 1, 2, 4, 8
_MEANT = {"op": _NODE, "operation": _NODE, "edge": _EDGE, "run": _PHASE}
"""What variables of anyaccel's functions tell."""
_STANDARD = frozenset({*sys.stdlib_module_names, "anyaccel", "numpy"}) - {"__main__"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """The place of an event.

    Attributes:
        line: `file:line` of the innermost code outside anyaccel, its plugins, their frameworks and Python's own
            library; for a thread without such code, the thread's name.
        node: Label of the node that was computing; `""` for none.
        edge: The crossing value; `""` for nothing.
        phase: Label of the phase; `""` outside phases, or if several run at the same time and the thread belongs to
            none.
    """

    line: str
    node: str = ""
    edge: str = ""
    phase: str = ""


def register_running(labels: Callable[[], Sequence[str]]) -> None:
    """Register a function that returns the running phases, for events of threads that do not belong to a phase."""
    extend("running_phases", labels)


class CallSites:
    """Find call sites. The facts about a function are read once per module: a ledger may get thousands of events a
    second.

    Args:
        inner: Top-level modules that are not user code.
    """

    def __init__(self, inner: Iterable[str] = ()) -> None:
        self._inner = frozenset(inner) - {"__main__"}  # where a plugin may be, too
        self._roles: dict[int, int] = {}  # by id: the hash of a code object reads all of it
        self._codes: list[CodeType] = []  # held, so that ids stay theirs
        self._sites: dict[tuple[Any, ...], CallSite] = {}

    def here(self) -> CallSite:
        """Return the call site of the caller."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
        users: FrameType | None = None
        names, missing, roles = ["", "", ""], _NODE | _EDGE | _PHASE, self._roles
        while frame is not None and (users is None or missing & _PHASE):
            cached = roles.get(id(frame.f_code))
            role = self._role(frame) if cached is None else cached
            if role & missing:  # to be read, the variables of a frame are copied
                # What the variables of one frame say; inner frames come first, and stay.
                local = frame.f_locals
                if missing & _NODE:
                    names[0] = _text(getattr(local.get("op", local.get("operation")), "label", ""))
                if missing & _EDGE:
                    edge = local.get("edge", "")
                    names[1] = "{} {!r}".format(*edge) if type(edge) is tuple and len(edge) == 2 else _text(edge)
                if missing & _PHASE:
                    names[2] = _text(getattr(getattr(local.get("run"), "phase", None), "label", ""))
                missing = sum(mark for mark, name in zip((_NODE, _EDGE, _PHASE), names, strict=True) if not name)
            elif role == _USERS and users is None:
                users = frame
            frame = frame.f_back
        return self._site(users, *names)

    def _site(self, users: FrameType | None, node: str, edge: str, phase: str) -> CallSite:
        where: Any = (id(users.f_code), users.f_lineno) if users is not None else threading.current_thread().name
        if not phase and users is None:
            phases = [label for labels in extensions("running_phases") for label in labels()]
            phase = phases[0] if len(phases) == 1 else ""
        key = (where, node, edge, phase)
        site = self._sites.get(key)
        if site is None:
            line = f"thread {where}" if users is None else f"{users.f_code.co_filename}:{users.f_lineno}"
            site = self._sites[key] = CallSite(line=line, node=node, edge=edge, phase=phase)
        return site

    def _role(self, frame: FrameType) -> int:
        """Whether a function is the user's, and what anyaccel's variables in it tell; 0 for neither."""
        code, root = frame.f_code, str(frame.f_globals.get("__name__", "")).partition(".")[0]
        role = 0 if root in _STANDARD or root in self._inner else _USERS
        if root == "anyaccel" or root.startswith("anyaccel_"):
            variables = (*code.co_varnames, *code.co_freevars, *code.co_cellvars)
            role = reduce(or_, (_MEANT.get(name, 0) for name in variables), 0)
        self._codes.append(code)
        self._roles[id(code)] = role
        return role


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
