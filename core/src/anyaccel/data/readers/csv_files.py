"""CSV files as Arrow tables."""

from __future__ import annotations

import math
import mmap
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import compute

from anyaccel.arguments import shown, text
from anyaccel.data.readers.file_discovery import check_there
from anyaccel.errors import DataError

_NULLS = {"strings_can_be_null": True, "quoted_strings_can_be_null": False}  # else a missing label would be a class

_MARKS = {
    b"\x1f\x8b": ("compressed by gzip", "read_csv({}, compression='gzip')"),
    b"PK\x03\x04": ("an Excel workbook or a zip file", "read_excel({}), or of read_csv with compression='zip'"),
    b"\xd0\xcf\x11\xe0": ("an old Excel workbook", "read_excel({})"),
    b"PAR1": ("a Parquet file", "read_parquet({})"),
}
"""What files begin with that are no text, what they are, and the function of pandas that reads them."""
_LINES = 20
"""Number of lines that are looked at where a file cannot be read."""


def table_from_csv(label: str, path: str | os.PathLike[str], delimiter: str = ",") -> Any:
    """Read all columns of a CSV file with a header, in the types that Arrow infers: int64, double, bool, dates, or
    text.

    An empty cell and one with NA, null or NaN are nulls, in text too, unless they are quoted. A column with a
    hexadecimal number such as 0x1F is text, as in pandas, and integers beyond int64 are uint64, or text.

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
    with Path(path).expanduser().open("rb") as file:
        begin = file.read(4)
    if begin[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise _not_utf8(label, path, "it begins with the mark of UTF-16", "utf-16")
    other_kind = next((kind for mark, kind in _MARKS.items() if begin.startswith(mark)), None)
    if other_kind is not None:
        what, call = other_kind
        problem = f"{label!r}: {str(path)!r} is {what}, whatever its name says"
        raise DataError(problem, hint=f"pass the frame of pandas.{call.format(repr(str(path)))}")
    try:
        with Path(path).expanduser().open("rb") as file:
            parse, convert = csv.ParseOptions(delimiter=delimiter), csv.ConvertOptions(**_NULLS)
            table = csv.read_csv(file, parse_options=parse, convert_options=convert)
            doubtful = _doubtful(table, file)
            if doubtful:
                types = dict.fromkeys(doubtful, pa.string())
                texts = csv.ConvertOptions(**_NULLS, column_types=types, include_columns=list(types))
                file.seek(0)
                as_text = csv.read_csv(file, parse_options=parse, convert_options=texts)
                for place, name in enumerate(table.column_names):
                    column = _as_pandas(table.column(place), as_text.column(name)) if name in doubtful else None
                    if column is not None:
                        table = table.set_column(place, name, column)
        names = list(table.column_names)  # decodes the header
    except UnicodeDecodeError as error:
        raise _not_utf8(label, path, f"its header: {error}") from error
    except (pa.ArrowException, ValueError) as error:
        raise _of_lines(label, path, delimiter, error) or DataError(
            f"{label!r}: {str(path)!r} cannot be read as CSV: {error}",
            hint="check the delimiter and the header, or pass the "
            f"frame of pandas.read_csv({str(path)!r}, on_bad_lines='warn')",
        ) from error
    lines = table.column(0).slice(0, _LINES).to_pylist() if len(names) == 1 else []
    if lines and all(isinstance(line, str) for line in lines):
        other = next((sign for sign in ";\t|" if sign != delimiter and sign in names[0] and sign in lines[0]), None)
        n_words = {len(line.split()) for line in (names[0], *lines)}
        if len(n_words) == 1 and n_words != {1} and any(map(_is_number, lines[0].split())):
            other = other or r"\s+"
        if other is not None:
            between = "spaces seem" if other == r"\s+" else f"{other!r} seems"
            raise DataError(
                f"{label!r}: {str(path)!r} has a single column {shown(names[0])}, as it is read with {delimiter!r} "
                f"between the columns, and {between} to be there",
                hint=f"pass the frame of pandas.read_csv({str(path)!r}, sep={other!r})",
            )
    if has_row_as_names(table):
        sep = "" if delimiter == "," else f", sep={delimiter!r}"
        raise DataError(
            f"{label!r}: {str(path)!r} seems to have no header: its first line, {shown(', '.join(names))}, is like the "
            "rows below",
            hint=f"pass the frame of pandas.read_csv({str(path)!r}{sep}, header=None).add_prefix('column'), with "
            f"columns column0 to column{len(names) - 1}; or of pandas.read_csv({str(path)!r}{sep}), if it is a header",
        )
    names = [name or f"Unnamed: {place}" for place, name in enumerate(names)]  # as pandas calls them
    table = table.rename_columns(names)
    for name in names:
        column = table.column(name) if names.count(name) == 1 else None
        if column is not None and pa.types.is_binary(column.type):
            rows = (value.decode("utf-8", "replace") for value in column.to_pylist() if value is not None)
            value = next((text for text in rows if "\ufffd" in text), "")
            raise _not_utf8(label, path, f"column {name!r} has {value!r}")
    return table


def _doubtful(table: Any, file: Any) -> set[str]:
    """Return the columns in which Arrow may have read other numbers than the file has: 0xFFFFFFFFFFFFFFFF as -1, and
    integers beyond int64 as the nearest float.
    """
    doubtful = set()
    for field, column in zip(table.schema, table.columns, strict=True):
        if pa.types.is_floating(field.type):
            least, most = compute.min_max(column).as_py().values()
            if least is not None and 2**63 <= max(abs(least), abs(most)) < math.inf:
                doubtful.add(field.name)
    integers = {field.name for field in table.schema if pa.types.is_integer(field.type)}
    if integers:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(b"0x") >= 0 or content.find(b"0X") >= 0:
                doubtful |= integers
    return doubtful


def _as_pandas(column: Any, texts: Any) -> Any:
    """Return a column of numbers as pandas reads its texts; None if that is the column itself."""
    if pa.types.is_integer(column.type):
        is_hexadecimal = compute.any(compute.match_substring_regex(texts, r"^\s*0[xX]")).as_py()
        return texts if is_hexadecimal else None
    if not compute.all(compute.match_substring_regex(texts, r"^\s*[-+]?\d+\s*$")).as_py():
        return None
    try:
        return compute.utf8_ltrim(compute.utf8_trim_whitespace(texts), characters="+").cast(pa.uint64())
    except pa.ArrowInvalid:
        return texts


def has_row_as_names(table: Any) -> bool:
    """Return whether the names of most columns could be values of them, as where a file without a header was read."""
    names = table.column_names
    numbers = [float(name) for name in names if _is_number(name)]
    ascending = sorted(set(numbers))
    is_counted = numbers == ascending or (numbers == ascending[::-1] and all(map(float.is_integer, numbers)))
    if len(names) == 1 or (len(numbers) > 1 and is_counted):  # by positions, months or years
        return False
    n_values = 0  # names that are one of the column's texts, or within the range of its numbers
    for name, column in zip(map(str.strip, names), table.columns, strict=True):
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            n_values += compute.index(column, pa.scalar(name, column.type)).as_py() >= 0
        elif _is_number(name) and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            least, most = compute.min_max(column).as_py().values()
            n_values += least is not None and least <= float(name) <= most
    return 2 * n_values > len(names)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _of_lines(label: str, path: str | os.PathLike[str], delimiter: str, error: Exception) -> DataError | None:
    """Return the error for a file with another delimiter, or with lines above the header; None if neither is seen."""
    with Path(path).expanduser().open(encoding="utf-8", errors="replace") as file:
        lines = [line.rstrip("\n") for line, _ in zip(file, range(_LINES), strict=False) if line.strip()]
    counts = {sign: [line.count(sign) for line in lines] for sign in (delimiter, *";\t|")}
    problem = f"{label!r}: {str(path)!r} cannot be read as CSV: {error}"
    other = next((sign for sign, found in counts.items() if found[:1] > [0] and len(set(found)) == 1), delimiter)
    if len(lines) > 1 and other != delimiter:
        comma = ", decimal=','" if delimiter == "," and any(counts[","]) else ""
        cause = f"{other!r} seems to be between the columns" + (", and commas before decimals" if comma else "")
        return DataError(
            problem, cause=cause, hint=f"pass the frame of pandas.read_csv({str(path)!r}, sep={other!r}{comma})"
        )
    most = max(counts[delimiter], default=0)
    above = counts[delimiter].index(most) if most else 0
    if above and len(lines) > above + 1 and set(counts[delimiter][above:]) == {most}:
        lines_above = "its first line" if above == 1 else f"the first {above} lines of it"
        cause = f"{lines_above}, {shown(lines[0])}, {'seems' if above == 1 else 'seem'} to be above the header"
        hint = f"pass the frame of pandas.read_csv({str(path)!r}, skiprows={above})"
        return DataError(problem, cause=cause, hint=hint)
    return None


def _not_utf8(label: str, path: object, cause: str, encoding: str = "latin-1") -> DataError:
    return DataError(
        f"{label!r}: {str(path)!r} is not UTF-8",
        cause=cause,
        hint=f"pass the frame of pandas.read_csv({str(path)!r}, encoding={encoding!r})",
    )
