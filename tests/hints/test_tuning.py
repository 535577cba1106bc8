"""Hints of the packages for Optuna and Ray Tune."""

from __future__ import annotations

from typing import Any

import pytest


def test_trials_of_optuna(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    optuna = pytest.importorskip("optuna")
    callback = pytest.importorskip("anyaccel_optuna").AnyaccelPruningCallback
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with hint("pass the argument of the objective: def objective(trial)"):
        callback(3)

    def objective(trial: Any) -> float:
        assert callback(trial).trial is trial
        return 0.0

    optuna.create_study().optimize(objective, n_trials=1)
    with hint("leave the callback out, or create the study with direction='minimize'"):
        callback(optuna.create_study(directions=["minimize", "minimize"]).ask())
    assert callback(optuna.create_study(direction="minimize").ask())
    with hint("create the study with direction={}, or monitor the value that the objective returns"):
        callback(optuna.create_study().ask(), "val_accuracy")
    assert callback(optuna.create_study(direction="maximize").ask(), "val_accuracy")

    class TorchDistributedTrial(optuna.trial.BaseTrial):  # as that of optuna-integration, which is not installed
        """Pass everything on to the trial of the first process."""

        def __init__(self, trial: Any) -> None:
            self.report, self.should_prune = trial.report, trial.should_prune

    monkeypatch.setattr(TorchDistributedTrial, "__abstractmethods__", frozenset())
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}.items():
        monkeypatch.setenv(name, str(value))
    trial = optuna.create_study().ask()
    with hint("let the first process decide: optuna_integration.TorchDistributedTrial(trial)"):
        callback(trial)
    assert callback(TorchDistributedTrial(trial))


def test_metrics_of_ray_tune(hint: Any) -> None:
    pytest.importorskip("ray")
    callback = pytest.importorskip("anyaccel_ray").TuneReportCallback
    with hint("write metrics=['val_loss'], or leave it out to report all values"):
        callback(metrics=3)
    assert callback(metrics=["val_loss"]).metrics == {"val_loss": "val_loss"}
    assert callback().metrics is None
