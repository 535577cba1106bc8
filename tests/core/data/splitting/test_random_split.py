"""split_random, registered splits and views."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from anyaccel import rng
from anyaccel.data import FeatureSet, FeatureSetView, Rows
from anyaccel.errors import ColumnError, SplitError

GOLDEN = [4, 2, 8, 0, 1]
PAIRS = pa.list_(pa.int64(), 2)


def make(n: int = 10) -> FeatureSet:
    data = {
        "x": np.arange(2.0 * n).reshape(n, 2),
        "b": np.arange(n) % 2 == 0,
        "y": np.arange(n),
        "t": [f"r{i}" for i in range(n)],
    }
    return FeatureSet.from_dict("fs", data, ["x", "b"], ["y"], ["t"])


def refusal(ratios: object, seed: object = 0, fs: FeatureSet | None = None) -> str:
    with pytest.raises(SplitError) as caught:
        (fs or make()).split_random(ratios, seed)  # type: ignore[arg-type]
    return str(caught.value)


def test_splits_are_the_pinned_permutation_cut_in_order() -> None:
    fs = make()
    splits = fs.split_random({"train": 0.7, "val": 0.2, "test": 0.1}, seed=3)
    assert [len(view) for view in splits.values()] == [7, 2, 1]
    order = rng.permutation(rng.key(3, "split", "all"), 10)
    assert np.array_equal(np.concatenate([view.rows for view in splits.values()]), order)


def test_the_split_of_seed_0_is_pinned() -> None:
    assert make().split_random({"a": 0.5, "b": 0.5})["a"].rows.tolist() == GOLDEN


def test_numpy_integers_are_seeds_too() -> None:
    first, other = make(), make()
    first.split_random({"a": 0.5, "b": 0.5}, 7)
    other.split_random({"a": 0.5, "b": 0.5}, np.int32(7))  # type: ignore[arg-type]
    assert np.array_equal(first["a"].rows, other["a"].rows)


def test_seeds_differ() -> None:
    rows = {tuple(make(50).split_random({"a": 0.5, "b": 0.5}, seed)["a"].rows.tolist()) for seed in range(5)}
    assert len(rows) == 5


@pytest.mark.parametrize(
    ("n", "ratios", "counts"),
    [
        (10, [0.15, 0.15, 0.7], [2, 1, 7]),
        (3, [1 / 3, 1 / 3, 1 / 3], [1, 1, 1]),
        (7, [0.5, 0.5], [4, 3]),
        (100, [0.29, 0.71], [29, 71]),
        (10, [Fraction(1, 10), Fraction(9, 10)], [1, 9]),
        (1000, [0.8, 0.1000005, 0.1], [800, 100, 100]),
        (5, [1], [5]),
    ],
)
def test_counts_are_rounded_by_largest_remainder(n: int, ratios: list[float], counts: list[int]) -> None:
    splits = make(n).split_random({f"s{i}": ratio for i, ratio in enumerate(ratios)})
    assert [len(view) for view in splits.values()] == counts


def test_splits_are_registered() -> None:
    fs = make()
    splits = fs.split_random({"train": 0.8, "test": 0.2})
    assert fs["train"] is fs.split("train") is fs.splits["train"] is splits["train"]
    assert list(fs.splits) == ["train", "test"]
    assert "train" in fs and "nope" not in fs
    assert isinstance(fs.splits, Mapping)
    with pytest.raises(TypeError):
        fs.splits["mine"] = splits["train"]  # type: ignore[index]


def test_views_read_like_the_whole() -> None:
    fs = make()
    view = fs.split_random({"train": 0.8, "test": 0.2})["train"]
    assert isinstance(view, Rows) and isinstance(view, FeatureSetView)
    assert (view.label, view.name, len(view), view.feature_set) == ("fs", "train", 8, fs)
    assert (view.columns, view.features, view.targets, view.tags) == (fs.columns, fs.features, fs.targets, fs.tags)
    assert view.rows.dtype == np.int64 and not view.rows.flags.writeable
    assert view.role("t") == "tag" and view.spec("x") == fs.spec("x")
    for name in ("x", "b", "y"):
        assert np.array_equal(view.array(name), fs.array(name)[view.rows])
        assert view.array(name).dtype == fs.array(name).dtype
    assert view.column("t").to_pylist() == [f"r{i}" for i in view.rows]
    assert view.column("x").type == fs.column("x").type


def test_gathers_are_read_only_for_good() -> None:
    values = make().split_random({"train": 0.8, "test": 0.2})["train"].array("x")
    with pytest.raises(ValueError):
        values[0] = 0
    with pytest.raises(ValueError):
        values.flags.writeable = True


def test_a_view_becomes_a_table_that_can_be_read() -> None:
    view = make().split_random({"train": 0.8, "test": 0.2})["train"]
    again = FeatureSet.from_arrow("again", view.to_arrow())
    assert (again.features, again.targets, again.tags) == (view.features, view.targets, view.tags)
    assert np.array_equal(again.array("x"), view.array("x"))
    assert np.array_equal(again.array("b"), view.array("b"))


def test_contiguous_rows_are_slices() -> None:
    fs = make()
    view = fs.add_split("middle", range(2, 5))
    assert view.array("x").ctypes.data == fs.array("x")[2:].ctypes.data
    assert view.array("x").tolist() == fs.array("x")[2:5].tolist()
    assert view.column("t").to_pylist() == ["r2", "r3", "r4"]
    assert len(view.to_arrow()) == 3
    assert not view.array("x").flags.writeable


def test_all_rows_as_a_view() -> None:
    fs = make()
    for view in (fs.view(), fs["all"], fs.split("all")):
        assert (view.name, view.rows.tolist()) == ("all", list(range(10)))
        assert view.array("x").ctypes.data == fs.array("x").ctypes.data
    assert not fs.splits


def test_splits_of_splits_are_registered_in_the_feature_set() -> None:
    fs = make(100)
    train = fs.split_random({"train": 0.8, "test": 0.2})["train"]
    parts = train.split_random({"fit": 0.75, "val": 0.25})
    assert list(fs.splits) == ["train", "test", "fit", "val"]
    assert sorted(np.concatenate([parts["fit"].rows, fs["val"].rows])) == sorted(train.rows)
    assert np.array_equal(parts["fit"].rows, train.rows[rng.permutation(rng.key(0, "split", "train"), 80)[:60]])


def test_rows_of_ones_own_choice() -> None:
    fs = make()
    mine = np.array([9, 0, 9])
    view = fs.add_split("mine", mine)
    mine[:] = 0
    assert view.array("y").tolist() == [9, 0, 9]
    assert fs.add_split("unsigned", np.array([3], np.uint8)).rows.dtype == np.int64


@pytest.mark.parametrize("rows", [[], [[1]], [0.5], np.ones(10, bool), ["a"]])
def test_invalid_rows_are_refused(rows: list[object]) -> None:
    with pytest.raises(
        SplitError, match=r"split 'mine' of 'fs' has rows of shape .*integer array \[k\].*np.flatnonzero"
    ):
        make().add_split("mine", rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("row", [-1, 10])
def test_rows_out_of_range(row: int) -> None:
    with pytest.raises(SplitError, match=rf"split 'mine' of 'fs' asks for row {row}. Available: rows 0 to 9"):
        make().add_split("mine", [0, row])


def test_unknown_splits() -> None:
    fs = make()
    with pytest.raises(
        SplitError, match=r"'fs' has no split 'train'. Available: all. Hint: create splits with split_random"
    ):
        fs["train"]
    fs.split_random({"train": 0.5, "test": 0.5})
    with pytest.raises(
        SplitError, match=r"'fs' has no split 'trian'. Available: train, test, all. Hint: did you mean 'train'"
    ):
        fs["trian"]
    with pytest.raises(SplitError, match=r"no split 0"):
        fs[0]  # type: ignore[index]


def test_names_are_taken_once_and_nothing_is_registered_on_failure() -> None:
    fs = make()
    fs.split_random({"train": 0.5, "test": 0.5})
    assert (
        "'fs' already has a split 'test' of other rows; it has train, test, all. "
        "Hint: create the feature set again in the same cell, or choose another name"
    ) in refusal({"other": 0.5, "test": 0.5}, seed=3, fs=fs)
    assert list(fs.splits) == ["train", "test"]
    assert "already has a split 'all'" in refusal({"all": 1.0})
    for name in ("", 3):
        assert f"the name of a split of 'fs' must be text, got {name!r}" in refusal({name: 1.0})


@pytest.mark.parametrize("ratios", [{}, [0.5, 0.5], 0.5, None])
def test_ratios_are_a_mapping(ratios: object) -> None:
    assert refusal(ratios).startswith(
        f"the ratios of a split of 'fs' must be a mapping by name, got {ratios!r}. Hint: write {{'train': 0.8"
    )


@pytest.mark.parametrize("ratio", [0, -0.5, float("nan"), float("inf"), True, "0.5", None, np.array([0.5])])
def test_ratios_are_positive_numbers(ratio: object) -> None:
    message = refusal({"a": 0.5, "b": ratio})
    assert (
        f"the ratio of split 'b' of 'fs' must be a positive number, got {ratio!r}; ratios must add up to 1" in message
    )


def test_ratios_add_up() -> None:
    assert "add up to 0.9, not to 1; a: 0.5, b: 0.4. Hint: change them, or add" in refusal({"a": 0.5, "b": 0.4})
    assert "add up to 1.1, not to 1; a: 0.5, b: 0.6. Hint: make them smaller" in refusal({"a": 0.5, "b": 0.6})
    assert "add up to" in refusal({"a": 0.5, "b": 0.500002})


def test_no_split_is_empty() -> None:
    message = refusal({"a": 0.96, "b": 0.04})
    assert "split 'b' of 'fs' would be empty; 0.04 of 10 rows is less than one row" in message


@pytest.mark.parametrize("seed", [True, 0.5, "0", None])
def test_seeds_are_integers(seed: object) -> None:
    assert f"the seed of a split of 'fs' must be an integer, got {seed!r}" in refusal({"a": 1}, seed)


def test_views_refuse_unknown_columns() -> None:
    view = make().view()
    for read in (view.role, view.spec, view.array, view.column):
        with pytest.raises(ColumnError, match=r"'fs' has no column 'z'"):
            read("z")


def test_rows_taken_twice_are_not_cut_at_random() -> None:
    fs = make()
    with pytest.raises(SplitError, match="contains rows more than once and cannot be split") as caught:
        fs.take([9, 7, 7, 1, 1, 0]).split_random({"a": 0.5, "b": 0.5})
    assert "rows 1, 7 would be copied into several splits" in str(caught.value)
    assert not fs.splits


def test_nulls_in_other_rows_do_not_matter_to_a_view() -> None:
    values = {"x": np.arange(4.0), "n": pa.array([1, None, 3, 3]), "v": pa.array([[1, 2], [3, None]] * 2, PAIRS)}
    whole = FeatureSet.from_dict("fs", values, "x", (), ["n", "v"])
    view = whole.take([0, 2])
    assert view.array("n").tolist() == [1, 3] and view.array("v").tolist() == [[1, 2], [1, 2]]
    assert not view.array("n").flags.writeable
    assert view.filter({"n": lambda n: n > 2}).rows.tolist() == [2]
    assert whole.take([3, 0]).to_arrow().column("n").to_pylist() == [3, 1]
    with pytest.raises(ColumnError, match="'n' has nulls in 1 of 2 rows, the first in row 1"):
        whole.take([2, 1]).array("n")
    with pytest.raises(ColumnError, match="cannot be read as numbers"):
        FeatureSet.from_dict("fs", {"x": [1.0], "t": ["a"]}, "x", (), "t").take([0]).array("t")


def test_a_split_that_is_made_again_is_the_same_one() -> None:
    fs = make()
    ratios = {"train": 0.5, "test": 0.5}
    first = fs.split_random(ratios, seed=3)
    again = fs.split_random(ratios, seed=3)
    assert again["train"] is first["train"] is fs["train"] and list(fs.splits) == ["train", "test"]
    assert fs.add_split("test", first["test"].rows) is first["test"]
    half = {"low": {"y": [0, 1]}}
    assert fs.split_by_condition(half)["low"] is fs.split_by_condition(half)["low"]
    with pytest.raises(SplitError, match=r"'train' of other rows.*Hint: create the feature set again in the same cell"):
        fs.split_random(ratios, seed=4)
    assert fs["train"] is first["train"]
