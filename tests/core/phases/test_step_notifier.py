"""Listeners to every step of calls that do many: as if each step were a call of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.numpy_backend.ops import NumpyProgram

X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
Y = X[:, :1] - X[:, 1:2]
LOSSES = [aa.AppliedLoss("mse", on="net")]


class Listens(aa.Callback):
    """Writes down where it is, and the loss."""

    def __init__(self, act: Any = None, every_n_steps: int = 1) -> None:
        self.act, self.every_n_steps = act, every_n_steps
        self.heard: list[tuple[int, int]] = []
        self.losses: list[float] = []

    def step_end(self, run: aa.Run) -> None:
        self.heard.append((run.epoch, run.step))
        self.losses.append(run.step_losses()["net"])
        if self.act is not None:
            self.act(run)


class Collects(aa.Callback):
    """The losses that `steps_done` gives."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def steps_done(self, run: aa.Run, steps: Any) -> None:
        self.losses += steps.losses()["net"].tolist()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps that were asked for by each call of the program which tells of them."""
    asked: list[int] = []
    plain = NumpyProgram.train_and_notify

    def counted(self: Any, columns: Any, orders: Any, start: int, n_steps: int, *rest: Any) -> Any:
        asked.append(n_steps)
        return plain(self, columns, orders, start, n_steps, *rest)

    monkeypatch.setattr(NumpyProgram, "train_and_notify", counted)
    return asked


def graph() -> aa.ModelGraph:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])
    return aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP((1,), dropout=0.2), data.reference())], "adam", seed=1)


def train(graph: aa.ModelGraph, *callbacks: aa.Callback, rows: int = 2, **settings: Any) -> Any:
    settings = {"epochs": 2, "sampler": aa.SimpleSampler(rows, shuffle=True), **settings}
    return graph.run(aa.TrainPhase("t", data="all", losses=LOSSES, callbacks=callbacks, **settings), progress="none")


def test_each_step_is_told_though_a_call_does_many(calls: list[int]) -> None:
    listens, collects = Listens(), Collects()
    listened, plain = graph(), graph()
    losses = [train(listened, listens, collects).loss, train(plain).loss]
    np.testing.assert_array_equal(*losses)
    assert listens.heard == [(epoch, step) for epoch in (0, 1) for step in range(20)]
    assert sum(calls) == 40
    assert max(calls) > 1
    assert listens.losses == pytest.approx(collects.losses)
    for name, value in plain.state().items():
        np.testing.assert_array_equal(listened.state()[name], value, err_msg=name)


def test_a_run_that_is_stopped_in_a_step_does_no_further_one(calls: list[int]) -> None:
    listens = Listens(lambda run: run.stop("enough") if run.step == 12 else None)
    results = train(graph(), listens)
    assert listens.heard[-1] == (0, 12)
    assert [epoch.steps for epoch in results.epochs] == [13]
    assert results.loss[0] == pytest.approx(np.mean(listens.losses))
    assert sum(calls) > 13  # so that it was stopped within a call


def test_what_a_listener_raises_comes_out_as_it_is_and_the_step_counts(calls: list[int]) -> None:
    class Oops(RuntimeError):
        pass

    def fails(run: aa.Run) -> None:
        if (run.epoch, run.step) == (1, 7):
            raise Oops("of a listener")

    seen: list[aa.Run] = []
    listens = Listens(lambda run: (seen.append(run), fails(run)))
    other, broken = graph(), graph()
    with pytest.raises(Oops, match="of a listener") as raised:
        train(broken, listens)
    assert not getattr(raised.value, "__notes__", None)
    assert seen[-1].step == 8  # steps that are done
    train(other, Listens(lambda run: run.stop("here") if (run.epoch, run.step) == (1, 7) else None))
    for name in (each for each in other.state() if each.startswith("net/")):
        np.testing.assert_array_equal(broken.state()[name], other.state()[name], err_msg=name)


def test_a_snapshot_within_a_call_is_restored_there() -> None:
    kept: dict[str, Any] = {}

    def act(run: aa.Run) -> None:
        if run.step == 5:
            kept["snapshot"], kept["values"] = run.snapshot(), run.model("net").parameters["layers.0.weight"].copy()
        if run.step == 9:
            run.restore(kept["snapshot"])
            np.testing.assert_array_equal(run.model("net").parameters["layers.0.weight"], kept["values"])
            run.stop("done")

    listened = graph()
    train(listened, Listens(act))
    model = listened["net"].model
    np.testing.assert_array_equal(model.parameters["layers.0.weight"], kept["values"])


def test_listeners_to_every_nth_step_hear_as_often_beside_one_to_each() -> None:
    each, fifth = Listens(), Listens(every_n_steps=5)
    train(graph(), each, fifth)
    assert fifth.heard == [(epoch, step) for epoch in (0, 1) for step in range(4, 20, 5)]
    assert len(each.heard) == 40


def test_batches_in_parts_and_uneven_ones_are_told_too(calls: list[int]) -> None:
    listens = Listens()
    results = train(graph(), listens, rows=12, accumulate=2)
    assert listens.heard == [(epoch, step) for epoch in (0, 1) for step in range(len(listens.heard) // 2)]
    assert [epoch.steps for epoch in results.epochs] == [2, 2]
