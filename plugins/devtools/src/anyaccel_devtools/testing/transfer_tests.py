"""Tests of the contract of `ObservesTransfers`: the reports of a backend's transfers to a ledger."""

from __future__ import annotations

import threading
from typing import Any, cast

import numpy as np
import pytest

from anyaccel.adapter.transfer_observer import ObservesTransfers, TransferEvent
from anyaccel.backend import Exchange
from anyaccel.device import Device
from anyaccel_devtools.testing.harness import Array
from anyaccel_devtools.testing.subject import Subject

ROWS: Array = np.arange(12, dtype="float32").reshape(4, 3)


class TransferTests(Subject):
    """The backend reports its transfers, if it declares that; on the CPU of most frameworks there are none."""

    def test_a_copy_to_a_device_is_told_once(self, exchange: Exchange, device: Device) -> None:
        """The report has the device, and all of its bytes."""
        told = _told(exchange, lambda: exchange.from_host(ROWS, device))
        if device.kind != "cpu":
            assert [(transfer.kind, transfer.target, transfer.nbytes) for transfer in told] == [
                ("host to device", device, ROWS.nbytes)
            ]

    def test_a_copy_to_the_host_is_told_once(self, exchange: Exchange, device: Device) -> None:
        """The report has the device, all of its bytes, and that the host waits."""
        tensor = exchange.from_host(ROWS, device)
        told = _told(exchange, lambda: exchange.to_host(tensor))
        if device.kind != "cpu":
            assert [(transfer.kind, transfer.source, transfer.nbytes, transfer.waits) for transfer in told] == [
                ("device to host", device, ROWS.nbytes, True)
            ]

    def test_what_stays_where_it_is_is_not_told(self, exchange: Exchange, device: Device) -> None:
        """Neither a move to the same device, nor a slice there."""
        tensor = exchange.from_host(ROWS, device)
        assert not _told(exchange, lambda: cast("Any", exchange).move(tensor, device))
        assert not _told(exchange, lambda: exchange.gather_rows(tensor, 1, 3))

    def test_transfers_of_other_threads_are_told(self, exchange: Exchange, device: Device) -> None:
        """Rows are loaded ahead by another thread."""

        def load() -> None:
            thread = threading.Thread(target=lambda: exchange.from_host(ROWS, device))
            thread.start()
            thread.join()

        told = [transfer.nbytes for transfer in _told(exchange, load)]
        assert told == [ROWS.nbytes] or (device.kind == "cpu" and not told)

    def test_nothing_is_told_afterwards(self, exchange: Exchange, device: Device) -> None:
        """Observers are gone when the context ends, and also if an error ended it."""
        observer, told = _observer(exchange), list[TransferEvent]()
        with pytest.raises(ZeroDivisionError), observer.observe_transfers(told.append):
            raise ZeroDivisionError
        exchange.to_host(exchange.from_host(ROWS, device))
        assert not told

    def test_what_is_told_may_stop_the_transfer(self, exchange: Exchange, device: Device) -> None:
        """An exception of the observer reaches the caller."""

        def refuse(event: TransferEvent) -> None:
            raise PermissionError(event.kind)

        observer = _observer(exchange)
        if device.kind != "cpu":
            with pytest.raises(PermissionError, match="host to device"), observer.observe_transfers(refuse):
                exchange.from_host(ROWS, device)


def _observer(exchange: Any) -> ObservesTransfers:
    observes: ObservesTransfers | None = exchange.capability(ObservesTransfers)
    if observes is None:
        pytest.skip("observe_transfers is not declared")
    if not observes.can_observe_transfers() or observes.unobserved_transfers():
        pytest.skip(f"not covered: {'; '.join(observes.unobserved_transfers())}")
    return observes


def _told(exchange: Exchange, function: Any) -> list[TransferEvent]:
    """Return the events while a function runs."""
    told: list[TransferEvent] = []
    with _observer(exchange).observe_transfers(told.append):
        function()
    return told
