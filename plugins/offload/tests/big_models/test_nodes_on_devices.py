"""Nodes of graphs with a device map, on simulated devices: plans, losses, optimizer state, and refusals.

Run by test_offload_simulated.py in a process of its own, as torch cannot be rid of the devices again.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if not os.environ.get("ANYACCEL_TORCH_SIMULATE"):
    pytest.skip("run by test_offload_simulated.py, in a process of its own", allow_module_level=True)

import torch
from safetensors.torch import save_file
from torch import nn

import anyaccel as aa
from anyaccel.errors import AnyaccelError
from anyaccel_offload.torch import init_empty_weights, load_checkpoint_in_model, offload_of
from anyaccel_offload.torch.staging import Staging
from anyaccel_offload.torch.stored_tensor import StoredTensor
from anyaccel_torch import simulated

DEVICES = simulated.start(2)
ONE, TWO = "sim:0", "sim:1"
WIDTH, DEPTH, ROWS = 16, 6, 12
BLOCK = 4 * (WIDTH * WIDTH + WIDTH)
HALF = {"0": ONE, "1": "cpu", "2": ONE, "3": "cpu", "4": TWO, "5": "cpu", str(DEPTH): TWO}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    for device in DEVICES:
        device.capacity = None
        device.clear()
    yield


def net() -> nn.Sequential:
    torch.manual_seed(3)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(DEPTH)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1))


X = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype("float32")


class Case:
    """A graph of one node, and phases over it."""

    def __init__(self, model: nn.Module | None = None, optimizer: Any = None, **node: Any) -> None:
        self.model = net() if model is None else model
        self.data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1].copy()}, ["x"], ["y"])
        adam = optimizer or aa.Optimizer("adam", lr=0.01, clip_norm=0.5)
        self.graph = aa.ModelGraph([aa.ModelNode("net", self.model, self.data.reference(), **node)], adam, seed=5)
        self.experiment = aa.Experiment("test", self.graph, progress="none")

    def train_phase(self, label: str = "train", **settings: Any) -> aa.TrainPhase:
        settings = {"accelerator": ONE, "epochs": 3, "compile": "off", **settings}
        losses, sampler = aa.AppliedLoss("mse", on="net"), aa.SimpleSampler(4)
        return aa.TrainPhase(label, data=self.data, losses=losses, sampler=sampler, **settings)

    def eval_phase(self, **settings: Any) -> aa.EvalPhase:
        losses = aa.AppliedLoss("mse", on="net")
        return aa.EvalPhase("eval", **{"data": self.data, "losses": losses, "accelerator": ONE, **settings})

    def run(self, phase: Any) -> Any:
        return self.experiment.run_phase(phase)

    def losses(self) -> list[float]:
        """Of two phases of training, the second of which goes on with the optimizer state of the first."""
        found = [float(loss) for label in ("train", "more") for loss in self.run(self.train_phase(label)).loss]
        return [*found, self.run(self.eval_phase()).losses["net"]]


MAPS: dict[str, dict[str, Any]] = {
    "two devices and host memory": {"device_map": HALF},
    "host memory": {"device_map": {"": "cpu"}},
    "planned, host memory": {"offload": "cpu", "max_memory": {ONE: 5 * BLOCK}},
    "planned, two devices": {"max_memory": {ONE: 4 * BLOCK, TWO: "1MB"}},
    "planned, where all fits": {"device_map": "auto"},
}


@pytest.mark.parametrize("name", MAPS)
def test_losses_of_training_and_evaluation_are_those_of_the_resident_model(name: str) -> None:
    case, plain = Case(**MAPS[name]), Case()
    assert case.losses() == pytest.approx(plain.losses(), abs=1e-6)
    for key, value in plain.model.state_dict().items():
        torch.testing.assert_close(case.model.state_dict()[key].cpu(), value.cpu(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in MAPS if "fits" not in name])
def test_blocks_are_where_the_plan_says(name: str) -> None:
    case = Case(**MAPS[name])
    plan = case.experiment.plan(case.train_phase())["net"].offload
    assert plan is not None
    assert all(parameter.device.type == "cpu" for parameter in case.model.parameters())  # nothing has moved
    case.run(case.train_phase())
    for block in plan.blocks:
        where = {str(parameter.device) for parameter in case.model.get_submodule(block.name).parameters()}
        assert where == {"cpu" if block.tier else str(block.device)}, block
    assert sum(block.nbytes for block in plan.blocks) == sum(p.nbytes for p in case.model.parameters())


def test_a_planned_map_keeps_within_its_memory_and_stays_while_less_is_free() -> None:
    gc.collect()  # what earlier tests have left counts as used
    case = Case(offload="cpu")
    total = sum(parameter.nbytes for parameter in case.model.parameters())
    DEVICES[0].capacity = total * 3 // 4
    first = case.experiment.plan(case.eval_phase())["net"].offload
    assert first is not None and {block.tier for block in first.blocks} == {"", "cpu"}
    assert first.device_bytes[ONE] <= total * 3 // 4
    case.run(case.eval_phase())
    resting = offload_of(case.model)
    case.run(case.eval_phase())
    assert offload_of(case.model) is resting
    assert case.experiment.plan(case.eval_phase())["net"].offload == first


def test_what_does_not_fit_is_said_with_figures_before_anything_moves() -> None:
    case = Case(max_memory={ONE: 2 * BLOCK})
    with pytest.raises(AnyaccelError, match=r"node 'net': the model does not fit.*sim:0 1.9 KiB.*write offload='cpu'"):
        case.run(case.eval_phase())
    assert all(parameter.device.type == "cpu" for parameter in case.model.parameters())


def test_the_plan_says_blocks_tiers_bytes_and_the_time_of_a_step() -> None:
    case = Case(device_map=HALF)
    training, evaluation = case.experiment.plan(case.train_phase()), case.experiment.plan(case.eval_phase())
    plan, evaluated = training["net"].offload, evaluation["net"].offload
    assert plan is not None and evaluated is not None
    assert (plan.step_bytes, evaluated.step_bytes) == (9 * BLOCK, 3 * BLOCK)
    assert plan.seconds == max(plan.copy_seconds, plan.compute_seconds) > 0
    assert plan.device_bytes[ONE] == 4 * BLOCK  # two blocks that stay, and two slots
    text = str(evaluation)
    assert "blocks of net: 4 of 7 blocks stay on devices, 3 in host memory; 3.2 KiB copied per step; at least" in text
    assert "  4.0 on sim:1: 1.1 KiB, stays there" in text
    assert "  5.0 on sim:1: 1.1 KiB, stays in host memory and is copied in each step (1.1 KiB)" in text
    computing = [f"{name} computes with weights at 1e+03 GB/s (stated)" for name in (ONE, TWO)]
    copying = [f"copies to {name} 12 GB/s (stated)" for name in (ONE, TWO)]
    assert f"rates: {', '.join(computing + copying)}" in evaluated.notes
    assert "stays in" not in evaluation.to_html() and "host memory" in evaluation.to_html()
    assert aa.Plan.from_json(evaluation.to_json()) == evaluation
    assert aa.Plan.from_json(evaluation.to_json())["net"].offload == evaluated
    assert evaluation.memory[0].parameters == 4 * BLOCK
    assert "node net, offload" in str(evaluation.diff(training))


class Backwards(nn.Module):
    """Registers its layers in the order opposite to that in which it computes them, and counts its calls."""

    def __init__(self, reads_values: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.head = nn.Linear(WIDTH, 1)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.reads_values, self.calls = reads_values, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for layer in reversed(self.layers):
            x = layer(x).tanh()
        if self.reads_values and float(x.sum()) > 1e9:
            x = x * 2
        y: torch.Tensor = self.head(x)
        return y


EXECUTED, REGISTERED = [*(f"layers.{i}" for i in (3, 2, 1, 0)), "head"], ["head", *(f"layers.{i}" for i in range(4))]


@pytest.mark.parametrize(
    "settings",
    [{"device_map": {"": "cpu"}}, {"offload": "cpu", "max_memory": {ONE: 4 * BLOCK}}, {"device_map": "auto"}],
    ids=["a map", "planned", "fits"],
)
def test_blocks_of_a_node_are_in_the_order_in_which_they_compute(settings: dict[str, Any]) -> None:
    model = Backwards()
    case = Case(model, **settings)
    calls = model.calls
    plan = case.experiment.plan(case.eval_phase())["net"].offload
    assert plan is not None and [block.name for block in plan.blocks] == EXECUTED
    assert not any("registered" in note for note in plan.notes)
    assert model.calls == calls and offload_of(model) is None  # a plan leaves no trace
    assert case.losses() == pytest.approx(Case(Backwards()).losses(), rel=1e-6)
    again = case.experiment.plan(case.eval_phase())["net"].offload
    assert again is not None and [block.name for block in again.blocks] == EXECUTED


class OneLayerTwice(nn.Module):
    """A layer that has two names, and weights of which two layers have a part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.head = nn.Linear(WIDTH, 1)
        self.first, self.between = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.again, self.between.weight = self.first, self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.again(self.between(self.first(x).tanh())).tanh())
        return y


def test_a_plan_leaves_a_layer_in_two_places_as_it_is() -> None:
    model = OneLayerTwice()
    before = dict(model.named_parameters(remove_duplicate=False))
    case = Case(model, max_memory={ONE: 4 * BLOCK, TWO: "1MB"})
    plan = case.experiment.plan(case.eval_phase())["net"].offload
    assert plan is not None and not any("registered" in note for note in plan.notes)
    assert dict(model.named_parameters(remove_duplicate=False)) == before  # the same objects
    assert case.losses() == pytest.approx(Case(OneLayerTwice()).losses(), rel=1e-6)


class Scaled(nn.Module):
    """Layers, and a parameter outside of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)]
        self.layers, self.scale = nn.Sequential(*layers), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x * self.scale)
        return y[:, :1]


def test_blocks_that_all_rest_in_host_memory_compute_on_the_device_beside_a_loose_parameter() -> None:
    case = Case(Scaled(), offload="cpu", max_memory={ONE: 4 * BLOCK})
    plan = case.experiment.plan(case.train_phase())["net"].offload
    assert plan is not None
    assert {(str(block.device), block.tier) for block in plan.blocks} == {(ONE, "cpu")}
    assert case.losses() == pytest.approx(Case(Scaled()).losses(), rel=1e-6)


@pytest.mark.parametrize("reads_values", [False, True])
def test_in_the_first_call_already_weights_come_before_they_are_used(
    reads_values: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that cannot be called without values is planned as it is registered, and learns the order."""
    model = Backwards(reads_values)
    case = Case(model, device_map={"": "cpu"})
    phase = case.eval_phase(batch_size=ROWS)
    plan = case.experiment.plan(phase)["net"].offload
    assert plan is not None
    assert [block.name for block in plan.blocks] == (REGISTERED if reads_values else EXECUTED)
    says = "in registration order, because Backwards cannot be called without values"
    assert sum(says in note for note in plan.notes) == reads_values
    enter, copies = Staging.enter, []

    def counting(self: Staging, block: Any, run: Any) -> None:
        copies.append(self.fetches)
        enter(self, block, run)

    monkeypatch.setattr(Staging, "enter", counting)
    case.run(phase)
    assert copies == ([0, 1, 2, 3, 4] if reads_values else [0, 2, 3, 4, 5])  # before the use of each block


def test_broken_text_of_blocks_in_a_saved_plan_is_refused() -> None:
    case = Case(device_map=HALF)
    plain = json.loads(case.experiment.plan(case.eval_phase()).to_json())
    for key, value in (("nbytes", -1), ("tier", "tape"), ("device", "x y"), ("name", 3)):
        changed = json.loads(json.dumps(plain))
        changed["assignments"][0]["offload"]["blocks"][0][key] = value
        with pytest.raises(AnyaccelError, match="not a plan"):
            aa.Plan.from_json(json.dumps(changed))


def test_a_phase_may_leave_the_model_on_one_device_and_the_next_divides_it_again() -> None:
    case = Case(device_map=HALF)
    case.run(case.train_phase(final_device="cpu"))
    assert offload_of(case.model) is None
    assert {parameter.device.type for parameter in case.model.parameters()} == {"cpu"}
    plain = Case()
    plain.run(plain.train_phase(final_device="cpu"))
    assert case.run(case.train_phase("more")).loss == pytest.approx(plain.run(plain.train_phase("more")).loss, abs=1e-6)


def test_a_model_in_files_is_evaluated_from_there_and_not_trained(tmp_path: Path) -> None:
    save_file(net().state_dict(), tmp_path / "model.safetensors")
    with init_empty_weights():
        empty = net()
    load_checkpoint_in_model(empty, tmp_path, {"": "disk"})
    case, plain = Case(empty, device_map={**HALF, "3": "disk", "5": "disk"}), Case()
    assert case.run(case.eval_phase()).losses["net"] == plain.run(plain.eval_phase()).losses["net"]
    assert isinstance(case.model[5][0].weight, StoredTensor) and not isinstance(case.model[1][0].weight, StoredTensor)
    with pytest.raises(AnyaccelError, match=r"node 'net': 3.0.*stays on disk, but weights in files cannot be trained"):
        case.run(case.train_phase())
    assert len(list(tmp_path.iterdir())) == 1


def test_configurations_keep_the_settings() -> None:
    for settings in ({"device_map": HALF}, {"max_memory": {0: "1GiB", "cpu": 5}, "offload": "cpu"}):
        graph = Case(**settings).graph
        config = json.loads(json.dumps(graph.get_config()))
        data = graph["net"].upstreams[0].feature_set  # type: ignore[union-attr]
        node: Any = aa.ModelGraph.from_config(config, models={"net": net()}, feature_sets=[data])["net"]
        before: Any = graph["net"]
        kept = [(each.device_map, each.max_memory, each.offload) for each in (before, node)]
        assert kept[0] == kept[1] and kept[0][0] is not None


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"device_map": {"9": ONE}}, "device_map names '9', which the model does not have"),
    ({"device_map": {"0": ONE}}, "device_map has no device for '1.0.weight'"),
    ({"device_map": {"": "sim:7"}}, "node 'net'|sim:7"),
    ({"device_map": {"": "nonsense"}}, "no installed plugin runs torch on 'nonsense'"),
    ({"device_map": {"": TWO}}, "is on sim:0, but its device_map has no block there"),
    ({"device_map": {**HALF, "1.0.bias": ONE}}, "splits '1.0'"),
    ({"device_map": {"": "disk"}}, "belongs on disk, but is not in a safetensors file"),
    ({"device_map": "auto", "precision": "float32"}, "has a device_map and precision, which cannot be combined"),
    ({"device_map": "auto", "remat": "blocks"}, "has a device_map and remat"),
]


@pytest.mark.parametrize(("settings", "says"), REFUSED)
def test_maps_that_cannot_be_carried_out_are_refused_before_anything_moves(settings: Any, says: str) -> None:
    case = Case(**settings)
    with pytest.raises(AnyaccelError, match=says) as raised:
        case.run(case.eval_phase())
    assert raised.value.hint
    assert offload_of(case.model) is None
    assert all(parameter.device.type == "cpu" for parameter in case.model.parameters())


def test_replicas_have_no_device_map() -> None:
    case = Case(device_map="auto")
    with pytest.raises(AnyaccelError, match="device_map, but phase 'train' trains replicas on 2 devices"):
        case.run(case.train_phase(accelerator="sim:*"))


def test_a_model_that_was_dispatched_by_hand_has_no_device_map() -> None:
    from anyaccel_offload.torch import cpu_offload

    case = Case(cpu_offload(net(), ONE), device_map="auto")
    with pytest.raises(AnyaccelError, match="is already dispatched, but its node also has a device_map"):
        case.run(case.eval_phase())


def test_nodes_that_share_a_model_share_its_map() -> None:
    model = net()
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1].copy()}, ["x"], ["y"])
    nodes = [aa.ModelNode("a", model, data.reference(), device_map=HALF), aa.ModelNode("b", model, data.reference())]
    losses = [aa.AppliedLoss("mse", on=label) for label in "ab"]
    phase = aa.EvalPhase("eval", data=data, losses=losses, accelerator=ONE)
    with pytest.raises(AnyaccelError, match="share one model but differ in device_map, max_memory or offload"):
        aa.Experiment("test", aa.ModelGraph(nodes), progress="none").run_phase(phase)
