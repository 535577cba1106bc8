"""Mistakes of a first day: what is said, and that it helps.

Each row has what is written, what the message says, and what obeying its hint is, which is carried out.
"""

from __future__ import annotations

import pytest

import anyaccel as aa
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.registry import Registry

from .data_mistakes import DATA
from .graph_mistakes import GRAPH
from .newcomer import Row
from .running_mistakes import RUNNING
from .training_mistakes import TRAINING

ALL = [*DATA, *GRAPH, *TRAINING, *RUNNING]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy alone: no other plugin that is installed, and no device but the CPU."""
    monkeypatch.setattr("anyaccel.registry._registry", [Registry(NumpyBackend, lambda: ())])


@pytest.mark.parametrize("row", ALL, ids=lambda row: row.name)
def test_a_mistake_is_told_with_a_hint_that_helps(row: Row) -> None:
    with pytest.raises((aa.errors.AnyaccelError, AttributeError), match=f"(?s){row.message}"):
        row.wrong()
    row.right()


def test_there_are_a_hundred_and_each_is_another() -> None:
    assert len(ALL) >= 100
    assert len({row.name for row in ALL}) == len(ALL)
