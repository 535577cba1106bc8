"""CSV files as Arrow tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from anyaccel.arguments import shown, text
from anyaccel.data.readers.file_discovery import check_there
from anyaccel.errors import DataError

_NULLS = {"strings_can_be_null": True, "quoted_strings_can_be_null": False}  # else a missing label would be a class


def table_from_csv(label: str, path: str | os.PathLike[str], delimiter: str = ",") -> Any:
    """Read all columns of a CSV file with a header, in the types that Arrow infers: int64, double, bool, dates, or
    text.

    An empty cell and one with NA, null or NaN are nulls, in text too, unless they are quoted.

    Raises:
        DataError: not a path, or not a CSV file.
        MissingFileError: the file does not exist.
        OSError: the file cannot be opened.
    """
    from pyarrow import csv

    if not isinstance(path, (str, os.PathLike)):
        raise DataError(f"{label!r}: {shown(path)} is not the path of a CSV file", hint="write 'FILE.csv'")
    text(DataError, f"{label!r}: ", "delimiter", delimiter, "one character", "','")
    check_there(label, os.path.expanduser(path))  # noqa: PTH111  (a Path would change a URL)
    try:
        with Path(path).expanduser().open("rb") as file:
            parse, convert = csv.ParseOptions(delimiter=delimiter), csv.ConvertOptions(**_NULLS)
            table = csv.read_csv(file, parse_options=parse, convert_options=convert)
        list(table.column_names)  # decodes the header
        return table
    except UnicodeDecodeError as error:
        raise DataError(
            f"{label!r}: the header of {str(path)!r} is not UTF-8: {error}",
            hint="save the file as UTF-8, or pass the frame of pandas.read_csv(path, encoding='latin-1')",
        ) from error
    except (pa.ArrowException, ValueError) as error:
        raise DataError(
            f"{label!r}: {str(path)!r} cannot be read as CSV: {error}",
            hint="check the delimiter and the header, or read it with pandas and pass the frame to from_pandas",
        ) from error
