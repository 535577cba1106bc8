"""CSV files as Arrow tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from anyaccel.arguments import shown, text
from anyaccel.errors import DataError

_NULLS = {"strings_can_be_null": True, "quoted_strings_can_be_null": False}  # else a missing label would be a class


def table_from_csv(label: str, path: str | os.PathLike[str], delimiter: str = ",") -> Any:
    """All columns of a CSV file with a header, in the types that Arrow finds: int64, double, bool, dates, or text.

    An empty cell and one with NA, null or NaN are nulls, in text too, unless they are quoted.

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
            parse, convert = csv.ParseOptions(delimiter=delimiter), csv.ConvertOptions(**_NULLS)
            return csv.read_csv(file, parse_options=parse, convert_options=convert)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(
            f"{label!r}: {str(path)!r} cannot be read as CSV: {error}",
            hint="check the delimiter and the header, or read it with pandas and give the frame to from_pandas",
        ) from error
