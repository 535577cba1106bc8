"""Replicas in processes that TensorFlow joins by gRPC: the numbers are those of one process.

A sample is run; all with ANYACCEL_TEST_FULL=1.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import FrameworkError, PhaseError
from anyaccel_distributed import join
from anyaccel_distributed.processes import free_port
from anyaccel_tensorflow import runtime_config
from anyaccel_tensorflow.replica_group import Waiting, addresses_of_all, join_cluster

SCRIPT = Path(__file__).with_name("replica_script.py")
FULL = os.environ.get("ANYACCEL_TEST_FULL") == "1"
WHOLE = pytest.mark.skipif(not FULL, reason="a sample is run")
SIZES = [2, pytest.param(4, marks=WHOLE)]
WAYS = "plain,weighed,accumulated,fixed" if FULL else "plain,weighed"


def started(folder: Path, size: int, ways: str) -> list[subprocess.CompletedProcess[str]]:
    """All replicas, without a launcher that would end those that are left when one fails."""
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, str(SCRIPT), str(folder), ways]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    every = [subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(r)}, **pipes) for r in range(size)]
    return [
        subprocess.CompletedProcess(p.args, p.returncode, *out) for p in every for out in [p.communicate(timeout=240)]
    ]


def alone(name: str) -> dict[str, Any]:
    """What one process finds: this one."""
    found: dict[str, Any] = runpy.run_path(str(SCRIPT))[name]()
    return found


@pytest.fixture(scope="module", params=SIZES)
def several(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """What several processes tell, of which one fails in the end, and how they end."""
    folder = tmp_path_factory.mktemp(f"of-{request.param}")
    (folder / "kill.json").write_text(json.dumps([1, 10, 0]))
    return folder, started(folder, request.param, f"{WAYS},resumed")


def told(folder: Path, name: str, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}-{rank}.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "weighed", pytest.param("accumulated", marks=WHOLE)])
def test_losses_metrics_and_outputs_are_those_of_one_process(several: tuple[Path, list[Any]], name: str) -> None:
    """`plain` has steps of Adam of which every seventh has 11 rows; 105 where everything is tested."""
    folder, ends = several
    expected = alone(name)
    for rank, end in enumerate(ends):
        assert (folder / f"{name}-{rank}.json").exists(), end.stderr[-2000:]
        one = told(folder, name, rank)
        assert one["steps"] == expected["steps"]
        np.testing.assert_allclose(one["epochs"], expected["epochs"], rtol=1e-6)
        np.testing.assert_allclose(one["outputs"], expected["outputs"], rtol=1e-4, atol=1e-5)
        assert one["state"] == told(folder, name, 0)["state"]


@pytest.mark.slow
@WHOLE
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras, which copies the model
def test_in_a_fixed_order_all_bits_are_those_of_two_devices_of_one_process(several: tuple[Path, list[Any]]) -> None:
    folder, ends = several
    expected = alone("fixed")
    assert [told(folder, "fixed", rank) == expected for rank in range(len(ends))] == [True] * len(ends)


@pytest.mark.slow
def test_one_that_fails_has_its_traceback_and_the_others_an_error_that_says_where(
    several: tuple[Path, list[Any]],
) -> None:
    folder, ends = several
    assert all(end.returncode for end in ends)
    assert "ValueError: a fault of one replica" in ends[1].stderr
    message = told(folder, "lost", 0)["message"]
    assert message.startswith("phase 'train', epoch 1, step 4: ") and f"replica 0 of {len(ends)} could not " in message
    assert "about replica 1; errors of the other replicas" in message


def resumed(folder: Path, launcher: list[str], plan: list[int] | None, *, check: bool = True) -> None:
    """Train with checkpoints, by `python` and these arguments; the plan says which replica is killed, and when."""
    folder.mkdir(exist_ok=True)
    if plan is not None:
        (folder / "kill.json").write_text(json.dumps(plan))
    command = [sys.executable, *launcher, str(SCRIPT), str(folder), "resumed"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0 or not check, done.stderr[-2000:]
    assert (folder / "killed").exists() == (plan is not None)


def run_of(size: int, restarts: int = 0) -> list[str]:
    return ["-m", "anyaccel", "run", "--replicas", str(size), "--max-restarts", str(restarts)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run of three replicas tells that nobody kills."""
    folder = tmp_path_factory.mktemp("undisturbed")
    resumed(folder, run_of(3), None)
    return told(folder, "resumed", 0)


@pytest.mark.slow
@WHOLE
@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("launcher", ["anyaccel", "torchrun"])
def test_a_run_of_which_a_process_was_killed_ends_as_the_undisturbed_one(
    undisturbed: dict[str, Any], tmp_path: Path, launcher: str, victim: int
) -> None:
    """To the last bit; the launcher starts all anew."""
    command = run_of(3, restarts=1)
    if launcher == "torchrun":
        pytest.importorskip("torch")
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "--max-restarts", "1"]
    resumed(tmp_path, command, [victim, (7, 21, 30)[victim], signal.SIGKILL])
    for rank in range(3):
        assert told(tmp_path, "resumed", rank)["state"] == undisturbed["state"]
        assert told(tmp_path, "resumed", rank)["epochs"] == undisturbed["epochs"]


@pytest.mark.slow
@WHOLE
def test_replicas_of_another_number_go_on(undisturbed: dict[str, Any], tmp_path: Path) -> None:
    """Three end within an epoch and two go on, with the losses of one that nobody killed."""
    resumed(tmp_path, run_of(3), [1, 10, signal.SIGKILL], check=False)
    assert not (tmp_path / "resumed-0.json").exists()
    resumed(tmp_path, run_of(2), [1, 10, signal.SIGKILL])
    for rank in range(2):
        np.testing.assert_allclose(told(tmp_path, "resumed", rank)["epochs"], undisturbed["epochs"], rtol=1e-6)


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)


def train(*layers: keras.layers.Layer, **settings: Any) -> None:
    rows = aa.FeatureSet.from_dict("d", {"x": np.ones((8, 3), np.float32), "y": np.ones((8, 1))}, ["x"], ["y"])
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    graph = aa.ModelGraph([aa.ModelNode("net", model, rows.reference())], aa.Optimizer("sgd", lr=0.1))
    phase = aa.TrainPhase("train", data=rows, losses=[aa.AppliedLoss("mse", on="net")], **settings)
    aa.Experiment(graph, progress="none").run_phase(phase)


@pytest.mark.usefixtures("second_of_two")
@pytest.mark.parametrize("sync", [False, True])
def test_batch_normalization_is_refused_and_not_promised(sync: bool) -> None:
    expected = r"BatchNormalization in node 'net' mixes the rows of a batch\. Hint: set replicas=1"
    with pytest.raises(PhaseError, match=expected):
        train(keras.layers.BatchNormalization(), sync_batchnorm=sync)


@pytest.mark.usefixtures("second_of_two")
def test_a_framework_that_has_started_is_refused() -> None:
    expected = r"TensorFlow was started in replica 1 of 2 .*top of the script.*join\('tensorflow'\)"
    with pytest.raises(FrameworkError, match=expected):
        train()


@pytest.mark.usefixtures("second_of_two")
def test_replicas_that_do_not_meet_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_config, "is_started", lambda: False)
    monkeypatch.setenv("ANYACCEL_REPLICA_TIMEOUT", "0.1")
    expected = (
        r"replica 1 of 2 could not join .*no process listens at 127.0.0.1:3.*set MASTER_PORT to a port "
        r"followed by two"
    )
    with pytest.raises(FrameworkError, match=expected):
        join_cluster(1, 2)


def test_nothing_is_joined_without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join("tensorflow") is None


# -- the addresses of all ----------------------------------------------------------------------------------------------


def together(port: int, ranks: list[int], size: int) -> dict[int, Any]:
    """What each of these ranks gets, at the same time."""
    found: dict[int, Any] = {}

    def ask(number: int, rank: int) -> None:
        try:
            found[number] = addresses_of_all(rank, size, "127.0.0.1", port, 1.0)
        except OSError as error:
            found[number] = str(error)

    threads = [threading.Thread(target=ask, args=pair) for pair in enumerate(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_each_process_gets_the_addresses_of_all_by_rank() -> None:
    found = together(free_port(), [2, 0, 1], 3)
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == 3 and all(address.startswith("127.0.0.1:") for address in found[0])


def test_those_that_do_not_wait_for_the_same_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyaccel_tensorflow.replica_group._LATE_SECONDS", 0.5)
    port = free_port()
    waiting = [Waiting(rank, 4, "127.0.0.1", port) for rank in range(4)]
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(waiting[rank].absent, "save" if rank == 1 else "add") for rank in (0, 1, 2)]
    assert [one.result() for one in asked] == [[1, 3], [0, 2, 3], [1, 3]]
    assert Waiting(1, 2, "127.0.0.1", free_port()).absent("add") == [0]  # serves no longer


def test_a_process_that_does_not_come_is_named() -> None:
    assert together(free_port(), [0, 1], 3)[0] == "replica 2 of 3 did not arrive"


def test_two_of_one_rank_are_refused() -> None:
    assert together(free_port(), [0, 1, 1], 3)[0] == "two processes claim to be replica 1 of 3"
