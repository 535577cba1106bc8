"""Random numbers of the thread that reads a source."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest

from anyaccel import rng
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.phases.loading.source_loader import SourceRandomness


class Stream(AbstractContextManager[Any]):
    """Counts how often it is entered."""

    def __init__(self, key: int) -> None:
        self.key, self.entered, self.draws = key, 0, 0

    def __enter__(self) -> Stream:
        self.entered += 1
        return self

    def __exit__(self, *exception: object) -> None:
        pass


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[Stream]:
    """Those that the NumPy backend was asked for."""
    made: list[Stream] = []

    def thread_rng(self: NumpyBackend, key: int) -> Stream:
        made.append(Stream(key))
        return made[-1]

    monkeypatch.setattr(NumpyBackend, "thread_rng", thread_rng)
    return made


def read(randomness: SourceRandomness, streams: list[Stream], draws: list[int]) -> None:
    for count in draws:
        with randomness.drawing():
            if streams:
                streams[-1].draws += count


def test_a_source_that_draws_has_a_stream_in_every_read(streams: list[Stream]) -> None:
    first = SourceRandomness(1).next(rng.key(3, "source", 0))
    read(first, streams, [0, 0, 1])
    second = first.next(rng.key(3, "source", 1))
    read(second, streams, [1, 1, 1])
    assert [stream.entered for stream in streams] == [3, 3]
    assert [stream.key for stream in streams] == [rng.key(3, "source", epoch) for epoch in (0, 1)]


def test_a_source_that_draws_at_its_beginning_is_watched_there_alone_from_the_second_epoch_on(
    streams: list[Stream],
) -> None:
    """A loader that shuffles draws the order when it is opened, and nothing afterwards."""
    first = SourceRandomness(1).next(rng.key(3, "source", 0))
    read(first, streams, [2, 0, 0])
    second = first.next(rng.key(3, "source", 1))
    read(second, streams, [2, 0, 0])
    read(second.next(rng.key(3, "source", 2)), streams, [2, 0, 0])
    assert [stream.entered for stream in streams] == [3, 1, 1]


def test_an_epoch_of_one_read_says_nothing_of_the_others(streams: list[Stream]) -> None:
    first = SourceRandomness(1).next(rng.key(3, "source", 0))
    read(first, streams, [0])
    read(first.next(rng.key(3, "source", 1)), streams, [0, 0])
    assert [stream.entered for stream in streams] == [1, 2]


def test_an_epoch_whose_first_read_has_all_rows_says_nothing_of_the_next_one(streams: list[Stream]) -> None:
    """Its second read finds the end. The next epoch, in more reads, would draw from what the training draws from."""
    first = SourceRandomness(1).next(rng.key(3, "source", 0))
    read(first, streams, [35, 0])
    read(first.next(rng.key(3, "source", 1)), streams, [20, 15, 0])
    assert [stream.entered for stream in streams] == [2, 3]


def test_a_source_that_begins_to_draw_is_watched_in_the_whole_epoch(streams: list[Stream]) -> None:
    """Such as one whose augmentation begins with the second epoch."""
    first = SourceRandomness(1).next(rng.key(3, "source", 0))
    read(first, streams, [2, 0, 0])
    read(first.next(rng.key(3, "source", 1)), streams, [7, 5, 5])
    assert [stream.entered for stream in streams] == [3, 3]
