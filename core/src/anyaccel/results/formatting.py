"""Tables of results for people: as pandas DataFrames and as text, and the answer to a name that is not there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from anyaccel.errors import ResultError
from anyaccel.phases.events import Event
from anyaccel.suggestions import did_you_mean


def to_pandas(table: Any) -> Any:
    """An Arrow table as a pandas DataFrame; samples with axes become NumPy arrays in a column of objects.

    Raises:
        ResultError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ResultError(
            f"to_pandas() needs pandas, which cannot be imported ({error})",
            hint="python -m pip install pandas, or take to_arrow()",
        ) from error
    return pandas.DataFrame({name: _values(table.column(name)) for name in table.column_names})


def _values(column: Any) -> Any:
    whole = column.combine_chunks()
    if hasattr(whole, "to_numpy_ndarray"):
        return list(whole.to_numpy_ndarray())
    return whole.to_pandas()


def absent(asked: str, name: Any, there: Iterable[str], remedy: str) -> ResultError:
    """The error for a name that is not among those that there are, with the closest if there is one."""
    names = list(there)
    return ResultError(asked, available=", ".join(names), hint=did_you_mean(name, names, remedy))


def is_part(figure: str) -> bool:
    """Whether a figure is the loss of a single node, which the total has in it: `loss.head`, `val_loss.head`."""
    return figure.removeprefix("val_").startswith("loss.")


def text_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as lines of text: numbers in short form to the right, all else to the left."""
    values = [list(row) for row in rows]
    right = [all(not isinstance(row[i], str) for row in values) for i in range(len(head))]
    cells = [list(head), *([short(value) for value in row] for row in values)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if there else text.ljust(width)
            for text, width, there in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    )


def short(value: Any) -> str:
    """A value in few letters: floats with four digits, nothing for what is not there."""
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    """Figures for JSON, which has no NaN: what is not finite is None."""
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def when(number: int | None, started: datetime | None, seconds: float) -> dict[str, Any]:
    """The place of a run in its history, when it began and how long it took."""
    return {
        "number": number,
        "started": started.isoformat() if started is not None else None,
        **finite({"seconds": seconds}),
    }


def told(error: BaseException | None) -> str | None:
    """What ended a run, in words."""
    return None if error is None else f"{type(error).__name__}: {error}"


def shown(figures: Mapping[str, float]) -> str:
    """The figures that sum up, for a line of text."""
    return "".join(f", {name} {value:.4g}" for name, value in figures.items() if not is_part(name))


def ended(error: BaseException | None, events: Sequence[Event] = ()) -> str:
    """How often memory was short, and what ended a run, for the end of a line of text.

    What else was decided is not told there: it is in every run.
    """
    count = sum(event.kind == "memory" for event in events)
    short = f", {count:,} times short of memory" if count > 1 else ", once short of memory" if count else ""
    return f"{short}, ended by {type(error).__name__}" if error is not None else short
