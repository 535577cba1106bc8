"""anyaccel on a simulated device of torch, of which a process has one kind, with one capacity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyaccel_torch.simulated import start
from loops import ours


def standing_phase(
    name: str, *, frameworks: Sequence[str], capacity: int | None = None, **settings: Any
) -> ours.Standing:
    """As `loops.ours.standing_phase`, on `sim:0` with a capacity in bytes; None is no limit."""
    start(1, capacity=capacity)
    return ours.standing_phase(name, frameworks=frameworks, accelerator="sim:0", **settings)
