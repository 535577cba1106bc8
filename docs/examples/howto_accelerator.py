"""The accelerator, step by step: devices per phase and per node, several devices, pinned memory, a continued run.

Runs with NumPy on simulated devices, and again with torch if `anyaccel_torch` is installed.

It prints:

    numpy on cpu:0, sim:0, sim:1: 35.073 to 3.133 in 3 epochs
    torch on ...: 35.073 to 3.133 in 3 epochs
"""

from __future__ import annotations

from typing import Any

import numpy as np

import anyaccel
from anyaccel import (
    Accelerator,
    AppliedLoss,
    EvalPhase,
    Experiment,
    FeatureSet,
    ModelGraph,
    ModelNode,
    Optimizer,
    SimpleSampler,
    TrainPhase,
)

LOSS = AppliedLoss("mse", on="head")
SAMPLER = SimpleSampler(batch_size=32, shuffle=True, seed=7)


def regression() -> FeatureSet:
    """500 samples of 50 features in float64 and one target, four fifths of them for training."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 50))
    y = x @ rng.normal(size=50) + 0.1 * rng.normal(size=500)
    data = FeatureSet.from_dict("data", {"x": x, "y": y}, features=["x"], target=["y"])
    data.split_random({"train": 0.8, "test": 0.2}, seed=0)
    return data


def experiment(mlp: Any, encoder_on: Any = None, head_on: Any = None) -> Experiment:
    """A two-layer MLP as two nodes, trained by Adam; each node may have an accelerator."""
    encoder = ModelNode("encoder", mlp(output_shape=(16,), n_layers=1), regression().reference(), encoder_on)
    head = ModelNode("head", mlp(output_shape=(1,), n_layers=1), "encoder", head_on)
    return Experiment("howto", ModelGraph([encoder, head], Optimizer("adam", lr=1e-2), seed=1))


def train(epochs: int = 3, **settings: Any) -> TrainPhase:
    """The same training every time."""
    return TrainPhase.from_split("train", split="train", sampler=SAMPLER, losses=[LOSS], epochs=epochs, **settings)


def one_value_for_one_place() -> None:
    """A device is one value however it is spelt; a vendor's word is part of what is asked for."""
    assert Accelerator("cuda").device == Accelerator("cuda:0").device == Accelerator("gpu:0").device
    assert Accelerator("cuda") == Accelerator.cuda() != Accelerator("rocm")
    assert str(Accelerator("cuda:1")) == "gpu:1"
    assert Accelerator("cuda").vendor == "nvidia" and Accelerator("gpu").vendor == ""
    assert Accelerator("metal") == Accelerator("mps:0") != Accelerator("gpu")
    assert Accelerator() == Accelerator("cpu") == Accelerator.cpu()

    pinned_memory = Accelerator("cuda:1", pin_memory=True)
    assert pinned_memory.get_config() == {"device": "cuda:1", "pin_memory": True}
    assert Accelerator.from_config(pinned_memory.get_config()) == pinned_memory


def available(framework: str) -> list[anyaccel.Device]:
    """The devices of this machine that a framework can use; creating an Accelerator looks nothing up."""
    everything = anyaccel.devices()
    assert Accelerator("cpu").is_available() and Accelerator("cpu").is_available(framework)
    assert not Accelerator("gpu:99").is_available()
    assert anyaccel.best_device() in everything  # a GPU, else another accelerator, else the CPU
    assert anyaccel.devices_or_cpu("gpu")  # never empty: the CPU where there is no GPU
    return [device for device in everything if Accelerator(device).is_available(framework)]


def by_phase(mlp: Any, device: anyaccel.Device) -> np.ndarray:
    """A phase's accelerator, as an object or as text, says where its nodes are computed."""
    by_object, by_text = experiment(mlp), experiment(mlp)
    losses = by_object.run_phase(train(accelerator=Accelerator(device))).loss
    np.testing.assert_allclose(by_text.run_phase(train(accelerator=str(device))).loss, losses, rtol=1e-4)

    plan = by_text.last_run.plan
    assert plan is not None
    assert plan.device("encoder") == plan.device("head") == device
    assert plan["head"].reason == "phase"
    (x, y) = plan.columns  # float64 is cast once, when the data are loaded, and the plan says so
    assert (x.stored.dtype, x.spec.dtype) == (y.stored.dtype, y.spec.dtype) == ("float64", "float32")

    # After a phase everything stays where it is.
    assert anyaccel.device_of(by_text.graph["head"].model) == device
    tested = by_text.run_phase(EvalPhase.from_split("test", split="test", losses=[LOSS], accelerator=str(device)))
    assert np.isfinite(tested.loss) and tested.prediction("head").shape == (100, 1)
    return np.asarray(losses)


def by_node(mlp: Any, first: anyaccel.Device, second: anyaccel.Device, expected: np.ndarray) -> None:
    """A node's own accelerator wins over the phase's. Encoder and head on two devices give the same losses."""
    split = experiment(mlp, encoder_on=Accelerator(first), head_on=str(second))
    phase = train(accelerator="cpu")

    plan = split.plan(phase)  # nothing has moved yet
    assert (plan.device("encoder"), plan.device("head")) == (first, second)
    assert plan["encoder"].reason == "node"
    assert "its own accelerator" in plan.explain("encoder")
    crossings = [(c.origin, c.destination, c.gradient) for c in plan.crossings]  # the value, and its gradient
    assert crossings == ([(first, second, False), (second, first, True)] if first != second else [])

    np.testing.assert_allclose(split.run_phase(phase).loss, expected, rtol=1e-4)
    assert anyaccel.device_of(split.graph["head"].model) == second


def pinned(mlp: Any, device: anyaccel.Device, expected: np.ndarray) -> None:
    """Pinned memory is a wish: where it is not supported, on the CPU for instance, it has no effect."""
    accelerator = Accelerator(device, pin_memory=True)
    np.testing.assert_allclose(experiment(mlp).run_phase(train(accelerator=accelerator)).loss, expected, rtol=1e-4)


def by_hand(framework: str, device: anyaccel.Device) -> None:
    """The same accelerator without a graph: native names, scopes, and moving containers of tensors."""
    accelerator = Accelerator(device)
    assert accelerator.device_string(framework)  # the framework's own name, such as "cuda:0"
    with accelerator.scope(framework):
        pass  # new tensors of the framework land on the device

    batch = {"x": np.ones((2, 3)), "tags": ["a", "b"]}
    moved = accelerator.move(batch, framework=framework)
    assert anyaccel.device_of(moved["x"]) == device and moved["tags"] == ["a", "b"]
    again = accelerator.move(moved)
    assert again["x"] is moved["x"]  # a tensor that is already there is not copied


def continued(mlp: Any, device: anyaccel.Device) -> None:
    """Three epochs, a saved state of names and arrays, and three more epochs equal six epochs."""
    straight = experiment(mlp)
    straight.run_phase(train(6, accelerator=device))

    stopped = experiment(mlp)
    stopped.run_phase(train(3, accelerator=device))
    state = stopped.graph.state()

    resumed = experiment(mlp)
    resumed.graph.load_state(state)
    resumed.run_phase(train(3, accelerator=device))
    tolerance = 0 if device.kind == "cpu" else 1e-4  # on a GPU, sums may be taken in another order
    for name, array in straight.graph.state().items():
        np.testing.assert_allclose(resumed.graph.state()[name], array, rtol=tolerance, atol=tolerance, err_msg=name)
    assert [epoch.number for epoch in resumed.last_run.epochs] == [3, 4, 5]


def walk(framework: str, mlp: Any) -> None:
    """All steps with one framework."""
    usable = available(framework)
    first, second = (usable * 2)[-2:]  # the same device twice if there is only one
    losses = by_phase(mlp, usable[0])
    by_node(mlp, first, second, losses)
    pinned(mlp, usable[0], losses)
    by_hand(framework, usable[0])
    continued(mlp, usable[0])
    print(f"{framework} on {', '.join(map(str, usable))}: {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} epochs")


def main() -> None:
    """With NumPy on two simulated devices, and with torch if it is installed."""
    one_value_for_one_place()
    with anyaccel.simulate(2):
        walk("numpy", anyaccel.SequentialMLP)
        if Accelerator("cpu").is_available("torch"):
            from anyaccel_torch import SequentialMLP

            walk("torch", SequentialMLP)


if __name__ == "__main__":
    main()
