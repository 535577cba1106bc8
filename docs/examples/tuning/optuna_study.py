"""Search with Optuna in several processes, which share a study in a file.

Start it several times: `python optuna_study.py & python optuna_study.py & wait`.
"""

from __future__ import annotations

import numpy as np
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import anyaccel as aa
from anyaccel_optuna import AnyaccelPruningCallback

rng = np.random.default_rng(0)
x = rng.normal(size=(400, 6))
data = {"x": x, "y": np.sin(x[:, 0]) + x[:, 1]}


def objective(trial: optuna.Trial) -> float:
    lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    hidden_dim = trial.suggest_int("hidden_dim", 8, 128, log=True)
    fit = aa.fit(
        aa.SequentialMLP(hidden_dim=hidden_dim),
        data,
        target="y",
        loss="mse",
        validation=0.3,
        epochs=10,
        optimizer=aa.Optimizer("adam", lr=lr),
        callbacks=[AnyaccelPruningCallback(trial, "val_loss")],
        progress="none",
    )
    return min(fit.results.figure("val_loss"))


storage = JournalStorage(JournalFileBackend("study.log"))
study = optuna.create_study(
    study_name="waves",
    storage=storage,
    load_if_exists=True,
)
study.optimize(objective, n_trials=8)
print(len(study.trials), "trials so far, the best:", study.best_params)
