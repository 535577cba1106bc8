"""`anyaccel run`: its options, and where the processes are started."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from anyaccel.cli.main import group
from anyaccel.errors import ConfigError
from anyaccel_distributed import run_command as command
from anyaccel_distributed.launch_options import LaunchOptions, find_launcher


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would have been started on this machine."""
    calls: list[Any] = []

    def run_replicas(*positional: Any, **named: Any) -> int:
        calls.append((*positional, named))
        return 7

    monkeypatch.setattr(command, "run_replicas", run_replicas)
    return calls


def test_options_reach_the_processes(script: str, started: list[Any]) -> None:
    options = ["--replicas", "3", "--max-restarts", "2", "--timeout", "5"]
    assert CliRunner().invoke(group, ["run", *options, script, "--epochs", "3"]).exit_code == 7
    settings = {"max_restarts": 2, "variables": {"ANYACCEL_REPLICA_TIMEOUT": "5.0"}}
    assert started == [([sys.executable, script, "--epochs", "3"], 3, settings)]


def test_a_module_is_run_as_python_does(started: list[Any]) -> None:
    assert CliRunner().invoke(group, ["run", "--replicas", "2", "-m", "anyaccel", "demo", "--json"]).exit_code == 7
    assert started[0][0] == [sys.executable, "-m", "anyaccel", "demo", "--json"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--replicas", "0"], "--replicas '0' is not a number of processes: write 4, or 2:4 for 2 to 4."),
        (["--replicas", "4:2"], "--replicas '4:2' is not a number of processes"),
        (
            ["--replicas", "2:4"],
            "--replicas 2:4 is for launchers that can continue with fewer processes, such as --on ray.",
        ),
        ([], "Missing option '--replicas'"),
    ],
)
def test_wrong_numbers_of_replicas_are_refused(script: str, options: list[str], message: str) -> None:
    answer = CliRunner().invoke(group, ["run", *options, script])
    assert answer.exit_code == 2
    assert message in answer.output


@pytest.mark.parametrize("after", [["--replicas", "2"], ["--replicas=2"], ["--epochs", "3", "--replicas", "2"]])
def test_options_after_the_script_are_to_come_before_it(script: str, started: list[Any], after: list[str]) -> None:
    answer = CliRunner().invoke(group, ["run", script, *after], prog_name="anyaccel")
    assert answer.exit_code == 2 and not started
    message = "Write them before it: anyaccel run --replicas 2 SCRIPT"
    assert "options after the script are the script's own" in answer.output and message in answer.output
    assert CliRunner().invoke(group, ["run", "--replicas", "2", script, *after]).exit_code == 7
    assert started[0][0] == [sys.executable, script, *after]  # a script may have an option of this name


def test_a_script_that_is_not_there_is_refused() -> None:
    answer = CliRunner().invoke(group, ["run", "--replicas", "2", "missing.py"])
    assert answer.exit_code == 2
    assert "the file 'missing.py' does not exist." in answer.output


def test_a_launcher_of_a_plugin_gets_the_options(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    given: list[LaunchOptions] = []

    def launch(options: LaunchOptions) -> int:
        given.append(options)
        return 3

    monkeypatch.setattr(command, "find_launcher", lambda name: {"cluster": launch}[name])
    answer = CliRunner().invoke(group, ["run", "--on", "cluster", "--replicas", "1:4", script, "a"])
    assert answer.exit_code == 3
    expected = LaunchOptions(target=script, arguments=("a",), replicas=4, min_replicas=1)
    assert given == [expected]


def test_a_launcher_that_is_not_installed_is_refused(script: str) -> None:
    with pytest.raises(ConfigError, match=r"on 'moon'\. Available: ray\. Hint: leave --on out"):
        find_launcher("moon", {"ray": lambda: lambda options: 0})
    answer = CliRunner().invoke(group, ["run", "--on", "moon", "--replicas", "2", script])
    assert answer.exit_code == 2
    assert "no plugin here starts processes on 'moon'" in answer.output


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("slurm", "start the script with its command: srun --ntasks 2 python SCRIPT"),
        ("MPI", "mpirun -n 2 python SCRIPT"),
        ("torchrun", "torchrun --nproc-per-node 2 SCRIPT"),
        ("ray", "install its plugin; .* python -m pip install ./plugins/ray"),
    ],
)
def test_a_launcher_without_a_plugin_is_told_how_to_be_used(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        find_launcher(name, {})


def test_a_wrong_option_before_the_script_is_named(script: str) -> None:
    answer = CliRunner().invoke(group, ["run", "--replica", "2", script])
    assert answer.exit_code == 2
    assert "No such option" in answer.output and "--replicas" in answer.output
