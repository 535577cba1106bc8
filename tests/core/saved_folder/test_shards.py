"""Shards: files of arrays that other tools read, alone and by the index; a changed tensor is named."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from anyaccel import saved_folder
from anyaccel.errors import ConfigError, StateError
from anyaccel.saved_folder import manifest, shards
from anyaccel.saved_folder.storage import LocalStorage

KINDS = {"int": (8, 16, 32, 64), "uint": (8, 16, 32, 64), "float": (16, 32, 64), "complex": (64,)}
DTYPES = ["bool", *(f"{kind}{bits}" for kind, widths in KINDS.items() for bits in widths)]


def state(count=6):
    rng = np.random.default_rng(0)
    return {f"net/parameters/layers.{i}.weight": rng.normal(size=(4, i + 1)).astype("float32") for i in range(count)}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert (array.dtype, array.shape) == (second[name].dtype, second[name].shape), name
        assert array.tobytes() == second[name].tobytes(), name


def read(folder, group="state"):
    return saved_folder.read(folder, "graph", group)[1]


def by_the_index(folder: Path):
    """What a reader of the public convention finds: the index, and in each file it names the tensors it names."""
    from safetensors import safe_open

    index = json.loads((folder / "model.safetensors.index.json").read_text())
    arrays = {}
    for file in sorted(set(index["weight_map"].values())):
        with safe_open(folder / file, framework="numpy") as tensors:
            assert tensors.metadata() == {"format": "pt"}
            named = [name for name, place in index["weight_map"].items() if place == file]
            assert sorted(tensors.keys()) == sorted(named)
            arrays.update({name: tensors.get_tensor(name) for name in named})
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in arrays.values())
    return arrays


@pytest.mark.parametrize(("largest", "files"), [(5 * 10**9, 1), (100, 4), (1, 6)])
def test_a_reader_of_the_index_finds_all_arrays(tmp_path, largest, files):
    saved_folder.write(tmp_path, {"graph": {}}, state(), {"random/0": np.arange(3)}, largest_shard=largest)
    assert len(list(tmp_path.glob("state-*.safetensors"))) == files
    assert_same(by_the_index(tmp_path), state())
    assert_same(read(tmp_path), state())
    assert_same(read(tmp_path, "run"), {"random/0": np.arange(3)})


def test_no_shard_is_larger_than_asked_but_for_one_large_array(tmp_path):
    saved_folder.write(tmp_path, {"graph": {}}, state(), largest_shard=60)
    from safetensors.numpy import load_file

    sizes = [[a.nbytes for a in load_file(file).values()] for file in tmp_path.glob("state-*.safetensors")]
    assert all(sum(shard) <= 60 or len(shard) == 1 for shard in sizes)
    assert len(sizes) < 6


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_and_others_read_it(tmp_path, dtype):
    from safetensors.numpy import load_file

    if dtype == "complex64":
        pytest.importorskip("safetensors", minversion="0.7")
    wide = np.arange(24).reshape(4, 6).astype(dtype)
    given = {
        "plain": wide,
        "no axes": wide[1, 1],
        "empty": wide[:0],
        "strided": wide[::2, ::3],
        "fortran": np.asfortranarray(wide),
    }
    given = {name: np.asarray(array) for name, array in given.items()}
    saved_folder.write(tmp_path, {"graph": {}}, {**given, "big endian": wide.astype(wide.dtype.newbyteorder(">"))})
    assert_same(read(tmp_path), {**given, "big endian": wide})
    (file,) = tmp_path.glob("*.safetensors")
    assert_same(load_file(file), {**given, "big endian": wide})


def test_bfloat16_comes_back_or_says_what_is_missing(tmp_path, monkeypatch):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(6.0).astype(ml_dtypes.bfloat16).reshape(2, 3)
    saved_folder.write(tmp_path, {"graph": {}}, {"w": array})
    assert_same(read(tmp_path), {"w": array})
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    with pytest.raises(StateError, match=r"arrays of bfloat16.*Hint: python -m pip install ml_dtypes"):
        read(tmp_path)


def test_no_arrays_are_no_file(tmp_path):
    saved_folder.write(tmp_path, {"graph": {}}, {})
    assert sorted(each.name for each in tmp_path.iterdir()) == ["manifest.json", "model.safetensors.index.json"]
    assert read(tmp_path) == {} == read(tmp_path, "run")


def test_arrays_stay_as_they_are_when_the_folder_goes(tmp_path):
    saved_folder.write(tmp_path / "a", {"graph": {}}, state())
    arrays = read(tmp_path / "a")
    for file in (tmp_path / "a").glob("*.safetensors"):
        file.write_bytes(bytes(file.stat().st_size))  # in place
        file.unlink()
    assert_same(arrays, state())
    assert not any(array.flags.writeable for array in arrays.values())


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": np.ones(2, np.complex128)}, r"safetensors has no dtype complex128; it has complex128"),
        ({"z": np.array(["a"])}, "safetensors has no dtype <U1"),
        ({"z": np.array([object()])}, "safetensors has no dtype object"),
        ({"__metadata__": np.ones(2)}, "no tensor can be called '__metadata__'"),
        ({"\ud800": np.ones(2)}, r"a tensor name is not text: '\\ud800'"),
    ],
)
def test_what_the_format_does_not_know_is_an_error_and_leaves_nothing(tmp_path, arrays, message):
    with pytest.raises(StateError, match=message):
        saved_folder.write(tmp_path, {"graph": {}}, {**state(), **arrays}, largest_shard=100)
    assert not list(tmp_path.iterdir())


def test_a_changed_tensor_is_named_with_its_file(tmp_path):
    saved_folder.write(tmp_path, {"graph": {}}, state(), largest_shard=100)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    name = "net/parameters/layers.3.weight"
    file = tmp_path / index[name]
    whole = file.read_bytes()
    at = whole.index(state()[name].tobytes())
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
    with pytest.raises(StateError) as raised:
        read(tmp_path)
    problem = f"{str(file)!r} differs from what was written: tensor {name} differs from what was written; "
    assert raised.value.problem.startswith(problem)
    file.write_bytes(whole[:-1])
    with pytest.raises(StateError, match=r"its size differs; \d+ bytes; written: \d+"):
        read(tmp_path)
    file.write_bytes(whole[:9] + b"X" + whole[10:])
    with pytest.raises(StateError, match="its header differs from what was written"):
        read(tmp_path)
    file.write_bytes(whole)
    assert_same(read(tmp_path), state())


def test_a_failed_write_leaves_what_was_there_and_no_file_more(tmp_path, monkeypatch):
    saved_folder.write(tmp_path, {"graph": 1}, state(), largest_shard=100)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    fsync, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 6:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        saved_folder.write(tmp_path, {"graph": 2}, state(), largest_shard=100)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before
    with pytest.raises(OSError, match="No space left"):
        calls.clear()
        saved_folder.write(tmp_path / "new", {"graph": 2}, state(), largest_shard=100)
    assert not list((tmp_path / "new").iterdir())


@pytest.mark.skipif(os.name == "nt", reason="Windows replaces no file that is being read")
def test_a_reader_beside_a_writer_gets_one_state_whole(tmp_path):
    """Another thread replaces the folder again and again, by shards of one tensor each."""
    states = [{f"a{i}": np.full(50, number) for i in range(6)} for number in range(3)]
    saved_folder.write(tmp_path, {"graph": 0}, states[0], largest_shard=1)
    is_over = threading.Event()

    def replace():
        number = 0
        while not is_over.is_set():
            number = (number + 1) % 3
            saved_folder.write(tmp_path, {"graph": number}, states[number], largest_shard=1)

    seen = set()
    with ThreadPoolExecutor(1) as executor:
        writing = executor.submit(replace)
        try:
            for count in range(10_000):
                found, arrays = saved_folder.read(tmp_path, "graph")
                assert_same(arrays, states[found["graph"]])
                seen.add(found["graph"])
                if count > 60 and len(seen) == 3:
                    break
        finally:
            is_over.set()
        writing.result()
    assert len(seen) == 3


def test_an_index_of_something_else_is_not_overwritten(tmp_path):
    for text in ('{"metadata": {"total_size": 3}, "weight_map": {}}', "{", "[]"):
        (tmp_path / "model.safetensors.index.json").write_text(text)
        with pytest.raises(ConfigError, match=r"has a model.safetensors.index.json of another program. Hint: choose"):
            saved_folder.write(tmp_path, {}, state())
        assert (tmp_path / "model.safetensors.index.json").read_text() == text
    (tmp_path / "model.safetensors.index.json").unlink()
    saved_folder.write(tmp_path, {"graph": {}}, state())
    (tmp_path / "manifest.json").unlink()  # as a process leaves it that was killed while it removed a checkpoint
    saved_folder.write(tmp_path, {"graph": {}}, state())
    assert_same(read(tmp_path), state())


@pytest.mark.parametrize("name", ["format", "schema_version", "written_by", "arrays", "sha256"])
def test_a_part_cannot_have_a_name_of_the_manifest(tmp_path, name):
    with pytest.raises(ConfigError, match=rf"'{name}' cannot be saved.*any name but format.*Hint: choose another name"):
        saved_folder.write(tmp_path, {name: 3}, state())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("part", "message"),
    [(object(), "not JSON serializable"), (float("nan"), "not plain data"), ({1: 0, "1": 0}, "a key occurs twice")],
)
def test_a_part_that_is_not_plain_is_an_error(tmp_path, part, message):
    with pytest.raises(ConfigError, match=message):
        saved_folder.write(tmp_path, {"graph": part}, state())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("positions", [True, False])
def test_tensors_larger_than_a_cache_are_read_and_checked_in_pieces(tmp_path, monkeypatch, positions):
    if not positions:  # as on Windows
        monkeypatch.delattr("os.preadv", raising=False)
    rng = np.random.default_rng(0)
    arrays = {
        "large": rng.random(300_001),
        "none": np.zeros((0, 3)),
        "scalar": np.array(7),
        "small": np.arange(5, dtype="u1"),
    }
    saved_folder.write(tmp_path, {"graph": {}}, arrays)
    got = read(tmp_path)
    assert_same(got, arrays)
    assert not any(array.flags.writeable for array in got.values())
    (file,) = tmp_path.glob("state-*.safetensors")
    contents = bytearray(file.read_bytes())
    contents[len(contents) // 2] ^= 1
    file.write_bytes(contents)
    with pytest.raises(StateError, match="tensor large differs from what was written"):
        read(tmp_path)


@pytest.mark.parametrize("positions", [True, False])
def test_a_file_that_becomes_shorter_while_it_is_read(tmp_path, monkeypatch, positions):
    if not positions:
        monkeypatch.delattr("os.preadv", raising=False)
    saved_folder.write(tmp_path, {"graph": {}}, {"w": np.arange(100_000.0)})
    storage = LocalStorage(tmp_path)
    (file,) = manifest.arrays_files(storage, manifest.load(storage))
    os.truncate(tmp_path / file.file, file.size - 8)
    monkeypatch.setattr(LocalStorage, "size", lambda self, name: file.size)
    with pytest.raises(StateError, match="differs from what was written: it is truncated"):
        shards.read(storage, file)
