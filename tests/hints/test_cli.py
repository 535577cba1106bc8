"""Hints of the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import anyaccel as aa
from anyaccel_devtools.commands.conform import find_plugin
from anyaccel_devtools.commands.new_plugin.base_backend import import_base

SCRIPT = """
import numpy as np
import anyaccel as aa

data = aa.FeatureSet.from_dict("data", {"x": np.ones((8, 2), "f4"), "y": np.ones(8, "f4")}, ["x"], ["y"])
graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), data.reference())], "sgd")
train = aa.TrainPhase("train", data="all", losses=[aa.AppliedLoss("mse", on="net")], checkpoint=CHECKPOINT)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A file with a graph and a phase."""
    file = tmp_path / "train.py"
    file.write_text(SCRIPT.replace("CHECKPOINT", "None"))
    return file


def printed_by(*arguments: str, cwd: Path | None = None) -> str:
    """What a command in a process prints."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=240, check=False, cwd=cwd
    )
    return done.stdout + done.stderr


def test_checkpoints(hint: Any, cli: Any, script: Path, tmp_path: Path) -> None:
    data = aa.FeatureSet.from_dict("data", {"x": [[1.0], [2.0]], "y": [1.0, 2.0]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), data.reference())], "sgd")
    losses, folder = [aa.AppliedLoss("mse", on="net")], tmp_path / "run"
    graph.run(aa.TrainPhase("train", data="all", losses=losses, checkpoint=aa.Checkpoint(folder)), progress="none")
    graph.save(tmp_path / "graph")
    with hint("pass the folder of a Checkpoint(...)") as printed:
        printed.text = cli("checkpoint", "list", str(tmp_path)).output
    assert cli("checkpoint", "list", str(folder)).exit_code == 0  # that of aa.Checkpoint(folder)
    with hint("it is a single saved graph or checkpoint: use anyaccel checkpoint show {}") as printed:
        printed.text = cli("checkpoint", "list", str(tmp_path / "graph")).output
    assert cli("checkpoint", "show", str(tmp_path / "graph")).exit_code == 0


def test_plugins_that_are_tested(hint: Any, cli: Any) -> None:
    with hint("check the spelling, or install the plugin; `anyaccel plugins` lists what is installed"):
        find_plugin("nothing_of_this_name")
    assert "numpy" in cli("plugins").output  # anyaccel plugins
    assert find_plugin("numpy")


def test_kinds_of_devices_that_are_tested(hint: Any, cli: Any) -> None:
    one_test = ("--capability", "backend")
    with hint("set --device to one of these kinds") as printed:
        printed.text = cli("conform", "numpy", "--device", "gpu:0").output
    with hint("leave --device out, or name an available device") as printed:
        printed.text = cli("conform", "numpy", "--device", "cpu:7", *one_test).output
    with hint("allow more time with --timeout") as printed:
        printed.text = cli("conform", "numpy", "--timeout", "0.1", *one_test).output
    again = cli("conform", "numpy", "--device", "cpu:0", "--timeout", "300", *one_test)
    assert again.exit_code == 0, again.output  # --device of one of these kinds


def test_the_demo(hint: Any, cli: Any) -> None:
    with hint("choose one of these devices; `anyaccel devices` shows why others are missing") as printed:
        printed.text = cli("demo", "--device", "gpu:99").output
    assert "cpu" in cli("devices").output  # anyaccel devices
    assert cli("demo", "--device", "cpu:0").exit_code == 0


def test_modules_that_are_named(hint: Any, cli: Any, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hint("write 'package.module:train', or 'train.py:train'") as printed:
        printed.text = cli("plan", "train").output
    monkeypatch.chdir(script.parent)
    assert cli("plan", "train.py:train").exit_code == 0
    with hint("write '{}:NAME', the name of an object in this file") as printed:
        printed.text = cli("plan", "train.py").output
    assert cli("plan", "train.py:train").exit_code == 0
    with hint("install it, set PYTHONPATH, or pass the file: 'train.py:train'") as printed:
        printed.text = printed_by("anyaccel", "plan", "train:train", cwd=script.parent)
    assert cli("plan", "train.py:train").exit_code == 0
    monkeypatch.setenv("PYTHONPATH", str(script.parent))
    assert "plan of train" in printed_by("anyaccel", "plan", "train:train", cwd=script.parent)
    with hint("name a file that exists; a relative path starts in {}") as printed:
        printed.text = cli("plan", "trian.py:train").output
    assert str(script.parent) in printed.text and cli("plan", "train.py:train").exit_code == 0
    assert "Available: np, " not in cli("plan", "train.py:trian").output  # modules are no phases
    script.with_name("next_to_it.py").write_text("from train import *")
    monkeypatch.delenv("PYTHONPATH")
    with hint("python adds the folder of a script by itself; here, set PYTHONPATH={}") as printed:
        printed.text = printed_by("anyaccel", "plan", "next_to_it.py:train", cwd=script.parent)
    monkeypatch.setenv("PYTHONPATH", ".")
    assert printed.text.strip().endswith("PYTHONPATH=.")
    assert "plan of train" in printed_by("anyaccel", "plan", "next_to_it.py:train", cwd=script.parent)
    broken = script.with_name("broken.py")
    broken.write_text("1 / 0")
    with hint("run it with python first") as printed:
        printed.text = cli("plan", "broken.py:train").output
    assert (
        "ZeroDivisionError"
        in subprocess.run([sys.executable, "broken.py"], capture_output=True, text=True, check=False).stderr
    )


def test_graphs_of_a_module(hint: Any, cli: Any, script: Path) -> None:
    script.write_text(script.read_text() + "\nother = aa.ModelGraph([graph['net']], 'adam')\n")
    with hint("name one with --graph") as printed:
        printed.text = cli("plan", f"{script}:train").output
    assert cli("plan", f"{script}:train", "--graph", "other").exit_code == 0
    with hint("name one of these with --graph") as printed:
        printed.text = cli("plan", f"{script}:train", "--graph", "third").output
    assert cli("plan", f"{script}:train", "--graph", "graph").exit_code == 0


def test_saved_plans(hint: Any, cli: Any, script: Path, tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    with hint("create it with --save") as printed:
        printed.text = cli("plan", "--compare", plan, f"{script}:train").output
    assert cli("plan", f"{script}:train", "--save", plan).exit_code == 0
    assert cli("plan", "--compare", plan, f"{script}:train").exit_code == 0


def test_requests_on_the_command_line(hint: Any, cli: Any) -> None:
    with hint("leave --on, --file and --strict out") as printed:
        printed.text = cli("resolve", "H100", "--export", "modal", "--on", "2x T4").output
    assert cli("resolve", "H100", "--export", "modal").exit_code == 0  # without --on, --file and --strict


def test_new_plugins(hint: Any, cli: Any, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("")
    with hint("choose another folder with --path") as printed:
        printed.text = cli("new-plugin", "mychip", "--path", str(full)).output
    assert cli("new-plugin", "mychip", "--path", str(tmp_path / "empty")).exit_code == 0
    with hint("create it, or choose another with --path") as printed:
        printed.text = cli("new-plugin", "mychip", "--path", str(tmp_path / "not" / "there")).output
    (tmp_path / "not").mkdir()
    assert cli("new-plugin", "mychip", "--path", str(tmp_path / "not" / "there")).exit_code == 0


def test_bases_of_new_plugins(hint: Any, cli: Any, tmp_path: Path) -> None:
    def new(place: str, *arguments: str) -> Any:
        return cli("new-plugin", "mychip", "--path", str(tmp_path / place), *arguments)

    base = "anyaccel.numpy_backend:NumpyBackend"
    with hint("leave --base out, or use --kind chip") as printed:
        printed.text = new("a", "--kind", "framework", "--base", base).output
    assert new("b", "--kind", "framework").exit_code == 0  # without --base
    assert new("c", "--kind", "chip", "--base", base).exit_code == 0
    with hint("leave --framework out, or name another base") as printed:
        printed.text = new("d", "--framework", "torch", "--base", base).output
    assert new("e", "--base", base).exit_code == 0  # without --framework
    with hint("write for example anyaccel.numpy_backend:NumpyBackend"):
        import_base("NumpyBackend")
    assert import_base("anyaccel.numpy_backend:NumpyBackend")
    with hint("name a class derived from anyaccel.Backend"):
        import_base("pathlib:Path")
    assert issubclass(import_base(base).cls, aa.Backend)
    with hint("choose another name; for a chip of {}, run `anyaccel new-plugin NAME --framework {}`") as printed:
        printed.text = cli("new-plugin", "torch", "--path", str(tmp_path / "f")).output
    assert new("g", "--framework", "numpy").exit_code == 0  # anyaccel new-plugin NAME --framework numpy


def test_a_closed_standard_output(hint: Any) -> None:
    command = [sys.executable, "-m", "anyaccel", "--version"]
    closed = "import os, sys; os.close(1); os.execv(sys.argv[1], sys.argv[1:])"
    with hint("run anyaccel with standard output open") as printed:
        done = subprocess.run(
            [sys.executable, "-c", closed, *command], stderr=subprocess.PIPE, text=True, check=False, timeout=120
        )
        printed.text = done.stderr
    assert done.returncode == 2
    assert subprocess.run(command, capture_output=True, check=False, timeout=120).returncode == 0


def test_variables_that_nothing_reads(hint: Any, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYACCEL_COLOUR", "red")
    with hint("anyaccel reads {}") as printed:
        printed.text = cli("doctor").output
    monkeypatch.delenv("ANYACCEL_COLOUR")
    monkeypatch.setenv("ANYACCEL_PLUGINS", "numpy,zzzz")
    with hint("`anyaccel plugins` lists those installed") as printed:
        printed.text = cli("doctor").output
    assert "numpy" in cli("plugins").output  # anyaccel plugins
    monkeypatch.setenv("ANYACCEL_PLUGINS", "numpy")
    assert "COLOUR" not in (output := cli("doctor").output) and "zzzz" not in output


def test_commands_by_other_names(hint: Any, cli: Any, tmp_path: Path) -> None:
    script = tmp_path / "SCRIPT.py"
    script.write_text("import os; print('rank ' + os.environ['RANK'] + '\\n', end='')")
    with hint("write anyaccel run --replicas 2 SCRIPT") as printed:
        printed.text = cli("launch", "SCRIPT").output
    with hint("run your script with python; anyaccel run --replicas 2 SCRIPT starts several processes") as printed:
        printed.text = cli("train", "SCRIPT").output
    assert "rank 1" in printed_by("anyaccel", "run", "--replicas", "2", str(script))
    with hint("anyaccel doctor checks this machine, anyaccel conform NAME a plugin") as printed:
        printed.text = cli("test").output
    assert "PASS" in cli("doctor").output  # anyaccel doctor
    assert cli("conform", "--help").exit_code == 0  # anyaccel conform
    with hint("anyaccel env lists versions and devices") as printed:
        printed.text = cli("info").output
    assert "anyaccel" in cli("env").output
    with hint("write anyaccel devices") as printed:
        printed.text = cli("list").output
    assert "cpu:0" in cli("devices").output
    with hint("write anyaccel plugins") as printed:
        printed.text = cli("plugin").output
    assert "numpy" in cli("plugins").output
    with hint("write anyaccel --version") as printed:
        printed.text = cli("version").output
    assert cli("--version").output.startswith("anyaccel")
    with hint("write anyaccel --help, or anyaccel COMMAND --help") as printed:
        printed.text = cli("help").output
    assert "devices" in cli("--help").output and "--json" in cli("devices", "--help").output  # COMMAND
