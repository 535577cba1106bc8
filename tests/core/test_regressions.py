"""Regression tests: faults that users of the predecessor met, and that must not come back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.graph import precedence
from anyaccel.numpy_backend import SimArray

N = 40


@pytest.fixture
def sims() -> Iterator[Any]:
    with aa.simulate(2) as handles:
        yield handles


def data(dtype: str = "float32") -> aa.FeatureSet:
    random = np.random.default_rng(0)
    x = random.standard_normal((N, 5)).astype(dtype)
    source = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1], "who": np.arange(N)}, ["x"], ["y"], ["who"])
    source.split_random({"train": 0.8, "val": 0.2})
    return source


def node(label: str, upstream: Any, accelerator: Any = None, width: int = 1, dtype: str = "float32") -> aa.ModelNode:
    return aa.ModelNode(label, aa.SequentialMLP((width,), 2, 4, dtype=dtype), upstream, accelerator)


def train(graph: aa.ModelGraph, **settings: Any) -> aa.TrainResults:
    options = {
        "losses": [aa.AppliedLoss("mse", on=graph.output_nodes[0])],
        **({} if "sampler" in settings else {"batch_size": 8}),
        "epochs": 2,
        **settings,
    }
    return aa.Experiment("e", graph, progress="none").run_phase(aa.TrainPhase("train", data="train", **options))


def slots(graph: aa.ModelGraph, label: str) -> list[Any]:
    return [value for slot in graph.optimizer_states[label].slots.values() for value in slot.values()]


def test_optimizer_state_follows_its_node_and_not_the_phase(sims: Any) -> None:
    source = data()
    graph = aa.ModelGraph([node("pinned", source.reference(), "sim:0", 3), node("free", "pinned")], "adam")
    train(graph, accelerator="sim:1")
    assert {aa.device_of(value) for value in slots(graph, "pinned")} == {aa.Device("sim", 0)}
    assert {aa.device_of(value) for value in slots(graph, "free")} == {aa.Device("sim", 1)}
    train(graph)
    assert {aa.device_of(value) for value in slots(graph, "pinned")} == {aa.Device("sim", 0)}
    assert {aa.device_of(value) for value in slots(graph, "free")} == {aa.Device("cpu")}


def test_branches_on_two_devices_are_joined_without_a_phase_accelerator(sims: Any) -> None:
    source = data()
    branches = [node("a", source.reference(), "sim:0", 2), node("b", source.reference(), "sim:1", 2)]
    graph = aa.ModelGraph([*branches, aa.ConcatNode("both", ["a", "b"]), node("head", "both", "sim:1")], "adam")
    losses = train(graph, epochs=5).loss
    assert losses[-1] < losses[0]


def test_the_sample_order_differs_between_epochs() -> None:
    sampler = aa.SimpleSampler(8, shuffle=True)
    assert not np.array_equal(sampler.order(N, 0), sampler.order(N, 1))
    seen: list[Any] = []

    class Record(aa.Callback):
        def step_end(self, run: Any) -> None:
            seen.append(run.step_losses()["net"])

    graph = aa.ModelGraph([node("net", data().reference())], aa.Optimizer("sgd", lr=1e-12))
    train(graph, sampler=sampler, callbacks=[Record()])
    half = len(seen) // 2
    assert not np.allclose(seen[:half], seen[half:]), (
        "nothing is learnt at this rate, so that other losses mean other batches"
    )


def test_validation_inside_training_moves_no_model(sims: Any) -> None:
    source = data()
    graph = aa.ModelGraph([node("net", source.reference())], "adam")
    seen: list[Any] = []

    class Record(aa.Callback):
        def epoch_end(self, run: Any) -> None:
            seen.append((aa.device_of(run.graph["net"].model), sims[0].transfers.into.number))

    settings = {"accelerator": "sim:0", "epochs": 3, "callbacks": [Record()]}
    sampler = aa.SimpleSampler(8, shuffle=True)
    train(graph, sampler=sampler, validation="val", **settings)
    assert {device for device, _ in seen} == {aa.Device("sim", 0)}
    assert list(np.diff([number for _, number in seen])) == [1, 1], (
        "an epoch and its validation send only the sample order"
    )
    assert aa.EvalPhase.from_split("val", split="val", accelerator="sim:0").accelerator == aa.Accelerator("sim:0")


def test_a_nodes_accelerator_comes_before_the_phases(sims: Any) -> None:
    own, phase = aa.Accelerator("sim:0"), aa.Accelerator("sim:1")
    assert precedence(own, phase) == (own, "node")
    assert precedence(None, phase) == (phase, "phase")
    assert precedence(None, None) == (aa.Accelerator("cpu"), "default")
    graph = aa.ModelGraph([node("net", data().reference(), own)])
    for phase_accelerator in (None, "sim:1", "cpu"):
        plan = aa.Experiment("e", graph).plan(aa.EvalPhase("eval", data="val", accelerator=phase_accelerator))
        assert plan.device("net") == aa.Device("sim", 0)


def test_after_a_phase_only_parameters_and_optimizer_state_stay_on_the_device(sims: Any) -> None:
    graph = aa.ModelGraph([node("net", data().reference())], "adam")
    for _ in range(3):
        results = train(graph, accelerator="sim:0", validation="val")
        del results
        model: Any = graph["net"].model
        kept = [*model.parameters.values(), *slots(graph, "net")]
        assert all(isinstance(array, SimArray) for array in kept)
        assert sims[0].used == sum(array.nbytes for array in kept)


def test_dtypes_are_kept_and_tags_come_back_with_predictions() -> None:
    source = data("float64")
    graph = aa.ModelGraph([node("net", source.reference(), dtype="float64")], "adam")
    results = train(graph)
    assert {column.change for column in results.plan.columns} == {""}
    evaluated = aa.Experiment("e", graph, progress="none").run_phase(aa.EvalPhase("eval", data="val"))
    assert evaluated.prediction("net").dtype == np.float64
    assert evaluated.to_arrow()["who"].to_pylist() == source["val"].column("who").to_pylist()


def test_the_training_loop_does_not_wait_for_the_device(sims: Any) -> None:
    waits: list[int] = []

    class Record(aa.Callback):
        def epoch_start(self, run: Any) -> None:
            waits.append(sims[0].syncs)

    graph = aa.ModelGraph([node("net", data().reference())], "adam")
    train(graph, accelerator="sim:0", epochs=12, batch_size=2, callbacks=[Record()])
    steps = 16
    assert max(np.diff(waits)) < steps, "losses are read once for each call of many steps, at the end of the epoch"
    assert waits[-1] - waits[-2] <= 3


def test_a_configuration_keeps_pin_memory_of_nodes_and_phases() -> None:
    source = data()
    pinned = aa.Accelerator("gpu:1", pin_memory=True)
    graph = aa.ModelGraph([node("net", source.reference(), pinned)], "adam")
    phase = aa.TrainPhase("t", data="train", losses=[aa.AppliedLoss("mse", on="net")], accelerator=pinned)
    config = json.loads(json.dumps(aa.Experiment("e", graph, [phase]).get_config()))
    back = aa.Experiment.from_config(config, feature_sets=[source])
    restored: Any = back.graph["net"]
    assert restored.accelerator == pinned and restored.accelerator.pin_memory
    assert back.phases[0].accelerator == pinned and back.phases[0].accelerator.pin_memory


def test_the_plan_says_where_nodes_move_and_final_device_decides_where_they_stay(sims: Any) -> None:
    graph = aa.ModelGraph([node("net", data().reference())], "adam")
    train(graph, accelerator="sim:0")
    assert aa.device_of(graph["net"].model) == aa.Device("sim", 0)
    plan = aa.Experiment("e", graph).plan(aa.EvalPhase("eval", data="val"))
    assert plan.notes[0] == "net moves from sim:0 to cpu:0: neither it nor the phase requests a device"
    train(graph, accelerator="sim:0", final_device="cpu")
    assert aa.device_of(graph["net"].model) == aa.Device("cpu")
    assert {aa.device_of(value) for value in slots(graph, "net")} == {aa.Device("cpu")}
    assert sims[0].used == 0


def test_importing_imports_no_framework() -> None:
    script = (
        "import sys, anyaccel\n"
        "from anyaccel import ModelGraph, TrainPhase, Experiment, SequentialMLP\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'tensorflow', 'jax', 'keras'}))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
