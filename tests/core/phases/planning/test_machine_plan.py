"""Figures of plans, which are those of the memory that is then allocated, and plans as JSON."""

from __future__ import annotations

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import AppliedLoss, FeatureSet, ModelGraph, ModelNode, Optimizer, SequentialCNN, SequentialMLP
from anyaccel.errors import AnyaccelError, ConfigError

GB = 10**9


def data(n=96, shape=(6,)):
    x = np.random.default_rng(0).normal(size=(n, *shape)).astype("float32")
    return FeatureSet.from_dict("d", {"x": x, "y": x.reshape(n, -1)[:, :1]}, ["x"], ["y"])


def train(**settings):
    settings = {"accelerator": "sim", "epochs": 2, "batch_size": 16, **settings}
    return aa.TrainPhase("t", data="all", losses=[AppliedLoss("mse", on="net")], **settings)


def one_node(optimizer="adam", model=None, rows=None):
    rows = data() if rows is None else rows
    return ModelGraph([ModelNode("net", model or SequentialMLP(1), rows.reference())], optimizer)


def two_devices(optimizer="adam"):
    nodes = [
        ModelNode("encoder", SequentialMLP(4), data().reference()),
        ModelNode("net", SequentialMLP(1), "encoder", accelerator="sim:1"),
    ]
    return ModelGraph(nodes, optimizer)


def frozen_encoder():
    return two_devices().freeze("encoder")


def images():
    return one_node(model=SequentialCNN(1), rows=data(shape=(1, 8, 8)))


CASES = {
    "sgd": (lambda: one_node("sgd"), {}, 1),
    "sgd with momentum": (lambda: one_node(Optimizer("sgd", lr=0.1, momentum=0.9)), {}, 1),
    "adam, clipped": (lambda: one_node(Optimizer("adam", lr=0.1, clip_norm=1.0)), {}, 1),
    "images": (images, {}, 1),
    "two devices": (two_devices, {}, 2),
    "a frozen encoder": (frozen_encoder, {}, 2),
    "streamed": (one_node, {"residency": "streamed"}, 1),
    "a last partial batch": (lambda: one_node(rows=data(101)), {}, 1),
    "accumulated": (one_node, {"accumulate": 2}, 1),
}


class Counter(aa.Callback):
    """What the devices hold when everything is loaded."""

    def __init__(self, devices):
        super().__init__()
        self.devices, self.placed, self.loaded = devices, (), ()

    def after_placement(self, phase, plan, run):
        self.placed = [device.used for device in self.devices]

    def after_loading(self, phase, plan, run):
        self.loaded = [device.used for device in self.devices]


@pytest.mark.parametrize("case", CASES)
def test_the_memory_of_a_plan_is_allocated(case):
    make, settings, count = CASES[case]
    experiment = aa.Experiment("e", make(), progress="none")
    with aa.simulate(count, capacity=GB) as devices:
        counter = Counter(devices)
        phase = train(**settings, callbacks=[counter])
        here = experiment.plan(phase)
        assert not any(device.peak for device in devices)  # nothing was placed
        results = experiment.run_phase(phase)
        assert results.plan == here
        assert [each.device for each in here.memory] == [device.device for device in devices]
        assert [each.parameters for each in here.memory] == counter.placed
        steps = 101 // 16 + 1
        for device, memory, placed, loaded in zip(devices, here.memory, counter.placed, counter.loaded, strict=True):
            assert not memory.gaps and memory.capacity == GB and memory.fits
            assert memory.optimizer == device.used - placed  # what is left beside the parameters
            if "residency" not in settings:
                rows = experiment.graph.feature_sets["d"]
                orders = len(rows) * 8
                assert memory.batches == loaded - placed + orders
            # Beside what is planned there is a loss of 4 bytes for each step of an epoch.
            assert abs(device.peak - memory.total) <= 4 * steps
    assert here.not_covered == () and here.fits is True


def test_an_evaluation_has_figures_too():
    experiment = aa.Experiment("e", one_node(), progress="none")
    phase = aa.EvalPhase("v", data="all", losses=[AppliedLoss("mse", on="net")], accelerator="sim", batch_size=16)
    with aa.simulate(1, capacity=GB) as (device,):
        plan = experiment.plan(phase)
        experiment.run_phase(phase)
        (memory,) = plan.memory
        assert memory.gradients == memory.optimizer == 0 and memory.parameters == device.used
        assert memory.parameters + memory.batches < memory.total <= device.peak


@pytest.mark.parametrize(
    ("phase", "loosely"),
    [
        (lambda losses: train(validation=aa.EvalPhase("v", data="all", batch_size=1000)), 0),
        (lambda losses: train(validation=aa.EvalPhase("v", data="all", batch_size=8)), 0),
        (lambda losses: train(validation="all"), 0),
        (lambda losses: aa.EvalPhase("v", data="all", losses=losses, batch_size=1000, accelerator="sim"), 0),
        # A last, smaller batch, whose outputs are fewer than is assumed.
        (lambda losses: aa.EvalPhase("v", data="all", losses=losses, batch_size=300, accelerator="sim"), 4 * 300),
        (
            lambda losses: aa.EvalPhase("v", data="all", losses=losses, metrics=["r2"], outputs=[], accelerator="sim"),
            4 * 1024,
        ),
    ],
)
def test_a_validation_of_large_batches_and_outputs_that_wait_are_in_the_plan(phase, loosely):
    rows = data(2000)
    experiment = aa.Experiment("e", one_node(rows=rows), progress="none")
    with aa.simulate(1, capacity=GB) as (device,):
        phase = phase([AppliedLoss("mse", on="net")])
        (memory,) = experiment.plan(phase).memory
        experiment.run_phase(phase)
        # Beside what is planned there are losses: 4 bytes for each of 125 steps, and again as they are read.
        assert -loosely <= device.peak - memory.total <= 2 * 4 * 125 + 64


def test_what_does_not_fit_is_streamed_or_said():
    with aa.simulate(1, capacity=3000):
        plan = aa.Experiment("e", one_node(rows=data(200))).plan(train())
    decision = plan.decisions[0]
    assert (decision.what, decision.choice) == ("residency of t", "streamed") and "more than 80%" in decision.why
    assert plan.fits is False and plan.memory[0].headroom < 0
    assert "-" in str(plan).splitlines()[-1]


@pytest.mark.parametrize("wish", [None, "auto"])
def test_a_plan_says_which_devices_nobody_asks_for(wish):
    with aa.simulate(2, capacity=GB):
        plan = aa.Experiment("e", one_node()).plan(train(accelerator=wish))
    unused = "sim:0, sim:1: not used, because neither a node nor the phase requests a device; accelerator='auto' does"
    assert plan.notes == (() if wish else (unused,))


def test_a_plan_of_a_run_says_that_it_has_no_figures():
    plan = aa.Experiment("e", one_node(), progress="none").run_phase(train(accelerator="cpu")).plan
    assert plan.memory == () and plan.fits is None and "experiment.plan(phase)" in plan.not_covered[0]


def test_an_optimizer_of_ones_own_and_a_step_of_ones_own_are_not_covered():
    class Own(SequentialMLP):
        def apply(self, values, inputs, *, train, key):
            raise RuntimeError("not on zeros")

    graph = one_node(model=SequentialMLP(1))
    graph.build()
    graph["net"].model.apply = Own.apply
    with aa.simulate(1, capacity=GB):
        plan = aa.Experiment("e", graph).plan(train())
    assert "activations" in plan.memory[0].gaps and "measuring a step failed" in plan.memory[0].gaps["activations"]


# -- JSON and differences ----------------------------------------------------------------------------------------------


@pytest.fixture
def plan():
    with aa.simulate(2, capacity=GB):
        return aa.Experiment("e", two_devices()).plan(train())


def test_a_plan_comes_back_from_json(plan):
    text = plan.to_json()
    again = aa.Plan.from_json(text)
    assert again == plan and again.to_json() == text and not again.diff(plan) and str(again) == str(plan)
    assert aa.Plan.from_json(text.encode()) == plan


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "nested too deep"),
        ('{"format": "anyaccel plan", "version": 2}', "version 2"),
        ("{}", "is not a plan"),
        ("1" * 40, "is not a plan"),
        (b"\xff\xfe", "is not JSON"),
        ('{"format": "anyaccel plan", "version": 1, "version": 1}', "a key occurs twice"),
        (7, "is not JSON text"),
    ],
)
def test_hostile_json_is_refused(text, told):
    with pytest.raises(ConfigError, match=told):
        aa.Plan.from_json(text)


def test_a_plan_that_is_too_large_is_refused():
    with pytest.raises(ConfigError, match="is too large"):
        aa.Plan.from_json(" " * (17 << 20))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("phase",), 1),
        (("notes",), [1]),
        (("notes",), 5),
        (("batch_size",), -1),
        (("batch_size",), "many"),
        (("assignments", 0, "node"), ["a"]),
        (("assignments", 0, "parameters"), "1"),
        (("assignments", 0, "parameters"), -1),
        (("assignments", 0, "device"), "sim:x"),
        (("assignments", 0, "rejected"), [{"level": "x", "wish": "", "why": ""}]),
        (("assignments", 0, "rejected"), "text"),
        (("assignments", 0, "backend"), "os.system"),
        (("assignments", 0, "native_device"), "x"),
        (("columns", 0, "spec"), {"shape": [-1], "dtype": "float32"}),
        (("columns", 0, "spec"), {"shape": [1], "dtype": 3}),
        (("memory", 0, "parameters"), 1.5),
        (("memory", 0, "gaps"), {"x": 1}),
        (("decisions", 0, "why"), None),
        (("crossings", 0, "odd"), 1),
    ],
)
def test_wrong_values_in_json_are_refused(plan, path, value):
    plain = plan.to_dict()
    at = plain
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(AnyaccelError, match="is not a plan as plain data"):
        aa.Plan.from_dict(plain)


def test_the_differences_of_two_plans_are_named(plan):
    with aa.simulate(2, capacity=2 * GB):
        other = aa.Experiment("e", two_devices()).plan(train())
    lines = str(plan.diff(other)).splitlines()
    assert "memory of numpy on sim:0, capacity: 1000000000 -> 2000000000" in lines
    assert [each.what for each in plan.diff(other) if "node" in each.what] == []
    with aa.simulate(1, capacity=GB):
        elsewhere = aa.Experiment("e", one_node()).plan(train())
    told = str(plan.diff(elsewhere))
    assert "node encoder: only in the first" in told and "node net, device: sim:1 -> sim:0" in told
    assert str(plan.diff(plan)) == "the plans are equal" and len(plan.diff(plan)) == 0
    with pytest.raises(ConfigError, match="is not a plan"):
        plan.diff("plan")
    assert plan.diff(other).to_dict()[0].keys() == {"what", "before", "after"}
