"""Plans of many blocks on devices that all differ: what bounds the search leaves nothing out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anyaccel.errors import OutOfMemoryError
from anyaccel_offload.planner import Block, DeviceSpec, plan_blocks
from anyaccel_offload.planner.assignment import OrderedUnits, Table, Transition, prefix_bounds
from anyaccel_offload.planner.problem import Problem, Settings


@pytest.mark.parametrize("room", [2.0, 0.9, *(pytest.param(room, marks=pytest.mark.whole) for room in (1.03, 0.5))])
def test_five_thousand_blocks_are_planned_on_eight_unlike_devices(room: float) -> None:
    """It took up to 14 s; `tests/benchmarks/placement.py` measures it. Here what is counted is what makes it long."""
    blocks = [
        Block(
            name=f"b{i}",
            parameter_bytes=1000 + i * 7919 % 1000,
            seconds=(1 + i * 31 % 97) / 1000,
            output_bytes=i % 50,
        )
        for i in range(5000)
    ]
    total = sum(block.parameter_bytes for block in blocks)
    devices = [
        DeviceSpec(name=f"gpu:{i}", memory=int(total * room * (i + 1) / 36), rate=1 + 0.3 * i, link=1e6, rounding=1)
        for i in range(8)
    ]
    if room == 0.9:
        with pytest.raises(OutOfMemoryError, match="its 5,000 blocks need"):
            plan_blocks(blocks, devices)
        return
    made = plan_blocks(blocks, devices, offload="cpu")
    assert bool(made.offloaded) == (room < 1)
    assert made.exact == (room > 1)  # all 40,320 orders of the devices were considered
    assert all(share.total_bytes <= (share.usable or 0) for share in made.devices)
    if room == 2.0:
        assert made.seconds < 1.02 * made.lower_bound


def test_no_split_outside_of_the_bounds_of_prefixes_is_possible() -> None:
    """Against all splits of a short chain, for each window."""
    blocks = [Block(name=f"b{i}", parameter_bytes=1 + i * 7 % 5, seconds=1.0 + i * 3 % 4) for i in range(7)]
    devices = [
        DeviceSpec(name="a", memory=9, rate=1.0, rounding=1),
        DeviceSpec(name="b", memory=14, rate=2.0, rounding=1),
    ]
    asked = Settings(training=False, optimizer_ratio=2.0, tokens=0)
    problem = Problem(blocks, [], devices, asked)
    units = OrderedUnits(problem, np.arange(7))
    table = Table(3, [Transition(0, 1, 0), Transition(1, 2, 1)], in_order=True)
    for window in (4.0, 6.0, 8.0, 12.0, math.inf):
        cuts = [
            cut
            for cut in range(8)
            if sum(b.parameter_bytes for b in blocks[:cut]) <= 9
            and sum(b.parameter_bytes for b in blocks[cut:]) <= 14
            and sum(b.seconds or 0.0 for b in blocks[:cut]) <= window  # type: ignore[misc]
            and sum(b.seconds or 0.0 for b in blocks[cut:]) / 2 <= window  # type: ignore[misc]
        ]
        bounds = prefix_bounds(units, table, window)
        assert (bounds is None) == (not cuts)
        assert bounds is None or (bounds[0][1], bounds[1][1]) == (min(cuts), max(cuts))
