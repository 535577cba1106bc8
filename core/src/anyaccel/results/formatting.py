"""Formatting shared by all results: pandas conversion, text tables, and errors for unknown names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anyaccel.errors import ResultError
from anyaccel.results.events import Event
from anyaccel.results.saved_errors import class_name
from anyaccel.suggestions import did_you_mean


def to_pandas(table: Any) -> Any:
    """Return an Arrow table as a pandas DataFrame; multi-dimensional samples become NumPy arrays in an object column.

    Raises:
        ResultError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ResultError(
            f"to_pandas() needs pandas, which cannot be imported ({error})",
            hint="python -m pip install pandas, or use to_arrow()",
        ) from error
    columns: dict[str, Any] = {}
    for name in table.column_names:
        array = table.column(name).combine_chunks()
        columns[name] = list(array.to_numpy_ndarray()) if hasattr(array, "to_numpy_ndarray") else array.to_pandas()
    return pandas.DataFrame(columns)


class NamedValues(dict[str, Any]):
    """Values of a run by name; an unknown name is a ResultError with those that there are."""

    def __init__(self, what: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.what = what

    def __missing__(self, name: str) -> Any:
        add = f"add it to the phase: EvalPhase(..., metrics=[{name!r}])" if self.what == "metric" else ""
        raise unknown_name(f"the run has no {self.what} {name!r}", name, self, add or "use one of these names")

    def __reduce__(self) -> tuple[Any, ...]:
        return NamedValues, (self.what, dict(self))


def unknown_name(problem: str, name: Any, known: Iterable[str], hint: str) -> ResultError:
    """Create the error for a name that does not exist; suggests the closest known one, otherwise gives `hint`."""
    names = list(known)
    return ResultError(problem, available=", ".join(names), hint=did_you_mean(name, names, hint))


def is_part(figure: str) -> bool:
    """Whether a value is the loss of a single node, a part of the total: `loss.head`, `val_loss.head`."""
    return figure.removeprefix("val_").startswith("loss.")


def text_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as lines of text: numeric columns aligned right, others left."""
    values = [list(row) for row in rows]
    is_numeric = [all(not isinstance(row[i], str) for row in values) for i in range(len(header))]
    cells = [list(header), *([short(value) for value in row] for row in values)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if numeric else text.ljust(width)
            for text, width, numeric in zip(row, widths, is_numeric, strict=True)
        ).rstrip()
        for row in cells
    )


def short(value: Any) -> str:
    """Return a value in a table cell: floats with four digits, `""` for None and NaN."""
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return values for JSON, which has no NaN or infinity: those become None."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def error_text(error: BaseException | None) -> str | None:
    """Return `TypeName: message`, or None."""
    return None if error is None else f"{class_name(error)}: {error}"


def summary(values: Mapping[str, float]) -> str:
    """Return totals for a one-line repr: `, loss 0.5, val_loss 0.6`; losses of single nodes are left out."""
    return "".join(f", {name} {value:.4g}" for name, value in values.items() if not is_part(name))


def ended(error: BaseException | None, events: Sequence[Event] = ()) -> str:
    """The end of a one-line repr: how often memory ran out, and the type of the exception that ended the run."""
    count = sum(event.kind == "memory" for event in events)
    memory = f", out of memory {count:,} times" if count > 1 else ", out of memory once" if count else ""
    return f"{memory}, ended with {class_name(error)}" if error is not None else memory
