"""The planner beside brute force, an evaluator of its own, and what is known to go wrong in planners of this kind."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from anyaccel.errors import ConfigError, OutOfMemoryError
from anyaccel_offload.planner import Block, BlockPlan, DeviceSpec, Edge, OffloadTier, plan_blocks

GIB = 2**30
LINK = 1000.0


def loads(blocks: list[Block], edges: list[Edge], devices: list[DeviceSpec], where: dict[str, str]) -> list[float]:
    """Seconds of each device, from the definition of the objective."""
    made = []
    for device in devices:
        here = {block.name for block in blocks if where[block.name] == device.name}
        total = sum(block.seconds_on(device.kind) / device.rate for block in blocks if block.name in here)
        for source in {edge.source for edge in edges}:
            reads = {edge.target: edge.nbytes for edge in edges if edge.source == source}
            inside = here & set(reads)
            crosses = bool(set(reads) - here) if source in here else bool(inside)
            if crosses and device.link:
                total += max(reads.values()) / device.link
        made.append(total)
    return made


def fits(blocks: list[Block], devices: list[DeviceSpec], where: dict[str, str]) -> bool:
    """Whether memory is enough, in inference; devices round to single bytes."""
    for device in devices:
        here = [block for block in blocks if where[block.name] == device.name]
        tied = {name: size for block in here for name, size in block.tied.items()}
        held = sum(block.parameter_bytes for block in here) + sum(tied.values())
        if held + max((block.activation_bytes for block in here), default=0) > device.usable:
            return False
    groups = {(block.group, where[block.name]) for block in blocks if block.group}
    return len(groups) == len({group for group, _ in groups})


def everything(blocks: list[Block], devices: list[DeviceSpec], *, contiguous: bool) -> Iterator[dict[str, str]]:
    """Every assignment that fits."""
    for chosen in itertools.product([device.name for device in devices], repeat=len(blocks)):
        runs = [name for name, _ in itertools.groupby(chosen)]
        if contiguous and len(runs) > len(set(runs)):
            continue
        where = {block.name: name for block, name in zip(blocks, chosen, strict=True)}
        if fits(blocks, devices, where):
            yield where


def chain(blocks: list[Block]) -> list[Edge]:
    return [Edge(a.name, b.name, a.output_bytes) for a, b in itertools.pairwise(blocks)]


@st.composite
def problems(draw: Any, *, grouped: bool = False) -> tuple[list[Block], list[DeviceSpec]]:
    """Few blocks, and few devices that may differ."""
    small = st.integers(0, 9)
    blocks = [
        Block(
            name=f"b{i}",
            parameter_bytes=draw(small),
            activation_bytes=draw(small),
            seconds=draw(small) / 8,
            output_bytes=draw(small) * 100,
            tied={"t": 3} if draw(st.integers(0, 3)) == 0 else {},
            group=draw(st.sampled_from(["", "", "g"])) if grouped else "",
        )
        for i in range(draw(st.integers(1, 6)))
    ]
    alike = draw(st.booleans())
    memory, rate = draw(st.integers(8, 40)), draw(st.sampled_from([0.5, 1.0, 2.0]))
    devices = [
        DeviceSpec(
            name=f"gpu:{i}",
            memory=memory if alike else draw(st.integers(4, 40)),
            rate=rate if alike else draw(st.sampled_from([0.5, 1.0, 2.0])),
            link=LINK,
            rounding=1,
        )
        for i in range(draw(st.integers(1, 3)))
    ]
    return blocks, devices


@settings(max_examples=examples(80), deadline=None)
@given(problems(), st.sampled_from(["throughput", "latency"]))
def test_a_chain_is_placed_at_least_as_well_as_any_contiguous_split(
    problem: tuple[list[Block], list[DeviceSpec]], objective: str
) -> None:
    blocks, devices = problem
    edges = chain(blocks)
    value = sum if objective == "latency" else max
    best = min(
        (value(loads(blocks, edges, devices, where)) for where in everything(blocks, devices, contiguous=True)),
        default=None,
    )
    try:
        made = plan_blocks(blocks, devices, objective=objective)
    except OutOfMemoryError:
        assert next(everything(blocks, devices, contiguous=False), None) is None
        return
    assert fits(blocks, devices, made.device_map)
    assert made.seconds == pytest.approx(value(loads(blocks, edges, devices, made.device_map)))
    assert made.lower_bound <= made.seconds * (1 + 1e-9)
    if best is None:
        assert made.method == "packing"
    else:
        assert made.exact
        assert made.seconds <= best * (1 + 1e-9)  # better where blocks that follow each other are apart


@settings(max_examples=examples(60), deadline=None)
@given(problems(grouped=True), st.randoms(use_true_random=False))
def test_a_graph_is_placed_within_its_bounds_and_never_spills_where_it_fits(
    problem: tuple[list[Block], list[DeviceSpec]], generator: Any
) -> None:
    blocks, devices = problem
    edges = [
        Edge(blocks[i].name, blocks[j].name, blocks[i].output_bytes)
        for i, j in itertools.combinations(range(len(blocks)), 2)
        if generator.random() < 0.4
    ]
    all_fitting = [max(loads(blocks, edges, devices, w)) for w in everything(blocks, devices, contiguous=False)]
    in_order = [max(loads(blocks, edges, devices, w)) for w in everything(blocks, devices, contiguous=True)]
    if not all_fitting:
        with pytest.raises(OutOfMemoryError, match=r"the model does not fit: its \d+ blocks need .* Available: gpu:0"):
            plan_blocks(blocks, devices, edges=edges)
        return
    made = plan_blocks(blocks, devices, edges=edges, offload="cpu")
    assert not made.offloaded
    assert fits(blocks, devices, made.device_map)
    assert made.seconds == pytest.approx(max(loads(blocks, edges, devices, made.device_map)))
    assert min(all_fitting) * (1 - 1e-9) <= made.seconds
    assert made.lower_bound <= min(all_fitting) * (1 + 1e-9)
    if in_order and not any(block.group for block in blocks):
        assert made.seconds <= min(in_order) * (1 + 1e-9)


# -- a model of the shape of Llama 70B ---------------------------------------------------------------------------------


def llama() -> list[Block]:
    """80 layers and two matrices for 128,256 tokens, in bfloat16."""
    layer = 2 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192)
    ends = 2 * 128256 * 8192
    layers = [Block(name=f"layers.{i}", parameter_bytes=layer, output_bytes=16384) for i in range(80)]
    first = Block(name="embed", parameter_bytes=ends, output_bytes=16384)
    return [first, *layers, Block(name="head", parameter_bytes=ends)]


def gpus(*gibibytes: float) -> list[DeviceSpec]:
    return [DeviceSpec(name=f"gpu:{i}", memory=int(m * GIB), link=2.5e10) for i, m in enumerate(gibibytes)]


@pytest.mark.parametrize(
    "memories",
    [(80,) * 4, (40,) * 4, (34,) * 4, (33.5,) * 4, (80, 24, 24, 24), (24, 24, 24, 80), (20,) * 8],
    ids=str,
)
def test_nothing_is_spilled_and_no_device_idle_where_the_model_fits(memories: tuple[float, ...]) -> None:
    made = plan_blocks(llama(), gpus(*memories), offload="cpu")
    assert not made.offloaded
    assert made.exact
    assert all(share.blocks and share.total_bytes <= (share.usable or 0) for share in made.devices)
    if len(set(memories)) == 1:
        assert made.seconds <= 1.07 * made.lower_bound


def test_a_device_that_holds_few_layers_is_used() -> None:
    made = plan_blocks(llama(), gpus(3.6), offload="cpu")
    assert len(made.device_map) == 82 and set(made.device_map.values()) == {"gpu:0"}
    assert 0 < len(made.offloaded) < 82
    assert made.devices[0].total_bytes <= 3.6 * GIB
    assert "memory has room for only one staging slot, so copies are not hidden" in made.notes


@pytest.mark.parametrize("memories", [(24,) * 4, (17,) * 8, (24,)], ids=str)
def test_offloaded_layers_are_spread_over_depth_and_memory_is_kept(memories: tuple[float, ...]) -> None:
    made = plan_blocks(llama(), gpus(*memories), offload="cpu")
    names = [block.name for block in llama()]
    assert made.offloaded and set(made.offloaded.values()) == {"cpu"}
    for share in made.devices:
        assert share.total_bytes <= (share.usable or 0)
        depth = [names.index(block) for block in share.offloaded]
        apart = [b - a for a, b in itertools.pairwise(depth)]
        even = len(share.blocks) / max(1, len(depth))
        assert all(math.floor(even) - 1 <= step <= math.ceil(even) + 1 for step in apart)


def test_a_model_that_does_not_fit_is_an_error_with_figures() -> None:
    with pytest.raises(OutOfMemoryError) as raised:
        plan_blocks(llama(), gpus(*(17,) * 8))
    message = str(raised.value)
    assert "its 82 blocks need 131.4 GiB" in message and "'embed', needs 2.0 GiB" in message
    assert "gpu:7 17.0 GiB" in message and "offload='cpu'" in message
    with pytest.raises(OutOfMemoryError, match=r"tier cpu 10\.0 GiB.*larger tiers"):
        plan_blocks(llama(), gpus(24), offload="cpu", tiers=[OffloadTier(name="cpu", memory=10 * GIB)])


def test_what_host_memory_does_not_hold_goes_to_disk() -> None:
    tiers = [OffloadTier(name="disk", bandwidth=3e9), OffloadTier(name="cpu", memory=64 * GIB)]
    made = plan_blocks(llama(), gpus(24), offload="disk", tiers=tiers)
    sizes = {block.name: block.parameter_bytes for block in llama()}
    by_tier = {tier: sum(sizes[b] for b, t in made.offloaded.items() if t == tier) for tier in ("cpu", "disk")}
    assert 60 * GIB < by_tier["cpu"] <= 64 * GIB and by_tier["disk"] > 0
    assert made.devices[0].copy_seconds == pytest.approx(by_tier["cpu"] / 2.5e10 + by_tier["disk"] / 3e9, rel=1e-6)


# -- known faults ------------------------------------------------------------------------------------------------------


def test_a_large_later_layer_leaves_no_device_idle() -> None:
    sizes = [40, 360, 40, 40, 40, 40]
    blocks = [Block(name=f"b{i}", parameter_bytes=size * 1000, seconds=1.0) for i, size in enumerate(sizes)]
    devices = [DeviceSpec(name=f"gpu:{i}", memory=m, rounding=1) for i, m in enumerate((200_000, 400_000))]
    made = plan_blocks(blocks, devices, offload="cpu")
    assert not made.offloaded and all(share.blocks for share in made.devices)


def test_nothing_is_reserved_for_a_layer_that_is_not_offloaded() -> None:
    blocks = [Block(name=f"b{i}", parameter_bytes=40_000) for i in range(4)]
    devices = [DeviceSpec(name=f"gpu:{i}", memory=85_000) for i in range(2)]
    made = plan_blocks(blocks, devices, offload="cpu")
    assert [len(share.blocks) for share in made.devices] == [2, 2] and not made.offloaded


def test_tied_parameters_count_once_on_each_device_that_holds_them() -> None:
    blocks = [Block(name=f"b{i}", parameter_bytes=100, tied={"embedding": 5000}) for i in range(10)]
    one = plan_blocks(blocks, [DeviceSpec(name="gpu:0", memory=6000, rounding=1)])
    assert one.devices[0].nbytes["tied"] == 5000 and one.devices[0].total_bytes == 6000
    two = plan_blocks(blocks, [DeviceSpec(name=f"gpu:{i}", memory=5500, rounding=1) for i in range(2)])
    assert [share.total_bytes for share in two.devices] == [5500, 5500]


def test_training_keeps_tied_parameters_together_and_counts_gradients_optimizer_and_activations() -> None:
    blocks = [
        Block(name=f"b{i}", parameter_bytes=100, activation_bytes=10, tied={"t": 8} if i in (0, 3) else {})
        for i in range(4)
    ]
    devices = [DeviceSpec(name=f"gpu:{i}", memory=2000, rounding=1) for i in range(2)]
    made = plan_blocks(blocks, devices, training=True, optimizer_ratio=4)
    assert made.device_map["b0"] == made.device_map["b3"]
    figures = {share.device: share.nbytes for share in made.devices if "b0" in share.blocks}
    count = sum(device == made.device_map["b0"] for device in made.device_map.values())
    found = figures[made.device_map["b0"]]
    assert {name: value for name, value in found.items() if value} == {
        "parameters": 100 * count,
        "tied": 8 * 6,
        "gradients": 100 * count,
        "optimizer": 400 * count,
        "activations": 10 * count,
    }


def test_caches_headroom_and_rounding_count() -> None:
    block = Block(name="b", parameter_bytes=1000, cache_bytes_per_token=4, activation_bytes=100)
    device = DeviceSpec(name="gpu:0", memory=10_000, headroom=0.1)
    made = plan_blocks([block], [device], tokens=1000)
    share = made.devices[0]
    assert share.usable == 9000 and share.nbytes["cache"] == 4000
    assert share.total_bytes == 1024 + 4096 + 512 and share.nbytes["rounding"] == 1024 + 4096 + 512 - 5100
    with pytest.raises(OutOfMemoryError):
        plan_blocks([block], [device], tokens=2000)


def test_a_block_is_computed_only_on_kinds_for_which_its_time_is_known() -> None:
    blocks = [Block(name=f"b{i}", seconds={"cpu": 5.0} if i == 1 else {"gpu": 1.0, "cpu": 5.0}) for i in range(3)]
    devices = [DeviceSpec(name="gpu:0"), DeviceSpec(name="gpu:1"), DeviceSpec(name="cpu:0", kind="cpu")]
    assert plan_blocks(blocks, devices).device_map == {"b0": "gpu:0", "b1": "cpu:0", "b2": "gpu:1"}
    with pytest.raises(ConfigError, match=r"block 'b1' has seconds for cpu only. Available: gpu"):
        plan_blocks(blocks, devices[:2])


def test_a_device_stays_idle_only_for_a_reason_that_the_plan_gives() -> None:
    blocks = [Block(name=f"b{i}", parameter_bytes=1000, seconds=0.001, output_bytes=10**6) for i in range(4)]
    made = plan_blocks(blocks, [DeviceSpec(name=f"gpu:{i}", memory=10**5, link=1e6) for i in range(2)])
    assert [len(share.blocks) for share in made.devices] == [4, 0]
    assert "idle: no use of it was found that keeps the time of the slowest device at 0.004 s" in made.explain()
    tiny = [DeviceSpec(name="gpu:0", memory=10**5), DeviceSpec(name="gpu:1", memory=10)]
    assert "gpu:1: nothing. It is idle: it can hold no block." in plan_blocks(blocks, tiny).explain()


def test_five_thousand_blocks_are_planned() -> None:
    blocks = [
        Block(
            name=f"b{i}", parameter_bytes=1000 + i * 7919 % 1000, seconds=(1 + i * 31 % 97) / 1000, output_bytes=i % 50
        )
        for i in range(5000)
    ]
    made = plan_blocks(blocks, [DeviceSpec(name=f"gpu:{i}", memory=2 * 10**6, link=1e6) for i in range(8)])
    assert made.exact and made.seconds < 1.001 * made.lower_bound


# -- the plan as a value -----------------------------------------------------------------------------------------------

SEEDED = """
import json
from anyaccel_offload.planner import *
blocks = [
    Block(name=f"b{i}", parameter_bytes=i * 37 % 11 * 100, seconds=1 + i * 7 % 5, group=f"g{i}" if i % 6 else "all",
          tied={f"t{i % 3}": 64})
    for i in range(40)
]
edges = [Edge(f"b{i}", f"b{j}", 10 * i) for i in range(40) for j in (i + 1, i + 5) if j < 40]
devices = [DeviceSpec(name=f"gpu:{i}", memory=9000, link=100.0, rate=1 + i % 2) for i in range(4)]
print(json.dumps(plan_blocks(blocks, devices, edges=edges).to_dict()))
"""


def test_no_plan_depends_on_a_hash_seed() -> None:
    plans = {
        subprocess.run(
            [sys.executable, "-c", SEEDED],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(plans) == 1


def test_a_plan_survives_json_and_is_printed() -> None:
    made = plan_blocks(llama(), gpus(24, 24), offload="cpu")
    assert BlockPlan.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    text = str(made)
    assert "gpu:1" in text and "offloaded" in text and "slowest device" in text
    assert "staging 3.2 GiB" in made.explain()
    with pytest.raises(AttributeError):
        made.seconds = 0.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b, d: plan_blocks([b, b], [d]), r"blocks has 'b' several times"),
        (lambda b, d: plan_blocks([b], [d], edges=[Edge("b", "c")]), r"an edge names 'c', which is not a block"),
        (
            lambda b, d: plan_blocks([b, Block(name="c")], [d], edges=[Edge("b", "c", 1), Edge("b", "c", 2)]),
            r"tensor '' both 1 and 2 bytes",
        ),
        (
            lambda b, d: plan_blocks([Block(name="a", tied={"t": 1}), Block(name="c", tied={"t": 2})], [d]),
            r"tied parameter 't' different numbers of bytes, 'c' among them",
        ),
        (
            lambda b, d: plan_blocks([b, Block(name="c", seconds=1.0)], [d]),
            r"block 'b' has no seconds, others have. Hint: set seconds for all blocks or for none",
        ),
        (lambda b, d: plan_blocks([], [d]), r"blocks=\[\] is not a list of Block"),
        (lambda b, d: plan_blocks([b], [d], tiers=[OffloadTier(name="cpu")] * 2), r"tiers has a tier several times"),
        (lambda b, d: Block(name="x", seconds=-1), r"block 'x': seconds=-1 is not a number of at least 0"),
        (lambda b, d: DeviceSpec(name="x", headroom=1), r"device 'x': headroom=1 is not a number from 0 to below 1"),
        (lambda b, d: BlockPlan.from_dict({}), r"plan=\{\} is not a dict with devices, objective"),
    ],
)
def test_bad_input_is_named(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call(Block(name="b"), DeviceSpec(name="gpu:0"))
