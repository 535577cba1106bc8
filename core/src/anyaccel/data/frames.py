"""Frames: rows as a pandas DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from anyaccel.data.columns import is_readable
from anyaccel.errors import DataError
from anyaccel.install_hints import install_line

if TYPE_CHECKING:
    from anyaccel.data.rows import Rows


def data_frame(rows: Rows, index: np.ndarray) -> Any:
    """A pandas DataFrame of all columns of some rows, with this index.

    Raises:
        DataError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise DataError(
            f"{rows.label!r} cannot become a DataFrame: pandas is not installed", remedy=install_line("pandas")
        ) from error
    frame = pd.DataFrame({name: _cells(rows, name) for name in rows.columns})
    frame.index = pd.Index(index)
    return frame


def _cells(rows: Rows, name: str) -> Any:
    column = rows.column(name)
    if not is_readable(column):
        return column.to_pandas()
    array = rows.array(name)
    return list(array) if array.ndim > 1 else array
