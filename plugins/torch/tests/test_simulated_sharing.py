"""Modules that are placed on simulated torch devices: parameters, ties, hooks and attributes stay what they were.

Run by test_simulated.py in a process of its own, as torch cannot be rid of the devices again. torch's simulated device
lets `Module.to` swap tensors, which a chip of torch's PrivateUse1 does not ask for: both are tested.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

if not os.environ.get("ANYACCEL_TORCH_SIMULATE"):
    pytest.skip("run by test_simulated.py, in a process of its own", allow_module_level=True)

import torch
from torch import nn

import anyaccel as aa
from anyaccel_torch import simulated

DEVICES = simulated.start(2)
TOKENS = np.random.default_rng(0).integers(0, 8, (32, 4))


@pytest.fixture(autouse=True, params=[True, False], ids=["swapped", "as on PrivateUse1"])
def swaps(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(request.param)
    torch.manual_seed(0)
    yield
    torch.__future__.set_swap_module_params_on_conversion(True)


class Tied(nn.Module):
    """A model of language whose last layer has the weights of its first, with a buffer that two modules share."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(8, 6), nn.Linear(6, 8, bias=False)
        self.out.weight = self.embedding.weight
        self.norm = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))
        self.register_buffer("scale", torch.ones(6))
        self.embedding.register_buffer("scale", self.scale)
        self.listed = [self.embedding.weight]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.embedding(tokens)) * self.scale).mean(dim=1)


def by_hand() -> list[float]:
    """Losses of four steps by torch alone, on the CPU."""
    torch.manual_seed(0)
    model, tokens = Tied(), torch.tensor(TOKENS)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for start in (0, 8, 16, 24):
        rows = tokens[start : start + 8]
        loss = nn.functional.cross_entropy(model(rows), rows[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_an_optimizer_that_was_made_before_trains_a_placed_model_as_on_the_cpu() -> None:
    """Tied weights came apart, and the optimizer kept parameters that nobody computed with."""
    expected = by_hand()
    torch.manual_seed(0)
    model, tokens = Tied(), torch.tensor(TOKENS).to("sim:0")
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    before = dict(model.named_parameters(remove_duplicate=False))
    assert aa.place(model, "sim:0") is model
    for start in (0, 8, 16, 24):
        rows = tokens[start : start + 8]
        loss = nn.functional.cross_entropy(model(rows), rows[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        del loss
    assert np.allclose(losses, expected, rtol=1e-5)
    for _ in range(2):  # there, and back
        now = dict(model.named_parameters(remove_duplicate=False))
        assert all(now[name] is parameter for name, parameter in before.items())
        assert model.listed[0] is model.out.weight and model.scale is model.embedding.scale
        aa.place(model, "cpu")
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


def test_a_phase_trains_tied_weights_there_and_leaves_them_tied_on_the_cpu() -> None:
    expected = by_hand()
    torch.manual_seed(0)
    model = Tied()
    weight = model.embedding.weight
    data = aa.FeatureSet.from_dict("d", {"x": TOKENS, "y": TOKENS[:, 0]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], aa.Optimizer("sgd", lr=0.5))
    losses = [aa.AppliedLoss("cross_entropy", on="net")]
    phase = aa.TrainPhase(
        "t", data="all", losses=losses, sampler=aa.SimpleSampler(8), accelerator="sim:1", final_device="cpu"
    )
    results = aa.Experiment("e", graph, progress="none").run_phase(phase)
    assert np.allclose(results.loss, [np.mean(expected)], rtol=1e-5)
    assert model.out.weight is model.embedding.weight is weight and weight.device.type == "cpu"


def test_two_nodes_that_share_a_weight_share_it_when_each_is_placed_by_itself() -> None:
    first, last = nn.Embedding(8, 6), nn.Linear(6, 8, bias=False)
    last.weight = first.weight
    placed = aa.place({"first": first, "last": last}, "sim:0")
    assert placed["first"].weight is placed["last"].weight and first.weight.device.type == "sim"


def test_hooks_attributes_and_gradients_of_parameters_stay() -> None:
    model, calls = nn.Linear(2, 2), []
    handle = model.weight.register_hook(lambda gradient: calls.append("gradient"))
    model.weight.register_post_accumulate_grad_hook(lambda parameter: calls.append("accumulated"))
    model.weight.tag, model.weight.grad = "kept", torch.ones(2, 2)
    aa.place(model, "sim:0")
    assert model.weight.tag == "kept" and model.weight.grad.device.type == "sim"
    model(torch.ones(1, 2).to("sim:0")).sum().backward()
    assert calls == ["gradient", "accumulated"]
    handle.remove()
    model(torch.ones(1, 2).to("sim:0")).sum().backward()
    assert calls == ["gradient", "accumulated", "accumulated"]


def test_a_recurrent_layer_computes_with_the_parameters_that_an_optimizer_has() -> None:
    model = nn.LSTM(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    aa.place(model, "sim:0")
    before, rows = model.weight_ih_l0.detach().cpu().clone(), torch.ones(2, 1, 3).to("sim:0")
    first = model(rows)[0].detach().cpu()
    model(rows)[0].sum().backward()
    optimizer.step()
    assert not torch.equal(model.weight_ih_l0.detach().cpu(), before)
    assert not torch.equal(model(rows)[0].detach().cpu(), first)


def test_parameters_that_are_in_use_are_new_ones_with_a_warning_that_says_what_to_do() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    output = model(torch.ones(1, 2))  # its graph holds a weight
    with pytest.warns(UserWarning, match=r"Sequential has new parameters on sim:0.*place a model before you compute"):
        aa.place(model, "sim:0")
    del output
    fresh = nn.Linear(2, 2)
    aa.place(fresh, "sim:0")  # as the hint says: no warning, which is an error here


def test_a_model_that_is_placed_in_inference_mode_can_be_trained() -> None:
    model = nn.Linear(2, 2)
    with torch.inference_mode():
        aa.place(model, "sim:0")
    model(torch.ones(1, 2).to("sim:0")).sum().backward()
    assert model.weight.grad is not None


def test_a_tensor_that_is_in_a_container_twice_is_one_afterwards() -> None:
    tensor = torch.ones(3)
    moved = aa.move({"a": tensor, "b": [tensor]}, "sim:0")
    assert moved["a"] is moved["b"][0] and moved["a"].device.type == "sim"
