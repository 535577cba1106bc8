"""Copying columns for loading: right in every layout, in one pass, and counted in bytes."""

from __future__ import annotations

import functools
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import anyaccel as aa
from anyaccel.data import FeatureSet, Rows, joined_array, loadable_array
from anyaccel.data import joined_columns as column_copy
from anyaccel.data.joined_columns import gather
from anyaccel.host_memory import is_aligned, is_own
from anyaccel.numpy_backend import NumpyBackend, SequentialMLP

MANY, WIDTH = 100_000, 50
NAMES = [f"c{i}" for i in range(WIDTH)]
SCRATCH = 5 * 2**20  # bytes that a pass may take besides; another copy would take 20 MB


def values(rows: int, width: int = WIDTH, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, width)).astype(dtype)


def columns(array: np.ndarray, chunk: int) -> Any:
    """An Arrow table with a column for each of the array's, in pieces of `chunk` rows."""
    table = pa.table({name: np.ascontiguousarray(array[:, i]) for i, name in enumerate(NAMES)})
    return pa.concat_tables([table.slice(start, chunk) for start in range(0, len(array), chunk)])


def vectors(array: np.ndarray, chunk: int) -> Any:
    """The same as one column of vectors."""
    flat = pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])
    return pa.table({"x": pa.chunked_array([flat.slice(start, chunk) for start in range(0, len(array), chunk)])})


def lists(array: np.ndarray, chunk: int) -> Any:
    """The same as variable-size lists of equal length, as other writers of tables store vectors."""
    column = vectors(array, chunk).column("x")
    return pa.table({"x": column.cast(pa.list_(column.type.value_type))})


def set_of(table: Any) -> FeatureSet:
    return FeatureSet.from_arrow("data", table, table.column_names)


def within(most: Callable[[Any], int], prepare: Callable[[], Any], act: Callable[[Any], Any]) -> tuple[Any, int]:
    """As `allocated`, for `act(prepare())`; tried up to three times while the peak is more than `most` of the result.

    The whole process is measured, so that once in thousands of runs another thread's allocations are counted too. What
    `act` allocates itself is the same in every try, as each has objects of its own, in which nothing is cached yet.
    """
    for _ in range(3):
        prepared = prepare()
        loaded, peak = allocated(lambda prepared=prepared: act(prepared))
        if peak <= most(loaded):
            break
    return loaded, peak


def allocated(act: Callable[[], Any]) -> tuple[Any, int]:
    """The result of a call, and the peak of the bytes that NumPy and Arrow allocated for it."""
    arrow = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        loaded = act()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return loaded, peak + max(pa.total_allocated_bytes() - arrow, 0)


# -- in every layout -------------------------------------------------------------------------------------------------


def mixed(rows: int, chunk: int) -> tuple[FeatureSet, dict[str, np.ndarray]]:
    """Bare numbers of several dtypes, vectors, images and bools, in pieces; and the same as plain arrays."""
    random = np.random.default_rng(1)
    plain: dict[str, np.ndarray] = {
        **{f"f{i}": random.standard_normal(rows).astype("float32") for i in range(6)},
        "d": random.standard_normal(rows),
        "v": random.standard_normal((rows, 3)).astype("float32"),
        "w": random.standard_normal((rows, 2)),
        "yes": random.random(rows) < 0.5,
        "i": random.integers(0, 100, rows).astype("int16"),
    }
    whole = FeatureSet.from_dict("data", plain, [*plain]).to_arrow()
    pieces = pa.concat_tables([whole.slice(start, chunk) for start in range(0, rows, chunk)])
    return FeatureSet.from_arrow("data", pieces, [*plain]), plain


def chosen_rows(rows: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(2)
    return {
        "all": np.arange(rows),
        "a range": np.arange(rows // 4, rows // 2),
        "ascending": np.flatnonzero(random.random(rows) < 0.4),
        "in no order": random.permutation(rows),
        "some in no order": random.permutation(rows)[: rows // 3],
        "backwards": np.arange(rows)[::-1],
        "one": np.array([rows - 1]),
        "some twice": random.integers(0, rows, rows),
        "ascending, some twice": np.sort(random.integers(0, rows, rows)),
    }


@pytest.mark.parametrize("names", ["f0", "d", "v", "yes", "i", "f0 f1", "f0 f1 f2 f3 f4 f5", "f0 f1 f2 f3 v w d yes i"])
@pytest.mark.parametrize("chunk", [3000, 700, 64])
@pytest.mark.parametrize("which", chosen_rows(100))
def test_every_layout_gives_the_same_numbers(names: str, chunk: int, which: str) -> None:
    fs, plain = mixed(3000, chunk)
    rows: Rows = fs if which == "all" else fs.take(chosen_rows(3000)[which])
    chosen = chosen_rows(3000)[which]
    parts = [plain[name][chosen] for name in names.split()]
    wanted = parts[0] if len(parts) == 1 else np.concatenate([p.reshape(len(p), -1) for p in parts], axis=1)
    for dtype in ("float32", "float64"):
        loaded = loadable_array(rows, names.split(), dtype)
        assert loaded.dtype == dtype
        np.testing.assert_array_equal(loaded, wanted.astype(dtype))
    joined = joined_array(rows, names.split())
    assert joined.dtype == wanted.dtype and not joined.flags.writeable
    np.testing.assert_array_equal(joined, wanted)


def test_images_are_joined_along_their_last_axis() -> None:
    first, other = (np.random.default_rng(i).standard_normal((40, 2, 3, 1 + i)).astype("float32") for i in range(2))
    fs = FeatureSet.from_dict("data", {"one": first, "other": other}, ["one", "other"])
    view = fs.take(np.arange(40)[::-3])
    np.testing.assert_array_equal(
        loadable_array(view, ["one", "other"], "float32"), np.concatenate([first, other], -1)[::-3]
    )


def test_more_columns_than_one_tile() -> None:
    array = values(1000, 150)
    names = [str(i) for i in range(150)]
    fs = FeatureSet.from_dict("data", dict(zip(names, array.T, strict=True)), names)
    np.testing.assert_array_equal(loadable_array(fs, names, "float32"), array)
    np.testing.assert_array_equal(loadable_array(fs.take(np.arange(999, 0, -2)), names, "float32"), array[999:0:-2])


def test_a_tag_is_loaded_from_rows_without_nulls() -> None:
    table = pa.table({"x": [1.0, 2.0, 3.0], "t": pa.array([None, 5, 6], pa.int64())})
    fs = FeatureSet.from_arrow("data", table, ["x"], tags=["t"])
    np.testing.assert_array_equal(loadable_array(fs.take([2, 1]), ["t"], "int64"), [6, 5])
    np.testing.assert_array_equal(loadable_array(fs.take([2, 1]), ["x", "t"], "float32"), [[3, 6], [2, 5]])


def test_new_arrays_are_writable_and_the_feature_sets_are_read_only() -> None:
    fs = set_of(vectors(values(30), 30))
    borrowed = loadable_array(fs, ["x"], "float32")
    assert not borrowed.flags.writeable and np.shares_memory(borrowed, fs.array("x"))
    for new in (loadable_array(fs, ["x"], "float64"), loadable_array(fs.take([4, 2]), ["x"], "float32")):
        assert is_own(new) and is_aligned(new) and not np.shares_memory(new, fs.array("x"))


@pytest.mark.parametrize("processors", [1, 3])
def test_threads_do_a_share_each(monkeypatch: pytest.MonkeyPatch, processors: int) -> None:
    monkeypatch.setattr(column_copy, "_SHARE", 1000)
    monkeypatch.setattr(column_copy, "usable_cores", lambda: processors)
    used: set[str] = set()
    real = column_copy._copy  # noqa: SLF001

    def noted(*arguments: Any) -> Any:
        used.add(threading.current_thread().name)
        return real(*arguments)

    monkeypatch.setattr(column_copy, "_copy", noted)
    array = values(3001)
    rows = np.random.default_rng(0).permutation(3001)
    view = set_of(columns(array, 400)).take(rows)
    np.testing.assert_array_equal(loadable_array(view, NAMES, "float32"), array[rows])
    assert (used == {"MainThread"}) == (processors == 1)
    assert not [first for first in threading.enumerate() if first.name.startswith("anyaccel-copy")]


@pytest.mark.parametrize("share", [1000, 2**30])
def test_overflow_is_reported_as_numpy_is_set_to(monkeypatch: pytest.MonkeyPatch, share: int) -> None:
    monkeypatch.setattr(column_copy, "_SHARE", share)
    monkeypatch.setattr(column_copy, "usable_cores", lambda: 2)
    fs = set_of(vectors(np.full((3000, 2), 1e300), 3000))
    with pytest.warns(RuntimeWarning, match="overflow"):
        assert np.isinf(loadable_array(fs, ["x"], "float32")).all()
    with np.errstate(over="ignore"):
        assert np.isinf(loadable_array(fs, ["x"], "float32")).all()
    with np.errstate(over="raise"), pytest.raises(FloatingPointError, match="overflow"):
        loadable_array(fs, ["x"], "float32")


# -- counted ---------------------------------------------------------------------------------------------------------


def split(table: Any, rows: Sequence[int] | np.ndarray) -> Rows:
    return set_of(table).take(rows)


SHUFFLED = np.random.default_rng(3).permutation(MANY)
CASES: dict[str, Callable[[], tuple[Rows, list[str]]]] = {
    "columns": lambda: (set_of(columns(values(MANY), MANY)), NAMES),
    "columns in pieces": lambda: (set_of(columns(values(MANY), MANY // 10)), NAMES),
    "columns of float64": lambda: (set_of(columns(values(MANY, dtype="float64"), MANY)), NAMES),
    "vectors in pieces": lambda: (set_of(vectors(values(MANY), MANY // 10)), ["x"]),
    "vectors of float64": lambda: (set_of(vectors(values(MANY, dtype="float64"), MANY)), ["x"]),
    "vectors of float64 in pieces": lambda: (set_of(vectors(values(MANY, dtype="float64"), MANY // 10)), ["x"]),
    "lists in pieces": lambda: (set_of(lists(values(MANY), MANY // 10)), ["x"]),
    "vectors, some rows": lambda: (split(vectors(values(MANY), MANY), SHUFFLED), ["x"]),
    "vectors, rows in order": lambda: (split(vectors(values(MANY), MANY), np.arange(0, MANY, 2)), ["x"]),
    "vectors in pieces, rows in order": lambda: (
        split(vectors(values(MANY), MANY // 10), np.arange(0, MANY, 2)),
        ["x"],
    ),
}
# A row number, and the place where it belongs, are counted with what is loaded.
SORTED_ROWS: dict[str, Callable[[], tuple[Rows, list[str]]]] = {
    "vectors in pieces, some rows": lambda: (split(vectors(values(MANY), MANY // 10), SHUFFLED), ["x"]),
    "columns, some rows": lambda: (split(columns(values(MANY), MANY), SHUFFLED), NAMES),
    "columns in pieces, some rows": lambda: (split(columns(values(MANY), MANY // 10), SHUFFLED), NAMES),
}


@pytest.mark.parametrize("case", [*CASES, *SORTED_ROWS])
def test_one_copy_is_made(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    def most(loaded: np.ndarray) -> int:
        return loaded.nbytes + SCRATCH + (4 * 8 if case in SORTED_ROWS else 2) * len(loaded)

    monkeypatch.setattr(column_copy, "_THREADS", 1)  # each has a scratch of its own
    loaded, peak = within(most, (CASES | SORTED_ROWS)[case], lambda chosen: loadable_array(*chosen, "float32"))
    assert loaded.nbytes <= peak <= most(loaded)
    assert is_own(loaded)


def test_another_copy_is_noticed_in_every_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_copy, "_THREADS", 1)
    tries = []

    def twice(chosen: tuple[Rows, list[str]]) -> np.ndarray:
        tries.append(chosen)
        loaded = loadable_array(*chosen, "float32")
        return loaded + loaded.copy()

    loaded, peak = within(lambda loaded: loaded.nbytes + SCRATCH, CASES["vectors in pieces"], twice)
    assert peak > loaded.nbytes + SCRATCH and len(tries) == 3
    assert len({id(rows) for rows, _ in tries}) == 3


def test_one_column_as_it_lies_is_not_copied() -> None:
    fs = set_of(vectors(values(MANY), MANY))
    for prepare in (lambda: fs, lambda: fs.take(np.arange(100, MANY))):
        loaded, peak = within(lambda _: 2**20, prepare, lambda rows: loadable_array(rows, ["x"], "float32"))
        assert peak < 2**20 and np.shares_memory(loaded, fs.array("x"))


def test_lists_in_pieces_are_taken_in_as_they_lie() -> None:
    array = values(MANY)
    table = lists(array, MANY // 10)
    fs, peak = within(lambda _: 2**21, lambda: table, set_of)
    assert peak < 2**21, "a copy would take 20 MB"
    assert fs.column("x").num_chunks == 10
    rows = functools.partial(fs.take, np.arange(MANY // 4, MANY))
    loaded, peak = within(lambda it: it.nbytes + SCRATCH, rows, lambda rows: loadable_array(rows, ["x"], "float32"))
    assert loaded.nbytes <= peak <= loaded.nbytes + SCRATCH
    np.testing.assert_array_equal(loaded, array[MANY // 4 :])


def test_parquet_is_copied_once_after_it_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_copy, "_THREADS", 1)
    array = values(MANY)
    pq.write_table(columns(array, MANY), tmp_path / "x.parquet", row_group_size=MANY // 7)
    made: list[FeatureSet] = []

    def prepare() -> FeatureSet:
        made.append(FeatureSet.from_parquet("data", tmp_path / "x.parquet", NAMES))
        assert made[-1].column("c0").num_chunks > 1
        return made[-1]

    loaded, peak = within(lambda it: it.nbytes + SCRATCH, prepare, lambda fs: loadable_array(fs, NAMES, "float32"))
    assert peak <= loaded.nbytes + SCRATCH
    fs = made[-1]
    np.testing.assert_array_equal(loaded, array)
    assert fs.column("c0").num_chunks > 1  # and nothing is kept beside it


# -- to a device -----------------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """By which methods the NumPy backend got its columns."""
    noted: list[str] = []
    take, copy = NumpyBackend.from_host_owned, NumpyBackend.from_host

    def taking(self: NumpyBackend, array: np.ndarray, device: Any) -> Any:
        noted.append(f"take {list(array.shape)}")
        tensor = take(self, array, device)
        assert tensor is array
        return tensor

    def copying(self: NumpyBackend, array: np.ndarray, device: Any, *, pinned: bool = False) -> Any:
        if array.ndim > 1:  # no order of rows
            noted.append(f"copy {list(array.shape)}{' pinned' if pinned else ''}")
        return copy(self, array, device, pinned=pinned)

    monkeypatch.setattr(NumpyBackend, "from_host_owned", taking)
    monkeypatch.setattr(NumpyBackend, "from_host", copying)
    return noted


@pytest.mark.parametrize(
    ("features", "pinned", "wanted"),
    [
        (["a", "b"], False, ["take [8, 2]", "copy [8, 1]"]),
        (["v"], False, ["copy [8, 3]", "copy [8, 1]"]),
        (["a", "b"], True, ["copy [8, 2] pinned", "copy [8, 1] pinned"]),
    ],
)
def test_a_phase_gives_its_new_arrays_to_the_backend(
    calls: list[str], features: list[str], pinned: bool, wanted: list[str]
) -> None:
    plain = {"a": values(8, 1)[:, 0], "b": values(8, 1)[:, 0], "v": values(8, 3), "y": values(8, 1)}
    fs = FeatureSet.from_dict("data", plain, ["a", "b", "v"], ["y"])
    node = aa.ModelNode("mlp", SequentialMLP(output_shape=(1,), n_layers=1), fs.reference(features))
    phase = aa.TrainPhase(
        "train",
        data=fs,
        batch_size=4,
        losses=[aa.AppliedLoss("mse", on="mlp")],
        accelerator=aa.Accelerator("cpu", pin_memory=pinned),
    )
    graph = aa.ModelGraph([node], aa.Optimizer("sgd", lr=0.1))
    aa.Experiment("loading", graph, progress="none").run_phase(phase)
    assert calls == wanted


# -- gathering -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (50,), (4, 3)], ids=str)
@pytest.mark.parametrize("lies", ["dense", "strided", "another dtype", "into a strided part"])
def test_gathering(shape: tuple[int, ...], lies: str) -> None:
    array = np.random.default_rng(0).standard_normal((40, *shape)).astype("float32")
    array = np.repeat(array, 2, axis=0)[::2] if lies == "strided" else array
    out = np.full((2 * 9, *shape), np.nan, "float64" if lies == "another dtype" else "float32")
    out = out[::2] if lies == "into a strided part" else out[:9]
    indices = np.array([3, 39, 0, 3, 7, 8, 9, 1, 20])
    assert gather(array, indices, out) is out
    np.testing.assert_array_equal(out, array[indices])


def test_gathering_takes_no_memory() -> None:
    array, out = values(20_000), np.empty((10_000, WIDTH), "float32")
    indices = np.random.default_rng(0).permutation(20_000)[:10_000]
    assert within(lambda _: 2**16 - 1, lambda: out, lambda out: gather(array, indices, out))[1] < 2**16


def test_gathering_nothing() -> None:
    out = gather(np.zeros((0, 3), "float32"), np.zeros(0, int), np.zeros((0, 3), "float32"))
    assert out.shape == (0, 3)
