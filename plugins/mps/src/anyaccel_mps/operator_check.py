"""What is said of a segment whose operators the Apple GPU lacks: refused, or reported where the CPU was asked for."""

from __future__ import annotations

import inspect
import os
import warnings
from types import FrameType

import torch

from anyaccel.errors import FallbackWarning, PhaseError
from anyaccel.segment import Segment
from anyaccel_mps.dry_run import operators_of
from anyaccel_mps.operator_support import Operators, name_of

SWITCH = "PYTORCH_ENABLE_MPS_FALLBACK"
"""The user's own switch, which torch reads once, when it is imported."""


def judge(segment: Segment, operators: Operators) -> None:
    """Rehearse a segment and look its operators up.

    Warns:
        FallbackWarning: MPS lacks some, and the switch asks for the CPU instead; every time.

    Raises:
        PhaseError: MPS lacks some, and nobody asked for the CPU.
    """
    found = operators_of(segment)
    lacking = {name_of(each): places for each, places in found.items() if operators.lacks(each)}
    if not lacking:
        return
    named = ", ".join(f"{name} ({', '.join(places)})" for name, places in lacking.items())
    if _is_asked_for():
        _report(
            f"segment {segment.label!r} needs operators that MPS lacks; torch computes them on the CPU in every step, "
            f"as {SWITCH} asks: {named}"
        )
        return
    raise PhaseError(
        f"segment {segment.label!r} cannot be computed on mps:0: it needs operators that MPS lacks: {named}",
        available=f"torch {torch.__version__} has {len(found) - len(lacking)} of the {len(found)} operators it needs",
        hint="give the node accelerator='cpu', use other layers, or start Python with "
        f"{SWITCH}=1 to compute these operators on the CPU, which is slow and is reported",
    )


def _is_asked_for() -> bool:
    """As torch reads it: a number other than zero."""
    try:
        return int(os.environ.get(SWITCH, "0")) != 0
    except ValueError:
        return False


def _report(message: str) -> None:
    """Warn at the user's own line; Python's filters show it each time unless the user has set them."""
    frame = _users(inspect.currentframe())
    place = ("anyaccel", 1) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
    warnings.warn_explicit(message, FallbackWarning, *place, registry=None)


def _users(frame: FrameType | None) -> FrameType | None:
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("anyaccel"):
        frame = frame.f_back
    return frame
