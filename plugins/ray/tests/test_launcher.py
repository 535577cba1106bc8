"""`anyaccel run --on ray` on a Ray cluster of this machine: the numbers are those of torchrun and of one process.

A sample runs by default; all with ANYACCEL_TEST_FULL=1, which the session `launchers(ray)` of nox sets.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray")
torch = pytest.importorskip("torch")
pytest.importorskip("anyaccel_torch")

from anyaccel.errors import FrameworkError  # noqa: E402
from anyaccel_ray.launcher import check_places  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.skipif(sys.platform == "win32", reason="Ray Train on POSIX"),
]
FULL = pytest.mark.skipif(os.environ.get("ANYACCEL_TEST_FULL") != "1", reason="a sample is run")
HERE = Path(__file__).parent
RAY = ["-m", "anyaccel", "run", "--on", "ray"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# Nothing is waited for longer than a loaded machine needs, and nobody is told of the usage.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "PYTHONWARNINGS": "ignore",
    "RAY_AUTH_MODE": "disabled",
    # The usual folder may name a cluster that was killed. Sockets need short paths.
    "RAY_TMPDIR": tempfile.mkdtemp(prefix="ray-"),
}


def run(arguments: list[str], address: str = "", *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run python with these arguments, on this cluster if there is one."""
    env = {**os.environ, **SETTINGS, "RAY_ADDRESS": address}
    command = [sys.executable, *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env)
    assert not check or answer.returncode == 0, answer.stdout + answer.stderr
    return answer


@contextmanager
def node(*options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A node of a cluster, which ends with the block."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, "--block", "--disable-usage-stats"]
    env = {**os.environ, **SETTINGS}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def head() -> Iterator[str]:
    """The address of a head that `ray start --head` started, with two CPUs."""
    port = free_port()
    with node("--head", f"--port={port}", "--num-cpus=2", "--include-dashboard=false"):
        address = f"127.0.0.1:{port}"
        wait_for_cpus(address, 2)
        yield address


def wait_for_cpus(address: str, n_cpus: int) -> None:
    code = f"import ray; ray.init(address='{address}', log_to_driver=False); print(ray.cluster_resources().get('CPU'))"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        answer = run(["-c", code], check=False)
        if answer.stdout.strip() == str(float(n_cpus)):
            return
        time.sleep(1)
    raise TimeoutError(answer.stdout + answer.stderr)


def digits(folder: Path, launcher: list[str], address: str = "", framework: str = "torch") -> Any:
    """What the example tells."""
    path = folder / "told.json"
    run([*launcher, str(HERE / "digits_script.py"), str(path), framework], address)
    return json.loads(path.read_text())


@FULL
def test_one_command_starts_a_cluster_and_gives_the_numbers_of_one_process(tmp_path: Path) -> None:
    alone = digits(tmp_path, [])
    two = digits(tmp_path, [*RAY, "--replicas", "2"])
    np.testing.assert_allclose(two["epochs"], alone["epochs"], rtol=1e-6)
    assert two["folder"] == alone["folder"]


@FULL
def test_digits_on_a_head_are_those_of_torchrun_to_the_last_bit(tmp_path: Path, head: str) -> None:
    assert digits(tmp_path, [*RAY, "--replicas", "2"], head) == digits(tmp_path, TORCHRUN)


@FULL
def test_own_loops_give_the_numbers_of_one_process(tmp_path: Path, head: str) -> None:
    script = HERE.parents[1] / "torch/tests/own_loop_script.py"
    told = []
    for number, launcher in enumerate(([], [*RAY, "--replicas", "2"])):
        file = tmp_path / f"{number}.json"
        run([*launcher, str(script), str(file), "ragged", "gathered"], head)
        told.append(json.loads(file.read_text()))
    alone, together = told
    assert together["gathered"] == alone["gathered"]
    for own, other in zip(together["ragged"], alone["ragged"], strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-6, atol=1e-9)


@FULL
@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
def test_other_frameworks_join_on_the_workers_as_without_ray(tmp_path: Path, head: str, framework: str) -> None:
    """To the last bit those of two processes of this machine, which are those of one but for roundings."""
    pytest.importorskip(f"anyaccel_{framework}")
    alone = digits(tmp_path, [], framework=framework)
    local = digits(tmp_path, ["-m", "anyaccel", "run", "--replicas", "2"], framework=framework)
    assert digits(tmp_path, [*RAY, "--replicas", "2"], head, framework) == local
    np.testing.assert_allclose(local["epochs"], alone["epochs"], rtol=1e-6)


@FULL
def test_where_there_is_no_torch_workers_are_told_where_they_meet(tmp_path: Path, head: str) -> None:
    pytest.importorskip("anyaccel_jax")
    local = digits(tmp_path, ["-m", "anyaccel", "run", "--replicas", "2"], framework="jax")
    without_torch = (
        "import importlib.util as u, sys; find = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'torch' else find(name, *more)\n"
        "from anyaccel.cli.main import main; main()"
    )
    assert digits(tmp_path, ["-c", without_torch, *RAY[2:], "--replicas", "2"], head, "jax") == local


@FULL
def test_the_demo_on_two_workers_is_that_of_torchrun_and_of_one_process(head: str) -> None:
    demo = ["anyaccel", "demo", "--framework", "torch", "--device", "cpu", "--epochs", "4"]
    answers = [
        run(["-m", *demo]).stdout,
        run([*TORCHRUN, "-m", *demo]).stdout,
        run([*RAY, "--replicas", "2", "-m", *demo], head).stdout,
    ]
    found = [re.findall(r"test accuracy ([0-9.]+)", text) for text in answers]
    assert [len(each) for each in found] == [1, 1, 1], answers
    assert found[0] == found[1] == found[2]


def test_more_replicas_than_cpus_are_refused() -> None:
    with pytest.raises(FrameworkError, match=r"has 2 CPUs, but each of 8 .*; 2 replicas\. Hint: add nodes"):
        check_places({"CPU": 2.0, "memory": 1e9}, 8)


def resumed(folder: Path, launcher: list[str], plan: dict[str, Any], address: str = "") -> Any:
    folder.mkdir()
    run([*launcher, str(HERE / "resumed_script.py"), str(folder), json.dumps(plan)], address)
    return json.loads((folder / "told.json").read_text())


@FULL
def test_a_replica_that_is_killed_is_started_anew_and_the_end_is_the_same(tmp_path: Path, head: str) -> None:
    alone = resumed(tmp_path / "alone", TORCHRUN, {})
    restarts = [*RAY, "--replicas", "2", "--max-restarts", "1"]
    killed = resumed(tmp_path / "killed", restarts, {"do": "kill", "rank": 1, "step": 19}, head)
    assert (tmp_path / "killed" / "done").exists()
    assert "resumes from" in killed["events"][0]
    assert (killed["losses"], killed["weights"]) == (alone["losses"], alone["weights"])


@FULL
def test_an_elastic_run_takes_the_replicas_that_there_is_place_for(tmp_path: Path, head: str) -> None:
    alone = resumed(tmp_path / "alone", [], {})
    told = resumed(tmp_path / "elastic", [*RAY, "--replicas", "1:3"], {}, head)
    assert told["size"] == 2
    np.testing.assert_allclose(told["losses"], alone["losses"], rtol=1e-6)


def after_a_lost_node(folder: Path, head: str) -> Any:
    """What replicas on two nodes tell, of which one ends within an epoch."""

    def end(second: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 200
        while not (folder / "done").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        second.terminate()
        second.wait(60)
        (folder / "gone").touch()

    with node(f"--address={head}", "--num-cpus=1") as second:
        wait_for_cpus(head, 3)
        watcher = threading.Thread(target=end, args=(second,))
        watcher.start()
        elastic = [*RAY, "--replicas", "2:3", "--max-restarts", "2"]
        told = resumed(folder, elastic, {"do": "wait", "rank": 0, "step": 19}, head)
        watcher.join()
    return told


@FULL
def test_a_run_that_loses_a_node_goes_on_with_fewer_replicas(tmp_path: Path, head: str) -> None:
    """Three replicas on two nodes, and then two on one: the losses are those of an undisturbed run."""
    alone = resumed(tmp_path / "alone", [], {})
    for attempt in range(3):
        folder = tmp_path / f"lost-{attempt}"
        told = after_a_lost_node(folder, head)
        if (folder / "done").read_text() == "3":
            break  # now and then Ray begins with two, which the lost node is not among
    else:
        pytest.fail("Ray began with two replicas three times")
    assert told["size"] == 2 and "resumes from" in told["events"][0]
    np.testing.assert_allclose(told["losses"], alone["losses"], rtol=1e-6)


@FULL
def test_the_traceback_of_a_replica_that_fails_is_shown(tmp_path: Path, head: str) -> None:
    (tmp_path / "failed").mkdir()
    script = [
        str(HERE / "resumed_script.py"),
        str(tmp_path / "failed"),
        json.dumps({"do": "raise", "rank": 1, "step": 5}),
    ]
    answer = run([*RAY, "--replicas", "2", *script], head, check=False)
    assert answer.returncode == 1
    assert "anyaccel run: replica 1 failed:" in answer.stderr
    assert "ValueError: a fault of one replica" in answer.stderr
    assert "resumed_script.py" in answer.stderr
