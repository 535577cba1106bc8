"""Phases in a process that really runs out of memory: `real_out_of_memory.py FRAMEWORK WIDTH SCENARIO=MIB`.

Each phase is run twice over equal graphs: with all the memory there is, and with `MIB` MiB more address space than the
process has when the second epoch (or the evaluation) begins. `WIDTH` is that of the model. Prints a JSON object.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import anyaccel as aa
from anyaccel.errors import AnyaccelError
from anyaccel.registry import registry

ROWS, BATCH = 4096, 2048
FRAMEWORK, WIDTH = sys.argv[1], int(sys.argv[2])


def graph() -> aa.ModelGraph:
    x = np.random.default_rng(0).normal(size=(ROWS, 8)).astype(np.float32)
    features = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1] * 2}, ["x"], ["y"])
    features.add_splits({"train": np.arange(ROWS)})
    mlp: Any = registry().computing(FRAMEWORK).models()["SequentialMLP"]
    model = mlp(output_shape=(1,), n_layers=2, hidden_dim=WIDTH, activation="tanh")
    return aa.ModelGraph([aa.ModelNode("net", model, features.reference(["x"], ["y"]))], aa.Optimizer("adam", lr=1e-4))


class Limit(aa.Callback):
    """Limits the memory before the second epoch, or before an evaluation."""

    def __init__(self, mib: int) -> None:
        self.mib = mib

    def after_loading(self, phase: Any, run: aa.Run) -> None:
        if isinstance(phase, aa.EvalPhase):
            self._limit()

    def epoch_start(self, run: aa.Run) -> None:
        if run.epoch == 1:
            self._limit()

    def _limit(self) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (settled_bytes() + self.mib * 2**20, resource.RLIM_INFINITY))


def settled_bytes(seconds: float = 0.5) -> int:
    """The address space that is in use once it has not shrunk for so long.

    JAX gives back what a step took in a thread of its own, some time after the results of the step are there.
    """
    lowest, seen_at = address_space(), time.monotonic()
    while time.monotonic() - seen_at < seconds:
        time.sleep(0.01)
        if (now := address_space()) < lowest:
            lowest, seen_at = now, time.monotonic()
    return lowest


def address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def train(*callbacks: aa.Callback, **settings: Any) -> aa.TrainPhase:
    sampler = aa.SimpleSampler(BATCH, shuffle=True, seed=1)
    settings = {"losses": aa.AppliedLoss("mse", on="net"), "epochs": 2, **settings}
    return aa.TrainPhase("t", data="train", sampler=sampler, callbacks=callbacks, **settings)


def run(graph: aa.ModelGraph, phase: Any) -> tuple[Any, dict[str, Any]]:
    """The result, and what is known of the run."""
    experiment, result, error = aa.Experiment("e", graph, progress="none"), None, ""
    try:
        result = experiment.run_phase(phase)
    except AnyaccelError as failure:
        error = " ".join([f"{type(failure).__name__}: {failure}", *getattr(failure, "__notes__", ())])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    measures = [event.message.rpartition("; ")[2] for event in experiment.last_run.events if event.kind == "memory"]
    return result, {
        "error": error,
        "measures": measures,
        "losses": [epoch.loss for epoch in getattr(experiment.last_run, "epochs", ())],
    }


def difference(first: aa.ModelGraph, second: aa.ModelGraph) -> float:
    """The largest between two states."""
    one, other = first.state(), second.state()
    floating = [name for name, array in one.items() if array.dtype.kind == "f"]
    return max(float(np.abs(one[name] - other[name]).max()) for name in floating)


def training(limit: Limit) -> dict[str, Any]:
    """Training that recovers, compared with training that had enough memory."""
    plain, limited = graph(), graph()
    _, expected = run(plain, train())
    _, report = run(limited, train(limit))
    return {**report, "expected": expected["losses"], "difference": difference(plain, limited)}


def ending(limit: Limit) -> dict[str, Any]:
    """Training that may not take smaller steps, as its loss is unknown, compared with its first epoch."""
    plain, limited = graph(), graph()
    loss = aa.AppliedLoss(custom_loss, on="net")
    run(plain, train(epochs=1, losses=loss))
    _, report = run(limited, train(limit, losses=loss, residency="resident"))
    return {**report, "difference": difference(plain, limited)}


def custom_loss(outputs: Any, targets: Any) -> Any:
    error = outputs - targets
    if FRAMEWORK == "numpy":
        return (error**2).sum(), len(error), (2 * error, None)
    if FRAMEWORK == "tensorflow":
        import tensorflow as tf

        return tf.reduce_mean(error**2)
    return (error**2).mean()


def evaluation(limit: Limit) -> dict[str, Any]:
    """An evaluation that recovers, compared with one that had enough memory."""

    def phase(*callbacks: aa.Callback) -> aa.EvalPhase:
        loss = aa.AppliedLoss("mse", on="net")
        return aa.EvalPhase(
            "p", data="train", losses=loss, outputs="net", batch_size=BATCH, callbacks=callbacks, residency="resident"
        )

    made = graph()
    plain, _ = run(made, phase())
    limited, report = run(made, phase(limit))
    far = np.abs(plain.prediction("net") - limited.prediction("net")).max() if limited else np.nan
    return {**report, "difference": float(far)}


if __name__ == "__main__":
    scenario, _, mib = sys.argv[3].partition("=")
    print(json.dumps({"training": training, "ending": ending, "evaluation": evaluation}[scenario](Limit(int(mib)))))
