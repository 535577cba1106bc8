"""`anyaccel checkpoint`: what is in the folders of runs and graphs, without loading a plugin."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from anyaccel import (
    AppliedLoss,
    Checkpoint,
    FeatureSet,
    ModelGraph,
    ModelNode,
    SequentialMLP,
    SimpleSampler,
    TrainPhase,
    saved_folder,
)
from anyaccel_devtools.commands.checkpoint import diff

COMMANDS = ("convert", "diff", "list", "show", "verify")
X = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")


def graph(seed=0, hidden=4):
    data = FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    nodes = [
        ModelNode("net", SequentialMLP(2, 2, hidden), data.reference()),
        ModelNode("head", SequentialMLP(1), "net"),
    ]
    return ModelGraph(nodes, "adam", seed=seed)


@pytest.fixture
def run(tmp_path):
    """The folder of a run with three checkpoints, of which the second has the lowest score."""
    where = tmp_path / "run"
    phase = TrainPhase(
        "train",
        data="all",
        losses=[AppliedLoss("mse", on="head")],
        sampler=SimpleSampler(6, shuffle=True, seed=0),
        epochs=3,
        checkpoint=Checkpoint(where, keep=5, keep_best="loss"),
    )
    graph().run(phase, progress="none")
    second = where / "epoch-000002-step-000000000"
    manifest, state = saved_folder.read(second, "checkpoint")
    parts = {"graph": manifest["graph"], "checkpoint": {**manifest["checkpoint"], "score": 0.25}}
    saved_folder.write(second, parts, state)
    return where


def newest(run: Path) -> Path:
    return run / (run / "latest").read_text().strip()


def damage(folder: Path) -> Path:
    """Flip a bit of the last tensor in a folder's file."""
    file = next(folder.glob("state-*.safetensors"))
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    return file


# -- all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_in_the_help_are_valid_commands(command, call):
    answer = call("checkpoint", command, "--help")
    assert answer.exit_code == 0
    examples = re.findall(r"^ {4}anyaccel (.*?)$", answer.stdout.partition("Examples:")[2], re.MULTILINE)
    assert examples and all(call(*example.split(), "--help").exit_code == 0 for example in examples)


def test_the_help_lists_every_command_with_a_sentence(call):
    listed = call("checkpoint", "--help").stdout.partition("Commands:")[2].strip().splitlines()
    assert [line.split()[0] for line in listed] == list(COMMANDS)
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)


def test_only_convert_loads_plugins(run, call, monkeypatch, tmp_path):
    def refuse(*arguments):
        raise AssertionError("plugins are loaded")

    monkeypatch.setattr("anyaccel.cli.plugin_loading.load_plugins", refuse)
    for arguments in (("list", run), ("show", run), ("diff", run, run), ("verify", run)):
        assert call("checkpoint", *map(str, arguments)).exit_code == 0
    with pytest.raises(AssertionError, match="plugins are loaded"):
        call("checkpoint", "convert", str(run), str(tmp_path / "w.safetensors"))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_folder_that_is_none_is_refused(command, flags, call, tmp_path):
    (tmp_path / "empty").mkdir()
    for name, cause in (("nope", "the folder does not exist"), ("empty", "the folder is empty")):
        folder = str(tmp_path / name)
        further = {"diff": [folder], "convert": [str(tmp_path / "w.safetensors")]}.get(command, [])
        answer = call("checkpoint", command, folder, *further, *flags)
        assert answer.exit_code == 2
        message = json.loads(answer.stdout)["error"]["message"] if flags else answer.stderr
        assert f"'{folder}' has no checkpoints; {cause}. Hint: pass the folder of a Checkp" in message


def test_a_manifest_of_something_else_is_refused(call, tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    answer = call("checkpoint", "show", str(tmp_path))
    assert answer.exit_code == 2 and "is not a manifest of anyaccel" in answer.stderr


# -- list --------------------------------------------------------------------------------------------------------------


def test_checkpoints_of_a_run_are_listed(run, call):
    answer = call("checkpoint", "list", str(run))
    assert answer.exit_code == 0 and answer.stderr == ""
    header, *rows = answer.stdout.splitlines()
    assert header.split() == ["checkpoint", "phase", "epochs", "steps", "score", "size", "written"]
    assert [row.split()[0] for row in rows] == [f"epoch-00000{i}-step-000000000" for i in (1, 2, 3)]
    assert [row.split()[1:4] for row in rows] == [["train", str(i), "0"] for i in (1, 2, 3)]
    assert rows[1].split()[4] == "0.25" and rows[1].endswith("best  ") and rows[2].endswith("newest")
    report = json.loads(call("checkpoint", "list", str(run), "--json").stdout)
    assert report["unreadable"] == {} and report["folder"] == str(run)
    assert [each["newest"] for each in report["checkpoints"]] == [False, False, True]
    assert [each["best"] for each in report["checkpoints"]] == [False, True, False]
    size = sum(file.stat().st_size for file in newest(run).glob("*.safetensors"))
    assert report["checkpoints"][2]["bytes"] == size


def test_a_checkpoint_that_cannot_be_read_is_listed_with_the_reason(run, call):
    (newest(run) / "manifest.json").write_text("{}")
    answer = call("checkpoint", "list", str(run))
    assert answer.exit_code == 0 and len(answer.stdout.splitlines()) == 4
    assert "epoch-000003-step-000000000 cannot be read: " in answer.stdout.splitlines()[-1]
    report = json.loads(call("checkpoint", "list", str(run), "--json").stdout)
    assert list(report["unreadable"]) == ["epoch-000003-step-000000000"] and len(report["checkpoints"]) == 2


def test_a_saved_graph_is_no_run(call, tmp_path):
    graph().save(tmp_path)
    answer = call("checkpoint", "list", str(tmp_path))
    assert answer.exit_code == 2
    hint = f"Hint: it is a single saved graph or checkpoint: use anyaccel checkpoint show {tmp_path}."
    assert answer.stderr.strip().endswith(hint)
    assert call(*hint.partition("anyaccel ")[2].removesuffix(".").split()).exit_code == 0


# -- show --------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_shown(run, call):
    answer = call("checkpoint", "show", str(run))
    assert answer.exit_code == 0
    lines = [line.rstrip() for line in answer.stdout.splitlines()]
    assert lines[0] == f"checkpoint {newest(run)}"
    assert re.fullmatch(r"phase 'train': 3 epochs and 0 steps of the next; score \d\.\d+", lines[1])
    assert re.fullmatch(r"written [\d-]+ [\d:]+ by anyaccel .*, numpy .* \(schema \d\)", lines[2])
    assert lines[3:7] == [
        "graph 'graph', seed 0",
        "node  model          framework  takes",
        "net   SequentialMLP  numpy      data.x",
        "head  SequentialMLP  numpy      net",
    ]
    rows = [re.split(r"  +", line) for line in lines[8:-1]]
    assert ["net/parameters/layers.0.weight", "float32", "[4, 3]", "48 B"] in rows
    state = saved_folder.read(newest(run), "checkpoint")[1]
    assert sorted(row[0] for row in rows if not row[0].startswith("run:")) == sorted(state)
    total = sum(array.nbytes for array in state.values())
    assert lines[-1].startswith(f"{len(rows)} arrays, ") and total < 2048


def test_what_is_shown_as_json_is_whole(run, call):
    report = json.loads(call("checkpoint", "show", str(newest(run)), "--json").stdout)
    assert report["parts"]["graph"]["nodes"][0]["label"] == "net" and report["parts"]["checkpoint"]["epoch"] == 3
    arrays = {each["name"]: each for each in report["arrays"]}
    state = saved_folder.read(newest(run), "checkpoint")[1]
    assert all(arrays[name]["shape"] == list(array.shape) for name, array in state.items())
    assert all(arrays[name]["dtype"] == str(array.dtype) for name, array in state.items())
    assert all(arrays[name]["bytes"] == array.nbytes for name, array in state.items())


def test_a_missing_file_of_arrays_is_named(run, call):
    file = next(newest(run).glob("state-*.safetensors"))
    file.unlink()
    answer = call("checkpoint", "show", str(run))
    assert answer.exit_code == 2 and f"'{file}' is missing or not a regular file" in answer.stderr


# -- diff --------------------------------------------------------------------------------------------------------------


def test_the_same_does_not_differ(run, call):
    answer = call("checkpoint", "diff", str(run), str(newest(run)))
    assert answer.exit_code == 0 and answer.stdout.strip() == f"{newest(run)} and {newest(run)} are equal"
    report = json.loads(call("checkpoint", "diff", str(run), str(run), "--json").stdout)
    assert report["values"] == report["arrays"] == []


def test_differences_of_configurations_and_arrays_are_shown(call, tmp_path):
    one, other = graph(), graph(seed=1, hidden=5)
    other["net"].frozen = True
    one.save(tmp_path / "one")
    other.save(tmp_path / "other")
    answer = call("checkpoint", "diff", str(tmp_path / "one"), str(tmp_path / "other"))
    assert answer.exit_code == 1
    rows = [re.split(r"  +", line.strip()) for line in answer.stdout.splitlines()]
    assert ["graph.seed", "0", "1"] in rows and ["graph.nodes.net.frozen", "False", "True"] in rows
    assert ["graph.nodes.net.model.config.hidden_dim", "4", "5"] in rows
    assert ["net/parameters/layers.0.bias", "float32[4]", "float32[5]"] in rows
    assert ["seed", "int64[]", "int64[]", "1"] in rows
    state, after = one.state(), other.state()
    name = "head/parameters/layers.0.weight"
    largest = float(np.abs(state[name].astype("f8") - after[name]).max())
    report = json.loads(call("checkpoint", "diff", str(tmp_path / "one"), str(tmp_path / "other"), "--json").stdout)
    assert {each["name"]: each["largest"] for each in report["arrays"]}[name] == largest
    assert [name, "float32[16, 2]", "float32[16, 2]", f"{largest:.6g}"] in rows


@pytest.mark.parametrize(
    ("first", "second", "largest"),
    [
        (np.array([2**62, 0]), np.array([2**62 + 1, 0]), 1),
        (np.array([-(2**63)]), np.array([2**63 - 1]), 2**64 - 1),
        (np.array([1.0, np.nan]), np.array([3.0, np.nan]), 2.0),
        (np.array([1.0, 2.0]), np.array([np.nan, 2.0]), "nan"),
        (np.array([np.inf, 1.0]), np.array([np.inf, 2.0]), 1.0),
        (np.array([np.inf]), np.array([0.0]), "inf"),
        (np.array([True]), np.array([False]), 1.0),
        (np.array([1 + 1j], "c8"), np.array([1 - 1j], "c8"), 2.0),
        (np.array([1], "u1"), np.array([3], "u1"), 2),
    ],
)
def test_the_largest_difference_of_arrays(first, second, largest, tmp_path, capsys):
    for name, array in (("a", first), ("b", second)):
        saved_folder.write(tmp_path / name, {"graph": {}}, {"x": array})
    assert diff(str(tmp_path / "a"), str(tmp_path / "b"), True) == 1
    assert json.loads(capsys.readouterr().out)["arrays"][0]["largest"] == largest


def test_arrays_that_only_one_has_are_shown(call, tmp_path):
    saved_folder.write(tmp_path / "a", {"graph": {}}, {"x": X}, run={"r": X})
    saved_folder.write(tmp_path / "b", {"graph": {}}, {"y": X})
    answer = call("checkpoint", "diff", str(tmp_path / "a"), str(tmp_path / "b"))
    rows = [re.split(r"  +", line.strip()) for line in answer.stdout.splitlines()[1:]]
    assert rows == [["x", "float32[12, 3]", "-"], ["run:r", "float32[12, 3]", "-"], ["y", "-", "float32[12, 3]"]]


# -- verify ------------------------------------------------------------------------------------------------------------


def test_whole_checkpoints_are_verified(run, call):
    answer = call("checkpoint", "verify", str(run))
    assert answer.exit_code == 0
    assert [line.split()[0] for line in answer.stdout.splitlines()] == ["ok"] * 3
    assert call("checkpoint", "verify", str(newest(run))).stdout.startswith(f"ok       {newest(run)}: ")


def test_what_is_damaged_is_named_and_the_rest_is_verified_too(run, call):
    file = damage(newest(run))
    (run / "epoch-000001-step-000000000" / "manifest.json").write_text("{")
    answer = call("checkpoint", "verify", str(run))
    assert answer.exit_code == 1
    first, second, third = answer.stdout.splitlines()
    assert first.startswith("damaged  ") and "is not a manifest of anyaccel" in first
    assert second.startswith("ok       ")
    assert third.startswith(f"damaged  {newest(run)}: '{file}' differs from what was written: tensor ")
    report = json.loads(call("checkpoint", "verify", str(run), "--json").stdout)
    assert [len(each["problems"]) for each in report["folders"]] == [1, 0, 1]


def test_a_missing_file_and_a_malformed_position_are_found(run, call, tmp_path):
    next(newest(run).glob("state-*.safetensors")).unlink()
    assert "is missing or not a regular file" in call("checkpoint", "verify", str(newest(run))).stdout
    saved_folder.write(tmp_path / "odd", {"checkpoint": {"epoch": -1}}, {"x": X})
    answer = call("checkpoint", "verify", str(tmp_path / "odd"))
    assert answer.exit_code == 1 and "the position in a checkpoint is malformed: " in answer.stdout


# -- convert -----------------------------------------------------------------------------------------------------------


def test_weights_are_written_for_other_tools(run, call, tmp_path):
    file = tmp_path / "new" / "w.safetensors"
    answer = call("checkpoint", "convert", str(run), str(file))
    assert answer.exit_code == 0
    assert answer.stdout.strip() == f"{file}: 8 arrays of head, net, from {newest(run)}"
    state, arrays = saved_folder.read(newest(run), "checkpoint")[1], load_file(file)
    assert arrays.keys() == {f"{node}.layers.{i}.{name}" for node in ("net", "head") for i in (0, 1) for name in PARTS}
    assert np.array_equal(arrays["net.layers.1.bias"], state["net/parameters/layers.1.bias"])
    loaded = graph(3)
    loaded.load_weights(file)
    assert np.array_equal(loaded.state()["net/parameters/layers.1.bias"], state["net/parameters/layers.1.bias"])


PARTS = ("weight", "bias")


def test_weights_of_one_node_have_their_own_names(call, tmp_path):
    graph().save(tmp_path / "saved")
    file = tmp_path / "head.safetensors"
    answer = call("checkpoint", "convert", str(tmp_path / "saved"), str(file), "--node", "head", "--json")
    names = {f"layers.{i}.{name}" for i in (0, 1) for name in PARTS}
    assert set(json.loads(answer.stdout)["names"]) == load_file(file).keys() == names
    refused = call("checkpoint", "convert", str(tmp_path / "saved"), str(tmp_path / "x.safetensors"), "--node", "body")
    assert refused.exit_code == 2
    assert "has no weights for a node 'body'. Available: head, net. Hint: use one of these" in refused.stderr


def test_conversions_that_cannot_be_done_are_refused(call, tmp_path):
    graph().save(tmp_path / "saved")
    file = tmp_path / "w.safetensors"
    file.write_bytes(b"before")
    saved_folder.write(tmp_path / "plain", {"graph": {}}, {"x": X})
    for folder, name, message in (
        ("saved", "w.safetensors", "already exists. Hint: choose another name, or remove it first"),
        ("saved", "w.pt", "no installed plugin reads '.pt' files"),
        ("saved", "w.safetensors/w.safetensors", "w.safetensors' cannot be written: "),
        ("plain", "v.safetensors", "has no weights. Hint: pass a saved graph, or a checkpoint of one"),
    ):
        answer = call("checkpoint", "convert", str(tmp_path / folder), str(tmp_path / name))
        assert answer.exit_code == 2 and message in answer.stderr, answer.stderr
    assert file.read_bytes() == b"before"


# -- URLs --------------------------------------------------------------------------------------------------------------


def test_all_commands_take_urls(call):
    pytest.importorskip("fsspec.implementations.memory")
    url = f"memory://run-{uuid.uuid4().hex}"
    losses = [AppliedLoss("mse", on="head")]
    graph().run(TrainPhase("train", data="all", losses=losses, epochs=2, checkpoint=Checkpoint(url)), progress="none")
    for command in ("list", "show", "verify"):
        answer = call("checkpoint", command, url)
        assert answer.exit_code == 0 and "epoch-000002-step-000000000" in answer.stdout
    assert call("checkpoint", "convert", url, f"{url}/net.safetensors").exit_code == 0
    assert graph().load_weights(f"{url}/net.safetensors").loaded
    again = call("checkpoint", "convert", url, f"{url}/net.safetensors")
    assert again.exit_code != 0 and "already exists" in again.stderr
