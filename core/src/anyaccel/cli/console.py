"""Printing: tables and text, without color or wrapping in a pipe, and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from anyaccel.errors import AnyaccelError
from anyaccel.printable import printable, size

_PIPED_WIDTH = 10_000  # nothing is cut or wrapped in a pipe


def console(*, stderr: bool = False) -> Console:
    """Return a console on standard output or error, without color and wrapping if it is not a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    piped = not stream.isatty()
    return Console(stderr=stderr, width=_PIPED_WIDTH if piped else None, highlight=False, soft_wrap=piped)


def print_json(value: Any) -> None:
    """Print one JSON document on standard output; NaN and infinity raise ValueError."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; cells are text, never markup."""
    out = console()
    table = Table(box=box.SIMPLE_HEAD if out.is_terminal else None, pad_edge=False, show_edge=False)
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    out.print(table)


def print_line(text: str, *, style: str = "", stderr: bool = False) -> None:
    """Print a line of text, never markup."""
    console(stderr=stderr).print(Text(printable(text), style=style))


def print_error(error: AnyaccelError, *, as_json: bool) -> None:
    """Print an error on standard error, or as JSON on standard output."""
    if as_json:
        parts = {"problem": error.problem, "available": error.available, "hint": error.hint}
        print_json({"error": {"type": type(error).__name__, "message": str(error), **parts}})
    else:
        print_line(f"error: {error}", style="red", stderr=True)


def format_size(nbytes: int) -> str:
    """Return a number of bytes with a unit, `""` for 0."""
    return size(nbytes) if nbytes else ""
