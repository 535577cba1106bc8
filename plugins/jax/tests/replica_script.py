"""Trains with JAX in as many processes as a launcher made; each writes what it found to a folder.

Arguments: the folder, and what to do, or several with commas between. One process has two virtual CPUs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # also where there is a GPU, which two processes cannot share

import jax
import numpy as np
from flax import nnx

import anyaccel as aa
from anyaccel.errors import FrameworkError
from anyaccel.replicas import is_main_process, join
from anyaccel_jax import SequentialMLP

PLACE = join("jax")
if PLACE is None:
    jax.config.update("jax_num_cpu_devices", 2)
FULL = os.environ.get("ANYACCEL_TEST_FULL") == "1"
RANK = 0 if PLACE is None else PLACE.rank
OUT = Path(sys.argv[1])


class Net(nnx.Module):
    """JAX starts as it is made."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first, self.last = nnx.Linear(5, 16, rngs=rngs), nnx.Linear(16, 1, rngs=rngs)
        self.drop = nnx.Dropout(0.3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(self.drop(nnx.relu(self.first(x))))


def data() -> aa.FeatureSet:
    x = np.random.default_rng(0).normal(size=(107, 5)).astype(np.float32)
    y = (2 * x[:, :1] + np.sin(x[:, 1:2])).astype(np.float32)
    return aa.FeatureSet.from_dict("d", {"x": x, "y": y, "w": np.maximum(x[:, 2] - 0.5, 0)}, ["x"], ["y"], ["w"])


def tell(name: str, **values: Any) -> None:
    (OUT / f"{name}-{RANK}.json").write_text(json.dumps(values))


def trained(name: str, model: Any = None, **settings: Any) -> None:
    """Steps over shuffled rows with a ragged last batch, and a validation with a metric."""
    rows = data()
    node = aa.ModelNode("net", model or SequentialMLP((1,)), rows.reference())
    graph = aa.ModelGraph([node], aa.Optimizer("adam", lr=0.01, clip_norm=1.0), seed=3)
    loss = aa.AppliedLoss("mse", "net", ["outputs", "d.y"])
    judged = aa.EvalPhase("v", data=rows, batch_size=20, metrics=[aa.Metric("mae", targets="d.y")])
    given = {"sampler": aa.SimpleSampler(16, shuffle=True), "n_epochs": 1, "losses": [loss], "validation": judged}
    phase = aa.TrainPhase("train", data=rows, **{**given, **settings})
    experiment = aa.Experiment(graph, progress="none")
    results = experiment.run_phase(phase, resume="auto" if "checkpoint" in settings else "never")
    epochs = [[epoch.loss, epoch.validation["loss"], epoch.validation["mae"]] for epoch in results.epochs]
    outputs: list[Any] = []
    if FULL:
        parts = aa.EvalPhase("e", data=rows, losses=[loss], batch_size=20, replicas=None)
        outputs = experiment.run_phase(parts).prediction("net").tolist()
    state = {key: np.asarray(value).tobytes().hex() for key, value in graph.state().items()}
    tell(name, epochs=epochs, outputs=outputs, state=state)


def plain() -> None:
    trained("plain", n_epochs=15 if FULL else 2)


def accumulated() -> None:
    trained("accumulated", accumulate=3)


def weighed() -> None:
    """Most rows weigh nothing, in some steps all of a replica."""
    trained("weighed", n_epochs=2, losses=[aa.AppliedLoss("mse", "net", ["outputs", "d.y"], sample_weight="d.w")])


def fixed() -> None:
    """Equal to the last bit: dropout, and losses that weigh rows."""
    loss = aa.AppliedLoss("mse", "net", ["outputs", "d.y"], sample_weight="d.w")
    one = {} if PLACE else {"accelerator": "cpu", "replicas": 2}
    trained("fixed", Net() if FULL else None, deterministic=True, losses=[loss], **one)


class Fails(aa.Callback):
    """Fails in the last replica, in the middle of an epoch."""

    def step_end(self, run: Any) -> None:
        if not is_main_process() and run.epoch == 1 and run.step == 1:
            raise ValueError("a fault of one replica")


def fail() -> None:
    """One replica raises; the other is waiting for its gradients."""
    began = time.monotonic()
    try:
        trained("never", n_epochs=500, callbacks=[Fails()])
    except FrameworkError as error:
        tell("fail", message=str(error), seconds=time.monotonic() - began)
        raise


class Killed(aa.Callback):
    """Kills its process at a step of the whole run, if the plan names it, and nobody was killed before."""

    def __init__(self) -> None:
        plan = OUT / "kill.json"
        self.rank, self.at, self.by = json.loads(plan.read_text()) if plan.exists() else (None, -1, 0)
        self.done = 0

    def epoch_start(self, run: Any) -> None:
        self.done = sum(epoch.steps for epoch in run.history)

    def step_end(self, run: Any) -> None:
        mark = OUT / "killed"
        if self.rank == RANK and self.done + run.step == self.at and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), self.by)


def resumed() -> None:
    """Goes on from the newest checkpoint."""
    kept = aa.Checkpoint(OUT / "checkpoints", every=2, wait=True)
    try:
        trained("resumed", n_epochs=5, checkpoint=kept, callbacks=[Killed()])
    except FrameworkError as error:
        tell("lost", message=str(error))
        raise


if __name__ == "__main__":
    ways = {each.__name__: each for each in (plain, weighed, accumulated, fixed, fail, resumed)}
    for way in sys.argv[2].split(","):
        ways[way]()
