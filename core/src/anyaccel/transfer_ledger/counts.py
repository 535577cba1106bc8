"""Ledger: what was counted, by where it happened; its totals, a table, a page for notebooks, and JSON."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from anyaccel.adapter.transfer_observer import TRANSFER_KINDS, TransferEvent
from anyaccel.call_hints import class_hints
from anyaccel.errors import ConfigError
from anyaccel.html import Markup, badge, faint, guarded, line, page, row, size, table
from anyaccel.transfer_ledger.call_site import CallSite

Key = Literal["kind", "framework", "node", "edge", "phase", "line", "operation", "source", "target"]
KEYS: tuple[Key, ...] = get_args(Key)
_HEAD = ("what", "from", "to", "times", "bytes", "waits", "by", "phase", "node or edge", "line")
_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over rows.

    Attributes:
        transfers: how many transfers.
        nbytes: how much they moved.
        waits: how often the host waited: in transfers that it waits for, and otherwise.
    """

    transfers: int = 0
    nbytes: int = 0
    waits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """Equal events at one place.

    Attributes:
        kind: `"host to device"`, `"device to host"`, `"device to device"`, or `"wait"`.
        framework: which did it.
        source, target: devices, as text.
        operation: in the framework's words.
        line: `file:line` of the innermost code that is neither anyaccel's nor a framework's.
        node, edge, phase: as far as it happened in one; else `""`.
        number: how often.
        nbytes: of all together.
        waits: in how many of them the host waited.
    """

    kind: str
    framework: str
    source: str
    target: str
    operation: str
    line: str
    node: str
    edge: str
    phase: str
    number: int
    nbytes: int
    waits: int


@dataclass(slots=True)
class _Sum:
    number: int = 0
    nbytes: int = 0
    waits: int = 0


@dataclass(slots=True)
class Counter:
    """Adds up events; thread-safe."""

    sums: dict[tuple[Any, ...], _Sum] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, framework: str, event: TransferEvent, site: CallSite) -> None:
        """One more."""
        key = (event.kind, framework, event.source, event.target, event.operation, site)
        with self.lock:
            total = self.sums.get(key)
            if total is None:
                total = self.sums[key] = _Sum()
            total.number += 1
            total.nbytes += event.nbytes
            total.waits += event.waits or event.kind == "wait"

    def rows(self) -> Iterator[LedgerRow]:
        """One row for each place, in the order of their first events."""
        with self.lock:
            sums = list(self.sums.items())
        for (kind, framework, source, target, operation, site), total in sums:
            yield LedgerRow(
                kind=kind,
                framework=framework,
                source=str(source),
                target=str(target),
                operation=operation,
                line=site.line,
                node=site.node,
                edge=site.edge,
                phase=site.phase,
                number=total.number,
                nbytes=total.nbytes,
                waits=total.waits,
            )


@class_hints
class Ledger:
    """What was counted inside a `with anyaccel.ledger() as moved` block; may be read inside it, and after it.

    Args:
        rows: gives the rows so far.
        not_covered: gives what could not be seen.
    """

    def __init__(self, rows: Callable[[], Iterator[LedgerRow]], not_covered: Callable[[], Sequence[str]]) -> None:
        self._rows, self._not_covered = rows, not_covered

    @property
    def rows(self) -> tuple[LedgerRow, ...]:
        """Where transfers and waits happened, in the order of their first."""
        return tuple(self._rows())

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What could not be seen, a sentence each: frameworks whose plugins cannot tell, and what others cannot."""
        return tuple(self._not_covered())

    @property
    def transfers(self) -> int:
        """How many transfers."""
        return self.totals().transfers

    @property
    def nbytes(self) -> int:
        """How many bytes they moved."""
        return self.totals().nbytes

    @property
    def waits(self) -> int:
        """How often the host waited for a device, in a transfer or otherwise."""
        return self.totals().waits

    def totals(self, kind: str | None = None) -> Totals:
        """Sums over everything, or of one kind.

        Raises:
            ConfigError: there is no such kind.
        """
        if kind is not None and kind not in TRANSFER_KINDS:
            available = ", ".join(map(repr, TRANSFER_KINDS))
            problem = f"totals({kind!r:.80}) is not a kind of transfer"
            raise ConfigError(problem, available=available, hint="give one of these, or nothing for all")
        return _sum([each for each in self._rows() if kind in (None, each.kind)])

    def by(self, key: Key) -> dict[str, Totals]:
        """Sums by `"kind"`, `"node"`, `"edge"`, `"phase"`, `"line"`, or another attribute of the rows.

        Raises:
            ConfigError: there is no such attribute.
        """
        if not isinstance(key, str) or key not in KEYS:
            problem = f"by({key!r:.80}): rows of a ledger have no such key"
            raise ConfigError(problem, available=", ".join(map(repr, KEYS)), hint="write by('line')")
        groups: dict[str, list[LedgerRow]] = {}
        for each in self._rows():
            groups.setdefault(getattr(each, key), []).append(each)
        return {name: _sum(rows) for name, rows in groups.items()}

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        rows = self.rows
        return {
            "schema": _SCHEMA,
            "totals": asdict(_sum(rows)),
            "rows": [asdict(each) for each in rows],
            "not_covered": list(self.not_covered),
        }

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2)

    def __rich__(self) -> Table:
        """A table for a terminal."""
        shown = Table(title=self._title(), title_justify="left", box=None, pad_edge=False)
        for name in _HEAD:
            shown.add_column(name, justify="right" if name in ("times", "bytes", "waits") else "left", overflow="fold")
        for each in self._rows():
            shown.add_row(*(Text(cell) for cell in _cells(each)))
        shown.caption = "\n".join(f"not covered: {each}" for each in self.not_covered) or None
        shown.caption_justify = "left"
        return shown

    def __str__(self) -> str:
        """The table, without colours and 160 characters wide."""
        console = Console(file=io.StringIO(), width=160, no_color=True, highlight=False)
        console.print(self)
        return "\n".join(text.rstrip() for text in console.file.getvalue().splitlines())  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"<Ledger: {self._title()}>"

    def _repr_html_(self) -> str:
        return guarded(self, self._page)

    def _page(self) -> Markup:
        return page(
            "Ledger",
            self._title(),
            table(_HEAD, self.rows, _html_row),
            *(line("not covered: ", faint(each)) for each in self.not_covered),
        )

    def _title(self) -> str:
        total = self.totals()
        return f"{_counted(total.transfers, 'transfer')} of {size(total.nbytes)}, {_counted(total.waits, 'wait')}"


def _sum(rows: Sequence[LedgerRow]) -> Totals:
    return Totals(
        transfers=sum(each.number for each in rows if each.kind != "wait"),
        nbytes=sum(each.nbytes for each in rows),
        waits=sum(each.waits for each in rows),
    )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _cells(each: LedgerRow) -> list[str]:
    figures = [f"{each.number:,}", size(each.nbytes) if each.kind != "wait" else "", f"{each.waits:,}"]
    by = f"{each.framework} {each.operation}"
    return [each.kind, each.source, each.target, *figures, by, each.phase, each.edge or each.node, each.line]


def _html_row(each: LedgerRow) -> Markup:
    what, source, target, *others = _cells(each)
    return row([what, badge(source), badge(target), *others])
