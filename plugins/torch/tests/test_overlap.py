"""Gradients in buckets that are exchanged within the backward pass: the numbers of one process, in bounded memory."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from anyaccel.errors import ConfigError
from anyaccel_torch.gradient_buckets import (
    agreed_bucket_bytes,
    bucket_bytes,
    buckets_of,
    exchange_in_buckets,
    exchanged_bytes,
)
from anyaccel_torch.overlapped_exchange import OverlappedExchange

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

SCRIPTS = Path(__file__).with_name("overlap_scripts.py")
FULL = os.environ.get("ANYACCEL_TEST_FULL") == "1"
CASES = ("plain", "clipped", "accumulated", "tied", "branches", "sparse", "reentrant", "recomputed", "a source")
ENVIRONMENT = {**os.environ, "ANYACCEL_TORCH_BUCKET_MB": "0.005", "OMP_NUM_THREADS": "1"}
"""Buckets of a layer of the scripts each."""


def told(folder: Path, name: str, size: int) -> list[Any]:
    """What each replica told."""
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(size)]


def succeeded(names: str, folder: Path, size: int) -> Path:
    """The folder in which so many replicas told what they found."""
    launcher = ["-m", "anyaccel", "run", "--replicas", str(size)] if size > 1 else []
    command = [sys.executable, *launcher, str(SCRIPTS), names, str(folder)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=ENVIRONMENT)
    assert answer.returncode == 0, answer.stderr
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process tells of the same trainings."""
    return succeeded("equal", tmp_path_factory.mktemp("alone"), 1)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two replicas tell."""
    return succeeded("equal,planted,beside_ddp,overlaps,late", tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What four replicas tell."""
    return succeeded("equal,beside_ddp", tmp_path_factory.mktemp("four"), 4)


def is_equal(alone: Path, every: list[Any], name: str) -> None:
    (expected,) = told(alone, name, 1)
    for each in every:
        np.testing.assert_allclose(each["losses"], expected["losses"], rtol=1e-6)
        assert each["weights"] == every[0]["weights"]
        for own, other in zip(each["weights"], expected["weights"], strict=True):
            np.testing.assert_allclose(own, other, atol=3e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_replicas_have_the_numbers_of_one_process(alone: Path, two: Path, name: str) -> None:
    is_equal(alone, told(two, name, 2), name)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.skipif(not FULL, reason="ANYACCEL_TEST_FULL=1 runs it")
@pytest.mark.parametrize("name", CASES)
def test_four_replicas_have_the_numbers_of_one_process(alone: Path, four: Path, name: str) -> None:
    is_equal(alone, told(four, name, 4), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "no_sync"])
def test_weights_are_those_of_distributed_data_parallel(two: Path, name: str) -> None:
    for each in told(two, name, 2):
        assert each["apart"] < 1e-6


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.skipif(not FULL, reason="ANYACCEL_TEST_FULL=1 runs it")
def test_weights_of_four_are_those_of_distributed_data_parallel(four: Path) -> None:
    for name in ("ddp", "no_sync"):
        for each in told(four, name, 4):
            assert each["apart"] < 1e-6


@pytest.mark.slow
def test_a_step_that_is_infinite_in_one_replica_is_skipped_by_all(two: Path) -> None:
    first, second = told(two, "planted", 2)
    assert math.isinf(first["losses"][0]) and math.isfinite(first["losses"][1])
    assert first["weights"] == second["weights"]
    assert all(math.isfinite(value) for weights in first["weights"] for value in weights)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "passes"), [("whole", 1), ("parts", 2)])
def test_sums_begin_before_the_backward_pass_ends(two: Path, name: str, passes: int) -> None:
    """From the second step on; with accumulated batches in the last pass of each step alone."""
    for each in told(two, f"events of {name}", 2):
        steps = by_step(each["events"], 5 * passes)
        assert len(steps) == 4 // passes
        first, *later = [[kind for kind, _ in step] for step in steps]
        assert first == ["backward"] * 5 * passes + ["all-reduce"] * 5
        for kinds in later:
            assert kinds[: 5 * passes - 2] == ["backward"] * (5 * passes - 2)
            assert "all-reduce" in kinds[: kinds.index("backward", 5 * passes - 2)]  # two layers are still to come
            assert kinds.count("all-reduce") == 5  # four buckets, and the weights


def by_step(events: list[list[Any]], n_layers: int) -> list[list[list[Any]]]:
    """Events up to the last all-reduce after so many layers."""
    steps: list[list[list[Any]]] = [[]]
    for event in events:
        if event[0] == "backward" and sum(kind == "backward" for kind, _ in steps[-1]) == n_layers:
            steps.append([])
        steps[-1].append(event)
    return steps


@pytest.mark.slow
def test_a_gradient_that_comes_twice_later_is_an_error(two: Path) -> None:
    for each in told(two, "late", 2):
        assert each["message"].startswith("phase 'train', epoch ")
        twice = (
            "the gradient of a parameter of shape [32] came twice in one backward pass, and did not in the first step"
        )
        assert twice in each["message"]
        assert (
            "Hint: checkpoint with use_reentrant=False, or exchange all gradients after the pass: " in each["message"]
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("broken", "raise"),
        pytest.param("killed", "kill", marks=pytest.mark.skipif(not FULL, reason="ANYACCEL_TEST_FULL=1 runs it")),
    ],
)
def test_one_that_ends_within_a_backward_pass_leaves_no_other_waiting(script: str, name: str, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {**ENVIRONMENT, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, str(SCRIPTS), script, str(tmp_path)]
    both = [subprocess.Popen(command, env={**shared, "RANK": rank}, stderr=subprocess.DEVNULL) for rank in "01"]
    assert [process.wait(120) for process in both] == [1, 1 if name == "raise" else -9]
    one = json.loads((tmp_path / f"{name}-0.json").read_text())
    assert one["message"].startswith("phase 'train', epoch 0, step ")
    assert "replica 0 of 2 could not average the gradients: replica 1 ended, or did not answer" in one["message"]
    if name == "raise":
        other = json.loads((tmp_path / "raise-1.json").read_text())
        assert (other["kind"], other["message"]) == ("ValueError", "a fault within the backward pass")


class Done:
    """A sum over one replica."""

    def wait(self) -> None:
        """It is done."""


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that operations give, as long as they are there."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.most = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.see(tensor.untyped_storage())
        return result

    def see(self, storage: Any) -> None:
        key = storage._cdata  # noqa: SLF001  (the identity of a storage; its Python objects come and go)
        if key not in self.known:
            self.known.add(key)
            self.live += storage.nbytes()
            self.most = max(self.most, self.live)
            weakref.finalize(storage, self.forget, key, storage.nbytes())

    def forget(self, key: int, nbytes: int) -> None:
        self.known.discard(key)
        self.live -= nbytes


def most_bytes(way: str, dtype: torch.dtype = torch.float32) -> tuple[int, int]:
    """The most that gradients and messages of a step took, and the bytes of all gradients."""
    parameters = [nn.Parameter(torch.zeros(64, 64, dtype=dtype)) for _ in range(16)]
    size = 2 * exchanged_bytes(parameters[0])  # eight buckets
    exchange = OverlappedExchange(parameters, size, lambda _: Done()) if way == "overlapped" else None
    if exchange is not None:
        exchange.expect(1.0, 1.0)
        exchange.arrange([[[*range(15, -1, -1)], False]])
        exchange.expect(1.0, 1.0)
        exchange.begin_pass()
    counter = LiveBytes()
    with counter:
        for parameter in reversed(parameters):
            (parameter * torch.ones(())).sum().backward()
        if exchange is not None:
            exchange.end_pass()
            exchange.finish(1.0)
        else:
            buckets = buckets_of(parameters, size if way == "buckets" else math.inf)
            exchange_in_buckets(buckets, 1.0, 1.0, lambda _: Done(), means=True)
    assert all(bool((parameter.grad == 1).all()) for parameter in parameters if parameter.grad is not None)
    assert all(parameter.grad is not None for parameter in parameters)
    return counter.most, sum(parameter.nbytes for parameter in parameters)


@pytest.mark.parametrize("way", ["overlapped", "buckets"])
def test_memory_grows_by_a_bucket_and_not_by_a_copy_of_all_gradients(way: str) -> None:
    most, whole = most_bytes(way)
    assert whole <= most <= 1.25 * whole  # a bucket is an eighth
    at_once, _ = most_bytes("at once")
    assert at_once >= 2 * whole


def test_gradients_in_16_bits_are_added_up_in_float32_a_few_at_a_time() -> None:
    most, whole = most_bytes("buckets", torch.bfloat16)
    assert most <= 1.8 * whole


def test_one_large_gradient_is_exchanged_without_a_copy() -> None:
    parameter = nn.Parameter(torch.ones(100, 10))
    parameter.grad = torch.full((100, 10), 2.0)
    place = parameter.grad.data_ptr()
    exchange_in_buckets(buckets_of([parameter], 1.0), 3.0, 6.0, lambda _: Done(), means=True)
    assert parameter.grad.data_ptr() == place
    assert bool((parameter.grad == 1.0).all())


def test_buckets_are_of_one_dtype_and_in_the_order_in_which_they_are_full() -> None:
    wide = [torch.zeros(10) for _ in range(4)]
    double = [torch.zeros(5, dtype=torch.float64) for _ in range(2)]
    buckets = buckets_of([wide[0], double[0], wide[1], wide[2], double[1], wide[3]], 80)
    assert [[id(p) for p in bucket.parameters] for bucket in buckets] == [
        [id(p) for p in group] for group in (wide[:2], double, wide[2:])
    ]


def test_a_large_gradient_is_a_message_by_itself_and_small_ones_beside_it_stay_together() -> None:
    small, large = [torch.zeros(10) for _ in range(3)], torch.empty(2**20)
    half = torch.empty(2**20, dtype=torch.bfloat16)  # is copied anyway, to be added up in float32
    buckets = buckets_of([small[0], large, small[1], half, small[2]], 2**25)
    assert [[id(p) for p in bucket.parameters] for bucket in buckets] == [
        [id(p) for p in group] for group in ([large], [half], small)
    ]


def test_gradients_that_come_in_another_order_are_launched_in_that_of_the_buckets() -> None:
    """As they must be alike in all replicas."""
    parameters = [nn.Parameter(torch.zeros(3 + i)) for i in range(4)]
    sent: list[int] = []

    def send(tensor: torch.Tensor) -> Done:
        sent.append(len(tensor))
        return Done()

    exchange = OverlappedExchange(parameters, 1.0, send)
    exchange.expect(1.0, 1.0)
    exchange.arrange([[[3, 2, 1], False], [[1, 2, 3], False]])
    for arriving in ((3, 2, 1, 0), (0, 1, 2, 3), (2, 1)):
        sent.clear()
        exchange.expect(1.0, 1.0)
        exchange.begin_pass()
        for i in arriving:
            parameters[i].sum().backward()
        exchange.end_pass()
        assert sent == [6, 5, 4, 3, 5]  # in the order that the first has seen, and the weight with four counts
        exchange.finish(1.0)
        assert [parameter.grad is not None for parameter in parameters] == [i in arriving for i in range(4)]
        for parameter in parameters:
            parameter.grad = None
    exchange.close()
    parameters[3].sum().backward()
    assert parameters[3].grad is not None


@pytest.mark.parametrize("text", ["0", "-1", "many", "nan"])
def test_a_size_of_buckets_that_is_none_is_named(text: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^ANYACCEL_TORCH_BUCKET_MB='{text}' is no number of megabytes above 0\. Hint"
    ):
        bucket_bytes({"ANYACCEL_TORCH_BUCKET_MB": text})


def test_buckets_of_several_sizes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYACCEL_TORCH_BUCKET_MB", "2")
    assert agreed_bucket_bytes(lambda own: [own, own]) == 2 * 2**20
    expected = (
        r"is not the same in all replicas: 2 in replica 0, and another in replica 1, 2; here it is 2.*every process"
    )
    with pytest.raises(ConfigError, match=expected):
        agreed_bucket_bytes(lambda own: [own, own + 1, 1.0])
    monkeypatch.delenv("ANYACCEL_TORCH_BUCKET_MB")
    assert bucket_bytes() == 25 * 2**20
    assert bucket_bytes({"ANYACCEL_TORCH_BUCKET_MB": "inf"}) == math.inf
