"""Trains with checkpoints and resumes from the newest; a replica kills itself, raises or waits once, by the plan."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import anyaccel as aa
from anyaccel_distributed import launched

OUT, PLAN = Path(sys.argv[1]), json.loads(sys.argv[2])
PLACE = launched()
RANK, SIZE = (0, 1) if PLACE is None else (PLACE.rank, PLACE.size)


class Disturbed(aa.Callback):
    """Does what the plan says at a step of the run, once."""

    def epoch_start(self, run: Any) -> None:
        self.before = sum(epoch.steps for epoch in run.history)

    def step_end(self, run: Any) -> None:
        if PLAN.get("rank") != RANK or self.before + run.step != PLAN["step"] or (OUT / "done").exists():
            return
        (OUT / "done").write_text(str(SIZE))
        if PLAN["do"] == "wait":
            while not (OUT / "gone").exists():
                time.sleep(0.05)
            return
        if PLAN["do"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("a fault of one replica")


rng = np.random.default_rng(0)
x = rng.normal(size=(1010, 20)).astype(np.float32)
rows = aa.FeatureSet.from_dict("data", {"x": x, "y": np.tanh(x[:, :3])}, features=["x"], target=["y"])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))
graph = aa.ModelGraph([aa.ModelNode("net", model, rows.reference())], aa.Optimizer("adam", lr=1e-2))
phase = aa.TrainPhase(
    "train",
    data=rows,
    losses=[aa.AppliedLoss("mse", on="net")],
    batch_size=96,
    epochs=4,
    checkpoint=aa.Checkpoint(OUT / "checkpoints", every=4, wait=True),
    callbacks=[Disturbed()],
)
results = aa.Experiment(graph).run_phase(phase, resume="auto")
if RANK == 0:
    weights = [parameter.detach().numpy().tolist() for parameter in model.parameters()]
    events = [event.message for event in results.events if event.kind == "checkpoint"]
    told = {"size": SIZE, "losses": [epoch.loss for epoch in results.epochs], "weights": weights, "events": events}
    (OUT / "told.json").write_text(json.dumps(told))
