"""Properties of feature sets and splits, for any data."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from hypothesis_profiles import examples

from anyaccel.data import FeatureSet, SimpleSampler, joined_array, joined_spec
from anyaccel.errors import SplitError

DTYPES = st.sampled_from(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
)
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5)
ARRAYS = DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))
RATIOS = st.lists(st.integers(1, 50), min_size=1, max_size=5)


def same(first: np.ndarray, other: np.ndarray) -> bool:
    return first.dtype == other.dtype and first.shape == other.shape and first.tobytes() == other.tobytes()


@given(ARRAYS)
def test_arrays_come_back_bit_by_bit(values: np.ndarray) -> None:
    fs = FeatureSet.from_dict("fs", {"x": values}, "x")
    assert same(fs.array("x"), values)
    assert (fs.spec("x").shape, fs.spec("x").dtype) == (values.shape[1:], values.dtype.name)
    assert not fs.array("x").flags.writeable


@given(ARRAYS, st.data())
def test_arrow_there_and_back(values: np.ndarray, data: st.DataObject) -> None:
    role = data.draw(st.sampled_from(["target", "tags"]))
    fs = FeatureSet.from_dict("fs", {"x": values, "other": values}, "x", **{role: "other"})
    again = FeatureSet.from_arrow("fs", fs.to_arrow())
    assert again.to_arrow().equals(fs.to_arrow(), check_metadata=True)
    assert [again.role(name) for name in again.columns] == [fs.role(name) for name in fs.columns]
    assert same(again.array("other"), values)
    start = data.draw(st.integers(0, len(values) - 1))
    assert same(FeatureSet.from_arrow("fs", fs.to_arrow().slice(start)).array("x"), values[start:])


@given(ARRAYS, st.data())
def test_views_gather(values: np.ndarray, data: st.DataObject) -> None:
    fs = FeatureSet.from_dict("fs", {"x": values}, "x")
    rows = data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=20))
    view = fs.add_split("some", rows)
    assert same(view.array("x"), values[rows])
    assert same(FeatureSet.from_arrow("fs", view.to_arrow()).array("x"), values[rows])


@given(st.integers(1, 300), RATIOS, st.integers(-(2**70), 2**70))
def test_splits_are_a_partition(n: int, parts: list[int], seed: int) -> None:
    fs = FeatureSet.from_dict("fs", {"x": np.arange(n)}, "x")
    ratios = {f"s{i}": part / sum(parts) for i, part in enumerate(parts)}
    try:
        splits = fs.split_random(ratios, seed)
    except SplitError as error:
        assert "would be empty" in str(error) and min(ratios.values()) * n < 1
        assert not fs.splits
        return
    assert sorted(np.concatenate([view.rows for view in splits.values()]).tolist()) == list(range(n))
    for name, view in splits.items():
        assert abs(len(view) - ratios[name] * n) < 1


@given(st.integers(1, 500), st.integers(0, 10**6), st.integers(-(2**70), 2**70), st.booleans())
def test_orders_are_permutations(n: int, epoch: int, seed: int, shuffle: bool) -> None:
    sampler = SimpleSampler(7, shuffle=shuffle, seed=seed)
    order = sampler.order(n, epoch)
    assert order.dtype == np.int64 and sorted(order.tolist()) == list(range(n))
    assert np.array_equal(order, sampler.order(n, epoch))


@given(st.integers(1, 10**6), st.integers(1, 10**4), st.booleans())
def test_batches_add_up(n: int, size: int, drop: bool) -> None:
    if drop and n < size:
        return
    full, last = SimpleSampler(size, drop_last=drop).batches(n)
    assert 0 <= last < size
    assert full * size + last == (n - n % size if drop else n)
    assert SimpleSampler(size, drop_last=drop).steps(n) == -(-(full * size + last) // size)


@settings(max_examples=examples(50))
@given(st.lists(st.sampled_from([(), (1,), (2,), (3,)]), min_size=1, max_size=4), st.integers(1, 5))
def test_joined_arrays_have_the_joined_shape(shapes: list[tuple[int, ...]], n: int) -> None:
    data = {f"c{i}": np.full((n, *shape), i, np.float32) for i, shape in enumerate(shapes)}
    fs = FeatureSet.from_dict("fs", data, list(data))
    joined = joined_array(fs, fs.features)
    assert joined.shape[1:] == joined_spec(fs, fs.features).shape
    assert joined.size == sum(values.size for values in data.values())


@given(hnp.arrays(st.sampled_from(["int64", "uint64", "int16", "float64", "float16"]), st.integers(1, 8)), DTYPES)
def test_casts_keep_values_or_refuse(values: np.ndarray, dtype: str) -> None:
    fs = FeatureSet.from_dict("fs", {"x": values}, "x")
    try:
        cast = fs.cast({"x": dtype}).array("x")
    except ValueError:
        return
    assert cast.dtype == np.dtype(dtype)
    if values.dtype.kind == "f" and cast.dtype.kind == "f":
        assert np.array_equal(np.isfinite(cast), np.isfinite(values))
    else:
        assert [int(value) for value in cast.tolist()] == [int(value) for value in values.tolist()]
