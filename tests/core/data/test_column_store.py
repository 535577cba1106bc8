"""Columns in Arrow memory and their arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from anyaccel.data.feature_set import ColumnStore
from anyaccel.errors import ColumnError


@pytest.fixture
def table() -> pa.Table:
    chunks = pa.chunked_array([pa.array([1.0, 2.0]), pa.array([3.0])])
    return pa.table({"x": chunks, "left out": ["a", "b", "c"], "flag": [True, False, True]})


def test_the_array_of_a_column_is_made_once_on_the_memory_of_the_column(table: pa.Table) -> None:
    store = ColumnStore(table, pa.schema([table.schema.field("x")]))
    array = store.array("x")
    assert store.array("x") is array
    assert not array.flags.writeable
    assert array.ctypes.data == store.column("x").chunk(0).buffers()[1].address


def test_only_the_columns_of_the_schema_are_kept_in_its_order(table: pa.Table) -> None:
    store = ColumnStore(table, pa.schema([table.schema.field("flag"), table.schema.field("x")]))
    assert store.table().column_names == ["flag", "x"]
    assert len(store) == 3
    assert store.nbytes == table.column("flag").nbytes + table.column("x").nbytes


def test_only_numbers_have_an_array(table: pa.Table) -> None:
    store = ColumnStore(table, table.schema)
    store.check_readable(("x", "flag"))
    np.testing.assert_array_equal(store.array("flag"), [True, False, True])
    with pytest.raises(ColumnError, match="'left out'"):
        store.check_readable(("left out",))
    with pytest.raises(ColumnError, match="'left out'"):
        store.array("left out")
