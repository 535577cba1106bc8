"""Training steps of the user's own: pure functions of (state, batch), beside loops by hand with Optax."""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anyaccel as aa
import anyaccel_jax
from anyaccel.errors import CompileWarning, PhaseError

ROWS, BATCH, EPOCHS = 38, 16, 2  # a last batch of 6
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 4)).astype("float32")
Y = np.tanh(X @ RNG.normal(size=(4, 1))).astype("float32")
SCHEDULE = aa.Schedule("cosine", steps=12, warmup=2)
SPEC = aa.Optimizer("adam", lr=1e-2, clip_norm=0.2, schedule=SCHEDULE)


@pytest.fixture
def data() -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])


def parameters(n_in: int = 4, n_out: int = 1, seed: int = 1) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    shapes = {"w": (n_in, 8), "b": (8,), "v": (8, n_out)}
    return {name: jnp.asarray(draw.normal(size=shape) / 3, "float32") for name, shape in shapes.items()}


def mlp(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]


def regression(state: Any, batch: Any) -> Any:
    net = state["net"]

    def loss_of(params: Any) -> Any:
        outputs, _ = net.apply(params, batch["x"])
        return jnp.mean((outputs - batch["y"]) ** 2), outputs

    (loss, outputs), grads = jax.value_and_grad(loss_of, has_aux=True)(net.params)
    return {"net": net.apply_gradients(grads)}, {"loss": loss, "mae": jnp.abs(outputs - batch["y"]).mean()}


def graph_of(data: aa.FeatureSet, model: Any = None, optimizer: Any = SPEC, **settings: Any) -> aa.ModelGraph:
    model = anyaccel_jax.Function(mlp, parameters()) if model is None else model
    return aa.ModelGraph([aa.ModelNode("net", model, data.reference())], optimizer, **settings)


def model_of(graph: aa.ModelGraph, label: str) -> Any:
    node = graph[label]
    assert isinstance(node, aa.ModelNode)
    return node.model


def run(graph: aa.ModelGraph, step: Any = regression, data: Any = "all", **settings: Any) -> Any:
    settings = {"sampler": aa.SimpleSampler(BATCH), "epochs": EPOCHS, **settings}
    return aa.Experiment("own", graph, progress="none").run_phase(aa.TrainPhase("t", data=data, step=step, **settings))


def batches() -> list[tuple[Any, Any]]:
    return [(X[i : i + BATCH], Y[i : i + BATCH]) for i in range(0, ROWS, BATCH)]


def rate(step: Any, lr: float = 1e-2) -> Any:
    return lr * jnp.array([SCHEDULE.factor(i) for i in range(20)])[step]


def assert_close(actual: Any, expected: Any) -> None:
    assert str(jax.tree.structure(actual)) == str(jax.tree.structure(expected))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), actual, expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("compile_mode", ["auto", "off"])
def test_equals_the_loop_by_hand_with_clipping_and_schedule(compile_mode: str, data: Any, optax: Any) -> None:
    graph = graph_of(data)
    results = run(graph, compile=compile_mode)
    tx = optax.chain(optax.clip_by_global_norm(0.2), optax.adam(rate))
    params, losses = parameters(), []
    slots = tx.init(params)
    for _ in range(EPOCHS):
        total = 0.0
        for x, y in batches():
            loss, grads = jax.value_and_grad(lambda p, x=x, y=y: jnp.mean((mlp(p, x) - y) ** 2))(params)
            updates, slots = tx.update(grads, slots, params)
            params = optax.apply_updates(params, updates)
            total += float(loss) * len(x)
        losses.append(total / ROWS)
    assert_close(model_of(graph, "net").tree, params)
    np.testing.assert_allclose(results.loss, losses, rtol=2e-6)  # Optax divides by the norm, we by the norm + 1e-6
    assert results.figures == ("loss", "mae")
    assert graph.optimizer_states["net"].step == 3 * EPOCHS


def test_it_is_traced_once_for_each_shape_and_at_each_step_without_compilation(data: Any) -> None:
    calls: list[int] = []

    def step(state: Any, batch: Any) -> Any:
        calls.append(len(batch["x"]))
        return regression(state, batch)

    run(graph_of(data), step)
    assert sorted(calls) == [6, 16]
    calls.clear()
    run(graph_of(data), step, compile="off")
    assert calls == [16, 16, 6] * EPOCHS


def test_buffers_and_the_state_that_others_see(data: Any, linen: Any) -> None:
    class Net(linen.Module):  # type: ignore[misc]
        @linen.compact  # type: ignore[untyped-decorator, unused-ignore]
        def __call__(self, x: Any, train: bool) -> Any:
            x = linen.Dense(8, use_bias=False)(x)
            return linen.Dense(1)(linen.relu(linen.BatchNorm(use_running_average=not train)(x)))

    def step(state: Any, batch: Any) -> Any:
        net = state["net"]

        def loss_of(params: Any) -> Any:
            outputs, buffers = net.apply(params, batch["x"])
            return jnp.mean((outputs - batch["y"]) ** 2), buffers

        (loss, buffers), grads = jax.value_and_grad(loss_of, has_aux=True)(net.params)
        return {"net": net.apply_gradients(grads, buffers=buffers)}, loss

    graph = graph_of(data, Net(), aa.Optimizer("sgd", lr=0.1))
    graph.build()
    held = jax.tree.map(jnp.array, model_of(graph, "net").variables)
    validation = aa.EvalPhase("v", data="all", losses=[aa.AppliedLoss("mse", on="net")])
    results = run(graph, step, validation=validation)

    expected = []
    for _ in range(EPOCHS):
        for x, y in batches():

            def loss_of(params: Any, x: Any = x, y: Any = y, stats: Any = held["batch_stats"]) -> Any:
                variables = {"params": params, "batch_stats": stats}
                outputs, updated = Net().apply(variables, x, True, mutable=["batch_stats"])
                return jnp.mean((outputs - y) ** 2), updated["batch_stats"]

            (_, stats), grads = jax.value_and_grad(loss_of, has_aux=True)(held["params"])
            params = jax.tree.map(lambda p, g: p - 0.1 * g, held["params"], grads)
            held = {"params": params, "batch_stats": stats}
        expected.append(float(jnp.mean((Net().apply(held, X, False) - Y) ** 2)))
    assert_close(model_of(graph, "net").variables, held)
    np.testing.assert_allclose(results.figure("val_loss"), expected, rtol=1e-5)
    evaluated = aa.Experiment("e", graph, progress="none").run_phase(validation)  # a phase of its own
    assert evaluated.loss == pytest.approx(expected[-1], rel=1e-5)


def make_nnx() -> Any:
    from flax import nnx

    streams = nnx.Rngs(0)
    layers = nnx.Linear(4, 8, rngs=streams), nnx.BatchNorm(8, rngs=streams), nnx.tanh, nnx.Linear(8, 1, rngs=streams)
    return nnx.Sequential(*layers)


def make_equinox() -> Any:
    import equinox

    return equinox.nn.MLP(4, 1, 8, 1, key=jax.random.key(0))


def make_keras() -> Any:
    import keras

    keras.utils.set_random_seed(1)
    norm = keras.layers.BatchNormalization()
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8), norm, keras.layers.ReLU(), keras.layers.Dense(1)]
    )


LIBRARIES = ("nnx", "equinox", "keras") if os.environ.get("ANYACCEL_TEST_FULL") else ("nnx",)
"""A sample: each of them is compiled for five seconds, and hands over its values as the others do."""


@pytest.mark.parametrize("library", LIBRARIES)
def test_models_of_every_library_train_as_with_a_loss(library: str, data: Any, request: Any) -> None:
    request.getfixturevalue({"equinox": "eqx"}.get(library, library))  # skips where it is missing
    make = {"nnx": make_nnx, "equinox": make_equinox, "keras": make_keras}[library]

    def step(state: Any, batch: Any) -> Any:
        net = state["net"]

        def loss_of(params: Any) -> Any:
            outputs, buffers = net.apply(params, batch["x"])
            return jnp.mean((outputs - batch["y"]) ** 2), buffers

        (loss, buffers), grads = jax.value_and_grad(loss_of, has_aux=True)(net.params)
        return {"net": net.apply_gradients(grads, buffers=buffers)}, loss

    graphs = [graph_of(data, make(), aa.Optimizer("sgd", lr=0.05, momentum=0.9)) for _ in range(2)]
    results = run(graphs[0], step)
    losses = [aa.AppliedLoss("mse", on="net")]
    usual = aa.TrainPhase("t", data="all", losses=losses, sampler=aa.SimpleSampler(BATCH), epochs=EPOCHS)
    expected = aa.Experiment("own", graphs[1], progress="none").run_phase(usual)
    np.testing.assert_allclose(results.loss, expected.loss, rtol=1e-5)
    states = [graph.state() for graph in graphs]
    assert set(states[0]) == set(states[1])
    for name, value in states[1].items():
        np.testing.assert_allclose(states[0][name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_two_phases_and_a_saved_state_continue(data: Any) -> None:
    whole, parts, loaded = graph_of(data), graph_of(data), graph_of(data)
    run(whole, epochs=2)
    run(parts, epochs=1)
    loaded.load_state(parts.state())
    for graph in (parts, loaded):
        run(graph, epochs=1)
        assert_close(model_of(graph, "net").tree, model_of(whole, "net").tree)


def adversarial_losses(critic: Any, real: Any, made: Any) -> Any:
    return jnp.mean(jax.nn.softplus(-critic(real))) + jnp.mean(jax.nn.softplus(critic(made)))


def adversarial(state: Any, batch: Any) -> Any:
    """Three updates of the critic for each of the actor, in a loop that is compiled."""
    actor, critic = state["actor"], state["critic"]
    made, _ = actor.apply(actor.params, batch["x"])

    def critic_step(_: Any, critic: Any) -> Any:
        def loss_of(params: Any) -> Any:
            return adversarial_losses(lambda x: critic.apply(params, x)[0], batch["y"], made)

        return critic.apply_gradients(jax.grad(loss_of)(critic.params))

    critic = jax.lax.fori_loop(0, 3, critic_step, critic)

    def loss_of(params: Any) -> Any:
        return jnp.mean(jax.nn.softplus(-critic.apply(critic.params, actor.apply(params, batch["x"])[0])[0]))

    loss, grads = jax.value_and_grad(loss_of)(actor.params)
    return {"actor": actor.apply_gradients(grads), "critic": critic}, {"actor": loss}


def test_updates_that_take_turns_inside_compiled_loops(data: Any, optax: Any) -> None:
    nodes = [
        aa.ModelNode("actor", anyaccel_jax.Function(mlp, parameters()), data.reference(), optimizer=SPEC),
        aa.ModelNode(
            "critic",
            anyaccel_jax.Function(mlp, parameters(1, 1, 2)),
            "actor",
            optimizer=aa.Optimizer("sgd", lr=0.1, schedule=SCHEDULE),
        ),
    ]
    graph = aa.ModelGraph(nodes)
    run(graph, adversarial)
    actor, critic, done = parameters(), parameters(1, 1, 2), 0
    tx = optax.chain(optax.clip_by_global_norm(0.2), optax.adam(rate))
    slots = tx.init(actor)
    for _ in range(EPOCHS):
        for x, y in batches():
            made = mlp(actor, x)
            for _ in range(3):
                grads = jax.grad(lambda p, y=y, made=made: adversarial_losses(partial(mlp, p), y, made))(critic)
                critic = jax.tree.map(lambda p, g, step=done: p - rate(step, 0.1) * g, critic, grads)
                done += 1
            grads = jax.grad(lambda p, x=x, c=critic: jnp.mean(jax.nn.softplus(-mlp(c, mlp(p, x)))))(actor)
            updates, slots = tx.update(grads, slots, actor)
            actor = optax.apply_updates(actor, updates)
    assert_close(model_of(graph, "actor").tree, actor)
    assert_close(model_of(graph, "critic").tree, critic)
    assert {node: state.step for node, state in graph.optimizer_states.items()} == {"actor": 6, "critic": 18}


def test_more_updates_than_were_foreseen_give_nan_and_not_another_rate(data: Any) -> None:
    def step(state: Any, batch: Any) -> Any:
        def update(_: Any, net: Any) -> Any:
            return net.apply_gradients(jax.tree.map(jnp.zeros_like, net.params))

        net = jax.lax.fori_loop(0, 1025, update, state["net"])
        return {"net": net}, jnp.sum(net.params["w"])

    with pytest.warns(aa.errors.NaNWarning, match="'loss' of your step is nan at step 1 of epoch 1"):
        run(graph_of(data), step, epochs=1)


def test_many_steps_with_many_updates_each_read_the_right_rates(data: Any) -> None:
    def step(state: Any, batch: Any) -> Any:
        def update(_: Any, net: Any) -> Any:
            return net.apply_gradients(jax.tree.map(jnp.ones_like, net.params))

        return {"net": jax.lax.fori_loop(0, 300, update, state["net"])}, None

    schedule = aa.Schedule("exponential", rate=0.999)
    graph = graph_of(data, optimizer=aa.Optimizer("sgd", lr=1e-3, schedule=schedule))
    run(graph, step, epochs=3)
    moved = 1e-3 * sum(schedule.factor(i) for i in range(2700))
    assert_close(model_of(graph, "net").tree, jax.tree.map(lambda p: p - moved, parameters()))


def test_an_optimizer_that_wants_the_loss_and_a_schedule_of_ones_own(data: Any, optax: Any) -> None:
    def step(state: Any, batch: Any) -> Any:
        net = state["net"]
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((net.apply(p, batch["x"])[0] - batch["y"]) ** 2))(
            net.params
        )
        return {"net": net.apply_gradients(grads, value=loss)}, loss

    tx = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(factor=0.5, patience=1, rtol=0.9))
    graph = graph_of(data, optimizer=aa.Optimizer(tx))
    run(graph, step)
    params = parameters()
    slots = tx.init(params)
    for x, y in batches() * EPOCHS:
        loss, grads = jax.value_and_grad(lambda p, x=x, y=y: jnp.mean((mlp(p, x) - y) ** 2))(params)
        updates, slots = tx.update(grads, slots, params, value=loss)
        params = optax.apply_updates(params, updates)
    assert_close(model_of(graph, "net").tree, params)
    with pytest.raises(PhaseError, match=r"needs the value of the loss\. Hint: write apply_gradients\(grads, value="):
        run(graph_of(data, optimizer=aa.Optimizer(tx)))


def test_a_plateau_lowers_the_rate_of_the_next_epoch(data: Any) -> None:
    def step(state: Any, batch: Any) -> Any:
        return {"net": state["net"].apply_gradients(jax.tree.map(jnp.ones_like, state["net"].params))}, 1.0

    plateau = aa.ReduceLROnPlateau("loss", patience=0, factor=0.1)
    graph = graph_of(data, optimizer=aa.Optimizer("sgd", lr=1.0, schedule=plateau))
    run(graph, step, epochs=3)  # the second epoch is no better, so that the third has a tenth
    assert_close(model_of(graph, "net").tree, jax.tree.map(lambda p: p - (3 + 3 + 0.3), parameters()))


FACTOR = {"value": 1.0}


def test_a_value_that_a_callback_changes_is_seen(data: Any) -> None:
    class Annealing(aa.Callback):
        def epoch_start(self, run: Any) -> None:
            FACTOR["value"] = 1.0 + run.epoch

    def step(state: Any, batch: Any) -> Any:
        return state, jnp.ones(()) * FACTOR["value"]

    results = run(graph_of(data), step, callbacks=[Annealing()])
    assert list(results.loss) == [1.0, 2.0]
    assert any("FACTOR" in event.message for event in results.events if event.kind == "compile")


def test_a_step_that_cannot_be_traced_runs_line_by_line_and_says_so(data: Any) -> None:
    def step(state: Any, batch: Any) -> Any:
        state, figures = regression(state, batch)
        return state, {**figures, "large": float(figures["loss"]) > 0.1}

    expected, graph = graph_of(data), graph_of(data)
    run(expected)
    with pytest.warns(CompileWarning, match=r"runs eagerly: ConcretizationTypeError: .*Hint: make it traceable"):
        run(graph, step)
    assert_close(model_of(graph, "net").tree, model_of(expected, "net").tree)


def test_frozen_nodes_are_in_evaluation_mode_and_keep_their_values(data: Any) -> None:
    def body(params: Any, x: Any, train: bool) -> Any:
        return mlp(params, x) * (2.0 if train else 1.0)

    body_model = anyaccel_jax.Function(body, parameters(4, 3))
    nodes = [
        aa.ModelNode("body", body_model, data.reference()),
        aa.ModelNode("net", anyaccel_jax.Function(mlp, parameters(3)), "body"),
    ]
    graph = aa.ModelGraph(nodes, "adam")
    graph.freeze("body")

    def step(state: Any, batch: Any) -> Any:
        features, _ = state["body"].apply(state["body"].params, batch["x"])
        return state, jnp.abs(features - mlp(parameters(4, 3), batch["x"])).max()

    assert run(graph, step, epochs=1).loss[0] < 1e-6

    def trains(state: Any, batch: Any) -> Any:
        return {**state, "body": state["body"].apply_gradients(state["body"].params)}, None

    with pytest.raises(PhaseError, match=r"'body' cannot be updated: it is frozen\. Hint: return its state unchanged"):
        run(graph, trains)

    def changes(state: Any, batch: Any) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, state["body"].params)
        return {**state, "body": state["body"].replace(params=zeros)}, None

    with pytest.raises(PhaseError, match="the step changed params of node 'body', which is frozen"):
        run(graph, changes)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda models, batch, optimizers: None, r"accept 2 arguments, state, batch: .*Hint: write def step\(state, b"),
        (
            lambda state, batch: {"loss": 1.0},
            r"returned a dict instead of the new state.*Hint: write return state, \{'loss'",
        ),
        (lambda state, batch: ({}, 1.0), r"returned a state of no nodes\. Available: one TrainState for each of net"),
        (
            lambda state, batch: ({"net": state["net"].replace(params={})}, 1.0),
            r"returned params of node 'net' with other names, shapes or dtypes; b \(8,\), v",
        ),
        (
            lambda state, batch: ({"net": state["net"].apply_gradients({"bias": 1.0})}, 1.0),
            r"'net' cannot be updated: no parameter 'bias'.*Hint: pass jax\.grad",
        ),
        (
            lambda state, batch: ({"net": state["net"].apply_gradients(jnp.ones(3))}, 1.0),
            r"gradients must be a dict like params",
        ),
        (lambda state, batch: (state, {"loss": jnp.ones(3)}), r"returned a \w+ of shape \[3\] as the figure 'loss'"),
    ],
)
def test_steps_that_are_none(step: Any, message: str, data: Any) -> None:
    with pytest.raises(PhaseError, match=message):
        run(graph_of(data), step)


def test_clipping_over_several_nodes_is_refused(data: Any) -> None:
    nodes = [
        aa.ModelNode("body", anyaccel_jax.Function(mlp, parameters(4, 3)), data.reference()),
        aa.ModelNode("net", anyaccel_jax.Function(mlp, parameters(3)), "body"),
    ]
    message = r"'net' cannot be updated alone: it shares an optimizer with clip_norm with body.*Hint: use a separate"
    with pytest.raises(PhaseError, match=message):
        run(
            aa.ModelGraph(nodes, SPEC),
            lambda state, batch: ({**state, "net": state["net"].apply_gradients(state["net"].params)}, None),
        )


def test_an_error_in_a_step_leaves_the_values_of_the_last_snapshot(data: Any) -> None:
    def step(state: Any, batch: Any) -> Any:
        if len(batch["x"]) < BATCH:
            raise ZeroDivisionError("in the last step")
        return regression(state, batch)

    graph = graph_of(data)
    with pytest.raises(ZeroDivisionError, match="in the last step") as caught:
        run(graph, step)
    kept = re.search("a step was broken off: values are those after (0|1|2) steps", str(caught.value.__notes__))
    assert kept is not None
    assert graph.optimizer_states["net"].step == int(kept[1])
    expected = graph_of(data)
    if kept[1] != "0":
        run(expected, data=data.take(range(BATCH * int(kept[1]))), epochs=1)
    assert_close(model_of(graph, "net").tree, model_of(expected, "net").tree)


def test_random_numbers_follow_from_the_seed_and_differ_from_step_to_step(data: Any) -> None:
    def step(state: Any, batch: Any) -> Any:
        return state, jax.random.uniform(state["net"].key)

    losses = [run(graph_of(data, seed=seed), step, epochs=4).loss for seed in (1, 1, 2)]
    np.testing.assert_array_equal(losses[0], losses[1])
    assert len({float(loss) for loss in [*losses[0], *losses[2]]}) == 8
