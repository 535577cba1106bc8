"""Phases over sources: the same numbers as from rows in memory; errors of a source leave nothing behind."""

from __future__ import annotations

import gc
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from neighbours import Neighbours

from anyaccel import AppliedLoss, IterableSource, MapSource, ParquetStream, SimpleSampler, Source
from anyaccel.adapter import ArrayProgram
from anyaccel.data import FeatureSet
from anyaccel.errors import AnyaccelError, ColumnError, ConfigError, OutOfMemoryError, PhaseError, SourceError
from anyaccel.experiment import Experiment
from anyaccel.graph import ConcatNode, ModelGraph, ModelNode
from anyaccel.numpy_backend import Dense, SequentialMLP, simulate
from anyaccel.phases import EvalPhase, TrainPhase, oom_recovery
from anyaccel.phases.callbacks import Callback
from anyaccel.phases.loading import residency as loader_factory
from anyaccel.phases.loading import source_loader
from anyaccel.phases.loading.source_loader import BatchSourceLoader
from anyaccel.phases.progress.log import LineProgress
from anyaccel.segment import TensorSpec
from anyaccel.specs import Optimizer

ROWS = 50
SIZES = (8, 8, 3, 8, 8, 1, 8, 6)  # of batches that differ, and a last one that is small
MSE = AppliedLoss("mse", on="net")
_DRAW = np.random.default_rng(0)
COLUMNS = {
    "a": _DRAW.normal(size=(ROWS, 3)).astype("float32"),
    "b": _DRAW.normal(size=ROWS),  # float64, a scalar
    "k": _DRAW.integers(0, 9, ROWS).astype("int32"),
    "y": _DRAW.normal(size=(ROWS, 1)),
    "c": _DRAW.integers(0, 3, ROWS),
    "id": np.arange(ROWS),
}
FEATURES, TARGETS = ("a", "b", "k"), ("y", "c")
ROLES: dict[str, Any] = {"features": FEATURES, "target": TARGETS, "tags": "id"}


def ours() -> list[str]:
    """Threads of anyaccel."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("anyaccel")]


@pytest.fixture(autouse=True)
def tidy() -> Iterator[None]:
    """No test leaves a thread."""
    assert ours() == []
    yield
    assert ours() == []


def table(label: str = "data", **columns: Any) -> FeatureSet:
    return FeatureSet.from_dict(label, {**COLUMNS, **columns}, FEATURES, TARGETS, ["id"])


def cut(start: int, stop: int) -> dict[str, np.ndarray]:
    return {name: column[start:stop] for name, column in COLUMNS.items()}


def batches(size: int = 8) -> list[dict[str, np.ndarray]]:
    return [cut(start, start + size) for start in range(0, ROWS, size)]


def unequal() -> list[dict[str, np.ndarray]]:
    stops = list(itertools.accumulate(SIZES))
    return [cut(stop - size, stop) for size, stop in zip(SIZES, stops, strict=True)]


def source(given: Any, label: str = "data", **settings: Any) -> IterableSource:
    return IterableSource(label, given, **{**ROLES, **settings})


class Numbered:
    """A map-style data set."""

    def __init__(self, rows: int = ROWS) -> None:
        self.rows, self.read = rows, list[int]()

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        self.read.append(row)
        return {name: column[row] for name, column in COLUMNS.items()}


def graph_of(data: FeatureSet | Source, dtype: str = "float32", **settings: Any) -> ModelGraph:
    node = ModelNode("net", SequentialMLP((1,), 2, 4, "tanh", dtype=dtype), data.reference(FEATURES, ["y"]))
    return ModelGraph([node], Optimizer("adam", lr=0.05), seed=3, **settings)


def phase(data: Any, **settings: Any) -> TrainPhase:
    return TrainPhase("t", **{"data": data, "losses": MSE, "sampler": SimpleSampler(8), "epochs": 3, **settings})


def run(graph: ModelGraph, *phases: Any) -> Any:
    return Experiment("e", graph, progress="none").run(*phases)[-1]


def trained(data: Any, **settings: Any) -> tuple[list[float], dict[str, np.ndarray]]:
    graph = graph_of(table())
    return list(run(graph, phase(data, **settings)).loss), graph.state()


def check_same(one: tuple[list[float], Any], other: tuple[list[float], Any], within: float = 0.0) -> None:
    np.testing.assert_allclose(one[0], other[0], rtol=within)
    assert sorted(one[1]) == sorted(other[1])
    for name, value in one[1].items():
        np.testing.assert_allclose(value, other[1][name], rtol=within, atol=within, err_msg=name)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a step or two."""
    monkeypatch.setattr(loader_factory, "BLOCK_BYTES", 16 * 4 * 6)


# -- the same numbers --------------------------------------------------------------------------------------------------


def parquet(folder: Path, **settings: Any) -> ParquetStream:
    columns = {name: list(value) if value.ndim > 1 else value for name, value in COLUMNS.items()}
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=11)
    return ParquetStream("data", folder / "rows.parquet", **ROLES, **{"sampler": SimpleSampler(8), **settings})


KINDS: dict[str, Callable[[Path], Any]] = {
    "list": lambda _: batches(),
    "generator function": lambda _: lambda: iter(batches()),
    "batches": lambda _: source(batches()),
    "arrow": lambda _: source(lambda: (pa.table({n: list(c) for n, c in part_.items()}) for part_ in batches())),
    "by position": lambda _: [tuple(element[name] for name in (*FEATURES, *TARGETS)) for element in batches()],
    "other label": lambda _: {"data": source(batches(), "elsewhere")},
    "dataset": lambda _: Numbered(),
    "items": lambda _: MapSource("data", Numbered(), workers=2, **ROLES),
    "items of another label": lambda _: {"data": MapSource("elsewhere", Numbered(), **ROLES)},
    "parquet": parquet,
}


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_a_feature_set(kind: str, accumulate: int, tmp_path: Path, small_blocks: None) -> None:
    wanted = trained(table(), accumulate=accumulate)
    check_same(trained(KINDS[kind](tmp_path), accumulate=accumulate), wanted)


def test_blocks_of_any_size_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = trained(table())
    for nbytes in (1, 500, 700, 10**6):
        monkeypatch.setattr(loader_factory, "BLOCK_BYTES", nbytes)
        check_same(trained(batches()), wanted)
    monkeypatch.setattr(source_loader, "BLOCK_SECONDS", 0.0)
    check_same(trained(batches()), wanted)
    check_same(trained(Numbered()), wanted)


def test_items_are_shuffled_as_rows_are(small_blocks: None) -> None:
    sampler = SimpleSampler(8, shuffle=True, seed=5)
    data = Numbered()
    check_same(trained(data, sampler=sampler), trained(table(), sampler=sampler))
    assert sorted(data.read[-ROWS:]) == list(range(ROWS)) != data.read[-ROWS:]


def test_pairs_of_items_are_those_of_rows() -> None:
    data = FeatureSet.from_dict("data", COLUMNS, FEATURES, ("y",), ["c"])

    def losses(given: Any) -> list[float]:
        one = ModelNode("net", Dense(1), data.reference(FEATURES, ["y"]))
        two = ModelNode("pair", Dense(1), data.reference(FEATURES, ["y"], stream="pair"))
        drawn = Neighbours(8, "c", seed=2)
        on = [MSE, AppliedLoss("mse", on="pair")]
        return list(run(ModelGraph([one, two], Optimizer("sgd", lr=0.1)), phase(given, sampler=drawn, losses=on)).loss)

    items = MapSource("data", Numbered(), features=FEATURES, target="y", tags="c")
    assert losses(items) == losses(data)


def test_unequal_batches_are_weighted_by_their_rows(at: Any) -> None:
    seen: list[float] = []
    heard = at("step_end", lambda run: seen.append(run.step_losses()["net"]))
    losses, _ = trained(unequal(), epochs=1, callbacks=[heard])
    assert losses == trained(unequal(), epochs=1)[0]
    assert len(seen) == len(SIZES)
    np.testing.assert_allclose(losses[0], np.average(seen, weights=SIZES), rtol=1e-6)


@pytest.mark.parametrize("kind", [list, lambda found: lambda: iter(found)])
def test_unequal_batches_are_accumulated_by_their_rows(kind: Any, small_blocks: None) -> None:
    """Updates of 3, 3 and 2 batches are those of single batches with as many rows."""
    parts = [sum(SIZES[first : first + 3]) for first in range(0, len(SIZES), 3)]
    stops = list(itertools.accumulate(parts))
    whole = [cut(stop - size, stop) for size, stop in zip(parts, stops, strict=True)]
    graph = graph_of(table(), "float64")
    results = run(graph, phase(kind(unequal()), accumulate=3))
    other = graph_of(table(), "float64")
    assert [epoch.steps for epoch in results.epochs] == [3, 3, 3]
    check_same((list(results.loss), graph.state()), (list(run(other, phase(whole)).loss), other.state()), 1e-12)


def test_dtypes_and_shapes_are_those_of_the_model() -> None:
    """float32 and float64, vectors and scalars, integers among them, joined for models of either."""
    for dtype in ("float32", "float64"):
        states = []
        for data in (table(), batches()):
            graph = graph_of(table(), dtype)
            run(graph, phase(data))
            states.append(graph.state())
        check_same(([], states[0]), ([], states[1]))


def test_class_indices_are_targets_too() -> None:
    def losses(data: Any) -> list[float]:
        node = ModelNode("net", Dense(3), table().reference(FEATURES, ["c"]))
        on = AppliedLoss("cross_entropy", on="net")
        return list(run(ModelGraph([node], Optimizer("sgd", lr=0.1)), phase(data, losses=on)).loss)

    assert losses(batches()) == losses(Numbered()) == losses(table())
    bad = batches()
    bad[3] = {**bad[3], "c": np.full(8, 7)}
    with pytest.raises(SourceError, match=r"batch 3 of source 'data' in epoch 0 .*class index 7") as caught:
        losses(bad)
    assert "the model has 3 classes" in str(caught.value)


def test_integers_that_floats_cannot_hold_are_refused() -> None:
    bad = batches()
    bad[2] = {**bad[2], "k": np.full(8, 2**24 + 1, "int32")}
    with pytest.raises(SourceError, match=r"batch 2 of .*'k' is joined with floats as float32.*16777217"):
        trained(bad)


def test_two_nodes_and_two_roles_read_one_source() -> None:
    def losses(data: Any) -> list[float]:
        rows = table()
        one = ModelNode("net", Dense(1), rows.reference(["a"], ["y"]))
        two = ModelNode("two", Dense(1, dtype="float64"), rows.reference(["a", "b"], ["y"]))
        on = [MSE, AppliedLoss("mse", on="two", weight=0.5)]
        return list(run(ModelGraph([one, two], Optimizer("sgd", lr=0.1)), phase(data, losses=on)).loss)

    assert losses(batches()) == losses(table())


def test_late_copies_of_a_device_change_no_number(small_blocks: None) -> None:
    """A simulated device shows garbage until a copy has arrived, and reads buffers late."""
    wanted = trained(table())
    with simulate(1):
        for data in (batches(), unequal(), Numbered()):
            on_device = trained(data, accelerator="sim:0")
            check_same(on_device, wanted if not isinstance(data, list) or data[2]["id"].size == 8 else trained(data))


def test_a_source_may_reuse_its_memory(small_blocks: None) -> None:
    def reused() -> Iterator[dict[str, np.ndarray]]:
        memory = {name: np.empty_like(column[:8]) for name, column in COLUMNS.items()}
        for batch in batches():
            for name, column in batch.items():
                memory[name][: len(column)] = column
            yield {name: memory[name][: len(batch["id"])] for name in memory}
            for column in memory.values():
                column[:] = -1

    check_same(trained(reused), trained(table()))


# -- validation, evaluation, fitting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_reads_a_source(kind: str, tmp_path: Path) -> None:
    graph = graph_of(table())
    settings: dict[str, Any] = {"losses": MSE, "metrics": ["r2"], "batch_size": 16}
    wanted = run(graph, EvalPhase("v", data=table(), **settings))
    result = run(graph, EvalPhase("v", data=KINDS[kind](tmp_path), **settings))
    assert (result.loss, result.metrics) == (wanted.loss, wanted.metrics)
    np.testing.assert_array_equal(result.predictions["net"], wanted.predictions["net"])


def test_validation_over_a_source() -> None:
    def validated(train: Any, other: Any) -> list[dict[str, float]]:
        results = run(graph_of(table()), phase(train, validation=EvalPhase("v", data=other, metrics=["mae"])))
        return [epoch.validation for epoch in results.epochs]

    wanted = validated(table(), table())
    assert validated(batches(), batches()) == validated(table(), unequal()) == validated(batches(), table()) == wanted


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_source_beside_another_feature_set_is_refused() -> None:
    other = FeatureSet.from_dict("other", {"z": COLUMNS["a"]}, ["z"])
    nodes: list[Any] = [
        ModelNode("net", Dense(1), table().reference(["a"], ["y"])),
        ModelNode("two", Dense(1), other.reference()),
    ]
    nodes += [ConcatNode("both", ["net", "two"]), ModelNode("sum", Dense(1), "both")]
    graph = ModelGraph(nodes, Optimizer("sgd", lr=0.1))
    given = {"data": batches(), "other": other}
    with pytest.raises(PhaseError, match="trains on data, other, but at least one of these is a source"):
        run(graph, phase(given, losses=AppliedLoss("mse", on="sum", inputs=["outputs", "data.y"])))
    with pytest.raises(PhaseError, match="received only the source 'data'"):
        run(graph, phase(source(batches()), losses=AppliedLoss("mse", on="sum", inputs=["outputs", "data.y"])))
    settings: dict[str, Any] = {"losses": AppliedLoss("mse", on="sum", inputs=["outputs", "data.y"]), "outputs": []}
    wanted = run(graph, EvalPhase("v", data={"data": table(), "other": other}, **settings))
    assert run(graph, EvalPhase("v", data=given, **settings)).loss == wanted.loss


def test_sources_that_do_not_fit_the_phase_are_refused(tmp_path: Path) -> None:
    graph = graph_of(table())
    with pytest.raises(PhaseError, match="residency='resident', but its data are the source 'data'"):
        run(graph, phase(batches(), residency="resident"))
    with pytest.raises(PhaseError, match=r"received the source 'elsewhere'.*the graph takes data.*right data"):
        run(graph, phase(source(batches(), "elsewhere")))
    assert len(run(graph, phase({"data": source(batches(), "elsewhere")}, epochs=1)).epochs) == 1, "as the hint says"
    with pytest.raises(PhaseError, match="has a Neighbours, but its data are the source 'data'"):
        run(graph, phase(batches(), sampler=Neighbours(8, "c")))
    with pytest.raises(SourceError, match=r"never ends.*steps=1000"):
        run(graph, phase(itertools.cycle(batches())))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": lambda a: a[:, :2]}, r"float64\[4\] in these data.*built for float64\[5\]"),
        ({"a": lambda a: a.astype("float64"), "b": lambda b: b.astype("complex64")}, "complex64"),
    ],
)
def test_a_source_of_another_shape_is_refused_at_once(change: dict[str, Any], message: str) -> None:
    bad = [{name: change.get(name, lambda c: c)(column) for name, column in item.items()} for item in batches()]
    with pytest.raises(AnyaccelError, match=message):
        trained(bad)


def test_items_of_another_shape_are_refused_at_once() -> None:
    class Flat(Numbered):
        def __getitem__(self, row: int) -> dict[str, Any]:
            return {**super().__getitem__(row), "a": np.zeros(2, "float32")}

    with pytest.raises(ColumnError, match="built for"):
        trained(Flat())


def test_a_phase_with_a_source_has_no_configuration() -> None:
    for data in (batches(), source(batches()), Numbered(), {"data": batches()}):
        one = phase(data)
        assert repr(one) == "TrainPhase('t')"
        with pytest.raises(ConfigError, match="phase 't' cannot be saved: its data have no name"):
            one.get_config()


# -- plans and runs ----------------------------------------------------------------------------------------------------


def test_a_plan_reads_no_batch_and_few_items() -> None:
    graph, opened = graph_of(table()), []

    def counted() -> Iterator[Any]:
        for number, batch in enumerate(batches()):
            opened.append(number)
            yield batch

    data, generator = Numbered(), counted()
    experiment = Experiment("e", graph, progress="none")
    for given in (counted, generator, data):
        for item in (phase(given), EvalPhase("v", data=given), phase(table(), validation=EvalPhase("v", data=given))):
            assert "net" in str(experiment.plan(item))
    assert opened == [] and len(data.read) <= 12
    assert list(experiment.run_phase(phase(generator, epochs=1)).loss) == trained(table(), epochs=1)[0]
    assert opened == list(range(7))


def test_run_rows_are_an_example_of_a_source() -> None:
    seen: dict[str, Any] = {}

    class Look(Callback):
        def epoch_end(self, run: Any) -> None:
            seen.update(run.rows)

    results = run(graph_of(table()), phase(source(lambda: iter(batches())), epochs=2, callbacks=[Look()]))
    assert [epoch.steps for epoch in results.epochs] == [7, 7] and len(seen["data"]) == 4
    data = Numbered()
    run(graph_of(table()), phase(data, epochs=1, callbacks=[Look()]))
    assert len(seen["data"]) == ROWS and seen["data"].columns == (*FEATURES, *TARGETS)
    read = len(data.read)
    np.testing.assert_array_equal(seen["data"].array("a"), COLUMNS["a"])
    assert len(data.read) == read + ROWS


def test_an_endless_source_needs_a_number_of_steps() -> None:
    def forever() -> Iterator[Any]:
        return itertools.cycle(batches())

    results = run(graph_of(table()), phase(source(forever, steps=10), accumulate=4))
    assert [epoch.steps for epoch in results.epochs] == [3, 3, 3]
    going_on = source(forever(), steps=7)
    assert list(run(graph_of(table()), phase(going_on)).loss) == trained(table())[0]


@pytest.mark.parametrize("mode", ["auto", "off", "steps"])
def test_a_source_may_not_know_its_number_of_steps(
    mode: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LineProgress, "interval", 0.0)
    experiment = Experiment("e", graph_of(table()), progress="lines")
    results = experiment.run_phase(phase(lambda: iter(batches()), compile=mode))
    assert list(results.loss) == trained(table())[0]
    lines = capsys.readouterr().err
    assert re.search(r"t: epoch 1/3, step \d+, [\d,]+ steps/s", lines) and "t: 3/3 epochs" in lines


def test_epochs_go_on_counting() -> None:
    numbers: list[int] = []

    def told(epoch: int) -> Iterator[Any]:
        numbers.append(epoch)
        return iter(batches())

    given = source(told)
    run(graph_of(table()), phase(given, epochs=2), phase(given, epochs=2))
    assert numbers == [0, 1, 2, 3]


def test_no_epochs_leave_nothing_open() -> None:
    closed: list[bool] = []

    def watched() -> Iterator[Any]:
        try:
            yield from batches()
        finally:
            closed.append(True)

    assert len(run(graph_of(table()), phase(watched, epochs=0)).epochs) == 0
    gc.collect()
    assert closed == [True]


# -- what goes wrong on the way ----------------------------------------------------------------------------------------


class Watched:
    """A source that notes whether each of its iterators was closed, and that may fail in one epoch."""

    def __init__(self, epoch: int = -1, at: int = 3, act: Callable[[], Any] | None = None) -> None:
        self.epoch, self.at, self.act = epoch, at, act
        self.opened = self.closed = 0

    def __call__(self, epoch: int) -> Iterator[Any]:
        self.opened += 1
        try:
            for number, batch in enumerate(batches()):
                if (epoch, number) == (self.epoch, self.at) and self.act is not None:
                    batch = self.act()
                    if batch is None:
                        return
                yield batch
        finally:
            self.closed += 1


def broken() -> Any:
    raise RuntimeError("the disk is on fire")


FAULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "raises": (broken, r"batch 3 of source 'data' in epoch 1 .*could not be read: RuntimeError: the disk is on fire"),
    "empty": (lambda: {n: c[:0] for n, c in cut(0, 8).items()}, r"batch 3 of .* in epoch 1 .*has no rows"),
    "dtype": (lambda: {**cut(0, 8), "b": np.zeros(8, "float32")}, r"column 'b' of batch 3 of .* is float32\[\]"),
    "shape": (lambda: {**cut(0, 8), "a": np.zeros((8, 4), "float32")}, r"column 'a' of batch 3 of .*float32\[4\]"),
    "length": (lambda: {**cut(0, 8), "b": np.zeros(7)}, r"columns of batch 3 of .*differ in length"),
    "missing": (lambda: {"a": COLUMNS["a"][:8]}, r"batch 3 of .*has no column 'b'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_in_the_thread_is_raised_and_leaves_nothing(fault: str, small_blocks: None) -> None:
    act, message = FAULTS[fault]
    given, graph = Watched(1, act=act), graph_of(table())
    experiment = Experiment("e", graph, progress="none")
    with pytest.raises(SourceError, match=message):
        experiment.run_phase(phase(given))
    last = experiment.last_run
    assert [epoch.number for epoch in last.epochs] == [0] and isinstance(last.error, SourceError)
    assert list(last.loss) == trained(table(), epochs=1)[0]
    assert given.opened == given.closed == 2
    assert ours() == []
    assert len(experiment.run_phase(phase(batches())).epochs) == 3


def test_a_source_exhausted_in_the_second_epoch() -> None:
    experiment = Experiment("e", graph_of(table()), progress="none")
    with pytest.raises(SourceError, match=r"is an iterator \(generator\) and was read before.*pass a function"):
        experiment.run_phase(phase(value_ for value_ in batches()))
    assert len(experiment.last_run.epochs) == 1
    kept = iter(batches())
    with pytest.raises(SourceError, match=r"returned no batch in epoch 1, although it did in earlier epochs"):
        experiment.run_phase(TrainPhase("again", data=lambda: kept, losses=MSE, epochs=2))
    assert len(experiment.last_run.epochs) == 1


def test_a_source_shorter_or_longer_than_it_says() -> None:
    for steps, gave in ((9, "7 of the 9 batches"),):
        with pytest.raises(SourceError, match=gave):
            run(graph_of(table()), phase(source(lambda: iter(batches()), steps=steps)))
    with pytest.raises(SourceError, match="has no rows"):
        run(graph_of(table()), phase([]))


@pytest.mark.parametrize("moment", ["epoch_start", "step_end", "epoch_end"])
@pytest.mark.parametrize("how", ["stop", "error", "interrupt"])
def test_a_phase_that_stops_early_closes_the_source(moment: str, how: str, at: Any, small_blocks: None) -> None:
    def leave(run: Any) -> None:
        if run.epoch == 1:
            if how == "stop":
                run.stop("enough")
            elif how == "error":
                raise ValueError("no more")
            else:
                raise KeyboardInterrupt

    given, graph = Watched(), graph_of(table())
    experiment = Experiment("e", graph, progress="none")
    try:
        experiment.run_phase(phase(given, callbacks=[at(moment, leave)]))
    except (ValueError, KeyboardInterrupt):
        assert how != "stop"
    assert ours() == []
    gc.collect()
    assert given.opened == given.closed
    assert len(experiment.last_run.epochs) == 1 + (moment == "epoch_end" or (moment == "step_end" and how == "stop"))
    assert len(experiment.run_phase(phase(given)).epochs) == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError("no loader")])
def test_a_source_that_was_opened_is_closed_where_no_loader_is_made_of_it(
    error: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the error is kept, whose frames keep functions and what these have from outside (issue 11)."""
    given, validation, graph = Watched(), Watched(), graph_of(table())
    experiment = Experiment("e", graph, progress="none")
    with monkeypatch.context() as broken_loader:
        broken_loader.setattr(BatchSourceLoader, "__init__", mock.Mock(side_effect=error))
        with pytest.raises((KeyboardInterrupt, ValueError)):
            experiment.run_phase(phase(given, validation=EvalPhase("v", data=validation)))
    assert experiment.last_run.error is not None
    assert (given.opened, given.closed) == (1, 1) and validation.opened == validation.closed
    assert len(experiment.run_phase(phase(given)).epochs) == 3


def test_an_error_that_is_kept_keeps_no_batches(small_blocks: None) -> None:
    alive: list[weakref.ref[Any]] = []

    class Big(np.ndarray):
        pass

    def failing() -> Iterator[Any]:
        for number, batch in enumerate(batches()):
            made = np.zeros((len(batch["id"]), 3), "float32").view(Big)
            alive.append(weakref.ref(made))
            yield {**batch, "a": made}
            del made
            if number == 4:
                raise RuntimeError("over")

    experiment = Experiment("e", graph_of(table()), progress="none")
    with simulate(1) as simulation:
        with pytest.raises(SourceError, match="over"):
            experiment.run_phase(phase(failing, accelerator="sim:0", final_device="cpu"))
        gc.collect()
        assert [member() for member in alive if member() is not None] == []
        assert experiment.last_run.error is not None
        del simulation


# -- memory ------------------------------------------------------------------------------------------------------------

FULL = OutOfMemoryError("the device has no room", available="0 bytes free")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """`failing(most, after)`: programs cannot compute more than `most` rows at once after so many steps."""

    def begin(most: int, after: int = 0) -> list[int]:
        asked: list[int] = []
        plain = ArrayProgram.forward_pullback

        def guarded(self: Any, inputs: Any) -> Any:
            rows = len(next(array for array in inputs if array is not None))
            asked.append(rows)
            if rows > most and len(asked) > after:
                raise OutOfMemoryError(FULL.problem, available=FULL.available)
            return plain(self, inputs)

        monkeypatch.setattr(ArrayProgram, "forward_pullback", guarded)
        return asked

    return begin


@pytest.mark.parametrize("after", [0, 4, 10])
@pytest.mark.parametrize("kind", ["list", "generator function", "items", "parquet"])
def test_memory_that_runs_out_is_an_event(
    kind: str, after: int, failing: Any, tmp_path: Path, small_blocks: None
) -> None:
    wanted = trained(table())
    failing(3, after)
    graph = graph_of(table())
    results = run(graph, phase(KINDS[kind](tmp_path)))
    assert [event.kind for event in results.events].count("memory") >= 1
    check_same((list(results.loss), graph.state()), wanted, 1e-5)
    assert [epoch.steps for epoch in results.epochs] == [7, 7, 7]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", ["items", "parquet"])
def test_a_repeatable_source_resumes_within_the_epoch(
    kind: str, accumulate: int, failing: Any, tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = trained(table(), epochs=1, accumulate=accumulate)
    monkeypatch.setattr(oom_recovery, "_SNAPSHOT_SHARE", float("inf"))  # a snapshot after every call
    asked = failing(7, 5)
    result = trained(KINDS[kind](tmp_path), epochs=1, accumulate=accumulate)
    check_same(result, wanted, 1e-5)
    assert asked[:6] == [8] * 6 and sum(asked[6:]) <= ROWS - 4 * 8, "what was done is not done again"


def test_memory_that_runs_out_ends_a_source_that_cannot_restart(failing: Any, small_blocks: None) -> None:
    failing(3, 4)
    experiment = Experiment("e", graph_of(table()), progress="none")
    with pytest.raises(
        SourceError, match=r"epoch 0 had to start again because memory ran out, and source 'data' is an it"
    ):
        experiment.run_phase(phase((batch for batch in batches()), epochs=1))
    assert "memory" in [event.kind for event in experiment.last_run.events]


def test_an_error_says_that_not_even_one_row_fits(failing: Any) -> None:
    failing(0)
    with pytest.raises(OutOfMemoryError, match=r"not enough memory to train 1 row.*data|not even one row fits"):
        run(graph_of(table()), phase(batches()))


def test_memory_that_runs_out_while_a_block_is_copied_is_recovered() -> None:
    with simulate(1, capacity=3000):
        wide = [{**entry, "a": np.zeros((len(entry["id"]), 200), "float32")} for entry in batches()]
        data = FeatureSet.from_dict("data", {**COLUMNS, "a": np.zeros((ROWS, 200), "float32")}, ["a"], ["y"])
        graph = ModelGraph([ModelNode("net", Dense(1), data.reference())], Optimizer("sgd", lr=0.1))
        with pytest.raises(OutOfMemoryError) as caught:
            run(graph, phase(wide, accelerator="sim:0"))
        assert "not enough memory" in str(caught.value) and "0 rows" not in str(caught.value)


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_blocks_have_few_shapes_and_slow_sources_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    plain = BatchSourceLoader.chunks

    def spied(self: Any, *args: Any) -> Iterator[Any]:
        for chunk in plain(self, *args):
            rows = {len(column.rows) for column in chunk.columns.values()}
            seen.append((rows.pop(), sum(steps.n_steps for steps in chunk.steps)))
            yield chunk

    monkeypatch.setattr(BatchSourceLoader, "chunks", spied)
    trained(batches())
    assert [count for _, count in seen] == [1, 6, 7, 7], "a fast source fills a block"
    assert len({rows for rows, _ in seen[1:]}) == 1, "of one shape"
    seen.clear()
    monkeypatch.setattr(source_loader, "BLOCK_SECONDS", 0.0)
    trained(batches(), epochs=1)
    assert [count for _, count in seen] == [1] * 7, "a slow one gives every step as it comes"
    assert {rows for rows, _ in seen} == {8}


def test_slow_items_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(loader_factory, "BLOCK_SECONDS", 0.0)

    class Asked(Numbered):
        def __getitems__(self, rows: list[int]) -> list[Any]:
            asked.append(len(rows))
            return [self[row] for row in rows]

    trained(Asked(), epochs=1)
    assert asked[-6:] == [8] * 5 + [10]  # the last, smaller batch goes with the one before


_SLOW = """
import faulthandler, signal, time
import numpy as np
import anyaccel as aa
from anyaccel.numpy_backend import Dense

faulthandler.dump_traceback_later(20)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits that it is ignored

def slow():
    while True:
        yield np.ones((4, 3), "float32"), np.ones((4, 1), "float32")
        {wait}

source = aa.IterableSource("data", slow, features="x", target="y", steps=10**6)
graph = aa.ModelGraph([aa.ModelNode("net", Dense(1), source.reference())], aa.Optimizer("sgd", lr=0.1))
experiment = aa.Experiment("e", graph, progress="none")

class Ready(aa.Callback):
    def step_end(self, run):
        if run.step == 0:
            print("ready", flush=True)

try:
    experiment.run_phase(aa.TrainPhase("t", data=source, losses=aa.AppliedLoss("mse", on="net"), callbacks=[Ready()]))
except KeyboardInterrupt:
    print("interrupted", type(experiment.last_run.error).__name__, flush=True)
"""


def interrupted(child: subprocess.Popen[str]) -> str:
    """Output of a process after Ctrl-C, sent again after 10 s: Python drops one that falls in a finalizer."""
    child.send_signal(signal.SIGINT)
    try:
        return child.communicate(timeout=10)[0]
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGINT)
        return child.communicate(timeout=30)[0]


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals of this kind are of POSIX")
@pytest.mark.parametrize("wait", ["time.sleep(60)", "time.sleep(0.01)", "pass"])
def test_ctrl_c_ends_a_phase_over_a_slow_source(wait: str) -> None:
    """A source that hangs for a minute delays neither an interrupt nor the end of the process."""
    child = subprocess.Popen(
        [sys.executable, "-c", _SLOW.format(wait=wait)], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.2)
        out = interrupted(child)
        assert out == "interrupted KeyboardInterrupt\n" and child.returncode == 0
    finally:
        child.kill()
        child.wait()


def by_the_model(model: Any, told: list[Any], n_batches: int = 6) -> Callable[[], Iterator[Any]]:
    """Batches whose targets the trained model makes, as in reinforcement learning."""

    def batches() -> Iterator[Any]:
        draw = np.random.default_rng(5)
        for _ in range(n_batches):
            x = draw.normal(size=(4, 3)).astype("float32")
            told.append(np.array(model.parameters["weight"]))
            yield x, np.asarray(model(x)) * 0.5 + 1

    return batches


@pytest.mark.parametrize("accumulate", [1, 2])
def test_batches_that_the_model_makes_are_made_after_the_step_before(accumulate: int) -> None:
    model, told, told_by_hand = Dense(1), list[Any](), list[Any]()
    model.build([TensorSpec((3,), "float32")], 0)
    weight, bias = (model.parameters[name].copy() for name in ("weight", "bias"))
    source = IterableSource("src", by_the_model(model, told), features="x", target="y", read_ahead=0)
    graph = ModelGraph([ModelNode("net", model, source.reference())], Optimizer("sgd", lr=0.1))
    phase = TrainPhase("t", data=source, losses=[MSE], accumulate=accumulate)
    Experiment("e", graph, progress="none").run_phase(phase)
    own = Dense(1)
    own.build([TensorSpec((3,), "float32")], 0)
    own.parameters.update(weight=weight, bias=bias)
    left = by_the_model(own, told_by_hand)()
    for _ in range(6 // accumulate):
        rows = list(itertools.islice(left, accumulate))
        x, y = (np.concatenate(column) for column in zip(*rows, strict=True))
        error = 2 * (x @ own.parameters["weight"].T + own.parameters["bias"] - y) / len(x)
        own.parameters.update(
            weight=own.parameters["weight"] - 0.1 * error.T @ x, bias=own.parameters["bias"] - 0.1 * error.sum(0)
        )
    np.testing.assert_allclose(told, told_by_hand, rtol=1e-5)
    np.testing.assert_allclose(model.parameters["weight"], own.parameters["weight"], rtol=1e-5)
    assert len({weights.tobytes() for weights in told}) == 6 // accumulate


def test_an_interrupt_ends_a_batch_that_is_made_on_demand() -> None:
    def batches() -> Iterator[Any]:
        for number in range(10):
            if number == 3:
                signal.raise_signal(signal.SIGINT)
                time.sleep(100)
            yield np.ones((4, 3), "float32"), np.ones((4, 1), "float32")

    source = IterableSource("src", batches, features="x", target="y", read_ahead=0)
    graph = ModelGraph([ModelNode("net", Dense(1), source.reference())], Optimizer("sgd", lr=0.1))
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        Experiment("e", graph, progress="none").run_phase(TrainPhase("t", data=source, losses=[MSE]))
    assert time.perf_counter() - began < 50
    assert graph.optimizer_states["net"].step == 3


@pytest.mark.parametrize("wrong", [1, -1, 0.0, False, "0"])
def test_read_ahead_is_none_or_0(wrong: Any) -> None:
    with pytest.raises(SourceError, match=r"source 'src': read_ahead=.* is neither None nor 0") as caught:
        IterableSource("src", [], features="x", read_ahead=wrong)
    assert "write read_ahead=0" in caught.value.hint
