"""Folders that earlier versions wrote are read: each is in `saved_folders`, with the numbers that came of it then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import anyaccel as aa

FOLDERS = sorted((Path(__file__).parent / "saved_folders").iterdir())


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def folder(request, tmp_path):
    return Path(shutil.copytree(request.param, tmp_path / "old"))


def data():
    x = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
    return aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, 0] - x[:, 1]}, "x", "y")


def expected(folder):
    return json.loads((folder / "expected.json").read_text())


def test_a_graph_is_loaded_with_its_state_and_predicts_the_same(folder):
    graph = aa.ModelGraph.load(folder / "graph")
    state = {name: np.asarray(array).reshape(-1).tolist() for name, array in graph.state().items()}
    assert state == expected(folder)["state"]
    results = aa.Experiment("p", graph, progress="none").run_phase(aa.EvalPhase("p", data=data()))
    np.testing.assert_allclose(results.prediction("net").reshape(-1), expected(folder)["predictions"], rtol=1e-5)


def test_a_run_goes_on_as_it_did_then(folder):
    model = aa.ModelNode("net", aa.SequentialMLP(hidden_dim=4), data().reference())
    graph = aa.ModelGraph([model], "adam", label="old", seed=1)
    phase = aa.TrainPhase(
        "train",
        data="all",
        losses=[aa.AppliedLoss("mse", on="net")],
        epochs=4,
        checkpoint=aa.Checkpoint(folder / "run", keep=1),
        callbacks=[aa.EarlyStopping("loss", patience=9, restore_best=True)],
    )
    results = aa.Experiment("e", graph, progress="none").run_phase(phase, resume="auto")
    assert len(results.loss) == 4
    np.testing.assert_allclose(results.loss, expected(folder)["losses"], rtol=1e-5)


def test_saving_there_again_writes_the_schema_of_today(folder):
    old = set((folder / "graph").glob("*.safetensors"))
    graph = aa.ModelGraph.load(folder / "graph")
    graph.save(folder / "graph")
    assert json.loads((folder / "graph" / "manifest.json").read_text())["schema_version"] == 2
    assert not old & set((folder / "graph").glob("*.safetensors"))
    assert aa.ModelGraph.load(folder / "graph").state().keys() == graph.state().keys()


def test_a_changed_file_is_told(folder):
    (file,) = (folder / "graph").glob("*.safetensors")
    contents = bytearray(file.read_bytes())
    contents[-1] ^= 1
    file.write_bytes(contents)
    with pytest.raises(
        aa.errors.StateError, match=r"differs from what was written: (its hash differs|tensor \S+ differs)"
    ):
        aa.ModelGraph.load(folder / "graph")
