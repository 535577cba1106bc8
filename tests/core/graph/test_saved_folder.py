"""Saved folders: a graph as a manifest and safetensors; what is loaded knows the transforms of its data."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from anyaccel import (
    AppliedLoss,
    EvalPhase,
    Experiment,
    FeatureSet,
    ModelGraph,
    ModelNode,
    SequentialMLP,
    TrainPhase,
    saved_folder,
)
from anyaccel.data.arrow_columns import Pad
from anyaccel.errors import ConfigError, StateError


@pytest.fixture(autouse=True)
def serve():
    """The registry of this process is used as it is: what is saved is read in other processes, too."""


def raw(seed=0):
    x = np.random.default_rng(seed).normal(3.0, 2.0, size=(40, 2))
    return FeatureSet.from_dict(
        "data", {"x": x, "y": x[:, 0] - x[:, 1], "id": list(map(str, range(40)))}, "x", "y", "id"
    )


def trained(data):
    graph = ModelGraph([ModelNode("net", SequentialMLP(), data.reference())], "adam", seed=1)
    phase = TrainPhase("train", data="all", losses=[AppliedLoss("mse", on="net")], epochs=2)
    Experiment("e", graph, progress="none").run_phase(phase)
    return graph


def predicted(graph, data, undo=False):
    return Experiment("p", graph, progress="none").run_phase(EvalPhase("p", data=data)).prediction("net", undo=undo)


def write_manifest(folder, manifest):
    """With the hash that belongs to it."""
    manifest = {name: part for name, part in manifest.items() if name != "sha256"}
    digest = hashlib.sha256(json.dumps(manifest, separators=(",", ":")).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({**manifest, "sha256": digest}))


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.dtype == second[name].dtype and array.tobytes() == second[name].tobytes(), name


def test_a_graph_comes_back_with_its_state_and_configuration(tmp_path):
    graph = trained(raw())
    graph.save(tmp_path / "saved")
    again = ModelGraph.load(tmp_path / "saved")
    assert_same(again.state(), graph.state())
    assert again.get_config() == graph.get_config()
    np.testing.assert_array_equal(predicted(again, raw()), predicted(graph, raw()))


class Mine(SequentialMLP):
    """A model that no backend names."""


def test_a_model_that_no_backend_names_is_asked_for_by_name(tmp_path):
    graph = trained(raw())
    graph["net"].model.__class__ = Mine
    graph.save(tmp_path)
    with pytest.raises(ConfigError, match=r"pass the model: models={'net': ...}; or, .*allow=\[Mine\]"):
        ModelGraph.load(tmp_path)
    again = ModelGraph.load(tmp_path, models={"net": SequentialMLP()})
    np.testing.assert_array_equal(predicted(again, raw()), predicted(graph, raw()))


def test_a_frameworks_own_optimizer_is_asked_for(tmp_path):
    graph = trained(raw())
    graph.save(tmp_path / "named")
    manifest = json.loads((tmp_path / "named" / "manifest.json").read_text())
    manifest["graph"]["optimizer"] = {"own": "nadam"}
    write_manifest(tmp_path / "named", manifest)
    with pytest.raises(ConfigError, match=r"trained by the optimizer 'nadam'.*load\(folder, optimizer=...\)"):
        ModelGraph.load(tmp_path / "named")
    assert ModelGraph.load(tmp_path / "named", optimizer="adam").optimizer.name == "adam"


@pytest.mark.parametrize("pad", [0.0, Pad(-1.0, multiple_of=4), Pad(0.0, length=8, mask="mask")])
def test_columns_whose_rows_differ_in_length_come_back(tmp_path, pad):
    rows = [np.arange(float(length)) for length in (2, 7, 5)]
    arrays = {"x": rows, "y": np.arange(3.0)}
    data = FeatureSet.from_dict("data", arrays, "x", "y", pad={"x": pad})
    graph = ModelGraph([ModelNode("net", SequentialMLP(), data.reference("x"))], "adam")
    graph.save(tmp_path)
    again = ModelGraph.load(tmp_path)
    schema = again.feature_sets["data"]
    assert schema.columns == data.columns and not len(schema)
    for name in data.columns:
        assert (schema.spec(name), schema.is_ragged(name)) == (data.spec(name), data.is_ragged(name))
    if isinstance(pad, Pad) and pad.length:
        np.testing.assert_array_equal(predicted(again, data), predicted(graph, data))


# -- the folder --------------------------------------------------------------------------------------------------------


def test_a_folder_has_a_manifest_and_arrays_that_other_tools_read(tmp_path):
    from safetensors.numpy import load_file

    graph = trained(raw())
    graph.save(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[:2] == ["manifest.json", "model.safetensors.index.json"] and len(names) == 3
    assert_same(load_file(tmp_path / names[2]), graph.state())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["format"], manifest["schema_version"]) == ("anyaccel", 2)
    assert manifest["written_by"]["anyaccel"] and manifest["arrays"][0]["file"] == names[2]


def test_saving_again_replaces_and_leaves_nothing(tmp_path):
    graph = trained(raw())
    for name in ("notes.txt", "manifest.previous.json"):
        (tmp_path / name).write_text("mine")
    graph.save(tmp_path)
    Experiment("e", graph, progress="none").run_phase(
        TrainPhase("train", data="all", losses=[AppliedLoss("mse", on="net")])
    )
    graph.save(tmp_path)
    assert_same(ModelGraph.load(tmp_path).state(), graph.state())
    assert len(list(tmp_path.iterdir())) == 5 and (tmp_path / "manifest.previous.json").read_text() == "mine"


def test_a_reader_whose_files_are_replaced_reads_the_new_ones(tmp_path, monkeypatch):
    graph, other = trained(raw()), trained(raw(1))
    graph.save(tmp_path)
    stat, calls = Path.stat, []

    def replaced_before(path, **settings):
        if path.suffix == ".safetensors" and not calls:
            calls.append(path)
            other.save(tmp_path)
        return stat(path, **settings)

    monkeypatch.setattr(Path, "stat", replaced_before)
    assert_same(ModelGraph.load(tmp_path).state(), other.state())
    assert len(calls) == 1 and not calls[0].exists()


def test_what_a_killed_writer_left_is_removed_after_an_hour(tmp_path):
    graph = trained(raw())
    graph.save(tmp_path)
    old = [".manifest.json.77.tmp", f".state-{'0' * 16}.safetensors.77.tmp", f"state-{'0' * 16}.safetensors"]
    new = [".manifest.json.78.tmp", f"state-{'1' * 16}.safetensors"]
    others = [".state.tmp", "state-of-the-art.safetensors"]
    for name in (*old, *new, *others):
        (tmp_path / name).write_text("")
    for name in (*old, *others):
        os.utime(tmp_path / name, (0, 0))
    graph.save(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert {*new, *others} <= left and not set(old) & left
    assert_same(ModelGraph.load(tmp_path).state(), graph.state())


@pytest.mark.parametrize("call", range(1, 7))
def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch, call):
    graph, other = trained(raw()), trained(raw(1))
    graph.save(tmp_path)
    calls, fsync = [], os.fsync

    def failing(descriptor):
        calls.append(descriptor)
        if len(calls) == call:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    try:
        other.save(tmp_path)
    except OSError:
        expected = graph if call < 4 else other  # the manifest is renamed between the third and the fourth
    else:
        expected = other
    assert_same(ModelGraph.load(tmp_path).state(), expected.state())
    assert not list(tmp_path.glob(".*"))


def test_a_changed_or_missing_file_is_named(tmp_path):
    trained(raw()).save(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    whole = file.read_bytes()
    for changed in (whole[:-1], whole[:200] + bytes([whole[200] ^ 1]) + whole[201:], b""):
        file.write_bytes(changed)
        with pytest.raises(StateError, match=r"state-\w+.safetensors' differs from what was written"):
            ModelGraph.load(tmp_path)
    file.unlink()
    with pytest.raises(StateError, match=r"safetensors' is missing or not a regular file. Hint: copy the whole folder"):
        ModelGraph.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a manifest of anyaccel"),
        ("[" * 100_000, "is not a manifest of anyaccel"),
        ('{"format": "other"}', "is not a manifest of anyaccel"),
        ('{"format": "anyaccel", "schema_version": 3}', r"has schema version 3.*reads versions up to 2"),
        ('{"format": "anyaccel", "schema_version": 2, "graph": {}}', r"manifest.json' differs from what was written"),
        ('{"format": "anyaccel", "format": "anyaccel"}', "a key occurs twice"),
        ('{"format": "anyaccel", "schema_version": 1, "graph": {"lr": NaN}}', "NaN is not a finite number"),
        ('{"format": "anyaccel", "schema_version": 1, "graph": {"lr": 1e999}}', "1e999 is not a finite number"),
        ('{"format": "anyaccel", "schema_version": 1, "arrays": []}', "holds no graph"),
        ('{"format": "anyaccel", "schema_version": 1, "arrays": 3, "graph": {}}', "names None, which is not a file"),
        *(
            (
                json.dumps({"format": "anyaccel", "schema_version": 1, "arrays": [{"file": name}], "graph": {}}),
                "not a file of",
            )
            for name in (
                "../x.safetensors",
                "/etc/x.safetensors",
                "a\\x.safetensors",
                "x.pickle",
                None,
                "C:x.safetensors",
            )
        ),
        ('{"format": "anyaccel", "schema_version": 1, "arrays": [], "graph": 3}', "not the configuration of a graph"),
        (
            '{"format": "anyaccel", "schema_version": 1, "arrays": [], "graph": {"nodes": [], "data": {"d": 3}}}',
            "is not the configuration of the data 'd'",
        ),
    ],
)
def test_a_foreign_or_hostile_manifest_is_an_error(tmp_path, text, message):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        ModelGraph.load(tmp_path)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path):
    trained(raw()).save(tmp_path / "a")
    (file,) = (tmp_path / "a").glob("*.safetensors")
    try:
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    except OSError:
        pytest.skip("no symbolic links here")
    with pytest.raises(StateError, match="missing or not a regular file"):
        ModelGraph.load(tmp_path / "a")


def test_what_is_no_folder_is_an_error(tmp_path):
    graph = trained(raw())
    with pytest.raises(ConfigError, match=r"has no manifest.json; the folder does not exist. Hint: pass the folder"):
        ModelGraph.load(tmp_path / "none")
    with pytest.raises(ConfigError, match="3 is not a folder"):
        graph.save(3)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"is a file. Hint: choose a name for a new folder"):
        graph.save(tmp_path / "file")
    (tmp_path / "manifest.json").write_text('{"name": "an app"}')
    with pytest.raises(ConfigError, match="is not a manifest of anyaccel"):
        graph.save(tmp_path)
    assert Path(tmp_path / "manifest.json").read_text() == '{"name": "an app"}'


def test_arrays_that_safetensors_does_not_know_are_an_error(tmp_path):
    with pytest.raises(StateError, match=r"cannot be written as safetensors.*complex128"):
        saved_folder.write(tmp_path, {}, {"z": np.ones(2, np.complex128)})


def test_a_folder_that_holds_more_is_not_replaced(tmp_path):
    """The results of an experiment would be gone (issue 13)."""
    graph = trained(raw())
    graph.save(tmp_path, extra={"note": {"by": "me"}})
    with pytest.raises(ConfigError, match="also holds note, which would be lost") as raised:
        graph.save(tmp_path)
    assert raised.value.hint == "choose a name for a new folder, or remove this one first"
    assert saved_folder.part(tmp_path, "note") == {"by": "me"}
    graph.save(tmp_path, extra={"note": {"by": "you"}, "more": 1})
    assert saved_folder.part(tmp_path, "note") == {"by": "you"}


def test_an_extra_part_cannot_stand_for_the_graph(tmp_path):
    with pytest.raises(ConfigError, match="extra has a part 'graph', which is the graph itself"):
        trained(raw()).save(tmp_path, extra={"graph": {}})
