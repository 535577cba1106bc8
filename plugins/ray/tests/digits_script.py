"""The example of docs/how-to/scale-out.md, with the losses written to a file; knows nothing of Ray.

Arguments: the file, and which framework: "torch" by default.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyaccel as aa
from anyaccel.data import digits
from anyaccel_distributed import is_main_process, join

FRAMEWORK = sys.argv[2] if len(sys.argv) > 2 else "torch"
if FRAMEWORK != "torch":
    join(FRAMEWORK)


def model_of() -> Any:
    """A perceptron of 32 units, with the same values in every process."""
    if FRAMEWORK == "jax":
        from anyaccel_jax import SequentialMLP

        return SequentialMLP((10,), hidden_dim=32)
    if FRAMEWORK == "tensorflow":
        os.environ.update({"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"})
        from anyaccel_tensorflow import SequentialMLP as TensorFlowMLP

        return TensorFlowMLP((10,), hidden_dim=32)
    import torch

    torch.manual_seed(0)
    flat = torch.nn.Flatten()
    return torch.nn.Sequential(flat, torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


data = digits()
data.split_random({"train": 0.8, "test": 0.2}, seed=0)
graph = aa.ModelGraph([aa.ModelNode("net", model_of(), data.reference("pixels"))], aa.Optimizer("adam", lr=0.01))
losses = [aa.AppliedLoss("cross_entropy", on="net")]
phase = aa.TrainPhase("train", data="train", losses=losses, batch_size=96, epochs=3, validation="test")
results = aa.Experiment(graph).run_phase(phase)
if is_main_process():
    epochs = [[epoch.loss, epoch.validation["loss"]] for epoch in results.epochs]
    Path(sys.argv[1]).write_text(json.dumps({"epochs": epochs, "folder": str(Path.cwd())}))
