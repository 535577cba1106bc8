"""Refuses a segment with operators that the Apple GPU lacks, or warns where torch computes them on the CPU."""

from __future__ import annotations

import inspect
import os
import warnings

import torch

from anyaccel.errors import FallbackWarning, PhaseError
from anyaccel.segment import Segment
from anyaccel_mps.dry_run import operators_of
from anyaccel_mps.operator_support import OperatorSupport, name_of

SWITCH = "PYTORCH_ENABLE_MPS_FALLBACK"
"""Torch's environment variable, which it reads when it is imported."""


def check_operators(segment: Segment, support: OperatorSupport) -> None:
    """Find the operators of a segment by a dry run, and check that MPS has them.

    Warns:
        FallbackWarning: MPS lacks some, and `SWITCH` lets torch compute them on the CPU; issued every time.

    Raises:
        PhaseError: MPS lacks some, and `SWITCH` is not set.
    """
    operators = operators_of(segment)
    missing = {name_of(operator): places for operator, places in operators.items() if support.lacks(operator)}
    if not missing:
        return
    named = ", ".join(f"{name} ({', '.join(places)})" for name, places in missing.items())
    try:  # as torch reads the variable
        is_fallback_on = int(os.environ.get(SWITCH, "0")) != 0
    except ValueError:
        is_fallback_on = False
    if is_fallback_on:
        frame = inspect.currentframe()
        while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("anyaccel"):
            frame = frame.f_back
        file, line = ("anyaccel", 1) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
        message = (
            f"segment {segment.label!r} needs operators missing in MPS; because {SWITCH} is set, torch computes "
            f"them on the CPU in every step: {named}"
        )
        # At the user's own line; without a registry, Python's default filters show it each time.
        warnings.warn_explicit(message, FallbackWarning, file, line, registry=None)
        return
    n_supported = len(operators) - len(missing)
    raise PhaseError(
        f"segment {segment.label!r} cannot run on mps:0 because of missing operators: {named}",
        cause=f"{n_supported} of its {len(operators)} operators in torch {torch.__version__}",
        hint="set accelerator='cpu' on the node, use other layers, or start Python with "
        f"{SWITCH}=1 to compute these operators on the CPU, slowly and with a warning",
    )
