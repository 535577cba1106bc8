"""Step profile: `jax.profiler` with the names of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax

from anyaccel.adapter.step_profiler import Mark, read_trace, write_trace
from anyaccel.adapter.xla_scopes import with_nodes, xla_scopes


@contextmanager
def profile_steps(path: Path, nodes: Mapping[str, Any]) -> Iterator[Mark]:
    """As `ProfilesSteps.profile_steps`."""
    with TemporaryDirectory() as folder:
        _start(folder)
        try:
            yield jax.profiler.TraceAnnotation
        finally:
            jax.profiler.stop_trace()  # type: ignore[no-untyped-call]
            _write(Path(folder), path, nodes)


def _start(folder: str) -> None:
    if not hasattr(jax.profiler, "ProfileOptions"):  # older versions record every call of Python, too
        jax.profiler.start_trace(folder)
        return
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(folder, profiler_options=options)


def _write(folder: Path, path: Path, nodes: Mapping[str, Any]) -> None:
    events = read_trace(next(folder.rglob("*.trace.json.gz")))
    scopes: dict[str, str] = {}
    for profile in folder.rglob("*.xplane.pb"):
        scopes |= xla_scopes(profile.read_bytes())
    with_nodes(events, scopes, {name: name for name in nodes})
    write_trace(path, [event for event in events if event])
