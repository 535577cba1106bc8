"""Damage: a bit that changes in any file of a checkpoint is an error with a message, or changes nothing that is read.

A sample of bits is in every run; `nox -s damage`, or `ANYACCEL_TEST_FULL=1`, tries 2,000.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import saved_folder
from anyaccel.errors import AnyaccelError, StateError
from anyaccel.phases.checkpointing import run_folder

BITS = 2000 if os.environ.get("ANYACCEL_TEST_FULL") else 100


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


def contents(folder: Path):
    """All that is read of a checkpoint, as values that can be compared; lists of bytes for arrays."""
    position, state = run_folder.read(folder)
    graph = aa.ModelGraph.load(folder)
    plain, arrays = position.to_parts()
    exact = lambda held: {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in held.items()}  # noqa: E731
    return plain, exact(arrays), exact(state), exact(graph.state()), graph.get_config()


def test_every_bit_that_changes_is_told_or_changes_nothing(checkpoint):
    expected, files = contents(checkpoint), sorted(path for path in checkpoint.iterdir())
    assert len(files) >= 5
    sizes = [path.stat().st_size for path in files]
    draw = random.Random(0)
    # as many in each file, so that headers and small files have their share
    places = [(i, draw.randrange(sizes[i] * 8)) for i in (number % len(files) for number in range(BITS))]
    told = 0
    for i, bit in places:
        whole = files[i].read_bytes()
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        files[i].write_bytes(changed)
        try:
            assert contents(checkpoint) == expected, (files[i].name, bit)
        except AnyaccelError as error:
            told += 1
            assert error.problem and error.hint, (files[i].name, bit)
        finally:
            files[i].write_bytes(whole)
    harmless = sum(files[i].name == saved_folder.INDEX for i, _ in places)
    assert told >= 0.7 * (len(places) - harmless)  # the rest are blanks between the lines of the manifest
    assert contents(checkpoint) == expected


def test_every_bit_of_a_tensor_is_told_with_its_name(checkpoint):
    name = "net/parameters/layers.0.bias"
    state = saved_folder.read(checkpoint, "graph")[1]
    (file,) = (each for each in checkpoint.glob("state-*") if state[name].tobytes() in each.read_bytes())
    whole = file.read_bytes()
    at = whole.index(state[name].tobytes())
    for bit in range(state[name].nbytes * 8):
        changed = bytearray(whole)
        changed[at + bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        with pytest.raises(
            StateError, match=rf"{file.name}' differs from what was written: tensor {name} differs from what"
        ):
            saved_folder.read(checkpoint, "graph")
    file.write_bytes(whole)


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 9, -1])
def test_a_file_that_was_cut_is_told(checkpoint, cut):
    for file in [*checkpoint.glob("*.safetensors"), checkpoint / "manifest.json"]:
        whole = file.read_bytes()
        file.write_bytes(whole[:cut])
        with pytest.raises(AnyaccelError, match=rf"{file.name}' (is not|differs)"):
            contents(checkpoint)
        file.write_bytes(whole)
