"""Search a width and a learning rate with Ray Tune, and stop trials that are behind.

Started by `python ray_tune.py`, with anyaccel-ray installed.
"""

from __future__ import annotations

import numpy as np
from ray import tune

import anyaccel as aa
from anyaccel_ray import TuneReportCallback


def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6))
    return {"x": x, "y": np.sin(x[:, 0]) + x[:, 1]}


def train(config: dict) -> None:
    aa.fit(
        aa.SequentialMLP(hidden_dim=config["hidden_dim"]),
        table(),
        target="y",
        loss="mse",
        validation=0.3,
        epochs=8,
        optimizer=aa.Optimizer("adam", lr=config["lr"]),
        callbacks=[TuneReportCallback()],
        progress="none",
    )


if __name__ == "__main__":
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={
            "hidden_dim": tune.grid_search([16, 64]),
            "lr": tune.grid_search([1e-4, 1e-2]),
        },
        tune_config=tune.TuneConfig(
            metric="val_loss",
            mode="min",
            scheduler=tune.schedulers.ASHAScheduler(grace_period=2, max_t=8),
        ),
        run_config=tune.RunConfig(name="waves", verbose=0),
    )
    best = tuner.fit().get_best_result()
    print(best.config, round(best.metrics["val_loss"], 3))

    with best.checkpoint.as_directory() as folder:
        graph = aa.ModelGraph.load(folder)
    print(graph.progress)
