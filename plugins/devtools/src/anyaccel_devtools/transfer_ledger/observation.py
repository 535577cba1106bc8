"""Observation: the observers of all backends, installed while somebody listens; several may listen at once."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from anyaccel.adapter.transfer_observer import ObservesTransfers, TransferEvent
from anyaccel.backend import Backend
from anyaccel.extensions import extend
from anyaccel.registry import registry
from anyaccel_devtools.transfer_ledger.call_site import CallSite, CallSites

Listener = Callable[[str, TransferEvent, CallSite], None]
"""Is told the framework, what happened, and where; may raise to stop it."""


class Observation:
    """What is observed now, in this process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._listeners: tuple[Listener, ...] = ()
        self._installed = ExitStack()
        self._observed: set[int] = set()
        self._sites = CallSites()
        self._movers: dict[int, tuple[weakref.ref[Any], CallSite]] = {}

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Tell a listener every event inside; the first installs the observers, the last removes them."""
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
                self._listeners = tuple(each for each in self._listeners if each is not listener)
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
        """What has moved a tensor to where it is; None if that was not seen, as without a ledger."""
        known = self._movers.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def not_covered(self, frameworks: Iterable[str] | None = None, *, observed_too: bool = True) -> list[str]:
        """What of these frameworks, by default of all that are imported, cannot be seen: a sentence each.

        Without `observed_too`, of those only that are not observed at all.
        """
        wanted = None if frameworks is None else set(frameworks)
        chosen = [each for each in registry().backends if wanted is None or each.framework in wanted]
        if not observed_too:
            chosen = [each for each in chosen if id(each) not in self._observed]
        return list(dict.fromkeys(text for backend in chosen if _is_used(backend) for text in self._unseen(backend)))

    def _unseen(self, backend: Backend) -> list[str]:
        observes = backend.capability(ObservesTransfers)
        if observes is None:
            return [f"{backend.framework} on {', '.join(backend.kinds)}: its plugin does not tell transfers"]
        if id(backend) not in self._observed and observes.can_observe_transfers():
            return [f"{backend.framework}: it was imported inside the block; import it before"]
        return [f"{backend.framework}: {text}" for text in observes.unobserved_transfers()]


def _inner_modules(backends: Iterable[Backend]) -> Iterator[str]:
    for backend in backends:
        yield from backend.import_roots
        yield type(backend).__module__.partition(".")[0]


def _is_used(backend: Backend) -> bool:
    """Whether its framework is imported, which is the first of its modules; those after it may be others' too."""
    return any(root in sys.modules for root in backend.import_roots[:1])


observation = Observation()
"""That of this process: what is installed in a framework is there for all of its threads."""


def last_mover(tensor: Any) -> CallSite | None:
    """Where a tensor was moved to its device; None if no ledger saw it."""
    return observation.last_mover(tensor)


def line_of_last_mover(tensor: Any) -> str:
    """The line that moved a tensor to its device, `""` if no ledger saw it. For errors of frameworks."""
    site = last_mover(tensor)
    return "" if site is None else site.line


extend("last_mover", line_of_last_mover)
