"""Precision on torch, beside loops by hand with torch.autocast and torch.amp.GradScaler, equal to the last bit."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import anyaccel as aa
from anyaccel.errors import CapabilityError, FrameworkError, PhaseError
from anyaccel.precision import ComputesPrecision, LossScale
from anyaccel_torch.backend import TorchBackend

N, BATCH = 96, 16
IS_FULL = bool(os.environ.get("ANYACCEL_TEST_FULL"))
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(N, 6)).astype("float32")
Y = RANDOM.integers(0, 3, N)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 3))


def data(x: np.ndarray = X) -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("data", {"x": x, "y": Y}, ["x"], ["y"])


def graph(
    model: nn.Module, rows: aa.FeatureSet, optimizer: aa.Optimizer | None = None, **node: object
) -> aa.ModelGraph:
    nodes = [aa.ModelNode("net", model, rows.reference(), **node)]
    return aa.ModelGraph(nodes, optimizer or aa.Optimizer("adam", lr=1e-2))


class Losses(aa.Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []
        self.scales: list[float] = []

    def step_end(self, run: aa.phases.run.Run) -> None:  # type: ignore[name-defined]
        self.losses += run.step_losses().values()
        self.scales.append(run.loss_scale.scale if run.loss_scale else 1.0)


def train(network: aa.ModelGraph, rows: aa.FeatureSet, **settings: object) -> tuple[Losses, aa.TrainResults]:
    heard = Losses()
    phase = {
        "losses": [aa.AppliedLoss("cross_entropy", on="net")],
        "sampler": aa.SimpleSampler(BATCH),
        "compile": "off",
    }
    results = network.run(aa.TrainPhase("train", data=rows, callbacks=[heard], **{**phase, **settings}))
    return heard, results


def by_hand(
    model: nn.Module,
    x: np.ndarray,
    dtype: torch.dtype,
    *,
    epochs: int,
    scaler: torch.amp.GradScaler | None = None,
    clip: float | None = None,
) -> tuple[list[float], list[float]]:
    optimizer, losses, scales = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True), [], []
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(epochs):
        for start in range(0, N, BATCH):
            batch, targets = torch.tensor(x[start : start + BATCH]), torch.tensor(Y[start : start + BATCH])
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype):
                loss = F.cross_entropy(model(batch).float(), targets)
            scaler.scale(loss).backward()
            if clip is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            losses.append(float(loss.detach()))
            scales.append(scaler.get_scale())
    return losses, scales


def spoiled() -> np.ndarray:
    """Rows whose activations float16 cannot hold: those of the second and third batch."""
    x = X.copy()
    x[[20, 37]] = 1e6
    return x


def test_bf16_mixed_equals_autocast() -> None:
    model = mlp()
    heard, _ = train(graph(model, data()), data(), epochs=4, precision="bf16-mixed")
    other = mlp()
    assert heard.losses == by_hand(other, X, torch.bfloat16, epochs=4)[0]
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert mine.dtype is torch.float32 and torch.equal(mine, theirs)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_fp16_mixed_equals_autocast_with_a_grad_scaler(clip: float | None) -> None:
    """Infinite gradients are skipped in the same steps, clipping sees what is unscaled, and the scale recovers."""
    model, other, rows = mlp(), mlp(), data(spoiled())
    scale = LossScale(initial=2.0**12, growth_interval=3)
    optimizer = aa.Optimizer("adam", lr=1e-2, clip_norm=clip)
    heard, results = train(
        graph(model, rows, optimizer), rows, epochs=4, precision="fp16-mixed", loss_scale=scale, on_nan="ignore"
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)
    losses, scales = by_hand(other, spoiled(), torch.float16, epochs=4, scaler=scaler, clip=clip)
    np.testing.assert_array_equal(heard.losses, losses)
    assert heard.scales == scales and min(scales) < 2.0**12 and scales[-1] > min(scales)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    told = [event.message for event in results.events if event.kind == "precision"]
    assert len(told) == 4 and told[0].startswith("2 of 6 steps were skipped")


def test_skipped_steps_are_counted_by_no_optimizer() -> None:
    rows = data(spoiled())
    network = graph(mlp(), rows)
    train(network, rows, epochs=2, precision="fp16-mixed", on_nan="ignore")
    assert network.optimizer_states["net"].step == 2 * (N // BATCH - 2)


def test_micro_batches_of_scaled_losses_equal_whole_batches() -> None:
    whole, _ = train(graph(mlp(), data()), data(), epochs=2, precision="fp16-mixed")
    parts, _ = train(
        graph(mlp(), data()),
        data(),
        epochs=2,
        precision="fp16-mixed",
        accumulate=2,
        sampler=aa.SimpleSampler(BATCH // 2),
    )
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=2e-3)


class Seen(nn.Module):
    """Notes the dtypes that its operations see."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dtypes = nn.Linear(6, 3), set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        self.dtypes |= {("product", y.dtype), ("loss", F.mse_loss(y, y).dtype), ("input", x.dtype)}
        return y


def test_a_node_kept_in_float32_sees_float32() -> None:
    rows, narrow, kept = data(), Seen(), Seen()
    nodes = [
        aa.ModelNode("narrow", narrow, rows.reference()),
        aa.ModelNode("net", kept, rows.reference(), precision="float32"),
    ]
    losses = [aa.AppliedLoss("cross_entropy", on=label, label=label) for label in ("narrow", "net")]
    network = aa.ModelGraph(nodes, "adam").build()
    narrow.dtypes, kept.dtypes = set(), set()
    train(network, rows, losses=losses, precision="bf16-mixed")
    wide = {("loss", torch.float32), ("input", torch.float32)}
    assert narrow.dtypes == {("product", torch.bfloat16), *wide}
    assert kept.dtypes == {("product", torch.float32), *wide}
    plan = aa.Experiment("e", network).plan(aa.TrainPhase("t", data=rows, losses=losses, precision="bf16-mixed"))
    assert "it is computed in bf16-mixed, because the phase requests it" in plan.explain("narrow")
    assert "it is computed in float32, because the node requests it" in plan.explain("net")
    assert "bf16-mixed (phase)" in str(plan) and "float32 (node)" in str(plan)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("float64", torch.float64)])
def test_all_of_a_node_is_computed_in_one_dtype(precision: str, dtype: torch.dtype) -> None:
    model = Seen()
    network = graph(model, data()).build()
    model.dtypes = set()
    train(network, data(), precision=precision)
    assert {seen for _, seen in model.dtypes} == {dtype}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


class OneLayerTwice(nn.Module):
    """A layer that has two names, and weights of which two layers have a part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.between = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.again, self.head = self.first, nn.Linear(6, 3)
        self.between.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.again(self.between(self.first(x).tanh())).tanh())
        return result


def test_a_layer_in_two_places_keeps_its_parameters_where_all_is_cast() -> None:
    models = OneLayerTwice(), OneLayerTwice()
    before = dict(models[0].named_parameters(remove_duplicate=False))
    losses = [
        train(graph(model, data()), data(), epochs=3, precision=precision)[0].losses
        for model, precision in zip(models, ("float64", None), strict=True)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert dict(models[0].named_parameters(remove_duplicate=False)) == before  # the same objects
    for name, value in models[1].state_dict().items():
        torch.testing.assert_close(models[0].state_dict()[name], value, rtol=1e-3, atol=1e-5)


def test_running_statistics_are_kept_where_all_is_cast() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))
    train(graph(model, data()), data(), precision="float64")
    torch.manual_seed(0)
    plain = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))
    train(graph(plain, data()), data())
    torch.testing.assert_close(model[0].running_var, plain[0].running_var)
    assert model[0].num_batches_tracked == plain[0].num_batches_tracked == N // BATCH


def test_an_evaluation_is_computed_in_its_precision() -> None:
    model = mlp()
    network, rows = graph(model, data()), data()
    losses = [aa.AppliedLoss("cross_entropy", on="net")]
    phases = [aa.EvalPhase("eval", data=rows, losses=losses, precision=each) for each in (None, "bf16-mixed")]
    values = [network.run(phase).loss for phase in phases]
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = float(F.cross_entropy(model(torch.tensor(X)).float(), torch.tensor(Y)))
    assert values[1] == pytest.approx(expected, rel=1e-6) and values[0] != values[1]


@pytest.mark.parametrize("precision", ["fp16-mixed", *(("bf16-mixed", "bf16", "float64") if IS_FULL else ())])
def test_compiled_steps_are_computed_in_a_precision(precision: str) -> None:
    """With a loss scale where it is fp16, too."""
    eager, _ = train(graph(mlp(), data()), data(), epochs=2, precision=precision)
    network = graph(mlp(), data())
    phase = aa.TrainPhase(
        "train",
        data=data(),
        losses=[aa.AppliedLoss("cross_entropy", on="net")],
        sampler=aa.SimpleSampler(BATCH),
        epochs=2,
        compile="steps",
        precision=precision,
    )
    results = network.run(phase)
    assert any("steps compiled" in event.message for event in results.events)
    per_epoch = np.mean(np.reshape(eager.losses, (2, -1)), axis=1)
    np.testing.assert_allclose([epoch.loss for epoch in results.epochs], per_epoch, rtol=5e-3)


def test_matmul_precision_holds_for_the_phase_alone() -> None:
    before, seen = torch.get_float32_matmul_precision(), []

    class Watches(aa.Callback):
        def epoch_end(self, run: object) -> None:
            seen.append(torch.get_float32_matmul_precision())

    rows = data()
    losses = [aa.AppliedLoss("cross_entropy", on="net")]
    setting = {"torch": "medium"}
    graph(mlp(), rows).run(
        aa.TrainPhase("t", data=rows, losses=losses, matmul_precision=setting, callbacks=[Watches()])
    )
    assert seen == ["medium"] and torch.get_float32_matmul_precision() == before
    with pytest.raises(PhaseError, match=r"no framework of the graph has matmul_precision='lowest'.*'highest', 'high'"):
        train(graph(mlp(), rows), rows, matmul_precision="lowest")


def test_matmul_precisions_of_two_threads_are_one_or_refused() -> None:
    """The setting is of the whole process: a phase of another thread shares it, and is refused with another value."""
    rows, before, stands = data(), torch.get_float32_matmul_precision(), []
    losses = [aa.AppliedLoss("cross_entropy", on="net")]

    def other(value: str) -> Any:
        with ThreadPoolExecutor(1) as pool:
            phase = aa.TrainPhase("other", data=rows, losses=losses, matmul_precision=value, compile="off")
            return pool.submit(graph(mlp(), rows).run, phase).exception()

    class Beside(aa.Callback):
        def epoch_end(self, run: object) -> None:
            errors = other("medium"), other("high")
            stands.append((*errors, torch.get_float32_matmul_precision()))

    phase = aa.TrainPhase("t", data=rows, losses=losses, matmul_precision="medium", callbacks=[Beside()], compile="off")
    graph(mlp(), rows).run(phase)
    ((shared, refused, during),) = stands
    assert shared is None and during == "medium" and torch.get_float32_matmul_precision() == before
    assert isinstance(refused, PhaseError) and "a phase in another thread has 'medium'" in str(refused)


def test_narrow_parameters_are_refused_in_mixed_precision() -> None:
    rows = data()
    with pytest.raises(CapabilityError, match=r"its parameters are bfloat16.*convert the model to float32"):
        train(graph(mlp().bfloat16(), rows), rows, precision="bf16-mixed")


def test_float16_is_refused_on_a_cpu_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is planned; a CPU's module says what it autocasts to, as those of other devices do."""
    monkeypatch.setattr(torch.cpu, "get_amp_supported_dtype", lambda: [torch.bfloat16], raising=False)
    rows = data()
    network, losses = graph(mlp(), rows), [aa.AppliedLoss("mse", on="net")]
    expected = r"precision='fp16-mixed' on cpu:0: torch has no autocast to float16 on 'cpu'.*'bf16-mixed'"
    with pytest.raises(CapabilityError, match=expected):
        aa.Experiment(network).plan(aa.TrainPhase("t", data=rows, losses=losses, precision="fp16-mixed"))
    train(network, rows, precision="bf16-mixed")


# -- values that are computed again ------------------------------------------------------------------------------------


class Blocks(nn.Module):
    """Blocks in a list, with dropout and running statistics; counts how often they run."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.ReLU()) for _ in range(3)
        )
        self.head = nn.Linear(6, 3)
        self.runs = 0
        for block in self.blocks:
            block[0].register_forward_hook(self._count)

    def _count(self, *_: object) -> None:
        self.runs += 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


@pytest.mark.parametrize("precision", [None, "bf16-mixed", "float64"])
@pytest.mark.parametrize("remat", ["blocks", "blocks.[01]"])
def test_what_is_computed_again_gives_the_same_numbers(remat: str, precision: str | None) -> None:
    kept, again = Blocks(), Blocks()
    expected, _ = train(graph(kept, data()), data(), epochs=2, precision=precision)
    network = graph(again, data(), remat=remat)
    heard, _ = train(network, data(), epochs=2, precision=precision)
    assert heard.losses == expected.losses
    for mine, theirs in zip(again.state_dict().values(), kept.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    assert again.runs > kept.runs
    assert all("forward" not in vars(block) for block in again.blocks)


class Centred(nn.Module):
    """Computes with a running mean that it replaces, and one that it writes to; both are changed before their use."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))  # keeps vectors that each call improves
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            self.scale.mul_(0.9)
        result: torch.Tensor = self.layer(x - self.mean) * self.scale.clone()
        return result


@pytest.mark.parametrize("precision", [None, "float64"])
def test_what_is_computed_again_begins_with_the_buffers_of_the_first_time(precision: str | None) -> None:
    def model() -> nn.Sequential:
        torch.manual_seed(0)
        blocks = nn.Sequential(*(nn.Sequential(Centred(), nn.Tanh()) for _ in range(3)))
        return nn.Sequential(blocks, nn.Linear(6, 3))

    kept, again = model(), model()
    losses = [
        train(graph(each, data(), remat=remat), data(), epochs=2, precision=precision)[0].losses
        for each, remat in ((kept, None), (again, "0.*"))
    ]
    assert losses[0] == losses[1]
    plain = model()
    np.testing.assert_allclose(train(graph(plain, data()), data(), epochs=2)[0].losses, losses[0], rtol=1e-5)
    torch.testing.assert_close(again.state_dict(), plain.state_dict(), rtol=1e-3, atol=1e-5)
    for mine, theirs in zip(again.state_dict().values(), kept.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


class Cached(nn.Module):
    """Computes its second half once, as attention does that keeps keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.kept = nn.Linear(6, 6), nn.Linear(6, 6), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.second(x) if self.kept is None else self.kept
        self.kept = kept
        return self.first(x) * kept


def test_a_block_that_keeps_values_for_its_next_call_cannot_be_computed_again() -> None:
    torch.manual_seed(0)
    network = graph(nn.Sequential(Cached(), nn.Linear(6, 3)), data(), remat="0")
    with pytest.raises(FrameworkError, match=r"values recomputed in the backward pass differ .*or leave remat out"):
        train(network, data())


def test_a_plain_sequence_is_cut_into_parts() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(6, 6), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(6, 3))
    network = graph(model, data(), remat="blocks")
    plan = aa.Experiment("e", network).plan(
        aa.TrainPhase("t", data=data(), losses=[aa.AppliedLoss("cross_entropy", on="net")])
    )
    assert plan["net"].recomputed == ("0-2", "3-5", "6-8")
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        train(network, data())
        n_again, saved[:] = sum(saved), []
        train(graph(model, data()), data())
    assert n_again < sum(saved)


def test_a_model_without_such_parts_is_refused() -> None:
    rows = data()
    with pytest.raises(CapabilityError, match="remat='blocks', but torch finds no such parts in a Linear"):
        train(graph(nn.Linear(6, 3), rows, remat="blocks"), rows)


def test_convolutions_in_tf32_by_default_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    note = TorchBackend().required(ComputesPrecision).float32_note
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Conv1d(3, 2, 1)), torch.nn.Flatten())
    assert "torch computes convolutions of float32 in TF32 on gpu:1 by default" in note(model, aa.Device("gpu", 1))
    assert note(model, aa.Device("cpu")) == "" == note(torch.nn.Linear(3, 1), aa.Device("gpu"))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert note(model, aa.Device("gpu")) == ""
