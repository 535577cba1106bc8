"""Plans of JAX models: the memory of a step by XLA's analysis, beside steps written by hand and what a run holds."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anyaccel as aa
from anyaccel_jax import Function, SequentialMLP
from anyaccel_jax.ops import JaxOps

RNG = np.random.default_rng(0)
ROWS, TIMES = 64, 64
Parameters = dict[str, Any]


def weights(**shapes: tuple[int, ...]) -> Parameters:
    return {name: jnp.asarray(0.1 * RNG.normal(size=shape), "float32") for name, shape in shapes.items()}


def transformer(p: Parameters, x: Any) -> Any:
    """Two blocks of attention with one head, and an average over time."""
    for i in range(2):
        query, key, value = (x @ p[f"{name}{i}"] for name in ("query", "key", "value"))
        weight = jax.nn.softmax(query @ key.swapaxes(1, 2) / 8)
        x = x + weight @ value
        x = x + jax.nn.gelu(x @ p[f"wide{i}"]) @ p[f"narrow{i}"]
    return x.mean(1) @ p["head"]


def transformer_weights() -> Parameters:
    square = {f"{name}{i}": (64, 64) for name in ("query", "key", "value") for i in range(2)}
    wide = {"wide0": (64, 256), "narrow0": (256, 64), "wide1": (64, 256), "narrow1": (256, 64)}
    return weights(**square, **wide, head=(64, 1))


def lstm(p: Parameters, x: Any) -> Any:
    """An LSTM by `jax.lax.scan`."""

    def cell(carried: Any, row: Any) -> Any:
        hidden, memory = carried
        gates = row @ p["input"] + hidden @ p["hidden"] + p["bias"]
        enter, forget, new, leave = jnp.split(gates, 4, axis=-1)
        memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(enter) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(leave) * jnp.tanh(memory)
        return (hidden, memory), hidden

    zeros = jnp.zeros((x.shape[0], 64))
    (hidden, _), _ = jax.lax.scan(cell, (zeros, zeros), x.swapaxes(0, 1))
    return hidden @ p["head"]


def lstm_weights() -> Parameters:
    return weights(input=(64, 256), hidden=(64, 256), bias=(256,), head=(64, 1))


def cnn(p: Parameters, x: Any) -> Any:
    x = x[:, None]
    for name in ("first", "second"):
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, p[name], (1, 1), "SAME"))
    return x.mean((2, 3)) @ p["head"]


def cnn_weights() -> Parameters:
    return weights(first=(16, 1, 3, 3), second=(16, 16, 3, 3), head=(16, 1))


NETS = {
    "transformer": (transformer, transformer_weights),
    "lstm": (lstm, lstm_weights),
    "cnn": (cnn, cnn_weights),
}


def phase_and_graph(net: Any, optimizer: str = "adam", steps: int = 4, **settings: Any) -> tuple[Any, aa.ModelGraph]:
    x = RNG.normal(size=(steps * ROWS, TIMES, 64)).astype("float32")
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, 0, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference())], optimizer)
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("t", data="all", losses=losses, **{"batch_size": ROWS, "epochs": 2, **settings})
    return phase, graph


def nbytes(tree: Any) -> int:
    return sum(array.nbytes for array in jax.tree.leaves(tree))


def by_hand(net: Callable[..., Any], parameters: Parameters, optimizer: str) -> tuple[int, int]:
    """The bytes of the state, and those of the outputs and temporary arrays of a step in plain JAX."""

    def loss(p: Parameters, x: Any, y: Any) -> Any:
        return ((net(p, x) - y) ** 2).mean()

    def sgd(state: Any, columns: Any, order: Any) -> Any:
        (p,), (x, y) = state, (column[order] for column in columns)
        value, gradients = jax.value_and_grad(loss)(p, x, y)
        return (jax.tree.map(lambda w, g: w - 0.01 * g, p, gradients),), value

    def adam(state: Any, columns: Any, order: Any) -> Any:
        (p, m, v), (x, y) = state, (column[order] for column in columns)
        value, gradients = jax.value_and_grad(loss)(p, x, y)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, gradients)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, gradients)
        return (jax.tree.map(lambda w, m, v: w - 0.001 * m / (jnp.sqrt(v) + 1e-8), p, m, v), m, v), value

    step, copies = (sgd, 1) if optimizer == "sgd" else (adam, 3)
    columns = jnp.zeros((4 * ROWS, TIMES, 64)), jnp.zeros((4 * ROWS, 1))
    state = (parameters,) * copies
    analysis = jax.jit(step).lower(state, columns, jnp.arange(ROWS)).compile().memory_analysis()
    return nbytes(state), analysis.output_size_in_bytes + analysis.temp_size_in_bytes


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", NETS)
def test_plans_are_within_a_tenth_of_a_step_by_hand(name: str, optimizer: str) -> None:
    net, make = NETS[name]
    parameters = make()
    phase, graph = phase_and_graph(Function(net, parameters), optimizer)
    (memory,) = phase.plan(graph).memory
    state, step = by_hand(net, parameters, optimizer)
    rows = 4 * ROWS * (TIMES * 64 + 1 + 1) * 4  # columns and their order
    # A run also has the model's parameters from its start and the snapshot of the epoch.
    expected = rows + state + step + nbytes(parameters) + state
    assert memory.gaps == {} and memory.total == pytest.approx(expected, rel=0.1)


@pytest.fixture
def peaks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each call of a compiled step in a run: arrays that are alive, and what XLA says that the call takes."""
    jit, seen = JaxOps.jit, list[int]()

    def watched(ops: JaxOps, function: Callable[..., Any], donated: tuple[int, ...] = ()) -> Callable[..., Any]:
        compiled: Any = jit(ops, function, donated)

        def call(*arguments: Any) -> Any:
            alive = {array.unsafe_buffer_pointer(): array.nbytes for array in jax.live_arrays()}
            analysis = compiled.__wrapped__.lower(*arguments).compile().memory_analysis()
            outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
            seen.append(sum(alive.values()) + outputs + analysis.temp_size_in_bytes)
            return compiled(*arguments)

        call.__wrapped__ = compiled.__wrapped__  # type: ignore[attr-defined]
        return call

    monkeypatch.setattr(JaxOps, "jit", watched)
    return seen


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}, {"batch_size": 4 * ROWS}, {"precision": "fp16-mixed"}])
@pytest.mark.parametrize("donated_bytes", [0, 2**30])
def test_the_peak_of_a_run_is_the_plan(
    peaks: list[int], monkeypatch: pytest.MonkeyPatch, donated_bytes: int, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr("anyaccel_jax.compute.DONATED_BYTES", donated_bytes)
    gc.collect()
    before = nbytes(jax.live_arrays())
    phase, graph = phase_and_graph(SequentialMLP((1,), n_layers=2, hidden_dim=64), **{"epochs": 3, **settings})
    (memory,) = phase.plan(graph).memory
    assert peaks == []
    graph.run(phase)
    assert memory.total == pytest.approx(max(peaks) - before, rel=0.1)  # fewer calls, by time, need less


def test_a_run_uses_what_its_plan_has_compiled(caplog: pytest.LogCaptureFixture) -> None:
    phase, graph = phase_and_graph(SequentialMLP((1,), n_layers=2))
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        phase.plan(graph)
        planned = [record.message for record in caplog.records if "XLA compilation of jit(train_step" in record.message]
        caplog.clear()
        graph.run(phase)
    run = [record.message for record in caplog.records if "XLA compilation of jit(train_step" in record.message]
    assert len(planned) == 1 and run == []


def test_a_plan_changes_nothing() -> None:
    phase, graph = phase_and_graph(SequentialMLP((1,), n_layers=2))
    before = graph.state()
    gc.collect()
    alive = nbytes(jax.live_arrays())
    assert phase.plan(graph).memory[0].activations > 0  # type: ignore[operator]
    assert nbytes(jax.live_arrays()) == alive  # no optimizer state was made
    assert all(np.array_equal(array, before[name]) for name, array in graph.state().items())


def test_an_evaluation_takes_a_batch_its_activations_and_outputs() -> None:
    net, make = NETS["transformer"]
    parameters = make()
    _, graph = phase_and_graph(Function(net, parameters))
    phase = aa.EvalPhase("e", data="all", losses=[aa.AppliedLoss("mse", on="net")], batch_size=ROWS)
    (memory,) = phase.plan(graph).memory
    x, y = jnp.zeros((ROWS, TIMES, 64)), jnp.zeros((ROWS, 1))

    def evaluate(p: Parameters, x: Any, y: Any) -> Any:
        return ((net(p, x) - y) ** 2).sum()

    analysis = jax.jit(evaluate).lower(parameters, x, y).compile().memory_analysis()
    expected = x.nbytes + y.nbytes + analysis.temp_size_in_bytes + analysis.output_size_in_bytes
    assert memory.activations == pytest.approx(expected, rel=0.1)
    assert memory.gradients == memory.optimizer == 0


def test_what_is_not_compiled_here_is_not_covered() -> None:
    phase, graph = phase_and_graph(SequentialMLP((1,)), compile="off")
    assert "a step that is not compiled has no analysis" in phase.plan(graph).memory[0].gaps["activations"]
    phase, graph = phase_and_graph(SequentialMLP((1,)), accelerator="gpu")
    plan = phase.plan(graph, "1x A100-80GB")
    assert "XLA compiles a step for gpu:0 only on a machine that has it" in plan.memory[0].gaps["activations"]
    assert plan.fits is None
