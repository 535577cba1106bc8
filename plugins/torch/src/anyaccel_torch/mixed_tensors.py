"""Mixed tensors: the tensors of the line that failed, their devices, and who moved them. Does not import torch."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

from anyaccel.transfer_ledger import last_mover

_FRAMEWORK = ("torch", "anyaccel", "contextlib", "functools", "keras")
_NAMES = re.compile(r"\bself\.[A-Za-z_]\w*|(?<!\.)\b[A-Za-z_]\w*")


def mixed_tensors(error: BaseException) -> str:
    """The line of the user's code that raised an error, and the tensors in it with their devices; `""` if unknown.

    With a ledger, each has the line that moved it.
    """
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_users(frame)]
    if not frames:
        return ""
    frame, number = frames[-1]
    tensors = [f"{name} on {tensor.device}{_mover(tensor)}" for name, tensor in _tensors(frame, number)]
    return f"; at {frame.f_code.co_filename}:{number}{', with ' if tensors else ''}{', '.join(tensors)}"


def _is_users(frame: FrameType) -> bool:
    root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return root not in _FRAMEWORK and not root.startswith("anyaccel_")


def _tensors(frame: FrameType, number: int) -> Iterator[tuple[str, Any]]:
    """The tensors that are named in a line: variables, and attributes of `self`."""
    text = linecache.getline(frame.f_code.co_filename, number, frame.f_globals).partition("#")[0]
    for name in dict.fromkeys(_NAMES.findall(text)):
        value = _value(frame, name)
        if hasattr(value, "is_leaf") and hasattr(value, "device"):
            yield name, value


def _value(frame: FrameType, name: str) -> Any:
    """What a name stands for; nothing of the user's is run."""
    owner, _, attribute = name.partition(".")
    value = frame.f_locals.get(owner, frame.f_globals.get(owner))
    if not attribute:
        return value
    own = vars(value) if hasattr(value, "__dict__") else {}
    places = (own, *(own.get(held) for held in ("_parameters", "_buffers")))
    return next((place[attribute] for place in places if isinstance(place, dict) and attribute in place), None)


def _mover(tensor: Any) -> str:
    site = last_mover(tensor)
    return "" if site is None else f", moved there at {site.line}"
