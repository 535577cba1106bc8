"""Capability `observe_transfers`: a backend reports each transfer and each wait of the host while an observer is
active.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from anyaccel.capability import Capability
from anyaccel.device import Device

TransferKind = Literal["host to device", "device to host", "device to device", "wait"]

TRANSFER_KINDS: tuple[TransferKind, ...] = ("host to device", "device to host", "device to device", "wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferEvent:
    """One transfer, or one wait of the host.

    Attributes:
        kind: One of `TRANSFER_KINDS`. A `"wait"` moves nothing that the user requested: the host waits for a device.
        source: Device of the values; for a wait, the device that is waited for.
        target: Device that receives them; for a wait, the CPU.
        operation: The operation, in the framework's words, such as `"copy_"` or `"item"`.
        nbytes: Number of bytes moved, 0 for a wait.
        waits: Whether the host waits until it is done; always True for a `"wait"`.
        result: The tensor at the target, if it exists already. Nothing holds it for longer than the user does.
    """

    kind: TransferKind
    source: Device
    target: Device
    operation: str
    nbytes: int = 0
    waits: bool = False
    result: Any = field(default=None, compare=False, repr=False)


Record = Callable[[TransferEvent], None]
"""Is told each event, before it happens where that is possible. It may raise, which then stops the transfer."""


class Observers:
    """The current observers of events. It is false without observers, so that simulated devices check it first."""

    def __init__(self) -> None:
        self._records: tuple[Record, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._records)

    def tell(self, event: TransferEvent) -> None:
        """Report an event to all observers."""
        for record in self._records:
            record(event)

    @contextmanager
    def added(self, record: Record) -> Iterator[None]:
        """Report events to `record`, too, inside this context."""
        self._records = (*self._records, record)
        try:
            yield
        finally:
            self._records = tuple(other for other in self._records if other is not record)


class ObservesTransfers(Capability):
    """Capability: report transfers to a ledger and `no_transfers`. Other backends are listed as not covered."""

    @abstractmethod
    def observe_transfers(self, record: Record) -> AbstractContextManager[None]:
        """Return a context that reports every transfer and wait of this framework on the backend's devices to `record`.

        This includes every thread and every caller. Outside it, nothing may be left, and nothing may cost time. It is
        entered once at a time. The framework is imported already.
        """

    def can_observe_transfers(self) -> bool:
        """Return whether this version of the framework supports `observe_transfers`, which is otherwise not entered.

        It is called when the framework is imported.
        """
        return True

    def unobserved_transfers(self) -> Sequence[str]:
        """Return the transfers or waits that `observe_transfers` cannot see with this framework and these devices.

        One sentence each; nothing, the default, if it sees all. It is called when the framework is imported.
        """
        return ()
