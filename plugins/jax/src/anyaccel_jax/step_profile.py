"""Step profile: `jax.profiler` with the names of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax

from anyaccel.adapter.step_profiler import Mark, ProfilesSteps, trace_label, trace_span, write_trace
from anyaccel.adapter.xla_scopes import with_nodes, xla_programs
from anyaccel.device import Device


class JaxProfiler(ProfilesSteps):
    """`jax.profiler`, with the names of nodes."""

    @contextmanager
    def profile_steps(self, path: Path, nodes: Mapping[str, Any], devices: Sequence[Device]) -> Iterator[Mark]:
        """Profile steps with the scopes of compiled code."""
        with TemporaryDirectory() as folder:
            _start(folder)
            try:
                yield jax.profiler.TraceAnnotation
            finally:
                jax.profiler.stop_trace()  # type: ignore[no-untyped-call]
                # the trace beside it does not say which program ran
                content = next(Path(folder).rglob("*.xplane.pb")).read_bytes()
                planes = jax.profiler.ProfileData.from_serialized_xspace(content).planes
                events = [event for number, plane in enumerate(planes, start=1) for event in _events(plane, number)]
                is_cached = bool(jax.config.jax_compilation_cache_dir)  # type: ignore[attr-defined]
                with_nodes(events, xla_programs(content), {name: name for name in nodes}, numbers_hold=not is_cached)
                write_trace(path, events)


def _start(folder: str) -> None:
    if not hasattr(jax.profiler, "ProfileOptions"):  # older versions record every call of Python, too
        jax.profiler.start_trace(folder)
        return
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(folder, profiler_options=options)


def _events(plane: Any, process: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a plane, a process in the trace whose lines are threads."""
    for thread, line in enumerate(plane.lines, start=1):
        if thread == 1:
            yield trace_label("process_name", plane.name, process)
        yield trace_label("thread_name", line.name, process, thread)
        for event in line.events:
            if event.name.startswith("end: "):
                continue  # of a span that has its duration
            args = {name: value for name, value in event.stats if not isinstance(value, bytes)}
            yield trace_span(event.name, event.start_ns, event.duration_ns, (process, thread), args)
