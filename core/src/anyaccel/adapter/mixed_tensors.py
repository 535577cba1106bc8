"""MixedTensors: where an operation over several devices failed: the node, the line, its tensors, and who moved them."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from anyaccel.extensions import extensions

_NAMES = re.compile(r"\bself\.[A-Za-z_]\w*|(?<!\.)\b[A-Za-z_]\w*")
_OUTER = frozenset({"contextlib", "functools"})

DeviceOf = Callable[[Any], str | None]
"""The device of a tensor as text; None of anything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedTensors:
    """The place where an operation over several devices failed, if known.

    Attributes:
        node: Label of the node that was computing; `""` for none.
        line: `file:line` of the user's code that raised, or `""`.
        tensors: The tensors that the line names: name, device, and with a ledger the line that moved it there.
    """

    node: str = ""
    line: str = ""
    tensors: tuple[str, ...] = ()

    def __str__(self) -> str:
        with_them = f", with {', '.join(self.tensors)}" if self.tensors else ""
        return f"; at {self.line}{with_them}" if self.line else ""


def mixed_tensors(error: BaseException, device_of: DeviceOf, framework: Collection[str]) -> MixedTensors:
    """Find the place of an error from its traceback; no user code is run.

    Args:
        error: The framework's error, with its traceback.
        device_of: Function that returns the device of a value.
        framework: Top-level modules that are not user code, in addition to those of anyaccel and its plugins.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    node = next(filter(None, (_node(frame) for frame, _ in reversed(frames) if _is_ours(_root(frame)))), "")
    inner = {*framework, *_OUTER}
    users = [frame for frame in frames if _root(frame[0]) not in inner and not _is_ours(_root(frame[0]))]
    if not users:
        return MixedTensors(node=node)
    frame, number = users[-1]
    tensors = []
    for name, value in _values(frame, number):
        if (device := device_of(value)) is not None:
            # the line that a ledger recorded, from the functions registered in "last_mover"
            moved_at = next(filter(None, (mover(value) for mover in extensions("last_mover"))), "")
            tensors.append(f"{name} on {device}" + (moved_at and f", moved there at {moved_at}"))
    return MixedTensors(node=node, line=f"{frame.f_code.co_filename}:{number}", tensors=tuple(tensors))


def _root(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_ours(root: str) -> bool:
    return root == "anyaccel" or root.startswith("anyaccel_")


def _node(frame: FrameType) -> str:
    operation = frame.f_locals.get("op", frame.f_locals.get("operation"))
    label = getattr(operation, "label", "")
    return label if isinstance(label, str) else ""


def _values(frame: FrameType, number: int) -> Iterator[tuple[str, Any]]:
    """Yield the values that a line names: variables, and attributes of `self`."""
    text = linecache.getline(frame.f_code.co_filename, number, frame.f_globals).partition("#")[0]
    for name in dict.fromkeys(_NAMES.findall(text)):
        yield name, _value(frame, name)


def _value(frame: FrameType, name: str) -> Any:
    owner, _, attribute = name.partition(".")
    value = frame.f_locals.get(owner, frame.f_globals.get(owner))
    if not attribute:
        return value
    attributes = vars(value) if hasattr(value, "__dict__") else {}
    places = (attributes, *(attributes.get(held) for held in ("_parameters", "_buffers")))  # of a module of torch
    return next((place[attribute] for place in places if isinstance(place, dict) and attribute in place), None)
