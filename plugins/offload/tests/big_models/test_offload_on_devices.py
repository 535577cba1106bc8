"""Offload on simulated devices: values, schedule, memory, gradients, ties, threads and errors.

Run by test_offload_simulated.py in a process of its own, as torch cannot be rid of the devices again.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

if not os.environ.get("ANYACCEL_TORCH_SIMULATE"):
    pytest.skip("run by test_offload_simulated.py, in a process of its own", allow_module_level=True)

import torch
from torch import Tensor, nn

import anyaccel as aa
from anyaccel.adapter.simulated_timing import Timing
from anyaccel.errors import AnyaccelError, ConfigError, MoveError, OutOfMemoryError, StateError
from anyaccel_offload.torch import (
    cpu_offload,
    cpu_offload_with_hook,
    disk_offload,
    dispatch_model,
    infer_auto_device_map,
    init_empty_weights,
    load_checkpoint_and_dispatch,
    offload_of,
    remove_offload,
)
from anyaccel_torch import simulated

from .tiny_transformers import MODELS, built

DEVICES = simulated.start(2)
ONE, TWO = "sim:0", "sim:1"
AMPLE = 2**30
FULL = os.environ.get("ANYACCEL_TEST_FULL") == "1"
N_TOKENS = 12 if FULL else 4
"""Of what is generated: the first is made of the whole prompt, the others of what was kept."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    gc.collect()
    for device in DEVICES:
        device.capacity = device.timing = None
        device.clear()
    torch.manual_seed(0)
    yield


class Block(nn.Module):
    """A block of a transformer, with a mask as a keyword."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.down(torch.relu(self.up(x)))


class Transformer(nn.Module):
    def __init__(self, depth: int = 12, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 32)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, mask=mask)
        y: Tensor = self.head(x)
        return y


def chain(depth: int = 6, width: int = 32) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)])


def staging(model: nn.Module, device: str = ONE) -> Any:
    offload = offload_of(model)
    assert offload is not None
    return offload.stagings[torch.device(device)]


def transformer(**sizes: int) -> Transformer:
    torch.manual_seed(2)
    return Transformer(**sizes)


TOKENS = torch.arange(24).view(2, 12) % 32


# -- inference -------------------------------------------------------------------------------------------------------


def test_an_offloaded_model_computes_what_the_plain_one_does_and_its_weights_rest_in_host_memory() -> None:
    plain, model = transformer().to(ONE), transformer()
    kept = dict(model.named_parameters())
    assert cpu_offload(model, ONE, pinned_memory=AMPLE) is model
    DEVICES[0].clear()
    with torch.no_grad():
        for _ in range(2):
            got = model(TOKENS)
            assert got.device == TOKENS.device
            torch.testing.assert_close(got, plain(TOKENS.to(ONE)).cpu(), atol=1e-5, rtol=1e-5)
    assert all(p is kept[name] and p.device.type == "cpu" for name, p in model.named_parameters())
    assert DEVICES[0].flushes == 0
    assert staging(model).fetches == 2 * 14


def test_at_most_two_slots_are_used_beside_the_activations() -> None:
    model = cpu_offload(chain(8, 64), ONE, pinned_memory=AMPLE)
    slot = 4 * (64 * 64 + 64)
    DEVICES[0].clear()
    with torch.no_grad():
        model(torch.ones(1, 64))
    assert staging(model).most_bytes == 2 * slot
    assert DEVICES[0].peak <= 2 * slot + 4 * 64 * 4


def weights_of(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


# -- the schedule, in simulated time ---------------------------------------------------------------------------------

GRID = list(product([6, 12], [32, 128], [0.1, 0.5, 1.0, 2.0, 10.0]))
if not FULL:
    GRID = list(product([6], [32], [0.1, 1.0, 10.0]))


def timed(depth: int, width: int, ratio: float, call: Callable[[nn.Module], object]) -> tuple[nn.Module, Timing, float]:
    """A model whose blocks take `ratio` times as long to compute as to copy, its clock, and the seconds of a copy."""
    model = cpu_offload(chain(depth, width), ONE, pinned_memory=AMPLE)
    nbytes = staging(model).blocks[0].nbytes
    seconds = nbytes / 1e9
    clock = DEVICES[0].timing = Timing(compute_rate=1e9, copy_bandwidth=1e9, copy_latency=0.05 * seconds)
    call(model)
    rate = 1e9 * clock.compute_seconds / (depth * seconds * ratio)
    DEVICES[0].timing = Timing(compute_rate=rate, copy_bandwidth=1e9, copy_latency=0.05 * seconds)
    return model, DEVICES[0].timing, 1.05 * seconds


@pytest.mark.parametrize(("depth", "width", "ratio"), GRID)
def test_inference_takes_the_larger_of_copy_and_compute_and_the_first_copy(
    depth: int, width: int, ratio: float
) -> None:
    x = torch.ones(8, width, device=ONE)
    call = torch.no_grad()(lambda model: model(x))
    model, clock, first = timed(depth, width, ratio, call)
    call(model)
    bound = max(clock.compute_seconds, clock.copy_seconds["into"]) + first
    assert bound / clock.elapsed() >= 0.95
    assert staging(model).most_bytes <= staging(model).capacity and DEVICES[0].flushes == 0
    assert clock.copy_seconds["into"] == pytest.approx(depth * first)  # each block once


@pytest.mark.parametrize(("depth", "width", "ratio"), GRID)
def test_training_takes_the_larger_of_copy_and_compute_in_each_direction(depth: int, width: int, ratio: float) -> None:
    """And the first copy to the device, and the last of gradients from it."""
    x = torch.ones(8, width, device=ONE)
    model, clock, first = timed(depth, width, ratio, torch.no_grad()(lambda model: model(x)))
    loss = model(x).square().mean()
    forward = clock.compute_seconds, clock.copy_seconds["into"]
    loss.backward()
    back = clock.compute_seconds - forward[0], clock.copy_seconds["into"] - forward[1], clock.copy_seconds["out"]
    last = clock.copy_seconds["out"] / depth
    assert (max(forward) + max(back) + first + last) / clock.elapsed() >= 0.95
    assert staging(model).most_bytes <= staging(model).capacity and DEVICES[0].flushes == 0


@pytest.mark.parametrize("budget", [0, 4 * 4224 + 100, AMPLE])
def test_page_locked_memory_keeps_within_its_budget_and_the_rest_is_copied_from_where_it_is(budget: int) -> None:
    plain, model = chain(8), cpu_offload(chain(8), ONE, pinned_memory=budget)
    x = torch.randn(4, 32)
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))
    model(x).sum().backward()
    pinned = offload_of(model).pinned[torch.device(ONE)]  # type: ignore[union-attr]
    assert pinned.peak <= budget and (pinned.peak > 0) == (budget > 0)


# -- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW] if FULL else [torch.optim.SGD])
def test_a_transformer_of_twelve_blocks_trains_offloaded_with_the_losses_of_the_resident_one(
    optimizer: type[torch.optim.Optimizer],
) -> None:
    losses: dict[str, list[float]] = {}
    for kind in ("resident", "offloaded"):
        model: nn.Module = transformer().to(ONE) if kind == "resident" else cpu_offload(transformer(), ONE)
        steps = optimizer(model.parameters(), lr=1e-3)
        DEVICES[0].clear()
        for _ in range(50 if FULL else 12):
            steps.zero_grad()
            loss = nn.functional.cross_entropy(model(TOKENS.to(ONE)).flatten(0, 1), TOKENS.to(ONE).flatten())
            loss.backward()
            steps.step()
            losses.setdefault(kind, []).append(loss.item())
    assert losses["offloaded"] == pytest.approx(losses["resident"], abs=1e-6)
    assert losses["offloaded"][-1] < losses["offloaded"][0] - (0.1 if FULL else 0)
    assert all(
        p.device.type == "cpu" and p.grad is not None and p.grad.device.type == "cpu" for p in model.parameters()
    )
    block = max(each.nbytes for each in staging(model).blocks)
    assert staging(model).most_bytes <= 2 * block


def gradients(model: nn.Module, call: Callable[[nn.Module], Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    call(model).backward()
    return {name: p.grad.cpu().clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-6, atol=1e-7)


def test_gradients_are_those_of_the_plain_model_with_frozen_parts_and_repeated_blocks() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
            self.b.weight.requires_grad_(False)
            self.unused = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.a(self.c(self.b(self.a(x).tanh())).tanh())
            return y.square().mean()

    torch.manual_seed(3)
    plain = Twice()
    torch.manual_seed(3)
    model = cpu_offload(Twice(), ONE)
    x = torch.randn(4, 8)
    for _ in range(2):
        assert_same(gradients(model, lambda it: it(x)), gradients(plain, lambda it: it(x)))


def test_gradients_of_two_passes_add_up_and_hooks_of_parameters_see_them() -> None:
    plain, model = chain(4), cpu_offload(chain(4), ONE)
    seen: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: seen.append(name))
    xs = torch.randn(2, 3, 32)
    both = lambda it: it(xs[0]).sum() + it(xs[1]).square().sum()  # noqa: E731
    assert_same(gradients(model, both), gradients(plain, both))
    assert sorted(set(seen)) == sorted(name for name, _ in model.named_parameters())
    mine = torch.autograd.grad(model(xs[0]).sum(), list(model.parameters()))
    theirs = torch.autograd.grad(plain(xs[0]).sum(), list(plain.parameters()))
    assert all(torch.allclose(a, b) for a, b in zip(mine, theirs, strict=True))


def test_a_graph_holds_no_weights() -> None:
    model = cpu_offload(chain(10, 64), ONE)
    slot = 4 * (64 * 64 + 64)
    loss = model(torch.ones(1, 64)).sum()
    assert DEVICES[0].used < 2 * slot + 10 * 3 * 64 * 4
    loss.backward()
    del loss
    assert DEVICES[0].used == 0


def test_a_step_between_forward_and_backward_is_refused() -> None:
    model = cpu_offload(chain(4), ONE)
    loss = model(torch.ones(1, 32)).sum()
    with torch.no_grad():
        model[0][0].weight.add_(1)  # not used in the backward pass
        model[2][0].weight.add_(1)
    with pytest.raises(StateError, match=r"weights of 2\.0 were changed between forward and backward"):
        loss.backward()


# -- several devices, ties, buffers ----------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(40, 8), nn.Linear(8, 8), nn.Linear(8, 40, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(self.embed(tokens)).tanh())
        return y


def tied() -> Tied:
    torch.manual_seed(4)
    return Tied()


def test_a_tied_weight_stays_on_its_device_and_is_moved_once() -> None:
    plain, model = tied(), cpu_offload(tied(), ONE)
    assert model.head.weight is model.embed.weight and model.embed.weight.device == torch.device(ONE)
    tokens = torch.arange(6)
    DEVICES[0].clear()
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(model(tokens), plain(tokens))
    nbytes = sum(block.nbytes for block in staging(model).blocks)
    assert DEVICES[0].transfers.into.nbytes == 3 * (nbytes + tokens.nbytes)
    assert_same(
        gradients(model, lambda it: it(tokens).square().sum()), gradients(plain, lambda it: it(tokens).square().sum())
    )


def test_a_weight_tied_over_two_devices_goes_to_the_second_once_in_a_pass() -> None:
    plain, model = tied(), dispatch_model(tied(), {"embed": ONE, "body": TWO, "head": TWO})
    tokens = torch.arange(6)
    DEVICES[1].clear()
    with torch.no_grad():
        assert torch.equal(model(tokens), plain(tokens))
    assert DEVICES[1].transfers.between.nbytes == plain.embed.weight.nbytes + 6 * 8 * 4
    assert_same(
        gradients(model, lambda it: it(tokens).square().sum()), gradients(plain, lambda it: it(tokens).square().sum())
    )


def test_inputs_move_once_and_not_for_each_layer() -> None:
    plain, model = transformer().to(ONE), transformer()
    places = {f"layers.{i}": ONE if i < 6 else TWO for i in range(12)}
    dispatch_model(model, {"embed": ONE, **places, "head": TWO})
    mask = torch.zeros(12, 12)
    with torch.no_grad():
        want = plain(TOKENS.to(ONE), mask=mask.to(ONE)).cpu()
        for device in DEVICES:
            device.clear()
        got = model(TOKENS, mask=mask)
    assert torch.equal(got, want)
    assert DEVICES[0].transfers.into.number == 2  # tokens and mask
    assert DEVICES[1].transfers.between.number == 2  # the hidden states and the mask


def test_no_allocator_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate does for each tensor of each call."""
    flushed: list[int] = []
    monkeypatch.setattr(torch.get_device_module(ONE), "empty_cache", lambda: flushed.append(1))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: flushed.append(1))
    model = cpu_offload(transformer(depth=3), ONE)
    with torch.no_grad():
        model(TOKENS)
    model(TOKENS).sum().backward()
    assert not flushed
    torch.get_device_module(ONE).empty_cache()
    assert flushed


@pytest.mark.parametrize("offload_buffers", [False, True])
def test_buffers_follow_and_what_a_forward_writes_to_them_is_kept(offload_buffers: bool) -> None:
    def net() -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    plain, model = net(), cpu_offload(net(), ONE, offload_buffers=offload_buffers)
    assert model[1].running_mean.device.type == ("cpu" if offload_buffers else "sim")
    for _ in range(3):
        x = torch.randn(8, 4)
        assert torch.allclose(model(x), plain(x))
    for name, value in plain.named_buffers():
        assert torch.allclose(model.get_buffer(name).cpu(), value), name


def test_recurrent_layers_are_offloaded() -> None:
    torch.manual_seed(6)
    plain = nn.Sequential(nn.LSTM(4, 4, batch_first=True)).to(ONE)
    torch.manual_seed(6)
    model = cpu_offload(nn.Sequential(nn.LSTM(4, 4, batch_first=True)), ONE)
    x = torch.randn(2, 3, 4)
    with torch.no_grad():
        assert torch.equal(model(x)[0], plain(x.to(ONE))[0].cpu())


def test_whole_models_take_turns_and_each_call_moves_its_inputs() -> None:
    plain = chain(3)
    one, first = cpu_offload_with_hook(chain(3), ONE)
    two, second = cpu_offload_with_hook(chain(3), ONE, first)
    x, nbytes = torch.randn(2, 32), sum(p.nbytes for p in plain.parameters())
    DEVICES[0].clear()
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(one(x).cpu(), plain(x))  # the second call moves its inputs as well
        assert nbytes <= DEVICES[0].used < 2 * nbytes
        assert torch.equal(two(one(x)).cpu(), plain(plain(x)))
    assert nbytes <= DEVICES[0].used < 2 * nbytes and DEVICES[0].transfers.out.number == 3  # of the results here
    second.offload()
    gc.collect()
    assert DEVICES[0].used == 0
    assert_same(gradients(one, lambda it: it(x).sum()), gradients(plain, lambda it: it(x).sum()))
    first.remove()
    assert torch.equal(one(x), plain(x))


# -- disk ------------------------------------------------------------------------------------------------------------


def test_a_model_rests_on_disk(tmp_path: Path) -> None:
    plain, model = transformer().to(ONE), disk_offload(transformer(), tmp_path / "new", ONE)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "new").iterdir()}
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS), plain(TOKENS.to(ONE)).cpu(), atol=1e-5, rtol=1e-5)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "new").iterdir()} == before
    with pytest.raises(StateError, match="is not an empty folder"):
        disk_offload(chain(), tmp_path / "new", ONE)


GENERATING = [(name, planned) for name in MODELS for planned in (False, True)]
if not FULL:
    GENERATING = [("llama", True), ("gpt2", False), ("t5", True), ("mixtral", False)]


@pytest.mark.parametrize(("name", "planned"), GENERATING)
def test_models_of_transformers_generate_the_same_tokens_over_devices_host_and_disk(
    name: str, planned: bool, tmp_path: Path
) -> None:
    plain = built(name)
    plain.save_pretrained(tmp_path, max_shard_size="20KB", save_original_format=False)
    with init_empty_weights():
        model = MODELS[name]().eval()
    from anyaccel_offload.torch.model_blocks import find_blocks

    blocks = find_blocks(model)
    places = [ONE, "cpu", "disk", TWO]
    device_map: Any = {block: places[4 * i // len(blocks)] for i, block in enumerate(blocks)}
    if planned:
        total = sum(p.nbytes for p in plain.parameters())
        device_map = infer_auto_device_map(model, {ONE: total // 2, TWO: total // 4, "cpu": total // 8, "disk": total})
    load_checkpoint_and_dispatch(model, tmp_path, device_map)
    tokens = torch.arange(3, 9).view(1, -1)
    for each in (plain, model):
        each.set_experts_implementation("eager")  # another one counts with a kernel that CPUs lack
    given: dict[str, Any] = {"max_new_tokens": N_TOKENS, "do_sample": False, "min_new_tokens": N_TOKENS}
    assert torch.equal(model.generate(tokens, **given), plain.generate(tokens, **given))


# -- phases ----------------------------------------------------------------------------------------------------------


def results_of(model: nn.Module, kind: str, device: str) -> dict[str, float]:
    columns = {"x": ROWS, "y": ROWS[:, :1]}
    data = aa.FeatureSet.from_dict("data", columns, ["x"], ["y"])
    data.add_splits({"train": range(3), "val": range(3)})
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], aa.Optimizer("adam", lr=0.01))
    losses, experiment = aa.AppliedLoss("mse", on="net"), aa.Experiment("test", graph, progress="none")
    if kind == "train":
        steps = aa.SimpleSampler(1)
        experiment.run_phase(
            aa.TrainPhase("t", data="train", losses=losses, sampler=steps, epochs=2, accelerator=device)
        )
    found = experiment.run_phase(aa.EvalPhase("e", data="val", losses=losses, accelerator=device))
    return dict(found.losses)


ROWS = torch.linspace(-1, 1, 96).view(3, 32).numpy()


@pytest.mark.parametrize("kind", ["eval", "train"])
def test_an_offloaded_model_is_a_node_of_a_graph_like_any_other(kind: str) -> None:
    plain, model = (nn.Sequential(*chain(), nn.Linear(32, 1)) for _ in range(2))
    model.load_state_dict(plain.state_dict())
    assert results_of(cpu_offload(model, ONE), kind, ONE) == pytest.approx(results_of(plain, kind, ONE), abs=1e-6)
    with pytest.raises(AnyaccelError, match="offloaded and computes on sim:0, not on sim:1"):
        results_of(model, "eval", TWO)


# -- errors, threads, order ------------------------------------------------------------------------------------------


def test_an_error_in_a_forward_leaves_the_model_as_it_was() -> None:
    model = chain(4)

    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("mine")

    model.insert(2, Fails())
    cpu_offload(model, ONE)
    for grad in (False, True):
        with pytest.raises(KeyError, match="mine"), torch.set_grad_enabled(grad):
            model(torch.ones(1, 32))
        assert all(p.device.type == "cpu" and isinstance(p, nn.Parameter) for p in model.parameters())
    del model[2]


def test_a_device_that_is_too_small_is_said_and_the_model_runs_once_there_is_room() -> None:
    plain, model = chain(4), cpu_offload(chain(4), ONE)
    x = torch.randn(2, 32)
    DEVICES[0].capacity = DEVICES[0].used + 5000  # one block and a little
    with pytest.raises(OutOfMemoryError, match="bytes of weights on sim:0"), torch.no_grad():
        model(x)
    assert all(p.device.type == "cpu" for p in model.parameters())
    DEVICES[0].capacity = None
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))


@pytest.mark.parametrize("name", ["compute_rate", "copy_bandwidth", "copy_latency"])
def test_clocks_need_positive_rates(name: str) -> None:
    rates = {"compute_rate": 1.0, "copy_bandwidth": 1.0, "copy_latency": 0.0}
    with pytest.raises(ConfigError, match=f"Timing: {name}=-1"):
        Timing(**{**rates, name: -1})


@pytest.mark.parametrize("grad", [False, True])
def test_threads_compute_the_right_values(grad: bool) -> None:
    plain, model = chain(6), cpu_offload(chain(6), ONE)
    xs = torch.randn(4, 25, 3, 32)
    wrong: list[int] = []

    def requests(i: int) -> None:
        with torch.set_grad_enabled(grad):
            for x in xs[i]:
                if not torch.equal(model(x), plain(x)):
                    wrong.append(i)

    threads = [threading.Thread(target=requests, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads) and not wrong
    assert staging(model).most_bytes <= staging(model).capacity


class AnyOrder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))

    def forward(self, x: Tensor, order: list[int]) -> Tensor:
        for i in order:
            x = self.parts[i](x).tanh()
        return x


def test_blocks_out_of_order_twice_or_never_are_right() -> None:
    torch.manual_seed(7)
    plain = AnyOrder()
    torch.manual_seed(7)
    model = cpu_offload(AnyOrder(), ONE)
    x = torch.randn(2, 8)
    for order in ([4, 3, 2, 1, 0], [0, 0, 1, 1], [2], [], [0, 4, 0, 4, 2], [4, 3, 2, 1, 0]):
        with torch.no_grad():
            assert torch.equal(model(x, order), plain(x, order))
        assert_same(
            gradients(model, lambda it, o=order: it(x.clone().requires_grad_(), o).sum()),
            gradients(plain, lambda it, o=order: it(x.clone().requires_grad_(), o).sum()),
        )
    before = staging(model).fetches
    with torch.no_grad():
        model(x, [4, 3, 2, 1, 0])
    assert staging(model).fetches == before + 5  # the order of the last pass was learned: each is copied once


def test_a_block_called_alone_and_a_weight_outside_of_its_forward_are_right_or_refused() -> None:
    plain, model = chain(3), cpu_offload(chain(3), ONE)
    x = torch.randn(2, 32)
    with torch.no_grad():
        assert torch.equal(model[1](x).cpu(), plain[1](x))
        model[1][0].weight.data.mul_(2)  # does not count as a write
        plain[1][0].weight.data.mul_(2)
        assert torch.equal(model[1](x).cpu(), plain[1](x))
        assert torch.equal(model(x), plain(x))
        with pytest.raises(RuntimeError, match="device"):
            nn.functional.linear(x.to(ONE), model[0][0].weight)
        assert torch.equal(nn.functional.linear(x, model[0][0].weight), nn.functional.linear(x, plain[0][0].weight))


@pytest.mark.parametrize("change", ["half", "to", "replace"])
def test_a_model_that_is_changed_is_refused_with_what_to_do(change: str) -> None:
    model = cpu_offload(chain(3), ONE)
    if change == "replace":
        model[1][0].weight = nn.Parameter(torch.ones(32, 32))
    else:
        with pytest.raises(MoveError, match=r"neither moved nor converted.*call remove_offload"), torch.no_grad():
            model.half() if change == "half" else model.to(ONE)
        assert torch.equal(model(torch.ones(1, 32)), chain(3)(torch.ones(1, 32)))
        model[1].half() if change == "half" else model[1].to(ONE)
    with pytest.raises(StateError, match=r"replaced, moved or converted.*call remove_offload"), torch.no_grad():
        model(torch.ones(1, 32))
    remove_offload(model)


def test_wrong_maps_and_devices_are_refused_before_anything_moves() -> None:
    model = chain(3)
    with pytest.raises(ConfigError, match=r"the device sim:7 does not exist\. Available: sim:0, sim:1"):
        dispatch_model(model, {"": "sim:7"})
    with pytest.raises(ConfigError, match="no device for"):
        dispatch_model(model, {"0": ONE})
    assert all(p.device.type == "cpu" for p in model.parameters())


@pytest.mark.parametrize("loads", [False, True])
def test_blocks_that_all_rest_elsewhere_compute_on_the_device_of_the_plan(loads: bool, tmp_path: Path) -> None:
    """Not in silence on the CPU."""
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
    expected = model(torch.ones(2, 256))
    planned = infer_auto_device_map(model, {ONE: "600kB", "cpu": "1GB"})
    assert set(planned.values()) == {"cpu"} and {share.device for share in planned.plan.devices} == {ONE}
    if loads:
        torch.save(model.state_dict(), tmp_path / "model.pt")
        model = load_checkpoint_and_dispatch(model, tmp_path / "model.pt", device_map=planned)
    else:
        model = dispatch_model(model, planned)
    seen: list[str] = []
    model[2].register_forward_pre_hook(lambda _, inputs: seen.append(str(inputs[0].device)))
    output = model(torch.ones(2, 256))
    assert seen == [ONE]
    torch.testing.assert_close(output.cpu(), expected)


def test_a_map_of_ones_own_without_a_device_computes_on_the_cpu_or_where_main_device_says() -> None:
    for main, expected in ((None, "cpu"), (TWO, TWO)):
        model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(2)])
        seen: list[str] = []
        model[1].register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(str(inputs[0].device)))
        dispatch_model(model, {"": "cpu"}, main)(torch.ones(2, 8))
        assert seen == [expected]


def test_each_offloaded_block_computes_on_its_own_device_of_the_plan() -> None:
    """Also those of a device that keeps none."""
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])
    planned = infer_auto_device_map(model, {ONE: "700kB", TWO: "600kB", "cpu": "1GB"})
    wanted = planned.plan.device_map
    dispatch_model(model, planned)
    assert {block.name: str(block.device) for block in offload_of(model).blocks} == wanted
