"""run.stats: memory of devices and nodes, and speed, while a phase runs."""

from __future__ import annotations

import json

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.backend import Memory
from anyaccel.phases import RunStats
from anyaccel.registry import registry

ROWS = aa.FeatureSet.from_dict(
    "rows", {"x": np.ones((12, 3), np.float32), "y": np.ones((12, 1), np.float32)}, ["x"], ["y"]
)
LOSS = aa.AppliedLoss("mse", on="head")


class Watch(aa.Callback):
    def __init__(self):
        self.seen, self.memory = [], []

    def phase_start(self, run):
        self.seen.append(run.stats)

    def after_loading(self, run):
        self.seen.append(run.stats)

    def epoch_end(self, run):
        self.seen.append(run.stats)
        self.memory.append(registry().find("numpy", "sim").required(Memory).memory(aa.Device("sim", 0)))


def watched(graph, phase=aa.TrainPhase, **settings):
    watch = Watch()
    more = {} if phase is aa.EvalPhase else {"epochs": 2, "batch_size": 4}
    aa.Experiment(graph, progress="none").run_phase(
        phase("it", data=ROWS, losses=[LOSS], callbacks=[watch], **more, **settings)
    )
    return watch


def chain(optimizer="adam"):
    first = aa.ModelNode("first", aa.SequentialMLP(output_shape=(5,)), ROWS.reference())
    head = aa.ModelNode("head", aa.SequentialMLP(output_shape=(1,)), first)
    return aa.ModelGraph([first, head], optimizer)


def test_devices_have_what_their_backend_says_and_nodes_what_they_need():
    with aa.simulate(1, capacity=2**20):
        graph = chain()
        watch = watched(graph, accelerator="sim:0")
        before, loaded, *epochs = watch.seen
        assert before == RunStats() and str(before) == ""
        assert loaded.steps_per_second is None and len(epochs) == 2
        (device,) = epochs[-1].devices
        memory = watch.memory[-1]
        assert (device.used, device.peak, device.total) == (memory.used, memory.peak, 2**20) and memory.used > 0
        assert (str(device.device), device.framework) == ("sim:0", "numpy")
    sizes = {node.label: sum(p.nbytes for p in node.model.parameters.values()) for node in graph.nodes.values()}
    for node in epochs[-1].nodes:
        assert (node.parameters, node.gradients, node.optimizer) == (sizes[node.node],) * 2 + (2 * sizes[node.node],)


def test_the_speed_is_that_of_the_last_epoch():
    with aa.simulate(1):
        watch = Watch()
        phase = aa.TrainPhase("it", data=ROWS, losses=[LOSS], callbacks=[watch], epochs=2, batch_size=4)
        results = aa.Experiment(chain(), progress="none").run_phase(phase)
    last = results.epochs[-1]
    assert watch.seen[-1].steps_per_second == pytest.approx(last.steps / last.seconds)


def test_what_is_frozen_or_only_evaluated_has_no_gradients():
    with aa.simulate(1):
        graph = chain()
        graph.freeze("first")
        frozen, head = watched(graph).seen[-1].nodes
        assert (frozen.gradients, frozen.optimizer) == (0, 0) < (head.gradients, head.optimizer)
        evaluated = watched(chain(), aa.EvalPhase).seen[-1].nodes
        assert [(node.gradients, node.optimizer) for node in evaluated] == [(0, 0)] * 2


def test_they_are_shown_as_text_and_plain_data():
    with aa.simulate(1, capacity=2**20):
        stats = watched(chain(aa.Optimizer("sgd", lr=0.1)), accelerator="sim:0").seen[-1]
    lines = str(stats).splitlines()
    assert lines[0].startswith("sim:0 (numpy): ") and lines[0].endswith(" in total")
    assert lines[1].startswith("first on sim:0: ") and lines[1].endswith(", 0 B optimizer")
    assert lines[-1].endswith(" steps/s")
    plain = json.loads(json.dumps(stats.to_dict()))
    assert plain["devices"][0]["device"] == "sim:0" and plain["nodes"][1]["node"] == "head"


def test_samples_are_those_of_the_steps_also_where_memory_ran_out_and_steps_were_repeated():
    with aa.simulate(1, capacity=11_500):
        watch = Watch()
        phase = aa.TrainPhase(
            "it", data=ROWS, losses=[LOSS], callbacks=[watch], epochs=2, batch_size=5, accelerator="sim:0"
        )
        results = aa.Experiment(chain(), progress="none").run_phase(phase)
    assert "memory" in [event.kind for event in results.events]
    last = results.epochs[-1]
    assert watch.seen[-1].samples_per_second == pytest.approx(12 / last.seconds)  # steps of 5, 5 and 2 rows
    assert watch.seen[-1].steps_per_second == pytest.approx(3 / last.seconds)


def test_counts_go_back_with_the_steps():
    from anyaccel.phases.loss_accumulator import EpochTiming, LossAccumulator

    losses = LossAccumulator()
    losses.add((), 0, 12, 4)
    losses.add((), 12, 3, 4)
    losses.add((), 15, 1, 2)
    assert losses.timing(1.0) == EpochTiming(steps=16, samples=62, seconds=1.0)
    losses.truncate(0, 12)
    assert losses.timing(1.0) == EpochTiming(steps=12, samples=48, seconds=1.0)
    losses.add((), 12, 3, 8)
    assert losses.timing(1.0) == EpochTiming(steps=15, samples=72, seconds=1.0)


def test_activations_of_numpy_are_what_simulated_devices_count():
    class Measuring(Watch):
        def after_loading(self, run):
            self.seen.append(run.measure_step())

    with aa.simulate(1):
        measuring = Measuring()
        phase = aa.TrainPhase("it", data=ROWS, losses=[LOSS], callbacks=[measuring], epochs=1, batch_size=4)
        results = aa.Experiment(chain(), progress="none").run_phase(phase)
    first, head = measuring.seen[-1].nodes
    assert first.activations >= 4 * 5 * 4 and head.activations >= 4 * 1 * 4
    assert results.error is None
    assert "does not count operations" in measuring.seen[-1].not_covered["flops_per_step"]
