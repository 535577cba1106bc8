"""Graphs of torch modules, end to end, as users build them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import anyaccel as aa
from anyaccel.errors import AnyaccelError, ColumnError, DeviceUnavailableError, PhaseError, ShapeError, SpecError
from anyaccel_torch import SequentialMLP
from anyaccel_torch.backend import TorchBackend


class Net(torch.nn.Module):
    """A plain module with everything that has state: weights, running means, dropout."""

    def __init__(self, inputs: int = 6, outputs: int = 3) -> None:
        super().__init__()
        self.first = torch.nn.Linear(inputs, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.drop = torch.nn.Dropout(0.3)
        self.second = torch.nn.Linear(8, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.drop(torch.relu(self.norm(self.first(x)))))


def data(rows: int = 50, dtype: str = "float64") -> aa.FeatureSet:
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, 6)).astype(dtype)
    columns = {"x": x, "y": x[:, :1] * 2, "kind": (x[:, 0] > 0).astype(np.int64)}
    source = aa.FeatureSet.from_dict("data", columns, ["x"], ["y", "kind"])
    source.split_random({"train": 0.8, "val": 0.2})
    return source


def seeded_net(**sizes: int) -> Net:
    torch.manual_seed(1)
    return Net(**sizes)


def graph(source: aa.FeatureSet, model: Any, optimizer: Any = None) -> aa.ModelGraph:
    node = aa.ModelNode("net", model, source.reference(target=["kind"]))
    return aa.ModelGraph([node], optimizer or aa.Optimizer("adam", lr=1e-2))


def training(epochs: int = 2, loss: Any = "cross_entropy", **settings: Any) -> aa.TrainPhase:
    sampler = aa.SimpleSampler(8, shuffle=True, seed=2)
    losses = [aa.AppliedLoss(loss, on="net")]
    return aa.TrainPhase.from_split("train", split="train", sampler=sampler, losses=losses, epochs=epochs, **settings)


def run(model_graph: aa.ModelGraph, *phases: aa.TrainPhase) -> Any:
    return [aa.Experiment("test", model_graph, progress="none").run_phase(phase) for phase in phases][-1]


def test_graph_trains_the_users_module_in_place() -> None:
    net = seeded_net()
    before = net.first.weight.detach().clone()
    source = data()
    model_graph = graph(source, net)
    results = run(model_graph, training(20))
    assert model_graph["net"].model is net
    assert results.loss[-1] < results.loss[0]
    assert not torch.equal(net.first.weight, before)
    assert net.training and net.first.weight.requires_grad and net.first.weight.grad is None


def test_continued_run_equals_an_uninterrupted_run() -> None:
    """Dropout, batch statistics, Adam's moments, a schedule and the order of batches all continue."""
    optimizer = aa.Optimizer("adamw", lr=1e-2, schedule=aa.Schedule("cosine", steps=40), clip_norm=0.5)
    source = data()
    whole = graph(source, seeded_net(), optimizer)
    expected = run(whole, training(4))
    half = graph(source, seeded_net(), optimizer)
    run(half, training(2))
    state = half.state()
    torch.manual_seed(99)
    other = graph(source, Net(), optimizer)
    results = run(other.load_state(state), training(2))
    np.testing.assert_array_equal(results.loss, expected.loss[2:])
    for name, array in whole.state().items():
        np.testing.assert_array_equal(other.state()[name], array, err_msg=name)


def test_phase_restores_the_global_random_state() -> None:
    model_graph = graph(data(), seeded_net())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run(model_graph, training(1))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("loss", "optimizer"),
    [
        (aa.Loss(torch.nn.CrossEntropyLoss, loss_kwargs={"label_smoothing": 0.1}), None),
        (torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])), None),
        (torch.nn.functional.cross_entropy, aa.Optimizer(torch.optim.RMSprop, lr=1e-2, alpha=0.9)),
        ("cross_entropy", aa.Optimizer("sgd", lr=0.1, momentum=0.9, nesterov=True)),
    ],
    ids=["class", "stateful instance", "function, own optimizer", "named"],
)
def test_graph_trains_with_losses_and_optimizers_of_torch(loss: Any, optimizer: Any) -> None:
    results = run(graph(data(), seeded_net(), optimizer), training(15, loss))
    assert results.loss[-1] < 0.9 * results.loss[0]


def test_state_of_a_torch_optimizer_continues_in_the_next_phase() -> None:
    optimizer = aa.Optimizer(torch.optim.RMSprop, lr=1e-2)
    source = data()
    whole, parts = graph(source, seeded_net(), optimizer), graph(source, seeded_net(), optimizer)
    run(whole, training(4))
    run(parts, training(2), training(2))
    for name, array in whole.state().items():
        np.testing.assert_array_equal(parts.state()[name], array, err_msg=name)


def test_the_plan_names_torch_and_casts_float64_features_once() -> None:
    model_graph = graph(data(), seeded_net())
    plan = aa.Experiment("test", model_graph).plan(training(accelerator="cpu"))
    assert plan["net"].framework == "torch" and plan["net"].native_name == "cpu" and plan["net"].reason == "phase"
    change = {column.name: column.change for column in plan.columns}
    assert change == {"data.x": "float64 to float32", "data.kind": ""}


def test_missing_gpu_is_reported_before_anything_moves() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    net = seeded_net()
    model_graph = graph(data(), net)
    for phase in (training(accelerator="cuda:0"), training(accelerator="gpu")):
        with pytest.raises(DeviceUnavailableError, match=r"(gpu|cuda:0)' is not on this machine .*Available: cpu:0"):
            run(model_graph, phase)
    assert net.first.weight.device.type == "cpu"


def test_shape_error_names_node_and_column() -> None:
    with pytest.raises(ShapeError, match=r"node 'net' does not accept float32\[6\] from data\.x"):
        graph(data(), seeded_net(inputs=7)).build()


def test_optimizer_of_another_framework_is_refused_before_anything_moves() -> None:
    class Alien:
        """No optimizer of torch."""

    with pytest.raises(SpecError, match=r"node 'net': torch does not support the optimizer 'Alien'"):
        run(graph(data(), seeded_net(), aa.Optimizer(Alien)), training(1))


def test_frozen_graph_raises_phase_error() -> None:
    model_graph = graph(data(), seeded_net()).freeze("net")
    with pytest.raises(PhaseError, match=r"nothing to train: net \(frozen\)"):
        run(model_graph, training(1))


def test_epoch_transfers_its_order_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by patched conversions, independently of anyaccel's own counters."""
    counts: dict[str, int] = {}

    def counted(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapper)

    class Counting(aa.Callback):
        """Watches the second of three epochs: programs are warm, and nothing is finalized yet."""

        def epoch_start(self, run: Any) -> None:
            if run.epoch == 1:
                counted(TorchBackend, "from_host")
                for name in ("item", "cpu", "numpy", "tolist", "to", "__float__", "__bool__", "__int__"):
                    counted(torch.Tensor, name)

        def epoch_end(self, run: Any) -> None:
            if run.epoch == 1:
                self.counts = dict(counts)
                monkeypatch.undo()

    model = SequentialMLP(output_shape=(3,), n_layers=2, hidden_dim=8)
    watch = Counting()
    run(graph(data(rows=600), model), training(3, callbacks=[watch]))
    assert watch.counts.pop("from_host") == 1, "the order of the epoch"
    in_loop = {name: count for name, count in watch.counts.items() if count >= 20}
    assert in_loop == {}, "60 steps: what is done in each would be counted 60 times"
    assert not {"item", "tolist", "__float__", "__bool__", "__int__"} & set(watch.counts)


def test_numpy_head_trains_with_a_torch_encoder() -> None:
    source = data(dtype="float32")
    encoder = aa.ModelNode("encoder", SequentialMLP((4,), 2, 8), source.reference(target=["kind"]))
    head = aa.ModelNode("net", aa.SequentialMLP((2,), 1), "encoder")
    model_graph = aa.ModelGraph([encoder, head], aa.Optimizer("adam", lr=2e-2, clip_norm=1.0))
    plan = aa.Experiment("test", model_graph).plan(training())
    assert [(part.framework, part.nodes) for part in plan.parts] == [("torch", ("encoder",)), ("numpy", ("net",))]
    assert [(crossing.value, crossing.route, crossing.gradient) for crossing in plan.crossings] == [
        ("encoder", "share", False),
        ("encoder", "share", True),
    ]
    results = run(model_graph, training(10))
    assert results.loss[-1] < 0.7 * results.loss[0]


def test_interrupt_restores_the_module_and_training_continues() -> None:
    class Interrupt(aa.Callback):
        def step_end(self, run: Any) -> None:
            if run.epoch == 1 and run.step == 2:
                raise KeyboardInterrupt

    net = seeded_net()
    net.eval()
    model_graph = graph(data(), net)
    experiment = aa.Experiment("test", model_graph, progress="none")
    with pytest.raises(KeyboardInterrupt):
        experiment.run_phase(training(3, callbacks=[Interrupt()]))
    assert len(experiment.last_run.epochs) == 1
    assert isinstance(experiment.last_run.error, KeyboardInterrupt)
    assert not net.training and all(parameter.grad is None for parameter in net.parameters())
    assert model_graph.optimizer_states["net"].step == 5 + 3
    assert len(experiment.run_phase(training(1)).epochs) == 1


def test_missing_target_lists_the_columns() -> None:
    source = data()
    model_graph = aa.ModelGraph([aa.ModelNode("net", seeded_net(), source.reference(target=[]))], "adam")
    with pytest.raises(AnyaccelError, match="the data that feed this node have no targets"):
        run(model_graph, training(1))


def test_in_place_activation_changes_no_shared_values() -> None:
    """The loss, a second reader and the kept outputs see what the encoder returned."""
    source = data(dtype="float32")
    shared = source.reference(target=["y"])
    inplace = torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(6, 1))
    plain = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(6, 1))
    plain.load_state_dict(inplace.state_dict())
    torch.manual_seed(3)
    encoder, result = torch.nn.Linear(6, 6), []
    for model in (inplace, plain):
        torch.manual_seed(4)
        nodes = [aa.ModelNode("e", encoder, shared), aa.ModelNode("a", model, "e"), aa.ModelNode("d", model, shared)]
        phase = aa.EvalPhase("v", data="val", outputs=["e", "a", "d"])
        result.append(aa.Experiment("x", aa.ModelGraph(nodes, "sgd"), progress="none").run_phase(phase).predictions)
    for name in result[0]:
        np.testing.assert_array_equal(result[0][name], result[1][name], err_msg=name)
    assert result[0]["e"].min() < 0


def test_an_epoch_is_kept_when_its_validation_fails() -> None:
    def broken(outputs: np.ndarray, targets: np.ndarray) -> float:
        raise ZeroDivisionError

    model_graph = graph(data(), seeded_net())
    experiment = aa.Experiment("test", model_graph, progress="none")
    check = aa.EvalPhase.from_split("check", split="val", metrics=[broken])
    with pytest.raises(SpecError, match="raised ZeroDivisionError"):
        experiment.run_phase(training(3, validation=check))
    assert len(experiment.last_run.epochs) == model_graph.progress["train"] == 1


@pytest.mark.parametrize("loss", [torch.nn.MSELoss, torch.nn.L1Loss(), torch.nn.functional.mse_loss])
def test_elementwise_torch_losses_do_not_broadcast(loss: Any) -> None:
    source = data(dtype="float32")
    node = aa.ModelNode("net", SequentialMLP((3,), 1), source.reference(target=["y"]))
    with pytest.raises(ShapeError, match="they must have the same shape"):
        run(aa.ModelGraph([node], "adam"), training(1, loss))


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (torch.nn.MSELoss(reduction="sum"), r"a sum over rows"),
        (torch.nn.CrossEntropyLoss(weight=torch.ones(3)), r"a mean weighted by class"),
        (aa.Loss(torch.nn.NLLLoss, loss_kwargs={"reduction": "sum"}), r"a sum over rows"),
    ],
)
def test_losses_of_torch_that_are_no_means_over_rows_are_not_accumulated(loss: Any, reason: str) -> None:
    with pytest.raises(PhaseError, match=reason):
        training(loss=loss, accumulate=2)


def test_targets_that_a_loss_of_torch_leaves_out_are_not_accumulated() -> None:
    source = data().cast({"kind": "int64"})
    kind = source.array("kind").copy()
    kind[3] = -100
    columns = {"x": source.array("x"), "kind": kind}
    ignoring = aa.FeatureSet.from_dict("data", columns, ["x"], ["kind"])
    model_graph = aa.ModelGraph([aa.ModelNode("net", torch.nn.Linear(6, 2).double(), ignoring.reference())], "sgd")
    phase = aa.TrainPhase(
        "t", data="all", losses=[aa.AppliedLoss(torch.nn.CrossEntropyLoss(), on="net")], accumulate=2, compile="off"
    )
    with pytest.raises(ColumnError, match=r"has targets of -100, which the loss leaves out of its mean"):
        aa.Experiment("e", model_graph, progress="none").run_phase(phase)
