"""Workers: how many are suggested, and which are refused."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from anyaccel import hookimpl
from anyaccel.data import IterableSource, suggested_num_workers
from anyaccel.data.streaming import dataloader_workers as module
from anyaccel.errors import SourceError
from anyaccel.plugin_testing import TinyBackend
from anyaccel.registry import Registry

FORK = "fork" in multiprocessing.get_all_start_methods()


@pytest.mark.parametrize(
    ("devices", "cores", "advised"),
    [(1, 1, 0), (4, 1, 0), (1, 2, 1), (1, 4, 3), (1, 9, 8), (1, 64, 8), (2, 8, 3), (4, 8, 1), (8, 8, 1), (8, 64, 7)],
)
def test_suggested_workers(devices: int, cores: int, advised: int) -> None:
    assert suggested_num_workers(devices, cores) == advised


def test_cores_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 <= suggested_num_workers() <= 8
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert suggested_num_workers() == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert suggested_num_workers() == 0


@pytest.mark.parametrize("given", [{"devices": 0}, {"devices": True}, {"cores": 0}, {"cores": 2.5}])
def test_invalid_numbers_of_devices_or_cores(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(SourceError, match=f"suggested_num_workers: {name} must be a whole number of 1 or more"):
        suggested_num_workers(**given)


class Loader:
    """The interface of a loader with workers."""

    def __init__(self, num_workers: int = 2, multiprocessing_context: Any = None) -> None:
        self.num_workers = num_workers
        self.multiprocessing_context = multiprocessing_context

    def __iter__(self) -> Iterator[Any]:
        yield np.ones(3)


class Threaded(TinyBackend):
    """A framework whose runtime keeps threads; it serves models of a library that has other frameworks below, too."""

    fork_safe = False

    def __init__(self) -> None:
        super().__init__("threaded")
        self.import_roots = ("threads_of_its_own", "layers_for_many")


class Plugin:
    """The plugin of `Threaded`."""

    contract = 2

    @hookimpl
    def backends(self) -> list[Any]:
        return [Threaded()]


@pytest.fixture
def threaded(numpy_only: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework that keeps threads is loaded in this process."""
    numpy_only.register(Plugin(), "threaded")
    monkeypatch.setitem(sys.modules, "threads_of_its_own", object())


@pytest.mark.skipif(not FORK, reason="nothing is forked here")
@pytest.mark.parametrize("context", ["fork", "object", "default"])
def test_forks_beside_threads_are_refused(threaded: None, context: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: "fork")
    given = {"fork": "fork", "object": multiprocessing.get_context("fork"), "default": None}[context]
    with pytest.raises(
        SourceError, match=r"2 workers of source 's' would be forked while these run: threaded.*'forkserver'"
    ):
        IterableSource("s", Loader(multiprocessing_context=given), features="x")
    made = IterableSource("s", lambda: Loader(multiprocessing_context=given), features="x")
    with pytest.raises(SourceError, match=r"would be forked"):
        next(made.batches(0))


@pytest.mark.skipif(not FORK, reason="nothing is forked here")
def test_the_default_start_method_is_read_without_fixing_it(threaded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: None)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["fork", "spawn"])
    with pytest.raises(SourceError, match=r"would be forked"):
        IterableSource("s", Loader(), features="x")
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["forkserver", "fork", "spawn"])
    assert len(list(IterableSource("s", Loader(), features="x").batches(0))) == 1


@pytest.mark.parametrize("loader", [Loader(0, "fork"), Loader(2, "spawn"), Loader(2, "forkserver"), Loader(True)])
def test_other_workers_are_not(threaded: None, loader: Loader) -> None:
    assert len(list(IterableSource("s", loader, features="x").batches(0))) == 1


def test_a_framework_that_comes_later_is_seen(numpy_only: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    numpy_only.register(Plugin(), "threaded")
    made = IterableSource("s", Loader(2, "fork"), features="x")
    monkeypatch.setitem(sys.modules, "layers_for_many", object())
    assert len(list(made.batches(0))) == 1
    monkeypatch.setitem(sys.modules, "threads_of_its_own", object())
    with pytest.raises(SourceError, match=r"would be forked"):
        next(made.batches(1))


def test_more_workers_than_cores_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: 4)
    assert IterableSource("s", Loader(4, "spawn"), features="x").notes() == ()
    assert IterableSource("s", [np.ones(2)], features="x").notes() == ()
    (note,) = IterableSource("s", Loader(5, "spawn"), features="x").notes()
    assert note == "source 's' has 5 workers on 4 cores; 3 are recommended for each device"


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (RuntimeError("DataLoader worker (pid(s) 12, 13) exited unexpectedly"), True),
        (RuntimeError("DataLoader worker (pid 12) is killed by signal: Killed. "), True),
        (ConnectionResetError(104, "Connection reset by peer"), True),
        (EOFError(), True),
        (EOFError("Caught EOFError in DataLoader worker process 0.\nOriginal Traceback ..."), False),
        (RuntimeError("DataLoader timed out after 5 seconds"), False),
        (RuntimeError("Caught RuntimeError in DataLoader worker process 0.\nDataLoader worker (pid 1) is it"), False),
    ],
)
def test_an_ended_worker_is_told_from_code_that_raises(error: Exception, ended: bool) -> None:
    assert module.worker_ended(error) is ended


def test_a_batch_of_an_ended_worker_says_what_to_do() -> None:
    class Loader:
        num_workers, multiprocessing_context = 1, "spawn"

        def __iter__(self) -> Any:
            yield {"x": np.zeros(2)}
            raise RuntimeError("DataLoader worker (pid 12) is killed by signal: Killed. ")

    with pytest.raises(SourceError) as told:
        list(IterableSource("s", Loader(), features="x").batches(3))
    assert str(told.value) == (
        "batch 1 of source 's' in epoch 3 (both counted from 0) did not arrive: RuntimeError: DataLoader worker (pid "
        "12) is killed by signal: Killed. Hint: the worker was killed, often because memory ran out, or it exited: use "
        "fewer workers, or num_workers=0 to read in this process."
    )


class Part:
    """A sampler of one of several parts, as torch's DistributedSampler."""

    num_replicas, rank = 2, 1


class Sampled:
    """A loader with a sampler: a list of batches, with attributes as torch's."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __iter__(self) -> Any:
        yield {"x": np.zeros(2)}


def test_a_loader_of_one_part_of_the_rows_is_refused_and_a_function_takes_it() -> None:
    batches = type("Batches", (), {"sampler": Part()})()
    shard = type("Shard", (), {"num_processes": 4, "process_index": 0})()
    for loader in (Sampled(sampler=Part()), Sampled(batch_sampler=batches), Sampled(dataset=shard)):
        with pytest.raises(
            SourceError, match=r"the loader of source 's' reads 1 of [24] parts of its rows.*lambda: loader"
        ):
            IterableSource("s", loader, features="x")
        part = IterableSource("s", lambda it=loader: it, features="x")
        assert len(list(part.batches(0))) == 1
    whole = type("One", (), {"num_replicas": 1, "rank": 0})()
    assert IterableSource("s", Sampled(sampler=whole), features="x").example.columns == ("x",)
