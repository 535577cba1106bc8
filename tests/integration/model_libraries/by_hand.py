"""Three steps of a torch model in a node, as it is, and the same three steps in a loop by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import anyaccel as aa

STEPS, BATCH, RATE = 3, 2, 0.01
ROWS = STEPS * BATCH

Batch = Mapping[str, Tensor]
Rows = Mapping[str, np.ndarray]


def feature_set(rows: Rows, targets: Sequence[str]) -> aa.FeatureSet:
    """Rows of a model's inputs and targets, by name."""
    features = [name for name in rows if name not in targets]
    return aa.FeatureSet.from_dict("data", dict(rows), features, [name for name in rows if name in targets])


def mean_loss_in_a_node(node: aa.ModelNode, losses: Any) -> float:
    """The mean loss of three steps of a phase, which trains the model of the node."""
    graph = aa.ModelGraph([node], aa.Optimizer("sgd", lr=RATE))
    phase = aa.TrainPhase("train", data="all", losses=losses, sampler=aa.SimpleSampler(BATCH), epochs=1)
    result = aa.Experiment("model", graph, progress="none").run_phase(phase)
    return float(result.loss[-1])


def mean_loss_by_hand(model: nn.Module, rows: Rows, loss_of: Callable[[nn.Module, Batch], Tensor]) -> float:
    """The mean loss of three steps of a plain loop, which trains the model."""
    optimizer, losses = torch.optim.SGD(model.train().parameters(), lr=RATE), []
    for start in range(0, ROWS, BATCH):
        loss = loss_of(model, {name: torch.from_numpy(array[start : start + BATCH]) for name, array in rows.items()})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return float(np.mean(losses))


def check_equal(
    model: nn.Module,
    rows: Rows,
    targets: Sequence[str],
    in_a_node: Callable[[nn.Module, aa.FeatureSet], tuple[aa.ModelNode, Any]],
    loss_of: Callable[[nn.Module, Batch], Tensor],
) -> None:
    """Train copies of a model both ways from one seed, and compare their losses, parameters and buffers.

    Args:
        model: in whatever mode it is.
        rows: of its inputs and targets.
        targets: names of the targets.
        in_a_node: gives the node of the model and the losses of the phase.
        loss_of: the loss of a batch by hand.
    """
    own, before = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    expected = mean_loss_by_hand(own, rows, loss_of)
    node, losses = in_a_node(model, feature_set(rows, targets))
    np.testing.assert_allclose(mean_loss_in_a_node(node, losses), expected, rtol=1e-5)
    trained, other = model.state_dict(), own.state_dict()
    assert trained.keys() == other.keys()
    assert any(not torch.equal(tensor, before[name]) for name, tensor in trained.items()), "nothing was trained"
    for name, tensor in trained.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-5, atol=1e-6, msg=f"{name} differs")


def check_custom_loss(model: nn.Module, rows: Rows, targets: Sequence[str]) -> None:
    """As `check_equal`, of a model that takes all inputs by keyword and returns its loss as `loss`."""

    def in_a_node(model: nn.Module, data: aa.FeatureSet) -> tuple[aa.ModelNode, Any]:
        upstream = {name: data.reference(name) for name in rows}
        return aa.ModelNode("net", model, upstream), aa.AppliedLoss.from_output("net", "loss")

    def loss_of(model: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = model(**batch).loss
        return loss

    check_equal(model, rows, targets, in_a_node, loss_of)
