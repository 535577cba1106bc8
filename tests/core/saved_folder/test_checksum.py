"""Whatever computes CRC-32, folders that one has written are read by the others."""

from __future__ import annotations

import sys
import zlib

import numpy as np
import pytest

from anyaccel import saved_folder
from anyaccel.errors import StateError
from anyaccel.saved_folder import tensor_file


def test_without_isal_it_is_that_of_zlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    assert tensor_file.fastest_crc32() is zlib.crc32


@pytest.mark.parametrize("size", [0, 1, 7, 4096, 2**18 + 3])
def test_with_isal_the_numbers_are_the_same(size):
    isal_zlib = pytest.importorskip("isal.isal_zlib")
    assert tensor_file.fastest_crc32() is isal_zlib.crc32
    contents = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    for begun in (0, 1, 2**32 - 1):
        assert isal_zlib.crc32(contents.data, begun) == zlib.crc32(contents, begun)


@pytest.mark.parametrize("order", [False, True])
def test_a_folder_is_read_with_the_other_one(tmp_path, monkeypatch, order):
    isal_zlib = pytest.importorskip("isal.isal_zlib")
    first, second = (zlib.crc32, isal_zlib.crc32)[:: -1 if order else 1]
    array = np.random.default_rng(0).standard_normal(100_000)
    monkeypatch.setattr(tensor_file, "crc32", first)
    saved_folder.write(tmp_path, {"graph": {}}, {"a": array})
    monkeypatch.setattr(tensor_file, "crc32", second)
    np.testing.assert_array_equal(saved_folder.read(tmp_path, "graph")[1]["a"], array)
    (file,) = tmp_path.glob("state-*")
    contents = bytearray(file.read_bytes())
    contents[-9] ^= 4
    file.write_bytes(contents)
    with pytest.raises(StateError, match="tensor a differs from what was written"):
        saved_folder.read(tmp_path, "graph")
