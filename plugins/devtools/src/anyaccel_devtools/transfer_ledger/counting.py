"""ledger and no_transfers: count what moves inside a block, or raise at the first."""

from __future__ import annotations

import io
import json
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal, get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from anyaccel import arguments
from anyaccel.adapter.transfer_observer import TRANSFER_KINDS, ObservesTransfers, TransferEvent
from anyaccel.backend import Backend
from anyaccel.call_hints import call_hints, class_hints
from anyaccel.errors import CapabilityError, ConfigError, TransferError
from anyaccel.extensions import extend
from anyaccel.html import Markup, badge, faint, guarded, line, page, row, table
from anyaccel.printable import size
from anyaccel.registry import registry
from anyaccel_devtools.transfer_ledger.call_site import CallSite, CallSites


@call_hints
@contextmanager
def ledger() -> Iterator[Ledger]:
    """Count every transfer between devices, and every wait of the host, inside the block.

    This includes every framework whose plugin supports it, and every thread. Import the frameworks before. Transfers
    that could not be seen are listed in `not_covered`, and never counted wrong.

    Returns:
        A context manager that yields a `Ledger`, which can be read inside the block and after it.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> with aa.simulate(1), aa.ledger() as moved:
        ...     array = aa.move(np.zeros(4, "float32"), "sim:0")
        >>> moved.totals().nbytes
        16
    """
    counter = Counter()
    unseen: list[list[str]] = []
    with observation.listening(counter.add):
        try:
            yield Ledger(counter.rows, lambda: unseen[0] if unseen else observation.not_covered())
        finally:
            unseen.append(observation.not_covered())


@call_hints
def no_transfers(frameworks: Iterable[str] | None = None, *, partial: bool = False) -> AbstractContextManager[None]:
    """Raise at the first transfer, or wait of the host, inside the block; if possible before it happens.

    Args:
        frameworks: Observe only these; by default all that are imported.
        partial: Continue even if not every transfer can be seen: visible ones raise, and nothing more is promised.

    Raises:
        ConfigError: `frameworks` is not a list of names, or `partial` is not a bool.
        FrameworkError: no plugin runs one of them.
        TransferError: (inside the block) a value was moved, or the host waited; names what, where, and what to do.
        CapabilityError: (inside the block) not all transfers of one can be seen, so nothing could be promised; or, with
            `partial`, none of them.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> with aa.no_transfers(["numpy"]):
        ...     total = np.ones(3).sum()
    """
    arguments.flag(ConfigError, "no_transfers: ", "partial", partial)
    return _refusing(_checked(frameworks), partial)


@contextmanager
def _refusing(names: tuple[str, ...] | None, partial: bool) -> Iterator[None]:
    def refuse(framework: str, event: TransferEvent, site: CallSite) -> None:
        if names is None or framework in names:
            raise transfer_error(framework, event, site)

    with observation.listening(refuse):
        _check_covered(names, partial)
        yield
        _check_covered(names, partial)


def transfer_error(framework: str, event: TransferEvent, site: CallSite) -> TransferError:
    """Return the error for an event where no transfer is allowed."""
    places = [f"{word} {name!r}" for word, name in (("phase", site.phase), ("node", site.node)) if name]
    where = " of ".join([*([site.edge] if site.edge else []), *reversed(places)])
    what = f"the host waits for {event.source}"
    if event.kind != "wait":
        what = f"{event.nbytes} bytes go from {event.source} to {event.target} ({event.kind})"
    return TransferError(
        f"{what} in {framework}'s {event.operation} at {site.line}{f', in {where}' if where else ''}",
        hint=_HINTS[event.kind],
    )


_HINTS = {
    "host to device": "put it on the device before the block, or create it there",
    "device to host": "keep it on the device, and read it after the block",
    "device to device": "compute both on one device",
    "wait": "do not read values inside the block: keep them on the device, and read them after it",
}


def _checked(frameworks: Iterable[str] | None) -> tuple[str, ...] | None:
    if frameworks is None:
        return None
    listed = list(frameworks) if isinstance(frameworks, (list, tuple, set, frozenset)) else []
    names = tuple(name for name in listed if isinstance(name, str))
    if not names or len(names) < len(listed):
        problem = f"no_transfers(frameworks={frameworks!r:.80}) is not a list of names"
        available, hint = ", ".join(registry().frameworks), "write no_transfers(frameworks=['numpy'])"
        raise ConfigError(problem, available=available, hint=hint)
    for name in names:
        registry().kinds(name)
    return names


def _check_covered(names: tuple[str, ...] | None, partial: bool) -> None:
    unseen = observation.not_covered(names, observed_too=not partial)
    if unseen:
        partial_helps = not partial and not observation.not_covered(names, observed_too=False)
        raise CapabilityError(
            f"no_transfers cannot guarantee anything: {'; '.join(unseen)}",
            hint="name the frameworks to check, no_transfers(frameworks=[...]), or import them before"
            + ("; no_transfers(partial=True) checks only observable transfers" if partial_helps else ""),
        )


# -- ledger: what was counted, by where it happened; its totals, a table, a page for notebooks, and JSON ---------------


Key = Literal["kind", "framework", "node", "edge", "phase", "line", "operation", "source", "target"]
KEYS: tuple[Key, ...] = get_args(Key)
_HEAD = ("what", "from", "to", "times", "bytes", "waits", "by", "phase", "node or edge", "line")
_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over rows.

    Attributes:
        transfers: Number of transfers.
        nbytes: Bytes that they moved.
        waits: How often the host waited, in transfers and otherwise.
    """

    transfers: int = 0
    nbytes: int = 0
    waits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """Equal events at one place.

    Attributes:
        kind: `"host to device"`, `"device to host"`, `"device to device"`, or `"wait"`.
        framework: Framework that did it.
        source, target: Devices, as text.
        operation: Its name in the framework's words.
        line: `file:line` of the innermost code that is neither anyaccel's nor a framework's.
        node, edge, phase: Place in the experiment, each `""` if it happened outside of one.
        number: How often it happened.
        nbytes: Bytes of all together.
        waits: In how many of them the host waited.
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
    """Add up events; thread-safe."""

    sums: dict[tuple[Any, ...], _Sum] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, framework: str, event: TransferEvent, site: CallSite) -> None:
        """Count an event."""
        key = (event.kind, framework, event.source, event.target, event.operation, site)
        with self.lock:
            total = self.sums.get(key)
            if total is None:
                total = self.sums[key] = _Sum()
            total.number += 1
            total.nbytes += event.nbytes
            total.waits += event.waits or event.kind == "wait"

    def rows(self) -> Iterator[LedgerRow]:
        """Yield one row for each place, in the order of their first events."""
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
    """Counts of a `with anyaccel.ledger() as moved` block, which can be read inside it and after it.

    Args:
        rows: Function that returns the rows so far.
        not_covered: Function that returns what could not be seen.
    """

    def __init__(self, rows: Callable[[], Iterator[LedgerRow]], not_covered: Callable[[], Sequence[str]]) -> None:
        self._rows, self._not_covered = rows, not_covered

    @property
    def rows(self) -> tuple[LedgerRow, ...]:
        """Transfers and waits by place, in the order of the first event at each."""
        return tuple(self._rows())

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Transfers that could not be seen, a sentence each.

        These are all transfers of frameworks whose plugins do not support it, and gaps of others.
        """
        return tuple(self._not_covered())

    @property
    def transfers(self) -> int:
        """Number of transfers."""
        return self.totals().transfers

    @property
    def nbytes(self) -> int:
        """Number of bytes moved."""
        return self.totals().nbytes

    @property
    def waits(self) -> int:
        """How often the host waited for a device, in a transfer or otherwise."""
        return self.totals().waits

    def totals(self, kind: str | None = None) -> Totals:
        """Return sums over everything, or over one kind.

        Raises:
            ConfigError: an unknown kind.
        """
        if kind is not None and not (isinstance(kind, str) and kind in TRANSFER_KINDS):
            available = ", ".join(map(repr, TRANSFER_KINDS))
            problem = f"totals({kind!r:.80}) is not a kind of transfer"
            raise ConfigError(problem, available=available, hint="use one of these, or no argument for all")
        return _sum([entry for entry in self._rows() if kind in (None, entry.kind)])

    def by(self, key: Key) -> dict[str, Totals]:
        """Return sums by `"kind"`, `"node"`, `"edge"`, `"phase"`, `"line"`, or another attribute of the rows.

        Raises:
            ConfigError: an unknown attribute.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> with aa.simulate(1), aa.ledger() as moved:
            ...     array = aa.move(np.zeros(4, "float32"), "sim:0")
            >>> moved.by("kind")["host to device"].transfers
            1
        """
        if not isinstance(key, str) or key not in KEYS:
            problem = f"by({key!r:.80}): rows of a ledger have no such key"
            raise ConfigError(problem, available=", ".join(map(repr, KEYS)), hint="write by('line')")
        groups: dict[str, list[LedgerRow]] = {}
        for entry in self._rows():
            groups.setdefault(getattr(entry, key), []).append(entry)
        return {name: _sum(rows) for name, rows in groups.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, ready for JSON."""
        rows = self.rows
        return {
            "schema": _SCHEMA,
            "totals": asdict(_sum(rows)),
            "rows": [asdict(entry) for entry in rows],
            "not_covered": list(self.not_covered),
        }

    def to_json(self) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def __rich__(self) -> Table:
        """Return a table for a terminal."""
        shown = Table(title=self._title(), title_justify="left", box=None, pad_edge=False)
        for name in _HEAD:
            shown.add_column(name, justify="right" if name in ("times", "bytes", "waits") else "left", overflow="fold")
        for entry in self._rows():
            shown.add_row(*(Text(cell) for cell in _cells(entry)))
        shown.caption = "\n".join(f"not covered: {gap}" for gap in self.not_covered) or None
        shown.caption_justify = "left"
        return shown

    def __str__(self) -> str:
        """Return the table, without colors and 160 characters wide."""
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
            *(line("not covered: ", faint(gap)) for gap in self.not_covered),
        )

    def _title(self) -> str:
        total = self.totals()
        return f"{_counted(total.transfers, 'transfer')} of {size(total.nbytes)}, {_counted(total.waits, 'wait')}"


def _sum(rows: Sequence[LedgerRow]) -> Totals:
    return Totals(
        transfers=sum(entry.number for entry in rows if entry.kind != "wait"),
        nbytes=sum(entry.nbytes for entry in rows),
        waits=sum(entry.waits for entry in rows),
    )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _cells(entry: LedgerRow) -> list[str]:
    figures = [f"{entry.number:,}", size(entry.nbytes) if entry.kind != "wait" else "", f"{entry.waits:,}"]
    by = f"{entry.framework} {entry.operation}"
    return [entry.kind, entry.source, entry.target, *figures, by, entry.phase, entry.edge or entry.node, entry.line]


def _html_row(entry: LedgerRow) -> Markup:
    what, source, target, *others = _cells(entry)
    return row([what, badge(source), badge(target), *others])


# -- Observation: the observers of all backends, installed while somebody listens; several may listen at once ----------


Listener = Callable[[str, TransferEvent, CallSite], None]
"""Is told the framework, what happened, and where; may raise to stop it."""


class Observation:
    """Observers that are installed in this process, and the ledgers that listen to them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._listeners: tuple[Listener, ...] = ()
        self._installed = ExitStack()
        self._observed: set[int] = set()
        self._sites = CallSites()
        self._movers: dict[int, tuple[weakref.ref[Any], CallSite]] = {}

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Tell a listener every event inside the block; the first installs the observers, the last removes them."""
        with self._lock:
            # Observe each backend whose framework is imported and that is not observed yet; all or nothing
            backends = registry().backends
            self._sites = CallSites(_inner_modules(backends))
            with ExitStack() as stack:
                added = set()
                for backend in backends:
                    observes = backend.capability(ObservesTransfers) if _is_used(backend) else None
                    if id(backend) not in self._observed and observes is not None and observes.can_observe_transfers():
                        stack.enter_context(observes.observe_transfers(partial(self._tell, backend.framework)))
                        added.add(id(backend))
                self._installed.push(stack.pop_all())
                self._observed |= added
            self._listeners = (*self._listeners, listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners = tuple(other for other in self._listeners if other is not listener)
                if not self._listeners:
                    self._observed, self._movers = set(), {}
                    self._installed.close()

    def _tell(self, framework: str, event: TransferEvent) -> None:
        site = self._sites.here()
        if event.result is not None:
            self._movers[id(event.result)] = (weakref.ref(event.result, partial(self._forget, id(event.result))), site)
        for listener in self._listeners:
            listener(framework, event, site)

    def _forget(self, key: int, reference: weakref.ref[Any]) -> None:
        if key in self._movers and self._movers[key][0] is reference:
            del self._movers[key]

    def last_mover(self, tensor: Any) -> CallSite | None:
        """Return the operation that moved a tensor to its device; None if it was not observed, for example without a
        ledger.
        """
        mover = self._movers.get(id(tensor))
        return mover[1] if mover is not None and mover[0]() is tensor else None

    def not_covered(self, frameworks: Iterable[str] | None = None, *, observed_too: bool = True) -> list[str]:
        """Return what cannot be seen of these frameworks, by default of all that are imported: a sentence each.

        Without `observed_too`, this is only about frameworks that are not observed at all.
        """
        wanted = None if frameworks is None else set(frameworks)
        chosen = [backend for backend in registry().backends if wanted is None or backend.framework in wanted]
        if not observed_too:
            chosen = [backend for backend in chosen if id(backend) not in self._observed]
        return list(dict.fromkeys(text for backend in chosen if _is_used(backend) for text in self._unseen(backend)))

    def _unseen(self, backend: Backend) -> list[str]:
        observes = backend.capability(ObservesTransfers)
        if observes is None:
            return [f"{backend.framework} on {', '.join(backend.kinds)}: its plugin does not report transfers"]
        if id(backend) not in self._observed and observes.can_observe_transfers():
            return [f"{backend.framework}: it was imported inside the block; import it before the block"]
        return [f"{backend.framework}: {text}" for text in observes.unobserved_transfers()]


def _inner_modules(backends: Iterable[Backend]) -> Iterator[str]:
    for backend in backends:
        yield from backend.import_roots
        yield type(backend).__module__.partition(".")[0]


def _is_used(backend: Backend) -> bool:
    """Whether the framework of a backend is imported: the first of its modules; others may be shared."""
    return any(root in sys.modules for root in backend.import_roots[:1])


observation = Observation()
"""That of this process: what is installed in a framework is there for all of its threads."""


def last_mover(tensor: Any) -> CallSite | None:
    """Return where a tensor was moved to its device; None if no ledger saw it."""
    return observation.last_mover(tensor)


def line_of_last_mover(tensor: Any) -> str:
    """Return the line that moved a tensor to its device, `""` if no ledger saw it. For errors of frameworks."""
    site = last_mover(tensor)
    return "" if site is None else site.line


extend("last_mover", line_of_last_mover)
