"""Step profile: `tf.profiler` with the names of nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from anyaccel.adapter.step_profiler import Mark, ProfilesSteps, trace_label, trace_span, write_trace
from anyaccel.adapter.xla_scopes import with_nodes, xla_programs
from anyaccel.device import Device


def scope_name(name: str) -> str:
    """A name as TensorFlow allows it in a scope, and in the nodes of a function that XLA compiles."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name).lstrip("_") or "node"


class TensorFlowProfiler(ProfilesSteps):
    """`tf.profiler`, with the names of nodes."""

    @contextmanager
    def profile_steps(self, path: Path, nodes: Mapping[str, Any], devices: Sequence[Device]) -> Iterator[Mark]:
        """With the scopes of compiled code."""
        with TemporaryDirectory() as folder:
            tf.profiler.experimental.start(folder)
            try:
                yield tf.profiler.experimental.Trace
            finally:
                tf.profiler.experimental.stop()
                _write(Path(folder), path, nodes)


def _write(folder: Path, path: Path, nodes: Mapping[str, Any]) -> None:
    content = next(folder.rglob("*.xplane.pb")).read_bytes()
    space = xplane_pb2.XSpace()
    space.ParseFromString(content)
    labels = {scope_name(name): name for name in nodes}
    events = [event for number, plane in enumerate(space.planes, start=1) for event in _events(plane, number)]
    with_nodes(events, xla_programs(content), labels)
    write_trace(path, events)


def _events(plane: Any, process: int) -> Iterator[dict[str, Any]]:
    """The events of a plane, a process in the trace whose lines are threads."""
    if not plane.lines:
        return
    yield trace_label("process_name", plane.name, process)
    statistics = {key: metadata.name for key, metadata in plane.stat_metadata.items()}
    for thread, line in enumerate(plane.lines, start=1):
        yield trace_label("thread_name", line.display_name or line.name, process, thread)
        for event in line.events:
            metadata = plane.event_metadata[event.metadata_id]
            args = {"scope": metadata.name.rpartition(":")[0]} if "/" in metadata.name else {}
            args |= {statistics.get(each.metadata_id, ""): _value(each, statistics) for each in event.stats}
            start, lasted = line.timestamp_ns + event.offset_ps / 1e3, event.duration_ps / 1e3
            yield trace_span(metadata.display_name or metadata.name, start, lasted, (process, thread), args)


def _value(statistic: Any, names: Mapping[int, str]) -> Any:
    kind = statistic.WhichOneof("value")
    if kind == "ref_value":
        return names.get(statistic.ref_value, "")
    value = getattr(statistic, kind) if kind else ""
    return "" if isinstance(value, bytes) else value
