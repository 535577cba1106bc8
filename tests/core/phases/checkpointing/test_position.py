"""Position: plain data and arrays, and back; what is malformed is one kind of error."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel.errors import StateError
from anyaccel.phases.checkpointing.position import Position
from anyaccel.phases.loading.loader import SourcePosition
from anyaccel.results.records import Epoch

FULL = Position(
    phase="train",
    epoch=2,
    number=5,
    step=3,
    history=(Epoch(3, 0.5, {"net": 0.5}, 4, 0.1, {"loss": float("inf")}), Epoch(4, float("nan"), {}, 4, 0.1)),
    losses={"net": (1.5, 12.0), "bad": (float("-inf"), 1.0)},
    random=[{"draws": np.array(7)}, {}],
    replicas=2,
    source=SourcePosition(
        draws=True,
        states={
            "global python": (3, (1, 2), None),
            "rng": np.random.default_rng(0).bit_generator.state,
            "global numpy": np.random.RandomState(3).get_state(legacy=False),
        },
        held={"sampler.generator": np.arange(9, dtype=np.uint8)},
        sample={"x": np.arange(6.0).reshape(3, 2)},
    ),
    frameworks={"net": "torch"},
    callbacks=[("EarlyStopping", {"best": float("nan"), "best_epoch": -1}), ("Own", {"a": np.arange(3), "b": "text"})],
    best={"net/parameters/w": np.ones((2, 2), "float32")},
    stop_reason="enough",
    score=0.25,
)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5)


def test_there_and_back():
    parts, arrays = FULL.to_parts()
    np.testing.assert_equal(
        Position.from_parts(json.loads(json.dumps(parts, allow_nan=False)), arrays).to_parts(), (parts, arrays)
    )
    assert Position.from_parts(parts, arrays).history[0] == FULL.history[0]


def test_names_are_ordered_like_positions():
    places = [(0, 0), (0, 9), (0, 10), (1, 0), (10, 2)]
    names = [Position(phase="p", epoch=epoch, number=0, step=step).name for epoch, step in places]
    assert names == sorted(names)


@given(st.data())
def test_what_is_malformed_is_a_state_error(data):
    """One entry, at any depth, exchanged or removed: either it is read, or it is a StateError."""
    parts, arrays = FULL.to_parts()
    parts = copy.deepcopy(parts)
    place = parts
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        inner = place[key]
        if not (isinstance(inner, (dict, list)) and inner) or data.draw(st.booleans()):
            break
        place = inner
    if data.draw(st.booleans()):
        place[key] = data.draw(JSON)
    else:
        del place[key]
    try:
        Position.from_parts(parts, arrays)
    except StateError as error:
        assert "malformed" in error.problem


@pytest.mark.parametrize("given_parts", [None, [], "text", 3, {}])
def test_what_is_no_position_at_all(given_parts):
    with pytest.raises(StateError, match=r"is malformed: .*use another checkpoint of the folder"):
        Position.from_parts(given_parts, {})
