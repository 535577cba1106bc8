"""What a compiled function does that no code of Python sees: its devices, what it prints, and its Python functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from tensorflow.python.eager import context

_NAME = re.compile(r"(?:_*(?:inference|forward|backward)_+)*(.+?)(?:_\d+)*")
_TELLING = {
    "PrintV2": "tf.print",
    "PyFunc": "tf.numpy_function",
    "PyFuncStateless": "tf.numpy_function",
    "EagerPyFunc": "tf.py_function",
}


@dataclass(frozen=True, slots=True)
class InsideFunction:
    """What a compiled function has inside.

    Attributes:
        name: as the user called it.
        devices: names of the devices that it asks for.
        unseen: a text for each thing by which it gives values to the host.
    """

    name: str
    devices: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


@cache
def inside_function(name: str) -> InsideFunction:
    """What the compiled function of this name has inside, and those that it calls; read once."""
    match = _NAME.fullmatch(name)
    shown = match[1] if match else name
    nodes = list(_nodes(name, set()))
    told = dict.fromkeys(_TELLING[node.op] for node in nodes if node.op in _TELLING)
    return InsideFunction(
        name=shown,
        devices=tuple(dict.fromkeys(node.device for node in nodes if node.device)),
        unseen=tuple(f"what {each} reads inside the compiled function {shown!r}" for each in told),
    )


def _nodes(name: str, known: set[str]) -> Iterator[Any]:
    if name in known or not context.context().has_function(name):
        return
    known.add(name)
    for node in context.context().get_function_def(name).node_def:
        yield node
        for value in node.attr.values():
            for called in (value.func, *value.list.func):
                yield from _nodes(called.name, known)
