"""Containers with other contents."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

from anyaccel.adapter.nested import map_items

Pair = namedtuple("Pair", "a b")


def test_a_container_keeps_its_type():
    for given, expected in (
        ([1, 2], [2, 4]),
        ((1, 2), (2, 4)),
        (Pair(1, 2), Pair(2, 4)),
        (OrderedDict(a=1, b=2), OrderedDict(a=2, b=4)),
    ):
        found = map_items(given, lambda x: x * 2)
        assert found == expected and type(found) is type(expected)


def test_what_does_not_change_is_the_same_object():
    for given in ([1], {"a": 1}, Pair(1, 2), 5, "text"):
        assert map_items(given, lambda x: x) is given
