"""The data set that comes with the package."""

from __future__ import annotations

import hashlib
from importlib.resources import files

import numpy as np

from anyaccel.data import digits
from anyaccel.segment import TensorSpec

# Of what scikit-learn 1.9.1 ships: all counts as bytes, then all labels.
SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
COUNTS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_columns() -> None:
    fs = digits()
    assert (fs.label, len(fs), fs.features, fs.targets, fs.tags) == ("digits", 1797, ("pixels",), ("label",), ("row",))
    assert fs.spec("pixels") == TensorSpec((8, 8), "float32")
    assert fs.spec("label") == fs.spec("row") == TensorSpec((), "int64")
    assert fs.array("row").tolist() == list(range(1797))


def test_values() -> None:
    pixels, label = digits().array("pixels"), digits().array("label")
    assert (pixels.min(), pixels.max()) == (0.0, 1.0)
    counts = pixels * 16
    assert np.array_equal(counts, np.round(counts))
    assert np.bincount(label).tolist() == COUNTS
    assert counts[0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    content = counts.astype(np.uint8).tobytes() + label.astype(np.uint8).tobytes()
    assert hashlib.sha256(content).hexdigest() == SHA256


def test_every_call_makes_a_new_feature_set() -> None:
    first = digits()
    first.split_random({"train": 0.8, "test": 0.2})
    assert not digits().splits


def test_source_and_licence_are_named() -> None:
    shipped = files("anyaccel.data").joinpath("DIGITS-LICENSE.txt").read_text("utf-8")
    for text in (shipped, digits.__doc__ or ""):
        for word in ("E. Alpaydin", "C. Kaynak", "10.24432/C50P49", "CC BY 4.0"):
            assert word in text


def test_the_file_is_small() -> None:
    assert len(files("anyaccel.data").joinpath("digits.parquet").read_bytes()) < 60_000
