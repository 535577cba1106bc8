"""Capability `observe_transfers`: a backend tells each transfer and each wait of the host while somebody asks."""

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
        kind: one of `TRANSFER_KINDS`; a `"wait"` moves nothing that the user asked for: the host waits for a device.
        source: where the values are; of a wait, the device that is waited for.
        target: where they go; of a wait, the CPU.
        operation: what did it, in the framework's words, such as `"copy_"` or `"item"`.
        nbytes: how much is moved, 0 for a wait.
        waits: whether the host waits until it is done; always so for a `"wait"`.
        result: the tensor at the target, if it is there already; kept by nobody for longer than the user keeps it.
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
    """Who is told events now; false while nobody is, so that simulated devices ask before they make an event."""

    def __init__(self) -> None:
        self._records: tuple[Record, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._records)

    def tell(self, event: TransferEvent) -> None:
        """Tell all."""
        for record in self._records:
            record(event)

    @contextmanager
    def added(self, record: Record) -> Iterator[None]:
        """Tell `record`, too, inside."""
        self._records = (*self._records, record)
        try:
            yield
        finally:
            self._records = tuple(each for each in self._records if each is not record)


class ObservesTransfers(Capability):
    """Capability: what a ledger and `no_transfers` ask of a backend. Others are listed as not covered."""

    @abstractmethod
    def observe_transfers(self, record: Record) -> AbstractContextManager[None]:
        """A context in which `record` is told every transfer and wait of this framework on the backend's devices.

        In every thread, whoever makes them. Nothing of it may be left, or cost anything, outside. It is entered once at
        a time. The framework is imported already.
        """

    def can_observe_transfers(self) -> bool:
        """Whether this version of the framework has what `observe_transfers` needs, which is not entered otherwise.

        Asked where the framework is imported.
        """
        return True

    def unobserved_transfers(self) -> Sequence[str]:
        """Which transfers or waits `observe_transfers` cannot see with this framework and these devices.

        One sentence each; nothing, the default, if it sees all. Asked where the framework is imported.
        """
        return ()
