"""split_random with stratify_by: every stratum and the whole keep the ratios."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anyaccel.data import FeatureSet
from anyaccel.errors import ColumnError, SplitError
from anyaccel_sklearn.splits import apportion

RATIOS = st.lists(st.integers(1, 20), min_size=1, max_size=5)
SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=12)


def make(labels: Sequence[Any], **tags: Any) -> FeatureSet:
    data = {"x": np.arange(len(labels)), "label": labels, **tags}
    return FeatureSet.from_dict("fs", data, "x", tags=["label", *tags])


def of_sizes(sizes: Sequence[int], shuffled: int = 0) -> FeatureSet:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return make(np.random.default_rng(shuffled).permutation(labels))


def ratios_of(parts: Sequence[int]) -> dict[str, float]:
    return {f"s{i}": part / sum(parts) for i, part in enumerate(parts)}


def refusal(fs: FeatureSet, by: Any, ratios: dict[str, float] | None = None, kind: type[Exception] = SplitError) -> str:
    with pytest.raises(kind) as caught:
        fs.split_random(ratios or {"a": 0.5, "b": 0.5}, stratify_by=by)
    assert not fs.splits
    return str(caught.value)


@given(SIZES, RATIOS, st.integers(-(2**70), 2**70))
def test_stratified_splits_are_a_partition_near_the_ratios(sizes: list[int], parts: list[int], seed: int) -> None:
    fs, again, ratios = of_sizes(sizes), of_sizes(sizes), ratios_of(parts)
    try:
        splits = fs.split_random(ratios, seed, stratify_by="label")
    except SplitError as error:
        too_small = min(sizes) < len(parts) and "cannot be cut into" in str(error)
        assert too_small or ("would be empty" in str(error) and min(ratios.values()) * sum(sizes) < 1)
        return
    assert sorted(np.concatenate([view.rows for view in splits.values()]).tolist()) == list(range(sum(sizes)))
    labels = fs.array("label")
    for name, view in splits.items():
        assert abs(len(view) - ratios[name] * len(fs)) < 1 + 1e-9
        counts = np.bincount(labels[view.rows], minlength=len(sizes))
        assert (np.abs(counts - ratios[name] * np.array(sizes)) < 1 + 1e-9).all()
    for name, view in again.split_random(ratios, seed, stratify_by="label").items():
        assert np.array_equal(view.rows, splits[name].rows)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=15), st.lists(st.integers(1, 12), min_size=1, max_size=6))
@example([6, 12], [1, 1, 3, 3, 3])
@example([12, 4, 9], [6, 2, 12, 11, 8, 11])  # rounding one stratum after the other leaves a split too large,
@example([8, 9, 6, 10, 8, 4, 1, 7, 7], [2, 7, 4, 7, 4, 4])  # and here one too small
def test_apportioned_counts_are_rounded_shares_in_both_directions(sizes: list[int], parts: list[int]) -> None:
    shares = [Fraction(part, sum(parts)) for part in parts]
    n = sum(sizes)
    totals = [int(share * n) for share in shares]
    by_rest = sorted(range(len(shares)), key=lambda split: totals[split] - shares[split] * n)
    for split in by_rest[: n - sum(totals)]:
        totals[split] += 1
    counts = apportion(sizes, shares, totals)
    assert counts.sum(axis=1).tolist() == sizes
    ideal = np.array([[share * size for share in shares] for size in sizes])
    assert (np.abs(counts - ideal) < 1).all()
    assert (np.abs(counts.sum(axis=0) - np.array([share * n for share in shares])) < 1).all()


def test_totals_that_no_rounding_of_the_strata_gives_are_neared() -> None:
    """The first stratum has rests for a and b only, the second for the others: one row each, not two for a and b."""
    shares = [Fraction(1, 4), Fraction(1, 4), Fraction(1, 6), Fraction(1, 6), Fraction(1, 6)]
    counts = apportion([6, 4], shares, [3, 3, 2, 1, 1])
    assert counts.sum(axis=1).tolist() == [6, 4]
    assert counts[:, :2].sum() == 3 + 2
    assert (np.abs(counts.sum(axis=0) - np.array([float(share) * 10 for share in shares])) < 1).all()


def test_totals_are_those_of_a_split_without_strata() -> None:
    for sizes in ([11] * 10, [7, 13, 5, 75], [33, 33, 34], [3] * 40):
        ratios = {"train": 0.8, "val": 0.1, "test": 0.1}
        strata = of_sizes(sizes).split_random(ratios, stratify_by="label")
        plain = of_sizes(sizes).split_random(ratios)
        assert [len(view) for view in strata.values()] == [len(view) for view in plain.values()]


def test_ratios_are_taken_as_they_were_meant() -> None:
    """0.7 of 10 rows are 7, although the float 0.7 is a little less; in no stratum may that make a 6."""
    fs = of_sizes([10] * 30)
    splits = fs.split_random({"a": 0.7, "b": 0.2, "c": 0.1}, stratify_by="label")
    for name, count in (("a", 7), ("b", 2), ("c", 1)):
        assert Counter(splits[name].array("label").tolist()) == dict.fromkeys(range(30), count)


def test_rows_stay_in_the_order_of_the_seed() -> None:
    fs, plain = of_sizes([40, 60]), of_sizes([40, 60])
    order = plain.split_random({"whole": 1.0}, 5)["whole"].rows.tolist()
    for view in fs.split_random({"a": 0.5, "b": 0.5}, 5, stratify_by="label").values():
        places = [order.index(row) for row in view.rows.tolist()]
        assert places == sorted(places)


def test_no_strata_and_one_stratum_are_cut_alike() -> None:
    first = make([1] * 50).split_random({"a": 0.5, "b": 0.5}, 3, stratify_by="label")
    none = make([1] * 50).split_random({"a": 0.5, "b": 0.5}, 3, stratify_by=None)
    assert sorted(first["a"].rows) == sorted(none["a"].rows)


def test_seeds_differ() -> None:
    rows = {
        tuple(of_sizes([20, 30]).split_random({"a": 0.5, "b": 0.5}, seed, stratify_by="label")["a"].rows.tolist())
        for seed in range(5)
    }
    assert len(rows) == 5


@pytest.mark.parametrize(
    "values",
    [
        np.array([0.5, 1.5], np.float16),
        np.array([True, False]),
        np.array([-1, 2**62]),
        ["a", "b"],
        [b"a", b"b"],
        [date(2024, 1, 1), date(2025, 1, 1)],
        np.array(["2024-01-01T00:00:00.000000001", "2024-01-01T00:00:00.000000002"], "datetime64[ns]"),
        pa.array(["b", "a"]).dictionary_encode(),
        pa.array([1, 2], pa.decimal128(5, 2)),
        pa.array([b"ab", b"cd"], pa.binary(2)),
        pa.array(["a", "b"], pa.large_string()),
        pa.array([1, 2], pa.duration("ms")),
    ],
)
def test_columns_of_any_scalar_type(values: Any) -> None:
    column = pa.array(values) if not isinstance(values, (pa.Array, pa.ExtensionArray)) else values
    repeated = pa.chunked_array([column] * 10)
    splits = make(repeated).split_random({"a": 0.8, "b": 0.2}, stratify_by="label")
    assert sorted(row % 2 for row in splits["a"].rows) == [0] * 8 + [1] * 8
    assert sorted(row % 2 for row in splits["b"].rows) == [0] * 2 + [1] * 2


class Kind(pa.ExtensionType):  # type: ignore[misc]
    """An extension type, which Arrow cannot dictionary-encode."""

    def __init__(self) -> None:
        super().__init__(pa.string(), "tests.kind")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> Any:
        return cls()


def test_extension_types_are_told_apart_by_what_they_store() -> None:
    stored = pa.array(["u", "v"] * 10)
    splits = make(pa.ExtensionArray.from_storage(Kind(), stored)).split_random(
        {"a": 0.8, "b": 0.2}, stratify_by="label"
    )
    assert sorted(row % 2 for row in splits["b"].rows) == [0, 0, 1, 1]


def test_several_columns_of_any_role_are_strata_together() -> None:
    n = 48
    data = {"x": np.arange(n), "y": np.arange(n) % 2, "t": [("u", "v", "w")[i // 2 % 3] for i in range(n)]}
    fs = FeatureSet.from_dict("fs", data, "x", "y", "t")
    splits = fs.split_random({"a": 0.75, "b": 0.25}, stratify_by=["y", "t"])
    pairs = Counter(zip(splits["b"].array("y").tolist(), splits["b"].column("t").to_pylist(), strict=True))
    assert set(pairs.values()) == {2} and len(pairs) == 6


def test_groups_do_not_depend_on_the_order_of_names_or_values() -> None:
    kind, text = [i % 3 for i in range(50)], [("x", "y")[i % 7 > 2] for i in range(50)]
    result = {
        tuple(make(labels, text=words).split_random({"a": 0.6, "b": 0.4}, 1, stratify_by=names)["a"].rows.tolist())
        for labels, words in ((kind, text), ([-k for k in kind], [{"x": "z", "y": "a"}[word] for word in text]))
        for names in (["label", "text"], ["text", "label"])
    }
    assert len(result) == 1


def test_a_view_is_stratified_by_its_own_rows() -> None:
    fs = of_sizes([40, 40, 1])
    view = fs.filter({"label": [0, 1]})
    splits = view.split_random({"a": 0.5, "b": 0.5}, stratify_by="label")
    assert sorted(np.concatenate([splits["a"].rows, splits["b"].rows])) == view.rows.tolist()
    assert np.bincount(splits["a"].array("label")).tolist() == [20, 20]


def test_a_stratum_of_one_is_named_with_its_count_and_the_remedy() -> None:
    message = refusal(make(["a"] * 5 + ["b"] + ["c"] * 4), "label")
    assert "stratum label='b' of 'fs' cannot be cut into 2 splits" in message
    assert "; rows: 1; splits: a, b; strata too small: 1 of 3" in message
    assert "Hint: leave its rows out, with filter() or pandas" in message
    assert make(["a", "b"]).split_random({"whole": 1.0}, stratify_by="label")["whole"].name == "whole"


def test_a_stratum_smaller_than_the_splits() -> None:
    thirds = {"a": 0.4, "b": 0.3, "c": 0.3}
    message = refusal(make([1.5] * 10 + [2.5] * 2, other=[3] * 12), ["label", "other"], thirds)
    assert "stratum label=2.5, other=3 of 'fs' cannot be cut into 3 splits; rows: 2; splits: a, b, c" in message


def test_times_of_nanoseconds_in_a_message() -> None:
    stamps = np.array(["2024-01-01T00:00:00.000000001"] + ["2024-01-01"] * 4, "datetime64[ns]")
    assert "stratum label=" in refusal(make(stamps), "label")
    assert "000000001" in refusal(make(stamps), "label")


@pytest.mark.parametrize(
    ("values", "count", "first"),
    [
        ([1, None, 1, None], 2, 1),
        (["a", "b", None, "a"], 1, 2),
        ([0.5, float("nan"), 0.5, 0.5], 1, 1),
        ([None] * 4, 4, 0),
    ],
)
def test_rows_without_a_value(values: list[Any], count: int, first: int) -> None:
    message = refusal(make(values), "label", kind=ColumnError)
    assert (
        f"stratify_by cannot use column 'label', which has no value in {count} of 4 rows, the first in row {first}"
        in (message)
    )
    assert "fill these places, or leave the rows out with filter() first" in message


def test_categories_that_are_null() -> None:
    kinds = pa.array(["a", None, "b", "a"]).dictionary_encode()
    assert "no value in 1 of 4 rows" in refusal(make(kinds), "label", kind=ColumnError)


@pytest.mark.parametrize(
    ("values", "result"),
    [
        (np.ones((4, 2)), "samples of shape [2]"),
        ([["a"], ["b"], ["a"], ["b"]], "values of type list<item: string>"),
        ([{"a": 1}] * 4, "values of type struct<a: int64>"),
    ],
)
def test_columns_without_scalars(values: Any, result: str) -> None:
    message = refusal(make(values), "label", kind=ColumnError)
    assert f"stratify_by cannot use column 'label': it has {result}; strata and groups must be" in message


def test_names_of_columns() -> None:
    assert "'fs' has no column 'lable'" in refusal(make([1, 1]), "lable", kind=ColumnError)
    assert "stratify_by of 'fs' names no column" in refusal(make([1, 1]), [])


def test_ratios_and_seeds_are_checked_as_without_strata() -> None:
    assert "add up to 0.9, not to 1" in refusal(make([1] * 4), "label", {"a": 0.5, "b": 0.4})
    assert "split 'b' of 'fs' would be empty" in refusal(make([1] * 4), "label", {"a": 0.9, "b": 0.1})
    with pytest.raises(SplitError, match=r"the seed of a split of 'fs' must be an integer, got 0.5"):
        make([1] * 4).split_random({"a": 1.0}, 0.5, stratify_by="label")  # type: ignore[arg-type]


def test_a_continuous_column_makes_no_strata() -> None:
    values = np.random.default_rng(0).normal(size=1200).round(3)
    with pytest.raises(SplitError) as caught:
        make(values).split_random({"train": 0.5, "test": 0.5}, stratify_by="label")
    different = len(np.unique(values))
    assert f"'fs' cannot be stratified by label: {different} different values in 1200 rows" in str(caught.value)
    assert "Hint: stratify by bins of the values, such as a tag with pandas.qcut" in str(caught.value)
    with pytest.raises(SplitError, match=r"stratum label=19 of 'fs' cannot be cut"):
        make([*np.repeat(np.arange(19), 10), 19]).split_random({"a": 0.5, "b": 0.5}, stratify_by="label")
