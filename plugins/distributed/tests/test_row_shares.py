"""Shares of replicas: every row of every batch once, in the order of the epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel import FeatureSet, SimpleSampler
from anyaccel.errors import PhaseError
from anyaccel.phases.loading.epoch_plan import (
    ZIP_STRICT,
    EpochPlan,
    EpochSteps,
    EvaluationEpochs,
    EvaluationRows,
    SampledBatches,
    TrainingEpochs,
)
from anyaccel_distributed.row_shares import BatchShare, ReplicaEpochs, ReplicaEvaluation, fingerprint, share


def epochs_of(n_rows: int, batch_size: int, accumulate: int = 1) -> TrainingEpochs:
    data = FeatureSet.from_dict("d", {"x": np.arange(float(n_rows))}, features=["x"])
    sampler = SimpleSampler(batch_size, shuffle=True, seed=1)
    return TrainingEpochs("train", SampledBatches("train", sampler, ZIP_STRICT, {"d": data}), accumulate)


def rows_of(steps: EpochSteps) -> list[list[int]]:
    """The rows of the data that each step takes."""
    order = steps.orders["d", ""]
    spans = [each.skip(i).rows["d"] for each in steps.steps for i in range(each.n_steps)]
    return [order[start:stop].tolist() for start, stop in spans]


@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 8), st.integers(1, 3), st.integers(0, 2))
def test_the_shares_of_all_replicas_are_the_batches_of_one(
    n_rows: int, batch_size: int, size: int, accumulate: int, epoch: int
) -> None:
    whole = epochs_of(n_rows, batch_size, accumulate)
    smallest = min(len(rows) for rows in rows_of(whole.epoch(0)))
    if smallest < size:
        with pytest.raises(PhaseError, match=rf"a batch of \d+ rows for {size} replicas"):
            ReplicaEpochs("train", whole, 0, size)
        return
    parts = [ReplicaEpochs("train", epochs_of(n_rows, batch_size, accumulate), rank, size) for rank in range(size)]
    together = [
        [row for rows in shares for row in rows]
        for shares in zip(*[rows_of(part.epoch(epoch)) for part in parts], strict=True)
    ]
    assert together == rows_of(whole.epoch(epoch))
    assert all(part.n_steps == whole.n_steps for part in parts)
    assert max(part.batch_size for part in parts) == -(-whole.batch_size // size)


@pytest.mark.parametrize("skipped", [0, 2])
def test_a_share_knows_the_rows_of_all_with_which_it_is_padded(skipped: int) -> None:
    expected = rows_of(epochs_of(22, 6).epoch(1))[skipped:]
    for rank in range(3):
        blocks = list(ReplicaEpochs("train", epochs_of(22, 6), rank, 3).epoch(1).skip(skipped).single_steps())
        assert [block.whole["d", ""][0].tolist() for block in blocks] == expected
        for block in blocks:
            order, first = block.whole["d", ""]
            own = block.orders["d", ""]
            assert order[first : first + len(own)].tolist() == own.tolist()


@given(st.integers(0, 1000), st.integers(1, 64))
def test_shares_differ_by_at_most_one_row(n_rows: int, size: int) -> None:
    spans = [share(n_rows, rank, size) for rank in range(size)]
    assert [start for start, _ in spans] == [0, *[stop for _, stop in spans[:-1]]]
    assert spans[-1][1] == n_rows
    sizes = [stop - start for start, stop in spans]
    assert max(sizes) - min(sizes) <= 1


def test_orders_that_stay_are_shared_once() -> None:
    data = FeatureSet.from_dict("d", {"x": np.arange(10.0)}, features=["x"])
    batches = SampledBatches("train", SimpleSampler(5), ZIP_STRICT, {"d": data})
    epochs: EpochPlan = ReplicaEpochs("train", TrainingEpochs("train", batches, 1), 0, 2)
    assert epochs.epoch(0) is epochs.epoch(1)


def test_a_batch_with_fewer_rows_than_replicas_is_refused() -> None:
    with pytest.raises(PhaseError, match=r"phase 'train' has a batch of 1 rows for 2 replicas.*drop_last=True"):
        ReplicaEpochs("train", epochs_of(9, 4), 0, 2)


def test_feature_sets_that_cannot_be_shared_alike_are_refused() -> None:
    rows = {
        "a": FeatureSet.from_dict("a", {"x": np.arange(12.0)}, features=["x"]),
        "b": FeatureSet.from_dict("b", {"x": np.arange(20.0)}, features=["x"]),
    }
    samplers = {"a": SimpleSampler(3), "b": SimpleSampler(5)}
    whole = TrainingEpochs("train", SampledBatches("train", samplers, ZIP_STRICT, rows), 1)
    with pytest.raises(PhaseError, match=r"batches of 3 and 5 rows in one step, for 2 replicas.*multiples of 2"):
        ReplicaEpochs("train", whole, 0, 2)


def test_the_shares_of_a_batch_are_all_of_its_rows() -> None:
    batch = {"x": np.arange(21).reshape(7, 3), "y": np.arange(7)}
    seen: list[tuple[int, int]] = []
    shares = [BatchShare("train", "s", rank, 3, lambda *told: seen.append(told), list) for rank in range(3)]
    parts = [share.of(batch) for share in shares]
    assert [len(part["y"]) for part in parts] == [2, 2, 3]
    for name, column in batch.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), column)
    assert set(seen) == {(fingerprint(batch), 7)}


def test_a_fingerprint_tells_rows_sizes_and_names() -> None:
    batch = {"x": np.arange(8.0).reshape(4, 2)}
    others = [{"y": batch["x"]}, {"x": batch["x"][:3]}, {"x": batch["x"][::-1]}, {"x": batch["x"] + 1}]
    assert fingerprint(batch) == fingerprint({"x": batch["x"].copy()}) < 2**20
    assert fingerprint(batch) not in [fingerprint(other) for other in others]


def test_a_batch_of_a_source_with_fewer_rows_than_replicas_is_refused() -> None:
    with pytest.raises(PhaseError, match=r"the source 's' returned a batch of 2 rows for 3 replicas.*drop_last=True"):
        BatchShare("train", "s", 0, 3, lambda *_: None, list).of({"x": np.zeros((2, 1))})


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_batches_of_an_evaluation_are_computed_once_each_in_their_order(size: int) -> None:
    rows = FeatureSet.from_dict("d", {"x": np.arange(23.0)}, "x")
    whole = EvaluationEpochs(EvaluationRows({"d": rows}), 5)
    parts = [ReplicaEvaluation(whole, rank, size) for rank in range(size)]
    assert [step for part in parts for step in part.epoch(0).steps] == list(whole.epoch(0).steps)
    assert sum(part.n_steps for part in parts) == whole.n_steps == 5
