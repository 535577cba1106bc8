"""Processes of `anyaccel run`: what each gets, and how all end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anyaccel_distributed.processes import run_replicas

TELL = """
import json, os, pathlib, sys
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"]
told = {name: os.environ[name] for name in names}
pathlib.Path(sys.argv[1], told["RANK"]).write_text(json.dumps({**told, "arguments": sys.argv[2:]}))
"""
FAIL = """
import os, sys, time
if os.environ["RANK"] == "1":
    raise ValueError("a fault of its own")
time.sleep(600)
"""


def test_each_process_gets_its_rank_and_the_same_address(tmp_path: Path) -> None:
    assert run_replicas([sys.executable, "-c", TELL, str(tmp_path), "--epochs", "3"], 3) == 0
    told = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(3)]
    assert [one["RANK"] for one in told] == [one["LOCAL_RANK"] for one in told] == ["0", "1", "2"]
    assert {one["WORLD_SIZE"] for one in told} == {"3"}
    assert len({(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in told}) == 1
    assert all(one["arguments"] == ["--epochs", "3"] for one in told)


def test_ports_after_the_one_where_all_meet_are_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bound, asked = socket.socket.bind, []
    refusals = [OSError("in use"), OSError("in use")]

    def bind(self: socket.socket, address: tuple[str, int]) -> None:
        if refusals:
            raise refusals.pop()
        bound(self, address)
        asked.append(address[1])

    monkeypatch.setattr(socket.socket, "bind", bind)
    assert run_replicas([sys.executable, "-c", TELL, str(tmp_path)], 1) == 0
    port = int(json.loads((tmp_path / "0").read_text())["MASTER_PORT"])
    assert not refusals and asked[-3:] == [port, port + 1, port + 2] and 20_000 <= port < 32_000


def test_threads_are_shared_out_unless_they_are_set(tmp_path: Path) -> None:
    bare = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    for given, expected in [({}, str(max(1, (os.cpu_count() or 1) // 2))), ({"OMP_NUM_THREADS": "7"}, "7")]:
        assert run_replicas([sys.executable, "-c", TELL, str(tmp_path)], 2, {**bare, **given}) == 0
        assert json.loads((tmp_path / "1").read_text())["OMP_NUM_THREADS"] == expected


def test_one_that_fails_ends_all(capfd: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    assert run_replicas([sys.executable, "-c", FAIL], 3) == 1
    assert time.monotonic() - began < 200  # others would sleep for ten minutes
    told = capfd.readouterr().err
    assert "ValueError: a fault of its own" in told
    assert "anyaccel run: replica 1 ended with exit status 1; the others are stopped too" in told


def test_one_that_fails_after_another_tells_its_error(capfd: pytest.CaptureFixture[str]) -> None:
    fail = "import os, time\ntime.sleep(0.4 * int(os.environ['RANK']))\nraise ValueError(os.environ['RANK'] * 3)"
    assert run_replicas([sys.executable, "-c", fail], 2) == 1
    told = capfd.readouterr().err
    assert "replica 0 ended" in told and "ValueError: 111" in told


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_one_that_is_killed_ends_all_with_its_status(capfd: pytest.CaptureFixture[str]) -> None:
    kill = "import os, time\nos.environ['RANK'] == '0' and os.kill(os.getpid(), 9)\ntime.sleep(60)"
    assert run_replicas([sys.executable, "-c", kill], 2) == 128 + signal.SIGKILL
    assert "replica 0 ended with signal 9" in capfd.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_signal_to_the_launcher_ends_all(tmp_path: Path) -> None:
    wait = "import os, pathlib, sys, time\npathlib.Path(sys.argv[1], str(os.getpid())).touch()\ntime.sleep(60)"
    code = "import sys; from anyaccel_distributed.processes import run_replicas as run; sys.exit(run(sys.argv[1:], 2))"
    command = [sys.executable, "-c", code, sys.executable, "-c", wait, str(tmp_path)]
    with subprocess.Popen(command) as launcher:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(30) == 128 + signal.SIGINT
    for path in tmp_path.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.name), 0)


def test_all_are_started_anew_as_often_as_was_asked_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    once = "import os, pathlib, sys\nmark = pathlib.Path(sys.argv[1], os.environ['RANK'])\n"
    once += "done = mark.exists()\nmark.write_text(mark.read_text() + 'x' if done else 'x')\n"
    once += "sys.exit(0 if done or os.environ['RANK'] == '1' else 3)"
    assert run_replicas([sys.executable, "-c", once, str(tmp_path)], 2, max_restarts=3) == 0
    assert (tmp_path / "0").read_text() == "xx"
    assert "replica 0 ended with exit status 3; all are restarted" in capfd.readouterr().err
    assert run_replicas([sys.executable, "-c", "import sys; sys.exit(3)"], 2, max_restarts=1) == 3


def test_variables_are_set_besides(tmp_path: Path) -> None:
    tell = "import os, pathlib, sys; pathlib.Path(sys.argv[1], os.environ['RANK']).write_text(os.environ['MORE'])"
    assert run_replicas([sys.executable, "-c", tell, str(tmp_path)], 2, variables={"MORE": "of it"}) == 0
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["of it", "of it"]
