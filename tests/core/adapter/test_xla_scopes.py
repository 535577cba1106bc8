"""Scopes in profiles of XLA: read from a profile that is written here field by field, and from bytes of any kind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel.adapter.xla_scopes import node_in, with_nodes, xla_scopes


def varint(number: int) -> bytes:
    low, high = number & 127, number >> 7
    return bytes([low | 128]) + varint(high) if high else bytes([low])


def field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def profile(instructions: dict[str, str], plane: str = "/host:metadata", program_id: int = 1) -> bytes:
    computed = b"".join(field(2, field(1, name) + field(7, field(2, scope))) for name, scope in instructions.items())
    program = field(1, field(1, "jit_f") + field(3, field(1, "main") + computed))
    fixed = varint(9 << 3 | 1) + bytes(8) + varint(10 << 3 | 5) + bytes(4)
    metadata = field(1, 300) + field(2, f"jit_f({program_id})") + field(5, fixed + field(1, 7) + field(6, program))
    return field(1, field(1, 5) + field(2, plane) + field(4, field(1, 300) + field(2, metadata))) + field(2, "host")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)


@given(st.dictionaries(TEXT, TEXT, max_size=5))
def test_every_scope_of_a_profile_is_found(instructions):
    assert xla_scopes(profile(instructions)) == {(1, name): scope for name, scope in instructions.items()}
    assert xla_scopes(profile(instructions, "/host:CPU")) == {}


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_or_have_no_scope(content):
    try:
        scopes = xla_scopes(content)
    except ValueError:
        return
    assert all(isinstance(text, str) for (_, name), scope in scopes.items() for text in (name, scope))


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_profile_that_is_cut_off_is_refused(cut):
    with pytest.raises(ValueError, match=r"cut off|longer"):
        xla_scopes(profile({"dot": "jit(f)/head/dot"})[: -cut - 6])


@pytest.mark.parametrize(
    ("scope", "node"),
    [
        ("jit(f)/head/dot_general", "head"),
        ("jit(f)/transpose(jvp(head))/dot_general", "head"),
        ("jit(f)/while/body/jvp(a)/head/add", "a"),
        ("gradient_tape/head/MatMul", "head"),
        ("jit(f)/header/dot", None),
        ("", None),
    ],
)
def test_the_outermost_node_of_a_scope_counts(scope, node):
    assert node_in(scope, {"head": "head", "a": "a"}) == node


def test_events_are_named_by_node_and_others_stay():
    events = [
        {"name": "dot.1", "args": {"hlo_op": "dot.1", "program_id": 1}},
        {"name": "add", "args": {"scope": "head/add"}},
        {"name": "copy", "args": {"hlo_op": "copy", "program_id": 1}},
        {"name": "thread"},
        {},
    ]
    with_nodes(events, {(1, "dot.1"): "jit(f)/head/dot", (1, "copy"): "jit(f)/copy"}, {"head": "the head"})
    assert [event.get("name") for event in events] == ["the head: dot.1", "the head: add", "copy", "thread", None]
    assert events[0]["args"]["node"] == "the head"


def test_an_instruction_is_looked_up_in_the_program_that_ran():
    largest = 2**64 - 1  # the numbers of programs are not signed there, and are signed in events
    scopes = xla_scopes(profile({"dot.1": "jit(f)/head/dot", "dot.2": "jit(f)/head/dot"}, program_id=largest))
    scopes |= xla_scopes(profile({"dot.1": "jit(f)/encoder/dot", "dot.2": "jit(f)/head/dot"}, program_id=7))
    events = [
        {"name": f"dot.{number}", "args": {"hlo_op": f"dot.{number}"} | ({"program_id": program} if program else {})}
        for number in (1, 2)
        for program in (-1, 7, 8, None)
    ]
    with_nodes(events, scopes, {"head": "head", "encoder": "encoder"})
    named = [event["args"].get("node") for event in events]
    assert named == ["head", "encoder", None, None, "head", "head", None, "head"]  # which of both ran last, is all one
