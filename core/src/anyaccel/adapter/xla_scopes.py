"""XLA scopes: the operations that XLA has compiled, in a trace, with the nodes that they belong to.

XLA's events are named by its own instructions. All programs of the process are in the profile too, as serialized
protocol buffers (`HloProto`, in a plane of metadata), and say which scope each instruction comes from. The same name of
an instruction, and even of a program, may be in several: an event says by its `program_id` which one ran.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WRAPPERS = re.compile(r"^(?:\w+\()+|\)+$")  # jvp(...), transpose(jvp(...))
_PROGRAM = re.compile(r"\((\d+)\)$")  # jit_step(7)

Scopes = Mapping[tuple[int, str], str]
"""Scopes of instructions, by the number of their program and their name."""

# Numbers of fields, of XSpace and its parts, and of HloProto and its parts.
_PLANES, _NAME, _EVENT_METADATA, _VALUE, _STATS, _STAT_BYTES = 1, 2, 4, 2, 5, 6
_MODULE, _COMPUTATIONS, _INSTRUCTIONS, _OP_METADATA, _OP_NAME = 1, 3, 2, 7, 2


def xla_scopes(profile: bytes) -> dict[tuple[int, str], str]:
    """The scope of each instruction, by program and name, of all programs in a serialized `XSpace`.

    Raises:
        ValueError: not such bytes.
    """
    scopes: dict[tuple[int, str], str] = {}
    for plane in _each(profile, _PLANES):
        if _text(plane, _NAME) != "/host:metadata":
            continue
        for entry in _each(plane, _EVENT_METADATA):
            for metadata in _each(entry, _VALUE):
                number = _PROGRAM.search(_text(metadata, _NAME))
                if number is None:
                    continue
                for stat in _each(metadata, _STATS):
                    for program in _each(stat, _STAT_BYTES):
                        scopes |= {(int(number[1]), name): scope for name, scope in _of_program(program)}
    return scopes


def _of_program(program: bytes) -> Iterator[tuple[str, str]]:
    for module in _each(program, _MODULE):
        for computation in _each(module, _COMPUTATIONS):
            for instruction in _each(computation, _INSTRUCTIONS):
                scope = next((_text(each, _OP_NAME) for each in _each(instruction, _OP_METADATA)), "")
                if scope:
                    yield _text(instruction, 1), scope


def with_nodes(events: Sequence[dict[str, Any]], scopes: Scopes, nodes: Mapping[str, str]) -> None:
    """Name events of compiled instructions by their node, too, and give them its label and the whole scope.

    Args:
        events: are changed; those of operations that XLA did not compile may have their `scope` among the arguments.
            An event that does not say its program has a scope where all programs agree about that instruction.
        scopes: as `xla_scopes` returns them.
        nodes: labels by the names that nodes have in scopes.
    """
    agreed: dict[str, set[str]] = {}
    for (_, name), scope in scopes.items():
        agreed.setdefault(name, set()).add(scope)
    for event in events:
        arguments = event.get("args") or {}
        name, program = arguments.get("hlo_op", ""), arguments.get("program_id")
        if program is None:
            possible = agreed.get(name, set())
            scope = next(iter(possible)) if len(possible) == 1 else arguments.get("scope", "")
        else:
            scope = scopes.get((int(program) % 2**64, name), arguments.get("scope", ""))
        node = node_in(scope, nodes)
        if node is not None:
            event["name"] = f"{node}: {event['name']}"
            event["args"] |= {"node": node, "scope": scope}


def node_in(scope: str, nodes: Mapping[str, str]) -> str | None:
    """The label of the outermost part of a scope that is a node, also where it was differentiated; None without one."""
    parts = (_WRAPPERS.sub("", part) for part in scope.split("/"))
    return next((nodes[part] for part in parts if part in nodes), None)


def _text(message: bytes, number: int) -> str:
    return next((value.decode("utf-8", "replace") for value in _each(message, number)), "")


def _each(message: bytes, number: int) -> Iterator[bytes]:
    """The values of a field of text, bytes or messages."""
    at, size = 0, len(message)
    while at < size:
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _BYTES:
            length, at = _varint(message, at)
            if at + length > size:
                raise ValueError("a field is longer than its message")
            if tag >> 3 == number:
                yield message[at : at + length]
            at += length
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"unknown wire type {kind}")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
        if byte < 128:
            return value, at
    raise ValueError("a number is cut off")
