"""Prefetch: items in order, a bounded number ahead, and the thread always ends."""

from __future__ import annotations

import gc
import importlib
import itertools
import threading
import time
import weakref
from collections.abc import Generator, Iterator
from contextlib import closing

import pytest

from anyaccel.phases.loading import prefetch


def thread() -> threading.Thread | None:
    return next((item for item in threading.enumerate() if item.name == "anyaccel-prefetch"), None)


def test_items_come_in_order() -> None:
    assert list(prefetch.prefetch(lambda: (i for i in range(100)))) == list(range(100))  # type: ignore[arg-type]


def test_an_empty_generator_yields_nothing() -> None:
    assert list(prefetch.prefetch(lambda: (i for i in ()))) == []  # type: ignore[arg-type]


def test_no_thread_starts_before_the_first_item_is_requested() -> None:
    made = prefetch.prefetch(lambda: (i for i in range(3)))  # type: ignore[arg-type]
    assert thread() is None
    made.close()


def test_at_most_depth_and_one_items_are_prefetched() -> None:
    seen: list[int] = []
    waits = threading.Event()

    def make() -> Generator[int]:
        for i in range(50):
            seen.append(i)
            if i == 3:
                waits.set()
            yield i

    with closing(prefetch.prefetch(make, depth=2)) as made:
        assert next(made) == 0 and waits.wait(10)
        time.sleep(0.2)
        assert seen == [0, 1, 2, 3]  # one was given, two wait, one is in the thread's hands
        assert next(made) == 1


class Oops(Exception):
    """Raised by tests."""


@pytest.mark.parametrize("after", [0, 1, 5])
def test_an_error_of_the_generator_is_raised_in_its_place(after: int) -> None:
    def make() -> Generator[int]:
        yield from range(after)
        raise Oops("no more")

    made, result = prefetch.prefetch(make), []
    with pytest.raises(Oops, match="no more"):
        for item in made:
            result.append(item)
    assert result == list(range(after)) and thread() is None


def test_an_error_of_the_generator_leaves_no_reference_cycle() -> None:
    class Held:
        pass

    refs = []

    def make() -> Generator[Held]:
        held = Held()
        refs.append(weakref.ref(held))
        yield held
        raise Oops("no more")

    gc.collect()
    gc.disable()
    try:
        try:
            for item in prefetch.prefetch(make):
                del item
        except Oops as error:
            error.__traceback__ = None
        assert refs[0]() is None
    finally:
        gc.enable()


def test_an_error_that_comes_when_the_loop_has_ended_is_dropped() -> None:
    """Also what its frames hold, and also if it is queued at the last moment."""

    class Held:
        pass

    refs, go = [], threading.Event()

    def make() -> Generator[int]:
        held = Held()
        refs.append(weakref.ref(held))
        yield 0
        go.wait(10)
        raise Oops(held)

    gc.collect()
    gc.disable()
    try:
        for wait in (0.0, 0.0002, 0.002, 0.02) * 3:
            with closing(prefetch.prefetch(make)) as made:
                next(made)
                go.set()
                time.sleep(wait)
            go.clear()
        assert all(ref() is None for ref in refs)
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [KeyboardInterrupt, Oops, GeneratorExit])
def test_the_generator_is_closed_and_its_thread_ends_when_the_loop_fails(error: type[BaseException]) -> None:
    closed = []

    def make() -> Generator[int]:
        try:
            yield from itertools.count()
        finally:
            closed.append(threading.current_thread().name)

    with pytest.raises(error), closing(prefetch.prefetch(make)) as made:
        for item in made:
            if item == 4:
                raise error
    assert closed == ["anyaccel-prefetch"] and thread() is None


def test_nothing_is_prefetched_after_the_loop_ended_early() -> None:
    made: list[int] = []

    def make() -> Generator[int]:
        for i in itertools.count():
            made.append(i)
            yield i

    with closing(prefetch.prefetch(make)) as result:
        next(result)
    count = len(made)
    time.sleep(0.1)
    assert len(made) == count <= 4


def test_a_slow_generator_is_joined_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("anyaccel.phases.loading.prefetch"), "JOIN_SECONDS", 0.05)
    go, closed = threading.Event(), threading.Event()

    def make() -> Generator[int]:
        try:
            yield 0
            go.wait(30)
            yield 1
        finally:
            closed.set()

    with closing(prefetch.prefetch(make)) as result:
        next(result)
    slow = thread()
    assert slow is not None and slow.daemon and not closed.is_set()
    go.set()
    assert closed.wait(10)
    slow.join(10)
    assert not slow.is_alive()


def interrupted(after: float) -> Iterator[threading.Timer]:
    import _thread

    timer = threading.Timer(after, _thread.interrupt_main)
    timer.start()
    yield timer
    timer.join()


def test_an_interrupt_while_waiting_for_a_slow_generator_is_raised_within_a_second() -> None:
    go = threading.Event()

    def make() -> Generator[int]:
        go.wait(30)
        yield 0

    timer = interrupted(0.2)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), closing(prefetch.prefetch(make)) as result:
        next(timer)
        next(result)
    seconds = time.monotonic() - began
    slow = thread()
    go.set()
    list(timer)
    if slow is not None:
        slow.join(10)
    assert seconds < 10  # 0.2 until the interrupt, and 1 of patience; machines are slow, but nobody waited for 30


def test_an_interrupt_before_the_thread_starts_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        next(prefetch.prefetch(lambda: (i for i in range(3))))  # type: ignore[arg-type]


def test_an_item_is_not_kept_while_the_next_is_waited_for() -> None:
    class Block:
        pass

    refs: list[weakref.ref[Block]] = []

    def make() -> Generator[Block]:
        for _ in range(4):
            block = Block()
            refs.append(weakref.ref(block))
            yield block
            del block

    alive = []
    for item in prefetch.prefetch(make):
        del item
        alive.append(sum(ref() is not None for ref in refs))
    assert max(alive) <= 4 and all(ref() is None for ref in refs)


def test_without_memory_for_a_thread_blocks_are_an_out_of_memory_failure_and_calls_are_made_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(MemoryError, match="can't start new thread"):
        next(prefetch.prefetch(lambda: (item for item in range(3))))
    assert prefetch.BackgroundCall(divmod, 7, 2).result() == (3, 1)
    with pytest.raises(ZeroDivisionError):
        prefetch.BackgroundCall(divmod, 7, 0).result()
