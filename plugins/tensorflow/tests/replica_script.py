"""Trains with TensorFlow in as many processes as a launcher made; each writes what it found to a folder.

Arguments: the folder, and what to do, or several with commas between. What one process tells, the tests find in their
own, which has several logical CPUs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import keras
import numpy as np

import anyaccel as aa
from anyaccel.errors import AnyaccelError
from anyaccel_distributed import join

PLACE = join("tensorflow") if __name__ == "__main__" else None
RANK = 0 if PLACE is None else PLACE.rank
OUT = Path(sys.argv[1]) if __name__ == "__main__" else Path()
FULL = os.environ.get("ANYACCEL_TEST_FULL") == "1"


def data() -> aa.FeatureSet:
    x = np.random.default_rng(0).normal(size=(107, 5)).astype(np.float32)
    y = (2 * x[:, :1] + np.sin(x[:, 1:2])).astype(np.float32)
    return aa.FeatureSet.from_dict(
        "d", {"x": x, "y": y, "w": np.abs(x[:, 2]), "v": np.maximum(x[:, 2] - 1, 0)}, ["x"], ["y"], ["w", "v"]
    )


def model_of() -> keras.Model:
    keras.utils.set_random_seed(0)
    hidden = keras.layers.Dense(16, activation="relu")
    return keras.Sequential([keras.Input((5,)), hidden, keras.layers.Dense(1)])


def tell(name: str, **values: Any) -> None:
    (OUT / f"{name}-{RANK}.json").write_text(json.dumps(values))


def found(model: Any = None, **settings: Any) -> dict[str, Any]:
    """Steps over shuffled rows with a ragged last batch, a validation with a metric, and outputs of an evaluation."""
    rows = data()
    node = aa.ModelNode("net", model or model_of(), rows.reference())
    graph = aa.ModelGraph([node], aa.Optimizer("adam", lr=0.01, clip_norm=1.0), seed=3)
    loss = aa.AppliedLoss("mse", "net", ["outputs", "d.y"])
    judged = aa.EvalPhase("v", data=rows, batch_size=20, metrics=[aa.Metric("mae", targets="d.y")])
    given = {"sampler": aa.SimpleSampler(16, shuffle=True), "epochs": 1, "losses": [loss], "validation": judged}
    phase = aa.TrainPhase("train", data=rows, **{**given, **settings})
    experiment = aa.Experiment(graph, progress="none")
    results = experiment.run_phase(phase, resume="auto" if "checkpoint" in settings else "never")
    epochs = [[epoch.loss, epoch.validation["loss"], epoch.validation["mae"]] for epoch in results.epochs]
    parts = aa.EvalPhase("e", data=rows, losses=[loss], batch_size=20, replicas=None)
    outputs = experiment.run_phase(parts).prediction("net").tolist()
    state = {key: np.asarray(value).tobytes().hex() for key, value in graph.state().items()}
    steps = sum(epoch.steps for epoch in results.epochs)
    return {"epochs": epochs, "outputs": outputs, "state": state, "steps": steps}


def plain() -> dict[str, Any]:
    """105 steps of Adam where everything is tested."""
    return found(epochs=15 if FULL else 2)


def accumulated() -> dict[str, Any]:
    """Steps of three batches."""
    return found(accumulate=3)


def weighed() -> dict[str, Any]:
    """Losses that weigh rows, of which many have no weight."""
    loss = aa.AppliedLoss("mse", "net", ["outputs", "d.y"], sample_weight="d.v")
    return found(losses=[loss], epochs=2)


def fixed() -> dict[str, Any]:
    """Equal to the last bit: dropout, and losses that weigh rows."""
    loss = aa.AppliedLoss("mse", "net", ["outputs", "d.y"], sample_weight="d.w")
    one = {} if PLACE else {"accelerator": "cpu", "replicas": 2}
    model = model_of()
    model = keras.Sequential([keras.Input((5,)), *model.layers[:1], keras.layers.Dropout(0.3, seed=1), model.layers[1]])
    return found(model, deterministic=True, losses=[loss], **one)


class Killed(aa.Callback):
    """Does what the plan says at a step of the whole run, once: kills its process, or raises."""

    def __init__(self) -> None:
        plan = OUT / "kill.json"
        self.rank, self.at, self.by = json.loads(plan.read_text()) if plan.exists() else (None, -1, 0)
        self.done = 0

    def epoch_start(self, run: Any) -> None:
        self.done = sum(epoch.steps for epoch in run.history)

    def step_end(self, run: Any) -> None:
        mark = OUT / "killed"
        if self.rank != RANK or self.done + run.step != self.at or mark.exists():
            return
        mark.touch()
        if not self.by:
            raise ValueError("a fault of one replica")
        os.kill(os.getpid(), signal.Signals(self.by))


def resumed() -> dict[str, Any]:
    """Goes on from the newest checkpoint."""
    kept = aa.Checkpoint(OUT / "checkpoints", every=2, wait=True)
    try:
        return found(epochs=5, checkpoint=kept, callbacks=[Killed()])
    except AnyaccelError as error:
        tell("lost", message=str(error))
        raise


if __name__ == "__main__":
    ways = {each.__name__: each for each in (plain, weighed, accumulated, fixed, resumed)}
    for way in sys.argv[2].split(","):
        tell(way, **ways[way]())
