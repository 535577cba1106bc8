"""AnyaccelPruningCallback in studies of the real Optuna, in memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

optuna = pytest.importorskip("optuna")

import anyaccel as aa  # noqa: E402
from anyaccel.errors import PhaseError  # noqa: E402
from anyaccel_optuna import AnyaccelPruningCallback  # noqa: E402

X = np.random.default_rng(0).normal(size=(120, 4))
DATA = {"x": X, "y": X[:, 0] * X[:, 1]}
LAUNCHER = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


class PruneAt(optuna.pruners.BasePruner):
    """Prune every trial at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def prune(self, study: Any, trial: Any) -> bool:
        return trial.last_step == self.step


class Watch(aa.Callback):
    """Keep how the run ended, as a tracker sees it."""

    ended: Any = "not ended"

    def phase_end(self, run: Any, error: BaseException | None) -> None:
        self.ended, self.run = error, run


def experiment() -> tuple[aa.Experiment, Callable[..., aa.TrainPhase]]:
    data = aa.FeatureSet.from_dict("data", DATA, ["x"], ["y"])
    data.split_random({"train": 0.7, "val": 0.3}, seed=0)
    net = aa.ModelNode("net", aa.SequentialMLP(hidden_dim=8), data.reference())

    def phase(label: str, **settings: Any) -> aa.TrainPhase:
        defaults = {"data": "train", "losses": [aa.AppliedLoss("mse", on="net")], "epochs": 5, "validation": "val"}
        return aa.TrainPhase(label, **{**defaults, **settings})

    return aa.Experiment("search", aa.ModelGraph([net], "adam", seed=0), progress="none"), phase


def study_of(objective: Callable[[Any], float], n_trials: int = 1, **settings: Any) -> Any:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0), **settings)
    study.optimize(objective, n_trials=n_trials)
    return study


def test_a_pruned_run_closes_before_the_trial_ends(tmp_path: Path) -> None:
    before, after = Watch(), Watch()
    runner, phase = experiment()

    def objective(trial: Any) -> float:
        callbacks = [before, AnyaccelPruningCallback(trial), after]
        runner.run_phase(phase("train", callbacks=callbacks, checkpoint=aa.Checkpoint(tmp_path)))
        raise AssertionError("TrialPruned leaves run_phase")

    (trial,) = study_of(objective, pruner=PruneAt(2)).trials
    assert trial.state.name == "PRUNED"
    assert before.ended is None and after.ended is None
    assert after.run.stop_reason == "pruned by Optuna"
    losses = [epoch.figures["val_loss"] for epoch in after.run.history]
    assert list(trial.intermediate_values.items()) == list(enumerate(losses)) and len(losses) == 3
    assert [path.name for path in tmp_path.glob("epoch-000003*")]
    assert aa.device_of(runner.graph["net"].model).kind == "cpu"


def test_decisions_are_those_of_a_loop_by_hand() -> None:
    """Optuna's own way: report, ask, raise. The losses are those that the callback's trials reported."""

    def objective(trial: Any) -> float:
        lr = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
        fit = aa.fit(
            aa.SequentialMLP(hidden_dim=8),
            DATA,
            target="y",
            loss="mse",
            validation=0.3,
            epochs=8,
            optimizer=aa.Optimizer("adam", lr=lr),
            callbacks=[AnyaccelPruningCallback(trial, "val_loss")],
            progress="none",
        )
        whole.append(lr)
        return min(fit.results.figure("val_loss"))

    def losses_of(lr: float) -> list[float]:
        optimizer = aa.Optimizer("adam", lr=lr)
        settings = {"target": "y", "loss": "mse", "validation": 0.3, "epochs": 8, "progress": "none"}
        return list(
            aa.fit(aa.SequentialMLP(hidden_dim=8), DATA, optimizer=optimizer, **settings).results.figure("val_loss")
        )

    def by_hand(trial: Any) -> float:
        losses = losses_of(trial.suggest_float("lr", 1e-5, 1e-1, log=True))
        for step, loss in enumerate(losses):
            trial.report(loss, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return min(losses)

    whole: list[float] = []
    pruner = optuna.pruners.MedianPruner(n_startup_trials=2)
    ours, theirs = (study_of(function, 8, pruner=pruner) for function in (objective, by_hand))
    states = [trial.state.name for trial in ours.trials]
    assert set(states) == {"PRUNED", "COMPLETE"} and len(whole) == states.count("COMPLETE")
    assert states == [trial.state.name for trial in theirs.trials]
    for one, other in zip(ours.trials, theirs.trials, strict=True):
        assert one.intermediate_values.keys() == other.intermediate_values.keys()
        np.testing.assert_allclose(
            [*one.intermediate_values.values()], [*other.intermediate_values.values()], rtol=1e-6
        )
    assert ours.best_params == theirs.best_params


def test_an_error_is_not_taken_for_a_pruned_trial() -> None:
    class Broken(aa.Callback):
        def epoch_end(self, run: Any) -> None:
            raise RuntimeError("disk full")

    runner, phase = experiment()

    def objective(trial: Any) -> float:
        runner.run_phase(phase("train", callbacks=[AnyaccelPruningCallback(trial), Broken()]))
        return 0.0

    study = optuna.create_study(pruner=PruneAt(0))
    study.optimize(objective, n_trials=1, catch=RuntimeError)
    assert study.trials[0].state.name == "FAIL"


def test_epochs_without_validation_are_not_reported() -> None:
    runner, phase = experiment()

    def objective(trial: Any) -> float:
        results = runner.run_phase(phase("train", validate_every=2, callbacks=[AnyaccelPruningCallback(trial)]))
        return float(results.epochs[-1].figures["val_loss"])

    (trial,) = study_of(objective, pruner=optuna.pruners.NopPruner()).trials
    assert list(trial.intermediate_values) == [1, 3, 4]  # the last epoch is always validated


def test_a_second_phase_continues_the_steps() -> None:
    runner, phase = experiment()

    def objective(trial: Any) -> float:
        callback = AnyaccelPruningCallback(trial, "loss")
        phases = [phase(label, epochs=2, callbacks=[callback]) for label in ("first", "second")]
        return float(runner.run(*phases)[-1].loss[-1])

    (trial,) = study_of(objective, pruner=optuna.pruners.NopPruner()).trials
    assert list(trial.intermediate_values) == [0, 1, 2, 3]
    (trial,) = study_of(objective, pruner=PruneAt(3)).trials
    assert trial.state.name == "PRUNED"


def test_a_pruned_run_that_is_resumed_is_pruned_again(tmp_path: Path) -> None:
    def objective(trial: Any) -> float:
        runner, phase = experiment()
        made = phase("train", callbacks=[AnyaccelPruningCallback(trial)], checkpoint=aa.Checkpoint(tmp_path))
        runner.run_phase(made, resume="auto")
        return 0.0

    states = [
        study_of(objective, pruner=pruner).trials[0].state.name for pruner in (PruneAt(1), optuna.pruners.NopPruner())
    ]
    assert states == ["PRUNED", "PRUNED"]


def test_a_fixed_trial_is_never_pruned() -> None:
    runner, phase = experiment()
    callback = AnyaccelPruningCallback(optuna.trial.FixedTrial({}), "loss")
    assert len(runner.run_phase(phase("train", callbacks=[callback])).epochs) == 5


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")  # NumPy to Optuna
def test_a_loss_that_is_not_a_number_is_pruned() -> None:
    """Pruners of Optuna end a trial whose values are NaN."""
    settings = {"target": "y", "loss": "mse", "validation": 0.3, "epochs": 5, "progress": "none", "on_nan": "ignore"}
    broken = {**DATA, "y": DATA["y"] * math.nan}

    def objective(trial: Any) -> float:
        values = DATA if trial.number < 2 else broken
        fit = aa.fit(aa.SequentialMLP(), values, callbacks=[AnyaccelPruningCallback(trial)], **settings)
        return min(fit.results.figure("val_loss"))

    pruner = optuna.pruners.MedianPruner(n_startup_trials=1)
    assert study_of(objective, 3, pruner=pruner).trials[2].state.name == "PRUNED"


def test_a_value_that_epochs_do_not_have_is_an_error() -> None:
    runner, phase = experiment()
    callback = AnyaccelPruningCallback(optuna.create_study().ask(), "val_los")
    with pytest.raises(PhaseError, match="monitors 'val_los', but the epochs of 'train' have no such value"):
        runner.run_phase(phase("train", callbacks=[callback]))


@pytest.mark.parametrize(
    ("direction", "monitor", "fits"),
    [
        *(("minimize", "val_loss", True), ("maximize", "val_loss", False)),
        *(("maximize", "val_accuracy", True), ("minimize", "val_accuracy", False)),
        *(("maximize", "val_reward", True), ("minimize", "val_reward", True)),  # unknown to anyaccel
    ],
)
def test_the_direction_of_the_study_fits_the_value(direction: str, monitor: str, fits: bool) -> None:
    trial = optuna.create_study(direction=direction).ask()
    if fits:
        assert AnyaccelPruningCallback(trial, monitor).trial is trial
    else:
        with pytest.raises(PhaseError, match=f"the study is to {direction}"):
            AnyaccelPruningCallback(trial, monitor)


def test_what_is_no_trial_or_cannot_be_pruned_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PhaseError, match="3 is not a trial"):
        AnyaccelPruningCallback(3)
    with pytest.raises(PhaseError, match="2 objectives"):
        AnyaccelPruningCallback(optuna.create_study(directions=["minimize", "minimize"]).ask())
    for name, value in LAUNCHER.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PhaseError, match="2 processes train this trial"):
        AnyaccelPruningCallback(optuna.create_study().ask())
