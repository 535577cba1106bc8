"""Printing: tables for people, plain where piped, JSON where asked for."""

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

_PIPED_WIDTH = 10_000  # a pipe has no width: nothing is to be cut or wrapped


def console(*, stderr: bool = False) -> Console:
    """A console on standard output (or error); no colour and no wrapping where it is not a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    piped = not stream.isatty()
    return Console(stderr=stderr, width=_PIPED_WIDTH if piped else None, highlight=False, soft_wrap=piped)


def shown(text: str) -> str:
    """Text as a terminal may have it: what would steer the terminal is spelt out."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)


def print_json(value: Any) -> None:
    """One JSON document on standard output; numbers that JSON does not have are not let through."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def print_table(title: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; cells are text, never markup."""
    out = console()
    table = Table(box=box.SIMPLE_HEAD if out.is_terminal else None, pad_edge=False, show_edge=False)
    for name in title:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    out.print(table)


def print_line(text: str, *, style: str = "", stderr: bool = False) -> None:
    """A line of text, never markup."""
    console(stderr=stderr).print(Text(shown(text), style=style))


def print_error(error: AnyaccelError, *, as_json: bool) -> None:
    """What went wrong: on standard error, or as JSON on standard output."""
    if as_json:
        about = {"problem": error.problem, "available": error.available, "hint": error.hint}
        print_json({"error": {"type": type(error).__name__, "message": str(error), **about}})
    else:
        print_line(f"error: {error}", style="red", stderr=True)


def size(nbytes: int) -> str:
    """Bytes for people, `""` for none."""
    if not nbytes:
        return ""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
