"""Estimates of what compiling costs and gains, from measured uncompiled steps and from earlier compilations."""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import os
import re
import tempfile
import time
from functools import cache
from pathlib import Path

import torch

from anyaccel.backend import CompileEstimate
from anyaccel.errors import CompileError
from anyaccel_torch import keras
from anyaccel_torch.compiling import toolchain_check
from anyaccel_torch.compiling.spec import CompileRequest
from anyaccel_torch.compiling.steps import check_optimizers

# Measured seconds: a first compilation on a machine, one whose C++ is on disk already, what a layer adds, and one that
# this process has made before.
FIRST_COMPILE, CACHED_COMPILE, PER_LAYER_COMPILE, REPEATED_COMPILE = 14.0, 4.0, 0.6, 0.3
# Overhead of Python and the dispatcher per layer (forward, backward, update) and per step, in times of one small
# operation, and the part of it that remains when compiled.
LAYER_OVERHEAD, STEP_OVERHEAD, REMAINING_OVERHEAD = 22, 40, 0.12
MAX_RATIO = 0.85
"""Compiled steps that take more than this part of an uncompiled step's time do not pay."""

CUDA_GRAPH_ESTIMATE = 1.0, 0.3
"""A guess, as no CUDA graph was measured yet."""

_compile_seconds: dict[str, float] = {}


def estimate_compile(request: CompileRequest, batch: int) -> CompileEstimate | None:
    """Return the cost and gain of compiling steps of a program; None if it cannot be done or would not pay.

    Compiled steps lose the overhead between operations, and keep the operations.

    Args:
        request: The program, with the time of an uncompiled step.
        batch: Rows of that step.
    """
    try:
        check_optimizers(request)
    except CompileError:
        return None
    if keras.outermost(request.module):
        return None
    if request.device.type == "cuda":
        return CompileEstimate(*CUDA_GRAPH_ESTIMATE)
    n_layers, eager = sum(not list(part.children()) for part in request.module.models.modules()), request.eager_seconds
    overhead = min((STEP_OVERHEAD + LAYER_OVERHEAD * n_layers) * _operation_seconds(), eager)
    ratio = (REMAINING_OVERHEAD * overhead + (eager - overhead)) / eager
    if ratio > MAX_RATIO or not toolchain_check.compiler():
        return None
    key = request_key(request, batch)
    if key in _compile_seconds:
        return CompileEstimate(REPEATED_COMPILE, ratio)
    on_disk = (_folder() / f"{key}.json").exists()
    return CompileEstimate((CACHED_COMPILE if on_disk else FIRST_COMPILE) + PER_LAYER_COMPILE * n_layers, ratio)


@cache
def _operation_seconds() -> float:
    """Return the seconds of a small operation on this machine: the best of several."""
    tensor, best = torch.zeros(4, requires_grad=True), math.inf
    for _ in range(20):
        started = time.perf_counter()
        for _ in range(5):
            tensor.add(1.0)
        best = min(best, (time.perf_counter() - started) / 5)
    return best


def request_key(request: CompileRequest, batch: int) -> str:
    """Return a hash of what steps that compile alike have in common: modules, optimizer specs, shapes and torch's
    version.
    """
    specs = [group.spec for group in request.groups]
    parts = [
        torch.__version__,
        repr(request.module.models),
        repr([(loss.label, loss.weight, loss.slots) for loss in request.losses]),
        repr([(t.loss.name, t.loss.own) for t in request.segment.losses if isinstance(t.loss.own, type)]),
        repr(
            [(spec.name, sorted(spec.settings.items()), spec.clip_norm, spec.clip_value, spec.groups) for spec in specs]
        ),
        repr([(name, str(spec)) for name, (spec, _) in request.segment.inputs.items()]),
        str(batch),
        repr(request.segment.precision),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def remember(key: str, seconds: float) -> None:
    """Record a compilation in this process, and next to torch's own cache on disk if that is writable."""
    _compile_seconds[key] = seconds
    try:
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{key}.json").write_text(json.dumps({"seconds": round(seconds, 3)}), encoding="utf-8")
    except OSError:
        pass


def _folder() -> Path:
    """Return a folder in torch's compile cache: `TORCHINDUCTOR_CACHE_DIR`, or the user's folder of temporary files."""
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):
        user = str(getattr(os, "getuid", lambda: "user")())
    configured = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return Path(configured or Path(tempfile.gettempdir()) / f"torchinductor_{user}") / "anyaccel"
