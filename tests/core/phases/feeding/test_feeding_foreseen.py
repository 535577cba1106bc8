"""The order of the next epoch is drawn beside this one, and is the same."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from anyaccel.data import FeatureSet, SimpleSampler
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.numpy_backend import Dense
from anyaccel.phases import TrainPhase
from anyaccel.phases.loading import foreseen
from anyaccel.phases.loading.epoch_plan import Pass
from anyaccel.phases.loading.foreseen import Foreseen
from anyaccel.specs import AppliedLoss, Optimizer


def one_pass(number):
    return Pass(("data",), (), {("data", ""): np.array([number])})


def test_what_was_begun_is_taken_and_drawn_in_a_thread():
    drawn = []

    def draw(number):
        drawn.append((number, threading.current_thread() is threading.main_thread()))
        return one_pass(number)

    passes = Foreseen(draw, foreseen.WORTH_ROWS)
    assert passes(0).orders["data", ""][0] == 0
    passes.begin(1)
    assert passes(1).orders["data", ""][0] == 1
    passes.begin(2)
    assert passes(7).orders["data", ""][0] == 7, "another epoch than was begun is drawn now"
    passes.begin(8)
    passes.begin(None)
    assert drawn == [(0, True), (1, False), (2, False), (7, True), (8, False)]
    assert not [one for one in threading.enumerate() if one.name == "anyaccel-order"]


def test_few_rows_are_not_worth_a_thread():
    drawn = []
    passes = Foreseen(lambda number: drawn.append(number) or one_pass(number), foreseen.WORTH_ROWS - 1)
    passes.begin(1)
    assert drawn == []


def test_an_error_is_raised_where_the_epoch_is_asked_for():
    def draw(number):
        raise RuntimeError(f"no order for {number}")

    passes = Foreseen(draw, foreseen.WORTH_ROWS)
    passes.begin(3)
    with pytest.raises(RuntimeError, match="no order for 3"):
        passes(3)


def test_epochs_are_the_same_and_no_thread_is_left(monkeypatch, experiment):
    data = FeatureSet.from_dict("data", {"x": np.arange(64.0)[:, None], "y": np.arange(64.0)[:, None]}, ["x"], ["y"])
    losses, threads = [], []
    draw = SimpleSampler.shuffled

    def shuffled(self, draws, epoch):
        threads.append(threading.current_thread().name)
        return draw(self, draws, epoch)

    monkeypatch.setattr(SimpleSampler, "shuffled", shuffled)
    for worth in (10**9, 1):
        monkeypatch.setattr(foreseen, "WORTH_ROWS", worth)
        graph = ModelGraph(
            [ModelNode("net", Dense(1), data.cast({"x": "float32"}).reference())], Optimizer("sgd", lr=1e-6)
        )
        phase = TrainPhase("t", data="all", losses=[AppliedLoss("mse", on="net")], sampler=8, n_epochs=4)
        losses.append([epoch.loss for epoch in experiment(graph).run_phase(phase).epochs])
    assert losses[0] == losses[1]
    assert threads == ["MainThread"] * 5 + ["anyaccel-order"] * 3
    assert not [one for one in threading.enumerate() if one.name == "anyaccel-order"]
