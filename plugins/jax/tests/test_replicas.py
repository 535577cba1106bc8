"""Replicas in processes that jax.distributed joins, over gloo: the numbers are those of one process."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import anyaccel as aa
from anyaccel.errors import CapabilityError, FrameworkError, PhaseError
from anyaccel_distributed import join
from anyaccel_distributed.processes import free_port
from anyaccel_jax import SequentialMLP, runtime_config
from anyaccel_jax.replica_group import join_cluster, on_host, own_gpu

SCRIPT = Path(__file__).with_name("replica_script.py")
FULL = os.environ.get("ANYACCEL_TEST_FULL") == "1"
SIZES = (2, 4) if FULL else (2,)
TIMEOUT = 600 if FULL else 240  # four processes on two cores compile everything four times
WAYS = "plain,weighed,sourced,fixed,accumulated" if FULL else "plain,weighed,sourced"
"""Where everything is tested, `plain` has 105 steps."""
DIVIDED = "divided,divided_calls,normalized,scaled" if FULL else "divided,scaled"


def started(folder: Path, size: int) -> list[subprocess.CompletedProcess[str]]:
    """All replicas, without a launcher that would end those that are left when one fails."""
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, str(SCRIPT), str(folder), f"{WAYS},{DIVIDED},fail"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    every = [subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(r)}, **pipes) for r in range(size)]
    return [
        subprocess.CompletedProcess(p.args, p.returncode, *out)
        for p in every
        for out in [p.communicate(timeout=TIMEOUT)]
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process tells, with two virtual CPUs."""
    folder = tmp_path_factory.mktemp("alone")
    command = [sys.executable, str(SCRIPT), str(folder), f"{WAYS},{DIVIDED}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.fixture(scope="module", params=SIZES)
def several(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """What several processes tell, and how they end."""
    folder = tmp_path_factory.mktemp(f"of-{request.param}")
    return folder, started(folder, request.param)


def told(folder: Path, name: str, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}-{rank}.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WAYS.split(",") if name != "fixed"])
def test_losses_metrics_and_outputs_are_those_of_one_process(
    alone: Path, several: tuple[Path, list[Any]], name: str
) -> None:
    folder, ends = several
    expected = told(alone, name, 0)
    for rank, end in enumerate(ends):
        assert (folder / f"{name}-{rank}.json").exists(), end.stderr[-2000:]
        one = told(folder, name, rank)
        np.testing.assert_allclose(one["epochs"], expected["epochs"], rtol=1e-6)
        np.testing.assert_allclose(one["outputs"], expected["outputs"], rtol=1e-4, atol=1e-5)
        assert one["state"] == told(folder, name, 0)["state"]


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="a sample is run; ANYACCEL_TEST_FULL=1 runs all")
def test_in_a_fixed_order_all_bits_are_those_of_two_devices_of_one_process(
    alone: Path, several: tuple[Path, list[Any]]
) -> None:
    folder, ends = several
    for rank in range(len(ends)):
        assert told(folder, "fixed", rank)["state"] == told(alone, "fixed", 0)["state"]
        assert told(folder, "fixed", rank)["epochs"] == told(alone, "fixed", 0)["epochs"]


@pytest.mark.slow
def test_a_divided_node_beside_a_whole_one_has_the_numbers_of_one_process(
    alone: Path, several: tuple[Path, list[Any]]
) -> None:
    """Dropout included, in weighed and accumulated steps; and the part that each process has."""
    folder, ends = several
    expected = told(alone, "divided", 0)
    for rank, end in enumerate(ends):
        assert (folder / f"divided-{rank}.json").exists(), end.stderr[-2000:]
        one = told(folder, "divided", rank)
        np.testing.assert_allclose(one["epochs"], expected["epochs"], rtol=1e-6)
        assert one["values"].keys() == expected["values"].keys()
        for name, value in expected["values"].items():
            np.testing.assert_allclose(one["values"][name], value, rtol=1e-4, atol=1e-5)
        assert one["parts"] == {"first": 1 / len(ends), "net": 1.0}
        assert one["notes"][:2] == [
            f"parameters and optimizer state of 'first' are sharded over {len(ends)} replicas and gathered together",
            "parameters of 'net' are whole in each replica",
        ]


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="a sample is run; ANYACCEL_TEST_FULL=1 runs all")
def test_divided_processes_take_several_steps_in_a_call(alone: Path, several: tuple[Path, list[Any]]) -> None:
    """As many in all of them, which each would choose by its own clock; and their losses, in the order of the steps."""
    folder, ends = several
    expected, calls = told(alone, "divided_calls", 0), told(folder, "divided_calls", 0)["calls"]
    assert max(calls) > 1 and sum(calls) == sum(expected["calls"])
    for rank, _ in enumerate(ends):
        assert told(folder, "divided_calls", rank)["calls"] == calls
        np.testing.assert_allclose(told(folder, "divided_calls", rank)["losses"], expected["losses"], rtol=2e-6)
        one = told(folder, "divided_steps", rank)
        np.testing.assert_allclose(one["epochs"], told(alone, "divided_steps", 0)["epochs"], rtol=1e-6)
        assert one["state"] == told(folder, "divided_steps", 0)["state"]


@pytest.mark.slow
def test_divided_processes_skip_together_what_is_not_finite_in_float16(
    alone: Path, several: tuple[Path, list[Any]]
) -> None:
    folder, ends = several
    expected = told(alone, "scaled", 0)
    assert expected["several steps"] == 12 and len(expected["several events"]) == 2
    if FULL:
        ratios = [after / before for before, after in itertools.pairwise(expected["single scales"])]
        assert expected["single steps"] == 12 and 0.5 in ratios and 2.0 in ratios[ratios.index(0.5) :]
    for rank, _ in enumerate(ends):
        one = told(folder, "scaled", rank)
        assert one.keys() == expected.keys()
        for name, value in one.items():
            if name.endswith("values"):
                np.testing.assert_allclose(value, expected[name], rtol=1e-2, atol=1e-2)
                assert value == told(folder, "scaled", 0)[name]
            else:
                assert value == expected[name], name


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="a sample is run; ANYACCEL_TEST_FULL=1 runs all")
def test_a_run_with_a_divided_node_of_which_a_process_was_killed_ends_as_the_undisturbed_one(tmp_path: Path) -> None:
    states = []
    for victim in (None, 0, 1):
        folder = tmp_path / str(victim)
        folder.mkdir()
        if victim is not None:
            (folder / "kill.json").write_text(json.dumps([victim, 10, signal.SIGKILL]))
        launcher = ["-m", "anyaccel", "run", "--replicas", "2", "--max-restarts", "1"]
        command = [sys.executable, *launcher, str(SCRIPT), str(folder), "divided_resumed"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
        assert done.returncode == 0, done.stderr[-2000:]
        assert (folder / "killed").exists() == (victim is not None)
        states += [told(folder, "divided_resumed", rank)["state"] for rank in (0, 1)]
    assert all(state == states[0] for state in states)


@pytest.mark.slow
def test_one_that_fails_has_its_traceback_and_the_others_an_error_that_says_where(
    several: tuple[Path, list[Any]],
) -> None:
    folder, ends = several
    assert all(end.returncode for end in ends)
    assert "ValueError: a fault of one replica" in ends[1].stderr
    assert not list(folder.glob("never-*"))
    message = told(folder, "fail", 0)["message"]
    assert message.startswith("phase 'train', epoch 1, step ") and f"replica 0 of {len(ends)} could not " in message
    assert "another replica has ended or does not answer" in message


def resumed(folder: Path, launcher: list[str], plan: list[int] | None, *, check: bool = True) -> None:
    """Train with checkpoints, by `python` and these arguments; the plan says which replica is killed, and when."""
    folder.mkdir(exist_ok=True)
    if plan is not None:
        (folder / "kill.json").write_text(json.dumps(plan))
    command = [sys.executable, *launcher, str(SCRIPT), str(folder), "resumed"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
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
@pytest.mark.skipif(not FULL, reason="a sample is run; ANYACCEL_TEST_FULL=1 runs all")
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
@pytest.mark.skipif(not FULL, reason="a sample is run; ANYACCEL_TEST_FULL=1 runs all")
def test_replicas_of_another_number_go_on(undisturbed: dict[str, Any], tmp_path: Path) -> None:
    """Three end within an epoch and two go on, with the losses of one that nobody killed."""
    resumed(tmp_path, run_of(3), [1, 10, signal.SIGKILL], check=False)
    assert not (tmp_path / "resumed-0.json").exists()
    resumed(tmp_path, run_of(2), [1, 10, signal.SIGKILL])
    for rank in range(2):
        np.testing.assert_allclose(told(tmp_path, "resumed", rank)["epochs"], undisturbed["epochs"], rtol=1e-6)


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a process whose peer is never asked."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)


def train(model: Any, **settings: Any) -> None:
    rows = aa.FeatureSet.from_dict("d", {"x": np.ones((8, 3), np.float32), "y": np.ones((8, 1))}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", model, rows.reference())], aa.Optimizer("sgd", lr=0.1))
    phase = aa.TrainPhase("train", data=rows, losses=[aa.AppliedLoss("mse", on="net")], **settings)
    aa.Experiment(graph, progress="none").run_phase(phase)


@pytest.mark.usefixtures("second_of_two")
def test_a_framework_that_has_started_is_refused() -> None:
    with pytest.raises(FrameworkError, match=r"JAX was started in replica 1 of 2 .*top of the script.*join\('jax'\)"):
        train(SequentialMLP((1,)))


@pytest.mark.usefixtures("second_of_two")
@pytest.mark.parametrize(
    ("count", "local", "masked", "expected"),
    [(4, "1", "", {"local_device_ids": [1]}), (1, "1", "3", {}), (0, "1", "", {}), (4, "", "", {})],
    ids=["several GPUs", "one for each process", "none", "the launcher does not say"],
)
def test_each_process_has_a_gpu_of_its_own(
    count: int, local: str, masked: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_config, "expected_count", lambda kind: count if kind == "gpu" else 1)
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_RANK", local)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", masked)
    assert own_gpu(1, 2) == expected


def test_what_replicas_compare_goes_over_cpus_unless_jax_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_host(np.ones(2, np.uint8)).devices() == {jax.local_devices(backend="cpu")[0]}

    def none(backend: str) -> Any:
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setattr(jax, "local_devices", none)
    assert on_host(np.ones(2, np.uint8)).tolist() == [1, 1]


@pytest.mark.usefixtures("second_of_two")
@pytest.mark.parametrize(
    ("rank", "address", "says"),
    [
        (1, "nowhere", "its address is not HOST:PORT"),
        (1, "127.0.0.1:FREE", "Connection refused"),
        (0, "127.0.0.1:TAKEN", "Address already in use"),
    ],
)
def test_a_coordinator_that_cannot_be_is_an_error(
    rank: int, address: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX itself ends the process: by a signal, without an exception."""
    monkeypatch.setattr(runtime_config, "is_started", lambda: False)
    monkeypatch.setenv("ANYACCEL_REPLICA_TIMEOUT", "0.3")
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        address = address.replace("TAKEN", str(taken.getsockname()[1])).replace("FREE", str(free_port()))
        monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", address)
        with pytest.raises(
            FrameworkError, match=rf"could not join the others through JAX: .*{says}.*HOST:PORT to a port"
        ):
            join_cluster(rank, 2)


@pytest.mark.usefixtures("second_of_two")
def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_config, "expected_count", lambda kind: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(FrameworkError, match=r"replica 1 of 2 is number 1 on its machine.*1 GPU there.*JAX_PLATFORMS"):
        own_gpu(1, 2)


@pytest.mark.usefixtures("second_of_two")
@pytest.mark.parametrize("settings", [{}, {"sharding": "full"}])
def test_batch_normalization_is_told_unless_it_is_asked_to_be_synchronized(settings: dict[str, Any]) -> None:
    norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    with pytest.raises(PhaseError, match=r"BatchNorm in node 'net' mixes the rows.*Hint: set sync_batchnorm=True"):
        train(nnx.Sequential(norm, nnx.Linear(3, 1, rngs=nnx.Rngs(0))), **settings)


@pytest.mark.usefixtures("second_of_two")
def test_batch_normalization_is_refused_where_replicas_compute_their_own_rows() -> None:
    norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    with pytest.raises(PhaseError, match=r"BatchNorm in node 'net' mixes the rows of a batch\. Hint: set replicas=1"):
        train(nnx.Sequential(norm, nnx.Linear(3, 1, rngs=nnx.Rngs(0))), sync_batchnorm=True, residency="streamed")


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="a sample is run; ANYACCEL_TEST_FULL=1 runs all")
@pytest.mark.parametrize("name", ["normalized", "normalized_divided"])
def test_batches_are_normalized_by_the_rows_of_all(alone: Path, several: tuple[Path, list[Any]], name: str) -> None:
    folder, ends = several
    for rank, _ in enumerate(ends):
        one = told(folder, name, rank)
        np.testing.assert_allclose(one["epochs"], told(alone, name, 0)["epochs"], rtol=1e-5)
        assert one["state"] == told(folder, name, 0)["state"]


def test_nothing_is_joined_without_a_launcher_and_only_what_has_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join("jax") is None
    with pytest.raises(
        CapabilityError,
        match=r"numpy does not support replicas in several processes here.*leave join "
        r"out",
    ):
        join("numpy")
