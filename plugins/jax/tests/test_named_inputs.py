"""Inputs by keyword, outputs at any depth and losses of the model, for functions, Linen, NNX, Equinox and Keras."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import GraphError
from anyaccel_jax import Function

ROWS = 12


@pytest.fixture
def data() -> aa.FeatureSet:
    random = np.random.default_rng(0)
    columns = {name: random.standard_normal((ROWS, 3)).astype("float32") for name in ("a", "b")}
    data = aa.FeatureSet.from_dict(
        "data", {**columns, "y": columns["a"] - 2 * columns["b"][:, ::-1]}, ["a", "b"], ["y"]
    )
    data.add_splits({"train": np.arange(ROWS)})
    return data


def reading(data: aa.FeatureSet, *, labels: bool = True) -> dict[str, Any]:
    """In another order than the model's."""
    named = {"right": data.reference("b"), "left": data.reference("a")}
    return {**named, "labels": data.reference("y")} if labels else named


def train(model: Any, upstream: Any, loss: aa.AppliedLoss) -> Any:
    graph = aa.ModelGraph([aa.ModelNode("net", model, upstream)], aa.Optimizer("sgd", lr=0.1))
    phase = aa.TrainPhase("t", data="train", losses=loss, sampler=aa.SimpleSampler(8), epochs=2)
    return aa.Experiment("e", graph, progress="none").run_phase(phase), graph


def apply(parameters: Any, left: Any, right: Any, labels: Any = None) -> Any:
    answer = left @ parameters["w"] + right @ parameters["v"]
    loss = None if labels is None else ((answer - labels) ** 2).mean()
    return {"loss": loss, "answer": answer, "parts": (answer.T, {"sum": answer.sum(-1)}), "pairs": answer @ answer.T}


def parameters() -> dict[str, Any]:
    return {"w": jnp.full((3, 3), 0.1), "v": jnp.eye(3)}


def by_hand(data: aa.FeatureSet) -> tuple[list[float], Any]:
    values, means = parameters(), []
    columns = [jnp.asarray(data.array(name)) for name in ("a", "b", "y")]
    for _ in range(2):
        total = 0.0
        for start in range(0, ROWS, 8):
            a, b, y = (column[start : start + 8] for column in columns)
            loss, gradients = jax.value_and_grad(lambda p, a=a, b=b, y=y: apply(p, a, b, y)["loss"])(values)
            values = jax.tree.map(lambda value, gradient: value - 0.1 * gradient, values, gradients)
            total += float(loss) * len(a)
        means.append(total / ROWS)
    return means, values


@pytest.mark.parametrize("own", [True, False], ids=["loss of the model", "named loss"])
def test_a_function_trains_as_by_hand(data: aa.FeatureSet, own: bool) -> None:
    loss = aa.AppliedLoss("mse", on="net", inputs=["outputs.answer", "data.y"])
    model = Function(apply, parameters())
    result, graph = train(model, reading(data, labels=own), aa.AppliedLoss.from_output("net") if own else loss)
    expected, values = by_hand(data)
    np.testing.assert_allclose(result.loss, expected, rtol=1e-5)
    for name, value in values.items():
        np.testing.assert_allclose(graph["net"].model.tree[name], value, rtol=1e-5, atol=1e-6)
    assert graph.shapes.outputs["net"] == ("net.answer", "net.parts.0", "net.parts.1.sum")


def test_an_output_whose_batch_is_not_first_is_turned(data: aa.FeatureSet) -> None:
    model = Function(apply, parameters())
    graph = aa.ModelGraph([aa.ModelNode("net", model, reading(data, labels=False))])
    phase = aa.EvalPhase("p", data="train", outputs="net")
    result = aa.Experiment("e", graph, progress="none").run_phase(phase)
    expected = apply(parameters(), data.array("a"), data.array("b"))["answer"]
    for name in ("net.answer", "net.parts.0"):
        np.testing.assert_allclose(result.prediction(name), expected, rtol=1e-5, atol=1e-6)


def test_modules_are_called_by_keyword(
    data: aa.FeatureSet, linen: ModuleType, nnx: ModuleType, eqx: ModuleType
) -> None:
    class Linen(linen.Module):
        @linen.compact
        def __call__(self, left: Any, right: Any, train: bool = False) -> Any:
            return {"answer": linen.Dense(3)(left) - right, "left": left}

    class Nnx(nnx.Module):
        def __init__(self) -> None:
            self.layer = nnx.Linear(3, 3, rngs=nnx.Rngs(0))

        def __call__(self, left: Any, right: Any) -> Any:
            return {"answer": self.layer(left) - right, "left": left}

    class Equinox(eqx.Module):
        layer: Any

        def __call__(self, left: Any, right: Any) -> Any:
            return {"answer": self.layer(left) - right, "left": left}

    loss = aa.AppliedLoss("mse", on="net", inputs=["outputs.answer", "data.y"])
    for model in (Linen(), Nnx(), Equinox(eqx.nn.Linear(3, 3, key=jax.random.key(0)))):
        result, graph = train(model, reading(data, labels=False), loss)
        assert result.loss[1] < result.loss[0]
        evaluated = aa.EvalPhase("p", data="train", outputs="net")
        values = aa.Experiment("e", graph, progress="none").run_phase(evaluated)
        np.testing.assert_array_equal(values.prediction("net.left"), data.array("a"))
        with pytest.raises(GraphError, match=r"has no input 'lefty'\. Available: left, right"):
            train(model, {"lefty": data.reference("a"), "right": data.reference("b")}, loss)


def test_a_functional_model_of_keras_gets_its_inputs_by_name(data: aa.FeatureSet, keras: ModuleType) -> None:
    left, right = (keras.Input((3,), name=name) for name in ("left", "right"))
    answer = keras.layers.Dense(3, name="answer")(left) - right
    model = keras.Model({"right": right, "left": left}, {"answer": answer, "left": left + 0})
    loss = aa.AppliedLoss("mse", on="net", inputs=["outputs.answer", "data.y"])
    result, graph = train(model, reading(data, labels=False), loss)
    assert result.loss[1] < result.loss[0]
    values = aa.Experiment("e", graph, progress="none").run_phase(aa.EvalPhase("p", data="train", outputs="net"))
    expected = model({"left": data.array("a"), "right": data.array("b")})["answer"]
    np.testing.assert_allclose(values.prediction("net.answer"), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(GraphError, match=r"takes its inputs by name.*Available: left, right"):
        train(model, [data.reference("a"), data.reference("b")], loss)


def time_first(parameters: Any, x: Any, mask: Any) -> Any:
    """Over x [time, batch, 3] and a mask [batch, time]."""
    return jnp.einsum("tbi,bt,ij->bj", x, mask, parameters["w"]), x.cumsum(0)


def test_inputs_may_have_the_batch_on_another_axis() -> None:
    random = np.random.default_rng(0)
    columns = {
        "x": random.normal(size=(ROWS, 5, 3)),
        "mask": random.random((ROWS, 5)),
        "y": random.normal(size=(ROWS, 3)),
    }
    columns = {name: array.astype("float32") for name, array in columns.items()}
    data = aa.FeatureSet.from_dict("data", columns, ["x", "mask"], ["y"])
    data.add_splits({"train": np.arange(ROWS)})
    model = Function(time_first, {"w": jnp.full((3, 3), 0.1)})
    upstream = {"mask": data.reference("mask"), "x": data.reference("x")}
    graph = aa.ModelGraph([aa.ModelNode("net", model, upstream, batch_axis={"x": 1})], aa.Optimizer("sgd", lr=0.1))
    loss = aa.AppliedLoss("mse", on="net", inputs=["outputs.0", "targets"])
    phase = aa.TrainPhase("t", data="train", losses=loss, sampler=aa.SimpleSampler(8), epochs=2)
    aa.Experiment("e", graph, progress="none").run_phase(phase)
    values = {"w": jnp.full((3, 3), 0.1)}
    for _ in range(2):
        for start in range(0, ROWS, 8):
            x, mask, y = (jnp.asarray(columns[name][start : start + 8]) for name in ("x", "mask", "y"))
            mean = jax.grad(lambda p, x=x, mask=mask, y=y: ((time_first(p, x.swapaxes(0, 1), mask)[0] - y) ** 2).mean())
            values = jax.tree.map(lambda value, gradient: value - 0.1 * gradient, values, mean(values))
    np.testing.assert_allclose(model.parameters["w"], values["w"], rtol=1e-5)
    assert graph.shapes.specs["net.1"].shape == (5, 3)


@pytest.mark.parametrize("extra", [object(), "text", 3, None, True, len], ids=lambda value: type(value).__name__)
def test_what_is_no_array_among_the_outputs_is_left_out(data: aa.FeatureSet, extra: object) -> None:
    model = Function(lambda p, left: {"cache": extra, "answer": left @ p["w"]}, {"w": jnp.eye(3)})
    _, graph = train(model, {"left": data.reference("a")}, aa.AppliedLoss("mse", on="net"))
    assert graph.shapes.outputs["net"] == ("net",) and graph.shapes.aliases == {"net.answer": "net"}
    w = np.eye(3)
    for _ in range(2):
        for start in range(0, ROWS, 8):
            a, y = (data.array(name)[start : start + 8] for name in ("a", "y"))
            w = w - 0.1 * a.T @ (2 * (a @ w - y) / y.size)
    np.testing.assert_allclose(model.parameters["w"], w, rtol=1e-5, atol=1e-6)


def test_a_recurrent_layer_gives_its_carry_too_and_trains_as_by_hand(nnx: ModuleType) -> None:
    class Recurrent(nnx.Module):
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.cells, self.head = (
                nnx.RNN(nnx.LSTMCell(3, 4, rngs=rngs), return_carry=True),
                nnx.Linear(4, 3, rngs=rngs),
            )

        def __call__(self, x: Any) -> Any:
            carry, hidden = self.cells(x)
            return hidden, carry, {"answer": self.head(hidden[:, -1])}

    random = np.random.default_rng(0)
    columns = {"x": random.normal(size=(ROWS, 5, 3)), "y": random.normal(size=(ROWS, 3))}
    columns = {name: array.astype("float32") for name, array in columns.items()}
    data = aa.FeatureSet.from_dict("data", columns, ["x"], ["y"])
    data.add_splits({"train": np.arange(ROWS)})
    model, own = Recurrent(), Recurrent()
    loss = aa.AppliedLoss("mse", on="net", inputs=["outputs.2.answer", "targets"])
    _, graph = train(model, data.reference(), loss)
    assert graph.shapes.outputs["net"] == ("net.0", "net.1.0", "net.1.1", "net.2.answer")
    for _ in range(2):
        for start in range(0, ROWS, 8):
            x, y = (array[start : start + 8] for array in columns.values())
            gradients = nnx.grad(lambda m, x=x, y=y: jnp.mean((m(x)[2]["answer"] - y) ** 2))(own)
            values = nnx.state(own, nnx.Param)
            nnx.update(own, jax.tree.map(lambda value, gradient: value - 0.1 * gradient, values, gradients))
    for value, other in zip(*(jax.tree.leaves(nnx.state(each, nnx.Param)) for each in (model, own)), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)
