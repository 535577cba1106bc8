"""Remote storage: what works in a folder works under a URL that fsspec opens; what a store lacks is said."""

from __future__ import annotations

import json
import sys
from itertools import count
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pytest

import anyaccel as aa
from anyaccel import saved_folder
from anyaccel.errors import ConfigError, StateError
from anyaccel.saved_folder.manifest import PREVIOUS

fsspec = pytest.importorskip("fsspec")
MemoryFileSystem = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem
pytest.importorskip("fsspec.implementations.local")
NUMBERS = count()


class FileSystem(fsspec.implementations.local.LocalFileSystem):
    """Files of a disk under another name, which are renamed: as a server's, and unlike a bucket's objects."""

    protocol = "disk"
    local_file = False

    def mv(self, path1, path2, **settings):
        Path(self._strip_protocol(path1)).replace(self._strip_protocol(path2))


class PartByPart(MemoryFileSystem):
    """Shows what was sent so far under the name itself, and ends after half a file if told to."""

    protocol = "parts"
    store: ClassVar = {}
    pseudo_dirs: ClassVar = [""]
    ends_at = ""

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("parts://", "memory://"))

    def pipe_file(self, path, value, *arguments, **settings):
        if self.ends_at and path.endswith(self.ends_at):
            super().pipe_file(path, value[: len(value) // 2], *arguments, **settings)
            raise Killed
        super().pipe_file(path, value, *arguments, **settings)


class Killed(BaseException):
    """The process ends here: nothing catches it, and what comes after is not done."""


for filesystem in (FileSystem, PartByPart):
    fsspec.register_implementation(filesystem.protocol, filesystem)


@pytest.fixture(params=["memory", "file", "disk", "parts"])
def url(request, tmp_path):
    return address(request.param, tmp_path)


def address(kind, tmp_path):
    """A URL of a new folder."""
    if kind == "file":
        return (tmp_path / "saved here").as_uri()
    return f"disk://{tmp_path / 'saved'}" if kind == "disk" else f"{kind}://saved-{next(NUMBERS)}"


def data():
    x = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
    return aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, 0] - x[:, 1]}, "x", "y")


def new_graph():
    return aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(), data().reference())], "adam", seed=1)


def train(graph, epochs=2, resume="never", **settings):
    phase = aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")], epochs=epochs, **settings)
    return aa.Experiment("e", graph, progress="none").run_phase(phase, resume=resume)


def names(url):
    return sorted(saved_folder.storage_of(url).names())


def assert_same(first, second):
    assert first.keys() == second.keys()
    assert all(np.array_equal(array, second[name]) for name, array in first.items())


def test_a_graph_is_saved_and_loaded_and_saved_again(url):
    graph = new_graph()
    train(graph)
    graph.save(url)
    before = names(url)
    assert before[:2] == ["manifest.json", "model.safetensors.index.json"] and len(before) == 3
    assert_same(aa.ModelGraph.load(url).state(), graph.state())
    train(graph)
    graph.save(url)
    assert len(names(url)) == 3 and names(url) != before
    assert_same(aa.ModelGraph.load(url).state(), graph.state())


def test_shards_and_parts(url):
    arrays = {f"a{i}": np.full(10, i) for i in range(5)}
    saved_folder.write(url, {"graph": 1}, arrays, {"random/0": np.arange(3)}, largest_shard=100)
    assert sum(name.startswith("state-") for name in names(url)) == 5
    assert saved_folder.part(url, "graph") == 1
    assert_same(saved_folder.read(url, "graph")[1], arrays)
    assert_same(saved_folder.read(url, "graph", "run")[1], {"random/0": np.arange(3)})


def test_a_run_writes_checkpoints_and_goes_on(url):
    expected = train(new_graph(), 5).loss
    train(new_graph(), 3, checkpoint=aa.Checkpoint(url, keep=2))
    written = [name for name in names(url) if name != ".lock"]
    assert written == ["epoch-000002-step-000000000", "epoch-000003-step-000000000", "latest"]
    resumed = train(new_graph(), 5, resume="auto", checkpoint=aa.Checkpoint(url, keep=2))
    np.testing.assert_array_equal(resumed.loss, expected)
    assert aa.ModelGraph.load(f"{url}/epoch-000005-step-000000000").progress == {"t": 5}


@pytest.mark.parametrize("kind", ["memory", "disk", "parts"])
def test_a_store_that_fails_keeps_what_it_had(kind, monkeypatch, tmp_path):
    url = address(kind, tmp_path)
    graph = new_graph()
    graph.save(url)
    before, state = names(url), graph.state()
    train(graph)
    store = type(fsspec.core.url_to_fs(url)[0])

    def failing(self, path, value, **settings):
        raise OSError("the store is gone")

    with monkeypatch.context() as patch:
        patch.setattr(store, "pipe_file", failing)
        with pytest.raises(OSError, match="the store is gone"):
            graph.save(url)
    assert names(url) == before
    assert_same(aa.ModelGraph.load(url).state(), state)


def test_what_is_missing_or_changed_is_told_with_the_url(url):
    with pytest.raises(ConfigError, match=r"saved.*' has no manifest.json; the folder does not exist"):
        aa.ModelGraph.load(url)
    new_graph().save(url)
    store, path = fsspec.core.url_to_fs(unquote(url))
    (file,) = (name for name in names(url) if name.startswith("state-"))
    contents = store.cat_file(f"{path}/{file}")
    store.pipe_file(f"{path}/{file}", contents[:-1] + bytes([contents[-1] ^ 1]))
    with pytest.raises(StateError, match=rf"saved.*{file}' differs from what was written: tensor \S+ differs from"):
        aa.ModelGraph.load(url)
    store.rm_file(f"{path}/{file}")
    with pytest.raises(StateError, match=rf"saved.*{file}' is missing or not a regular file"):
        aa.ModelGraph.load(url)
    with pytest.raises(ConfigError, match=r"is a file. Hint: choose a name for a new folder"):
        new_graph().save(f"{url}/manifest.json")


@pytest.mark.parametrize("protocol", ["file", "disk"])
def test_a_link_out_of_a_folder_is_not_followed(protocol, tmp_path):
    new_graph().save(tmp_path / "a")
    (file,) = (tmp_path / "a").glob("*.safetensors")
    try:
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    except OSError:
        pytest.skip("no symbolic links here")
    with pytest.raises(StateError, match="missing or not a regular file"):
        aa.ModelGraph.load(f"{protocol}://{tmp_path / 'a'}")


def test_a_url_that_nobody_opens_is_an_error():
    with pytest.raises(
        ConfigError, match=r"'nosuch://a/b' cannot be opened: .*nosuch.*Hint: use a store that fsspec supports"
    ):
        aa.ModelGraph.load("nosuch://a/b")


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("s3://b/m", "python -m pip install s3fs, or use a local"),
        ("simplecache::gs://b/m", "python -m pip install gcsfs, or use a local"),
        ("libarchive://a.7z", "install the missing package, or use a local"),
    ],
)
def test_a_package_that_is_missing_is_told(url, hint, monkeypatch):
    def missing(given):
        raise ImportError("Install something to access this")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(ConfigError, match=rf"'{url}' cannot be opened: Install something.*Hint: {hint}"):
        new_graph().load_weights(url)


def test_without_fsspec_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ConfigError, match=r"'s3://b/m' is a URL, but fsspec.*Hint: python -m pip install fsspec, or"):
        new_graph().save("s3://b/m")


@pytest.mark.parametrize("name", ["C:\\models\\a", "C:/models", "a:b", "runs/a", "x"])
def test_names_of_folders_are_no_urls(name):
    assert not saved_folder.is_url(name)


# -- weights, results and experiments ----------------------------------------------------------------------------------


def test_weights_go_there_and_come_back(url):
    graph, file = new_graph(), f"{url}/net.safetensors"
    train(graph)
    written = graph.save_weights(file)
    assert names(url) == ["net.safetensors"]
    other, name = new_graph(), "net/parameters/layers.0.weight"
    assert set(other.load_weights(file).loaded) == set(written)
    np.testing.assert_array_equal(other.state()[name], graph.state()[name])
    assert set(other.load_weights(url).loaded) == set(written)  # the one file that the folder has
    train(graph)
    graph.save_weights(file)
    other.load_weights(file)
    np.testing.assert_array_equal(other.state()[name], graph.state()[name])
    assert names(url) == ["net.safetensors"]


def test_a_link_for_downloads_has_more_behind_the_name():
    file = f"memory://links-{next(NUMBERS)}/net.safetensors"
    new_graph().save_weights(f"{file}?download=true&version=1.2")
    assert new_graph().load_weights(f"{file}?download=true&version=1.2").loaded


def test_weights_right_in_a_store():
    file = f"memory://right-there-{next(NUMBERS)}.safetensors"
    new_graph().save_weights(file)
    assert new_graph().load_weights(file).loaded
    with pytest.raises(
        StateError, match=r"^there is no file 'memory://nothing.safetensors'\. Hint: pass a weight file"
    ):
        new_graph().load_weights("memory://nothing.safetensors")


def test_shards_are_read_by_their_index_or_their_folder(url):
    graph = new_graph()
    graph.save_weights(f"{url}/a/whole.safetensors")
    arrays = saved_folder.storage_of(f"{url}/a")
    with arrays.open("whole.safetensors") as stream:
        contents = stream.read()
    folder = saved_folder.storage_of(f"{url}/b")
    folder.create_folder()
    folder.publish("model-00001-of-00001.safetensors", contents)
    weights = dict.fromkeys(graph.save_weights(f"{url}/a/whole.safetensors"), "model-00001-of-00001.safetensors")
    folder.publish("model.safetensors.index.json", json.dumps({"weight_map": weights}).encode())
    for given in (f"{url}/b", f"{url}/b/model.safetensors.index.json"):
        assert len(new_graph().load_weights(given).loaded) == len(weights)
    folder.publish("model.safetensors.index.json", b'{"weight_map": {"x": "../a/whole.safetensors"}}')
    with pytest.raises(StateError, match=r"b/model.safetensors.index.json' is not an index of shards"):
        new_graph().load_weights(f"{url}/b")


def test_weights_that_cannot_be_written_or_read_are_told_with_the_url(url):
    graph, file = new_graph(), f"{url}/net.safetensors"
    graph.save(f"{url}/graph")
    with pytest.raises(StateError, match=r"graph' is a saved graph or a checkpoint.*Hint: load all of it with"):
        graph.load_weights(f"{url}/graph")
    graph.save(f"{url}/folder.safetensors")
    with pytest.raises(StateError, match=r"folder.safetensors' is a folder\. Hint: pass the name of a file"):
        graph.save_weights(f"{url}/folder.safetensors")
    saved_folder.storage_of(url).publish("net.safetensors", b"half")
    with pytest.raises(StateError, match=r"net.safetensors' cannot be read as safetensors: it"):
        graph.load_weights(file)
    with pytest.raises(StateError, match=r"no installed plugin reads '.h5' files such as '.*net.h5'"):
        graph.save_weights(f"{url}/net.h5")


def test_results_and_experiments_go_there_and_come_back(url):
    experiment = aa.Experiment("e", new_graph(), progress="none")
    phase = aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")], epochs=2)
    results = experiment.run_phase(phase)
    results.save(f"{url}/results")
    assert aa.TrainResults.load(f"{url}/results") == results
    experiment.save(f"{url}/experiment")
    again = aa.Experiment.load(f"{url}/experiment", feature_sets=[data()], progress="none")
    np.testing.assert_array_equal(again.run_phase(phase).loss, experiment.run_phase(phase).loss)


def test_a_fitted_model_goes_there_and_comes_back(url):
    table = {"a": np.arange(8.0), "y": np.arange(8.0)}
    fitted = aa.fit(aa.SequentialMLP(), pa.table(table), target="y", loss="mse", epochs=1, progress="none")
    fitted.save(url)
    np.testing.assert_array_equal(aa.load(url).predict(pa.table(table)), fitted.predict(pa.table(table)))


def test_a_time_that_a_store_does_not_tell_is_left_out(monkeypatch):
    url = f"memory://saved-{next(NUMBERS)}"
    new_graph().save(url)
    storage = saved_folder.storage_of(url)
    assert storage.modified("manifest.json") is not None
    monkeypatch.setattr(MemoryFileSystem, "modified", fsspec.AbstractFileSystem.modified)
    assert storage.modified("manifest.json") is None


# -- stores that show a part of what is sent ---------------------------------------------------------------------------


@pytest.mark.parametrize("ends_at", ["manifest.json", "manifest.previous.json", "model.safetensors.index.json"])
def test_a_process_that_ends_while_it_sends_leaves_the_old_or_the_new_graph(ends_at, monkeypatch, tmp_path):
    url, graph = address("parts", tmp_path), new_graph()
    graph.save(url)
    old = graph.state()
    train(graph)
    monkeypatch.setattr("anyaccel.saved_folder.folder._remove_unused", lambda *arguments: None)  # nor does it clean up
    with monkeypatch.context() as patch:
        patch.setattr(PartByPart, "ends_at", ends_at)
        with pytest.raises(Killed):
            graph.save(url)
    monkeypatch.undo()
    assert_same(aa.ModelGraph.load(url).state(), graph.state() if ends_at.startswith("model") else old)
    for _ in range(2):  # after the first one, what was left is replaced
        train(graph)
        graph.save(url)
        assert_same(aa.ModelGraph.load(url).state(), graph.state())
    assert PREVIOUS not in names(url)


def test_a_part_of_the_newest_checkpoint_is_left_out(tmp_path):
    url = address("parts", tmp_path)
    expected = train(new_graph(), 4).loss
    train(new_graph(), 2, checkpoint=aa.Checkpoint(url))
    storage = saved_folder.storage_of(f"{url}/epoch-000002-step-000000000")
    with storage.open("manifest.json") as stream:
        contents = stream.read()
    storage.publish("manifest.json", contents[: len(contents) // 2])
    with pytest.warns(RuntimeWarning, match=r"a newer checkpoint is skipped: .*is not a manifest of anyaccel"):
        resumed = train(new_graph(), 4, resume="auto", checkpoint=aa.Checkpoint(url))
    np.testing.assert_array_equal(resumed.loss, expected)


def test_a_file_system_gets_files_under_another_name_first(tmp_path, monkeypatch):
    """So that half a file never has the name; where it does not rename onto a file, it is sent again."""
    url, moved = address("disk", tmp_path), []
    mv = FileSystem.mv
    monkeypatch.setattr(FileSystem, "mv", lambda self, a, b, **settings: moved.append(b) or mv(self, a, b, **settings))
    graph = new_graph()
    graph.save_weights(f"{url}/net.safetensors")
    assert [Path(name).name for name in moved] == ["net.safetensors"]

    def refused(self, source, target, **settings):
        raise OSError("the name is taken")

    monkeypatch.setattr(FileSystem, "mv", refused)
    graph.save_weights(f"{url}/net.safetensors")
    assert names(url) == ["net.safetensors"] and new_graph().load_weights(f"{url}/net.safetensors").loaded


def test_a_path_of_a_url_is_told():
    with pytest.raises(ConfigError, match=r"'s3:/b/m' is a Path of a URL.*Hint: pass the text 's3://b/m'"):
        aa.ModelGraph.load(Path("s3://b/m"))


def test_file_urls_need_no_fsspec(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    new_graph().save((tmp_path / "a b").as_uri())
    assert aa.ModelGraph.load(tmp_path / "a b").progress == {}
