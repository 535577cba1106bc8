"""Modules of MLX as models: what they learn, what they keep, and what is left of the user's own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from anyaccel_mlx import MlxBackend, SequentialMLP
from mlx.utils import tree_flatten

from anyaccel import Device
from anyaccel.errors import ShapeError, StateError
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer

CPU = Device("cpu")
F32 = "float32"


@pytest.fixture
def backend() -> MlxBackend:
    return MlxBackend()


@pytest.fixture
def build(backend: MlxBackend) -> Callable[..., Any]:
    """A function that makes a program of a model trained on x and y by gradient descent."""

    def made(model: Any, x: np.ndarray, y: np.ndarray, lr: float = 0.1) -> Any:
        specs = [TensorSpec(array.shape[1:], array.dtype.name) for array in (x, y)]
        segment = Segment(
            label="s",
            operations=(Operation("a", backend.place(model, CPU), ("x",), ("a",), CPU),),
            inputs={"x": (specs[0], CPU), "y": (specs[1], CPU)},
            outputs=("a",),
            losses=(LossTerm("l", "a", Loss("mse"), ("a", "y"), CPU),),
            groups=(ParameterGroup("g", Optimizer("sgd", lr=lr), ("a",)),),
        )
        return backend.build(segment)

    return made


@pytest.fixture
def train(backend: MlxBackend, build: Callable[..., Any]) -> Callable[..., Any]:
    """A function that trains a model on x and y for some steps, and gives the losses."""

    def run(model: Any, x: np.ndarray, y: np.ndarray, steps: int = 3, lr: float = 0.1) -> list[float]:
        program = build(model, x, y, lr)
        order = backend.from_host(np.resize(np.arange(len(x)), steps * len(x)), CPU)
        losses = program.train_steps([backend.from_host(array, CPU) for array in (x, y)], [order] * 2, 0, steps, len(x))
        program.close()
        return [float(one) for one in backend.to_host(losses)[:, 0]]

    return run


class Words(nn.Module):
    """Class indices in, one number out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 1)

    def __call__(self, x: mx.array) -> mx.array:
        return self.head(self.embedding(x))


class Assigns(nn.Module):
    """Assigns to its input, which in MLX changes the caller's array object, though not its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 1)

    def __call__(self, x: mx.array) -> mx.array:
        x[:] = nn.relu(x)
        return self.head(x)


class Gives(nn.Module):
    """Gives what it is told to."""

    def __init__(self, result: Callable[[mx.array], Any]) -> None:
        super().__init__()
        self.result = result

    def __call__(self, x: mx.array) -> Any:
        return self.result(x)


def numbers(*shape: int, dtype: str = F32) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


def test_indices_are_taken_as_they_are(backend: MlxBackend, train: Callable[..., Any]) -> None:
    """The loss is that of the rows that the indices name, and these rows alone learn, whatever the weights are."""
    model, indices, targets = Words(), np.array([0, 3, 3, 1]), numbers(4, 1)
    before = backend.state(model)
    (loss,) = train(model, indices, targets, steps=1)
    words = before["parameters/embedding.weight"]
    outputs = words[indices] @ before["parameters/head.weight"].T + before["parameters/head.bias"]
    np.testing.assert_allclose(loss, np.square(outputs - targets).mean(), rtol=1e-5)
    learnt = (backend.state(model)["parameters/embedding.weight"] != words).any(axis=1)
    assert learnt.tolist() == [True, True, False, True, False]


def test_what_the_user_froze_is_kept_as_a_buffer(backend: MlxBackend, train: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    model.layers[0].freeze()
    before = backend.state(model)
    train(model, numbers(8, 3), numbers(8, 1))
    after = backend.state(model)
    assert list(backend.parameters(model)) == ["layers.1.weight", "layers.1.bias"]
    assert {name for name in after if (after[name] == before[name]).all()} == {
        "buffers/layers.0.weight",
        "buffers/layers.0.bias",
    }


def test_modes_random_numbers_and_arrays_are_the_users_again(train: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm(4), nn.Dropout(0.5), nn.Linear(4, 1))
    model.eval()
    model.layers[2].train()
    mx.random.seed(3)
    mx.random.uniform()
    before = mx.random.state[0].tolist()
    train(model, numbers(8, 3), numbers(8, 1))
    assert mx.random.state[0].tolist() == before
    assert [part.training for part in (model, *model.layers)] == [False, False, False, True, False]
    assert all(np.isfinite(np.asarray(array)).all() for _, array in tree_flatten(model.parameters()))


def test_a_program_that_trained_evaluates_as_a_new_one(backend: MlxBackend, build: Callable[..., Any]) -> None:
    model, x, y = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1)), numbers(8, 3), numbers(8, 1)
    inputs = [backend.from_host(array, CPU) for array in (x, y)]
    program = build(model, x, y)
    program.forward_pullback(inputs)[2]([None])
    program.optimizer_step()
    (after,), _ = program.forward(inputs)
    program.close()
    (expected,), _ = build(model, x, y).forward(inputs)
    np.testing.assert_array_equal(backend.to_host(after), backend.to_host(expected))


def test_gradients_in_float64_are_those_of_the_formula(backend: MlxBackend, train: Callable[..., Any]) -> None:
    """A linear model against NumPy: one step of gradient descent, to twelve digits."""
    model = SequentialMLP(n_layers=1, dtype="float64")
    backend.infer(model, [TensorSpec((3,), "float64")], 1)
    start = backend.state(model)
    x, y = numbers(8, 3, dtype="float64"), numbers(8, 1, dtype="float64")
    wrong = x @ start["parameters/layers.0.weight"].T + start["parameters/layers.0.bias"] - y
    train(model, x, y, steps=1, lr=0.1)
    expected = start["parameters/layers.0.weight"] - 0.1 * 2 * (wrong.T @ x) / 8
    np.testing.assert_allclose(backend.state(model)["parameters/layers.0.weight"], expected, rtol=1e-12)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "not compiled"])
def test_a_model_that_assigns_to_its_input_changes_its_own(
    backend: MlxBackend, build: Callable[..., Any], compiled: bool
) -> None:
    x, y = numbers(8, 3), numbers(8, 1)
    inputs = [backend.from_host(array, CPU) for array in (x, y)]
    program = build(Assigns(), x, y)
    if not compiled:
        mx.disable_compile()
    try:
        program.forward(inputs)
        program.forward_pullback(inputs)[2]([None])
        program.optimizer_step()
    finally:
        mx.enable_compile()
    np.testing.assert_array_equal(backend.to_host(inputs[0]), x)


def test_the_way_back_drops_what_the_way_there_dropped(backend: MlxBackend, build: Callable[..., Any]) -> None:
    x, y, found = numbers(8, 3), np.zeros((8, 5), F32), []
    program = build(nn.Sequential(nn.Linear(3, 5, bias=False), nn.Dropout(0.5)), x, y)
    program.seed(7)
    (outputs,), _, pullback = program.forward_pullback([backend.from_host(array, CPU) for array in (x, y)])
    pullback([None])
    program.map_gradients(lambda gradient: found.append(backend.to_host(gradient)) or gradient)
    given = backend.to_host(outputs)
    np.testing.assert_allclose(found[0], (2 * given / given.size * 2 * (given != 0)).T @ x, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("wide", [False, True], ids=["losses", "running statistics"])
def test_memory_does_not_grow_with_the_steps(train: Callable[..., Any], wide: bool) -> None:
    """What no update asks for is evaluated as it comes; lazy, it would hold on to something of every step."""
    x, peaks = numbers(2, 4096) if wide else numbers(256, 64), []
    for steps in (5, 200):
        model = nn.BatchNorm(4096) if wide else nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        mx.reset_peak_memory()
        train(model, x, x, steps=steps, lr=1e-3)
        peaks.append(mx.get_peak_memory())
    assert peaks[1] < 3 * peaks[0]


def test_what_was_learned_can_be_read_by_another_thread(backend: MlxBackend, train: Callable[..., Any]) -> None:
    model, found = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm(4), nn.Linear(4, 1)), []
    train(model, numbers(8, 3), numbers(8, 1))
    thread = threading.Thread(target=lambda: found.append(backend.state(model)))
    thread.start()
    thread.join()
    assert len(found[0]) == 8


def test_a_model_is_built_by_its_first_batch(backend: MlxBackend) -> None:
    built, called = SequentialMLP(), SequentialMLP()
    backend.infer(built, [TensorSpec((4,), F32), TensorSpec((2, 2), F32)], 0)
    x = mx.ones((2, 4))
    assert mx.array_equal(called(x, mx.ones((2, 2, 2))), built(x, mx.ones((2, 2, 2))))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda x: {"y": x}, "the model gives a dict.*an array, or some in a tuple or list"),
        (lambda x: (), "the model gives a tuple"),
        (mx.sum, r"of 2 samples the model makes \[\[\]\]"),
        (lambda x: x @ mx.ones((5, 1)), r"does not take float32\[4\].*shape \(2,4\)"),
    ],
    ids=["dict", "nothing", "no batch", "wrong shape"],
)
def test_what_is_no_output_is_told(backend: MlxBackend, result: Callable[..., Any], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        backend.infer(Gives(result), [TensorSpec((4,), F32)], 0)


def test_several_outputs_are_specified_in_their_order(backend: MlxBackend) -> None:
    found = backend.infer(Gives(lambda x: [x, x > 0]), [TensorSpec((4,), F32)], 0)
    assert found == (TensorSpec((4,), F32), TensorSpec((4,), "bool"))


def test_a_state_that_does_not_fit_is_told_by_name(backend: MlxBackend) -> None:
    model = nn.Linear(2, 3)
    state = backend.state(model)
    state["parameters/weight"] = state["parameters/weight"].T
    with pytest.raises(StateError, match=r"weight float32\[2, 3\].*in the model: parameters/weight float32\[3, 2\]"):
        backend.load_state(model, state)
