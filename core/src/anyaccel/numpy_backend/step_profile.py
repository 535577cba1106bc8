"""Step profile: the forward and backward pass of each node, as NumPy has no profiler of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyaccel.adapter import VjpResult
from anyaccel.adapter.step_profiler import Mark, ProfilesSteps, SpanRecorder, write_trace
from anyaccel.device import Device
from anyaccel.numpy_backend.ops import NumpyOps


class NumpyProfiler(ProfilesSteps):
    """Spans of the forward and backward pass of each node, and what core marks."""

    @contextmanager
    def profile_steps(self, path: Path, nodes: Mapping[str, Any], devices: Sequence[Device]) -> Iterator[Mark]:
        """Recorded by a `NumpyOps.vjp` that is there while it lasts."""
        recorder = SpanRecorder()
        names = {id(model): name for name, model in nodes.items() if model is not None}
        plain = NumpyOps.vjp
        _replace_vjp(_recorded(plain, names, recorder))
        try:
            yield recorder.span
        finally:
            _replace_vjp(plain)
            write_trace(path, recorder.events)


def _replace_vjp(function: Callable[..., VjpResult]) -> None:
    """Of all programs, which look for a profile nowhere."""
    NumpyOps.vjp = function  # type: ignore[method-assign]


def _recorded(vjp: Callable[..., VjpResult], names: Mapping[int, str], recorder: SpanRecorder) -> Any:
    """`NumpyOps.vjp` with spans for these models."""

    @functools.wraps(vjp)
    def recorded(ops: NumpyOps, model: Any, *args: Any, **keywords: Any) -> VjpResult:
        name = names.get(id(model))
        if name is None:
            return vjp(ops, model, *args, **keywords)
        with recorder.span(name):
            applied = vjp(ops, model, *args, **keywords)

        def pullback(cotangents: Any) -> Any:
            with recorder.span(f"{name} backward"):
                return applied.pullback(cotangents)

        return applied._replace(pullback=pullback)

    return recorded
