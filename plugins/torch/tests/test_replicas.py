"""Replicas in real processes, joined by gloo: the numbers are those of one process, and none is left waiting."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyaccel as aa
from anyaccel.errors import ConfigError, FrameworkError, PhaseError
from anyaccel_distributed.processes import free_port

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

SCRIPTS = Path(__file__).with_name("replica_scripts.py")


def run(names: str, folder: Path, size: int, *, by: str = "anyaccel") -> subprocess.CompletedProcess[str]:
    """Run functions of the scripts in so many processes, or in this many without a launcher if that is one."""
    launchers = {
        "anyaccel": ["-m", "anyaccel", "run", "--replicas", str(size)],
        "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)],
        "none": [],
    }
    command = [sys.executable, *launchers[by], str(SCRIPTS), names, str(folder)]
    env = {**os.environ, "ANYACCEL_TORCH_SIMULATE": "2"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)


def succeeded(names: str, folder: Path, size: int, *, by: str = "anyaccel") -> Path:
    """The folder in which they told what they found."""
    answer = run(names, folder, size, by=by)
    assert answer.returncode == 0, answer.stderr
    return folder


def told(folder: Path, name: str, size: int) -> list[Any]:
    """What each replica told."""
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process tells of the same training."""
    return succeeded("train,unused", tmp_path_factory.mktemp("alone"), 1, by="none")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two replicas tell of everything that succeeds."""
    return succeeded("train,beside_ddp,unused,disagree,stop,mixed,leave", tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(scope="module")
def in_calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two replicas tell of trainings in calls of several steps, and one by one."""
    return succeeded("calls", tmp_path_factory.mktemp("calls"), 2)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What three replicas of torchrun tell, which cannot share batches of 50 rows evenly."""
    return succeeded("train", tmp_path_factory.mktemp("three"), 3, by="torchrun")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "streamed", "accumulated"])
@pytest.mark.parametrize("size", ["two", pytest.param("three", marks=pytest.mark.whole)])
def test_losses_are_those_of_one_process(alone: Path, request: pytest.FixtureRequest, name: str, size: str) -> None:
    folder = request.getfixturevalue(size)
    expected = told(alone, name, 1)[0]
    for one in told(folder, name, {"two": 2, "three": 3}[size]):
        assert one["steps"] == expected["steps"]
        np.testing.assert_allclose(one["epochs"], expected["epochs"], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "streamed", "accumulated", "unused"])
def test_all_replicas_have_the_same_weights_to_the_last_bit(two: Path, name: str) -> None:
    first, second = told(two, name, 2)
    assert first["weights"] == second["weights"]


@pytest.mark.slow
def test_weights_are_those_of_distributed_data_parallel(two: Path) -> None:
    for one in told(two, "ddp", 2):
        assert one["apart"] < 1e-6


@pytest.mark.slow
def test_parameters_that_only_some_replicas_use_are_trained_as_in_one_process(alone: Path, two: Path) -> None:
    expected = told(alone, "unused", 1)[0]
    for one in told(two, "unused", 2):
        assert one["same"]  # no gradient in any: no weight decay either
        assert one["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        for own, other in zip(one["weights"], expected["weights"], strict=True):
            np.testing.assert_allclose(own, other, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dropout", "two losses", "ragged", "scaled", "weighted", "idle", "heard"])
def test_calls_of_several_steps_have_the_numbers_of_single_steps(in_calls: Path, name: str) -> None:
    together, single = told(in_calls, f"calls {name} auto", 2), told(in_calls, f"calls {name} steps", 2)
    assert together[0]["weights"] == together[1]["weights"]
    n_steps = 4 * (6 if name == "ragged" else 5)
    for one, other in zip(together, single, strict=True):
        np.testing.assert_allclose(one["losses"], other["losses"], rtol=1e-6)
        for own, others in zip(one["weights"], other["weights"], strict=True):
            np.testing.assert_allclose(own, others, rtol=1e-5, atol=2e-6)
        np.testing.assert_allclose(one["steps"], other["steps"], rtol=1e-6)
        assert other["pulled"] == n_steps and one["pulled"] == n_steps * (name == "weighted")
        assert len(one["steps"]) == n_steps * (name == "heard")


@pytest.mark.slow
def test_one_that_asks_to_stop_stops_all(two: Path) -> None:
    expected = {"after_loading": 0, "epoch_start": 1, "epoch_end": 2}
    assert [one["epochs"] for one in told(two, "stop", 2)] == [expected, expected]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model", "the loss 'net' depends on a model that mixes the rows of a batch: over one batch it is "),
        ("loss", "the loss 'net' is not a mean over rows: over one batch it is "),
        ("buffer", "the buffer 'net/buffers/mean' differed between replicas"),
    ],
)
def test_what_takes_the_rows_of_a_whole_batch_is_told_once_by_the_first(two: Path, name: str, message: str) -> None:
    first, second = told(two, f"mixed-{name}", 2)
    (own,) = first["messages"]
    assert message in own and own.endswith("replicas=1")
    assert second["messages"] == []
    assert first["buffers"] == second["buffers"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="threads are listed by Linux")
def test_no_thread_of_the_group_is_left_when_it_is_left(two: Path) -> None:
    for one in told(two, "leave", 2):
        assert one["threads"]
        assert not [name for name in one["threads"] if "gloo" in name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "named", "hint"),
    [
        ("model", "the values of 'net", "seed the framework before you create the model"),
        ("seed", "the seed", "use the same model, data and seed"),
        ("data", "the rows that the samplers draw", "use the same model, data and seed"),
        ("setting", "the setting 'epochs' of the phase", "start the same files in every process"),
        ("optimizer", "the settings of 'optimizer'", "start the same files in every process"),
        ("code", "the file 'replica_scripts.py'", "start the same files in every process"),
    ],
)
def test_replicas_that_disagree_are_refused_before_the_first_step(two: Path, what: str, named: str, hint: str) -> None:
    for one in told(two, "disagree", 2):
        message, is_untrained = one["messages"][what]
        assert f"the replicas disagree before the first step: {named}" in message
        assert "differ in replica 1 (counted from 0)" in message and hint in message
        assert is_untrained


@pytest.mark.slow
def test_a_node_on_a_device_of_its_own_beside_replicas_is_refused(two: Path) -> None:
    for one in told(two, "disagree", 2):
        message, is_untrained = one["messages"]["device"]
        assert (
            "would train on one device: node 'net' on sim:1 in replica 0, node 'net' on sim:1 in replica 1" in message
        )
        assert "Hint: leave the accelerator of the node out" in message
        assert is_untrained


@pytest.mark.slow
def test_one_that_fails_ends_all_with_its_traceback(tmp_path: Path) -> None:
    answer = run("fail", tmp_path, 2)
    assert answer.returncode == 1
    assert "ValueError: a fault of one replica" in answer.stderr
    assert "anyaccel run: replica " in answer.stderr


@pytest.mark.slow
def test_without_a_launcher_the_others_end_with_an_error_of_their_own(tmp_path: Path) -> None:
    port = str(free_port())
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, str(SCRIPTS), "fail", str(tmp_path)]
    both = [subprocess.Popen(command, env={**shared, "RANK": rank}, stderr=subprocess.DEVNULL) for rank in "01"]
    assert [process.wait(120) for process in both] == [1, 1]
    one = json.loads((tmp_path / "fail-0.json").read_text())
    assert "replica 0 of 2 could not " in one["message"]
    assert "another replica has ended or does not answer" in one["message"]


@pytest.mark.slow
def test_one_that_is_killed_within_a_call_of_several_steps_is_named_with_the_step(tmp_path: Path) -> None:
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, str(SCRIPTS), "lost", str(tmp_path)]
    both = [subprocess.Popen(command, env={**shared, "RANK": rank}, stderr=subprocess.DEVNULL) for rank in "01"]
    assert [process.wait(120) for process in both] == [1, -signal.SIGKILL]
    one = json.loads((tmp_path / "lost in a call-0.json").read_text())
    assert one["message"].startswith(
        "phase 'train', epoch 4, step 3: replica 0 of 2 could not average the gradients: replica 1 ended"
    )
    assert "another replica has ended or does not answer" in one["message"]
    assert "it was step 4 of epoch 5" in one["notes"]
    assert one["seconds"] < 30


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a process whose peer is never asked: what cannot be shared is refused before."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)


def shared_phase(model: torch.nn.Module, loss: aa.AppliedLoss) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(16, 3)).astype("float32"), np.ones((16, 1), "float32")
    rows = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1], "w": w}, features=["x"], target=["y"], tags=["w"])
    graph = aa.ModelGraph([aa.ModelNode("net", model, rows.reference())], aa.Optimizer("sgd", lr=0.1))
    aa.Experiment(graph).run_phase(aa.TrainPhase("train", data=rows, losses=[loss], batch_size=4))


@pytest.mark.usefixtures("second_of_two")
def test_batch_normalization_is_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    with pytest.raises(PhaseError, match=r"cannot be trained by several replicas: .*BatchNorm.* in node 'net' mixes"):
        shared_phase(model, aa.AppliedLoss("mse", on="net"))


@pytest.mark.usefixtures("second_of_two")
def test_a_loss_that_is_a_sum_is_refused() -> None:
    loss = aa.AppliedLoss(torch.nn.MSELoss(reduction="sum"), on="net")
    with pytest.raises(
        PhaseError, match=r"shares batches among replicas, and the loss .* is a sum over rows.*write replicas=1"
    ):
        shared_phase(torch.nn.Linear(3, 1), loss)


def test_a_timeout_that_is_none_is_named_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in {**place, "ANYACCEL_REPLICA_TIMEOUT": "soon"}.items():
        monkeypatch.setenv(name, value)
    rows = aa.FeatureSet.from_dict("d", {"x": np.zeros((4, 2), "float32"), "y": np.zeros((4, 1), "float32")}, "x", "y")
    graph = aa.ModelGraph([aa.ModelNode("net", torch.nn.Linear(2, 1), rows.reference())], "adam")
    with pytest.raises(
        ConfigError,
        match=r"^ANYACCEL_REPLICA_TIMEOUT='soon' is not a number of seconds above 0\. "
        r"Hint: ",
    ):
        aa.Experiment(graph).run_phase(aa.TrainPhase("t", data=rows, losses=[aa.AppliedLoss("mse", on="net")]))


def test_one_that_waits_for_others_in_vain_is_told_what_they_may_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    places = {
        "RANK": 0,
        "WORLD_SIZE": 2,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "ANYACCEL_REPLICA_TIMEOUT": 1,
    }
    for name, value in places.items():
        monkeypatch.setenv(name, str(value))
    expected = r"replica 0 of 2 could not join the others: .*Hint: run the phase, or create the loop, in all processes"
    rows = aa.FeatureSet.from_dict("d", {"x": np.zeros((4, 2), "float32"), "y": np.zeros((4, 1), "float32")}, "x", "y")
    graph = aa.ModelGraph([aa.ModelNode("net", torch.nn.Linear(2, 1), rows.reference())], "adam")
    with pytest.raises(FrameworkError, match=expected):
        aa.Experiment(graph).run_phase(aa.TrainPhase("t", data=rows, losses=[aa.AppliedLoss("mse", on="net")]))
