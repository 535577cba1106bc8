"""Graphs over two simulated torch devices, compared with the CPU.

Run by test_simulated.py in a process of its own, as torch cannot be rid of the devices again.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

if not os.environ.get("ANYACCEL_TORCH_SIMULATE"):
    pytest.skip("run by test_simulated.py, in a process of its own", allow_module_level=True)

import torch
from torch import Tensor, nn

import anyaccel as aa
from anyaccel.errors import DeviceMismatchError, DeviceUnavailableError, OutOfMemoryError
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel_torch import SequentialMLP, simulated
from anyaccel_torch.program import TorchProgram
from anyaccel_torch.simulated.backend import SimulatedBackend

DEVICES = simulated.start(2)
ONE, TWO = "sim:0", "sim:1"
STEPS = 9  # of an epoch: 72 rows, 8 in a batch


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    for device in DEVICES:
        device.capacity = None
        device.clear()
    yield


def data() -> aa.FeatureSet:
    x = np.random.default_rng(0).standard_normal((96, 6)).astype("float32")
    columns = {"x": x, "z": x[:, ::-1].copy(), "y": x[:, :1] * 2 - x[:, 1:2]}
    source = aa.FeatureSet.from_dict("data", columns, ["x", "z"], ["y"])
    source.split_random({"train": 0.75, "val": 0.25})
    return source


def encoder(dropout: float = 0.0) -> nn.Module:
    """No bias before the batch norm: its gradient is mere rounding, which Adam amplifies."""
    layers = nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(dropout)
    return nn.Sequential(*layers)


def head() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))


def graph(
    source: aa.FeatureSet, where: tuple[str | None, str | None], optimizer: Any = None, **settings: Any
) -> aa.ModelGraph:
    torch.manual_seed(1)
    features = source.reference(features=["x"])
    nodes = [
        aa.ModelNode("encoder", encoder(**settings), features, accelerator=where[0]),
        aa.ModelNode("head", head(), "encoder", accelerator=where[1]),
    ]
    return aa.ModelGraph(nodes, optimizer or aa.Optimizer("adam", lr=1e-2, clip_norm=0.5))


def training(epochs: int = 3, **settings: Any) -> aa.TrainPhase:
    sampler = aa.SimpleSampler(8, shuffle=True, seed=3)
    losses = [aa.AppliedLoss("mse", on="head")]
    return aa.TrainPhase.from_split("train", split="train", sampler=sampler, losses=losses, epochs=epochs, **settings)


def run(model_graph: aa.ModelGraph, *phases: Any) -> Any:
    return [aa.Experiment("test", model_graph, progress="none").run_phase(phase) for phase in phases][-1]


def places(model_graph: aa.ModelGraph, node: str) -> set[str]:
    """The devices of a node's values and optimizer state."""
    module, state = model_graph[node].model, model_graph.optimizer_states[node]
    held = [
        *module.parameters(),
        *module.buffers(),
        *(item for slots in state.slots.values() for item in slots.values()),
    ]
    return {str(item.device) for item in held}


def assert_same_state(item: aa.ModelGraph, other: aa.ModelGraph) -> None:
    actual, expected = item.state(), other.state()
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


# -- the same as on the CPU ------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "adam, clipped": aa.Optimizer("adam", lr=1e-2, clip_norm=0.5),
    "adamw, scheduled": aa.Optimizer("adamw", lr=1e-2, schedule=aa.Schedule("cosine", steps=40, warmup=5)),
    "momentum": aa.Optimizer("momentum", lr=1e-2),
    "of torch": aa.Optimizer(torch.optim.RMSprop, lr=1e-3),
}


@pytest.mark.parametrize("where", [(ONE, TWO), (TWO, ONE), (ONE, ONE), ("cpu", TWO), (ONE, "cpu")], ids="-".join)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_devices_train_as_the_cpu(name: str, where: tuple[str, str]) -> None:
    source, check = data(), aa.EvalPhase.from_split("val", split="val")
    actual, expected = graph(source, where, OPTIMIZERS[name]), graph(source, (None, None), OPTIMIZERS[name])
    result, reference = (run(item, training(4, validation=check)) for item in (actual, expected))
    np.testing.assert_allclose(result.loss, reference.loss, rtol=1e-6)
    for item, other in zip(result.epochs, reference.epochs, strict=True):
        assert item.validation["loss"] == pytest.approx(other.validation["loss"], rel=1e-5)
    assert result.loss[-1] < result.loss[0]
    assert_same_state(actual, expected)
    assert [str(result.plan.device(node)).removesuffix(":0" if "cpu" in where else "") for node in ("encoder", "head")]
    assert (places(actual, "encoder"), places(actual, "head")) == ({where[0]}, {where[1]})


def test_two_devices_of_a_backend_are_one_segment() -> None:
    """So torch's autograd crosses devices, and many steps run in one call."""
    source = data()
    plans = [aa.Experiment("t", graph(source, where)).plan(training()) for where in ((ONE, TWO), ("cpu", TWO))]
    assert [[part.nodes for part in plan.parts] for plan in plans] == [[("encoder", "head")], [("encoder",), ("head",)]]
    crossing = [(item.value, str(item.origin), str(item.destination), item.gradient) for item in plans[0].crossings]
    assert crossing == [("encoder", ONE, TWO, False), ("encoder", TWO, ONE, True)]
    assert all(item.route == "move" for plan in plans for item in plan.crossings)


def test_dropout_equals_that_of_the_cpu() -> None:
    """Each simulated device has a generator like the CPU's, seeded with the same key."""
    source = data()
    actual, expected = graph(source, (ONE, TWO), dropout=0.3), graph(source, (None, None), dropout=0.3)
    np.testing.assert_allclose(run(actual, training()).loss, run(expected, training()).loss, rtol=1e-6)


def test_branches_on_two_devices_are_concatenated() -> None:
    def model_graph(first: str | None, second: str | None, last: str | None) -> aa.ModelGraph:
        torch.manual_seed(2)
        source = data()
        nodes = [
            aa.ModelNode("a", nn.Linear(6, 4), source.reference(features=["x"]), accelerator=first),
            aa.ModelNode("b", nn.Linear(6, 4), source.reference(features=["z"]), accelerator=second),
            aa.ConcatNode("both", ["a", "b"]),
            aa.ModelNode("head", head(), "both", accelerator=last),
        ]
        return aa.ModelGraph(nodes, aa.Optimizer("adam", lr=1e-2, clip_norm=0.5))

    expected = model_graph(None, None, None)
    losses = run(expected, training()).loss
    for where in ((ONE, TWO, ONE), (ONE, TWO, TWO), (ONE, TWO, "cpu"), ("cpu", ONE, TWO)):
        actual = model_graph(*where)
        np.testing.assert_allclose(run(actual, training()).loss, losses, rtol=1e-6)
        assert_same_state(actual, expected)


def test_shared_model_is_trained_once() -> None:
    source, model = data(), nn.Linear(6, 4)
    nodes = [
        aa.ModelNode("a", model, source.reference(features=["x"]), accelerator=TWO),
        aa.ModelNode("b", model, source.reference(features=["z"]), accelerator=TWO),
        aa.ConcatNode("both", ["a", "b"]),
        aa.ModelNode("head", head(), "both", accelerator=ONE),
    ]
    model_graph = aa.ModelGraph(nodes, "adam")
    weight = model.weight
    run(model_graph, training(1))
    assert (
        model_graph["a"].model is model_graph["b"].model is model
        and model.weight is weight
        and str(weight.device) == TWO
    )


# -- state -----------------------------------------------------------------------------------------------------------


def test_optimizer_state_stays_with_its_node_and_steps_are_numbers() -> None:
    model_graph = graph(data(), (ONE, TWO))
    run(model_graph, training(2))
    for node, device in (("encoder", ONE), ("head", TWO)):
        assert places(model_graph, node) == {device}
        assert model_graph.optimizer_states[node].step == 2 * STEPS
        assert type(model_graph.optimizer_states[node].step) is int


@pytest.mark.parametrize("placement", [("cpu", ONE), (ONE, TWO), (ONE, "cpu"), (TWO, ONE)], ids="-".join)
def test_phase_on_another_device_continues_the_state(placement: tuple[str, str]) -> None:
    source = data()
    whole, moved = graph(source, (None, None)), graph(source, (None, None))
    expected = run(whole, training(4))
    run(moved, training(2, accelerator=placement[0]))
    assert places(moved, "head") == {placement[0]}
    result = run(moved, training(2, accelerator=placement[1]))
    assert places(moved, "encoder") == places(moved, "head") == {placement[1]}
    np.testing.assert_allclose(result.loss, expected.loss[2:], rtol=1e-6)
    assert_same_state(moved, whole)


def test_loaded_state_continues_on_another_device() -> None:
    source = data()
    whole, first = graph(source, (None, None)), graph(source, (ONE, TWO))
    expected = run(whole, training(4))
    run(first, training(2))
    state = first.state()
    assert all(isinstance(value, np.ndarray) for value in state.values())
    other = graph(source, (TWO, "cpu"))
    result = run(other.load_state(state), training(2))
    np.testing.assert_allclose(result.loss, expected.loss[2:], rtol=1e-6)
    assert_same_state(other, whole)


def test_final_device_empties_the_simulated_device() -> None:
    gc.collect()
    before = [device.used for device in DEVICES]
    model_graph = graph(data(), (ONE, TWO))
    result = run(model_graph, training(2, final_device="cpu", validation=aa.EvalPhase.from_split("val", split="val")))
    assert places(model_graph, "encoder") == places(model_graph, "head") == {"cpu"}
    gc.collect()
    assert [device.used for device in DEVICES] == before
    assert result.loss.shape == (2,) and all(device.peak > used for device, used in zip(DEVICES, before, strict=True))


def test_predictions_equal_those_of_the_cpu() -> None:
    source = data()
    actual, expected = graph(source, (ONE, TWO)), graph(source, (None, None))
    phase = aa.EvalPhase.from_split("v", split="val", outputs=["encoder", "head"])
    results = [run(item, training(1), phase).predictions for item in (actual, expected)]
    for name in ("encoder", "head"):
        np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-5, atol=1e-6)


# -- in the loop -----------------------------------------------------------------------------------------------------


class Books(aa.Callback):
    """Transfers and waits of each device at the end of each epoch."""

    def __init__(self) -> None:
        self.lines: list[list[tuple[int, int, int, int]]] = []

    def epoch_end(self, run: Any) -> None:
        self.lines.append(
            [(d.transfers.into.number, d.transfers.out.number, d.transfers.between.number, d.syncs) for d in DEVICES]
        )

    def last(self) -> np.ndarray:
        """The last epoch alone: [device, (into, out, between, waits)]."""
        return np.array(self.lines[-1]) - np.array(self.lines[-2])


def test_step_transfers_what_the_plan_lists_without_waiting() -> None:
    books = Books()
    model_graph = graph(data(), (ONE, TWO), aa.Optimizer("adam", lr=1e-2))
    run(model_graph, training(4, callbacks=[books]))
    (item, two), calls = books.last(), STEPS
    assert item[2] == two[2] == 2 * STEPS, "the encoder's output there, its gradient back"
    assert item[0] == two[0] == 1, "the order of the epoch"
    assert item[1] == item[3] == 0
    assert two[1] == two[3] <= calls, "the losses, at the end of the epoch"


def test_other_device_receives_losses_only() -> None:
    books = Books()
    run(graph(data(), (ONE, ONE)), training(4, callbacks=[books]))
    item, two = books.last()
    assert item[0] == 1 and item[1] == item[3] <= STEPS and item[2] == 0
    assert not two.any()


def test_segment_on_a_device_and_the_cpu_is_crossed_by_torch() -> None:
    """As a GPU and the CPU are, which one backend serves; the simulated device has a backend of its own."""
    backend = SimulatedBackend()

    def on(device: aa.Device) -> Any:
        return torch.device("cpu") if device.kind == "cpu" else backend.native_device(device)

    losses = []
    for places_ in ((aa.Device("cpu"), aa.Device("sim", 1)), (aa.Device("cpu"), aa.Device("cpu"))):
        torch.manual_seed(0)
        first, second = nn.Linear(4, 5).to(on(places_[0])), nn.Linear(5, 1).to(on(places_[1]))
        spec = TensorSpec((4,), "float32"), TensorSpec((1,), "float32")
        segment = Segment(
            label="s",
            operations=(
                Operation("a", first, ("x",), ("a",), places_[0]),
                Operation("b", second, ("a",), ("b",), places_[1]),
            ),
            inputs={"x": (spec[0], places_[0]), "y": (spec[1], places_[1])},
            outputs=("b",),
            losses=(LossTerm("l", "b", aa.Loss("mse"), ("b", "y"), places_[1]),),
            groups=(ParameterGroup("g", aa.Optimizer("adam", lr=0.1, clip_norm=0.1), ("a", "b")),),
        )
        program = TorchProgram(segment, on)
        x, y = torch.ones(8, 4).to(on(places_[0])), torch.zeros(8, 1).to(on(places_[1]))
        orders = [torch.arange(8).to(on(device)) for device in places_]
        losses.append(program.train_steps([x, y], orders, 0, 4, 2).cpu())
        program.close()
    torch.testing.assert_close(*losses, rtol=1e-6, atol=1e-7)


# -- what goes wrong -------------------------------------------------------------------------------------------------


class Forgetful(nn.Module):
    """Creates a tensor on the CPU, a frequent mistake that works on the CPU."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * torch.linspace(0, 1, 8)


class Returning(nn.Module):
    """Moves its output to the CPU."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        actual: Tensor = self.inner(x).cpu()
        return actual


class Pair(nn.Module):
    """Two inputs, and a tensor on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        actual: Tensor = self.layer(x + z + torch.ones(6))
        return actual


def wired(model: nn.Module, last: nn.Module, accelerator: str | None) -> aa.ModelGraph:
    nodes = [aa.ModelNode("encoder", model, data().reference(features=["x"])), aa.ModelNode("head", last, "encoder")]
    for node in nodes:
        node.accelerator = None if accelerator is None else aa.Accelerator(accelerator)
    return aa.ModelGraph(nodes, "adam")


REMEDY = "create tensors on the device of the inputs, for example torch.zeros(3, device=x.device)"


def test_device_mismatch_names_node_and_devices() -> None:
    run(wired(Forgetful(nn.Linear(6, 8)), head(), None), training(1))
    with pytest.raises(DeviceMismatchError) as caught:
        run(wired(Forgetful(nn.Linear(6, 8)), head(), TWO), training(1))
    message = str(caught.value)
    assert message.startswith(
        "node 'encoder' on sim:1 computes with tensors on several devices: its inputs are data.x on sim:1; "
        "torch says: Expected all tensors to be on the same device, but found at least two devices, sim:1 and cpu!"
    )
    assert REMEDY in message


def test_device_mismatch_names_all_inputs() -> None:
    source = data()
    both = [source.reference(features=[name]) for name in ("x", "z")]
    model_graph = aa.ModelGraph([aa.ModelNode("head", Pair(), both, accelerator=ONE)], "adam")
    with pytest.raises(
        DeviceMismatchError, match=r"node 'head' on sim:0 .* inputs are data\.x on sim:0, data\.z on sim:0;"
    ):
        run(model_graph, training(1))


def test_device_mismatch_names_the_consumer() -> None:
    with pytest.raises(DeviceMismatchError, match=r"node 'head' on sim:1 .*its inputs are encoder on cpu;"):
        run(wired(Returning(nn.Linear(6, 8)), head(), TWO), training(1))
    with pytest.raises(
        DeviceMismatchError, match=r"loss '\w+' of node 'head' on sim:0 .*its inputs are head on cpu, data\.y on sim:0;"
    ):
        run(wired(nn.Linear(6, 8), Returning(head()), ONE), training(1))


def test_device_mismatch_in_evaluation_names_the_node() -> None:
    model_graph = wired(Forgetful(nn.Linear(6, 8)), head(), ONE)
    with pytest.raises(DeviceMismatchError, match="node 'encoder' on sim:0"):
        run(model_graph, aa.EvalPhase.from_split("v", split="val", losses=[aa.AppliedLoss("mse", on="head")]))


def test_graph_trains_elsewhere_after_a_mismatch() -> None:
    model_graph = wired(Forgetful(nn.Linear(6, 8)), head(), None)
    with pytest.raises(DeviceMismatchError):
        run(model_graph, training(1, accelerator=TWO))
    assert run(model_graph, training(2)).loss.shape == (2,)


def test_model_that_does_not_fit_raises_with_figures() -> None:
    gc.collect()
    model_graph = aa.ModelGraph(
        [aa.ModelNode("head", SequentialMLP(1, 2, 64), data().reference(features=["x"]))], "adam"
    )
    capacity = DEVICES[1].capacity = DEVICES[1].used + 1000
    with pytest.raises(OutOfMemoryError) as caught:
        run(model_graph, training(1, accelerator=TWO))
    message = str(caught.value)
    assert message.startswith("not enough memory for SequentialMLP on sim:1: simulated device out of memory. Tried to ")
    assert f"allocate 1536 bytes. sim:1 has a capacity of {capacity} bytes (1000 free)" in message
    assert run(model_graph, training(1)).loss.shape == (1,)
    assert {str(item.device) for item in model_graph["head"].model.parameters()} == {"cpu"}


@pytest.mark.parametrize(
    ("free_bytes", "expected_problem"),
    [
        (1000, r"not enough memory for an array of \d+ bytes on sim:0"),
        (6000, r"not enough memory for the program of segment 'torch:0', with its optimizer state"),
        (7500, r"not enough memory for a training step of 8 rows in segment 'torch:0'"),
    ],
    ids=["columns", "program", "step"],
)
def test_phase_that_does_not_fit_raises_with_figures(free_bytes: int, expected_problem: str) -> None:
    gc.collect()
    model_graph = aa.ModelGraph(
        [aa.ModelNode("head", SequentialMLP(1, 2, 64), data().reference(features=["x"]))], "adam"
    )
    run(model_graph, training(1, accelerator=ONE))
    DEVICES[0].capacity = DEVICES[0].used + free_bytes
    with pytest.raises(OutOfMemoryError, match=rf"{expected_problem}.*sim:0 (has a capacity of \d+ bytes|\(torch\))"):
        run(model_graph, training(1, accelerator=ONE, residency="resident"))
    DEVICES[0].capacity = None
    assert run(model_graph, training(1, accelerator=ONE)).loss.shape == (1,)


def test_unknown_simulated_device_raises() -> None:
    with pytest.raises(DeviceUnavailableError, match=r"'sim:4' is not on this machine .*2 simulated devices were"):
        run(graph(data(), (None, None)), training(1, accelerator="sim:4"))


def test_framework_agnostic_code_finds_the_devices() -> None:
    assert [str(item) for item in aa.devices("sim", framework="torch")] == [ONE, TWO]
    assert aa.Accelerator(ONE).is_available("torch") and aa.best_device(framework="torch").kind != "sim"
    moved = aa.move({"a": torch.zeros(2)}, TWO)
    assert aa.device_of(moved) == aa.Device("sim", 1)
    assert aa.device_of(aa.place(nn.Linear(1, 1), ONE)) == aa.Device("sim", 0)
    with aa.scope(TWO, "torch"):
        assert str(torch.zeros(1).device) == TWO


def test_head_of_another_framework_receives_through_host_memory() -> None:
    """Also if both call their device sim:0: same name, different memory."""

    def model_graph(first: str | None, second: str | None) -> aa.ModelGraph:
        source = data()
        nodes = [
            aa.ModelNode("encoder", SequentialMLP(4, 1), source.reference(features=["x"]), accelerator=first),
            aa.ModelNode("head", aa.SequentialMLP(1, 2, 8), "encoder", accelerator=second),
        ]
        return aa.ModelGraph(nodes, aa.Optimizer("adam", lr=1e-2, clip_norm=0.5))

    expected = run(model_graph(None, None), training()).loss
    with aa.simulate(1):
        for where in ((ONE, "cpu"), ("cpu", ONE), (ONE, ONE), (TWO, ONE)):
            actual = model_graph(*where)
            result = run(actual, training())
            assert {item.route for item in result.plan.crossings} == {"host"}, where
            np.testing.assert_allclose(result.loss, expected, rtol=1e-5)


@pytest.mark.parametrize("where", [(ONE, TWO), ("cpu", TWO), (TWO, "cpu")], ids="-".join)
def test_out_of_memory_anywhere_frees_memory_at_once(where: tuple[str, str]) -> None:
    """Wherever memory runs out, it is an OutOfMemoryError, and no autograd graph stays alive."""
    source, message = data(), set()
    gc.collect()
    gc.disable()
    try:
        for free_bytes in range(600, 5200, 200):
            model_graph = graph(source, where)
            DEVICES[1].capacity = DEVICES[1].used + free_bytes
            try:
                run(model_graph, training(1))
            except OutOfMemoryError as error:
                message.add(error.problem)
            DEVICES[1].capacity = None
            for node in ("encoder", "head"):
                model_graph[node].accelerator = aa.Accelerator("cpu")
            run(model_graph, training(1))
    finally:
        gc.enable()
    expected = (
        {"not enough memory for a training step"}
        if where == (ONE, TWO)
        else {
            "not enough memory for a batch",
            "not enough memory for the pullback",
        }
    )
    assert all(any(words in expected_problem for expected_problem in message) for words in expected), message
