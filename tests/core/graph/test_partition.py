"""Partition: convex segments of one owner, in topological order."""

from __future__ import annotations

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from anyaccel.graph.resolve import cut


@st.composite
def graphs(draw):
    """An order, an owner for each node, and its parents."""
    order = [f"n{i}" for i in range(draw(st.integers(1, 9)))]
    owner = {label: draw(st.sampled_from("AB" if draw(st.booleans()) else "ABC")) for label in order}
    parents = {
        label: draw(st.lists(st.sampled_from(order[:i]), unique=True)) if i else [] for i, label in enumerate(order)
    }
    return order, owner, parents


def descendants(order, parents):
    """For each node, every node that depends on it."""
    found = {label: set() for label in order}
    for label in order:
        for other in order:
            if other in parents[label] or any(up in found[other] for up in parents[label]):
                found[other].add(label)
    return found


@given(graphs())
@example((["a", "b", "c"], {"a": 1, "b": 2, "c": 1}, {"a": [], "b": ["a"], "c": ["b", "a"]}))
def test_every_cut_is_a_partition_into_convex_segments_of_one_owner_in_order(graph):
    order, owner, parents = graph
    segments = cut(order, owner, parents)
    assert sorted(label for segment in segments for label in segment) == sorted(order)
    position = {label: i for i, segment in enumerate(segments) for label in segment}
    after = descendants(order, parents)
    for segment in segments:
        assert len({owner[label] for label in segment}) == 1
        assert segment == sorted(segment, key=order.index)
        inside = set(segment)
        outside = set(order) - inside
        leaves = {label for label in outside if any(label in after[one] for one in inside)}
        comes_back = {label for label in leaves if after[label] & inside}
        assert not comes_back, f"{segment}: a path leaves it through {comes_back} and comes back"
    assert all(position[up] <= position[label] for label in order for up in parents[label])


@given(graphs())
def test_no_two_segments_that_follow_each_other_directly_could_be_one(graph):
    order, owner, parents = graph
    segments = cut(order, owner, parents)
    after = descendants(order, parents)
    for one, two in itertools.pairwise(segments):
        if owner[one[0]] != owner[two[0]]:
            continue
        inside = {*one, *two}
        between = {x for x in order if x not in inside and any(x in after[y] for y in inside) and after[x] & inside}
        assert between, f"{one} and {two} would be convex together"


@given(graphs())
def test_one_owner_is_one_segment(graph):
    order, _, parents = graph
    assert cut(order, dict.fromkeys(order, "A"), parents) == [order]


def test_two_owners_in_turn_are_three_segments():
    parents = {"a": [], "b": ["a"], "c": ["b"]}
    assert cut("abc", {"a": 1, "b": 2, "c": 1}, parents) == [["a"], ["b"], ["c"]]


def test_two_branches_of_one_owner_around_another_are_joined_where_that_stays_convex():
    parents = {"a": [], "b": ["a"], "c": ["a"], "d": ["b"], "e": ["c", "d"]}
    owner = {"a": 1, "b": 2, "c": 1, "d": 2, "e": 1}
    assert cut("abcde", owner, parents) == [["a", "c"], ["b", "d"], ["e"]]


def test_what_depends_on_nothing_joins_without_waiting():
    assert cut("abc", {"a": 1, "b": 2, "c": 1}, {"a": [], "b": ["a"], "c": []}) == [["a", "c"], ["b"]]


def test_a_long_chain_of_two_owners_is_cut_at_every_border():
    order = [f"n{i}" for i in range(600)]
    parents = {label: order[max(i - 1, 0) : i] for i, label in enumerate(order)}
    assert cut(order, {label: i % 2 for i, label in enumerate(order)}, parents) == [[label] for label in order]
