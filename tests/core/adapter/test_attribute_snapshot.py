"""AttributeSnapshot: what a trial call changes in an object is as before."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import numpy as np

from anyaccel.adapter.attribute_snapshot import AttributeSnapshot


def test_attributes_and_what_they_hold_are_as_before():
    array, helper = np.zeros(3), SimpleNamespace(count=0, seen=[1])
    part = SimpleNamespace(n=1, center=array, seen=[1], by={"a": [2]}, last=deque([1], 2), known={1}, helper=helper)
    before = dict(vars(part))
    snapshot = AttributeSnapshot([part], vars)
    for _ in range(2):
        part.n, part.center, part.new = 2, array + 1, "new"
        array += 1
        part.seen.append(2)
        part.by["a"].append(3)
        part.by["b"] = 4
        part.last.extend((2, 3))
        part.known.add(2)
        helper.count += 1
        helper.seen.clear()
        snapshot.restore()
        assert vars(part) == before and part.center is array and not array.any()
        assert (part.seen, part.by, part.last, part.known) == ([1], {"a": [2]}, deque([1]), {1})
        assert (helper.count, helper.seen) == (0, [1])


def test_only_the_named_attributes_are_restored():
    part = SimpleNamespace(a=1, b=1)
    snapshot = AttributeSnapshot([part], lambda part: ["a"])
    part.a = part.b = 2
    snapshot.restore()
    assert (part.a, part.b) == (1, 2)


def test_parts_may_be_left_as_they_are_now():
    parts = [SimpleNamespace(n=0), SimpleNamespace(n=0)]
    snapshot = AttributeSnapshot(parts, vars)
    parts[0].n = parts[1].n = 1
    snapshot.restore(unless=lambda part: part is parts[0])
    assert [part.n for part in parts] == [1, 0]


def test_cycles_and_objects_without_attributes_are_no_matter():
    part = SimpleNamespace()
    part.itself, part.items = part, [object(), int, len, np]
    part.items.append(part.items)
    AttributeSnapshot([part, object(), 3], lambda part: vars(part)).restore()
    assert len(part.items) == 5
