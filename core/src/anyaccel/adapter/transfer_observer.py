"""Capability `observe_transfers`: a backend reports each transfer and each wait of the host while an observer is
active.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

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


# -- Observation by functions around those of a framework --------------------------------------------------------------


class ObservesByReplacing(ObservesTransfers):
    """Transfers that a plugin observes by replacing functions of its framework, which other versions may lack.

    Attributes:
        framework_name: Name of the framework in sentences.
    """

    framework_name: ClassVar[str]

    @abstractmethod
    def replaced_names(self) -> Sequence[tuple[Any, str]]:
        """Return the owner and the name of each function without which not all transfers would be seen."""

    def can_observe_transfers(self) -> bool:
        return not self._missing_names()

    def unobserved_transfers(self) -> Sequence[str]:
        missing = ", ".join(self._missing_names())
        if not missing:
            return ()
        return [f"this version of {self.framework_name} has no {missing}, which is needed to observe transfers"]

    def _missing_names(self) -> list[str]:
        names = self.replaced_names()
        return [f"{getattr(owner, '__name__', owner)}.{name}" for owner, name in names if not hasattr(owner, name)]


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of a module or class inside this context."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def numpy_reads(is_read: Callable[[Any], bool], tell: Callable[[Any, str], object]) -> Iterator[Callable[[], bool]]:
    """Observe the functions of NumPy that make an array of a framework's tensor, whose memory they can read directly.

    Args:
        is_read: Function that returns whether the read of a value is to be told.
        tell: Function that is told each value and the name of the function, before it is read.

    Returns:
        In the context: a function that returns whether this thread is in such a read, which is not told twice.
    """
    state = threading.local()

    def is_reading() -> bool:
        return getattr(state, "reading", False)

    def observed(name: str) -> Callable[..., Any]:
        function = getattr(np, name)

        def read(*args: Any, **kwargs: Any) -> Any:
            if not args or is_reading() or not is_read(args[0]):
                return function(*args, **kwargs)
            tell(args[0], name)
            state.reading = True
            try:
                return function(*args, **kwargs)
            finally:
                state.reading = False

        return read

    with ExitStack() as stack:
        for name in ("asarray", "array", "asanyarray", "ascontiguousarray"):
            stack.enter_context(replaced(np, name, observed(name)))
        yield is_reading
