"""Runs and models in MLflow, in an SQLite store, read by MLflow's own client."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
import anyaccel_mlflow
from anyaccel.errors import ConfigError, PhaseError, PluginError
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.plugin_testing import entry
from anyaccel.registry import Registry
from anyaccel_mlflow import MLflowLogger, autolog, load_model, log_model, log_to, save_model

mlflow = pytest.importorskip("mlflow")


class Oops(Exception):
    """Raised by tests."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store; its tables are made once."""
    folder = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # below which artifacts are written by default
        mlflow.set_tracking_uri(uri)
        mlflow.create_experiment("of this test", artifact_location=(folder / "artifacts").as_uri())
    return uri


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: str) -> Iterator[Registry]:
    """The process's registry replaced by one with this plugin; runs go to an experiment without any."""
    made = Registry(NumpyBackend, lambda: [entry("mlflow", anyaccel_mlflow)])
    monkeypatch.setattr("anyaccel.registry._registry", [made])
    monkeypatch.chdir(tmp_path)
    for name in ("ANYACCEL_PLUGINS", anyaccel_mlflow.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    mlflow.set_tracking_uri(store)
    mlflow.create_experiment(tmp_path.name, artifact_location=(tmp_path / "artifacts").as_uri())
    mlflow.set_experiment(tmp_path.name)
    yield made
    log_to(None)
    while mlflow.active_run():
        mlflow.end_run()


def runs(experiment: str) -> list[Any]:
    """The runs of an experiment, in the order in which they were begun."""
    found = mlflow.search_runs(experiment_names=[experiment], output_format="list")
    return sorted(found, key=lambda run: run.info.start_time)


def history(run: Any, name: str) -> list[tuple[int, float]]:
    """Steps and values of a metric."""
    return [(each.step, each.value) for each in mlflow.MlflowClient().get_metric_history(run.info.run_id, name)]


X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
DATA = {"x": X, "y": X.sum(1)}


def fit(**settings: Any) -> Any:
    settings = {"epochs": 3, "validation": 0.2, **settings}
    return aa.fit(aa.SequentialMLP(), DATA, target="y", loss="mse", progress="none", **settings)


def test_a_fit_is_one_run_with_the_figures_of_its_results(tmp_path: Path) -> None:
    autolog(log_models=False)
    fitted = fit()
    fitted.predict(DATA)  # has no figures, so it is no run
    autolog(disable=True)
    fit()
    (run,) = runs(tmp_path.name)
    assert (run.info.run_name, run.info.status) == ("train", "FINISHED")
    for name in ("loss", "val_loss"):
        assert history(run, name) == list(enumerate(fitted.results.figure(name).tolist()))
    assert run.data.params["graph.optimizer.name"] == "adam"
    assert run.data.params["phase.label"] == "train"
    assert run.data.tags["anyaccel.experiment"] == "fit"
    plan = mlflow.artifacts.load_text(f"{run.info.artifact_uri}/train-plan.txt")
    assert plan == str(fitted.plan)


def test_many_settings_are_logged_in_several_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anyaccel_mlflow, "settings_of", lambda _: {f"setting {i}/(a)": i for i in range(150)})
    fit(epochs=1, callbacks=[MLflowLogger()])
    (run,) = runs(tmp_path.name)
    assert run.data.params == {f"setting {i}__a_": str(i) for i in range(150)}


def test_a_named_experiment_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with log_to("of this test"):
        fit(epochs=1)
    assert len(runs("of this test")) == 1
    monkeypatch.setattr(anyaccel_mlflow.switch, "_calls", [])  # no call is in effect
    monkeypatch.setenv(anyaccel_mlflow.VARIABLE, "of this test")
    fit(epochs=1)
    with log_to(None):
        fit(epochs=1)
    assert len(runs("of this test")) == 2
    assert runs(tmp_path.name) == []


def test_an_experiment_is_made_where_there_is_none() -> None:
    fit(epochs=1, callbacks=[MLflowLogger("made by the callback")])
    assert len(runs("made by the callback")) == 1


def test_an_evaluation_has_its_label(tmp_path: Path) -> None:
    fitted = fit()
    phase = aa.EvalPhase("test", data="validation", metrics=["r2"], callbacks=[MLflowLogger()])
    results = fitted.experiment.run_phase(phase)
    (run,) = runs(tmp_path.name)
    assert history(run, "test_r2") == [(3, results.metrics["r2"])]


def test_phases_log_into_the_active_run_which_stays_active(tmp_path: Path) -> None:
    with mlflow.start_run(run_name="mine"), log_to(tmp_path.name):
        first, second = fit(), fit(epochs=2)
        mlflow.log_metric("after", 1.0)
    (run,) = runs(tmp_path.name)
    values = [*enumerate(first.results.loss.tolist()), *enumerate(second.results.loss.tolist())]
    assert sorted(history(run, "loss")) == sorted(values)
    assert run.data.metrics["after"] == 1.0 and run.data.params["train.phase.label"] == "train"


def test_a_phase_that_fails_is_a_failed_run(tmp_path: Path) -> None:
    class Fails(aa.Callback):
        def epoch_end(self, run: Any) -> None:
            raise Oops("no more")

    with pytest.raises(Oops):
        fit(callbacks=[MLflowLogger(), Fails()])
    (run,) = runs(tmp_path.name)
    assert run.info.status == "FAILED" and run.data.tags["train.error"] == "Oops: no more"


def test_the_trained_graph_is_logged(tmp_path: Path) -> None:
    fit(callbacks=[MLflowLogger(log_model=True)])
    (run,) = runs(tmp_path.name)
    folder = mlflow.artifacts.download_artifacts(f"{run.info.artifact_uri}/train-graph")
    assert aa.ModelGraph.load(folder).label


def test_phases_in_threads_have_runs_of_their_own(tmp_path: Path) -> None:
    with log_to(tmp_path.name):
        threads = [threading.Thread(target=fit) for _ in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert [len(history(run, "loss")) for run in runs(tmp_path.name)] == [3, 3]


def test_what_fails_while_it_trains_warns_and_the_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, *_: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(anyaccel_mlflow.MLflowRun, "log", fails)
    with pytest.warns(
        RuntimeWarning, match=r"MLflow could not log phase 'train', which continues untracked: OSError: no"
    ):
        assert fit(callbacks=[MLflowLogger()]).results.loss.size == 3


def test_a_store_that_is_not_there_ends_the_phase_before_it_moves(tmp_path: Path) -> None:
    mlflow.set_tracking_uri("sqlite:////dev/null/mlflow.db")
    with pytest.raises(
        PhaseError, match=r"phase 'train' cannot be logged to MLflow at 'sqlite:.*Hint: set another store"
    ):
        fit(callbacks=[MLflowLogger("digits")])
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/other.db")  # as the hint says
    fit(epochs=1, callbacks=[MLflowLogger("digits")])


@pytest.mark.parametrize("name", ["", " ", 3, ["a"]])
def test_names_of_experiments_are_checked(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"is not the name of an experiment\. Hint: write the name, such as 'digits'"):
        log_to(name)
    with pytest.raises(ConfigError, match=r"MLflowLogger: .* is not the name of an experiment"):
        MLflowLogger(name)


def test_a_plugin_that_is_not_loaded_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyaccel.registry._registry", [Registry(NumpyBackend, list)])
    with pytest.raises(
        PluginError, match=r"the plugin 'mlflow' is not loaded.*ANYACCEL_PLUGINS=mlflow; or add to phases the callback"
    ):
        autolog()


def test_what_a_loop_logs_is_a_run(tmp_path: Path) -> None:
    from anyaccel_mlflow import loop_tracker

    assert loop_tracker(tmp_path) is None
    with log_to(tmp_path.name):
        tracker = loop_tracker(tmp_path / "first")
        assert tracker is not None
        tracker.log({"loss (train)": 0.5}, 7)
        tracker.close()
    (run,) = runs(tmp_path.name)
    assert history(run, "loss _train_") == [(7, 0.5)] and run.info.run_name == "first"


# -- Models -----------------------------------------------------------------------------------------------------------


def test_a_model_is_read_by_mlflow_and_by_anyaccel(tmp_path: Path) -> None:
    fitted = fit()
    info = log_model(fitted, input_example={"x": X[:2]})
    expected = fitted.predict(DATA)
    assert (load_model(info.model_uri).predict(DATA) == expected).all()
    assert (mlflow.pyfunc.load_model(info.model_uri).predict({"x": X}) == expected).all()
    assert info.signature is not None


def test_a_saved_folder_is_served_in_another_process(tmp_path: Path) -> None:
    fitted = fit()
    save_model(fitted, tmp_path / "model")
    np.save(tmp_path / "x.npy", X)
    script = (
        "import numpy as np, mlflow; x = np.load('x.npy'); "
        "np.save('told.npy', mlflow.pyfunc.load_model('model').predict({'x': x}))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, timeout=120)
    assert (np.load(tmp_path / "told.npy") == fitted.predict(DATA)).all()
    assert not list((tmp_path / "model").rglob("*.pkl"))


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"SequentialMLP is not a FittedModel. Hint: pass the result of aa.fit"):
        save_model(aa.SequentialMLP(), tmp_path / "model")
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match=r"already exists. Hint: name a new folder"):
        save_model(fit(), tmp_path / "there")
