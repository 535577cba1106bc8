"""`anyaccel checkpoint verify` finds damage in every file, also in those that no load reads.

A sample of bits is in every run; `nox -s damage`, or `ANYACCEL_TEST_FULL=1`, tries 2,000.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import saved_folder
from anyaccel_devtools.commands.checkpoint import verify

BITS = 2000 if os.environ.get("ANYACCEL_TEST_FULL") else 200


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """A checkpoint with two shards of a state, and arrays that only a run needs."""
    folder = tmp_path_factory.mktemp("run")
    x = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, 0] - x[:, 1]}, "x", "y")
    graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(hidden_dim=4), data.reference())], "adam", seed=1)
    phase = aa.TrainPhase(
        "t",
        data="all",
        losses=[aa.AppliedLoss("mse", on="net")],
        epochs=2,
        checkpoint=aa.Checkpoint(folder, keep=1),
        callbacks=[aa.EarlyStopping("loss", patience=9, restore_best=True)],
    )
    aa.Experiment("e", graph, progress="none").run_phase(phase)
    (written,) = folder.glob("epoch-*")
    manifest, state = saved_folder.read(written, "graph")
    parts = {name: manifest[name] for name in ("graph", "checkpoint")}
    saved_folder.write(written, parts, state, saved_folder.read(written, "graph", "run")[1], largest_shard=200)
    return written


@pytest.fixture
def run(checkpoint, tmp_path) -> Path:
    """A run with that checkpoint as the newer of two."""
    folder = tmp_path / "run"
    shutil.copytree(checkpoint.parent, folder)
    shutil.copytree(checkpoint, folder / "epoch-000001-step-000000000")
    assert (folder / "latest").read_text() == f"{checkpoint.name}\n"
    assert is_verified(folder)
    return folder


def is_verified(folder: Path) -> bool:
    return verify(str(folder), True) == 0


def files_of(run: Path) -> list[Path]:
    """All files but the lock, which is empty."""
    return sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")


def test_verify_finds_every_bit_that_changes(run):
    draw, files = random.Random(1), files_of(run)
    assert {path.name.partition("-")[0] for path in files} == {
        *("latest", "manifest.json", "model.safetensors.index.json", "run", "state")
    }
    sizes = [path.stat().st_size for path in files]
    for number in range(BITS):
        i = number % len(files)
        bit = draw.randrange(sizes[i] * 8)
        whole = files[i].read_bytes()
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        files[i].write_bytes(changed)
        assert not is_verified(run), (files[i].name, bit)
        files[i].write_bytes(whole)
    assert is_verified(run)


def test_verify_finds_files_that_were_cut_exchanged_or_lost(run, checkpoint):
    for file in files_of(run):
        whole = file.read_bytes()
        for contents in (b"", whole[:-1], whole[: len(whole) // 2], whole + b"\0", bytes(len(whole))):
            file.write_bytes(contents)
            assert not is_verified(run), (file.name, len(contents))
        file.write_bytes(whole)
        if file.name != "latest":
            file.unlink()
            is_none = file.name == "manifest.json"  # what has no manifest is no checkpoint
            assert is_none or not is_verified(run), file.name
            file.write_bytes(whole)
    arrays = sorted((run / checkpoint.name).glob("*.safetensors"))
    for first, second in itertools.pairwise(arrays):
        contents = first.read_bytes(), second.read_bytes()
        first.write_bytes(contents[1])
        second.write_bytes(contents[0])
        assert not is_verified(run)
        first.write_bytes(contents[0])
        second.write_bytes(contents[1])
    assert is_verified(run)


def test_verify_finds_files_of_another_save(run, checkpoint, tmp_path):
    """With the same names and shapes, and other values."""
    other, one = tmp_path / "other", run / checkpoint.name
    manifest, state = saved_folder.read(checkpoint, "graph")
    parts = {name: manifest[name] for name in ("graph", "checkpoint")}
    changed = {name: array + 1 if array.dtype.kind == "f" else array for name, array in state.items()}
    saved_folder.write(other, parts, changed, saved_folder.read(checkpoint, "graph", "run")[1], largest_shard=200)
    mine, theirs = (sorted(folder.glob("state-*")) for folder in (one, other))
    for file in mine:
        whole = file.read_bytes()
        for replacement in theirs:
            file.write_bytes(replacement.read_bytes())
            assert not is_verified(run), file.name
        file.write_bytes(whole)
    for name in ("manifest.json", "model.safetensors.index.json"):
        whole = (one / name).read_bytes()
        (one / name).write_bytes((other / name).read_bytes())
        assert not is_verified(run), name
        (one / name).write_bytes(whole)
    assert is_verified(run)
