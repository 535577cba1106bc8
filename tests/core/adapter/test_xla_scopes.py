"""Scopes in profiles of XLA: read from a profile that is written here field by field, and from bytes of any kind."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel.adapter.xla_scopes import Programs, node_in, with_nodes, xla_programs


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


@given(st.dictionaries(TEXT, TEXT | st.just(""), max_size=5))
def test_every_scope_of_a_profile_is_found(instructions):
    assert xla_programs(profile(instructions)) == {("jit_f", 1): instructions}
    assert xla_programs(profile(instructions, "/host:CPU")) == {}


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_or_have_no_program(content):
    try:
        programs = xla_programs(content)
    except ValueError:
        return
    assert all(isinstance(text, str) for each in programs.values() for pair in each.items() for text in pair)


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_profile_that_is_cut_off_is_refused(cut):
    with pytest.raises(ValueError, match=r"cut off|longer"):
        xla_programs(profile({"dot": "jit(f)/head/dot"})[: -cut - 6])


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


def event(instruction: str, program_id: int | None = None, module: str = "jit_f") -> dict[str, Any]:
    number = {} if program_id is None else {"program_id": program_id}
    return {"name": instruction, "args": {"hlo_op": instruction, "hlo_module": module} | number}


def nodes_of(events: list[dict[str, Any]], programs: Programs, *, numbers_hold: bool = True) -> list[str | None]:
    with_nodes(events, programs, {"head": "head", "encoder": "encoder"}, numbers_hold=numbers_hold)
    return [event["args"].get("node") for event in events]


def test_events_are_named_by_node_and_others_stay():
    events = [
        event("dot.1", 1),
        {"name": "add", "args": {"scope": "head/add"}},
        event("copy", 1),
        {"name": "thread"},
        {},
    ]
    with_nodes(events, {("jit_f", 1): {"dot.1": "jit(f)/head/dot", "copy": "jit(f)/copy"}}, {"head": "the head"})
    assert [event.get("name") for event in events] == ["the head: dot.1", "the head: add", "copy", "thread", None]
    assert events[0]["args"]["node"] == "the head"


LARGEST = 2**64 - 1
"""Numbers of programs are not signed there, and are signed in events."""
SEVERAL = xla_programs(
    profile({"dot.1": "jit(f)/head/dot", "dot.2": "jit(f)/head/dot"}, program_id=LARGEST)
) | xla_programs(profile({"dot.1": "jit(f)/encoder/dot", "dot.2": "jit(f)/head/add"}, program_id=7))


def test_an_instruction_is_looked_up_in_the_program_that_ran():
    assert nodes_of([event("dot.1", -1), event("dot.2", -1)], SEVERAL) == ["head", "head"]
    assert nodes_of([event("dot.1", 7), event("dot.2", 7)], SEVERAL) == ["encoder", "head"]
    assert nodes_of([event("dot.1", 8), event("dot.1", 7, "jit_g")], SEVERAL) == [None, None]


@pytest.mark.parametrize(("program_id", "numbers_hold"), [(None, True), (7, False), (8, False)])
def test_without_a_number_that_holds_all_programs_of_the_name_must_agree(program_id, numbers_hold):
    events = [event("dot.1", program_id), event("dot.2", program_id)]
    assert nodes_of(events, SEVERAL, numbers_hold=numbers_hold) == [None, "head"]
    other = {**SEVERAL, ("jit_g", 9): {"dot.2": "jit(g)/encoder/dot"}, ("jit_f", 9): {"dot.2": "jit(f)/encoder/dot"}}
    events = [event("dot.1", program_id), event("dot.2", program_id)]
    assert nodes_of(events, other, numbers_hold=numbers_hold) == [None, "head"]  # neither of the others can have run
