"""Plans in which weights rest outside their device, beside every assignment and every set of offloaded blocks."""

from __future__ import annotations

import itertools
import random

import pytest

from anyaccel.errors import OutOfMemoryError
from anyaccel_offload.planner import Block, DeviceSpec, plan_blocks


def can_stream(blocks: list[Block], device: DeviceSpec) -> bool:
    """Whether a device can compute these blocks with one staging slot, by trying every set of offloaded ones."""
    activations = max((block.activation_bytes for block in blocks), default=0)
    for count in range(len(blocks) + 1):
        for away in itertools.combinations(blocks, count):
            kept = sum(block.parameter_bytes for block in blocks if block not in away)
            staged = max((block.parameter_bytes for block in away), default=0)
            if kept + staged + activations <= device.usable:
                return True
    return False


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(0, 100, 5))
def test_with_offloading_a_model_is_refused_only_where_no_assignment_can_stream(seed: int) -> None:
    for draw in (random.Random(each) for each in range(seed, seed + 5)):
        blocks = [
            Block(name=f"b{i}", parameter_bytes=draw.randrange(1, 50), activation_bytes=draw.randrange(10), seconds=1.0)
            for i in range(draw.randrange(1, 6))
        ]
        devices = [
            DeviceSpec(name=f"gpu:{i}", memory=draw.randrange(30, 100), rounding=1) for i in range(draw.randrange(1, 3))
        ]
        possible = any(
            all(can_stream([b for b, x in zip(blocks, to, strict=True) if x == d.name], d) for d in devices)
            for to in itertools.product([device.name for device in devices], repeat=len(blocks))
        )
        if not possible:
            with pytest.raises(OutOfMemoryError):
                plan_blocks(blocks, devices, offload="cpu")
            continue
        made = plan_blocks(blocks, devices, offload="cpu")
        for share in made.devices:
            here = [block for block in blocks if block.name in share.blocks]
            kept = sum(block.parameter_bytes for block in here if block.name not in share.offloaded)
            staged = max((block.parameter_bytes for block in here if block.name in share.offloaded), default=0)
            activations = max((block.activation_bytes for block in here), default=0)
            assert share.total_bytes == kept + staged * share.staging_slots + activations <= (share.usable or 0)


def test_blocks_that_only_a_small_device_computes_are_streamed_there_beside_one_without_limit() -> None:
    blocks = [Block(name=f"b{i}", parameter_bytes=40, seconds={"gpu": 1.0}) for i in range(5)]
    devices = [DeviceSpec(name="cpu:0", kind="cpu"), DeviceSpec(name="gpu:0", memory=130, rounding=1)]
    made = plan_blocks(blocks, devices, offload="cpu")
    assert set(made.device_map.values()) == {"gpu:0"} and len(made.offloaded) == 4


def test_training_offloads_gradients_and_optimizer_state_and_copies_three_times() -> None:
    blocks = [Block(name=f"b{i}", parameter_bytes=100, seconds=0.1, activation_bytes=10) for i in range(6)]
    device = DeviceSpec(name="gpu:0", memory=1500, rounding=1, offload_link=1000.0)
    made = plan_blocks(blocks, [device], offload="cpu", training=True)
    share, away = made.devices[0], len(made.offloaded)
    assert share.total_bytes == 400 * (6 - away) + 60 + 2 * (100 + 100) <= 1500  # two slots of weights and gradients
    assert share.copy_seconds == pytest.approx(0.3 * away)
    assert made.seconds == pytest.approx(max(0.6, 0.3 * away))
