"""Training steps of the user's own: the same as the loop by hand, under placement, feeding, callbacks and snapshots."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import anyaccel as aa
from anyaccel.errors import ConfigError, NaNWarning, PhaseError

ROWS, BATCH, EPOCHS = 70, 16, 3  # a last batch of 6
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 4)).astype("float32")
Y = (X @ RNG.normal(size=(4, 1))).astype("float32")
KIND = (Y[:, 0] > 0).astype("int64")
ORDERED = aa.SimpleSampler(BATCH)
Step = Any


@pytest.fixture
def data() -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("data", {"x": X, "y": Y, "kind": KIND}, ["x"], ["y", "kind"])


def mlp(n_in: int = 4, n_out: int = 1) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(n_in, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, n_out))


def regression(models: dict[str, nn.Module], batch: dict[str, Tensor], optimizers: dict[str, Any]) -> dict[str, Tensor]:
    optimizers["net"].zero_grad()
    outputs = models["net"](batch["x"])
    loss = F.mse_loss(outputs, batch["y"])
    loss.backward()  # type: ignore[no-untyped-call]
    optimizers["net"].step()
    return {"loss": loss, "mae": (outputs - batch["y"]).abs().mean()}


def run(graph: aa.ModelGraph, step: Step = regression, data: Any = "all", **settings: Any) -> Any:
    drawn = {} if "batch_size" in settings else {"sampler": ORDERED}
    settings = {"epochs": EPOCHS, **drawn, **settings}
    return aa.Experiment("own", graph, progress="none").run_phase(aa.TrainPhase("t", data=data, step=step, **settings))


def graph_of(net: nn.Module, data: aa.FeatureSet, optimizer: Any = "adam", **settings: Any) -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", net, data.reference())], optimizer, **settings)


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    for i in range(0, ROWS, BATCH):
        yield torch.tensor(X[i : i + BATCH]), torch.tensor(Y[i : i + BATCH])


def assert_equal(actual: nn.Module, expected: nn.Module) -> None:
    for name, value in expected.state_dict().items():
        assert torch.equal(actual.state_dict()[name], value), name


def test_equals_the_loop_by_hand_with_the_clipping_and_schedule_of_the_spec(data: aa.FeatureSet) -> None:
    net, schedule = mlp(), aa.Schedule("cosine", steps=20, warmup=2)
    by_hand = copy.deepcopy(net)
    results = run(graph_of(net, data, aa.Optimizer("adam", lr=1e-2, clip_norm=0.5, schedule=schedule)))

    optimizer = torch.optim.Adam(by_hand.parameters(), lr=1e-2, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule.factor)
    losses, errors = [], []
    for _ in range(EPOCHS):
        total = error = 0.0
        for x, y in batches():
            optimizer.zero_grad()
            outputs = by_hand(x)
            loss = F.mse_loss(outputs, y)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(by_hand.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            total += loss.item() * len(x)
            error += (outputs - y).abs().mean().item() * len(x)
        losses.append(total / ROWS)
        errors.append(error / ROWS)
    assert_equal(net, by_hand)
    assert results.figures == ("loss", "mae")
    np.testing.assert_allclose(results.loss, losses, rtol=1e-6)
    np.testing.assert_allclose(results.figure("mae"), errors, rtol=1e-6)
    assert results.epochs[0].steps == 5


SETTINGS: dict[str, Any] = {"lr": 1e-2, "clip_norm": 0.1, "schedule": aa.Schedule("exponential", rate=0.9)}
CLASSES = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_scaler_of_losses_unscales_before_clipping_and_skipped_steps_do_not_count(
    name: str, data: aa.FeatureSet
) -> None:
    net, scaler = mlp(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    by_hand, schedule = copy.deepcopy(net), SETTINGS["schedule"]
    scales: list[float] = []

    def step(models: Any, batch: Any, optimizers: Any) -> None:
        factor = float("inf") if len(scales) == 2 else 1.0
        scales.append(scaler.get_scale())
        optimizers["net"].zero_grad()
        loss = F.mse_loss(models["net"](batch["x"]), batch["y"])
        scaler.scale(loss * factor).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizers["net"])
        scaler.update()

    graph = graph_of(net, data, aa.Optimizer(name, **SETTINGS))
    run(graph, step)
    optimizer: Any = CLASSES[name](by_hand.parameters(), lr=1e-2, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule.factor)
    for i, (x, y) in enumerate(batch for _ in range(EPOCHS) for batch in batches()):
        optimizer.zero_grad()
        F.mse_loss(by_hand(x), y).backward()  # type: ignore[no-untyped-call]
        if i != 2:
            nn.utils.clip_grad_norm_(by_hand.parameters(), 0.1)
            optimizer.step()
            scheduler.step()
    for parameter, expected in zip(net.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-5, atol=1e-7)
    assert graph.optimizer_states["net"].step == 5 * EPOCHS - 1
    assert scales[:4] == [1024.0, 1024.0, 1024.0, 512.0]


def test_a_closure_is_clipped_after_each_call(data: aa.FeatureSet) -> None:
    net = mlp()
    by_hand = copy.deepcopy(net)

    def step(models: Any, batch: Any, optimizers: Any) -> Any:
        def closure() -> Tensor:
            optimizers["net"].zero_grad()
            loss = F.mse_loss(models["net"](batch["x"]), batch["y"])
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        return optimizers["net"].step(closure)

    results = run(graph_of(net, data, aa.Optimizer("sgd", lr=1e-2, clip_norm=0.1)), step)
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=1e-2, fused=True)
    for x, y in (batch for _ in range(EPOCHS) for batch in batches()):
        optimizer.zero_grad()
        F.mse_loss(by_hand(x), y).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(by_hand.parameters(), 0.1)
        optimizer.step()
    assert_equal(net, by_hand)
    assert results.loss[-1] < results.loss[0]


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]


def adversarial(n_critic: int) -> Step:
    def step(models: Any, batch: Any, optimizers: Any) -> dict[str, Tensor]:
        made = models["actor"](batch["x"])
        for _ in range(n_critic):
            optimizers["critic"].zero_grad()
            real, fake = models["critic"](batch["y"]), models["critic"](made.detach())
            critic_loss = F.softplus(-real).mean() + F.softplus(fake).mean()
            critic_loss.backward()  # type: ignore[no-untyped-call]
            optimizers["critic"].step()
        optimizers["actor"].zero_grad()
        actor_loss = F.softplus(-models["critic"](made)).mean()
        actor_loss.backward()  # type: ignore[no-untyped-call]
        optimizers["actor"].step()
        return {"actor": actor_loss, "critic": critic_loss}

    return step


def test_alternating_updates_within_a_step_with_an_optimizer_and_a_schedule_for_each(data: aa.FeatureSet) -> None:
    actor, critic = mlp(), Critic()
    expected = copy.deepcopy(actor), copy.deepcopy(critic)
    slow = aa.Schedule("exponential", rate=0.9)
    nodes = [
        aa.ModelNode("actor", actor, data.reference(), optimizer=aa.Optimizer("adam", lr=1e-2)),
        aa.ModelNode("critic", critic, "actor", optimizer=aa.Optimizer("sgd", lr=0.1, schedule=slow)),
    ]
    graph = aa.ModelGraph(nodes)
    results = run(graph, adversarial(3))

    optimizers = {
        "actor": torch.optim.Adam(expected[0].parameters(), lr=1e-2, fused=True),
        "critic": torch.optim.SGD(expected[1].parameters(), lr=0.1, fused=True),
    }
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizers["critic"], slow.factor)
    optimizers["critic"].register_step_post_hook(lambda *_: scheduler.step())
    for _ in range(EPOCHS):
        for x, y in batches():
            adversarial(3)({"actor": expected[0], "critic": expected[1]}, {"x": x, "y": y}, optimizers)
    assert_equal(actor, expected[0])
    assert_equal(critic, expected[1])
    assert results.figures == ("actor", "critic")
    assert np.isnan(results.loss).all()  # no figure has this name
    assert graph.optimizer_states["critic"].step == 3 * graph.optimizer_states["actor"].step == 3 * 5 * EPOCHS


def test_a_subclass_may_define_the_step(data: aa.FeatureSet) -> None:
    class Regression(aa.TrainPhase):
        def step(self, models: Any, batch: Any, optimizers: Any) -> dict[str, Tensor]:
            assert self.label == "t"
            return regression(models, batch, optimizers)

    nets = mlp(), mlp()
    run(graph_of(nets[0], data))
    phase = Regression("t", data="all", sampler=ORDERED, epochs=EPOCHS)
    aa.Experiment("own", graph_of(nets[1], data), progress="none").run_phase(phase)
    assert_equal(nets[1], nets[0])


def test_the_names_of_a_batch(data: aa.FeatureSet) -> None:
    seen: list[dict[str, tuple[tuple[int, ...], torch.dtype]]] = []

    def step(models: Any, batch: Any, optimizers: Any) -> None:
        seen.append({name: (tuple(tensor.shape), tensor.dtype) for name, tensor in batch.items()})

    run(graph_of(mlp(), data), step, epochs=1)
    x = ((BATCH, 4), torch.float32)
    assert seen[0] == {"x": x, "features": x, "y": ((BATCH, 1), torch.float32), "kind": ((BATCH,), torch.int64)}

    columns = {"a": X[:, 0], "b": X[:, 1], "c": Y.astype("float64")}
    table = aa.FeatureSet.from_dict("table", columns, ["a", "b"], ["c"])
    run(aa.ModelGraph([aa.ModelNode("net", mlp(2), table.reference())], "adam"), step, epochs=1)
    joined, c = ((BATCH, 2), torch.float32), ((BATCH, 1), torch.float32)
    assert seen[-1] == {
        "features": ((6, 2), torch.float32),
        "a+b": ((6, 2), torch.float32),
        "targets": ((6, 1), torch.float32),
        "c": ((6, 1), torch.float32),
    }
    assert seen[-2] == {"features": joined, "a+b": joined, "targets": c, "c": c}


def test_columns_of_two_sets_with_one_name_have_that_of_the_plan() -> None:
    sets = [aa.FeatureSet.from_dict(name, {"x": X}, ["x"]) for name in ("left", "right")]
    names: set[str] = set()

    def step(models: Any, batch: Any, optimizers: Any) -> None:
        names.update(batch)

    nodes = [aa.ModelNode(f"net_{one.label}", mlp(), one.reference()) for one in sets]
    run(aa.ModelGraph(nodes, "adam"), step, data={"left": sets[0], "right": sets[1]}, epochs=1)
    assert names == {"left.x", "right.x"}


@pytest.mark.parametrize("residency", ["resident", "streamed"])
def test_shuffled_rows_are_the_same_wherever_they_are(residency: str, data: aa.FeatureSet) -> None:
    nets = mlp(), mlp()
    losses = aa.AppliedLoss("mse", on="net", inputs=["outputs", "data.y"])
    usual = aa.TrainPhase("t", data="all", losses=[losses], batch_size=BATCH, epochs=EPOCHS, compile="off")
    expected = aa.Experiment("own", graph_of(nets[0], data), progress="none").run_phase(usual)
    results = run(graph_of(nets[1], data), batch_size=BATCH, residency=residency)
    assert_equal(nets[1], nets[0])
    np.testing.assert_allclose(results.loss, expected.loss, rtol=1e-6)


def test_a_source_of_batches(data: aa.FeatureSet) -> None:
    nets = mlp(), mlp()
    run(graph_of(nets[0], data))
    rows = TensorDataset(torch.tensor(X), torch.tensor(Y), torch.tensor(KIND))
    source = aa.MapSource("data", rows, features=["x"], target=["y", "kind"])
    run(graph_of(nets[1], data), data=source)
    assert_equal(nets[1], nets[0])


def test_two_phases_continue_the_optimizer(data: aa.FeatureSet) -> None:
    nets = mlp(), mlp()
    run(graph_of(nets[0], data), epochs=2)
    graph = graph_of(nets[1], data)
    run(graph, epochs=1)
    run(graph, epochs=1)
    assert_equal(nets[1], nets[0])


def test_validation_with_losses_of_its_own_and_early_stopping(data: aa.FeatureSet) -> None:
    loss = aa.AppliedLoss("mse", on="net", inputs=["outputs", "data.y"])
    validation = aa.EvalPhase("val", data="all", losses=[loss])
    stopping = aa.EarlyStopping("mae", patience=1, min_delta=100.0, restore_best=True)
    net = mlp()
    graph = graph_of(net, data)
    results = run(graph, validation=validation, callbacks=[stopping], epochs=9)
    assert results.figures == ("loss", "mae", "val_loss", "val_loss.net")
    assert results.stop_reason == "mae has not improved for 1 epochs"
    assert len(results.epochs) == 2
    once = mlp()
    run(graph_of(once, data), epochs=1)
    assert_equal(net, once)


class Listener(aa.Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def step_end(self, run: Any) -> None:
        self.losses.append(run.step_losses()["mae"])


def test_callbacks_hear_of_each_step(data: aa.FeatureSet) -> None:
    listener = Listener()
    results = run(graph_of(mlp(), data), callbacks=[listener], epochs=1)
    assert len(listener.losses) == 5
    sizes = [16, 16, 16, 16, 6]
    assert np.average(listener.losses, weights=sizes) == pytest.approx(results.figure("mae")[0])


def test_a_frozen_node_is_in_evaluation_mode_and_has_no_optimizer(data: aa.FeatureSet) -> None:
    graph = aa.ModelGraph(
        [aa.ModelNode("body", mlp(4, 3), data.reference()), aa.ModelNode("net", nn.Linear(3, 1), "body")], "adam"
    )
    graph.freeze("body")
    seen: list[tuple[bool, bool, list[str]]] = []

    def step(models: Any, batch: Any, optimizers: Any) -> None:
        grads = [parameter.requires_grad for parameter in models["body"].parameters()]
        seen.append((models["body"].training, any(grads), list(optimizers)))

    run(graph, step, epochs=1)
    assert seen == [(False, False, ["net"])] * 5


def test_an_error_in_a_step_leaves_the_values_of_the_last_snapshot(data: aa.FeatureSet) -> None:
    def step(models: Any, batch: Any, optimizers: Any) -> None:
        regression(models, batch, optimizers)
        if len(batch["x"]) < BATCH:
            raise ZeroDivisionError("in the last step")

    net = mlp()
    before = copy.deepcopy(net)
    with pytest.raises(ZeroDivisionError, match="in the last step") as caught:
        run(graph_of(net, data), step)
    assert "a step was broken off: values are those after 0 steps" in str(caught.value.__notes__)
    for name, value in before.named_parameters():
        assert torch.equal(net.get_parameter(name), value), name


def test_a_single_number_is_the_loss_and_nan_is_warned_of(data: aa.FeatureSet) -> None:
    results = run(graph_of(mlp(), data), lambda models, batch, optimizers: 0.5)
    assert list(results.loss) == [0.5] * EPOCHS
    with pytest.warns(NaNWarning, match="the figure 'loss' of your step is nan at step 1 of epoch 1"):
        run(graph_of(mlp(), data), lambda models, batch, optimizers: torch.tensor(float("nan")), epochs=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": torch.ones(3)}, r"returned a Tensor of shape \[3\] as the figure 'loss'.*a mean over the batch"),
        ({3: 1.0}, r"returned 1.0 as the figure 3\. Available: a dict of names and scalars"),
        ("good", "returned 'good' as the figure 'loss'"),
        (
            {"val_loss": 1.0},
            r"figure 'val_loss', but the prefix `val_` is reserved for validations\. Hint: name it 'loss'",
        ),
    ],
)
def test_a_figure_that_is_no_number(given: Any, message: str, data: aa.FeatureSet) -> None:
    with pytest.raises(PhaseError, match=message):
        run(graph_of(mlp(), data), lambda models, batch, optimizers: given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"losses": [aa.AppliedLoss("mse", on="net")]}, "has both losses and a custom step.*Hint: leave losses out"),
        ({"accumulate": 2}, "accumulate=2 and a custom step.*Hint: leave accumulate out"),
        ({"compile": "steps"}, r"compile='steps' and a custom step.*Hint: leave compile out"),
        ({"step": 3}, r"step must be a function of \(models, batch, optimizers\), got 3"),
    ],
)
def test_settings_that_do_not_go_with_a_step(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PhaseError, match=message):
        aa.TrainPhase("t", data="all", **{"step": regression, **settings})


def test_a_step_has_no_configuration() -> None:
    with pytest.raises(ConfigError, match="'t' has a custom step, which cannot be written to a configuration"):
        aa.TrainPhase("t", data="all", step=regression).get_config()


def test_frameworks_that_cannot_and_several_are_refused_by_the_plan(data: aa.FeatureSet) -> None:
    phase = aa.TrainPhase("t", data="all", step=regression)
    numpy_only = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(), data.reference())], "adam")
    with pytest.raises(PhaseError, match=r"not supported for models of numpy; net: numpy\. Hint: train"):
        aa.Experiment("own", numpy_only).plan(phase)
    both = [aa.ModelNode("body", mlp(4, 3), data.reference()), aa.ModelNode("net", aa.SequentialMLP(), "body")]
    with pytest.raises(PhaseError, match=r"can use only one framework.*body: torch on cpu:0, net: numpy on cpu:0"):
        aa.Experiment("own", aa.ModelGraph(both, "adam")).plan(phase)


def test_a_node_without_an_optimizer_is_refused(data: aa.FeatureSet) -> None:
    with pytest.raises(PhaseError, match="node 'net' is trained but has no optimizer"):
        run(graph_of(mlp(), data, None))
