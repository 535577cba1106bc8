"""Folders that cannot be written to, and files that are not whole: told, and never in the way of a good checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from anyaccel import SequentialMLP
from anyaccel.errors import ConfigError, PhaseError, StateError
from anyaccel.phases.checkpointing import run_folder

SCRIPT = """
import sys, time, warnings
import numpy as np
import anyaccel as aa
from anyaccel.errors import AnyaccelError

folder, mode = sys.argv[1:]
x = np.random.default_rng(0).normal(size=(64, 3))
data = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1]}, "x", "y")
graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(hidden_dim=64), data.reference())], "adam")

class Told(aa.Callback):
    def step_end(self, run):
        if mode == "full disk" and (run.epoch, run.step) == (1, 0):
            import os, resource, signal
            while not os.path.exists(f"{folder}/latest"):
                time.sleep(0.01)  # until the first one is written
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing then fails with an error, as on a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        if mode == "wait" and (run.epoch, run.step) == (1, 0):
            print("running", flush=True)
            sys.stdin.readline()

on_failure = "stop" if mode == "stop" else "warn"
checkpoint = aa.Checkpoint(folder, on_failure=on_failure)
phase = aa.TrainPhase(
    "train", data="all", losses=[aa.AppliedLoss("mse")], batch_size=8, epochs=3, checkpoint=checkpoint,
    callbacks=[Told()])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        results = aa.Experiment(graph, progress="none").run_phase(phase, resume="auto")
        print(len(results.epochs), "epochs")
    except AnyaccelError as error:
        print(type(error).__name__, error)
for each in caught:
    print("warned:", each.message)
"""


def start(folder, mode):
    command = [sys.executable, "-c", SCRIPT, str(folder), mode]
    env = {**os.environ, "ANYACCEL_PLUGINS": ""}
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )


def run_script(folder, mode=""):
    """What the script prints in a process of its own."""
    output, errors = start(folder, mode).communicate("\n")
    assert errors == ""
    return output


def names(folder):
    return run_folder.RunFolder(folder).names()


@pytest.mark.skipif(os.name == "nt", reason="limits of POSIX")
def test_a_disk_that_is_full_leaves_the_last_good_checkpoint(tmp_path):
    """A limit on the size of files makes real writes fail midway."""
    told = run_script(tmp_path, "full disk")
    assert "3 epochs" in told
    assert f"a checkpoint could not be written to '{tmp_path}': [Errno 27] File too large" in told
    assert names(tmp_path) == ["epoch-000001-step-000000000"]
    assert (tmp_path / run_folder.LATEST).read_text() == "epoch-000001-step-000000000\n"
    assert not list(tmp_path.rglob("*.tmp"))
    assert "warned" not in run_script(tmp_path)  # there is room again: it goes on
    assert names(tmp_path)[-1] == "epoch-000003-step-000000000"


def test_two_runs_in_one_folder(tmp_path):
    with start(tmp_path, "wait") as first:
        assert first.stdout.readline() == "running\n"
        told = run_script(tmp_path)
        assert f"another run writes its checkpoints to '{tmp_path}'" in told
        assert "Hint: wait until it has ended, or use a separate folder for each run" in told
        output, _ = first.communicate("\n")
    assert "3 epochs" in output
    assert "3 epochs" in run_script(tmp_path)  # the lock has gone with the process


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write into every folder")
def test_a_folder_that_may_not_be_written_to(tmp_path):
    tmp_path.chmod(0o500)
    assert "checkpoints cannot be written to" in run_script(tmp_path)


def test_a_folder_without_permission_is_told(line, experiment, tuned, tmp_path, monkeypatch):
    """As `test_a_folder_that_may_not_be_written_to`, also where tests are run by root."""

    def refused(*args, **settings):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refused)
    with pytest.raises(PhaseError, match=r"cannot be written to .*Permission denied.*choose a writable"):
        experiment(line()).run_phase(tuned(tmp_path / "new"))


@pytest.mark.parametrize("when", [1, 2, 3, 4, 5, 7, 8, 9])
def test_a_file_system_that_does_not_rename(line, experiment, tuned, tmp_path, monkeypatch, when):
    """Whichever renaming fails, what was written before is the newest, and is whole."""
    n_calls, replace = 0, os.replace

    def failing(source, target, **settings):
        nonlocal n_calls
        n_calls += 1
        if n_calls == when or "epoch-000002" in str(target):
            raise OSError(95, "Operation not supported")
        replace(source, target, **settings)

    monkeypatch.setattr("os.replace", failing)
    monkeypatch.setattr("os.rename", failing)
    monkeypatch.setattr("pathlib.Path.replace", failing)
    with pytest.warns(RuntimeWarning, match="a checkpoint could not be written to .*Operation not supported"):
        results = experiment(line()).run_phase(tuned(tmp_path))
    assert len(results.epochs) == 3
    newest = run_folder.RunFolder(tmp_path).newest()
    assert newest is not None and newest[2] == []
    assert newest[0].name == ("epoch-000001-step-000000000" if when > 5 else "epoch-000003-step-000000000")
    assert (tmp_path / run_folder.LATEST).read_text().strip() in names(tmp_path)


def test_what_is_not_whole_is_no_checkpoint(line, experiment, tuned, like, tmp_path):
    """As a process leaves it that is killed while it writes: without a manifest, or with a temporary one."""
    first = experiment(line()).run_phase(tuned(tmp_path, epochs=2))
    partial = tmp_path / "epoch-000009-step-000000000"
    partial.mkdir()
    (partial / "state-0123456789abcdef.safetensors").write_bytes(b"half")
    (partial / ".manifest.json.1.tmp").write_bytes(b"{")
    again = experiment(line()).run_phase(tuned(tmp_path, epochs=2), resume="auto")
    like(again, first)
    assert names(tmp_path)[-1] == "epoch-000002-step-000000000"


def test_a_checkpoint_of_a_newer_version_is_not_left_out(line, experiment, tuned, tmp_path):
    """Going on from the one before would lose what the newer version has done."""
    experiment(line()).run_phase(tuned(tmp_path, epochs=2))
    newest = tmp_path / names(tmp_path)[-1] / "manifest.json"
    newest.write_text(newest.read_text().replace('"schema_version": 2', '"schema_version": 3'))
    with pytest.raises(ConfigError, match=r"has schema version 3, written by .*or a newer version"):
        experiment(line()).run_phase(tuned(tmp_path), resume="auto")


def test_half_a_manifest_is_left_out_and_written_anew(line, experiment, tuned, like, tmp_path):
    whole, folder = experiment(line()).run_phase(tuned(tmp_path / "whole")), tmp_path / "cut"
    experiment(line()).run_phase(tuned(folder, epochs=2))
    newest = folder / names(folder)[-1] / "manifest.json"
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(RuntimeWarning, match=r"a newer checkpoint is skipped: .*is not a manifest of anyaccel"):
        like(experiment(line()).run_phase(tuned(folder), resume="auto"), whole)
    assert len(names(folder)) == 3 and all(run_folder.read(folder / name) for name in names(folder))


def test_latest_names_a_checkpoint_that_is_there_at_every_moment(line, experiment, tuned, tmp_path, monkeypatch):
    """Between any two changes of the folder a process may be killed."""
    seen = []

    def looked(name, act):
        def looking(*args, **settings):
            if (tmp_path / run_folder.LATEST).exists():
                latest = (tmp_path / run_folder.LATEST).read_text().strip()
                seen.append(latest)
                run_folder.read(tmp_path / latest)
            return act(*args, **settings)

        return looking

    for name in ("os.replace", "os.rename", "os.unlink", "os.rmdir", "shutil.rmtree", "pathlib.Path.replace"):
        module, _, attribute = name.rpartition(".")
        owner = __import__("pathlib").Path if module == "pathlib.Path" else __import__(module)
        monkeypatch.setattr(owner, attribute, looked(name, getattr(owner, attribute)))
    experiment(line()).run_phase(tuned(tmp_path, every=1, keep=1))
    assert len(set(seen)) > 8


def test_a_graph_that_has_changed_is_told_in_one_list(line, experiment, tuned, tmp_path):
    experiment(line(SequentialMLP(n_layers=2))).run_phase(tuned(tmp_path, epochs=1))
    with pytest.raises(StateError, match="does not fit") as told:
        experiment(line(SequentialMLP(n_layers=3, hidden_dim=5))).run_phase(tuned(tmp_path), resume="auto")
    assert all(name in str(told.value) for name in ("layers.0.weight", "layers.2.weight", "layers.1.bias"))
