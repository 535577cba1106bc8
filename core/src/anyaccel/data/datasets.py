"""The small data set of handwritten digits that is part of the package."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pyarrow as pa

from anyaccel.data.feature_set import FeatureSet
from anyaccel.data.readers.parquet import read_parquet
from anyaccel.data.roles import RoleNames

_FILE = "digits.parquet"
_DARKEST = 16  # each pixel counts the dark dots of 4 x 4


def digits() -> FeatureSet:
    """Load 1,797 images of handwritten digits as a new feature set.

    Columns: feature `pixels`, float32 of shape (8, 8) in 0 to 1 (the counts 0 to 16 of the source, divided by 16);
    target `label`, int64 scalar, 0 to 9; tag `row`, int64, the position in the source.

    Source: the test part of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998), UCI
    Machine Learning Repository, DOI 10.24432/C50P49 (https://doi.org/10.24432/C50P49), licence CC BY 4.0; see
    DIGITS-LICENSE.txt next to this module.

    Example:
        >>> from anyaccel.data.datasets import digits
        >>> digits().array("pixels").shape
        (1797, 8, 8)
    """
    content = files("anyaccel.data").joinpath(_FILE).read_bytes()
    stored = FeatureSet("digits", read_parquet("digits", pa.BufferReader(content), _FILE, RoleNames("pixels", "label")))
    data = {
        "pixels": stored.array("pixels").astype(np.float32) / np.float32(_DARKEST),
        "label": stored.array("label").astype(np.int64),
        "row": np.arange(len(stored), dtype=np.int64),
    }
    return FeatureSet.from_dict("digits", data, ["pixels"], ["label"], ["row"])
