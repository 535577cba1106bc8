"""Compiled steps of nodes with `remat`, beside uncompiled ones, and what torch's allocator gives out in each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anyaccel as aa
from anyaccel.errors import CompileWarning
from anyaccel_torch.compiling import steps, strategies

pytest.importorskip("torch._dynamo")
ROWS, WIDTH = 64, 32
X = np.random.default_rng(0).normal(size=(4 * ROWS, WIDTH)).astype("float32")


def model(n_blocks: int = 3) -> nn.Sequential:
    torch.manual_seed(0)

    def block() -> nn.Sequential:
        first, last = nn.Linear(WIDTH, 8 * WIDTH), nn.Linear(8 * WIDTH, WIDTH)
        return nn.Sequential(first, nn.BatchNorm1d(8 * WIDTH), nn.ReLU(inplace=True), nn.Dropout(0.2), last)

    return nn.Sequential(*(block() for _ in range(n_blocks)), nn.Linear(WIDTH, 1))


class Peaks(aa.Callback):
    """The most bytes that torch's allocator has given out in an epoch, beyond those at its beginning."""

    def __init__(self) -> None:
        self.bytes: list[int] = []

    def epoch_start(self, run: Any) -> None:
        self.profile = torch.profiler.profile(profile_memory=True)
        self.profile.start()

    def epoch_end(self, run: Any) -> None:
        self.profile.stop()
        events = self.profile.profiler.kineto_results.events()  # type: ignore[union-attr]
        sizes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
        self.bytes.append(int(np.cumsum([nbytes for _, nbytes in sorted(sizes, key=lambda each: each[0])]).max()))


def train(net: nn.Module, remat: str | None, compile_: str, epochs: int = 3, **settings: Any) -> tuple[Any, Peaks]:
    data = aa.FeatureSet.from_dict("d", {"x": X, "y": X[:, :1] * X[:, 1:2]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference(), remat=remat)], "momentum", seed=1)
    losses, peaks = [aa.AppliedLoss("mse", on="net")], Peaks()
    phase = aa.TrainPhase(
        *("t",),
        data="all",
        losses=losses,
        batch_size=ROWS,
        epochs=epochs,
        compile=compile_,
        callbacks=[peaks],
        **settings,
    )
    return aa.Experiment("e", graph, progress="none").run_phase(phase), peaks


@pytest.fixture
def is_supported() -> None:
    if not strategies.recomputes_in_graphs():
        pytest.skip("this torch does not compute again in graphs that have forward and backward pass")


@pytest.mark.whole
@pytest.mark.usefixtures("is_supported")
def test_compiled_steps_give_the_same_numbers() -> None:
    """Dropout draws the same numbers, and running statistics change once."""
    plain, again = model(2), model(2)
    expected, _ = train(plain, None, "off")
    compiled, _ = train(again, "blocks", "steps")
    assert any("steps compiled" in event.message for event in compiled.events)
    np.testing.assert_allclose(compiled.loss, expected.loss, rtol=1e-5)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(dict(again.named_buffers())[name], buffer, rtol=1e-4, atol=1e-6)
    assert all("forward" not in vars(module) for module in again.modules())


@pytest.mark.whole
@pytest.mark.usefixtures("is_supported")
def test_compiled_steps_keep_as_little() -> None:
    (_, without), (_, peaks) = train(model(), None, "steps"), train(model(), "blocks", "steps")
    (activations,) = aa.Experiment("e", _graph(model())).plan(_phase()).activations
    saved = without.bytes[-1] - peaks.bytes[-1]
    # dropout's results are kept in compiled steps, and a block that is computed again needs all of its own at once
    assert saved > 0.3 * activations.saved > 0  # type: ignore[operator]


def _graph(net: nn.Module) -> aa.ModelGraph:
    data = aa.FeatureSet.from_dict("d", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    return aa.ModelGraph([aa.ModelNode("net", net, data.reference(), remat="blocks")], "adam")


def _phase() -> aa.TrainPhase:
    return aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")], batch_size=ROWS)


@pytest.mark.filterwarnings("ignore:phase 't' accumulates batches, and the buffer:UserWarning")
def test_what_cannot_be_compiled_runs_uncompiled_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = train(model(), None, "off", accumulate=2)
    with pytest.warns(CompileWarning, match=r"steps in micro-batches with recomputed values \(remat\)"):
        results, _ = train(model(), "blocks", "steps", accumulate=2)
    assert list(results.loss) == list(expected.loss)
    monkeypatch.setattr(steps.strategies, "recomputes_in_graphs", lambda: False)
    with pytest.warns(CompileWarning, match=rf"steps with torch {torch.__version__[:4]}.* recomputed values \(remat\)"):
        train(model(), "blocks", "steps", epochs=1)


class Writing(nn.Module):
    """Writes to a buffer with which it computes, which torch's compiler does not trace in a block."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).tanh()


@pytest.mark.usefixtures("is_supported")
def test_a_block_that_cannot_be_traced_runs_uncompiled() -> None:
    def net() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Sequential(*(Writing() for _ in range(3))), nn.Linear(WIDTH, 1))

    expected, _ = train(net(), None, "off", epochs=1)
    with pytest.warns(CompileWarning, match="steps run uncompiled: steps of segment 'torch:0' cannot be traced"):
        results, _ = train(net(), "blocks", "steps", epochs=1)
    assert list(results.loss) == list(expected.loss)
