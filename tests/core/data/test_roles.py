"""`...` in place of names: all columns that no other role names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anyaccel.data import FeatureSet
from anyaccel.errors import ColumnError

WIDE = {
    **{f"c{i}": np.arange(4) + i for i in range(6)},
    "vector": [[1.0, 2.0]] * 4,
    "y": np.zeros(4),
    "who": ["a", "b", "c", "d"],
}
FEATURES = (*(f"c{i}" for i in range(6)), "vector")


class Interchanged:
    """A pandas frame reduced to the interchange protocol."""

    def __init__(self, frame: Any) -> None:
        self.frame = frame

    def __dataframe__(self, **given: Any) -> Any:
        return pa.Table.from_pandas(self.frame).__dataframe__(**given)


def made(way: str, folder: Path, data: dict[str, Any], *keys: Any) -> FeatureSet:
    table = pa.table(data)
    if way == "dict":
        return FeatureSet.from_dict("fs", data, *keys)
    if way == "arrow":
        return FeatureSet.from_arrow("fs", table, *keys)
    if way == "parquet":
        pq.write_table(table, folder / "fs.parquet")
        return FeatureSet.from_parquet("fs", folder / "fs.parquet", *keys)
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(data)
    return FeatureSet.from_pandas("fs", {"pandas": frame, "capsule": table}.get(way) or Interchanged(frame), *keys)


@pytest.mark.parametrize("way", ["dict", "arrow", "parquet", "capsule"])
def test_features_are_the_rest_in_the_order_of_the_table(way: str, tmp_path: Path) -> None:
    fs = made(way, tmp_path, WIDE, ..., "y", ["who"])
    assert (fs.features, fs.targets, fs.tags) == (FEATURES, ("y",), ("who",))
    assert fs.array("vector").shape == (4, 2) and fs.array("c5").tolist() == [5, 6, 7, 8]


def test_frames_of_pandas_and_of_the_interchange_protocol(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({name: values for name, values in WIDE.items() if name != "vector"})
    for data in (frame, Interchanged(frame)):
        fs = FeatureSet.from_pandas("fs", data, ..., "y", "who")
        assert (fs.features, fs.targets, fs.tags) == (FEATURES[:-1], ("y",), ("who",))
        with pytest.raises(ColumnError, match=r"cannot be features: who"):
            FeatureSet.from_pandas("fs", data, ..., "y")


def test_targets_and_tags_can_be_the_rest(tmp_path: Path) -> None:
    tags = made("dict", tmp_path, WIDE, ["c0"], "y", ...)
    assert tags.tags == ("c1", "c2", "c3", "c4", "c5", "vector", "who")
    targets = made("arrow", tmp_path, WIDE, ["c0"], ..., ["who", "vector"])
    assert targets.targets == ("c1", "c2", "c3", "c4", "c5", "y") and made(
        "dict", tmp_path, WIDE, ..., (), ["who"]
    ).features == (*FEATURES, "y")


@pytest.mark.parametrize("way", ["dict", "arrow", "parquet"])
def test_columns_that_hold_no_numbers_are_all_named(way: str, tmp_path: Path) -> None:
    with pytest.raises(ColumnError) as caught:
        made(way, tmp_path, {**WIDE, "words": [["a"]] * 4}, ..., "y")
    message = str(caught.value)
    assert "2 of the remaining columns of 'fs' cannot be features: who, words; column" in message
    assert "column 'who' cannot be read as numbers" in message and "column 'words' cannot" in message
    assert "name them as tags, leave them out of the data, or list the features explicitly" in message
    assert "explicitly; for texts, store token ids" in message
    with pytest.raises(ColumnError, match="cannot be targets: who, words"):
        made(way, tmp_path, {**WIDE, "words": [["a"]] * 4}, "c0", ...)


def test_only_texts_are_to_be_stored_as_token_ids() -> None:
    with pytest.raises(ColumnError, match=r"list the features explicitly\.$"):
        FeatureSet.from_dict("fs", {"a": [1.0, 2.0], "b": [1, None]}, ...)


def test_nulls_among_the_rest_are_reported_with_their_row() -> None:
    gaps = {"a": [1.0, 2.0], "b": [1, None], "c": [None, "x"]}
    with pytest.raises(ColumnError, match=r"features: b, c; column 'b' has NaN or null among integers in 1"):
        FeatureSet.from_dict("fs", gaps, ...)


@pytest.mark.parametrize("way", ["dict", "arrow", "parquet", "capsule"])
def test_two_roles_cannot_both_have_the_rest(way: str, tmp_path: Path) -> None:
    with pytest.raises(ColumnError) as caught:
        made(way, tmp_path, WIDE, ..., "y", ...)
    assert "both the features and the tags of 'fs' are set to '...'" in str(caught.value)
    assert "use ... for one role" in str(caught.value)


def test_nothing_is_left_for_the_features() -> None:
    with pytest.raises(ColumnError, match="'fs' has no feature"):
        FeatureSet.from_dict("fs", {"y": [1.0]}, ..., "y")


def test_an_ellipsis_is_refused_elsewhere() -> None:
    fs = FeatureSet.from_dict("fs", {"x": [1.0], "y": [1.0]}, "x", "y")
    for wrong in (lambda: FeatureSet.from_dict("fs", {"x": [1.0]}, ["x", ...]), lambda: fs.select(features=...)):
        with pytest.raises(ColumnError, match="Ellipsis cannot be the name of a column"):
            wrong()


def test_columns_of_folders_belong_to_the_rest(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"run={number}").mkdir()
        pq.write_table(pa.table({"x": [float(number)]}), tmp_path / f"run={number}" / "part.parquet")
    assert FeatureSet.from_parquet("fs", tmp_path, ...).features == ("x", "run")


def test_two_columns_of_one_name_among_the_rest() -> None:
    table = pa.table([pa.array([1.0]), pa.array([2.0]), pa.array([3.0])], names=["a", "a", "y"])
    with pytest.raises(ColumnError, match="'fs' has 2 columns called 'a'"):
        FeatureSet.from_arrow("fs", table, ..., "y")


def test_names_may_come_in_an_array() -> None:
    data = {"a": [1.0, 2.0], "b": [3.0, 4.0], "y": [0, 1]}
    by_array = FeatureSet.from_dict("fs", data, np.array(["a", "b"]), np.array(["y"]))
    assert (by_array.features, by_array.targets) == (("a", "b"), ("y",))
    assert FeatureSet.from_arrow("fs", by_array.to_arrow(), np.array(["b", "a"])).features == ("b", "a")
