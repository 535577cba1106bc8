"""Columns of a feature set in Arrow memory, and their arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from anyaccel.data import FeatureSet
from anyaccel.errors import ColumnError


@pytest.fixture
def table() -> pa.Table:
    chunks = pa.chunked_array([pa.array([1.0, 2.0]), pa.array([3.0])])
    return pa.table({"x": chunks, "left out": ["a", "b", "c"], "flag": [True, False, True]})


def test_the_array_of_a_column_is_made_once_on_the_memory_of_the_column(table: pa.Table) -> None:
    data = FeatureSet.from_arrow("data", table, ["x"])
    array = data.array("x")
    assert data.array("x") is array
    assert not array.flags.writeable
    assert array.ctypes.data == data.column("x").chunk(0).buffers()[1].address


def test_only_the_columns_that_have_a_role_are_kept_in_their_order(table: pa.Table) -> None:
    data = FeatureSet.from_arrow("data", table, ["flag"], ["x"])
    assert data.to_arrow().column_names == ["flag", "x"]
    assert len(data) == 3
    assert data.nbytes == table.column("flag").nbytes + table.column("x").nbytes


def test_only_numbers_have_an_array(table: pa.Table) -> None:
    data = FeatureSet.from_arrow("data", table, ["x", "flag"], (), ["left out"])
    np.testing.assert_array_equal(data.array("flag"), [True, False, True])
    with pytest.raises(ColumnError, match="'left out'"):
        data.array("left out")
    with pytest.raises(ColumnError, match="'left out'"):
        FeatureSet.from_arrow("data", table, ["x", "left out"])
