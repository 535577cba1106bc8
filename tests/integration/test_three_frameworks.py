"""torch, JAX and TensorFlow in one graph and one process: the losses of torch alone, through shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.registry import registry

Three = tuple[str, str, str]
ROWS, BATCH = 400, 16


def mlp(framework: str, out: int, layers: int = 2, **settings: Any) -> Any:
    """A multi-layer perceptron of a framework, with the weights that the graph's seed gives it everywhere."""
    cls: Any = registry().computing(framework).models()["SequentialMLP"]
    return cls(output_shape=(out,), n_layers=layers, **{"hidden_dim": 8, "activation": "tanh", **settings})


def table(rows: int = ROWS, dtype: str = "float32") -> aa.FeatureSet:
    """Ten numbers to two, with a curve in it."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((rows, 10))
    y = np.stack([np.sin(x[:, 0] * x[:, 1]), x[:, 2:5].sum(1)], axis=1)
    return aa.FeatureSet.from_dict("data", {"x": x.astype(dtype), "y": y.astype(dtype)}, ["x"], ["y"])


def chain(frameworks: tuple[str, ...], source: aa.FeatureSet, optimizer: aa.Optimizer | None = None) -> aa.ModelGraph:
    """Encoder, body and head, each of a framework."""
    nodes = [
        aa.ModelNode("encoder", mlp(frameworks[0], 6), source.reference()),
        aa.ModelNode("body", mlp(frameworks[1], 5), "encoder"),
        aa.ModelNode("head", mlp(frameworks[2], 2), "body"),
    ]
    return aa.ModelGraph(nodes, optimizer or aa.Optimizer("adam", lr=3e-3, clip_norm=0.3), seed=11)


class RecordLosses(aa.Callback):
    """Records the losses of every step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def step_end(self, run: Any) -> None:
        self.losses += list(run.step_losses().values())


def train(graph: aa.ModelGraph, source: aa.FeatureSet, on: str, epochs: int, **settings: Any) -> tuple[Any, np.ndarray]:
    """The results of some shuffled epochs, and the loss of every step."""
    recorder = RecordLosses()
    phase = aa.TrainPhase(
        "train",
        data=source,
        losses=[aa.AppliedLoss("mse", on=on)],
        sampler=aa.SimpleSampler(BATCH, shuffle=True, seed=3),
        epochs=epochs,
        callbacks=[recorder],
        **settings,
    )
    return aa.Experiment("mixed", graph, progress="none").run_phase(phase), np.array(recorder.losses)


# -- the same losses ---------------------------------------------------------------------------------------------------


def test_a_chain_of_three_frameworks_trains_like_torch_alone(three: Three) -> None:
    source = table()
    mixed, alone = chain(three, source), chain(("torch",) * 3, source)
    results, losses = train(mixed, source, "head", epochs=8)
    _, expected = train(alone, source, "head", epochs=8)
    assert [part.framework for part in results.plan.parts] == list(three)
    assert len(losses) == 200 and losses[-25:].mean() < 0.8 * losses[:25].mean()
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


@pytest.mark.parametrize("order", [(1, 2, 0), (2, 0, 1), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_a_chain_of_three_frameworks_trains_in_any_order(three: Three, order: tuple[int, ...]) -> None:
    source, frameworks = table(160), tuple(three[i] for i in order)
    _, losses = train(chain(frameworks, source), source, "head", epochs=2)
    _, expected = train(chain(("torch",) * 3, source), source, "head", epochs=2)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


def test_segments_stay_convex_around_another_framework(three: Three) -> None:
    """torch A -> JAX B -> torch C, and A -> C beside it."""
    source, losses = table(), []
    for middle in ("jax", "torch"):
        nodes = [
            aa.ModelNode("a", mlp("torch", 6), source.reference()),
            aa.ModelNode("b", mlp(middle, 5), "a"),
            aa.ConcatNode("both", ["a", "b"]),
            aa.ModelNode("c", mlp("torch", 2), "both"),
        ]
        graph = aa.ModelGraph(nodes, aa.Optimizer("adamw", lr=3e-3, clip_norm=0.3), seed=11)
        results, found = train(graph, source, "c", epochs=4)
        losses.append(found)
        parts = [(part.framework, part.nodes) for part in results.plan.parts]
        if middle == "jax":
            assert parts == [("torch", ("a",)), ("jax", ("b",)), ("torch", ("both", "c"))]
        else:
            assert len(parts) == 1
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_branches_of_two_frameworks_with_a_loss_each_train_like_torch_alone(three: Three) -> None:
    """Branches of two frameworks meet in a third; a loss on each, weighted; one optimizer of its own."""
    source, found = table(), []
    for one, two, head in (("jax", "tensorflow", "torch"), ("torch",) * 3):
        nodes = [
            aa.ModelNode("one", mlp(one, 2), source.reference(), optimizer=aa.Optimizer("sgd", lr=0.05, clip_norm=0.1)),
            aa.ModelNode("two", mlp(two, 2), source.reference()),
            aa.ConcatNode("both", ["one", "two"]),
            aa.ModelNode("head", mlp(head, 2), "both"),
        ]
        graph = aa.ModelGraph(nodes, aa.Optimizer("adam", lr=3e-3, clip_norm=0.3), seed=5)
        phase = aa.TrainPhase(
            "train",
            data=source,
            losses=[
                aa.AppliedLoss("mse", on="head", label="head"),
                aa.AppliedLoss("mae", on="one", weight=0.5, label="one"),
                aa.AppliedLoss("mse", on="two", weight=0.1, label="two"),
            ],
            batch_size=BATCH,
            epochs=4,
        )
        results = aa.Experiment("e", graph, progress="none").run_phase(phase)
        found.append({name: results.figure(f"loss.{name}") for name in ("head", "one", "two")})
    for name, values in found[0].items():
        np.testing.assert_allclose(values, found[1][name], rtol=1e-4, err_msg=name)


def losses_by(framework: str, dtype: str, epochs: int) -> np.ndarray:
    """The losses of every step of two layers of tanh and Adam, in one framework."""
    source = table(dtype=dtype)
    model = mlp(framework, 2, layers=3, hidden_dim=16, dtype=dtype)
    graph = aa.ModelGraph([aa.ModelNode("net", model, source.reference())], aa.Optimizer("adam", lr=2e-3), seed=4)
    return train(graph, source, "net", epochs)[1]


@pytest.mark.parametrize(("dtype", "early", "late"), [("float32", 1e-5, 1e-4), ("float64", 1e-8, 1e-8)])
def test_the_same_model_and_optimizer_give_the_same_losses_in_every_framework(
    three: Three, dtype: str, early: float, late: float
) -> None:
    """50 steps of Adam, and 500."""
    expected = losses_by("numpy", dtype, epochs=20)
    assert len(expected) == 500
    for framework in three:
        losses = losses_by(framework, dtype, epochs=20)
        np.testing.assert_allclose(losses[:50], expected[:50], rtol=early, err_msg=framework)
        np.testing.assert_allclose(losses, expected, rtol=late, err_msg=framework)


# -- between segments --------------------------------------------------------------------------------------------------


def pointer(tensor: Any) -> int:
    """Where the first number of a tensor is."""
    if type(tensor).__module__.startswith("torch"):
        return int(tensor.data_ptr())
    return int(np.asarray(tensor).__array_interface__["data"][0])


@pytest.fixture
def crossed(three: Three, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool, np.ndarray]]:
    """Records transfers between frameworks: to which one, whether memory is shared, and the values."""
    transfers: list[tuple[str, bool, np.ndarray]] = []

    def recording(name: str, from_dlpack: Callable[..., Any]) -> Callable[..., Any]:
        def record(self: Any, foreign: Any, device: aa.Device) -> Any:
            tensor = from_dlpack(self, foreign, device)
            values = np.array(registry().computing(name).to_host(tensor))
            transfers.append((name, pointer(foreign) == pointer(tensor), values))
            return tensor

        return record

    for name in three:
        cls: Any = type(registry().find(name))
        monkeypatch.setattr(cls, "from_dlpack", recording(name, cls.from_dlpack))
    return transfers


def torch_values(graph: aa.ModelGraph, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Values and gradients between encoder, body and head, by torch's own autograd."""
    import torch

    state = graph.state()
    value, kept = torch.from_numpy(x), {}
    for label in ("encoder", "body", "head"):
        for i in range(2):
            weight, bias = (
                torch.from_numpy(state[f"{label}/parameters/layers.{i}.{name}"]) for name in ("weight", "bias")
            )
            value = torch.nn.functional.linear(value, weight, bias)
            value = torch.tanh(value) if i == 0 else value
        if label == "encoder":
            value.requires_grad_()
        if label != "head":
            value.retain_grad()
            kept[label] = value
    torch.nn.functional.mse_loss(value, torch.from_numpy(y)).backward()
    values = {label: tensor.detach().numpy() for label, tensor in kept.items()}
    return values | {f"gradient of {label}": tensor.grad.numpy() for label, tensor in kept.items()}


def test_values_and_gradients_cross_in_shared_memory(three: Three, crossed: list[tuple[str, bool, np.ndarray]]) -> None:
    source = table(BATCH)
    graph = chain(three, source, aa.Optimizer("sgd", lr=0.1)).build()
    expected = torch_values(graph, source.array("x").copy(), source.array("y").copy())
    inorder = aa.SimpleSampler(BATCH, shuffle=False)
    phase = aa.TrainPhase("t", data=source, losses=[aa.AppliedLoss("mse", on="head")], sampler=inorder)
    results = aa.Experiment("e", graph, progress="none").run_phase(phase)
    plan = [(each.value, each.gradient, each.route) for each in results.plan.crossings]
    assert plan == [(n, back, "share") for n in ("encoder", "body") for back in (False, True)]
    assert [(name, shared) for name, shared, _ in crossed] == [
        ("jax", True),
        ("tensorflow", True),
        ("jax", True),
        ("torch", True),
    ]
    order = ("encoder", "body", "gradient of body", "gradient of encoder")
    for what, (_, _, values) in zip(order, crossed, strict=True):
        scale = np.abs(expected[what]).max()
        np.testing.assert_allclose(values, expected[what], rtol=1e-5, atol=1e-5 * scale, err_msg=what)


def test_clipping_over_three_frameworks_transfers_scalars_on_the_device(
    three: Three, crossed: list[tuple[str, bool, np.ndarray]]
) -> None:
    source = table(BATCH)
    graph = chain(three, source)
    phase = aa.TrainPhase("t", data=source, losses=[aa.AppliedLoss("mse", on="head")], batch_size=BATCH)
    aa.Experiment("e", graph, progress="none").run_phase(phase)
    scalars = [name for name, _, values in crossed if values.shape == ()]
    assert scalars == ["torch", "torch", "jax", "tensorflow"], "two norms to the first, its factor to the others"


@pytest.mark.parametrize("source_framework", ["jax", "tensorflow"])
def test_in_place_layers_do_not_change_other_data(three: Three, source_framework: str) -> None:
    import torch

    source, found = table(), []
    for first in (torch.nn.ReLU(inplace=True), torch.nn.ReLU()):
        nodes = [
            aa.ModelNode("a", mlp(source_framework, 6), source.reference()),
            aa.ModelNode("beside", mlp(source_framework, 2), "a"),
            aa.ModelNode("b", torch.nn.Sequential(first, torch.nn.Flatten()), "a"),
            aa.ModelNode("head", mlp("tensorflow", 2), "b"),
        ]
        graph = aa.ModelGraph(nodes, "adam", seed=2)
        phase = aa.TrainPhase(
            "t",
            data=source,
            losses=[aa.AppliedLoss("mse", on="head", label="h"), aa.AppliedLoss("mse", on="beside", label="b")],
            batch_size=BATCH,
            epochs=2,
            validation=aa.EvalPhase("check", data=source),
        )
        experiment = aa.Experiment("e", graph, progress="none")
        results = experiment.run_phase(phase)
        seen = experiment.run_phase(aa.EvalPhase("e", data=source, outputs=["a", "b", "head"]))
        found.append((results, graph.state(), seen))
        a, b = seen.prediction("a"), seen.prediction("b")
        assert (a < 0).any() and (b >= 0).all()
        np.testing.assert_array_equal(np.maximum(a, 0), b)
    routes = [
        next(each.route for each in results.plan.crossings if (each.value, each.target) == ("a", "b"))
        for results, _, _ in found
    ]
    assert routes == ["copy", "share"]
    assert found[0][0].figures == found[1][0].figures
    for name in found[0][0].figures:
        np.testing.assert_allclose(found[0][0].figure(name), found[1][0].figure(name), rtol=1e-6, err_msg=name)
    for name, array in found[0][1].items():
        np.testing.assert_allclose(array, found[1][1][name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_frozen_nodes_run_no_backward(three: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    source, called = table(), []
    graph = chain(three, source)
    graph.freeze("encoder", "body")
    for name in three:
        backend: Any = type(registry().find(name))
        build = backend.build

        def watched(self: Any, segment: Any, name: str = name, build: Any = build) -> Any:
            program = build(self, segment)
            back = program.forward_pullback

            def forward_pullback(*arguments: Any, **settings: Any) -> Any:
                called.append(name)
                return back(*arguments, **settings)

            program.forward_pullback = forward_pullback
            return program

        monkeypatch.setattr(backend, "build", watched)
    before = graph.build().state()
    results, losses = train(graph, source, "head", epochs=1)
    assert called == ["tensorflow"] * len(losses)
    assert not any(each.gradient for each in results.plan.crossings)
    after = graph.state()
    changed = {name.partition("/")[0] for name, a in before.items() if not np.array_equal(a, after[name])}
    assert "head" in changed and not changed & {"encoder", "body"}


def argmax() -> Any:
    """A model that gives the index of the largest of its inputs, one in each sample, as integers."""
    import torch

    class Largest(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.argmax(1).int(), x * 2.0

    return Largest()


def test_integers_cross_without_a_gradient(three: Three) -> None:
    """The node before is trained, by its other output; what is counted takes no part in that."""
    from anyaccel_jax import Function

    source = table()
    nodes = [
        aa.ModelNode("a", mlp("jax", 4), source.reference()),
        aa.ModelNode("b", argmax(), "a", outputs=["index", "twice"]),
        aa.ModelNode("c", Function(lambda _, i, x: x[:, :2] + i[:, None], {}), ["b.index", "b.twice"]),
    ]
    graph = aa.ModelGraph(nodes, "adam")
    phase = aa.TrainPhase("t", data=source, losses=[aa.AppliedLoss("mse", on="c")], batch_size=BATCH, epochs=3)
    results = aa.Experiment("e", graph, progress="none").run_phase(phase)
    assert results.loss[-1] < results.loss[0]
    assert {each.value for each in results.plan.crossings if each.gradient} == {"a", "b.twice"}


def test_dropout_alone_in_a_segment_is_active(three: Three) -> None:
    import torch

    source, losses = table(), []
    for head in ("torch", "jax", "tensorflow"):
        nodes = [
            aa.ModelNode("drop", torch.nn.Dropout(0.9), source.reference()),
            aa.ModelNode("head", mlp(head, 2), "drop"),
        ]
        graph = aa.ModelGraph(nodes, aa.Optimizer("adam", lr=3e-3), seed=1)
        losses.append(train(graph, source, "head", epochs=1)[1])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    np.testing.assert_allclose(losses[2], losses[0], rtol=1e-4)


# -- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["SequentialMLP", "SequentialCNN"])
def test_models_have_equal_initial_weights_and_can_copy_each_other(three: Three, model: str) -> None:
    from anyaccel.segment import TensorSpec

    shape, made = ((3, 8, 8), {}) if model == "SequentialCNN" else ((5,), {})
    for seed, name in [(seed, name) for seed in (1, 2) for name in ("numpy", *three)]:
        backend = registry().computing(name)
        made[seed, name] = backend.models()[model]((4,))
        backend.infer(made[seed, name], [TensorSpec(shape, "float32")], seed)
    for seed in (1, 2):
        first = registry().computing("numpy").state(made[seed, "numpy"])
        for name in three:
            state = registry().computing(name).state(made[seed, name])
            assert list(state) == list(first)
            for key, array in first.items():
                np.testing.assert_array_equal(state[key], array, err_msg=f"{name} {key}")
    for name, other in zip(three, (*three[1:], three[0]), strict=True):
        aa.copy_weights(made[1, name], made[2, other])
        state = registry().computing(other).state(made[2, other])
        for key, array in registry().computing("numpy").state(made[1, "numpy"]).items():
            np.testing.assert_array_equal(state[key], array, err_msg=f"{name} to {other}: {key}")


# -- imports -----------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys, warnings
order = sys.argv[1].split(",")
for name in order:
    __import__(name)
import test_three_frameworks as mixed
source = mixed.table(64)
results, losses = mixed.train(mixed.chain(("torch", "jax", "tensorflow"), source), source, "head", epochs=1)
print(*[repr(float(loss)) for loss in losses])
"""
ORDERS = [
    "torch,jax,tensorflow,anyaccel",
    "tensorflow,torch,jax,anyaccel",
    "anyaccel,jax,tensorflow,torch",
    "jax,torch,anyaccel,tensorflow",
    "anyaccel",
]


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_of_imports_changes_nothing(three: Three, order: str) -> None:
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", SCRIPT, order]
    child = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert child.returncode == 0, child.stderr
    source = table(64)
    _, expected = train(chain(("torch",) * 3, source), source, "head", epochs=1)
    np.testing.assert_allclose([float(word) for word in child.stdout.split()[-4:]], expected, rtol=1e-4)
