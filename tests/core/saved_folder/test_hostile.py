"""Folders of strangers: whatever is in them, they load or are an AnyaccelError.

Nothing is imported or run, nothing outside of the folder is read, and no memory is taken but for what is in its files.
Every manifest here has the hash that belongs to it: a stranger can compute it, too. A sample is in every run;
`nox -s damage`, or `ANYACCEL_TEST_FULL=1`, tries 4,000.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
import tracemalloc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

import anyaccel as aa
from anyaccel import saved_folder
from anyaccel.errors import AnyaccelError, ConfigError, StateError
from anyaccel.saved_folder import tensor_file

LARGEST = 32 * 2**20
EXAMPLES = 3000 if os.environ.get("ANYACCEL_TEST_FULL") else 30
several = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
DELETED = object()
NAMES = ("../x", "/etc/passwd", "C:\\x", "CON", "os:system", "__import__('os').system('true')", "\ud800", "x" * 3000)
DEEP: list = []
for _ in range(60):
    DEEP = [DEEP]
VALUES = [
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**63, 10**400, 1e308, -0.5, "", "a", "nan", *NAMES),
    *([], {}, [[]], {"a": {}}, [1, 2], ["a", "b"], DEEP, {"class": "os:system", "config": {}}, [None] * 3),
    *({"framework": "numpy", "name": "SequentialMLP", "config": {}}, {"name": "adam"}, DELETED),
]


def data():
    x = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
    return aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, 0] - x[:, 1]}, "x", "y")


def new_graph():
    nodes = [aa.ModelNode("a", aa.SequentialMLP((2,), hidden_dim=4), data().reference())]
    return aa.ModelGraph([*nodes, aa.ModelNode("net", aa.SequentialMLP(hidden_dim=4), ["a"])], "adam", seed=1)


class Stop(aa.Callback):
    """Breaks the run off within an epoch, where a checkpoint has most in it."""

    def step_end(self, run):
        if run.epoch == 1 and run.step == 2 and not self.done:
            raise RuntimeError("broken off")

    done = False


def run(folder, *, resume="auto"):
    callbacks = [aa.EarlyStopping("loss", patience=9, restore_best=True), Stop()]
    callbacks[1].done = resume == "auto"
    phase = aa.TrainPhase(
        "t",
        data="all",
        losses=[aa.AppliedLoss("mse", on="net")],
        epochs=3,
        sampler=aa.SimpleSampler(5),
        checkpoint=aa.Checkpoint(folder, keep=9 if resume == "auto" else 1),
        callbacks=callbacks,
    )
    return aa.Experiment("e", new_graph(), progress="none").run_phase(phase, resume=resume)


def signed(manifest):
    plain = {name: part for name, part in manifest.items() if name != "sha256"}
    return {**plain, "sha256": hashlib.sha256(json.dumps(plain, separators=(",", ":")).encode()).hexdigest()}


def places(value, at=()):
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from places(each, (*at, key))


def changed(manifest, place, value):
    manifest = json.loads(json.dumps(manifest))
    holder = manifest
    for key in place[:-1]:
        holder = holder[key]
    if value is DELETED:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return manifest


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> tuple[Path, dict]:
    """The folder of a run with one checkpoint, and the manifest of that."""
    folder = tmp_path_factory.mktemp("run")
    with suppress(RuntimeError):
        run(folder, resume="never")
    (manifest,) = folder.glob("epoch-*/manifest.json")
    given = json.loads(manifest.read_text())
    run(shutil.copytree(folder, folder.parent / "once"))  # loads what is loaded late
    aa.ModelGraph.load(manifest.parent)
    return folder, given


class Watch:
    """Notes what a process does, while it is on; hooks cannot be removed."""

    def __init__(self) -> None:
        self.is_on, self.seen = False, []

    def __call__(self, event, arguments):
        if not self.is_on:
            return
        is_import = event == "import" and arguments[0] not in sys.modules
        if is_import or (event == "open" and isinstance(arguments[0], str)):
            self.seen.append((event, arguments[0]))
        elif event in ("os.system", "subprocess.Popen", "exec", "pickle.find_class", "os.exec", "socket.connect"):
            self.seen.append((event, str(arguments[0])[:100]))


WATCH = Watch()


@contextmanager
def watched(folder: Path) -> Iterator[None]:
    if not WATCH.seen and not hasattr(WATCH, "is_there"):
        sys.addaudithook(WATCH)
        WATCH.is_there = True
    WATCH.seen.clear()
    tracemalloc.start()
    WATCH.is_on = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what differs from the run before is warned of
            yield
    except AnyaccelError as error:
        assert error.problem
    finally:
        WATCH.is_on = False
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < LARGEST
    # a run reads how much memory is free, and the versions of libraries, which it writes
    own = (str(folder), "/proc/", "/sys/", sys.prefix, sys.base_prefix, *filter(None, sys.path))
    inside = [each for each in WATCH.seen if each[0] == "open" and each[1].startswith(own)]
    inside.append(("import", "pandas"))  # which the oldest pyarrow looks for
    assert [each for each in WATCH.seen if each not in inside] == []


def with_a_change(original, tmp_path_factory, parts, number, value) -> Path:
    """The checkpoint with a value at a place of some parts of its manifest."""
    folder, manifest = original
    chosen = [place for place in places(manifest) if place and place[0] in parts]
    copy = Path(shutil.copytree(folder, tmp_path_factory.mktemp("fuzz") / "run"))
    (file,) = copy.glob("epoch-*/manifest.json")
    file.write_text(json.dumps(signed(changed(manifest, chosen[number % len(chosen)], value))))
    return file.parent


@settings(several, max_examples=EXAMPLES)
@given(number=st.integers(0, 10**6), value=st.sampled_from(VALUES))
def test_a_graph_is_loaded_or_an_error(original, tmp_path_factory, number, value):
    checkpoint = with_a_change(original, tmp_path_factory, ("graph", "arrays"), number, value)
    with watched(checkpoint):
        aa.ModelGraph.load(checkpoint)


@settings(several, max_examples=EXAMPLES // 3)
@given(number=st.integers(0, 10**6), value=st.sampled_from(VALUES))
def test_a_run_goes_on_or_an_error(original, tmp_path_factory, number, value):
    checkpoint = with_a_change(original, tmp_path_factory, ("checkpoint", "arrays"), number, value)
    with watched(checkpoint.parent):
        run(checkpoint.parent)


@pytest.mark.parametrize("largest", [2**31, 10**12])
@pytest.mark.parametrize("setting", ["hidden_dim", "n_layers"])
def test_a_model_that_is_declared_huge_is_not_built(original, tmp_path, setting, largest):
    folder, manifest = original
    copy = Path(shutil.copytree(folder, tmp_path / "run"))
    (file,) = copy.glob("epoch-*/manifest.json")
    config = ("graph", "nodes", 0, "model", "config", setting)
    file.write_text(json.dumps(signed(changed(manifest, config, largest))))
    with watched(copy), pytest.raises(AnyaccelError):
        aa.ModelGraph.load(file.parent)


# -- files of arrays ---------------------------------------------------------------------------------------------------

numbers = st.one_of(st.integers(-2, 40), st.sampled_from([2**31, 2**62, 2**63, 10**400, None, 1.5, "1", True, []]))
entry = st.one_of(
    st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "BOOL", "I64", "F8_E4M3", "", None, [], "f4"]),
            "shape": st.lists(numbers, max_size=4),
            "data_offsets": st.lists(numbers, min_size=1, max_size=3),
        }
    ),
    st.sampled_from([None, 3, [], {}, "x"]),
)


@several
@given(
    header=st.dictionaries(st.sampled_from(["a", "b", "../c", "__metadata__", ""]), entry, max_size=4),
    length=st.sampled_from([0, 0, 0, 0, 1, -1, 2**20, 2**63]),
    rest=st.binary(max_size=40),
)
def test_any_header_of_a_file(header, length, rest):
    text = json.dumps(header).encode()
    contents = ((len(text) + length) % 2**64).to_bytes(8, "little") + text + rest
    tracemalloc.start()
    try:
        arrays = tensor_file.read(io.BytesIO(contents), len(contents))
    except StateError:
        arrays = {}
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < LARGEST
    assert sum(array.nbytes for array in arrays.values()) in (0, len(rest))


def file_of(header, rest):
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    return len(text).to_bytes(8, "little") + text + rest


def tensor(begin, end, shape=(1,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "it is not a safetensors file"),
        (b"\xff" * 8, "it is not a safetensors file"),
        (file_of({"a": tensor(0, 4), "b": tensor(0, 4)}, bytes(4)), "the tensors overlap, or do not fill the file"),
        (file_of({"a": tensor(0, 4), "b": tensor(2, 6)}, bytes(6)), "the tensors overlap, or do not fill the file"),
        (file_of({"a": tensor(4, 8)}, bytes(8)), "the tensors overlap, or do not fill the file"),
        (file_of({"a": tensor(0, 4)}, bytes(8)), "the tensors overlap, or do not fill the file"),
        (file_of({"a": tensor(0, 2**40, (2**38,))}, bytes(8)), "the tensors overlap, or do not fill the file"),
        (file_of({"a": tensor(0, 4, (2**40,))}, bytes(4)), "has a size that does not match its shape"),
        (file_of({"a": tensor(0, 0, (2**62, 2**62, 0))}, b""), "does not fit into memory"),
        (file_of({"a": tensor(0, 4, (1,) * 40)}, bytes(4)), "is not a tensor"),
        (file_of({"a": tensor(0, 4, dtype="F99")}, bytes(4)), "KeyError: 'F99'"),
        (file_of(b'{"a": 1, "a": 2}', b""), "a key occurs twice"),
        (file_of(b"[" * 100_000, b""), "its header is malformed"),
        (file_of(b"[]", b""), "its header is not a dict"),
        (file_of(b'{"a": NaN}', b""), "NaN is not a finite number"),
        (file_of(b"\xff{}", b""), "its header is malformed: UnicodeDecodeError"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(contents, message):
    with pytest.raises(StateError, match=message):
        tensor_file.read(io.BytesIO(contents), len(contents))


def sharded(folder, change):
    """A folder of two shards, in whose manifest something is changed."""
    saved_folder.write(folder, {"graph": {}}, {f"a{i}": np.arange(8.0) + i for i in range(2)}, largest_shard=1)
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest["arrays"])
    (folder / "manifest.json").write_text(json.dumps(signed(manifest)))
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files: files[0]["crc32"].update(b="0" * 8), "its tensors differ from those in the manifest"),
        (lambda files: files[0]["crc32"].clear(), "its tensors differ from those in the manifest"),
        (lambda files: files[0].update(file=files[1]["file"]), "its header differs from what was written"),
        (lambda files: files[0].update(bytes=10**15), "its size differs"),
        (lambda files: files[0].update(header_sha256="0" * 64), "its header differs from what was written"),
        (lambda files: files[0].update(crc32={"a0": "0" * 8}), "tensor a0 differs from what was written"),
        (lambda files: files.append(files[0]), "tensor a0 is in two files"),
        *(
            (lambda files, name=name: files[0].update(file=name), "which is not a file of arrays in its folder")
            for name in (*NAMES, "state.safetensors", "a/state-0000000000000000.safetensors", "STATE-0.safetensors")
        ),
        *(
            (lambda files, key=key: files[0].update({key: 3.5}), "which is not a file of arrays in its folder")
            for key in ("file", "group", "bytes", "header_sha256", "crc32")
        ),
    ],
)
def test_a_manifest_that_lies_about_its_files_is_told(tmp_path, change, message):
    folder = sharded(tmp_path / "a", change)
    with pytest.raises((ConfigError, StateError), match=message):
        saved_folder.read(folder, "graph")


@pytest.mark.parametrize("file", ["manifest.json", "state-*.safetensors"])
def test_links_are_not_followed(tmp_path, file):
    folder = sharded(tmp_path / "a", lambda files: None)
    target = next(folder.glob(file))
    try:
        target.rename(tmp_path / "elsewhere")
        target.symlink_to(tmp_path / "elsewhere")
    except OSError:
        pytest.skip("no symbolic links here")
    with pytest.raises((ConfigError, StateError), match=r"has no manifest.json|missing or not a regular file"):
        saved_folder.read(folder, "graph")
