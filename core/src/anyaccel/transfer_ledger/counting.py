"""ledger and no_transfers: count what moves inside a block, or raise at the first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from anyaccel import arguments
from anyaccel.adapter.transfer_observer import TransferEvent
from anyaccel.call_hints import call_hints
from anyaccel.errors import CapabilityError, ConfigError, TransferError
from anyaccel.registry import registry
from anyaccel.transfer_ledger.call_site import CallSite
from anyaccel.transfer_ledger.counts import Counter, Ledger
from anyaccel.transfer_ledger.observation import observation


@call_hints
@contextmanager
def ledger() -> Iterator[Ledger]:
    """Count every transfer between devices, and every wait of the host, inside the block.

    In every framework whose plugin can tell, and in every thread. Import the frameworks before: what could not be seen
    is in `not_covered`, never counted wrong.

    Returns:
        a context manager that gives a `Ledger`, which may be read inside the block and after it.
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
    """Raise at the first transfer, or wait of the host, inside the block; where possible before it happens.

    Args:
        frameworks: only of these; by default of all that are imported.
        partial: also where not every transfer can be seen: what is seen raises, and nothing more is promised.

    Raises:
        ConfigError: `frameworks` is not a list of names, or `partial` no bool.
        FrameworkError: no plugin runs one of them.
        TransferError: (inside the block) something was moved, or the host waited; names what, where, and what to do.
        CapabilityError: (inside the block) transfers of one cannot all be seen, so that nothing could be promised; or,
            with `partial`, none of them.
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
    """What is wrong with an event, where no transfer is allowed."""
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
    "wait": "do not look at values inside the block: keep them on the device, and read them after it",
}


def _checked(frameworks: Iterable[str] | None) -> tuple[str, ...] | None:
    if frameworks is None:
        return None
    given = list(frameworks) if isinstance(frameworks, (list, tuple, set, frozenset)) else []
    names = tuple(name for name in given if isinstance(name, str))
    if not names or len(names) < len(given):
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
            f"no_transfers cannot promise anything: {'; '.join(unseen)}",
            hint="name the frameworks that are to be checked, no_transfers(frameworks=[...]), or import them before"
            + ("; no_transfers(partial=True) checks what can be seen" if partial_helps else ""),
        )
