"""Remote storage: what works in a folder works under a URL that fsspec opens; what a store lacks is said."""

from __future__ import annotations

import sys
from itertools import count

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import saved_folder
from anyaccel.errors import ConfigError, StateError

fsspec = pytest.importorskip("fsspec")
NUMBERS = count()


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    return f"memory://saved-{next(NUMBERS)}" if request.param == "memory" else (tmp_path / "saved").as_uri()


def data():
    x = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
    return aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, 0] - x[:, 1]}, "x", "y")


def new_graph():
    return aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(), data().reference())], "adam", seed=1)


def train(graph, n_epochs=2, resume="never", **settings):
    phase = aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")], n_epochs=n_epochs, **settings)
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
    assert names(url) == ["epoch-000002-step-000000000", "epoch-000003-step-000000000", "latest"]
    resumed = train(new_graph(), 5, resume="auto", checkpoint=aa.Checkpoint(url, keep=2))
    np.testing.assert_array_equal(resumed.loss, expected)
    assert aa.ModelGraph.load(f"{url}/epoch-000005-step-000000000").progress == {"t": 5}


def test_a_store_that_fails_keeps_what_it_had(url, monkeypatch):
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
    with pytest.raises(ConfigError, match=r"//.*' has no manifest.json. Available: no such folder"):
        aa.ModelGraph.load(url)
    new_graph().save(url)
    store, path = fsspec.core.url_to_fs(url)
    (file,) = (name for name in names(url) if name.startswith("state-"))
    contents = store.cat_file(f"{path}/{file}")
    store.pipe_file(f"{path}/{file}", contents[:-1] + bytes([contents[-1] ^ 1]))
    with pytest.raises(StateError, match=rf"//.*{file}' is not as it was written: tensor \S+ is not as it was written"):
        aa.ModelGraph.load(url)
    store.rm_file(f"{path}/{file}")
    with pytest.raises(StateError, match=rf"//.*{file}' is missing, or not a plain file"):
        aa.ModelGraph.load(url)
    with pytest.raises(ConfigError, match=r"is a file. Hint: choose a name for a new folder"):
        new_graph().save(f"{url}/manifest.json")


def test_a_link_out_of_a_folder_is_not_followed(tmp_path):
    new_graph().save(tmp_path / "a")
    (file,) = (tmp_path / "a").glob("*.safetensors")
    try:
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    except OSError:
        pytest.skip("no symbolic links here")
    with pytest.raises(StateError, match="missing, or not a plain file"):
        aa.ModelGraph.load((tmp_path / "a").as_uri())


def test_a_url_that_nobody_opens_is_an_error():
    with pytest.raises(ConfigError, match=r"'nosuch://a/b' cannot be opened: .*nosuch.*Hint: install what it asks for"):
        aa.ModelGraph.load("nosuch://a/b")


def test_without_fsspec_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ConfigError, match=r"'s3://b/m' is a URL, and fsspec.*Hint: python -m pip install fsspec, or"):
        new_graph().save("s3://b/m")


@pytest.mark.parametrize("name", ["C:\\models\\a", "C:/models", "a:b", "runs/a", "x"])
def test_names_of_folders_are_no_urls(name):
    assert not saved_folder.is_url(name)
