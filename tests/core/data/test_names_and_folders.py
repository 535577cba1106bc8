"""Names that no file can hold, and paths after the working folder has changed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import anyaccel as aa
from anyaccel.errors import AnyaccelError, ColumnError, DataError, SpecError, SplitError

BAD = "a\udc80"
X = np.ones((8, 3), "float32")


def data(label="d", column="x"):
    return aa.FeatureSet.from_dict(label, {column: X, "y": X[:, :1]}, [column], ["y"])


def test_a_column_with_a_lone_surrogate_is_refused_and_the_hint_works():
    with pytest.raises(ColumnError, match=r"has a lone surrogate, which UTF-8 cannot write\. Hint: rename it, .*'a\?'"):
        data(column=BAD)
    assert data(column="a?").features == ("a?",)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: data(BAD), DataError),
        (lambda: data().add_splits({BAD: range(3)}), SplitError),
        (lambda: aa.Metric("mse", label=BAD), SpecError),
        (lambda: aa.AppliedLoss("mse", on="net", label=BAD), SpecError),
        (lambda: aa.ModelNode(BAD, aa.SequentialMLP(1), data().reference()), AnyaccelError),
        (lambda: aa.EvalPhase(BAD, data="all"), AnyaccelError),
    ],
)
def test_other_names_with_a_lone_surrogate_are_refused(make, error):
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("path", ["rows.parquet", ["rows.parquet"], "folder"])
def test_a_parquet_stream_reads_its_files_after_the_working_folder_has_changed(path, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "elsewhere").mkdir()
    for name in ("rows.parquet", "folder/rows.parquet"):
        parquet.write_table(pa.table({"x": np.arange(8.0), "y": np.arange(8.0)}), tmp_path / name)
    monkeypatch.chdir(tmp_path)
    stream = aa.ParquetStream("s", path, features=["x"], targets=["y"], sampler=4)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert sorted(float(x) for batch in stream.batches(0) for x in batch["x"]) == list(range(8))
