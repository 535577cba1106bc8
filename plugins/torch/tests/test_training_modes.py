"""Training modes: of parts in evaluation mode, of modes as they are, and of frozen nodes that run in training mode."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import anyaccel as aa
from anyaccel.errors import GraphError

ROWS, BATCH = 32, 8


def table(targets: int = 1) -> aa.FeatureSet:
    draw = np.random.default_rng(0)
    columns = {"x": draw.normal(size=(ROWS, 3)), "y": draw.normal(size=(ROWS, targets))}
    return aa.FeatureSet.from_dict("data", {k: v.astype("float32") for k, v in columns.items()}, ["x"], ["y"])


class Wrapper(nn.Module):
    """A head on a model that others have trained."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.body(x))


def pretrained() -> nn.Module:
    """In evaluation mode, as `from_pretrained` gives it."""
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4)).eval()


def wrapper() -> Wrapper:
    torch.manual_seed(0)
    return Wrapper(pretrained())


def batches(data: aa.FeatureSet, epochs: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    arrays = (torch.tensor(data.array(name)).reshape(ROWS, -1) for name in ("x", "y"))
    return list(zip(*(array.split(BATCH) for array in arrays), strict=True)) * epochs


def by_hand(model: nn.Module, data: aa.FeatureSet, epochs: int = 1) -> list[float]:
    """A plain loop over a model in the modes that it is in; the mean loss of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x, y in batches(data, epochs):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def phase(**settings: Any) -> aa.TrainPhase:
    sampler = aa.SimpleSampler(BATCH)
    losses = [aa.AppliedLoss("mse", on="net")]
    return aa.TrainPhase("t", **{"data": "all", "losses": losses, "sampler": sampler, "compile": "off", **settings})


def trained(node: aa.ModelNode, **settings: Any) -> Any:
    graph = aa.ModelGraph([node], aa.Optimizer("sgd", lr=0.1))
    return aa.Experiment("e", graph, progress="none").run_phase(phase(**settings))


def assert_equal(first: nn.Module, second: nn.Module) -> None:
    for (name, value), other in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        torch.testing.assert_close(value, other, rtol=1e-6, atol=1e-7, msg=name)


def without_dropout(model: nn.Module) -> nn.Module:
    """Its random numbers would follow from another seed by hand."""
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return model


@pytest.mark.parametrize("compile_mode", ["off", "steps"])
def test_a_model_in_evaluation_mode_in_a_wrapper_trains_in_training_mode(compile_mode: str) -> None:
    model, data = without_dropout(wrapper()), table()
    reference = copy.deepcopy(model).train()
    expected = by_hand(reference, data)
    result = trained(aa.ModelNode("net", model, data.reference()), compile=compile_mode)
    assert result.loss[0] == pytest.approx(np.mean(expected), rel=1e-5)
    assert int(model.body[1].num_batches_tracked) == ROWS // BATCH, "batch normalization was in training mode"
    assert_equal(model, reference)
    assert model.training and not model.body.training, "afterwards the modes are as they were"


def test_dropout_in_a_part_in_evaluation_mode_is_active() -> None:
    seen = []
    model = wrapper()
    model.body[2].register_forward_hook(
        lambda module, _, output: seen.append((module.training, bool((output == 0).any())))
    )
    trained(aa.ModelNode("net", model, table().reference()))
    assert (True, True) in seen and not any(training and not zeros for training, zeros in seen)


@pytest.mark.parametrize("compile_mode", ["off", pytest.param("steps", marks=pytest.mark.whole)])
def test_modes_as_is_keep_each_part_in_its_mode(compile_mode: str) -> None:
    model, data = wrapper(), table()
    reference = copy.deepcopy(model)
    expected = by_hand(reference, data, epochs=2)
    node = aa.ModelNode("net", model, data.reference(), modes="as_is")
    result = trained(node, epochs=2, validation="all", compile=compile_mode)
    assert result.loss[1] == pytest.approx(np.mean(expected[ROWS // BATCH :]), rel=1e-5)
    assert int(model.body[1].num_batches_tracked) == 0
    assert_equal(model, reference)
    assert model.training and model.head.training and not model.body.training


def test_modes_as_is_of_a_model_in_evaluation_mode_train_in_evaluation_mode() -> None:
    model, data = wrapper().eval(), table()
    reference = copy.deepcopy(model)
    by_hand(reference, data)
    trained(aa.ModelNode("net", model, data.reference(), modes="as_is"))
    assert_equal(model, reference)


class KeepsStatistics(Wrapper):
    """Freezes its batch normalization in the way of many models: by a `train` of its own."""

    def train(self, mode: bool = True) -> KeepsStatistics:
        super().train(mode)
        self.body[1].eval()
        return self


def test_a_model_whose_train_method_leaves_a_part_in_evaluation_mode_is_heard() -> None:
    torch.manual_seed(0)
    model, data = without_dropout(KeepsStatistics(pretrained())), table()
    reference = copy.deepcopy(model)
    reference.train()
    by_hand(reference, data)
    trained(aa.ModelNode("net", model, data.reference()))
    assert int(model.body[1].num_batches_tracked) == 0
    assert_equal(model, reference)


# -- frozen nodes in training mode -------------------------------------------------------------------------------------


def adversarial(mode: str) -> tuple[aa.ModelGraph, nn.Module, nn.Module]:
    """A generator, and a critic with batch normalization that judges it and is frozen in this mode."""
    torch.manual_seed(0)
    generator = nn.Linear(3, 4)
    critic = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
    nodes = [aa.ModelNode("generator", generator, table().reference()), aa.ModelNode("net", critic, "generator")]
    return aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.1)).freeze("net", mode=mode), generator, critic


@pytest.mark.parametrize("compile_mode", ["off", pytest.param("steps", marks=pytest.mark.whole)])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_frozen_node_runs_in_the_mode_asked_for(mode: str, compile_mode: str) -> None:
    graph, generator, critic = adversarial(mode)
    by_hand_generator, by_hand_critic = copy.deepcopy(generator), copy.deepcopy(critic).train(mode == "train")
    optimizer = torch.optim.SGD(by_hand_generator.parameters(), lr=0.1)
    for x, y in batches(table()):
        optimizer.zero_grad()
        F.mse_loss(by_hand_critic(by_hand_generator(x)), y).backward()
        optimizer.step()
    result = aa.Experiment("e", graph, progress="none").run_phase(phase(compile=compile_mode))
    assert_equal(generator, by_hand_generator)
    assert_equal(critic, by_hand_critic)
    assert int(critic[1].num_batches_tracked) == (ROWS // BATCH if mode == "train" else 0)
    assert ("net is frozen and runs in training mode: its running statistics move" in result.plan.notes) is (
        mode == "train"
    )
    assert all(parameter.requires_grad for parameter in critic.parameters()) and critic.training


def test_freezing_again_and_unfreezing_set_the_mode() -> None:
    graph, _, _ = adversarial("train")
    assert graph["net"].frozen_mode == "train"
    assert graph.freeze("net")["net"].frozen_mode == "eval"
    assert not graph.freeze("net", mode="train").unfreeze("net")["net"].frozen


def test_nodes_of_one_model_must_be_frozen_in_one_mode() -> None:
    shared, data = nn.Linear(3, 1), table()
    nodes = [aa.ModelNode("net", shared, data.reference()), aa.ModelNode("twin", shared, data.reference())]
    nodes.append(aa.ModelNode("own", nn.Linear(3, 1), data.reference()))
    graph = aa.ModelGraph(nodes, "sgd").freeze("net", mode="train").freeze("twin")
    losses = [aa.AppliedLoss("mse", on=label) for label in ("net", "twin", "own")]
    with pytest.raises(GraphError, match="share one model but differ in frozen, its mode, modes or optimizer") as error:
        aa.Experiment("e", graph, progress="none").run_phase(phase(losses=losses))
    assert error.value.hint.startswith("use the same mode, modes and optimizer")
    graph.freeze("twin", mode="train")
    assert aa.Experiment("e", graph, progress="none").run_phase(phase(losses=losses)).epochs
