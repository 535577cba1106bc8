"""XLA scopes: the operations that XLA has compiled, in a trace, with the nodes that they belong to.

XLA's events are named by its own instructions. The profile also has the programs of the process, as serialized protocol
buffers (`HloProto`, in a plane of metadata), which tell the scope of each instruction. The same name of an instruction,
and even of a program, may be in several programs. The `program_id` of an event tells which one ran, unless the program
was read from a cache on disk, with the number that it had where it was compiled.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WRAPPERS = re.compile(r"^(?:\w+\()+|\)+$")  # jvp(...), transpose(jvp(...))
_PROGRAM = re.compile(r"^(.*)\((\d+)\)$")  # jit_step(7)

Program = Mapping[str, str]
"""The scope of each instruction by its name; empty where it has none."""
Programs = Mapping[tuple[str, int], Program]
"""Compiled programs, by name and number."""

# Numbers of fields, of XSpace and its parts, and of HloProto and its parts.
_PLANES, _NAME, _EVENT_METADATA, _VALUE, _STATS, _STAT_BYTES = 1, 2, 4, 2, 5, 6
_MODULE, _COMPUTATIONS, _INSTRUCTIONS, _OP_METADATA, _OP_NAME = 1, 3, 2, 7, 2


def xla_programs(profile: bytes) -> dict[tuple[str, int], Program]:
    """Return all programs in a serialized `XSpace`.

    Raises:
        ValueError: not such bytes.
    """
    programs: dict[tuple[str, int], Program] = {}
    for plane in _each(profile, _PLANES):
        if _text(plane, _NAME) != "/host:metadata":
            continue
        for entry in _each(plane, _EVENT_METADATA):
            for metadata in _each(entry, _VALUE):
                named = _PROGRAM.match(_text(metadata, _NAME))
                if named is None:
                    continue
                contents = [program for stat in _each(metadata, _STATS) for program in _each(stat, _STAT_BYTES)]
                programs[named[1], int(named[2])] = dict(
                    pair for content in contents for pair in _instructions(content)
                )
    return programs


def _instructions(program: bytes) -> Iterator[tuple[str, str]]:
    for module in _each(program, _MODULE):
        for computation in _each(module, _COMPUTATIONS):
            for instruction in _each(computation, _INSTRUCTIONS):
                scope = next((_text(metadata, _OP_NAME) for metadata in _each(instruction, _OP_METADATA)), "")
                yield _text(instruction, 1), scope


def with_nodes(
    events: Sequence[dict[str, Any]], programs: Programs, nodes: Mapping[str, str], *, numbers_hold: bool = True
) -> None:
    """Name events of compiled instructions by their node, too, and add its label and the whole scope.

    If the number of a program does not tell which one ran, an event gets a node only if it would have that node in
    every program with that name that has all instructions that ran.

    Args:
        events: Events, which are changed; those of operations that XLA did not compile may have their `scope` among the
            arguments.
        programs: Programs of the process.
        nodes: Labels by the names of nodes in scopes.
        numbers_hold: Whether a `program_id` is the number of the program that ran, which is false for one from a cache
            on disk.
    """
    ran: dict[tuple[str, Any], set[str]] = {}
    for event in events:
        arguments = event.get("args") or {}
        if "hlo_op" in arguments:
            ran.setdefault(_program_of(arguments), set()).add(arguments["hlo_op"])
    possible = {
        key: _possible(key, instructions, programs, numbers_hold=numbers_hold) for key, instructions in ran.items()
    }
    for event in events:
        arguments = event.get("args") or {}
        name = arguments.get("hlo_op", "")
        scopes = [program.get(name, "") for program in possible.get(_program_of(arguments), ())]
        scopes = scopes or [arguments.get("scope", "")]
        matches = {node_in(scope, nodes) for scope in scopes}
        node = matches.pop() if len(matches) == 1 else None
        if node is not None:
            event["name"] = f"{node}: {event['name']}"
            event["args"] |= {"node": node, "scope": scopes[0]}


def _program_of(arguments: Mapping[str, Any]) -> tuple[str, Any]:
    return arguments.get("hlo_module", ""), arguments.get("program_id")


def _possible(
    key: tuple[str, Any], instructions: Collection[str], programs: Programs, *, numbers_hold: bool
) -> list[Program]:
    """Return the programs that may have run where events of these instructions say this name and number."""
    name, number = key
    if numbers_hold and number is not None:
        program = programs.get((name, int(number) % 2**64))
        return [] if program is None else [program]
    candidates = [program for (other, _), program in programs.items() if other == name]
    return [program for program in candidates if program.keys() >= set(instructions)]


def node_in(scope: str, nodes: Mapping[str, str]) -> str | None:
    """Return the label of the outermost part of a scope that is a node, even where it was differentiated, or None."""
    parts = (_WRAPPERS.sub("", part) for part in scope.split("/"))
    return next((nodes[part] for part in parts if part in nodes), None)


def _text(message: bytes, number: int) -> str:
    return next((value.decode("utf-8", "replace") for value in _each(message, number)), "")


def _each(message: bytes, number: int) -> Iterator[bytes]:
    """Yield the values of a field of text, bytes or messages."""
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
