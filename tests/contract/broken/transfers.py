"""Wrong backends that tell a ledger too little, too much, or for too long."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import ClassVar

from anyaccel.numpy_backend.capabilities import NumpyTransfers

from .faults import fault, having


class _Telling(NumpyTransfers):
    def told(self, event):
        return [event]

    @contextlib.contextmanager
    def observe_transfers(self, record):
        with super().observe_transfers(lambda event: [record(each) for each in self.told(event)] and None):
            yield


@fault("exchange", "test_a_copy_to_a_device_is_told_once")
class UploadsToldTwice(_Telling):
    def told(self, event):
        return [event, event] if event.kind == "host to device" else [event]


@fault("exchange", "test_a_copy_to_the_host_is_told_once")
class DownloadsThatAreNotWaitedFor(_Telling):
    def told(self, event):
        return [replace(event, waits=event.kind != "device to host")]


@fault("exchange", "test_transfers_of_other_threads_are_told")
class OtherThreadsGoUnseen(_Telling):
    def told(self, event):
        import threading

        return [event] if threading.current_thread() is threading.main_thread() else []


@fault("exchange", "test_nothing_is_told_afterwards")
class ObserversThatStay(NumpyTransfers):
    left: ClassVar[list] = []

    @contextlib.contextmanager
    def observe_transfers(self, record):
        stack = contextlib.ExitStack()
        stack.enter_context(super().observe_transfers(record))
        try:
            yield
        except ZeroDivisionError:
            self.left.append(stack)  # an error that its author did not think of
            raise
        except BaseException:
            stack.close()
            raise
        stack.close()


@fault("exchange", "test_what_is_told_may_stop_the_transfer")
class RefusalsAreSwallowed(NumpyTransfers):
    @contextlib.contextmanager
    def observe_transfers(self, record):
        def told(event):
            with contextlib.suppress(PermissionError):
                record(event)

        with super().observe_transfers(told):
            yield


class TellsTheBackend(NumpyTransfers):
    @contextlib.contextmanager
    def observe_transfers(self, record):
        self.backend.record = record
        with super().observe_transfers(record):
            yield
        self.backend.record = None


@fault("exchange", "test_what_stays_where_it_is_is_not_told")
class ViewsAreTold(having(TellsTheBackend)):
    record = None

    def gather_rows(self, column, start, stop, order=None):
        if self.record is not None:
            column.on.downloaded(0)
        return super().gather_rows(column, start, stop, order)
