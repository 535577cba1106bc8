"""Runs trials of Ray Tune on a cluster of this machine, and writes what Tune knows of them as JSON.

Started as `tune_script.py FOLDER` by test_tune.py, whose runs without Ray use the same `run`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import anyaccel as aa

EPOCHS = 4


def data() -> aa.FeatureSet:
    x = np.random.default_rng(0).normal(size=(120, 4))
    made = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, 0] * x[:, 1]}, ["x"], ["y"])
    made.split_random({"train": 0.7, "val": 0.3}, seed=0)
    return made


def run(hidden_dim: int, callbacks: Any = (), checkpoint: str = "") -> tuple[aa.ModelGraph, Any]:
    """Train a graph, or continue from a checkpoint to the same number of epochs."""
    rows = data()
    net = aa.ModelNode("net", aa.SequentialMLP(hidden_dim=hidden_dim), rows.reference())
    graph = aa.ModelGraph([net], "adam", seed=0)
    if checkpoint:
        graph.load_state(aa.ModelGraph.load(checkpoint).state())
    phase = aa.TrainPhase(
        "train",
        data="train",
        losses=[aa.AppliedLoss("mse", on="net")],
        validation="val",
        epochs=EPOCHS - graph.progress.get("train", 0),
        callbacks=callbacks,
    )
    return graph, aa.Experiment("tune", graph, progress="none").run_phase(phase)


class Watch(aa.Callback):
    """Write how the run ended."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def phase_end(self, run: Any, error: BaseException | None) -> None:
        self.file.write_text(f"{len(run.history)} epochs, {type(error).__name__}")


def trial(config: dict[str, Any]) -> None:
    """Train, and fail after two epochs the first time if asked to."""
    from ray import tune

    from anyaccel_ray import TuneReportCallback

    class Failing(aa.Callback):
        def epoch_end(self, run: Any) -> None:
            if not checkpoint and run.epoch == 1:
                raise RuntimeError("the node is lost")

    checkpoint = tune.get_checkpoint()
    settings = {"metrics": config.get("metrics"), "save_checkpoints": config.get("save_checkpoints", True)}
    callbacks = [TuneReportCallback(**settings), Watch(Path(config["folder"], f"{config['name']}.txt"))]
    callbacks += [Failing()] if config.get("fails") else []
    if checkpoint is None:
        run(config["hidden_dim"], callbacks)
        return
    with checkpoint.as_directory() as folder:
        run(config["hidden_dim"], callbacks, folder)


def told(result: Any) -> dict[str, Any]:
    """What Tune knows of a trial."""
    frame = result.metrics_dataframe
    columns = [name for name in ("loss", "val_loss", "error") if name in frame]
    return {
        "error": repr(result.error) if result.error else None,
        "reported": {name: frame[name].tolist() for name in columns},
        "checkpoint": result.checkpoint.path if result.checkpoint else None,
    }


def main(folder: str) -> None:
    import ray
    from ray import tune

    ray.init(num_cpus=2, include_dashboard=False)
    trials = {
        "small": {"hidden_dim": 4},
        "large": {"hidden_dim": 16},
        "mapped": {"hidden_dim": 4, "metrics": {"error": "val_loss"}, "save_checkpoints": False},
        "failing": {"hidden_dim": 4, "fails": True},
    }
    space = tune.grid_search([{"folder": folder, "name": name, **config} for name, config in trials.items()])
    run_config = tune.RunConfig(
        storage_path=f"{folder}/results", verbose=0, failure_config=tune.FailureConfig(max_failures=1)
    )
    tuner = tune.Tuner(lambda config: trial(config["trial"]), param_space={"trial": space}, run_config=run_config)
    answer = {result.config["trial"]["name"]: told(result) for result in tuner.fit()}
    stopped = tune.Tuner(
        trial,
        param_space={"folder": folder, "name": "stopped", "hidden_dim": 4},
        run_config=tune.RunConfig(storage_path=f"{folder}/results", verbose=0, stop={"training_iteration": 2}),
    )
    answer["stopped"] = told(stopped.fit()[0])
    Path(folder, "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
