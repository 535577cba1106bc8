"""FeatureSet.from_parquet: files, folders, lists and row groups."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anyaccel.data import FeatureSet
from anyaccel.errors import ColumnError, DataError


def example() -> FeatureSet:
    data = {
        "x": np.arange(12, dtype=np.float32).reshape(3, 2, 2),
        "b": np.eye(3, dtype=bool),
        "y": [1, 2, 3],
        "t": list("abc"),
    }
    return FeatureSet.from_dict("fs", data, ["x", "b"], ["y"], ["t"])


def same(first: FeatureSet, other: FeatureSet) -> bool:
    return (first.features, first.targets, first.tags) == (other.features, other.targets, other.tags) and all(
        first.column(name).equals(other.column(name)) for name in first.columns
    )


def test_parquet_there_and_back(tmp_path: Path) -> None:
    fs = example()
    pq.write_table(fs.to_arrow(), tmp_path / "fs.parquet")
    assert same(fs, FeatureSet.from_parquet("again", tmp_path / "fs.parquet"))
    chosen = FeatureSet.from_parquet("again", str(tmp_path / "fs.parquet"), features=["x"], tags=["t"])
    assert chosen.columns == ("x", "t")


def test_parquet_is_read_whole_from_several_row_groups(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(100)}), tmp_path / "x.parquet", row_group_size=7)
    assert FeatureSet.from_parquet("fs", tmp_path / "x.parquet", "x").array("x").tolist() == list(range(100))


def test_missing_parquet_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FeatureSet.from_parquet("fs", tmp_path / "none.parquet")


def test_files_that_are_not_parquet_or_broken(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"not parquet at all")
    with pytest.raises(DataError, match=r"x\.parquet cannot be read as Parquet: .*write the file again"):
        FeatureSet.from_parquet("fs", path, "x")
    pq.write_table(pa.table({"x": np.arange(1000)}), path)
    content = bytearray(path.read_bytes())
    content[4:200] = b"\xff" * 196
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"cannot be read as Parquet"):
        FeatureSet.from_parquet("fs", path, "x")


def test_parquet_is_validated_in_full(tmp_path: Path) -> None:
    offsets, data = pa.py_buffer(np.array([0, 2], np.int32).tobytes()), pa.py_buffer(b"\xff\xfe")
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, data])
    pq.write_table(pa.table({"x": [1], "t": text}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"cannot be read as Parquet: .*UTF8"):
        FeatureSet.from_parquet("fs", tmp_path / "x.parquet", "x", tags="t")


def test_parquet_keys_are_checked(tmp_path: Path) -> None:
    pq.write_table(pa.table({"pixels": [1]}), tmp_path / "x.parquet")
    with pytest.raises(ColumnError, match=r"no column 'pixel'.*did you mean 'pixels'"):
        FeatureSet.from_parquet("fs", tmp_path / "x.parquet", "pixel")
    with pytest.raises(ColumnError, match=r"has a role"):
        FeatureSet.from_parquet("fs", tmp_path / "x.parquet")


def write(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def read(path: Any, **more: Any) -> FeatureSet:
    return FeatureSet.from_parquet("fs", path, "x", **more)


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    for number, name in enumerate(["b.parquet", "a/z.parquet", "a/b/y.parq", "c.PQ"]):
        write(tmp_path / name, x=[number])
    for name in ("_SUCCESS", ".hidden.parquet", "_part.parquet", "notes.txt"):
        (tmp_path / name).write_text("no Parquet")
    for folder in (".git", "_delta_log"):
        write(tmp_path / folder / "x.parquet", x=[9])
    assert read(tmp_path).array("x").tolist() == [2, 1, 0, 3]
    assert read(os.fspath(tmp_path)).array("x").tolist() == [2, 1, 0, 3]


def test_a_list_of_files_is_read_in_its_order(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.bin", x=[number, -number]) for number, name in enumerate("cab")]
    assert read([paths[1], str(paths[0])]).array("x").tolist() == [1, -1, 0, 0]


def test_a_folder_that_holds_a_link_to_itself(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", x=[1])
    (tmp_path / "again").symlink_to(tmp_path, target_is_directory=True)
    assert read(tmp_path).array("x").tolist() == [1]


def test_folders_named_key_equals_value_give_columns(tmp_path: Path) -> None:
    for year in (2024, 2025):
        for site in ("north", "a%2Fb"):
            write(tmp_path / f"year={year}" / f"site={site}" / "0.parquet", x=[float(year), 0.5])
    fs = read(tmp_path, target="year", tags="site")
    assert fs.array("year").tolist() == [2024] * 4 + [2025] * 4
    assert fs.spec("year").dtype == "int64"
    assert fs.column("site").to_pylist() == (["a/b"] * 2 + ["north"] * 2) * 2
    assert FeatureSet.from_parquet("fs", tmp_path, "year").array("year").tolist() == [2024] * 4 + [2025] * 4


def test_folder_values_that_are_no_integers_or_null(tmp_path: Path) -> None:
    for value in ("7", "__HIVE_DEFAULT_PARTITION__"):
        write(tmp_path / f"n={value}" / f"big={10**18}{value[0]}" / "0.parquet", x=[1])
    fs = read(tmp_path, tags=["n", "big"])
    assert fs.column("n").to_pylist() == [7, None]
    assert fs.column("big").to_pylist() == ["10000000000000000007", "1000000000000000000_"]
    with pytest.raises(ColumnError, match=r"column 'n' has nulls in 1 of 2 rows"):
        FeatureSet.from_parquet("fs", tmp_path, "n")


def test_a_column_of_the_files_stands_before_one_of_the_folders(tmp_path: Path) -> None:
    write(tmp_path / "y=1" / "0.parquet", x=[1], y=[0.5])
    assert read(tmp_path, target="y").array("y").tolist() == [0.5]


def test_folders_of_different_columns(tmp_path: Path) -> None:
    write(tmp_path / "a=1" / "0.parquet", x=[1])
    write(tmp_path / "b=1" / "0.parquet", x=[1])
    message = r"a=1.0\.parquet and .*b=1.0\.parquet are in folders with different columns; a and b"
    with pytest.raises(ColumnError, match=message):
        read(tmp_path)


def test_folders_without_parquet(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no Parquet file; nothing; names .*Hint: pass a folder"):
        read(tmp_path)
    (tmp_path / "x.npy").write_text("1")
    with pytest.raises(DataError, match=r"; x.npy; names.*end in \.parquet, \.parq, \.pq"):
        read(tmp_path)
    (tmp_path / "x.csv").write_text("1")
    with pytest.raises(DataError, match=r"but text files; x.csv, x.npy. .*\.read_csv\(path\) .*rglob\('\*\.csv'\)"):
        read(tmp_path)


def test_invalid_lists_of_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the list of files for 'fs' is empty"):
        read([])
    with pytest.raises(DataError, match=r"in the list for 'fs' is not the path of a file"):
        read([tmp_path])
    with pytest.raises(DataError, match=r"3 in the list for 'fs' is not the path of a file"):
        read([3])
    for wrong in (3, b"x.parquet", None):
        with pytest.raises(DataError, match=r"'fs' cannot be read from .*a path or a list of paths"):
            read(wrong)
    with pytest.raises(FileNotFoundError):
        read([write(tmp_path / "x.parquet", x=[1]), tmp_path / "none.parquet"])


def test_a_column_of_two_types_names_files_column_and_types(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", x=[1], other=["text"])
    write(tmp_path / "b.parquet", x=[0.5], other=[3])
    message = r"column 'x' is of type int64 in .*a\.parquet and of type double in .*b\.parquet; a column must have one"
    with pytest.raises(ColumnError, match=message):
        read(tmp_path)


def test_a_column_that_one_file_lacks(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.parquet", x=[1], y=[1]), write(tmp_path / "b.parquet", x=[1], z=[1])
    for order in ([a, b], [b, a]):
        with pytest.raises(ColumnError, match=r"'y' is in .*a\.parquet but not in .*b\.parquet; .*x, z"):
            read(order, target="y")


def test_a_column_that_one_file_has_twice(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", x=[1])
    pq.write_table(pa.table([[1], [2]], names=["x", "x"]), tmp_path / "b.parquet")
    with pytest.raises(ColumnError, match=r"'x' is of type int64 in .*a\.parquet and there twice in .*b\.parquet"):
        read(tmp_path)
    with pytest.raises(ColumnError, match=r"2 columns called 'x'"):
        read(tmp_path / "b.parquet")


def test_columns_that_are_not_chosen_may_differ_between_files(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    pq.write_table(pa.table({"x": [1]}, schema=schema), tmp_path / "a.parquet")
    write(tmp_path / "b.parquet", rest=["a"], x=[2])
    assert read(tmp_path).array("x").tolist() == [1, 2]


def test_roles_of_a_folder_are_those_of_its_first_file(tmp_path: Path) -> None:
    for name in "ab":
        pq.write_table(example().to_arrow(), tmp_path / f"{name}.parquet")
    fs = FeatureSet.from_parquet("fs", tmp_path)
    assert (fs.features, fs.targets, fs.tags, len(fs)) == (("x", "b"), ("y",), ("t",), 6)
    assert np.array_equal(fs.array("x")[3:], example().array("x"))


def test_files_without_rows_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", x=pa.array([], pa.int64()))
    with pytest.raises(DataError, match=r"'fs' has no rows"):
        read(tmp_path)
    write(tmp_path / "b.parquet", x=[1])
    assert read(tmp_path).array("x").tolist() == [1]


@pytest.mark.parametrize("kept", [0, 3, 100, 1500])
def test_a_file_cut_short_is_named(tmp_path: Path, kept: int) -> None:
    write(tmp_path / "a.parquet", x=[1])
    cut = write(tmp_path / "b.parquet", x=np.arange(1000))
    cut.write_bytes(cut.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"b\.parquet cannot be read as Parquet: .*write the file again"):
        read(tmp_path)


def test_row_groups_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": np.arange(10)}), path, row_group_size=4)
    assert read(path, row_groups=[2, 0]).array("x").tolist() == [8, 9, 0, 1, 2, 3]
    assert read([path], row_groups=1).array("x").tolist() == [4, 5, 6, 7]
    assert len(read(path, row_groups=np.array([0, 1]))) == 8
    for wrong in ([3], -1, [0.5], True, "0"):
        with pytest.raises(DataError, match=r"x\.parquet has no row group .* for 'fs'. Available: row groups 0 to 2"):
            read(path, row_groups=wrong)
    with pytest.raises(DataError, match=r"'fs' has no rows"):
        read(path, row_groups=[])
    write(tmp_path / "y.parquet", x=[1])
    with pytest.raises(DataError, match=r"row groups of 'fs' were chosen from 2 files.*pass one file"):
        read(tmp_path, row_groups=[0])


def test_the_files_may_change_and_go_afterwards(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", x=np.arange(1000))
    fs = read(path)
    path.write_bytes(b"\0" * 100)
    path.unlink()
    assert fs.array("x").sum() == 499500


def test_nulls_in_parquet_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2, 3, None]}), tmp_path / "a.parquet", row_group_size=2)
    write(tmp_path / "b.parquet", x=[None, 1])
    with pytest.raises(ColumnError, match=r"column 'x' has nulls in 2 of 6 rows, the first in row 3"):
        read(tmp_path)
    assert read(write(tmp_path / "c", x=[1], t=pa.array([None], pa.int8())), tags="t").column("t").null_count == 1


def test_categories_of_several_files(tmp_path: Path) -> None:
    for name, values in (("a", ["u", "v"]), ("b", ["w", "u"])):
        write(tmp_path / f"{name}.parquet", x=[1, 2], t=pa.array(values).dictionary_encode())
    fs = read(tmp_path, tags="t")
    assert fs.column("t").to_pylist() == ["u", "v", "w", "u"]
    assert len(fs.filter({"t": "u"})) == 2


def test_vectors_that_others_stored_as_lists(tmp_path: Path) -> None:
    for number in range(2):
        pq.write_table(
            pa.table({"x": [[number, 1.0], [number, 2.0]]}), tmp_path / f"{number}.parquet", row_group_size=1
        )
    fs = read(tmp_path)
    assert str(fs.spec("x")) == "float64[2]"
    assert fs.array("x").tolist() == [[0, 1], [0, 2], [1, 1], [1, 2]]
    write(tmp_path / "2.parquet", x=[[1.0]])
    with pytest.raises(ColumnError, match=r"'x' is ragged.*lists of 1 to 2 entries"):
        read(tmp_path)


def test_an_empty_path_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(example().to_arrow(), tmp_path / "fs.parquet")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="the path for 'fs' is empty"):
        FeatureSet.from_parquet("fs", "")


def test_a_pattern_is_not_a_path(tmp_path: Path) -> None:
    pattern = f"{tmp_path.as_posix()}/2024/*/part-?.parquet"
    with pytest.raises(DataError) as caught:
        FeatureSet.from_parquet("fs", pattern)
    assert "the path for 'fs' is the pattern" in str(caught.value) and "*/part-?.parquet" in str(caught.value)
    folder = (tmp_path / "2024").as_posix()
    assert f"sorted(pathlib.Path({folder!r}).glob('*/part-?.parquet'))" in str(caught.value)
    pq.write_table(example().to_arrow(), tmp_path / "odd[1].parquet")
    assert len(FeatureSet.from_parquet("fs", tmp_path / "odd[1].parquet")) == 3
