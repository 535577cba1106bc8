"""Capability `profile_steps`: a framework's own profiler for a few steps, and its trace file."""

from __future__ import annotations

import gzip
import json
import re
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from anyaccel.capability import Capability
from anyaccel.device import Device

Mark = Callable[[str], AbstractContextManager[Any]]
"""Gives a context that has a name in the trace."""
_UNSAFE = re.compile(r'["\\#\x00-\x1f]')


class ProfilesSteps(Capability):
    """Capability: record a profile for `Profile`. A phase with a profile needs it."""

    @abstractmethod
    def profile_steps(
        self, path: Path, nodes: Mapping[str, Any], devices: Sequence[Device]
    ) -> AbstractContextManager[Mark]:
        """Return a context that records everything with the framework's profiler.

        At its end, even after an error, a trace in Chrome's format (JSON, compressed by gzip) is written to `path`.
        Outside it, nothing may be left, and nothing may cost time. It is entered once at a time, between steps.

        Args:
            path: Path of the file; its folder exists.
            nodes: Models by their names in the trace; see `trace_name`.
            devices: Devices of the models.

        Raises:
            Exception: when it is entered: the profiler does not start, for example because other code uses it.
        """


def trace_name(text: str) -> str:
    """Return a label as a name in a trace, without the characters that profilers do not escape."""
    return _UNSAFE.sub("_", text)


def trace_span(name: str, start_ns: float, duration_ns: float, place: tuple[int, int], args: Any) -> dict[str, Any]:
    """Return a span of a process and one of its threads, `place`."""
    process, thread = place
    return {
        "name": name,
        "ph": "X",
        "ts": start_ns / 1e3,
        "dur": duration_ns / 1e3,
        "pid": process,
        "tid": thread,
        "args": args,
    }


def trace_label(what: str, name: str, process: int, thread: int = 0) -> dict[str, Any]:
    """Return the name of a process (`what` is `process_name`) or of a thread (`thread_name`)."""
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def write_trace(path: Path, events: Sequence[Mapping[str, Any]]) -> None:
    """Write events in Chrome's format, compressed."""
    text = json.dumps({"displayTimeUnit": "ms", "traceEvents": list(events)})
    path.write_bytes(gzip.compress(text.encode(), compresslevel=1))


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Return the events of a compressed trace.

    Raises:
        OSError, ValueError: the file does not exist, or it is not a trace.
    """
    trace = json.loads(gzip.decompress(path.read_bytes()))
    events: list[dict[str, Any]] = trace["traceEvents"]
    return events


class SpanRecorder:
    """Record spans by name, for a framework without a profiler."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Record a span of this thread."""
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            lasted, thread = time.perf_counter_ns() - began, threading.get_ident()
            span = {"name": name, "ph": "X", "ts": began / 1e3, "dur": lasted / 1e3, "pid": 1, "tid": thread}
            self.events.append(span)
