"""split_random and add_splits with group_by: groups stay together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel.data import FeatureSet
from anyaccel.errors import ColumnError, SplitError
from anyaccel_sklearn.splits import assign_groups

HALVES = {"a": 0.5, "b": 0.5}


def make(groups: Sequence[Any], **tags: Any) -> FeatureSet:
    data = {"x": np.arange(len(groups)), "who": groups, **tags}
    return FeatureSet.from_dict("fs", data, "x", tags=["who", *tags])


def of_sizes(sizes: Sequence[int]) -> FeatureSet:
    return make(np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes)))


def refusal(
    fs: FeatureSet, ratios: dict[str, float] | None = None, kind: type[Exception] = SplitError, **by: Any
) -> str:
    with pytest.raises(kind) as caught:
        fs.split_random(ratios or HALVES, **by)
    assert not fs.splits
    return str(caught.value)


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=30),
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.integers(-(2**70), 2**70),
)
def test_groups_never_cross_and_splits_are_a_partition(sizes: list[int], parts: list[int], seed: int) -> None:
    fs, again = of_sizes(sizes), of_sizes(sizes)
    ratios = {f"s{i}": part / sum(parts) for i, part in enumerate(parts)}
    try:
        splits = fs.split_random(ratios, seed, group_by="who")
    except SplitError as error:
        too_few = len(sizes) < len(parts) and "cannot be cut into" in str(error)
        assert too_few or ("would be empty" in str(error) and min(ratios.values()) * sum(sizes) < 1)
        return
    assert sorted(np.concatenate([view.rows for view in splits.values()]).tolist()) == list(range(sum(sizes)))
    held = [set(view.array("who").tolist()) for view in splits.values()]
    assert sum(map(len, held)) == len(sizes)
    for name, view in again.split_random(ratios, seed, group_by="who").items():
        assert np.array_equal(view.rows, splits[name].rows)
    if len(sizes) > 2 * len(parts) * max(sizes):
        assert all(abs(len(view) - ratios[name] * len(fs)) <= max(sizes) for name, view in splits.items())


@given(st.lists(st.integers(1, 9), min_size=2, max_size=8), st.integers(1, 9))
def test_no_move_and_no_exchange_brings_the_splits_nearer(sizes: list[int], part: int) -> None:
    n = sum(sizes)
    wanted = [max(1, n * part // 10), n - max(1, n * part // 10)]
    chosen = assign_groups(np.array(sizes), wanted)
    off = int(np.array(sizes)[chosen == 0].sum()) - wanted[0]
    inside = [[0] * (side_len > 1) + side for side, side_len in _sides(sizes, chosen)]
    for first, other in product(*inside):
        if first != other or not first:
            assert abs(off - first + other) >= abs(off)
    assert set(chosen.tolist()) == {0, 1}


def _sides(sizes: Sequence[int], chosen: np.ndarray) -> list[tuple[list[int], int]]:
    """For each of two splits: sizes of groups that may leave it, 0 if the other may give a group without exchange."""
    sides = [[size for size, split in zip(sizes, chosen, strict=True) if split == side] for side in (0, 1)]
    return [(sides[0], len(sides[1])), (sides[1], len(sides[0]))]


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [([3, 3, 2, 2, 2], [6, 6]), ([2, 3, 2, 3, 2], [6, 6]), ([60, 40], [80, 20]), ([1] * 50 + [50], [80, 20])],
)
def test_sizes_come_as_near_as_they_can(sizes: list[int], wanted: list[int]) -> None:
    chosen = assign_groups(np.array(sizes), wanted)
    sizes_by_split = [int(np.array(sizes)[chosen == split].sum()) for split in (0, 1)]
    assert sizes_by_split == ([60, 40] if sizes == [60, 40] else wanted)


def test_groups_of_one_size_give_the_counts_of_the_ratios() -> None:
    fs = of_sizes([4] * 50)
    splits = fs.split_random({"train": 0.8, "val": 0.1, "test": 0.1}, seed=3, group_by="who")
    assert [len(view) for view in splits.values()] == [160, 20, 20]


def test_seeds_differ_although_all_groups_differ_in_size() -> None:
    sizes_by_split = {
        tuple(sorted(set(of_sizes(range(1, 21)).split_random(HALVES, seed, group_by="who")["a"].array("who").tolist())))
        for seed in range(5)
    }
    assert len(sizes_by_split) == 5


def test_the_rows_of_a_split_are_in_the_order_of_the_seed() -> None:
    fs = of_sizes([5] * 10)
    order = of_sizes([5] * 10).split_random({"whole": 1.0}, 4)["whole"].rows.tolist()
    for view in fs.split_random(HALVES, 4, group_by="who").values():
        places = [order.index(row) for row in view.rows.tolist()]
        assert places == sorted(places)


def test_several_columns_name_a_group_together() -> None:
    fs = make(list("ab" * 20), day=[i // 10 for i in range(40)])
    splits = fs.split_random(HALVES, group_by=["who", "day"])
    pairs = [set(zip(v.column("who").to_pylist(), v.column("day").to_pylist(), strict=True)) for v in splits.values()]
    assert len(pairs[0] | pairs[1]) == 8 and not pairs[0] & pairs[1]


def test_a_view_is_grouped_by_its_own_rows() -> None:
    fs = of_sizes([5] * 10)
    view = fs.filter({"who": range(4)})
    splits = view.split_random(HALVES, group_by="who")
    assert [len(part) for part in splits.values()] == [10, 10]
    assert set(splits["a"].array("who")) | set(splits["b"].array("who")) == {0, 1, 2, 3}


def test_fewer_groups_than_splits() -> None:
    assert "'fs' cannot be cut into 2 splits; groups: 1; splits: a, b. Hint: use fewer splits, or give rows" in refusal(
        make(["p"] * 10), group_by="who"
    )


def test_groups_without_a_value_and_columns_that_are_not_there() -> None:
    message = refusal(make(["p", None, "q"]), kind=ColumnError, group_by="who")
    assert "group_by cannot use column 'who', which has no value in 1 of 3 rows, the first in row 1" in message
    assert "3 cannot be the name of a column" in refusal(make(["p", "q"]), kind=ColumnError, group_by=3)
    assert "no column 'whom'" in refusal(make(["p", "q"]), kind=ColumnError, group_by="whom")
    assert "group_by of 'fs' names no column" in refusal(make(["p", "q"]), group_by=())


@given(st.lists(st.integers(2, 8), min_size=1, max_size=5), st.integers(0, 2**32))
def test_groups_within_strata(groups_of: list[int], seed: int) -> None:
    kinds = np.repeat(np.arange(len(groups_of)), groups_of)
    who, kind = np.repeat(np.arange(len(kinds)), 3), np.repeat(kinds, 3)
    fs = make(who, kind=kind)
    splits = fs.split_random(HALVES, seed, stratify_by="kind", group_by="who")
    assert not set(splits["a"].array("who").tolist()) & set(splits["b"].array("who").tolist())
    for stratum, groups in enumerate(groups_of):
        rows = [int((view.array("kind") == stratum).sum()) for view in splits.values()]
        assert sum(rows) == 3 * groups and min(rows) > 0
        assert abs(rows[0] - rows[1]) <= 3


def test_a_group_in_two_strata_is_named() -> None:
    fs = make(["p", "p", "q", "q", "q", "p"], kind=[1, 1, 1, 2, 2, 1])
    message = refusal(fs, stratify_by="kind", group_by="who")
    assert "group who='q' of 'fs' has rows of two strata; kind=1 and kind=2. Hint: stratify" in message


def test_a_stratum_of_one_group() -> None:
    fs = make(["p", "p", "q", "q", "r", "r"], kind=[1, 1, 2, 2, 2, 2])
    message = refusal(fs, stratify_by="kind", group_by="who")
    assert "stratum kind=1 of 'fs' cannot be cut into 2 splits" in message
    assert "; groups: 1; splits: a, b; strata too small: 1 of 2" in message


def test_rows_of_ones_own_choice_are_checked_for_groups() -> None:
    fs = make(["p", "q", "p", "q", "r"])
    with pytest.raises(SplitError) as caught:
        fs.add_splits({"one": [0, 1, 4], "two": [2], "three": [3]}, group_by="who")
    assert "group who='p' of 'fs' crosses splits; 1 of its rows in 'one', 1 of its rows in 'two'" in str(caught.value)
    assert "Hint: put all rows of a group into one split; use split_random(group_by=...)" in str(caught.value)
    assert not fs.splits
    assert list(fs.add_splits({"one": [0, 2], "two": [1, 3]}, group_by="who")) == ["one", "two"]
    with pytest.raises(SplitError, match=r"crosses splits"):
        fs.add_splits({"again": [4], "and again": [4]}, group_by="who")
    with pytest.raises(ColumnError, match=r"no column 'whom'"):
        fs.add_splits({"three": [4]}, group_by="whom")
    assert fs.add_splits({}, group_by="who") == {}


def test_splits_by_condition_keep_groups_together_or_say_which_crosses() -> None:
    volt = np.arange(10, dtype=np.float32) / 10
    data = {"volt": volt, "label": np.arange(10) % 3}
    fs = FeatureSet.from_dict("fs", data, ["volt"], ["label"])
    with pytest.raises(SplitError) as caught:
        fs.split_by_condition({"low": {"volt": lambda v: v < 0.35}, "high": {"volt": lambda v: v > 0.35}}, "label")
    assert "group label=0 of 'fs' crosses splits; 2 of its rows in 'low', 2 of its rows in 'high'" in str(caught.value)
    assert not fs.splits
    assert fs.split_by_condition({"a": {"label": 0}, "b": {"label": 1}}, group_by=["label"])


def test_nulls_in_other_rows_do_not_matter_to_a_view() -> None:
    values = {"x": np.arange(4.0), "n": pa.array([1, None, 3, 3])}
    view = FeatureSet.from_dict("fs", values, "x", (), "n").take([0, 2])
    made = view.split_random(HALVES, group_by="n")
    assert sorted(view.rows.tolist() for view in made.values()) == [[0], [2]]


def test_categories_of_polars_are_groups() -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"x": [1.5, 2.5, 3.5], "kind": pl.Series(["u", "w", "u"], dtype=pl.Categorical)})
    fs = FeatureSet.from_pandas("fs", frame, ["x"], (), ["kind"])
    assert sorted(map(len, fs.split_random({"a": 0.7, "b": 0.3}, group_by="kind").values())) == [1, 2]
