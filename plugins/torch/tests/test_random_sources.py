"""Random numbers of data: rows are those of the data set, whatever it seeds, and go on within an epoch."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
    random_split,
)

import anyaccel as aa

ROWS = 24


class Net(nn.Module):
    """With dropout, so that losses tell whether its random numbers are what they were; keeps the rows that it gets."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen.append(x.detach().clone())
        out: torch.Tensor = self.layers(x)
        return out


def train(source: Any, epochs: int = 2, **settings: Any) -> tuple[np.ndarray, torch.Tensor]:
    """Losses, and all rows in the order in which they came."""
    net = Net(3)
    graph = aa.ModelGraph([aa.ModelNode("net", net, source.reference("x"))], aa.Optimizer("sgd", lr=0.1))
    sampler = {"sampler": aa.SimpleSampler(4)} if isinstance(source, aa.MapSource) else {}
    losses = aa.AppliedLoss("mse", on="net")
    phase = aa.TrainPhase("t", data=source, losses=losses, epochs=epochs, compile="off", **sampler)
    net.seen.clear()
    results = aa.Experiment("e", graph, progress="none").run_phase(phase, **settings)
    return np.asarray(results.loss), torch.cat(net.seen)


# -- data sets that seed themselves ------------------------------------------------------------------------------------


def by_torch(i: int) -> torch.Tensor:
    torch.manual_seed(i)
    return torch.randn(3)


def by_numpy(i: int) -> torch.Tensor:
    np.random.seed(i)
    return torch.from_numpy(np.random.normal(size=3).astype("float32"))


def by_python(i: int) -> torch.Tensor:
    random.seed(i)
    return torch.tensor([random.random() for _ in range(3)])


def by_fork(i: int) -> torch.Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(i)
        return torch.randn(3)


def by_dropout(i: int) -> torch.Tensor:
    torch.manual_seed(i)
    return nn.functional.dropout(torch.arange(1.0, 4.0), 0.5)


def by_initialization(i: int) -> torch.Tensor:
    torch.manual_seed(i)
    return nn.Linear(3, 1).weight.detach()[0]


def by_state(i: int) -> torch.Tensor:
    torch.set_rng_state(torch.Generator().manual_seed(i).get_state())
    return torch.rand(3)


SEEDS = (by_torch, by_numpy, by_python, by_fork, by_dropout, by_initialization, by_state)


class Seeded(Dataset[Any]):
    def __init__(self, make: Callable[[int], torch.Tensor], first: int = 0) -> None:
        self.make, self.first = make, first

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> Any:
        if i < self.first:
            return torch.full((3,), i / ROWS), torch.tensor([i / ROWS])
        return self.make(int(i)), torch.tensor([i / ROWS])


def loader(data: Any, workers: int = 0, **settings: Any) -> DataLoader[Any]:
    context = {"multiprocessing_context": "fork"} if workers else {}
    return DataLoader(data, **{"batch_size": 4, **settings}, num_workers=workers, **context)  # type: ignore[arg-type]


SOURCES: dict[str, Callable[[Any], Any]] = {
    "map": lambda data: aa.MapSource("d", data, features="x", target="y"),
    "map with threads": lambda data: aa.MapSource("d", data, features="x", target="y", workers=2),
    "loader": lambda data: aa.IterableSource("d", loader(data), features="x", target="y"),
    "read_ahead=0": lambda data: aa.IterableSource("d", loader(data), features="x", target="y", read_ahead=0),
    "workers": lambda data: aa.IterableSource("d", loader(data, 2), features="x", target="y"),
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("make", SEEDS)
def test_rows_are_those_of_a_data_set_that_seeds_itself(make: Callable[[int], torch.Tensor], kind: str) -> None:
    """The same rows, and the same losses, dropout included, as from batches that were made beforehand."""
    if kind == "workers" and make not in {by_torch, by_numpy} and "ANYACCEL_TEST_FULL" not in os.environ:
        pytest.skip("a sample: ANYACCEL_TEST_FULL=1 tests all")
    data = Seeded(make)
    expected = torch.stack([data[i][0] for i in range(ROWS)])
    batches = [(expected[i : i + 4], torch.arange(i, i + 4)[:, None] / ROWS) for i in range(0, ROWS, 4)]
    losses, rows = train(SOURCES[kind](data))
    torch.testing.assert_close(rows, expected.repeat(2, 1), rtol=0, atol=0)
    replayed, _ = train(aa.IterableSource("d", batches, features="x", target="y"))
    np.testing.assert_array_equal(losses, replayed)


def test_a_phase_leaves_the_generator_of_the_user_where_it_was() -> None:
    """Read between two steps, too; outside of phases, for the example, a data set sets it as in a loop by hand."""
    source, net = SOURCES["map"](Seeded(by_torch)), Net(3)
    graph = aa.ModelGraph([aa.ModelNode("n", net, source.reference("x"))], "sgd")
    phase = aa.TrainPhase("t", data=source, losses=aa.AppliedLoss("mse", on="n"), sampler=aa.SimpleSampler(4))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    aa.Experiment("e", graph, progress="none").run_phase(phase)
    plain = [(torch.ones(4, 3), torch.ones(4, 1))] * 6
    state = torch.get_rng_state()
    torch.set_rng_state(before)
    again = aa.ModelGraph([aa.ModelNode("n", Net(3), source.reference("x"))], "sgd")
    torch.set_rng_state(before)
    other = aa.TrainPhase("t", data={"d": aa.IterableSource("o", plain, features="x", target="y")}, losses=phase.losses)
    aa.Experiment("e", again, progress="none").run_phase(other)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", ["map", "loader"])
def test_a_validation_that_seeds_itself_changes_nothing_in_the_training(kind: str) -> None:
    def losses(validation: Any) -> np.ndarray:
        source, net = SOURCES["loader"](Table(lambda: float(torch.rand(())))), Net(3)
        torch.manual_seed(6)
        graph = aa.ModelGraph([aa.ModelNode("net", net, source.reference("x"))], aa.Optimizer("sgd", lr=0.1))
        loss = aa.AppliedLoss("mse", on="net")
        validated = None if validation is None else aa.EvalPhase("v", data={"d": validation}, losses=loss)
        phase = aa.TrainPhase("t", data=source, losses=loss, epochs=3, compile="off", validation=validated)
        return np.asarray(aa.Experiment("e", graph, progress="none").run_phase(phase).loss)

    np.testing.assert_array_equal(losses(SOURCES[kind](Seeded(by_torch))), losses(None))


def test_a_loop_by_hand_of_prepare_gets_the_rows_of_the_data_set() -> None:
    data = Seeded(by_torch)
    expected = torch.stack([data[i][0] for i in range(ROWS)])

    def loop(batches: Any) -> tuple[torch.Tensor, list[float]]:
        net, seen, losses = Net(3), [], []
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        torch.manual_seed(7)
        for _ in range(2):
            for x, y in batches:
                seen.append(x)
                loss = nn.functional.mse_loss(net(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return torch.cat(seen), losses

    rows, losses = loop(aa.prepare(loader(data), accelerator="cpu"))
    torch.testing.assert_close(rows, expected.repeat(2, 1), rtol=0, atol=0)
    assert losses == loop(loader(data))[1]


def test_fit_gets_the_rows_of_the_data_set() -> None:
    data, net = Seeded(by_torch), Net(3)
    expected = torch.stack([data[i][0] for i in range(ROWS)])
    aa.fit(net, loader(data), loss="mse", optimizer="sgd", epochs=2, progress="none")
    torch.testing.assert_close(torch.cat(net.seen)[-2 * ROWS :], expected.repeat(2, 1), rtol=0, atol=0)


@pytest.mark.parametrize("make", [by_torch, by_fork])
def test_a_data_set_that_seeds_itself_later_is_told_and_the_hint_helps(make: Callable[[int], torch.Tensor]) -> None:
    source = SOURCES["loader"](Seeded(make, first=8))
    expected = torch.stack([Seeded(make, first=8)[i][0] for i in range(ROWS)])
    with pytest.warns(
        RuntimeWarning, match=r"source 'd': .*seeded while rows were read ahead.*generator object"
    ) as told:
        _, rows = train(source)
    assert len(told) == 1
    torch.testing.assert_close(rows[ROWS:], expected, rtol=0, atol=0)
    hinted = Seeded(lambda i: torch.randn(3, generator=torch.Generator().manual_seed(i)), first=8)
    _, rows = train(SOURCES["loader"](hinted))
    torch.testing.assert_close(rows, torch.stack([hinted[i][0] for i in range(ROWS)]).repeat(2, 1), rtol=0, atol=0)


# -- going on within an epoch ------------------------------------------------------------------------------------------


class Table(Dataset[Any]):
    def __init__(self, noise: Callable[[], float] = lambda: 0.0) -> None:
        self.noise = noise

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> Any:
        x = torch.tensor([float(i), 0.0, 1.0]) / ROWS
        return x + self.noise(), x[:1]


class Stream(IterableDataset[Any]):
    def __init__(self, shuffle: Callable[[list[int]], None]) -> None:
        self.shuffle = shuffle

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        rows = list(range(ROWS))[worker.id if worker else 0 :: worker.num_workers if worker else 1]
        self.shuffle(rows)
        return (Table()[i] for i in rows)


class Order(Sampler[int]):
    def __init__(self, draw: Callable[[], Any]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return ROWS

    def __iter__(self) -> Iterator[int]:
        return iter([int(i) for i in self.draw()])


class Batches(Order):
    def __len__(self) -> int:
        return ROWS // 4

    def __iter__(self) -> Iterator[Any]:
        order = list(super().__iter__())
        return (order[i : i + 4] for i in range(0, ROWS, 4))


def seed_worker(worker: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32)
    random.seed(worker)


def generator(own: bool) -> torch.Generator | None:
    return torch.Generator().manual_seed(3) if own else None


def stateful(own: bool, workers: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    context = {"multiprocessing_context": "fork"} if workers else {}
    return StatefulDataLoader(
        Table(), batch_size=4, shuffle=True, generator=generator(own), num_workers=workers, **context
    )


class Held:
    """A random state that a sampler or a data set holds, or the global one."""

    def __init__(self, own: bool, kind: str) -> None:
        self.numpy: Any = np.random.default_rng(3) if own else np.random
        self.python: Any = random.Random(3) if own else random
        self.torch, self.kind = generator(own), kind

    def __call__(self) -> Any:
        if self.kind == "numpy":
            return self.numpy.permutation(ROWS)
        if self.kind == "python":
            return self.python.sample(range(ROWS), ROWS)
        return torch.randperm(ROWS, generator=self.torch)

    def shuffle(self, rows: list[int]) -> None:
        self.python.shuffle(rows)

    def noise(self) -> float:
        return float(self.numpy.uniform()) + self.python.random() + float(torch.rand((), generator=self.torch))


def batch_loader(sampler: Any, workers: int) -> Any:
    context = {"multiprocessing_context": "fork"} if workers else {}
    return DataLoader(Table(), batch_sampler=sampler, num_workers=workers, **context)  # type: ignore[arg-type]


LOADERS: dict[str, Callable[[bool, int], Any]] = {
    "shuffle": lambda own, n: loader(Table(), n, shuffle=True, generator=generator(own)),
    "RandomSampler": lambda own, n: loader(
        Table(), n, sampler=RandomSampler(Table(), replacement=True, num_samples=ROWS, generator=generator(own))
    ),
    "WeightedRandomSampler": lambda own, n: loader(
        Table(), n, sampler=WeightedRandomSampler(list(range(1, ROWS + 1)), ROWS, generator=generator(own))
    ),
    "SubsetRandomSampler": lambda own, n: loader(
        Table(), n, sampler=SubsetRandomSampler(range(ROWS), generator=generator(own))
    ),
    "DistributedSampler": lambda own, n: loader(
        Table(), n, sampler=DistributedSampler(Table(), 1, 0, shuffle=True, seed=int(own))
    ),
    "BatchSampler": lambda own, n: batch_loader(
        BatchSampler(RandomSampler(Table(), generator=generator(own)), 4, drop_last=True), n
    ),
    "own sampler, NumPy": lambda own, n: loader(Table(), n, sampler=Order(Held(own, "numpy"))),
    "own sampler, Python": lambda own, n: loader(Table(), n, sampler=Order(Held(own, "python"))),
    "own batch sampler, torch": lambda own, n: batch_loader(Batches(Held(own, "torch")), n),
    "IterableDataset": lambda own, n: loader(Stream(Held(own, "python").shuffle), n, worker_init_fn=seed_worker),
    "augmentation": lambda own, n: loader(
        Table(Held(own, "").noise), n, shuffle=True, generator=generator(own), worker_init_fn=seed_worker
    ),
    "random_split": lambda own, n: loader(
        random_split(Table(), [ROWS - 4, 4], generator=generator(own=True))[0],
        n,
        shuffle=True,
        generator=generator(own),
    ),
    "StatefulDataLoader": stateful,
}
SAMPLE = (("shuffle", True), ("shuffle", False), ("augmentation", True), ("IterableDataset", False))
"""Of those with workers."""


class Stop(aa.Callback):
    def __init__(self, at: int) -> None:
        self.left = at

    def step_end(self, run: Any) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def run(make: Callable[[], Any], folder: Path | None, *, seed: int, stop: int = 0) -> tuple[np.ndarray, torch.Tensor]:
    """Three epochs of six steps as a process of its own would train them: what is random starts from `seed`."""
    seed_all(seed)
    source = aa.IterableSource("d", make(), features="x", target="y")
    net = Net(3)
    graph = aa.ModelGraph([aa.ModelNode("net", net, source.reference("x"))], aa.Optimizer("sgd", lr=0.1), seed=4)
    phase = aa.TrainPhase(
        "t",
        data=source,
        losses=aa.AppliedLoss("mse", on="net"),
        epochs=3,
        compile="off",
        checkpoint=None if folder is None else aa.Checkpoint(folder),
        callbacks=[Stop(stop)] if stop else [],
    )
    seed_all(seed + 1)
    net.seen.clear()
    results = aa.Experiment("e", graph, progress="none").run_phase(phase, resume="never" if folder is None else "auto")
    return np.asarray(results.loss), torch.cat(net.seen)


@pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")  # of torchdata
@pytest.mark.parametrize("at", [2, 10])
@pytest.mark.parametrize("own", [False, True], ids=["global", "own"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", LOADERS)
def test_a_run_goes_on_as_if_it_had_not_been_interrupted(
    kind: str, workers: int, own: bool, at: int, tmp_path: Path
) -> None:
    """The rows that are left, and all losses, although nothing random stands where it stood."""
    if kind == "StatefulDataLoader":
        pytest.importorskip("torchdata")
    is_sampled = not workers or ((kind, own) in SAMPLE and at == 10)
    if not is_sampled and "ANYACCEL_TEST_FULL" not in os.environ:
        pytest.skip("a sample: ANYACCEL_TEST_FULL=1 tests all")
    make = lambda: LOADERS[kind](own, workers)  # noqa: E731
    losses, rows = run(make, None, seed=1)
    with pytest.raises(KeyboardInterrupt):
        run(make, tmp_path, seed=1, stop=at)
    resumed_losses, resumed_rows = run(make, tmp_path, seed=8)
    assert len(rows) in {3 * ROWS, 3 * (ROWS - 4)}
    torch.testing.assert_close(resumed_rows, rows[4 * at :], rtol=0, atol=0)
    np.testing.assert_array_equal(resumed_losses, losses)


class Drawing(Table):
    """Draws in each row from what a worker process keeps from one epoch to the next."""

    def __getitem__(self, i: int) -> Any:
        return torch.tensor([i + random.random(), 0.0, 1.0]) / ROWS, torch.tensor([i / ROWS])


def test_workers_that_are_kept_go_on_where_nothing_is_drawn_in_them_and_are_refused_elsewhere(tmp_path: Path) -> None:
    kept = {"shuffle": True, "persistent_workers": True}
    losses, rows = run(lambda: loader(Table(), 2, **kept), None, seed=1)
    with pytest.raises(KeyboardInterrupt):
        run(lambda: loader(Table(), 2, **kept), tmp_path / "a", seed=1, stop=10)
    resumed, left = run(lambda: loader(Table(), 2, **kept), tmp_path / "a", seed=8)
    torch.testing.assert_close(left, rows[40:], rtol=0, atol=0)
    np.testing.assert_array_equal(resumed, losses)
    with pytest.raises(KeyboardInterrupt):
        run(lambda: loader(Drawing(), 2, **kept), tmp_path / "b", seed=1, stop=10)
    with pytest.raises(aa.errors.SourceError, match=r"other rows.*state that worker processes keep") as told:
        run(lambda: loader(Drawing(), 2, **kept), tmp_path / "b", seed=8)
    assert "leave persistent_workers out" in told.value.hint
    hinted = lambda: loader(Drawing(), 2, shuffle=True)  # noqa: E731
    losses, rows = run(hinted, None, seed=1)
    with pytest.raises(KeyboardInterrupt):
        run(hinted, tmp_path / "c", seed=1, stop=10)
    np.testing.assert_array_equal(run(hinted, tmp_path / "c", seed=8)[0], losses)
