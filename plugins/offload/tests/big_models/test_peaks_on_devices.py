"""Peaks on simulated devices with just the memory that a plan asks for: forward and backward, ties, buffers, Adam.

Run by test_offload_simulated.py in a process of its own, as torch cannot be rid of the devices again.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

if not os.environ.get("ANYACCEL_TORCH_SIMULATE"):
    pytest.skip("run by test_offload_simulated.py, in a process of its own", allow_module_level=True)

import torch
from torch import Tensor, nn

from anyaccel.errors import ConfigError, OutOfMemoryError
from anyaccel_offload.planner import Block, DeviceSpec, plan_blocks
from anyaccel_offload.torch import DeviceMap, cpu_offload, dispatch_model, infer_auto_device_map, offload_of
from anyaccel_torch import simulated

DEVICES = simulated.start(2)
ONE, TWO = "sim:0", "sim:1"
WIDTH = 128
BLOCK = 4 * (WIDTH * WIDTH + WIDTH)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    gc.collect()
    for device in DEVICES:
        device.capacity = device.timing = None
        device.clear()
    torch.manual_seed(0)
    yield


def chain(depth: int = 12) -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(depth)])


class Tied(nn.Module):
    """An embedding that is the head as well, a scale outside of all blocks, and layers with buffers."""

    def __init__(self, depth: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(WIDTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh()) for _ in range(depth)
        )
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("shift", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed.weight[0] + x * self.scale + self.shift
        for layer in self.layers:
            x = x + layer(x)
        y: Tensor = self.head(x)
        return y


class Attention(nn.Module):
    def __init__(self, depth: int = 5) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0, batch_first=True) for _ in range(depth)
        )
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        y: Tensor = self.head(x)
        return y


MODELS: dict[str, Callable[..., nn.Module]] = {"chain": chain, "tied, buffers": Tied, "attention": Attention}
SHARES = {"chain": 0.5, "tied, buffers": 0.6, "attention": 0.7}
X = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(1))


def built(name: str) -> nn.Module:
    torch.manual_seed(3)
    return MODELS[name]()


def trained(model: nn.Module, optimizer: Any, x: Tensor) -> list[float]:
    steps, losses = optimizer(model.parameters(), lr=1e-3), []
    for _ in range(2):
        loss = model(x).square().mean()
        losses.append(loss.item())
        loss.backward()
        del loss
        steps.step()
        steps.zero_grad()
    return losses


def activations(name: str, *, training: bool) -> int:
    """Bytes that a pass of the resident model needs besides weights and gradients, with those of one block backward."""
    model, x = built(name).to(ONE), X.to(ONE)
    needed = peak_above(lambda: model(x), training=training)
    if training:
        small = MODELS[name](1).to(ONE)
        needed += peak_above(lambda: small(x).square().mean().backward(), training=True)
        needed -= sum(it.nbytes for it in small.parameters())
    return needed


def peak_above(call: Callable[[], object], *, training: bool) -> int:
    gc.collect()
    DEVICES[0].clear()
    before = DEVICES[0].used
    with torch.set_grad_enabled(training):
        call()
    return int(DEVICES[0].peak - before)


def need(model: nn.Module, *, training: bool) -> int:
    return sum(it.nbytes for it in [*model.parameters(), *model.buffers()]) * (4 if training else 1)


FULL = os.environ.get("ANYACCEL_TEST_FULL") == "1"
CASES = [(name, training, slots) for name in MODELS for training in (False, True) for slots in (2, 1)]


@pytest.mark.parametrize(("name", "training", "slots"), CASES if FULL else CASES[:4] + CASES[6:7] + CASES[10:11])
def test_a_device_with_the_memory_of_the_plan_is_enough(name: str, training: bool, slots: int) -> None:
    """And no more than 5 % above the plan is used, besides activations, which no plan of a map counts."""
    needed = activations(name, training=training)
    model = built(name)
    size = int(SHARES[name] * need(model, training=training))
    if slots == 1:  # the least memory that a plan is found for
        refused = 0
        while size - refused > 512:
            middle = (refused + size) // 2
            try:
                infer_auto_device_map(model, {ONE: middle, "cpu": "1GB"}, training=training, headroom=0)
                size = middle
            except OutOfMemoryError:
                refused = middle
        planned = infer_auto_device_map(model, {ONE: size, "cpu": "1GB"}, training=training, headroom=0)
    else:
        planned = infer_auto_device_map(model, {ONE: size, "cpu": "1GB"}, training=training, headroom=0)
    share = planned.plan.devices[0]
    assert share.staging_slots == slots and len(share.offloaded) >= 2
    if training:
        expected = trained(built(name), torch.optim.Adam, X)
    else:
        with torch.no_grad():
            expected = built(name).to(ONE)(X.to(ONE)).cpu()  # attention has another kernel on the CPU
    gc.collect()
    DEVICES[0].clear()
    DEVICES[0].capacity = int(1.05 * share.total_bytes) + needed
    dispatch_model(model, planned)
    if training:
        assert trained(model, torch.optim.Adam, X) == pytest.approx(expected, rel=1e-5)
    else:
        with torch.no_grad():
            assert torch.equal(model(X), expected)
    assert DEVICES[0].peak > share.total_bytes / 3


def test_thirty_two_blocks_are_trained_in_the_memory_of_four_and_a_half() -> None:
    """Two that are computed or come, and the gradients of two."""
    torch.manual_seed(0)
    expected = trained(chain(32), torch.optim.Adam, X[:1])
    torch.manual_seed(0)
    model = cpu_offload(chain(32), ONE)
    gc.collect()
    DEVICES[0].clear()
    DEVICES[0].capacity = int(4.5 * BLOCK)
    assert trained(model, torch.optim.Adam, X[:1]) == pytest.approx(expected, rel=1e-5)
    assert DEVICES[0].peak > 4 * BLOCK
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())


def test_gradients_leave_also_where_only_they_are_asked_for() -> None:
    model = cpu_offload(chain(16), ONE)
    DEVICES[0].clear()
    loss = model(X[:1]).sum()
    found = torch.autograd.grad(loss, list(model.parameters()))
    assert {gradient.device.type for gradient in found} == {"cpu"}
    assert DEVICES[0].peak < 4.5 * BLOCK


# -- the plan is what runs -------------------------------------------------------------------------------------------


def devices_of(model: nn.Module) -> dict[str, str]:
    offload = offload_of(model)
    assert offload is not None
    return {block.name: str(block.device) for block in offload.blocks}


PASSED: dict[str, Callable[[DeviceMap], Any]] = {
    "itself": lambda it: it,
    "dict": dict,
    "copy": lambda it: it.copy(),
    "json": lambda it: json.loads(json.dumps(it)),
}


@pytest.mark.parametrize("way", PASSED)
def test_a_map_computes_where_its_plan_says_however_it_came(way: str) -> None:
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])
    planned = infer_auto_device_map(model, {ONE: "700kB", TWO: "600kB", "cpu": "1GB"})
    assert set(planned.plan.device_map.values()) == {ONE, TWO} and planned.plan.offloaded
    dispatch_model(model, PASSED[way](planned))
    assert devices_of(model) == planned.plan.device_map


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.a(x))
        return y


def test_a_plan_for_other_blocks_is_not_taken_for_these() -> None:
    """Blocks together, which the plan has apart: it does not say what computes them."""
    model = nn.Sequential()
    model.pair = Pair()
    blocks = [Block(name=f"pair.{name}", parameter_bytes=2**20) for name in "ab"]
    plan = plan_blocks(blocks, [DeviceSpec(name=name, memory=2**20) for name in (ONE, TWO)])
    assert set(plan.device_map.values()) == {ONE, TWO}
    planned = DeviceMap({"pair": "cpu"}, plan)
    with pytest.raises(ConfigError, match="planned for other blocks: its plan has 0 devices for 'pair'"):
        dispatch_model(model, planned, no_split_module_classes="Pair")
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
