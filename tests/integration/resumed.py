"""A run from one recipe for all frameworks, broken off: `python -m integration.resumed torch sim:1 FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import anyaccel as aa
from anyaccel.registry import registry

EPOCHS, STEPS = 5, 10
AT = 14  # steps that are done when it is broken off, in its second epoch


class Steps(aa.Callback):
    """Keeps the loss of each step, and presses Ctrl-C after so many."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.at = 0

    def step_end(self, run: Any) -> None:
        """See `Callback`."""
        self.losses.append(run.step_losses()["net"])
        if len(self.losses) == self.at:
            raise KeyboardInterrupt


def graph(framework: str, device: str) -> aa.ModelGraph:
    """Two layers of the framework's own recipe, with AdamW and a schedule."""
    x = np.random.default_rng(0).normal(size=(STEPS * 16, 6)).astype("float32")
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": np.sin(x[:, :1])}, ["x"], ["y"])
    mlp: Any = registry().computing(framework).models()["SequentialMLP"]
    node = aa.ModelNode("net", mlp(n_layers=2, hidden_dim=16), data.reference(), accelerator=device)
    schedule = aa.Schedule("cosine", steps=EPOCHS * STEPS, final=0.1, warmup=5)
    return aa.ModelGraph([node], aa.Optimizer("adamw", lr=0.01, schedule=schedule), seed=3)


def train(framework: str, device: str, folder: Path | None = None, at: int = 0) -> tuple[list[float], Any]:
    """Losses of the steps, and the results; it goes on where the folder says, and is broken off after `at` steps."""
    steps = Steps()
    steps.at = at
    phase = aa.TrainPhase(
        "train",
        data="all",
        losses=[aa.AppliedLoss("mse")],
        batch_size=16,
        epochs=EPOCHS,
        callbacks=[steps],
        checkpoint=folder,
    )
    experiment = aa.Experiment(graph(framework, device), progress="none")
    try:
        return steps.losses, experiment.run_phase(phase, resume="auto" if folder else "never")
    except KeyboardInterrupt:
        return steps.losses, None


if __name__ == "__main__":
    whole, _ = train(sys.argv[1], sys.argv[2])
    train(sys.argv[1], sys.argv[2], Path(sys.argv[3]), AT)
    print(json.dumps(whole))
