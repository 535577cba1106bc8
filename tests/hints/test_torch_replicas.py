"""Hints of replicas in processes; `test_torch.py` runs this in two processes at once."""

from __future__ import annotations

import copy
import os
import socket
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

torch = pytest.importorskip("torch")
pytest.importorskip("anyaccel_torch")

if os.environ.get("WORLD_SIZE") != "2":
    pytest.skip("run by test_torch.py, in two processes", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from anyaccel_torch.replica_group import TorchReplicaGroup  # noqa: E402

X = np.ones((24, 4), "float32")


def graph_of(model: nn.Module) -> aa.ModelGraph:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    return aa.ModelGraph([aa.ModelNode("net", model, data.reference())], "sgd")


def train(model: nn.Module, **settings: Any) -> Any:
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("t", data="all", losses=losses, batch_size=4, accelerator="cpu", compile="off", **settings)
    return graph_of(model).run(phase, progress="none")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))


def test_one_that_waits_for_others_in_vain(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with monkeypatch.context() as patched:
        patched.setenv("RANK", "0")
        patched.setenv("MASTER_PORT", str(port))
        patched.setenv("ANYACCEL_REPLICA_TIMEOUT", "1")
        with hint(
            "run the phase, or create the loop, in all processes, not only inside `if rank == 0:`, or set replicas=1 "
            "to train only in this process; if one ended with an error, start all again with their launcher"
        ):
            train(net())
        assert train(net(), replicas=1).loss.size
    assert train(net()).loss.size  # in all processes


class Unlike(nn.Sequential):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("cannot be copied")


def test_modules_that_are_divided(hint: Any) -> None:
    with hint("make copy.deepcopy(module) work, or leave sharding out"):
        train(Unlike(*net()), sharding="full")
    module = net()
    assert copy.deepcopy(module) and train(module, sharding="full").loss.size
    assert train(Unlike(*net())).loss.size  # without sharding
    from torch.distributed.fsdp import fully_shard

    divided = fully_shard(net())
    with hint("pass the module without FSDP, and shard it with TrainPhase(sharding='full')"):
        graph_of(divided).build()
    phase = aa.TrainPhase(
        "t", data="all", losses=[aa.AppliedLoss("mse", on="net")], sharding="full", batch_size=4, accelerator="cpu"
    )
    assert graph_of(net()).run(phase, progress="none").loss.size


class Twice(nn.Module):
    """Computes a layer twice in checkpoints, so that its gradient comes twice; not in the first two steps."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.last = nn.ModuleList(nn.Linear(32, 32) for _ in range(4)), nn.Linear(32, 1)
        self.reentrant, self.calls = use_reentrant, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        x = self.body[0](x.repeat(1, 8))
        for i in (1, 3, 2, 3):
            x = checkpoint(self.body[i], x, use_reentrant=self.reentrant) if self.calls > 2 else self.body[i](x)
        return self.last(x)


def test_gradients_that_come_twice(hint: Any) -> None:
    if os.environ["ANYACCEL_TORCH_BUCKET_MB"] == "inf":  # as the hint says, in processes that have begun with it
        assert train(Twice(use_reentrant=True)).loss.size
        return
    with hint("checkpoint with use_reentrant=False, or exchange all gradients after the pass: {}=inf"):
        train(Twice(use_reentrant=True))
    assert train(Twice(use_reentrant=False)).loss.size


def test_a_group_that_the_script_has_joined(hint: Any) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert dist.is_initialized()  # by the first test
    with hint("leave out init_process_group, or pass it the launcher's RANK and WORLD_SIZE"):
        TorchReplicaGroup(rank, 3)
    assert TorchReplicaGroup(rank, size).size == 2  # which the launcher gave, as RANK and WORLD_SIZE: anyaccel joined
