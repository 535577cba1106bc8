"""Kills: what a process that was killed while it saved has left is removed by the next load and save, and nothing else.

20 processes are killed in every run; `ANYACCEL_TEST_KILLS=500` kills more.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import saved_folder
from anyaccel.graph import weight_files
from anyaccel.saved_folder.storage import LocalStorage, unique_token

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked, and files locked, as on Linux")
KILLS = int(os.environ.get("ANYACCEL_TEST_KILLS", "20"))
SHARD = 400_000


def state(number: int) -> dict[str, np.ndarray]:
    """Five shards, all of one number."""
    return {f"a{i}": np.full(SHARD // 4, number, np.float32) for i in range(5)}


def save(folder: Path, number: int) -> None:
    saved_folder.write(folder, {"graph": number}, state(number), {"r": np.full(3, number)}, largest_shard=SHARD)


def forked(act: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        act()
    finally:
        os._exit(0)


def saving_on(folder: Path) -> Callable[[], object]:
    def act() -> None:
        number = saved_folder.part(folder, "graph")
        while True:
            number += 1
            save(folder, number)

    return act


def kill(pid: int, seconds: float) -> None:
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def check_whole(folder: Path) -> int:
    """The state that is read is that of one save."""
    manifest, arrays = saved_folder.read(folder, "graph")
    number = manifest["graph"]
    assert arrays.keys() == state(number).keys()
    assert all((array == number).all() for array in arrays.values())
    return int(number)


def temporary(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith(".tmp")]


def test_what_a_killed_save_leaves_is_removed(tmp_path):
    draw = random.Random(0)
    save(tmp_path, 0)
    stopped_within = newest = 0
    for _ in range(KILLS):
        kill(forked(saving_on(tmp_path)), draw.uniform(0.0, 0.12))
        stopped_within += bool(temporary(tmp_path)) or len(list(tmp_path.glob("state-*"))) > 5
        number = check_whole(tmp_path)  # a load
        assert number >= newest
        assert not temporary(tmp_path)
        newest = number + 1
        save(tmp_path, newest)
        assert sorted(re.sub("-.*", "", path.name) for path in tmp_path.iterdir()) == sorted(
            ["manifest.json", "model.safetensors.index.json", "run", *["state"] * 5]
        )
        assert check_whole(tmp_path) == newest
    assert stopped_within >= KILLS // 5, "too few were killed while they saved to show anything"


def test_files_of_a_save_that_goes_on_stay(tmp_path):
    """Other processes load, and save, while one saves slowly."""
    save(tmp_path, 0)
    storage = LocalStorage(tmp_path)
    token = unique_token()
    with storage.create(f"state-{token}.safetensors") as stream:
        stream.write(b"abc")
        before = temporary(tmp_path)
        assert len(before) == 1
        pid = forked(lambda: (check_whole(tmp_path), save(tmp_path, 1)))
        assert os.waitpid(pid, 0)[1] == 0
        assert saved_folder.part(tmp_path, "graph") == 1
        assert temporary(tmp_path) == before
        save(tmp_path, 2)  # in the same process
    save(tmp_path, 3)
    assert (tmp_path / f"state-{token}.safetensors").read_bytes() == b"abc"
    storage.release()
    save(tmp_path, 4)
    assert not (tmp_path / f"state-{token}.safetensors").exists()


def test_a_load_removes_no_arrays_without_a_manifest(tmp_path):
    """They may be those of a copy of a folder that is not complete yet."""
    save(tmp_path / "a", 7)
    save(tmp_path / "b", 0)
    arrays = {path.name: path.read_bytes() for path in (tmp_path / "a").glob("*.safetensors")}
    for name, contents in arrays.items():
        (tmp_path / "b" / name).write_bytes(contents)
    check_whole(tmp_path / "b")
    (tmp_path / "b/manifest.json").write_bytes((tmp_path / "a/manifest.json").read_bytes())
    assert check_whole(tmp_path / "b") == 7


def test_what_another_machine_left_stays_for_an_hour(tmp_path):
    """Its locks may not be seen here."""
    save(tmp_path, 0)
    token = f"{int(unique_token()[:4], 16) ^ 1:04x}{unique_token()[4:]}"
    others = [f"state-{token}.safetensors", f".manifest.json.{token}.tmp", ".manifest.json.123-00ff00ff.tmp"]
    for name in others:
        (tmp_path / name).write_bytes(b"abc")
    (tmp_path / ".mine.json.00ff.tmp").write_bytes(b"not ours")
    save(tmp_path, 1)
    assert all((tmp_path / name).exists() for name in others)
    for name in [*others, ".mine.json.00ff.tmp"]:
        os.utime(tmp_path / name, (time.time() - 3700,) * 2)
    save(tmp_path, 2)
    assert not any((tmp_path / name).exists() for name in others)
    assert (tmp_path / ".mine.json.00ff.tmp").exists()


@pytest.mark.parametrize("act", ["load", "save"])
def test_a_file_of_weights(tmp_path, act):
    file = tmp_path / "net.safetensors"
    weight_files.write(file, {"a": np.zeros(3)})
    (tmp_path / ".other.safetensors.tmp").write_bytes(b"of something else")

    def killed() -> None:
        with LocalStorage(tmp_path).replacing(file.name) as path:
            path.write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(forked(killed), 0)
    assert len(temporary(tmp_path)) == 2
    if act == "load":
        np.testing.assert_array_equal(weight_files.read(file)["a"], np.zeros(3))
    else:
        weight_files.write(file, {"a": np.ones(3)})
    assert temporary(tmp_path) == [".other.safetensors.tmp"]


def test_the_folder_of_a_run(tmp_path):
    """A checkpoint that was not complete, and half a `latest`, go when a run begins."""
    x = np.zeros((8, 2), "float32")
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, 0]}, "x", "y")

    def train(resume: str) -> None:
        graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(hidden_dim=2), data.reference())], "sgd", seed=1)
        phase = aa.TrainPhase(
            "t", data="all", losses=[aa.AppliedLoss("mse")], epochs=1, checkpoint=aa.Checkpoint(tmp_path, keep=1)
        )
        aa.Experiment("e", graph, progress="none").run_phase(phase, resume=resume)

    train("never")
    (whole,) = tmp_path.glob("epoch-*")
    partial = tmp_path / "epoch-000009-step-000000000"

    def killed() -> None:
        partial.mkdir()
        arrays = f"state-{unique_token()}.safetensors"
        with LocalStorage(partial).create(arrays), LocalStorage(tmp_path).replacing("latest"):
            os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(forked(killed), 0)
    assert temporary(tmp_path) and temporary(partial)
    train("auto")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", whole.name, "latest"]
