"""Streamed rows give the numbers of resident ones, to the bit, for any sampler and any size of blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from neighbours import Neighbours, Threes

from anyaccel import AppliedLoss, SimpleSampler
from anyaccel.data import FeatureSet
from anyaccel.experiment import Experiment
from anyaccel.graph import ConcatNode, ModelGraph, ModelNode
from anyaccel.metrics import Metric
from anyaccel.numpy_backend import BatchNorm, Dense, Dropout, Sequential, SequentialMLP, Simulation
from anyaccel.phases import Callback, EarlyStopping, EvalPhase, Phase, TrainPhase
from anyaccel.phases.loading.streaming import StreamingLoader
from anyaccel.specs import Optimizer

MSE = AppliedLoss("mse", on="net")
SIZES = [1, 200, 2**20]  # bytes of a block: one step, a few, everything
Blocks = Callable[[int], None]


def numbers(label: str = "data", n: int = 50, seed: int = 0) -> FeatureSet:
    """Features [3], a target, and labels of three classes; splits `train` (37 rows) and `val`."""
    draw = np.random.default_rng(seed)
    columns = {
        "x": draw.normal(size=(n, 3)).astype("float32"),
        "y": draw.normal(size=(n, 1)).astype("float32"),
        "k": np.arange(n) % 3,
    }
    made = FeatureSet.from_dict(label, columns, ["x"], ["y"], ["k"])
    made.add_splits({"train": np.arange(n)[: n * 3 // 4], "val": np.arange(n)[n * 3 // 4 :]})
    return made


def run(graph: ModelGraph, phase: Phase, **settings: Any) -> Any:
    return Experiment("e", graph, progress="none", **settings).run_phase(phase)


@pytest.fixture
def spied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps of each block that was streamed."""
    seen: list[int] = []
    fill = StreamingLoader.fill

    def watch(self: StreamingLoader, block: Any, buffers: Any) -> Any:
        seen.append(sum(steps.n_steps for steps in block.steps))
        return fill(self, block, buffers)

    monkeypatch.setattr(StreamingLoader, "fill", watch)
    return seen


def one(model: Any = None, **settings: Any) -> ModelGraph:
    source = settings.pop("source", None) or numbers()
    node = ModelNode("net", model or SequentialMLP((1,), 2, 5, "tanh"), source.reference(["x"], ["y"]))
    return ModelGraph([node], Optimizer("adam", lr=0.03), seed=5, **settings)


def differ(one: Any, other: Any) -> list[str]:
    """Names of values that are not equal to the bit."""
    assert sorted(one) == sorted(other)
    return [name for name in one if not np.array_equal(one[name], other[name], equal_nan=True)]


def both(make: Callable[[], ModelGraph], phase: Callable[..., Phase]) -> tuple[list[Any], list[dict[str, np.ndarray]]]:
    """Results and states, resident and streamed."""
    results, states = [], []
    for residency in ("resident", "streamed"):
        graph = make()
        results.append(run(graph, phase(residency=residency)))
        states.append(graph.state())
    return results, states


def epochs(result: Any) -> list[Any]:
    return [(epoch.number, epoch.steps, epoch.losses, epoch.validation) for epoch in result.epochs]


# -- samplers ----------------------------------------------------------------------------------------------------------

SAMPLERS = {
    "in order": SimpleSampler(4),
    "shuffled": SimpleSampler(5, shuffle=True, seed=3),
    "dropped": SimpleSampler(5, shuffle=True, drop_last=True),
    "whole": SimpleSampler(100, shuffle=True),
    "single": SimpleSampler(1, shuffle=True),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_one_sampler_streams_to_the_same_numbers(sampler: str, size: int, blocks: Blocks, spied: list[int]) -> None:
    blocks(size)
    results, states = both(
        one,
        lambda **more: TrainPhase(
            "t", data="train", losses=MSE, sampler=SAMPLERS[sampler], epochs=3, validation="val", **more
        ),
    )
    assert differ(*states) == [] and spied
    assert epochs(results[0]) == epochs(results[1])
    assert [len(result.events) for result in results] == [0, 0]


def siamese(*streams: str | None) -> ModelGraph:
    """One model at every stream, joined."""
    source, model = numbers(), SequentialMLP((2,), 2, 4, "tanh")
    nodes: list[Any] = [
        ModelNode(f"n{i}", model, source.reference(["x"], ["y"], stream=stream)) for i, stream in enumerate(streams)
    ]
    if len(nodes) > 1:
        nodes.append(ConcatNode("all", [node.label for node in nodes]))
    nodes.append(ModelNode("net", Dense(1), nodes[-1].label))
    return ModelGraph(nodes, Optimizer("momentum", lr=0.02), seed=5)


PAIRED = AppliedLoss("mse", on="net", inputs=["outputs", "data.y"])
TOGETHER = {
    "pairs": (Neighbours(4, "k", seed=1), (None, "pair")),
    "triplets": (Threes(6, "k", seed=1), (None, "positive", "negative")),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sampler", TOGETHER)
def test_pairs_stream_to_the_same_numbers(sampler: str, size: int, blocks: Blocks) -> None:
    blocks(size)
    drawn, streams = TOGETHER[sampler]
    results, states = both(
        lambda: siamese(*streams),
        lambda **more: TrainPhase("t", data="train", losses=PAIRED, sampler=drawn, epochs=3, validation="val", **more),
    )
    assert differ(*states) == []
    assert epochs(results[0]) == epochs(results[1])


def test_columns_of_several_streams_are_copied_for_each(blocks: Blocks, sims: Simulation) -> None:
    """Their rows differ; resident columns are there once."""
    blocks(1)
    into = []
    for residency in ("resident", "streamed"):
        sims[0].clear()
        phase = TrainPhase(
            "t",
            data="train",
            losses=PAIRED,
            sampler=Neighbours(4, "k"),
            accelerator="sim:0",
            residency=residency,
        )
        run(siamese(None, "pair"), phase)
        into.append(sims[0].transfers.into.nbytes)
    assert into[0] < into[1]


SCHEDULES = {
    "zip": ({"a": SimpleSampler(4, shuffle=True), "b": SimpleSampler(2)}, "zip_cycle"),
    "alternate": ({"a": SimpleSampler(4, shuffle=True), "b": SimpleSampler(4, shuffle=True)}, "alternate_cycle"),
    "short": ({"a": SimpleSampler(3), "b": SimpleSampler(9, shuffle=True)}, "alternate_cycle"),
    "uniform": ({"a": SimpleSampler(4), "b": SimpleSampler(4, seed=7, shuffle=True)}, "zip_cycle"),
}


def apart() -> ModelGraph:
    """A node on each of two feature sets."""
    nodes = [
        ModelNode(name, Dense(1), numbers(f"{name}{name}", n, seed=n).reference(["x"], ["y"]))
        for name, n in (("a", 40), ("b", 29))
    ]
    return ModelGraph(nodes, "adam", seed=5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SCHEDULES)
def test_several_samplers_stream_to_the_same_numbers(name: str, size: int, blocks: Blocks) -> None:
    blocks(size)
    samplers, schedule = SCHEDULES[name]
    results, states = both(
        apart,
        lambda **more: TrainPhase(
            "t",
            data="train",
            losses=[AppliedLoss("mse", on="a"), AppliedLoss("mae", on="b")],
            sampler={f"{key}{key}": one for key, one in samplers.items()},
            schedule=schedule,
            epochs=3,
            validation="val",
            **more,
        ),
    )
    assert differ(*states) == []
    assert epochs(results[0]) == epochs(results[1])


def test_rows_that_a_block_does_not_use_change_nothing(blocks: Blocks) -> None:
    """Class indices in unused rows of a buffer are out of range; no step takes them."""
    blocks(1)
    draw = np.random.default_rng(0)

    def make() -> ModelGraph:
        nodes = []
        for name in "ab":
            columns = {"x": draw.normal(size=(12, 3)).astype("float32"), "c": np.arange(12) % 3}
            made = FeatureSet.from_dict(f"{name}{name}", columns, ["x"], ["c"])
            nodes.append(ModelNode(name, Dense(3), made.reference()))
        return ModelGraph(nodes, "adam")

    graph = make()
    losses = [AppliedLoss("cross_entropy", on=name) for name in "ab"]
    phase = TrainPhase(
        "t",
        data="all",
        losses=losses,
        sampler={"aa": 4, "bb": 5},
        schedule="alternate_cycle",
        residency="streamed",
    )
    assert np.isfinite(run(graph, phase).loss).all()


# -- what a phase can have ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_dropout_and_running_statistics_are_the_same_when_streamed(size: int, blocks: Blocks) -> None:
    blocks(size)
    results, states = both(
        lambda: one(Sequential(Dense(4), BatchNorm(), Dropout(0.4), Dense(1))),
        lambda **more: TrainPhase("t", data="train", losses=MSE, batch_size=5, epochs=3, validation="val", **more),
    )
    assert differ(*states) == []
    assert epochs(results[0]) == epochs(results[1])


def test_step_end_hooks_see_the_same_steps(blocks: Blocks) -> None:
    blocks(200)
    heard: list[list[Any]] = []

    class Ear(Callback):
        def step_end(self, run: Any) -> None:
            heard[-1].append((run.epoch, run.step, run.step_losses()))

    def phase(**more: Any) -> Phase:
        heard.append([])
        return TrainPhase("t", data="train", losses=MSE, batch_size=5, epochs=2, callbacks=[Ear()], **more)

    _, states = both(one, phase)
    assert differ(*states) == []
    assert heard[0] == heard[1] and len(heard[0]) == 16
    plain = one()
    run(plain, TrainPhase("t", data="train", losses=MSE, batch_size=5, epochs=2))
    assert differ(plain.state(), states[1]) == []


@pytest.mark.parametrize("moment", ["step_end", "epoch_end", "epoch_start"])
def test_a_stopped_run_is_the_same_when_streamed(moment: str, blocks: Blocks, at: Callable[..., Callback]) -> None:
    blocks(200)

    def stop(run: Any) -> None:
        if (run.epoch, run.step) >= (1, 3) or (moment != "step_end" and run.epoch == 1):
            run.stop("enough")

    results, states = both(
        one,
        lambda **more: TrainPhase(
            "t", data="train", losses=MSE, batch_size=5, epochs=4, callbacks=[at(moment, stop)], **more
        ),
    )
    assert differ(*states) == []
    assert epochs(results[0]) == epochs(results[1]) and results[1].stop_reason == "enough"
    assert [epoch.steps for epoch in results[1].epochs][:2] == ([8, 4] if moment == "step_end" else [8, 8])[
        : len(results[1].epochs)
    ]


def test_early_stopping_restores_the_same_state_when_streamed(blocks: Blocks) -> None:
    blocks(200)
    results, states = both(
        one,
        lambda **more: TrainPhase(
            "t",
            data="train",
            losses=MSE,
            batch_size=5,
            epochs=30,
            validation="val",
            callbacks=[EarlyStopping(patience=1, restore_best=True)],
            **more,
        ),
    )
    assert differ(*states) == []
    assert epochs(results[0]) == epochs(results[1])
    assert results[1].stop_reason and len(results[1].epochs) < 30


def test_later_epochs_are_the_same_when_streamed(blocks: Blocks) -> None:
    """Epochs are numbered over all phases of a label."""
    blocks(200)
    graph, halves = one(), one()
    run(graph, TrainPhase("t", data="train", losses=MSE, sampler=SAMPLERS["shuffled"], epochs=4))
    for residency in ("resident", "streamed"):
        phase = TrainPhase("t", data="train", losses=MSE, sampler=SAMPLERS["shuffled"], epochs=2, residency=residency)
        run(halves, phase)
    assert differ(graph.state(), halves.state()) == []


# -- evaluation and fitting --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("drawn", ["rows", "pairs", "triplets"])
def test_evaluations_are_the_same_when_streamed(drawn: str, size: int, blocks: Blocks, spied: list[int]) -> None:
    blocks(size)
    sampler, streams = TOGETHER.get(drawn, (None, (None,)))
    graph = siamese(*streams)
    how: dict[str, Any] = {"batch_size": 7} if sampler is None else {"sampler": sampler}
    result = [
        run(
            graph,
            EvalPhase(
                "e",
                data="val",
                losses=PAIRED,
                metrics=[Metric("mae", on="net"), "r2"],
                outputs=["n0", "net"],
                residency=residency,
                **how,
            ),
        )
        for residency in ("resident", "streamed")
    ]
    assert result[0].losses == result[1].losses and result[0].metrics == result[1].metrics and spied
    for name in ("n0", "net"):
        np.testing.assert_array_equal(result[0].prediction(name), result[1].prediction(name))


@pytest.mark.parametrize("size", SIZES)
def test_evaluations_of_unequal_sets_are_the_same_when_streamed(size: int, blocks: Blocks) -> None:
    blocks(size)
    graph = apart()
    result = [
        run(
            graph,
            EvalPhase(
                "e",
                data="all",
                losses=[AppliedLoss("mse", on="a")],
                batch_size=6,
                outputs=["a", "b"],
                residency=residency,
            ),
        )
        for residency in ("resident", "streamed")
    ]
    assert result[0].losses == result[1].losses
    for name, n in (("a", 40), ("b", 29)):
        assert len(result[1].prediction(name)) == n
        np.testing.assert_array_equal(result[0].prediction(name), result[1].prediction(name))


def test_small_and_odd_columns_are_streamed_unchanged(blocks: Blocks) -> None:
    """Images, an integer column, and one that two nodes share."""
    blocks(500)
    draw = np.random.default_rng(0)
    source = FeatureSet.from_dict(
        "data",
        {"image": draw.normal(size=(20, 1, 4, 4)).astype("float32"), "x": draw.normal(size=20), "c": np.arange(20) % 3},
        ["image", "x"],
        ["c"],
    )

    def make() -> ModelGraph:
        from anyaccel.numpy_backend import Flatten

        nodes = [
            ModelNode("image", Sequential(Flatten(), Dense(3)), source.reference(["image"], ["c"])),
            ModelNode("again", Sequential(Flatten(), Dense(3)), source.reference(["image"], ["c"])),
        ]
        return ModelGraph(nodes, "adam", seed=1)

    losses = [AppliedLoss("cross_entropy", on=name) for name in ("image", "again")]
    results, states = both(
        make, lambda **more: TrainPhase("t", data="all", losses=losses, batch_size=6, epochs=2, **more)
    )
    assert differ(*states) == [] and epochs(results[0]) == epochs(results[1])
