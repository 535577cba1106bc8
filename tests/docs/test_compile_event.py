"""The events of compilation that docs/how-to/the-loop.md shows: one of them is what torch logs on this machine."""

import re
from pathlib import Path

import numpy as np
import pytest

import anyaccel as aa

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "the-loop.md"


def test_the_page_shows_why_two_epochs_of_torch_are_not_compiled() -> None:
    torch = pytest.importorskip("torch")
    shown = re.findall(r"^compile: steps are not compiled: .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(shown) == 2
    x = np.random.default_rng(0).standard_normal((32_000, 16)).astype("float32")
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1] - 2 * x[:, 1:2]}, ["x"], ["y"])
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference())], aa.Optimizer("adam", lr=1e-2))
    phase = aa.TrainPhase(
        "t",
        data="all",
        sampler=aa.SimpleSampler(128, shuffle=True),
        epochs=2,
        losses=[aa.AppliedLoss("mse", on="net")],
        accelerator="cpu",
    )
    result = aa.Experiment("loop", graph, progress="none").run_phase(phase)
    (event,) = (event for event in result.events if event.kind == "compile")
    # The time of a step decides which; where steps stay, the number of timed steps and of the last one are the same.
    numbers = re.compile(r"[0-9.]+ (?:us|ms|s)\b")
    assert numbers.sub("TIME", str(event)) in [numbers.sub("TIME", line) for line in shown]
