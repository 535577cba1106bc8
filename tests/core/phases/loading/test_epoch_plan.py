"""Epoch plans: blocks together are the epoch, in order; the next order is drawn in a thread, and is the same."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel import AppliedLoss
from anyaccel.data import FeatureSet, SimpleSampler
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.numpy_backend import Dense
from anyaccel.phases import TrainPhase
from anyaccel.phases.loading import epoch_plan
from anyaccel.phases.loading.epoch_plan import (
    EpochSteps,
    RowSpan,
    SampledBatches,
    StepBlock,
    StepRange,
    StreamKey,
    TrainingEpochs,
    uniform_range,
)
from anyaccel.specs import Optimizer

Step = dict[str, RowSpan]


def single_steps(ranges: Iterable[StepRange], shift: dict[str, int] | None = None) -> Iterator[Step]:
    """Every step by itself: which rows of each feature set it takes."""
    for steps in ranges:
        for i in range(steps.n_steps):
            step = {}
            for name, (start, stop) in steps.rows.items():
                moved = i * (stop - start) + (shift or {}).get(name, 0)
                step[name] = (start + moved, stop + moved)
            yield step


def rows_of(step: Step, orders: dict[StreamKey, np.ndarray], shift: dict[str, int] | None = None) -> dict[Any, Any]:
    """The rows of the data that a step takes, by stream."""
    rows = {}
    for key, order in orders.items():
        if key[0] in step:
            start, stop = (row - (shift or {}).get(key[0], 0) for row in step[key[0]])
            rows[key] = order[start:stop].tolist()
    return rows


def epoch_of(ranges: tuple[StepRange, ...], sets: tuple[str, ...], seed: int) -> EpochSteps:
    """An epoch with a row order for each feature set, and a second stream for the first."""
    steps = list(single_steps(ranges))
    draw = np.random.default_rng(seed)
    count = {name: max((step[name][1] for step in steps if name in step), default=0) for name in sets}
    orders: dict[StreamKey, np.ndarray] = {(name, ""): draw.permutation(count[name] + 3) for name in sets}
    orders[sets[0], "pair"] = draw.permutation(count[sets[0]] + 3)
    return EpochSteps(ranges, orders)


@st.composite
def uniform_epochs(draw: st.DrawFn) -> EpochSteps:
    """What one sampler draws: full batches, and perhaps a last partial one."""
    size, count = draw(st.integers(1, 5)), draw(st.integers(0, 12))
    last = draw(st.integers(0 if count else 1, size))
    sets = draw(st.sampled_from([("a",), ("a", "b")]))
    full = [uniform_range(sets, 0, count, size, draw(st.sampled_from([None, 1])))] if count else []
    ranges = (*full, *([uniform_range(sets, count * size, 1, last)] if last else []))
    return epoch_of(ranges, sets, draw(st.integers(0, 99)))


@st.composite
def mixed_epochs(draw: st.DrawFn) -> EpochSteps:
    """What several samplers draw: each set's batches follow each other, and not every step takes of each."""
    at = {"a": 0, "b": 0, "c": 0}
    ranges: list[StepRange] = []
    for _ in range(draw(st.integers(1, 12))):
        rows = {}
        for name in draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)):
            start, at[name] = at[name], at[name] + draw(st.integers(1, 4))
            rows[name] = (start, at[name])
        ranges.append(StepRange(rows))
    return epoch_of(tuple(ranges), ("a", "b", "c"), draw(st.integers(0, 99)))


EPOCHS = st.one_of(uniform_epochs(), mixed_epochs())


def n_steps(ranges: Iterable[StepRange]) -> int:
    return sum(steps.n_steps for steps in ranges)


@given(EPOCHS, st.integers(1, 15))
def test_the_blocks_of_an_epoch_are_the_epoch(epoch: EpochSteps, most: int) -> None:
    whole = [(step, rows_of(step, dict(epoch.orders))) for step in single_steps(epoch.steps)]
    in_blocks = []
    for block in epoch.blocks(most):
        shift = {name: start for name, (start, _) in block.spans.items()}
        for step in single_steps(block.steps, shift):
            in_blocks.append((step, rows_of(step, dict(block.orders), shift)))
    assert in_blocks == whole


@given(EPOCHS, st.integers(1, 15))
def test_a_block_counts_from_its_first_row_and_has_only_the_rows_that_its_steps_take(
    epoch: EpochSteps, most: int
) -> None:
    for block in epoch.blocks(most):
        steps = list(single_steps(block.steps))
        for name, (start, stop) in block.spans.items():
            taken = [step[name] for step in steps if name in step]
            assert min(first for first, _ in taken) == 0 and max(last for _, last in taken) == stop - start
        for key, order in block.orders.items():
            start, stop = block.spans[key[0]]
            assert order.tolist() == epoch.orders[key][start:stop].tolist()


def size_of(block: StepBlock) -> int:
    return n_steps(block.steps)


@given(EPOCHS, st.integers(1, 15))
def test_a_block_has_no_more_steps_than_it_may_but_for_a_last_smaller_batch(epoch: EpochSteps, most: int) -> None:
    blocks = list(epoch.blocks(most))
    last = epoch.steps[-1]
    smaller = last.uniform and len(epoch.steps) > 1 and last.batch_size < epoch.steps[0].batch_size
    assert all(size_of(block) <= most for block in blocks[:-1])
    assert size_of(blocks[-1]) <= most + (1 if smaller else 0)
    assert all(size_of(block) == most for block in blocks[:-2] if smaller or len(epoch.steps) == 1)


@given(EPOCHS, st.integers(0, 30))
def test_skipping_steps_leaves_the_end_of_an_epoch(epoch: EpochSteps, done: int) -> None:
    left = epoch.skip(done)
    assert list(single_steps(left.steps)) == list(single_steps(epoch.steps))[done:]
    assert left.orders is epoch.orders and n_steps(left.steps) == max(n_steps(epoch.steps) - done, 0)


@given(EPOCHS, st.integers(0, 10), st.integers(0, 10), st.integers(1, 6))
def test_skipping_twice_is_skipping_the_sum(epoch: EpochSteps, first: int, second: int, most: int) -> None:
    twice, once = epoch.skip(first).skip(second), epoch.skip(first + second)
    assert list(single_steps(twice.steps)) == list(single_steps(once.steps))
    assert [block.steps for block in twice.blocks(most)] == [block.steps for block in once.blocks(most)]


@given(mixed_epochs(), st.integers(1, 6))
def test_split_steps_take_the_same_rows_in_the_same_order(epoch: EpochSteps, most: int) -> None:
    parts = list(single_steps(epoch.split(most).steps))
    for name in ("a", "b", "c"):
        whole = [row for step in single_steps(epoch.steps) for row in range(*step.get(name, (0, 0)))]
        assert [row for step in parts for row in range(*step.get(name, (0, 0)))] == whole
    assert all(stop - start <= most for step in parts for start, stop in step.values())


def test_blocks_keep_the_microbatch_size_of_their_steps() -> None:
    steps = uniform_range(("a",), 0, 5, 6, 2)
    blocks = EpochSteps((steps,), {}).blocks(2)
    assert [item.microbatch_size for block in blocks for item in block.steps] == [2, 2, 2]
    assert steps.skip(2) == replace(uniform_range(("a",), 12, 3, 6), microbatch_size=2)


# -- the order of the next epoch ---------------------------------------------------------------------------------------


class Batches(SampledBatches):
    """One feature set; draws an order that holds the number of the epoch, and remembers in which thread."""

    def __init__(self, n: int = epoch_plan.THREAD_ROWS) -> None:
        rows = FeatureSet.from_dict("data", {"x": np.zeros((n, 1))}, ["x"])
        super().__init__("t", SimpleSampler(n, shuffle=True), "zip_strict", {"data": rows})
        self.drawn: list[tuple[int, bool]] = []

    def orders(self, epoch: int) -> dict[StreamKey, np.ndarray]:
        self.drawn.append((epoch, threading.current_thread() is threading.main_thread()))
        if epoch == 13:
            raise RuntimeError("no order for 13")
        return {("data", ""): np.array([epoch])}


def row_order_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "anyaccel-row-order"]


def test_a_prefetched_order_is_drawn_in_a_thread_and_taken_once() -> None:
    batches = Batches()
    epochs = TrainingEpochs("t", batches, 1)
    assert epochs.epoch(0).orders["data", ""][0] == 0
    epochs.prefetch(1)
    assert epochs.epoch(1).orders["data", ""][0] == 1
    epochs.prefetch(2)
    assert epochs.epoch(7).orders["data", ""][0] == 7, "another epoch than was begun is drawn now"
    epochs.prefetch(8)
    epochs.prefetch(None)
    assert batches.drawn == [(0, True), (1, False), (2, False), (7, True), (8, False)]
    assert row_order_threads() == []


def test_few_rows_are_not_worth_a_thread() -> None:
    batches = Batches(epoch_plan.THREAD_ROWS - 1)
    TrainingEpochs("t", batches, 1).prefetch(1)
    assert batches.drawn == []


def test_an_error_is_raised_when_the_epoch_is_asked_for() -> None:
    epochs = TrainingEpochs("t", Batches(), 1)
    epochs.prefetch(13)
    with pytest.raises(RuntimeError, match="no order for 13"):
        epochs.epoch(13)


def test_epochs_are_the_same_with_and_without_prefetching(monkeypatch: pytest.MonkeyPatch, experiment: Any) -> None:
    data = FeatureSet.from_dict("data", {"x": np.arange(64.0)[:, None], "y": np.arange(64.0)[:, None]}, ["x"], ["y"])
    losses, threads = [], []
    draw = SimpleSampler.shuffled

    def shuffled(self: SimpleSampler, orders: Any, epoch: int) -> Any:
        threads.append(threading.current_thread().name)
        return draw(self, orders, epoch)

    monkeypatch.setattr(SimpleSampler, "shuffled", shuffled)
    for least in (10**9, 1):
        monkeypatch.setattr(epoch_plan, "THREAD_ROWS", least)
        node = ModelNode("net", Dense(1), data.cast({"x": "float32"}).reference())
        graph = ModelGraph([node], Optimizer("sgd", lr=1e-6))
        phase = TrainPhase("t", data="all", losses=[AppliedLoss("mse", on="net")], batch_size=8, epochs=4)
        losses.append([epoch.loss for epoch in experiment(graph).run_phase(phase).epochs])
    assert losses[0] == losses[1]
    assert threads == ["MainThread"] * 5 + ["anyaccel-row-order"] * 3
    assert row_order_threads() == []
