"""Plans for machines that are not here: the same as on a simulated machine, and requests that are resolved there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import ConfigError, DeviceUnavailableError
from anyaccel.plugin_testing import TinyBackend
from anyaccel_resources import Inventory, InventoryDevice

GB = 10**9


def data(n=96, shape=(6,)):
    x = np.random.default_rng(0).normal(size=(n, *shape)).astype("float32")
    return aa.FeatureSet.from_dict("d", {"x": x, "y": x.reshape(n, -1)[:, :1]}, ["x"], ["y"])


def train(**settings):
    settings = {"accelerator": "sim", "epochs": 2, "batch_size": 16, **settings}
    return aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")], **settings)


def one_node(optimizer="adam", model=None, rows=None):
    rows = data() if rows is None else rows
    return aa.ModelGraph([aa.ModelNode("net", model or aa.SequentialMLP(1), rows.reference())], optimizer)


def two_devices():
    nodes = [
        aa.ModelNode("encoder", aa.SequentialMLP(4), data().reference()),
        aa.ModelNode("net", aa.SequentialMLP(1), "encoder", accelerator="sim:1"),
    ]
    return aa.ModelGraph(nodes, "adam")


CASES = {
    "sgd with momentum": (lambda: one_node(aa.Optimizer("sgd", lr=0.1, momentum=0.9)), {}, 1),
    "adam, clipped": (lambda: one_node(aa.Optimizer("adam", lr=0.1, clip_norm=1.0)), {}, 1),
    "images": (lambda: one_node(model=aa.SequentialCNN(1), rows=data(shape=(1, 8, 8))), {}, 1),
    "two devices": (two_devices, {}, 2),
    "a frozen encoder": (lambda: two_devices().freeze("encoder"), {}, 2),
    "streamed": (one_node, {"residency": "streamed"}, 1),
    "a last partial batch": (lambda: one_node(rows=data(101)), {}, 1),
    "accumulated": (one_node, {"accumulate": 2}, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_a_plan_for_an_invented_machine_is_that_of_a_simulated_one(case):
    make, settings, count = CASES[case]
    experiment = aa.Experiment("e", make(), progress="none")
    invented = experiment.plan(train(**settings), inventory=f"{count}x sim-1GB")
    with aa.simulate(count, capacity=GB):
        here = experiment.plan(train(**settings))
    assert invented == here and [each.what for each in invented.diff(here)] == ["machine"]
    assert invented.machine == f"{count}x sim-1GB, 1x cpu" and not here.machine and here.fits


def test_a_plan_of_an_evaluation_is_that_of_a_simulated_machine():
    experiment = aa.Experiment("e", one_node())
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.EvalPhase("v", data="all", losses=losses, accelerator="sim", batch_size=16)
    plan = experiment.plan(phase, inventory="1x sim-1GB")
    with aa.simulate(1, capacity=GB):
        assert plan.to_dict() == experiment.plan(phase).to_dict() | {"machine": plan.machine}


def test_what_is_not_known_is_not_covered():
    experiment = aa.Experiment("e", one_node())
    plan = experiment.plan(train(accelerator="cpu"), inventory="1x sim-1GB")
    assert plan.memory[0].capacity is None and plan.fits is None
    assert plan.not_covered == (
        "capacity of numpy on cpu:0: the description of the machine does not set it: add mem=64GB",
    )
    assert "not covered" in str(plan)
    assert experiment.plan(train(accelerator="cpu"), inventory="1x sim-1GB, cpu mem=8GB").memory[0].capacity == 8 * GB


def test_a_request_for_one_device_of_a_machine_is_planned_there():
    machine = Inventory(devices=tuple(InventoryDevice(device=aa.Device("sim", i), memory_gb=1) for i in range(2)))
    plan = aa.Experiment("e", one_node()).plan(train(accelerator=aa.Accelerator(["sim:1"])), machine)
    assert plan.fits and str(plan.device("net")) == "sim:1"


def test_a_wrong_inventory_is_an_error():
    with pytest.raises(ConfigError, match="12 is not an inventory"):
        aa.Experiment("e", one_node()).plan(train(), inventory=12)


def test_a_request_is_resolved_on_the_invented_machine(serve):
    serve(TinyBackend("tiny", ("gpu:0",)))
    experiment = aa.Experiment("e", one_node())
    with pytest.raises(DeviceUnavailableError, match="'gpu:3' is not on this machine"):
        experiment.plan(train(accelerator="gpu:3"), inventory="2x T4")
    plan = experiment.plan(train(accelerator="H100, sim:1"), inventory="2x T4, 2x sim-1GB")  # numpy has no T4
    assert str(plan.device("net")) == "sim:1"
    why = "The phase's 'H100 on 2x sim-1GB' was not taken: simulated devices must be requested by name."
    assert why in plan.explain("net")


def test_an_inventory_that_0_1_saved_is_read():
    machine = Inventory.from_file(Path(__file__).parent / "saved_0_1/inventory.json")
    listed = [f"{each.device} {each.label} {each.memory_gb}" for each in machine.devices]
    expected = json.loads((Path(__file__).parent / "saved_0_1/expected.json").read_text("utf-8"))
    assert {"devices": listed, "host": [machine.host_memory_gb, machine.cores]} == expected


# -- on the command line -----------------------------------------------------------------------------------------------


MODULE = """
import numpy as np
import anyaccel as aa

x = np.ones((64, 6), "float32")
data = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), data.reference())], "adam")
train = aa.TrainPhase("train", data="all", losses=[aa.AppliedLoss("mse", on="net")], accelerator="sim")
"""


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "planned.py"
    path.write_text(MODULE, "utf-8")
    return f"{path}:train"


def test_a_command_plans_for_a_machine_in_words(call, target):
    done = call("plan", target, "--on", "2x sim-1GB")
    assert done.exit_code == 0 and "for 2x sim-1GB" in done.stdout and "it fits" in done.stdout
    assert call("explain", target, "net", "--on", "2x sim-1GB").exit_code == 0


def test_what_is_not_covered_never_exits_0(call, target):
    for command in ("plan", "estimate"):
        done = call(command, target, "--on", "2x sim")  # without a size, whether it fits is not known
        assert done.exit_code == 3 and "not covered: capacity of numpy on sim:0" in done.stdout
        written = json.loads(call(command, target, "--on", "2x sim", "--json").stdout)
        assert written["fits"] is None and len(written["not_covered"]) == 1


def test_a_saved_plan_is_compared_with_that_of_another_machine(call, target, tmp_path):
    saved = tmp_path / "plan.json"
    assert call("plan", target, "--on", "2x sim-1GB", "--save", str(saved)).exit_code == 0
    assert aa.Plan.from_json(saved.read_text("utf-8")).machine.startswith("2x sim-1GB")
    done = call("plan", target, "--on", "2x sim-2GB", "--compare", str(saved))
    assert "memory of numpy on sim:0, capacity: 1000000000 -> 2000000000" in done.stdout


def test_a_machine_in_a_file_or_in_words(call, target, tmp_path):
    file = tmp_path / "node.json"
    file.write_text('{"devices": [{"product": "T4"}], "host_memory_gb": 8}')
    done = call("plan", target.replace("planned.py:train", "planned.py:train"), "--file", str(file))
    assert done.exit_code == 2 and "'sim' is not on this machine" in done.stderr
    done = call("plan", target, "--on", "cpu", "--file", str(file))
    assert done.exit_code == 2 and "both --on and --file describe a machine" in done.stderr
