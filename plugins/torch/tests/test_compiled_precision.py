"""Compiled steps with a loss scale, and of nodes cast as a whole, run as plain Python: their numbers, and what is read.

That torch compiles them is tested in test_precision.py and by the kit.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import anyaccel as aa
from anyaccel.specs import Schedule
from anyaccel_torch.compiling import steps, strategies, toolchain_check

N, BATCH = 96, 8


@pytest.fixture(autouse=True)
def as_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four steps a call."""
    monkeypatch.setattr(strategies, "torch_compile", lambda function, options: function)
    monkeypatch.setattr(strategies, "_CACHE", OrderedDict())
    monkeypatch.setattr(toolchain_check, "check", lambda: None)
    monkeypatch.setattr(toolchain_check, "scan", lambda: None)
    monkeypatch.setattr(steps, "_MUCH_SLOWER", math.inf)
    monkeypatch.setattr(steps, "_SLOWER", math.inf)


class Tied(nn.Module):
    """One layer in two places, and a norm with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.norm, self.again, self.last = nn.BatchNorm1d(6), self.first, nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.again(torch.tanh(self.norm(self.first(x)))))
        return y


def trained(compile: str, *, spoiled: tuple[int, ...] = (), **settings: Any) -> dict[str, Any]:
    """Values, what was told, and where optimizer and loss scale stand after some epochs."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(N, 6)).astype("float32"), random.integers(0, 3, N)
    x[list(spoiled)] = 1e6
    rows = aa.FeatureSet.from_dict("d", {"x": x, "y": y}, ["x"], ["y"])
    schedule = Schedule("cosine", steps=40, warmup=5)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)) if spoiled else Tied()
    optimizer = aa.Optimizer("adam", lr=0.05, clip_norm=0.2, schedule=schedule)
    graph = aa.ModelGraph([aa.ModelNode("net", model, rows.reference())], optimizer)
    losses, scales = [aa.AppliedLoss("cross_entropy", on="net")], []

    class Watch(aa.Callback):
        def epoch_end(self, run: Any) -> None:
            scales.append(run.loss_scale)

    given = {"sampler": aa.SimpleSampler(BATCH), "epochs": 3, "on_nan": "ignore", "callbacks": [Watch()], **settings}
    results = graph.run(aa.TrainPhase("train", data=rows, losses=losses, compile=compile, **given))
    told = [event.message for event in results.events if event.kind in ("compile", "precision")]
    assert any("steps compiled" in message for message in told) is (compile == "steps"), told
    return {
        "values": [tensor.detach().clone() for tensor in model.state_dict().values()],
        "steps": graph.optimizer_states["net"].step,
        "scales": scales,
        "skipped": [message for message in told if "skipped" in message],
        "losses": [epoch.loss for epoch in results.epochs],
    }


def check_equal(compiled: dict[str, Any], plain: dict[str, Any], tolerance: float) -> None:
    for name in ("steps", "scales", "skipped"):
        assert compiled[name] == plain[name], name
    np.testing.assert_allclose(compiled["losses"], plain["losses"], rtol=tolerance)
    for one, other in zip(compiled["values"], plain["values"], strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_that_are_not_finite_are_skipped_as_in_uncompiled_ones(accumulate: int) -> None:
    """Within a call, first of a call, and two in a row; rates and Adam's corrections are those of the steps done."""
    scale = aa.LossScale(initial=2.0**12, growth_interval=3)
    settings = {"precision": "fp16-mixed", "loss_scale": scale, "accumulate": accumulate}
    spoiled = (2 * BATCH, 4 * BATCH + 1, 5 * BATCH) if accumulate == 1 else (2 * BATCH, 4 * BATCH)
    compiled, plain = (trained(way, spoiled=spoiled, **settings) for way in ("steps", "off"))
    assert plain["steps"] == 3 * (N // BATCH // accumulate - len(spoiled))
    assert plain["scales"][0].skipped == len(spoiled) and plain["scales"][1].scale != plain["scales"][0].scale
    check_equal(compiled, plain, 1e-3)


@pytest.mark.parametrize(("precision", "tolerance"), [(None, 1e-4), ("float64", 1e-4), ("bf16", 2e-2)])
def test_a_layer_in_two_places_has_the_numbers_of_uncompiled_steps(precision: str | None, tolerance: float) -> None:
    """Beside running statistics; and where all of the node is cast."""
    check_equal(trained("steps", precision=precision), trained("off", precision=precision), tolerance)


def test_a_step_of_scaled_losses_reads_nothing() -> None:
    """The host asks once for all steps of a call of many, where uncompiled steps ask each."""

    class Reads(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += str(function) == "aten._local_scalar_dense.default"
            return function(*args, **(kwargs or {}))

    counts = []
    for epochs in (1, 2):
        with Reads() as reads:
            trained("steps", spoiled=(2 * BATCH,), precision="fp16-mixed", epochs=epochs)
        counts.append(reads.count)
    assert counts[1] - counts[0] < N // BATCH // 2
