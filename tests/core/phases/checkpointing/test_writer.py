"""Background writer: pauses are bounded, end when somebody waits, and change nothing of what is written."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import count

import numpy as np
import pytest

from anyaccel.phases.checkpointing.checkpointer import BackgroundWriter
from anyaccel.saved_folder import tensor_file


@pytest.fixture
def writer() -> Iterator[BackgroundWriter]:
    """Ends with the test."""
    writer = BackgroundWriter()
    yield writer
    writer.wait()


def work(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_without_time_for_pauses_there_are_none(writer: BackgroundWriter) -> None:
    given: list[Callable[[], object] | None] = []
    writer.start(given.append)
    writer.wait()
    assert given == [None]


def test_pauses_take_most_of_the_time_and_no_more_than_given(writer: BackgroundWriter) -> None:
    seconds: list[float] = []

    def write(pause: Callable[[], object] | None) -> None:
        assert pause is not None
        for _ in range(2):
            work(0.002)
            before = time.perf_counter()
            pause()
            seconds.append(time.perf_counter() - before)

    writer.start(write, 0.12)
    while writer.is_busy:
        time.sleep(0.001)
    assert seconds[0] >= 0.097  # 49 times the work
    assert sum(seconds) >= 0.119  # all that is given: the second would take as long


def test_who_waits_ends_the_pauses(writer: BackgroundWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    hours = count(step=3600.0)
    monkeypatch.setattr("anyaccel.phases.checkpointing.checkpointer.time.perf_counter", lambda: next(hours))
    pausing, pieces = threading.Event(), []

    def write(pause: Callable[[], object] | None) -> None:
        assert pause is not None
        for piece in range(100):
            pausing.set()
            pause()  # hours, if nobody waits
            pieces.append(piece)

    writer.start(write, 1e9)
    pausing.wait()
    assert not pieces and writer.is_busy
    writer.wait()
    assert len(pieces) == 100


def test_the_next_function_comes_after_the_one_before_and_pauses_again(writer: BackgroundWriter) -> None:
    order: list[str] = []

    def write(name: str) -> Callable[[Callable[[], object] | None], None]:
        def act(pause: Callable[[], object] | None) -> None:
            order.append(f"{name} begins")
            work(0.005)
            before = time.perf_counter()
            assert pause is not None
            pause()
            order.append(f"{name} ends")
            waits.append(time.perf_counter() - before)

        return act

    waits: list[float] = []
    writer.start(write("first"), 60.0)
    writer.start(write("second"), 60.0)
    while writer.is_busy:
        time.sleep(0.001)
    assert order == ["first begins", "first ends", "second begins", "second ends"]
    assert waits[1] >= 0.044  # nobody waited for the second


def test_what_it_raises_comes_out_of_the_next_call(writer: BackgroundWriter) -> None:
    def write(pause: object) -> None:
        raise OSError("no space left")

    writer.start(write, 1.0)
    with pytest.raises(OSError, match="no space left"):
        writer.wait()
    writer.wait()


@pytest.mark.parametrize("size", [0, 1, 2**18, 2**18 + 1, 700_001])
def test_a_file_written_with_pauses_is_the_same_file(size: int) -> None:
    arrays = {"a": np.arange(size, dtype=np.float32), "b": np.float64(3.5).reshape(()), "c": np.ones((3, 0))}
    plain, paced, pauses = BytesIO(), BytesIO(), []
    expected = tensor_file.write(plain, arrays)
    assert tensor_file.write(paced, arrays, pause=lambda: pauses.append(1)) == expected
    assert paced.getvalue() == plain.getvalue()
    assert len(pauses) == -(-size * 4 // 2**20) + 1


def test_copies_use_the_memory_of_the_previous_ones_where_it_fits(writer: BackgroundWriter) -> None:
    first = writer.copies([("w", np.arange(6.0).reshape(2, 3)), ("b", np.arange(3)), ("gone", np.ones(2))])
    second = writer.copies(
        [("w", np.arange(6.0).reshape(3, 2).T), ("b", np.arange(4)), ("n", np.array(7)), ("e", np.ones((0, 2)))]
    )
    assert np.shares_memory(first["w"], second["w"])
    assert second["w"].tolist() == [[0, 2, 4], [1, 3, 5]]
    assert second["b"].tolist() == [0, 1, 2, 3]
    assert first["b"].tolist() == [0, 1, 2]
    assert (int(second["n"]), second["e"].shape) == (7, (0, 2))
    assert set(second) == {"w", "b", "n", "e"}


def test_a_copy_waits_for_the_function_that_reads_the_previous_one(writer: BackgroundWriter) -> None:
    array, read = np.zeros(4), []
    copies, go = writer.copies([("w", array)]), threading.Event()

    def write(pause: Callable[[], object] | None) -> None:
        go.wait(10)
        read.append(copies["w"].tolist())

    writer.start(write)
    array += 1
    threading.Timer(0.05, go.set).start()
    assert writer.copies([("w", array)])["w"].tolist() == [1, 1, 1, 1]
    assert read == [[0, 0, 0, 0]]


def test_a_closed_writer_holds_no_copies(writer: BackgroundWriter) -> None:
    copy = weakref.ref(writer.copies([("w", np.zeros(4))])["w"])
    assert copy() is not None
    writer.close()
    assert copy() is None
