"""Columns read together as one tensor: shapes, dtypes and what cannot be joined."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel.data import FeatureSet, joined_array, joined_changes, joined_spec
from anyaccel.errors import ColumnError
from anyaccel.segment import TensorSpec


@pytest.fixture
def fs() -> FeatureSet:
    data = {
        "a": np.arange(3, dtype=np.float32),
        "b": np.ones((3, 2), np.float32),
        "wide": np.ones((3, 4, 2), np.float32),
        "wider": np.ones((3, 4, 3), np.float32),
        "n": np.arange(3),
        "y": np.arange(3),
        "who": ["x", "y", "z"],
    }
    return FeatureSet.from_dict("fs", data, ["a", "b", "wide", "wider", "n"], ["y"], ["who"])


def test_one_column_is_as_it_is(fs: FeatureSet) -> None:
    assert joined_spec(fs, ["a"]) == TensorSpec((), "float32")
    assert joined_array(fs, ["a"]) is fs.array("a")
    assert joined_array(fs, ("wide",)).shape == (3, 4, 2)


def test_several_columns_are_joined_along_the_last_axis(fs: FeatureSet) -> None:
    assert joined_spec(fs, ["a", "b", "a"]) == TensorSpec((4,), "float32")
    assert joined_array(fs, ["a", "b", "a"]).tolist() == [[i, 1, 1, i] for i in range(3)]
    assert joined_spec(fs, ["wide", "wider"]) == TensorSpec((4, 5), "float32")
    assert joined_array(fs, ["wide", "wider"]).shape == (3, 4, 5)
    assert not joined_array(fs, ["a", "b"]).flags.writeable


def test_views_are_joined_too(fs: FeatureSet) -> None:
    view = fs.add_split("s", [2, 0])
    assert joined_spec(view, ["a", "b"]) == TensorSpec((3,), "float32")
    assert joined_array(view, ["a", "b"]).tolist() == [[2, 1, 1], [0, 1, 1]]


@pytest.mark.parametrize(
    ("names", "first", "second"),
    [
        (["n", "wide"], r"'n' \(int64\[\]\)", r"'wide' \(float32\[4, 2\]\)"),
        (["a", "b", "wide"], r"'a' \(float32\[\]\)", r"'wide' \(float32\[4, 2\]\)"),
    ],
)
def test_columns_that_do_not_fit(fs: FeatureSet, names: list[str], first: str, second: str) -> None:
    for join in (joined_spec, joined_array):
        with pytest.raises(
            ColumnError, match=rf"columns {first} and {second} of 'fs' cannot be joined.*separate references as"
        ):
            join(fs, names)


def test_columns_to_join_must_exist(fs: FeatureSet) -> None:
    with pytest.raises(ColumnError, match=r"no columns of 'fs' are named. Available: a, b, .*name at least one"):
        joined_spec(fs, [])
    with pytest.raises(ColumnError, match=r"no column 'z'"):
        joined_array(fs, ["a", "z"])
    with pytest.raises(ColumnError, match=r"'who' cannot be read as numbers"):
        joined_spec(fs, ["who"])


def mixed() -> FeatureSet:
    data = {
        "flag": np.array([True, False]),
        "half": np.array([0.5, 1.5], "float16"),
        "single": np.array([0.1, 0.2], "float32"),
        "double": np.array([0.1, 0.2]),
        "small": np.array([-3, 3], "int16"),
        "large": np.array([2**24 + 1, -1], "int32"),
        "huge": np.array([1, 2**53 + 1], "int64"),
        "unsigned": np.array([1, 2**63], "uint64"),
    }
    return FeatureSet.from_dict("fs", data, list(data))


@pytest.mark.parametrize(
    ("names", "dtype", "changes"),
    [
        (["large", "double"], "float64", ("large int32 as float64",)),
        (["single", "double"], "float64", ("single float32 as float64",)),
        (["flag", "single"], "float32", ("flag bool as float32",)),
        (["small", "flag", "single"], "float32", ("small int16 as float32", "flag bool as float32")),
        (["small", "huge"], "int64", ("small int16 as int64",)),
        (["flag", "small"], "int16", ("flag bool as int16",)),
        (["flag", "flag"], "bool", ()),
        (["large"], "int32", ()),
    ],
)
def test_columns_of_several_dtypes_are_promoted(names: list[str], dtype: str, changes: tuple[str, ...]) -> None:
    fs = mixed()
    joined = joined_array(fs, names)
    assert joined_spec(fs, names).dtype == dtype == joined.dtype
    assert joined_changes(fs, names) == changes
    for index, name in enumerate(names if len(names) > 1 else ()):
        np.testing.assert_array_equal(joined[:, index], fs.array(name))


@pytest.mark.parametrize(
    ("names", "later", "message"),
    [
        (
            ["double", "huge"],
            None,
            r"'huge' of 'fs' is joined with floats as float64: row 1 holds 9007199254740993.*53",
        ),
        (["single", "unsigned"], None, r"'unsigned' .* float64: row 1 holds 9223372036854775808"),
        (
            ["double", "large"],
            "float32",
            r"'large' .* float32: row 0 holds 16777217.*2\*\*24 exactly.*leave 'large' out",
        ),
    ],
)
def test_integers_that_floats_cannot_hold_are_not_rounded(names: list[str], later: str | None, message: str) -> None:
    with pytest.raises(ColumnError, match=message):
        joined_array(mixed(), names, later)


def test_integers_without_a_common_dtype_are_not_made_floats() -> None:
    for join in (joined_spec, joined_array):
        with pytest.raises(
            ColumnError,
            match=r"'small' \(int16\S*\) and 'unsigned' .*cannot be joined; no integer dtype holds both. "
            r"Hint: cast\(\{'unsigned': 'int64'\}, keep_splits=True\)",
        ):
            join(mixed(), ["flag", "small", "unsigned"])
