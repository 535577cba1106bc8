"""Random numbers of the thread that reads a source: one seed gives one run, whatever the timing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import anyaccel as aa
from anyaccel_torch.backend import TorchBackend
from anyaccel_torch.thread_rng import ThreadRandomness

ROWS = torch.arange(120, dtype=torch.float32).reshape(40, 3) / 60


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))


def train(source: Any, net: nn.Module, *, seed: int = 0, epochs: int = 2) -> np.ndarray:
    graph = aa.ModelGraph([aa.ModelNode("net", net, source.reference())], aa.Optimizer("sgd", lr=0.1), seed=seed)
    sampler = {"sampler": aa.SimpleSampler(4, shuffle=True)} if isinstance(source, aa.MapSource) else {}
    phase = aa.TrainPhase("t", data=source, losses=[aa.AppliedLoss("mse", on="net")], epochs=epochs, **sampler)
    return np.asarray(aa.Experiment("e", graph, progress="none").run_phase(phase).loss)


def augmented(seconds: float, told: list[Any]) -> Any:
    """Batches with noise from torch's global generator, made in some time each."""

    def batches() -> Iterator[Any]:
        for rows in ROWS.split(4):
            time.sleep(seconds)
            batch = rows + 0.3 * torch.randn(rows.shape) + 0.1 * torch.rand_like(rows), rows[:, :1]
            told.append(batch)
            yield batch

    return aa.IterableSource("src", batches, features="x", target="y")


def test_augmentation_and_dropout_do_not_take_each_others_random_numbers() -> None:
    """The same losses as from batches that were made beforehand, and the same batches at any speed."""
    made: list[list[Any]] = []
    losses = []
    for seconds in (0.0, 0.002, 0.01):
        told: list[Any] = []
        torch.manual_seed(2)  # of the first batch, which the graph is built with
        source = augmented(seconds, told)
        net = model()
        losses.append(train(source, net))
        made.append(told)
    for told in made[1:]:
        for batch, other in zip(told, made[0], strict=True):
            torch.testing.assert_close(batch, other, rtol=0, atol=0)
    np.testing.assert_array_equal(losses[1], losses[0])
    np.testing.assert_array_equal(losses[2], losses[0])
    epochs = iter([made[0][:10], made[0][10:]])
    replayed = aa.IterableSource("src", lambda: next(epochs), features="x", target="y")
    np.testing.assert_array_equal(train(replayed, model()), losses[0])


def test_another_seed_gives_other_augmentation() -> None:
    told: list[list[Any]] = [[], []]
    for seed in (0, 1):
        torch.manual_seed(2)
        train(augmented(0.0, told[seed]), model(), seed=seed)
    assert not torch.equal(told[0][15][0], told[1][15][0])


class Noisy(Dataset[Any]):
    def __init__(self, told: list[Any] | None = None) -> None:
        self.told = [] if told is None else told

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, i: int) -> Any:
        noise = torch.rand(3)
        self.told.append((int(i), noise))
        return ROWS[i] + noise, ROWS[i][:1]


def test_a_map_source_is_augmented_alike_in_every_run() -> None:
    runs = []
    for _ in range(2):
        told: list[Any] = []
        torch.manual_seed(2)
        losses = train(aa.MapSource("src", Noisy(told), features="x", target="y"), model())
        runs.append((losses, [noise for _, noise in told[-80:]]))
    np.testing.assert_array_equal(runs[1][0], runs[0][0])
    for noise, other in zip(*(noises for _, noises in runs), strict=True):
        assert torch.equal(noise, other)


def test_a_shuffled_loader_gives_one_order_for_one_seed() -> None:
    orders = []
    for _ in range(2):
        told: list[Any] = []
        loader = DataLoader(Noisy(told), batch_size=4, shuffle=True)
        torch.manual_seed(2)
        train(aa.IterableSource("src", loader, features="x", target="y"), model(), epochs=3)
        orders.append([i for i, _ in told])
    assert orders[0] == orders[1]
    assert orders[0][40:80] != orders[0][80:120]


def test_workers_of_a_loader_draw_numbers_of_their_own() -> None:
    loader = DataLoader(Noisy(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    with ThreadRandomness(3):
        batches = [(x - y.new_tensor(0)).numpy() for x, y in loader]
    noise = np.concatenate(batches) - ROWS.numpy()
    assert len({row.tobytes() for row in noise.round(5)}) == 40


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(3),
        lambda: torch.randn(2, 2),
        lambda: torch.randint(0, 99, (3,)),
        lambda: torch.randperm(9),
        lambda: torch.normal(0.0, 1.0, (3,)),
        lambda: torch.bernoulli(torch.full((20,), 0.5)),
        lambda: torch.multinomial(torch.ones(9), 3),
        lambda: torch.empty(3).uniform_(),
        lambda: torch.empty(3).normal_(generator=None),
        lambda: torch.empty(9, dtype=torch.int64).random_(99),
        lambda: torch.rand_like(torch.ones(3)),
        lambda: torch.randn_like(torch.ones(3)),
        lambda: torch.distributions.Normal(0.0, 1.0).sample((3,)),
    ],
)
def test_draws_follow_from_the_key_and_leave_the_global_generator_alone(draw: Any) -> None:
    before = torch.get_rng_state()
    first, second, other = ThreadRandomness(5), TorchBackend().thread_rng(5), ThreadRandomness(6)
    with first:
        drawn = [draw()]
    with first:  # it goes on
        drawn.append(draw())
    with second:
        again = [draw(), draw()]
    with other:
        others = [draw(), draw()]
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, drawn, again))
    assert not all(map(torch.equal, drawn, others)) and not torch.equal(*drawn)


def test_generators_that_are_given_and_other_threads_are_left_alone() -> None:
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    drawn: list[Any] = []
    with ThreadRandomness(5):
        own = torch.rand(3, generator=torch.Generator().manual_seed(9))
        thread = threading.Thread(target=lambda: drawn.append(torch.rand(3)))
        thread.start()
        thread.join()
    assert torch.equal(own, torch.rand(3, generator=torch.Generator().manual_seed(9)))
    assert torch.equal(drawn[0], expected)


def test_the_generator_itself_goes_on_from_a_key_and_is_then_what_it_was() -> None:
    by_hand = torch.Generator().manual_seed(5)
    expected = [torch.rand(3, generator=by_hand), torch.rand(3, generator=by_hand)]
    torch.manual_seed(4)
    before, stream, drawn = torch.get_rng_state(), TorchBackend().global_rng(5), []
    for _ in range(2):
        with stream:
            drawn.append(torch.rand(3))
        assert torch.equal(torch.get_rng_state(), before) and torch.initial_seed() == 4
    assert all(map(torch.equal, drawn, expected))
    with stream:
        torch.manual_seed(6)
        seeded = torch.rand(3)
    assert torch.equal(seeded, torch.rand(3, generator=torch.Generator().manual_seed(6)))
    with stream:  # as a data set left it
        assert torch.initial_seed() == 6
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("use", "passes"),
    [
        (lambda: torch.rand(3), False),
        (lambda: torch.randn_like(torch.ones(3)), False),
        (lambda: torch.rand(3, generator=torch.Generator().manual_seed(1)), False),
        (lambda: next(iter(DataLoader(Noisy(), shuffle=True))), False),
        (lambda: torch.manual_seed(1), True),
        (lambda: (torch.rand(1), nn.functional.dropout(torch.ones(3)), torch.rand(1)), True),
        (lambda: torch.randint_like(torch.ones(3), 4), True),
        (lambda: nn.Linear(2, 2), True),
    ],
)
def test_what_passes_the_stream_of_a_thread_is_seen(use: Any, passes: bool) -> None:
    torch.manual_seed(9)
    with TorchBackend().watch_rng() as watch:
        use()
    assert watch.passed is passes


def test_the_state_of_generators_there_and_back() -> None:
    backend, generator = TorchBackend(), torch.Generator().manual_seed(3)
    states = [backend.generator_state(generator), backend.generator_state()]
    drawn = [torch.rand(3, generator=generator), torch.rand(3)]
    backend.set_generator_state(states[0], generator)
    backend.set_generator_state(states[1])
    assert torch.equal(torch.rand(3, generator=generator), drawn[0]) and torch.equal(torch.rand(3), drawn[1])
    assert backend.generator_state(torch.ones(3)) is None
