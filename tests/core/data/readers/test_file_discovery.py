"""Which files are read: regular ones only, as to open a pipe or a device may wait for ever."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anyaccel.data import FeatureSet, ParquetStream
from anyaccel.errors import DataError, SourceError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"x": np.arange(3.0)}), tmp_path / "a.parquet")
    os.mkfifo(tmp_path / "b.parquet")
    return tmp_path


@pytest.mark.parametrize("path", ["", "b.parquet", ["a.parquet", "b.parquet"]])
def test_a_pipe_is_refused_in_a_folder_a_list_and_alone(folder: Path, path: str | list[str]) -> None:
    given = folder / path if isinstance(path, str) else [folder / name for name in path]
    message = rf"{re.escape(str(folder / 'b.parquet'))} of 'fs' is not a regular file, but a pipe\. Hint: pass a folder"
    with pytest.raises(DataError, match=message):
        FeatureSet.from_parquet("fs", given, "x")
    with pytest.raises(SourceError, match=message):
        ParquetStream("fs", given, features="x")


def test_a_link_to_a_device_is_refused_and_one_to_a_file_is_read(folder: Path, tmp_path: Path) -> None:
    (folder / "b.parquet").unlink()
    (folder / "b.parquet").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="is not a regular file, but a device"):
        FeatureSet.from_parquet("fs", folder, "x")
    (folder / "b.parquet").unlink()
    (folder / "b.parquet").symlink_to(folder / "a.parquet")
    assert len(FeatureSet.from_parquet("fs", folder, "x")) == 6
