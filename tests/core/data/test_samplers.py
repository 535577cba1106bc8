"""SimpleSampler: orders, counts and configuration."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel import rng
from anyaccel.data import SimpleSampler
from anyaccel.errors import ConfigError, SamplerError

GOLDEN = [7, 9, 5, 1, 4, 2, 8, 0, 6, 3]


def test_the_order_of_seed_0_is_pinned() -> None:
    order = SimpleSampler(4, shuffle=True).order(10, 0)
    assert order.tolist() == GOLDEN
    assert np.array_equal(order, rng.permutation(rng.key(0, "order", 0), 10))
    assert order.dtype == np.int64


def test_epochs_and_seeds_differ_and_repeat() -> None:
    sampler = SimpleSampler(4, shuffle=True, seed=1)
    orders = [tuple(sampler.order(50, epoch).tolist()) for epoch in range(5)]
    assert len(set(orders)) == 5
    assert orders == [tuple(SimpleSampler(9, True, True, 1).order(50, epoch).tolist()) for epoch in range(5)]
    assert not np.array_equal(sampler.order(50, 0), SimpleSampler(4, shuffle=True, seed=2).order(50, 0))


def test_numpy_integers_are_integers() -> None:
    first, other = SimpleSampler(np.int64(4), True, seed=np.int8(3)), SimpleSampler(4, True, seed=3)  # type: ignore[arg-type]
    assert first == other and hash(first) == hash(other)
    assert np.array_equal(first.order(20, np.int32(2)), other.order(20, 2))  # type: ignore[arg-type]


def test_without_shuffle_the_rows_keep_their_order() -> None:
    order = SimpleSampler(4).order(5, 3)
    assert order.tolist() == [0, 1, 2, 3, 4] and order.dtype == np.int64


@pytest.mark.parametrize(
    ("size", "drop", "n", "batches", "steps"),
    [
        (4, False, 10, (2, 2), 3),
        (4, True, 10, (2, 0), 2),
        (5, False, 10, (2, 0), 2),
        (64, False, 10, (0, 10), 1),
        (1, True, 1, (1, 0), 1),
    ],
)
def test_counts(size: int, drop: bool, n: int, batches: tuple[int, int], steps: int) -> None:
    sampler = SimpleSampler(size, drop_last=drop)
    assert sampler.batches(n) == batches
    assert sampler.steps(n) == steps


def test_drop_last_that_leaves_no_batch() -> None:
    sampler = SimpleSampler(16, drop_last=True)
    message = "drop_last leaves no batch of 16; 10 rows. Hint: use a batch size of at most 10, or drop_last=False"
    for count in (sampler.batches, sampler.steps):
        with pytest.raises(SamplerError, match=message):
            count(10)


def test_no_rows() -> None:
    sampler = SimpleSampler(1)
    for ask in (sampler.batches, sampler.steps, lambda n: sampler.order(n, 0)):
        with pytest.raises(SamplerError, match=r"0 rows make no batch. Hint: pass data with at least one row"):
            ask(0)


@pytest.mark.parametrize("size", [True, 1.0, "8", None, int])
def test_batch_sizes_are_integers(size: object) -> None:
    with pytest.raises(SamplerError, match=rf"batch_size={size!r} is not an integer. Hint: write a whole number"):
        SimpleSampler(size)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, -3])
def test_batch_sizes_are_positive(size: int) -> None:
    with pytest.raises(SamplerError, match=rf"batch_size={size} is below 1. Hint: use a batch size of 1 or more"):
        SimpleSampler(size)


def test_other_settings_are_of_their_type() -> None:
    with pytest.raises(SamplerError, match=r"shuffle='no' is not True or False. Hint: write shuffle=True"):
        SimpleSampler(4, shuffle="no")  # type: ignore[arg-type]
    with pytest.raises(SamplerError, match=r"drop_last=13 is not True or False"):
        SimpleSampler(4, True, 13)  # type: ignore[arg-type]
    with pytest.raises(SamplerError, match=r"seed=0.5 is not an integer"):
        SimpleSampler(4, seed=0.5)  # type: ignore[arg-type]
    with pytest.raises(SamplerError, match=r"epoch=None is not an integer"):
        SimpleSampler(4, True).order(5, None)  # type: ignore[arg-type]


def test_config_there_and_back() -> None:
    sampler = SimpleSampler(4, shuffle=True, seed=5)
    assert sampler.get_config() == {"batch_size": 4, "shuffle": True, "drop_last": False, "seed": 5}
    assert SimpleSampler.from_config(sampler.get_config()) == sampler
    assert SimpleSampler.from_config({"batch_size": 2}) == SimpleSampler(2)


@pytest.mark.parametrize("config", [{}, {"batch_size": 4, "stratify": True}, [4], {"shuffle": True}])
def test_invalid_configurations_are_refused(config: dict[str, object]) -> None:
    message = "is not the configuration of a sampler. Available: keys: batch_size, shuffle, drop_last, seed. Hint"
    with pytest.raises(ConfigError, match=message):
        SimpleSampler.from_config(config)


def test_samplers_do_not_change() -> None:
    with pytest.raises(AttributeError):
        SimpleSampler(4).seed = 1  # type: ignore[misc]
