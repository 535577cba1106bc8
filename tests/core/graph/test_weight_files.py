"""Weights in files that other tools read and write, and what is refused before anything changes."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from anyaccel import ConcatNode, ModelGraph, ModelNode
from anyaccel.errors import GraphError, StateError
from anyaccel.graph import weight_files
from anyaccel.graph.graph import LiveValues
from anyaccel.numpy_backend import BatchNorm, Dense, Sequential
from anyaccel.saved_folder import tensor_file


@pytest.fixture
def fs(table):
    return table(y=((1,), "float32"))


def net(fs, seed=0, dtype="float32"):
    layers = [Dense(4, dtype=dtype), BatchNorm(dtype=dtype), Dense(4, dtype=dtype), Dense(1, dtype=dtype)]
    return ModelGraph([ModelNode("net", Sequential(*layers), fs.reference())], "adam", seed=seed)


NAMES = {
    *("0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias", "3.weight", "3.bias"),
    *("1.running_mean", "1.running_var"),
}


def values(graph):
    return {name: array for name, array in graph.state().items() if name != "seed"}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype and np.array_equal(array, other[name]), name


def refused(graph, *arguments, **settings):
    """The message of the error, after which nothing has changed."""
    before = graph.state()
    with pytest.raises(StateError) as caught:
        graph.load_weights(*arguments, **settings)
    assert_same(graph.state(), before)
    return str(caught.value)


# -- saving ------------------------------------------------------------------------------------------------------------


def test_a_file_has_the_names_of_the_model_and_loads_into_another(fs, tmp_path):
    one, other = net(fs, 1), net(fs, 2)
    file = tmp_path / "new" / "net.safetensors"
    assert set(one.save_weights(file)) == NAMES
    written = load_file(file)
    assert written.keys() == NAMES
    assert np.array_equal(written["2.weight"], one.state()["net/parameters/2.weight"])
    done = other.load_weights(str(file))
    assert set(done.loaded) == NAMES
    assert (done.missing_keys, done.unexpected_keys, done.mismatched_keys, done.cast) == ((), (), {}, {})
    assert_same(values(other), values(one))
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_several_nodes_have_their_labels_before_the_names(fs, tmp_path):
    def make(seed):
        nodes = [ModelNode("a", Dense(4), fs.reference()), ModelNode("b", Dense(4), fs.reference())]
        return ModelGraph([*nodes, ConcatNode("c", ["a", "b"]), ModelNode("d", Dense(1), "c")], seed=seed)

    one, other = make(1), make(2)
    file = tmp_path / "all.safetensors"
    assert one.save_weights(file) == ("a.weight", "a.bias", "b.weight", "b.bias", "d.weight", "d.bias")
    other.load_weights(file)
    assert_same(values(other), values(one))
    assert one.save_weights(file, node="b") == ("weight", "bias")
    other.load_weights(file, node=other["a"])
    assert np.array_equal(other.state()["a/parameters/weight"], one.state()["b/parameters/weight"])
    message = r"^node 'c' has no weights\. Available: a, b, d\. Hint: name a node whose model is trained by gradients"
    with pytest.raises(StateError, match=message):
        one.save_weights(file, node="c")
    with pytest.raises(GraphError, match="graph 'graph' has no node 'x'"):
        one.save_weights(file, "x")


def test_nodes_that_share_a_model_are_written_once(fs, tmp_path):
    shared = Dense(4)
    graph = ModelGraph([ModelNode("a", shared, fs.reference()), ModelNode("b", shared, fs.reference())])
    file = tmp_path / "w.safetensors"
    assert graph.save_weights(file) == graph.save_weights(file, node="b") == ("weight", "bias")


def test_models_without_weights_and_files_of_unknown_endings_are_refused(fs, tmp_path):
    graph = ModelGraph([ModelNode("r", Sequential(), fs.reference())])
    with pytest.raises(StateError, match=r"^graph 'graph' has no weights\. Hint: use a model with parameters"):
        graph.save_weights(tmp_path / "w.safetensors")
    with pytest.raises(StateError, match=r"no installed plugin reads '\.h5' files.*Hint: use \.safetensors"):
        net(fs).save_weights(tmp_path / "w.h5")
    with pytest.raises(StateError, match=r"is a folder\. Hint: pass the name of a file"):
        (tmp_path / "f.safetensors").mkdir()
        net(fs).save_weights(tmp_path / "f.safetensors")


def test_what_was_there_stays_if_writing_fails(fs, tmp_path, monkeypatch):
    file = tmp_path / "w.safetensors"
    file.write_bytes(b"before")

    def full(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        net(fs).save_weights(file)
    assert file.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 1


# -- reading -----------------------------------------------------------------------------------------------------------


def shards(folder, arrays, name="model.safetensors"):
    """Two files and their index, as libraries write them."""
    weight_map = {each: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, each in enumerate(arrays)}
    for file in set(weight_map.values()):
        save_file({each: arrays[each] for each in arrays if weight_map[each] == file}, folder / file)
    size = sum(array.nbytes for array in arrays.values())
    index = folder / f"{name}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map}))
    return index


def test_shards_are_read_by_their_index_or_their_folder(fs, tmp_path):
    one = net(fs, 1)
    one.save_weights(tmp_path / "w.safetensors")
    folder = tmp_path / "shards"
    folder.mkdir()
    index = shards(folder, load_file(tmp_path / "w.safetensors"))
    for given in (index, folder):
        other = net(fs, 2)
        other.load_weights(given)
        assert_same(values(other), values(one))


def test_a_folder_with_one_file_is_that_file(fs, tmp_path):
    one, other = net(fs, 1), net(fs, 2)
    one.save_weights(tmp_path / "w.safetensors")
    other.load_weights(tmp_path)
    assert_same(values(other), values(one))
    one.save_weights(tmp_path / "v.safetensors")
    message = refused(other, tmp_path)
    assert (
        "has several files of weights. Available: v.safetensors, w.safetensors. Hint: pass the file itself" in message
    )
    (tmp_path / "w.safetensors").rename(tmp_path / "model.safetensors")
    other.load_weights(tmp_path)


def test_a_saved_graph_is_no_file_of_weights(fs, tmp_path):
    graph = net(fs)
    graph.save(tmp_path)
    message = refused(graph, tmp_path)
    assert "is a saved graph or a checkpoint, not a weight file. Hint: load all of it with ModelGraph.load(" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "is not an index of shards: KeyError: 'weight_map'"),
        ("[", "is not an index of shards: JSONDecodeError"),
        (
            '{"weight_map": {"0.weight": "../../etc/passwd.safetensors"}}',
            "is not an index of shards: ValueError: weight_map",
        ),
        ('{"weight_map": {"0.weight": 3}}', "is not an index of shards: ValueError: weight_map is {'0.weight': 3}"),
        ('{"weight_map": {"0.weight": "a.safetensors"}}', "names 'a.safetensors', which is missing. Hint: copy or"),
        ('{"weight_map": {"nope": "w.safetensors"}}', "and its shards differ in 0.bias, 0.weight, "),
    ],
)
def test_an_index_that_is_wrong_is_refused(text, message, fs, tmp_path):
    graph = net(fs)
    graph.save_weights(tmp_path / "w.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    assert message in refused(graph, index)


DAMAGE = {
    "empty": lambda raw: b"",
    "cut header": lambda raw: raw[:20],
    "cut data": lambda raw: raw[:-4],
    "huge header": lambda raw: b"\xff" * 8 + raw[8:],
    "no JSON": lambda raw: raw[:8] + b"x" + raw[9:],
    "a list": lambda raw: (4).to_bytes(8, "little") + b"[1] ",
    "offsets": lambda raw: raw.replace(b'"data_offsets":[', b'"data_offsets":[9', 1),
    "negative shape": lambda raw: raw.replace(b'"shape":[', b'"shape":[-', 1),
    "dtype": lambda raw: raw.replace(b'"F32"', b'"F31"', 1),
    "huge shape": lambda raw: raw.replace(b'"shape":[', b'"shape":[9999999,', 1),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused(damage, fs, tmp_path):
    graph = net(fs)
    file = tmp_path / "w.safetensors"
    graph.save_weights(file)
    raw = file.read_bytes()
    damaged = DAMAGE[damage](raw)
    assert damaged != raw
    file.write_bytes(damaged)
    assert "w.safetensors' cannot be read as safetensors: it" in refused(graph, file)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "uint64", "float16", "float64", "complex64"])
def test_arrays_of_every_dtype_come_back(dtype, tmp_path):
    arrays = {
        "a": np.arange(6).reshape(2, 3).astype(dtype),
        "empty": np.zeros((0, 3), dtype),
        "one": np.ones((), dtype),
    }
    weight_files.write(tmp_path / "w.safetensors", arrays)
    assert_same(weight_files.read(tmp_path / "w.safetensors"), arrays)


def test_arrays_that_the_format_lacks_are_refused(tmp_path):
    with pytest.raises(StateError, match=r"cannot be written as safetensors.*; they have <U1\. Hint: convert"):
        weight_files.write(tmp_path / "w.safetensors", {"a": np.array(["x"])})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "3 is not a weight file. Hint: write 'weights.safetensors'"),
        ("", "'' is not a weight file"),
        (
            "nope.safetensors",
            "there is no file 'nope.safetensors'. Hint: pass a weight file, or a folder with",
        ),
        ({"0.weight": None}, "0.weight is None, not an array. Hint: pass names and arrays"),
    ],
)
def test_what_is_no_file_is_refused(given, message, fs):
    assert message in refused(net(fs), given)


@pytest.mark.parametrize("suffix", [".pt", ".bin"])
def test_a_file_of_a_framework_that_is_not_installed_says_what_to_install(suffix, fs, tmp_path, monkeypatch):
    from anyaccel.numpy_backend import NumpyBackend
    from anyaccel.registry import Registry

    monkeypatch.setattr("anyaccel.registry._registry", [Registry(NumpyBackend, lambda: ())])
    file = tmp_path / f"w{suffix}"
    file.write_bytes(b"x")
    message = refused(net(fs), file)
    assert f"no installed plugin reads {suffix!r} files" in message and "anyaccel-torch" in message.replace(
        "plugins/torch", "anyaccel-torch"
    )


# -- matching ----------------------------------------------------------------------------------------------------------


def arrays_of(graph):
    return {name.split("/")[2]: array for name, array in values(graph).items()}


def test_all_differences_are_in_one_error(fs):
    given = arrays_of(net(fs, 1))
    del given["0.bias"]
    given |= {"extra": np.ones(3), "3.weight": np.ones((1, 7), "f4"), "2.bias": np.ones(4, "i4")}
    given["1.bias"] = given["1.bias"].astype("f8")
    assert refused(net(fs), given) == (
        "a dict of 10 arrays does not fit node 'net': missing: 0.bias; unexpected: extra; 2.bias is int32[4] in the "
        "file and float32[4] in the model; 3.weight is float32[1, 7] in the file and float32[1, 4] in the model; "
        "1.bias is rounded from float64 to float32. Hint: map names={'IN THE FILE': 'IN THE MODEL'}, or load the "
        "matching parts with strict=False."
    )


def test_what_fits_is_loaded_without_strict_and_the_rest_is_warned_of(fs):
    one, graph = net(fs, 1), net(fs, 2)
    given = arrays_of(one)
    del given["0.bias"]
    given |= {"extra": np.ones(3), "3.weight": np.ones((1, 7), "f4"), "1.bias": np.full(4, 1 / 3)}
    before = graph.state()
    message = (
        r"^a dict of 10 arrays was loaded partially: missing: 0\.bias; unexpected: extra; 3\.weight is float32\[1, 7\] "
        r"in the file and float32\[1, 4\] in the model; 1\.bias is rounded from float64 to float32\.$"
    )
    with pytest.warns(UserWarning, match=message) as told:
        done = graph.load_weights(given, strict=False)
    assert told[0].filename == __file__
    assert set(done.loaded) == NAMES - {"0.bias", "3.weight"}
    assert (done.missing_keys, done.unexpected_keys) == (("0.bias",), ("extra",))
    assert (list(done.mismatched_keys), done.cast) == (["3.weight"], {"1.bias": "float64 to float32"})
    after, source = graph.state(), one.state()
    for name in ("net/parameters/0.bias", "net/parameters/3.weight"):
        assert np.array_equal(after[name], before[name])
    assert np.array_equal(after["net/parameters/2.weight"], source["net/parameters/2.weight"])
    assert np.array_equal(after["net/parameters/1.bias"], np.full(4, 1 / 3, "f4"))


def test_nothing_that_fits_is_an_error_without_strict_too(fs):
    assert "nothing matches; missing: 0.weight, " in refused(net(fs), {"extra": np.ones(3)}, strict=False)


def test_wider_floats_are_cast_and_told_and_narrower_ones_are_not(fs):
    narrow, wide = net(fs, 1), net(fs, 2, "float64")
    done = wide.load_weights(arrays_of(narrow))
    assert done.cast.keys() == NAMES and set(done.cast.values()) == {"float32 to float64"}
    assert wide.state()["net/parameters/0.bias"].dtype == np.float64
    message = refused(narrow, arrays_of(wide))
    assert "0.weight is rounded from float64 to float32" in message
    assert message.endswith("Hint: use strict=False to allow rounding.")
    with pytest.warns(UserWarning, match="0.weight is rounded from float64 to float32"):
        narrow.load_weights(arrays_of(wide), strict=False)


def test_values_that_become_infinite_are_not_loaded(fs):
    given = arrays_of(net(fs, 1, "float64"))
    given["0.bias"] = np.full(4, 1e300)
    graph = net(fs)
    with pytest.warns(
        UserWarning, match=r"0\.bias is float64\[4\] .* and 4 of its values, such as 1e\+300, would be infinite there"
    ):
        done = graph.load_weights(given, strict=False)
    assert "0.bias" not in done.loaded and np.isfinite(graph.state()["net/parameters/0.bias"]).all()


def test_names_are_those_of_the_file_to_those_of_the_model(fs):
    one, graph = net(fs, 1), net(fs, 2)
    theirs = {f"module.{name}": array for name, array in arrays_of(one).items()}
    message = refused(graph, theirs)
    assert message.endswith("Hint: names=lambda name: name.removeprefix('module.').")
    graph.load_weights(theirs, names=lambda name: name.removeprefix("module."))
    assert_same(values(graph), values(one))
    graph.load_weights(theirs, names={f"module.{name}": name for name in NAMES})
    inner = {name.removeprefix("0."): array for name, array in arrays_of(one).items() if name.startswith("0.")}
    assert refused(graph, inner).endswith("Hint: names=lambda name: '0.' + name.")


def test_the_hint_for_a_missing_prefix_works(fs):
    one = ModelGraph([ModelNode("net", Sequential(Dense(4)), fs.reference())], seed=1)
    other = ModelGraph([ModelNode("net", Dense(4), fs.reference())], seed=2)
    assert refused(one, arrays_of(other)).endswith("Hint: names=lambda name: '0.' + name.")
    one.load_weights(arrays_of(other), names=lambda name: "0." + name)
    assert refused(other, arrays_of(one)).endswith("Hint: names=lambda name: name.removeprefix('0.').")


def test_an_array_is_left_out_by_none(fs):
    graph = net(fs)
    given = arrays_of(net(fs, 1)) | {"extra": np.ones(3)}
    assert set(graph.load_weights(given, names={"extra": None}).loaded) == NAMES
    assert set(graph.load_weights(given, names=lambda name: None if name == "extra" else name).loaded) == NAMES


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"nope": "0.bias"}, "names={'nope': '0.bias'}: the file has no 'nope'. Available: 0.weight, 0.bias, "),
        ({"0.bias": 3}, "names returns 3 for '0.bias'. Hint: return text, or None to leave the array out"),
        (lambda name: 3, "names returns 3 for '0.weight'"),
        (
            {"2.bias": "0.bias"},
            "names returns '0.bias' for '0.bias' and for '2.bias'. Hint: map each array of the file",
        ),
        (int, "names=<class 'int'> failed for '0.weight': ValueError: invalid literal for int() with base 10"),
        (3, "names=3 is neither a dict nor a function. Hint: write names={'IN THE FILE': 'IN THE MODEL'}"),
    ],
)
def test_names_that_cannot_be_used_are_refused(names, message, fs):
    assert message in refused(net(fs), arrays_of(net(fs, 1)), names=names)


def test_names_the_other_way_round_are_recognized(fs):
    graph = ModelGraph([ModelNode("net", Dense(4), fs.reference())])
    theirs = {"w": np.ones((4, 4), "f4"), "b": np.ones(4, "f4")}
    message = refused(graph, theirs, names={"weight": "w", "bias": "b"})
    assert "Hint: swap them: names={'IN THE FILE': 'IN THE MODEL'}" in message


# -- the order of axes -------------------------------------------------------------------------------------------------


def test_transposed_arrays_are_refused_and_the_hint_works(fs):
    """The square ones of such a file would fit, and be wrong."""
    one, graph = net(fs, 1), net(fs, 2)
    flipped = {name: array.T for name, array in arrays_of(one).items()}
    for strict in (True, False):
        message = refused(graph, flipped, strict=strict)
        assert "some arrays match only with their axes in another order, so square arrays would be" in message
        assert "3.weight is float32[4, 1] in the file and float32[1, 4] in the model" in message
    hint = "change=lambda name, array: array.T if name.endswith('weight') and array.ndim == 2 else array"
    assert message.endswith(f"{hint}.")
    graph.load_weights(flipped, change=eval(hint.removeprefix("change=")))  # noqa: S307 - what the message says
    assert_same(values(graph), values(one))


def test_a_square_array_of_another_name_is_refused_until_its_order_is_said(fs):
    graph = ModelGraph([ModelNode("net", Dense(4), fs.reference())])
    kernel = np.arange(16, dtype="f4").reshape(4, 4)
    theirs, names = {"kernel": kernel, "b": np.ones(4, "f4")}, {"kernel": "weight", "b": "bias"}
    message = refused(graph, theirs, names=names)
    assert "the order of the axes of weight is not known, because the file has another name for it" in message
    assert message.endswith("or, if the order is the same, pass change=lambda name, array: array.")
    graph.load_weights(theirs, names=names, change=lambda name, array: array.T)
    assert np.array_equal(graph.state()["net/parameters/weight"], kernel.T)
    graph.load_weights(theirs, names=names, change=lambda name, array: array)
    assert np.array_equal(graph.state()["net/parameters/weight"], kernel)


def test_change_must_be_a_function(fs):
    message = refused(net(fs), arrays_of(net(fs, 1)), change=lambda array: array)
    assert "failed for '0.weight': TypeError: " in message
    assert message.endswith("Hint: pass a function such as lambda name, array: array.")
    assert "change=3 is not a function. Hint: write change=lambda name, array: array" in refused(net(fs), {}, change=3)


# -- around it ---------------------------------------------------------------------------------------------------------


def test_optimizer_seed_and_progress_stay_as_they_are(fs, tmp_path):
    from anyaccel import AppliedLoss, TrainPhase

    graph = net(fs, 1)
    graph.run(TrainPhase("train", data="all", losses=[AppliedLoss("mse", on="net")], epochs=1), progress="none")
    before = graph.state()
    graph.load_weights(arrays_of(net(fs, 5)))
    after = graph.state()
    same = {name for name in after if np.array_equal(after[name], before[name])}
    assert same >= {name for name in after if "optimizer" in name or name in ("seed", "progress/train")}
    assert "net/parameters/0.weight" not in same


def test_weights_are_not_loaded_while_a_phase_runs(fs):
    graph = net(fs)
    graph.live_values = LiveValues(in_use=True)
    message = refused(graph, {})
    assert message == "a phase of graph 'graph' is running. Hint: load weights before or after it."


def test_a_full_match_warns_of_nothing(fs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net(fs).load_weights(arrays_of(net(fs, 1)), strict=False)


def test_floats_of_8_bits_are_named_and_refused(tmp_path):
    header = json.dumps({"w": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"ab")
    with path.open("rb") as stream:
        entry = tensor_file.contents(stream, path.stat().st_size)["w"]
    assert (entry.dtype, entry.shape, entry.nbytes, entry.begin) == ("float8_e4m3fn", (2,), 2, 8 + len(header))
    with pytest.raises(StateError, match=r"float8_e4m3fn, which NumPy does not support\. Hint: convert them"):
        weight_files.read(path)
