"""CSV files as Arrow tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from anyaccel.arguments import shown, text
from anyaccel.errors import DataError


def table_from_csv(label: str, path: str | os.PathLike[str], delimiter: str = ",") -> Any:
    """All columns of a CSV file with a header, in the types that Arrow finds: int64, double, bool, dates, or text.

    Raises:
        DataError: not a path, or not a CSV file.
        OSError: the file cannot be opened.
    """
    from pyarrow import csv

    if not isinstance(path, (str, os.PathLike)):
        raise DataError(f"{label!r}: {shown(path)} is not the path of a CSV file", hint="write 'FILE.csv'")
    text(DataError, f"{label!r}: ", "delimiter", delimiter, "one character", "','")
    try:
        with Path(path).expanduser().open("rb") as file:
            return csv.read_csv(file, parse_options=csv.ParseOptions(delimiter=delimiter))
    except (pa.ArrowException, ValueError) as error:
        raise DataError(
            f"{label!r}: {str(path)!r} cannot be read as CSV: {error}",
            hint="check the delimiter and the header, or read it with pandas and give the frame to from_pandas",
        ) from error
