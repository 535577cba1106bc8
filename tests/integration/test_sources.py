"""Data sources of real frameworks: loaders with workers, data sets, tensors, and Hugging Face data sets."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyaccel.data import FeatureSet, IterableSource, MapSource, SimpleSampler, as_source
from anyaccel.errors import SourceError
from anyaccel.registry import registry

ROWS = 12
X = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)
Y = np.arange(ROWS)
LIKE = FeatureSet.from_dict("s", {"x": X, "y": Y}, "x", "y")


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def tf() -> Any:
    return pytest.importorskip("tensorflow")


def dataset(torch: Any) -> Any:
    return torch.utils.data.TensorDataset(torch.from_numpy(X.copy()), torch.from_numpy(Y.copy()))


def loader(torch: Any, of: Any = None, **settings: Any) -> Any:
    return torch.utils.data.DataLoader(dataset(torch) if of is None else of, **{"batch_size": 5, **settings})


def source(given: Any, **settings: Any) -> IterableSource:
    return IterableSource("s", given, **{"features": "x", "target": "y", **settings})


def rows(given: IterableSource, epoch: int = 0) -> list[int]:
    """The row numbers of an epoch; asserts that x and y of each row belong together."""
    found: list[int] = []
    for batch in given.batches(epoch):
        assert batch["x"].dtype == np.float32 and batch["y"].dtype == np.int64
        assert np.array_equal(batch["x"], X[batch["y"]])
        found += batch["y"].tolist()
    return found


def no_worker_is_left() -> bool:
    """Whether all worker processes end; they are asked to, and take a moment."""
    gc.collect()
    end = time.monotonic() + 30
    while multiprocessing.active_children() and time.monotonic() < end:
        time.sleep(0.05)
    return not multiprocessing.active_children()


def no_thread_is_left(before: int) -> bool:
    """Whether all threads but `before` end; the one that fed a worker's queue takes a moment."""
    end = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.05)
    return threading.active_count() <= before


# -- torch ------------------------------------------------------------------------------------------------------------


def test_a_torch_loader_becomes_an_iterable_source(torch: Any) -> None:
    made = source(loader(torch))
    assert (made.steps, str(made.spec("x")), str(made.spec("y"))) == (3, "float32[3]", "int64[]")
    assert [rows(made, epoch) for epoch in range(3)] == [list(range(ROWS))] * 3
    assert made.notes() == ()
    given = as_source("s", loader(torch, drop_last=True), LIKE)
    assert isinstance(given, IterableSource) and rows(given) == list(range(10))


def test_the_order_of_a_loader_is_its_own(torch: Any) -> None:
    """Reading the example costs nothing of the order: it is that of a plain loop with the same generator."""

    def shuffled() -> Any:
        return loader(torch, shuffle=True, generator=torch.Generator().manual_seed(3))

    plain, made = shuffled(), source(shuffled())
    assert len(made.example) == 4
    for epoch in range(2):
        assert rows(made, epoch) == [int(y) for _, batch in plain for y in batch]


def test_every_form_of_collated_batch_is_read(torch: Any) -> None:
    by_name = [{"x": X[i], "y": int(Y[i]), "name": f"row {i}"} for i in range(ROWS)]
    assert rows(source(loader(torch, by_name))) == list(range(ROWS))
    nested = [((X[i], X[i] + 1), Y[i]) for i in range(ROWS)]
    made = IterableSource("s", loader(torch, nested), features=["a", "b"], target="y")
    assert np.array_equal(next(made.batches(0))["b"], X[:5] + 1)
    alone = IterableSource("s", loader(torch, torch.from_numpy(X)), features="x")
    assert np.array_equal(next(alone.batches(0))["x"], X[:5])
    tagged = IterableSource("s", loader(torch, by_name), features="x", tags="name")
    assert next(tagged.batches(0))["name"].tolist() == [f"row {i}" for i in range(5)]


def test_an_iterable_data_set_of_torch_is_read(torch: Any) -> None:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc,name-defined]
        def __iter__(self) -> Iterator[Any]:
            yield from zip(X, Y, strict=True)

    made = source(loader(torch, Stream()))
    assert made.steps is None and rows(made) == rows(made, 1) == list(range(ROWS))


def test_a_distributed_sampler_gets_the_epoch(torch: Any) -> None:
    sampler = torch.utils.data.DistributedSampler(dataset(torch), num_replicas=1, rank=0, seed=1)
    made = source(loader(torch, sampler=sampler))
    first = rows(made, 0)
    assert first != rows(made, 1) and first == rows(made, 0) and sorted(first) == list(range(ROWS))


@pytest.mark.parametrize("kind", ["TensorDataset", "Subset", "own"])
def test_torch_data_sets_become_map_sources(torch: Any, kind: str) -> None:
    class Own(torch.utils.data.Dataset):  # type: ignore[misc,name-defined]
        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, index: int) -> Any:
            return {"y": int(Y[index]), "x": torch.from_numpy(X[index])}

    given = {"own": Own(), "Subset": torch.utils.data.Subset(dataset(torch), range(ROWS))}.get(kind, dataset(torch))
    made = as_source("s", given, LIKE)
    assert isinstance(made, MapSource) and made.rows == ROWS
    order = SimpleSampler(4, shuffle=True, seed=2).order(ROWS, 0)
    for columns in (made.gather(order), MapSource("s", given, features="x", target="y", workers=3).gather(order)):
        assert np.array_equal(columns["x"], X[order]) and np.array_equal(columns["y"], order)
        assert columns["x"].dtype == np.float32 and columns["y"].dtype == np.int64


def test_tensors_without_a_numpy_dtype_are_refused(torch: Any) -> None:
    learned = torch.ones(2, 3, requires_grad=True)
    assert next(source([(learned * 2, [1, 2])]).batches(0))["x"].tolist() == [[2.0] * 3] * 2
    with pytest.raises(
        SourceError, match=r"batch 0 .*: NumPy cannot hold a tensor of torch.float8_e4m3fn.*convert it first"
    ):
        next(source([(torch.ones(2, 3).to(torch.float8_e4m3fn), [1, 2])]).batches(0))


class Fails:
    """A data set whose row 7 fails; it is here, and not in a test, for what is sent to workers."""

    def __init__(self, error: type[BaseException] = ValueError) -> None:
        self.error = error

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        if index == 7:
            raise self.error("row seven")
        return X[index], Y[index]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes that are not forked import this module by its name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))


# How workers start that cannot be forks: these take seconds, because each imports torch.
@pytest.mark.parametrize("settings", [{"num_workers": 0}, {"num_workers": 2, "multiprocessing_context": "forkserver"}])
def test_an_error_in_a_worker(torch: Any, settings: dict[str, Any]) -> None:
    if settings["num_workers"] and sys.platform == "win32":
        pytest.skip("there is no fork server")
    made = source(loader(torch, Fails(), batch_size=3, **settings))
    run = made.batches(0)
    assert [next(run)["y"].tolist() for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(SourceError, match=r"batch 2 of source 's' .*could not be read: ValueError: row seven") as found:
        next(run)
    assert isinstance(found.value.__cause__, ValueError)
    assert no_worker_is_left(), "while the error is kept"


def test_workers_end_when_an_epoch_is_abandoned(torch: Any) -> None:
    if sys.platform == "win32":
        pytest.skip("there is no fork server")
    before = threading.active_count()
    made = source(loader(torch, Fails(), batch_size=3, num_workers=1, multiprocessing_context="forkserver"))
    run = made.batches(0)
    next(run)
    assert multiprocessing.active_children()
    run.close()
    assert no_worker_is_left() and no_thread_is_left(before)
    assert len(made.example) == 3


@pytest.mark.across
@pytest.mark.parametrize("threaded", ["jax", "tensorflow"])
def test_forks_beside_threads_are_refused(torch: Any, threaded: str) -> None:
    pytest.importorskip(threaded)
    registry().load()
    if threaded not in registry().frameworks or registry().find(threaded).fork_safe:
        pytest.skip(f"no plugin says that a process with {threaded} cannot be forked")
    forked = loader(torch, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(
        SourceError, match=rf"would be forked while these run: .*{threaded}.*multiprocessing_context='forkserver'"
    ):
        source(forked)
    assert rows(source(loader(torch))) == list(range(ROWS))


# -- TensorFlow -------------------------------------------------------------------------------------------------------


def test_tf_data_becomes_an_iterable_source(tf: Any) -> None:
    given = tf.data.Dataset.from_tensor_slices((X, Y)).batch(5)
    made = source(given)
    assert made.steps == 3 and [rows(made, epoch) for epoch in range(2)] == [list(range(ROWS))] * 2
    by_name = tf.data.Dataset.from_tensor_slices({"x": X, "y": Y, "t": [f"row {i}" for i in Y]}).batch(4).prefetch(1)
    found = as_source("s", by_name, LIKE)
    assert isinstance(found, IterableSource) and rows(found) == list(range(ROWS))
    tagged = IterableSource("s", by_name, features="x", tags="t")
    assert next(tagged.batches(0))["t"].tolist()[0] == b"row 0"


def test_tf_data_without_a_length_or_an_end(tf: Any) -> None:
    given = tf.data.Dataset.from_tensor_slices((X, Y))
    unknown = source(given.filter(lambda x, y: y % 2 == 0).batch(2))
    assert unknown.steps is None and rows(unknown) == list(range(0, ROWS, 2))
    endless = given.repeat().batch(6)
    with pytest.raises(SourceError, match=r"never ends.*steps=1000"):
        source(endless)
    assert rows(source(endless, steps=3)) == [*range(ROWS), *range(6)]


def test_errors_of_tf_data_name_the_batch(tf: Any) -> None:
    given = tf.data.Dataset.from_tensor_slices((X, Y)).map(
        lambda x, y: (tf.debugging.check_numerics(x / 0.0, "bad"), y)
    )
    with pytest.raises(SourceError, match=r"batch 0 of source 's' .*could not be read: InvalidArgumentError"):
        rows(source(given.batch(5)))
    ragged = tf.data.Dataset.from_tensors((tf.ragged.constant([[1.0], [1.0, 2.0]]), [1, 2]))
    with pytest.raises(SourceError, match=r"batch 0 of source 's'"):
        rows(source(ragged))


# -- JAX and every framework ------------------------------------------------------------------------------------------


MAKERS = {
    "torch": ("torch", "from_numpy"),
    "tensorflow": ("tensorflow", "convert_to_tensor"),
    "jax": ("jax.numpy", "asarray"),
}


def made_by(framework: str) -> Callable[[np.ndarray], Any]:
    """The framework's function that makes a tensor of an array."""
    module, name = MAKERS[framework]
    found = pytest.importorskip(module)
    if framework not in registry().frameworks:
        pytest.skip(f"no plugin for {framework}")
    return lambda array: getattr(found, name)(array)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8", "bool"])
def test_tensors_of_every_framework(maker: str, dtype: str) -> None:
    tensor = made_by(maker)
    values = X[:4].astype(dtype)
    made = IterableSource(
        "s", lambda: ((tensor(values), [tensor(row) for row in values]) for _ in range(2)), features=["a", "b"]
    )
    for batch in made.batches(0):
        assert np.array_equal(batch["a"], values) and np.array_equal(batch["b"], values)
        assert batch["a"].dtype == batch["b"].dtype == dtype


# -- Hugging Face -----------------------------------------------------------------------------------------------------


@pytest.fixture
def hf(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    module = pytest.importorskip("datasets")
    module.disable_progress_bars()
    return module


def table(hf: Any) -> Any:
    features = hf.Features({"x": hf.List(hf.Value("float32")), "y": hf.ClassLabel(num_classes=ROWS)})
    return hf.Dataset.from_dict({"x": X.tolist(), "y": Y.tolist()}, features=features)


@pytest.mark.across
def test_a_data_set_of_hugging_face_is_a_feature_set(hf: Any) -> None:
    given = table(hf)
    made = FeatureSet.from_arrow("s", given, "x", "y")
    assert np.array_equal(made.array("x"), X) and made.array("x").dtype == np.float32
    inner = given.data.table.column("y").chunk(0).buffers()[1]
    assert made.column("y").chunk(0).buffers()[1].address == inner.address, "no copy"
    parts = made.split_random({"train": 0.5, "test": 0.5})
    assert sum(map(len, parts.values())) == ROWS
    same = as_source("s", given, LIKE)
    assert isinstance(same, FeatureSet) and np.array_equal(same.array("y"), Y)
    with pytest.raises(SourceError, match=r"the Dataset given as source 's' is data.*FeatureSet\.from_arrow"):
        source(given)


@pytest.mark.across
def test_selected_rows_and_memory_mapped_files_are_read(hf: Any, tmp_path: Path) -> None:
    given = table(hf)
    for chosen in (given.shuffle(seed=1), given.select([5, 1, 3]), given.filter(lambda row: row["y"] > 7)):
        made = FeatureSet.from_arrow("s", chosen, "x", "y")
        assert made.array("y").tolist() == chosen["y"][:] and np.array_equal(made.array("x"), X[made.array("y")])
    given.save_to_disk(tmp_path / "stored")
    stored = FeatureSet.from_arrow("s", hf.load_from_disk(tmp_path / "stored"), "x", "y")
    assert np.array_equal(stored.array("x"), X)
    formatted = FeatureSet.from_arrow("s", given.with_format("numpy"), "x", "y")
    assert np.array_equal(formatted.array("x"), X)


@pytest.mark.across
def test_array_types_of_hugging_face_are_kept(hf: Any) -> None:
    features = hf.Features({"image": hf.Array2D((2, 3), "float32"), "pair": hf.List(hf.Value("int16"), length=2)})
    images = np.arange(24, dtype="float32").reshape(4, 2, 3)
    given = hf.Dataset.from_dict({"image": images.tolist(), "pair": [[1, 2]] * 4}, features=features)
    made = FeatureSet.from_arrow("s", given, ["image", "pair"])
    assert np.array_equal(made.array("image"), images)
    assert [str(made.spec(name)) for name in made.columns] == ["float32[2, 3]", "int16[2]"]


@pytest.mark.across
def test_a_stream_of_hugging_face_gets_the_epoch(hf: Any) -> None:
    stream = table(hf).to_iterable_dataset().shuffle(seed=2, buffer_size=ROWS).with_format("numpy").batch(5)
    made = as_source("s", stream, LIKE)
    assert isinstance(made, IterableSource) and made.steps is None
    first = rows(made, 0)
    assert sorted(first) == list(range(ROWS))
    assert rows(made, 1) != first and rows(made, 0) == first, "it gets the number of the epoch"
    with pytest.raises(SourceError, match=r"column 'y' .* is a single int.*source\.batch\(32\)"):
        rows(source(table(hf).to_iterable_dataset()))


@pytest.mark.across
def test_transforms_of_hugging_face_are_applied(hf: Any) -> None:
    given = table(hf).with_transform(lambda rows: {"x": list(2 * np.array(rows["x"], "float32")), "y": rows["y"]})
    made = MapSource("s", given, features="x", target="y")
    assert np.array_equal(made.gather([3, 1])["x"], 2 * X[[3, 1]])
