"""filter, take, select, intersection, difference and split_by_condition."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anyaccel.data import FeatureSet, FeatureSetView
from anyaccel.errors import ColumnError, DataError, SplitError


def make(n: int = 10) -> FeatureSet:
    data = {
        "x": np.arange(2.0 * n).reshape(n, 2),
        "volt": np.arange(n, dtype=np.float32) / 10,
        "label": np.arange(n) % 3,
        "flag": np.arange(n) % 2 == 0,
        "who": [None if i == 4 else "abc"[i % 3] for i in range(n)],
        "day": [date(2024, 1, 1 + i) for i in range(n)],
        "gap": [None if i == 2 else i for i in range(n)],
        "words": [["a"] * (i % 3) for i in range(n)],
    }
    return FeatureSet.from_dict("fs", data, ["x", "volt"], ["label", "flag"], ["who", "day", "gap", "words"])


def rows(conditions: Any, fs: FeatureSet | None = None) -> list[int]:
    kept: list[int] = (fs or make()).filter(conditions).rows.tolist()
    return kept


def refusal(conditions: Any, kind: type[Exception] = DataError) -> str:
    with pytest.raises(kind) as caught:
        make().filter(conditions)
    return str(caught.value)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"label": 2}, [2, 5, 8]),
        ({"label": np.int8(2)}, [2, 5, 8]),
        ({"label": 2.0}, [2, 5, 8]),
        ({"label": np.array(2)}, [2, 5, 8]),
        ({"label": pa.scalar(2)}, [2, 5, 8]),
        ({"label": [0, 2]}, [0, 2, 3, 5, 6, 8, 9]),
        ({"label": {2, 7, 2**70, -(2**70), 0.5, float("nan"), float("inf")}}, [2, 5, 8]),
        ({"label": range(1, 3), "flag": True}, [2, 4, 8]),
        ({"label": np.array([2, 1]), "flag": (0,)}, [1, 5, 7]),
        ({"volt": 0.3}, [3]),
        ({"volt": [0.3, 0.7, 1e300, 10**300]}, [3, 7]),
        ({"volt": lambda v: (v > 0.15) & (v < 0.45)}, [2, 3, 4]),
        ({"x": lambda x: (x > 15).all(axis=1)}, [8, 9]),
        ({"who": "b"}, [1, 7]),
        ({"who": np.str_("b")}, [1, 7]),
        ({"who": None}, [4]),
        ({"who": ["c", None]}, [2, 4, 5, 8]),
        ({"who": pa.array(["c"])}, [2, 5, 8]),
        ({"who": lambda who: who == "b"}, [1, 7]),
        ({"day": date(2024, 1, 3)}, [2]),
        ({"day": np.datetime64("2024-01-03")}, [2]),
        ({"day": lambda day: day >= date(2024, 1, 9)}, [8, 9]),
        ({"gap": None}, [2]),
        ({"gap": [5, None]}, [2, 5]),
        ({"words": [["a"], ["b"]]}, [1, 4, 7]),
        ({"flag": np.logical_not}, [1, 3, 5, 7, 9]),
        ({"flag": np.array([True])}, [0, 2, 4, 6, 8]),
        ({"label": lambda label: [True] + [False] * 9}, [0]),
    ],
)
def test_rows_that_meet_conditions(conditions: dict[str, Any], expected: list[int]) -> None:
    assert rows(conditions) == expected


def test_large_integers_are_compared_exactly() -> None:
    fs = FeatureSet.from_dict("fs", {"id": np.array([2**63 + 1, 2**63 + 2, 5], np.uint64)}, "id")
    assert rows({"id": [2**63 + 2, 5, -1]}, fs) == [1, 2]
    fs = FeatureSet.from_dict("fs", {"id": np.array([2**53, 2**53 + 1])}, "id")
    assert rows({"id": 2**53 + 1}, fs) == [1]


def test_times_of_nanoseconds() -> None:
    stamps = np.array(["2024-01-01T00:00:00.000000001", "2024-06-01"], "datetime64[ns]")
    fs = FeatureSet.from_dict("fs", {"x": [1, 2], "at": stamps}, "x", tags="at")
    assert rows({"at": lambda at: at > datetime(2024, 3, 1)}, fs) == [1]
    assert rows({"at": stamps[1]}, fs) == [1]


def test_a_function_is_given_numbers_as_they_are_and_all_else_as_objects() -> None:
    seen = {}

    def look(name: str) -> Any:
        return lambda values: seen.setdefault(name, values).shape[0] * [True]

    fs = make()
    fs.filter({name: look(name) for name in fs.columns})
    assert seen["x"].shape == (10, 2) and seen["x"].dtype == np.float64
    assert seen["flag"].dtype == np.bool_
    assert not seen["x"].flags.writeable
    for name in ("who", "day", "gap", "words"):
        assert seen[name].dtype == object and seen[name].shape == (10,)
    assert (seen["gap"][2], seen["gap"][3], seen["words"][1]) == (None, 3, ["a"])


def test_views_have_a_descriptive_name_and_repr() -> None:
    fs = make()
    view = fs.filter({"label": [0, 2], "who": "c", "volt": np.isfinite})
    assert isinstance(view, FeatureSetView)
    assert view.name == "all.filter(label in 2 values, who='c', volt by isfinite)"
    assert repr(view) == f"FeatureSetView('fs'[{view.name!r}], 3 rows)"
    assert view.take([1]).name == f"{view.name}.take(1 rows)"
    assert fs.filter({"label": 1}, name="ones").name == "ones"
    assert fs.take([1], name="one").name == "one"
    assert not fs.splits


def test_the_name_and_so_the_splits_are_the_same_in_every_process() -> None:
    view = make().filter({"who": {"a", "b"}, "volt": lambda v: v >= 0, "label": np.int64(0)})
    assert view.name == "all.filter(who in 2 values, volt by <lambda>, label=0)"


def test_views_are_registered_by_their_rows() -> None:
    fs = make()
    view = fs.filter({"label": 2})
    assert fs.add_split("twos", view.rows).rows.tolist() == [2, 5, 8]
    assert fs["twos"].column("who").to_pylist() == ["c", "c", "c"]


def test_views_of_views_stay_relative() -> None:
    fs = make()
    odd = fs.take([9, 7, 5, 3, 1])
    assert odd.take([0, 4, 0]).rows.tolist() == [9, 1, 9]
    assert odd.filter({"label": 1}).rows.tolist() == [7, 1]
    assert odd.filter({"label": 1}).take([1]).array("volt").tolist() == [np.float32(0.1)]
    parts = odd.filter({"label": [0, 1]}).split_random({"a": 0.5, "b": 0.5})
    assert sorted(np.concatenate([view.rows for view in parts.values()]).tolist()) == [1, 3, 7, 9]
    assert list(fs.splits) == ["a", "b"]
    assert parts["a"].view() is parts["a"]
    assert parts["a"].take([0]).feature_set is fs


def test_tags_come_along() -> None:
    view = make().filter({"label": 2}).take([2, 0])
    assert view.tags == ("who", "day", "gap", "words")
    assert view.column("day").to_pylist() == [date(2024, 1, 9), date(2024, 1, 3)]
    assert view.column("gap").to_pylist() == [8, None]
    assert view.to_arrow().column("words").to_pylist() == [["a", "a"]] * 2
    again = FeatureSet.from_arrow("fs", view.to_arrow())
    assert again.tags == view.tags


@pytest.mark.parametrize("conditions", [{}, None, "label", [("label", 1)]])
def test_conditions_are_a_mapping(conditions: Any) -> None:
    message = (
        f"the conditions of the filter of 'fs' must be a mapping by column, got {conditions!r}. Available: a value"
    )
    assert message in refusal(conditions)


def test_unknown_columns() -> None:
    assert "'fs' has no column 'lable'" in refusal({"lable": 1}, ColumnError)
    assert "did you mean 'label'" in refusal({"lable": 1}, ColumnError)


@pytest.mark.parametrize("value", ["2", None, [1, "2"], date(2024, 1, 1), slice(3)])
def test_values_that_a_column_of_numbers_cannot_hold(value: object) -> None:
    assert "column 'label' of 'fs' is of int64 and cannot equal" in refusal({"label": value})


def test_invalid_conditions_are_refused() -> None:
    assert "the condition on 'label' of 'fs' is a mapping" in refusal({"label": {"min": 1}})
    once = "the condition on 'who' of 'fs' is an iterator, which can be read only once"
    assert once in refusal({"who": (name for name in "ab")}) and once in refusal({"who": iter("ab")})
    assert "'label' of 'fs' is a bool array, but the column is of int64" in refusal({"label": np.ones(10, bool)})
    assert "take(np.flatnonzero(mask))" in refusal({"label": np.ones(10, bool)})
    assert "column 'x' of 'fs' has samples of shape [2], which cannot equal a single value" in refusal({"x": 1.0})


@pytest.mark.parametrize(
    ("mask", "dtype", "shape"),
    [
        (lambda x: x > 1, "bool", [10, 2]),
        (lambda x: x[:, 0], "float64", [10]),
        (lambda x: x[1:, 0] > 1, "bool", [9]),
        (lambda x: True, "bool", []),
        (lambda x: np.flatnonzero(x[:, 0] > 3), "int64", [8]),
        (lambda x: None, "object", []),
    ],
)
def test_masks_of_another_shape_or_dtype(mask: Any, dtype: str, shape: list[int]) -> None:
    message = refusal({"x": mask})
    assert f"the condition on 'x' of 'fs' returned dtype {dtype} and shape {shape}" in message
    assert "; a mask must have dtype bool and shape [10]; the function received [10, 2]" in message


def test_an_error_of_the_function_says_where_it_was() -> None:
    with pytest.raises(TypeError) as caught:
        make().filter({"who": lambda who: who > "a"})
    assert caught.value.__notes__ == [
        "Raised by the condition on 'who' of 'fs', which received an array of dtype object and shape [10]."
    ]


def test_an_empty_filter_reports_what_each_condition_met() -> None:
    message = refusal({"label": 7, "who": "b", "volt": lambda v: v > 9}, SplitError)
    assert "the filter of 'fs' leaves no rows: none meets label=7, who='b', volt by <lambda>" in message
    assert "; label=7 is met by 0 of 10 rows (values: 0, 1, 2); who='b' is met by 2 of 10 rows" in message
    assert "volt by <lambda> is met by 0 of 10 rows. Hint: widen the conditions" in message
    assert "(values: 'a', 'b', 'c', None)" in refusal({"who": "z"}, SplitError)
    assert "datetime.date(2024, 1, 5), ...)" in refusal({"day": datetime(2024, 1, 1)}, SplitError)


@pytest.mark.parametrize("positions", [[], [[0]], [0.5], np.ones(10, bool), ["a"], 3, [[1], [1, 2]]])
def test_invalid_positions_are_refused(positions: Any) -> None:
    with pytest.raises(SplitError, match=r"take\(\) from 'all' of 'fs' has rows of shape .*integer array \[k\]"):
        make().take(positions)


@pytest.mark.parametrize("position", [-1, 3])
def test_positions_are_counted_within_the_view(position: int) -> None:
    view = make().filter({"label": 2}, name="twos")
    with pytest.raises(SplitError, match=rf"from 'twos' of 'fs' asks for row {position}. Available: rows 0 to 2"):
        view.take([0, position])


def test_select_keeps_columns_of_a_feature_set_with_its_splits() -> None:
    fs = make()
    fs.split_random({"a": 0.5, "b": 0.5})
    kept = fs.select(features="volt", tags=["day", "who"])
    assert (kept.label, kept.columns) == ("fs", ("volt", "label", "flag", "day", "who"))
    assert (kept.features, kept.targets, kept.tags) == (("volt",), ("label", "flag"), ("day", "who"))
    assert kept.array("volt").ctypes.data == fs.array("volt").ctypes.data
    assert np.array_equal(kept["a"].rows, fs["a"].rows)
    assert kept["a"].columns == kept.columns
    assert fs.columns[0] == "x"
    assert fs.select().columns == fs.columns
    assert fs.select(target=(), tags=()).columns == ("x", "volt")


def test_select_keeps_columns_of_a_view() -> None:
    fs = make()
    view = fs.take([3, 1], name="two").select("volt", (), "who")
    assert (view.columns, view.rows.tolist(), view.name) == (("volt", "who"), [3, 1], "two")
    assert view.feature_set is fs
    assert view.to_arrow().column_names == ["volt", "who"]
    assert view.schema.names == ["volt", "who"]
    for read in (view.array, view.column, view.spec, view.role):
        with pytest.raises(ColumnError, match=r"'fs' has no column 'x'. Available: volt, who"):
            read("x")
    assert view.take([0]).columns == view.filter({"who": "b"}).columns == ("volt", "who")
    assert view.select(tags=()).columns == ("volt",)
    assert view.split_random({"a": 0.5, "b": 0.5})["a"].columns == fs.columns


def test_select_refuses_what_is_not_there() -> None:
    for whole in (make(), make().view()):
        with pytest.raises(ColumnError, match=r"'fs' has no column 'z'"):
            whole.select(tags="z")
        with pytest.raises(ColumnError, match=r"no feature 'who', it is a tag.*features: x, volt.*it among the tags"):
            whole.select(features="who")
        with pytest.raises(ColumnError, match=r"it is already a feature"):
            whole.select(features=["x", "x"])
        with pytest.raises(ColumnError, match=r"'fs' has no feature. Available"):
            whole.select(features=())


def test_intersection_and_difference_keep_order_and_columns() -> None:
    fs = make()
    first, other = fs.take([9, 3, 5, 1], name="one").select("volt"), fs.take([5, 9, 0], name="other")
    assert (first.intersection(other).rows.tolist(), first.intersection(other).name) == ([9, 5], "one & other")
    assert (first.difference(other).rows.tolist(), first.difference(other).name) == ([3, 1], "one - other")
    assert other.difference(first).rows.tolist() == [0]
    assert first.difference(other).columns == first.columns


def test_empty_set_operations_and_views_of_other_sets_are_refused() -> None:
    fs = make()
    first, other = fs.take([1, 2], name="one"), fs.take([3], name="other")
    with pytest.raises(SplitError, match=r"'one & other' of 'fs' has no rows; 2 rows in 'one'"):
        first.intersection(other)
    with pytest.raises(SplitError, match=r"'one - one' of 'fs' has no rows"):
        first.difference(first)
    for stranger in (make().view(), fs, "train", [1]):
        with pytest.raises(SplitError, match=r"cannot be compared with .*views of the same feature set"):
            first.intersection(stranger)  # type: ignore[arg-type]


def test_splits_by_condition() -> None:
    fs = make()
    splits = fs.split_by_condition({"low": {"volt": lambda v: v < 0.35}, "two": {"label": 2, "volt": 0.8}})
    assert {name: view.rows.tolist() for name, view in splits.items()} == {"low": [0, 1, 2, 3], "two": [8]}
    assert fs["low"] is splits["low"]
    inner = fs["low"].split_by_condition({"even": {"flag": True}, "odd": {"flag": False}})
    assert (inner["even"].rows.tolist(), fs["odd"].rows.tolist()) == ([0, 2], [1, 3])


def test_splits_by_condition_that_overlap_or_are_empty() -> None:
    fs = make()
    view = fs.take(np.arange(9, -1, -1))
    with pytest.raises(SplitError) as caught:
        view.split_by_condition({"a": {"label": [0, 1]}, "b": {"label": 2}, "c": {"volt": lambda v: v < 0.25}})
    assert "splits 'a' and 'c' of 'fs' overlap; 2 rows meet the conditions of both: 1, 0" in str(caught.value)
    with pytest.raises(SplitError, match=r"split 'b' of 'fs' leaves no rows: none meets label=7"):
        fs.split_by_condition({"a": {"label": 1}, "b": {"label": 7}})
    for wrong in ({}, None, [1]):
        with pytest.raises(
            SplitError, match=r"the conditions for splits of 'fs' must be a mapping by split.*write \{'train'"
        ):
            fs.split_by_condition(wrong)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"the conditions of split 'a' of 'fs' must be a mapping by column, got 3"):
        fs.split_by_condition({"a": 3})  # type: ignore[dict-item]
    fs.add_split("taken", [0])
    with pytest.raises(SplitError, match=r"'fs' already has a split 'taken'"):
        fs.split_by_condition({"free": {"label": 1}, "taken": {"label": 2}})
    assert list(fs.splits) == ["taken"]
