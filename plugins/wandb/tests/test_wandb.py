"""Runs of Weights & Biases, written offline and read by W&B's own reader of its files."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
import anyaccel_wandb
from anyaccel.errors import ConfigError, PhaseError, PluginError
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.plugin_testing import entry
from anyaccel.registry import Registry
from anyaccel_wandb import WandbLogger, log_to

os.environ |= {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
wandb = pytest.importorskip("wandb")


class Oops(Exception):
    """Raised by tests."""


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registry]:
    """The process's registry replaced by one with this plugin; runs are written to a new folder."""
    made = Registry(NumpyBackend, lambda: [entry("wandb", anyaccel_wandb)])
    monkeypatch.setattr("anyaccel.registry._registry", [made])
    monkeypatch.chdir(tmp_path)
    for name in ("ANYACCEL_PLUGINS", anyaccel_wandb.VARIABLE, "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    yield made
    anyaccel_wandb.log_to(None)
    wandb.teardown()  # W&B keeps the folder of its first run


def chunks(data: bytes) -> Iterator[bytes]:
    """The records of a file in the format of LevelDB's logs: blocks of 32 KiB, of which each has pieces of records."""
    block, position, record = 32768, 7, b""
    while position + 7 <= len(data):
        if block - position % block < 7:  # too little for a header
            position += block - position % block
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # the whole, or the last piece
            yield record
            record = b""


def runs() -> list[list[tuple[str, Any]]]:
    """The records of each run in the folder."""
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # its process may still be writing
    told = []
    for path in sorted(Path("wandb").glob("offline-run-*/*.wandb")):
        records = []
        for data in chunks(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            records.append((kind, getattr(record, kind)))
        told.append(records)
    return told


def logged(records: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the history, without W&B's own columns."""
    rows = []
    for kind, record in records:
        if kind == "history":
            values = {(item.key or ".".join(item.nested_key)): json.loads(item.value_json) for item in record.item}
            rows.append({name: value for name, value in values.items() if not name.startswith("_")})
    return rows


def configured(records: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for kind, record in records:
        updates = record.config.update if kind == "run" else record.update if kind == "config" else ()
        values |= {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in updates}
    return values


def exit_codes(records: list[tuple[str, Any]]) -> list[int]:
    return [record.exit_code for kind, record in records if kind == "exit"]


X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
DATA = {"x": X, "y": X.sum(1)}


def fit(**settings: Any) -> Any:
    settings = {"epochs": 3, "validation": 0.2, **settings}
    return aa.fit(aa.SequentialMLP(), DATA, target="y", loss="mse", progress="none", **settings)


def test_a_fit_is_one_run_with_the_figures_of_its_results() -> None:
    with log_to("digits"):
        fitted = fit()
        fitted.predict(DATA)  # has no figures, so it is no run
    (run,) = runs()
    results = fitted.results
    rows = logged(run)
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    assert [row["loss"] for row in rows] == results.loss.tolist()
    assert [row["val_loss"] for row in rows] == results.figure("val_loss").tolist()
    (begun,) = {record.run_id for kind, record in run if kind == "run"}
    assert begun
    record = next(record for kind, record in run if kind == "run")
    assert (record.project, record.run_group, record.display_name, record.job_type) == (
        "digits",
        "fit",
        "train",
        "train",
    )
    config = configured(run)
    assert config["graph"]["optimizer"]["name"] == "adam" and config["phase"]["label"] == "train"
    assert config["plan"]
    assert exit_codes(run) == [0]
    fit()  # the block has ended
    assert len(runs()) == 1


def test_an_evaluation_has_its_label() -> None:
    fitted = fit()
    metric = aa.EvalPhase("test", data="validation", metrics=["r2"], callbacks=[WandbLogger("digits")])
    results = fitted.experiment.run_phase(metric)
    ((row,),) = [logged(run) for run in runs()]
    assert row == {"test_r2": results.metrics["r2"], "epoch": 3}


def test_phases_log_into_the_open_run_which_stays_open() -> None:
    with wandb.init(project="mine", reinit="finish_previous") as run:
        with log_to("other"):
            fit(), fit(epochs=2)
        run.log({"after": 1.0})
    (records,) = runs()
    rows = logged(records)
    assert [row.get("epoch") for row in rows] == [0, 1, 2, 0, 1, None]
    assert rows[-1] == {"after": 1.0}


def test_the_environment_switches_it_on_and_a_call_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anyaccel_wandb.switch, "_calls", [])  # no call is in effect
    monkeypatch.setenv(anyaccel_wandb.VARIABLE, "named")
    fit()
    with log_to(None):
        fit()
    (run,) = runs()
    assert next(record.project for kind, record in run if kind == "run") == "named"


def test_a_phase_that_fails_is_a_failed_run() -> None:
    class Fails(aa.Callback):
        def epoch_end(self, run: Any) -> None:
            raise Oops("no more")

    with pytest.raises(Oops):
        fit(callbacks=[WandbLogger("digits"), Fails()])
    (run,) = runs()
    assert exit_codes(run) == [1]


def test_the_trained_graph_is_an_artifact() -> None:
    fitted = fit(callbacks=[WandbLogger("digits", log_model=True)])
    (run,) = runs()
    (artifact,) = [
        record for kind, record in run if kind == "request" and record.WhichOneof("request_type") == "log_artifact"
    ] or [record for kind, record in run if kind == "artifact"]
    names = str(artifact)
    assert "graph.json" in names or "manifest" in names
    assert fitted


def test_phases_in_threads_have_runs_of_their_own() -> None:
    with log_to("digits"):
        threads = [threading.Thread(target=fit) for _ in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert [len(logged(run)) for run in runs()] == [3, 3]


def test_what_fails_while_it_trains_warns_and_the_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, *_: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(anyaccel_wandb.WandbRun, "log", fails)
    with pytest.warns(
        RuntimeWarning, match="Weights & Biases could not log phase 'train', which continues untracked: OSE"
    ):
        assert fit(callbacks=[WandbLogger("digits")]).results.loss.size == 3


def test_a_run_that_cannot_start_ends_the_phase_before_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: Any) -> None:
        raise wandb.errors.CommError("no key")

    monkeypatch.setattr(wandb, "init", fails)
    with pytest.raises(
        PhaseError, match=r"phase 'train' cannot be logged to Weights & Biases: no key. Hint: log in with"
    ):
        fit(callbacks=[WandbLogger("digits")])


@pytest.mark.parametrize("name", ["", " ", 3, ["a"]])
def test_names_of_projects_are_checked(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"is not the name of a project\. Hint: write the name, such as 'digits'"):
        log_to(name)
    with pytest.raises(ConfigError, match=r"WandbLogger: .* is not the name of a project"):
        WandbLogger(name)


def test_a_plugin_that_is_not_loaded_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyaccel.registry._registry", [Registry(NumpyBackend, list)])
    with pytest.raises(
        PluginError, match=r"the plugin 'wandb' is not loaded.*ANYACCEL_PLUGINS=wandb; or add to phases the callback"
    ):
        log_to("digits")


def test_the_same_callback_twice_is_an_error() -> None:
    callback = WandbLogger("digits")
    with pytest.raises(PhaseError, match=r"the same Weights & Biases callback twice"):
        fit(callbacks=[callback, callback])


def test_what_a_loop_logs_is_in_the_open_run(tmp_path: Path) -> None:
    from anyaccel_wandb import loop_tracker

    assert loop_tracker(tmp_path) is None
    with log_to("digits"):
        tracker = loop_tracker(tmp_path / "first")
        assert tracker is not None
        tracker.log({"loss": 0.5}, 7)
        tracker.close()
    (run,) = runs()
    assert logged(run) == [{"loss": 0.5, "step": 7}]
    assert next(record.display_name for kind, record in run if kind == "run") == "first"
