"""Frozen nodes: what they share with trained ones is not changed behind their back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import anyaccel as aa
from anyaccel.errors import GraphError


def source() -> aa.FeatureSet:
    draw = np.random.default_rng(0)
    columns = {"x": draw.normal(size=(8, 3)).astype("float32"), "y": draw.normal(size=(8, 2)).astype("float32")}
    return aa.FeatureSet.from_dict("data", columns, ["x"], ["y"])


def train(kept: nn.Module, taught: nn.Module, *, takes_part: bool = True, loss: object = "mse") -> None:
    """Train `taught`; `kept` is frozen, and comes before it or takes no part."""
    reference = source().reference()
    nodes = [
        aa.ModelNode("kept", kept, reference),
        aa.ModelNode("taught", taught, "kept" if takes_part else reference),
    ]
    phase = aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss(loss, on="taught")], batch_size=4, compile="off")
    aa.Experiment("e", aa.ModelGraph(nodes, "sgd").freeze("kept"), progress="none").run_phase(phase)


@pytest.mark.parametrize("takes_part", [True, False])
def test_a_frozen_node_does_not_share_a_parameter_with_one_that_is_trained(takes_part: bool) -> None:
    shared = nn.Linear(3, 3)
    before = shared.weight.detach().clone()
    with pytest.raises(
        GraphError,
        match=r"^node 'taught' is trained and shares the parameter '0\.weight' with node 'kept', which is frozen\. "
        r"Hint: freeze both, use separate parameters, or set requires_grad=False for parameters that must not be "
        r"trained\.$",
    ):
        train(nn.Sequential(shared), nn.Sequential(shared, nn.Linear(3, 2)), takes_part=takes_part)
    assert torch.equal(shared.weight, before) and shared.weight.requires_grad


def test_what_the_user_does_not_train_may_be_shared() -> None:
    shared, own = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 2)
    before = shared.weight.clone(), own.weight.detach().clone()
    train(nn.Sequential(shared), nn.Sequential(shared, own))
    assert torch.equal(shared.weight, before[0]) and not torch.equal(own.weight, before[1])


@pytest.mark.parametrize("shared", [nn.Dropout(), nn.BatchNorm1d(3, affine=False)])
def test_a_frozen_node_does_not_share_what_acts_otherwise_in_training(shared: nn.Module) -> None:
    with pytest.raises(GraphError, match=r"shares the module '0', which depends on the mode with node 'kept'"):
        train(nn.Sequential(shared), nn.Sequential(shared, nn.Linear(3, 2)))


def test_a_loss_does_not_train_a_frozen_node() -> None:
    class Perceptual(nn.Module):
        def __init__(self, encoder: nn.Module) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return (self.encoder(outputs) - self.encoder(targets)).square().mean()

    kept = nn.Linear(3, 3)
    with pytest.raises(GraphError, match=r"^the loss 'taught' is trained and shares the parameter 'encoder\.weight'"):
        train(kept, nn.Linear(3, 2), loss=Perceptual(kept))
