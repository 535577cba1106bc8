"""Training steps of the user's own: with GradientTape on the user's models, beside loops by hand with Keras."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa
from anyaccel.errors import CompileWarning, PhaseError

keras: Any = pytest.importorskip("keras", reason="Keras is not installed")
if keras.backend.backend() != "tensorflow":
    pytest.skip("Keras runs on another framework in this process", allow_module_level=True)

ROWS, BATCH, EPOCHS = 38, 16, 2  # a last batch of 6
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 4)).astype("float32")
Y = np.tanh(X @ RNG.normal(size=(4, 1))).astype("float32")
SCHEDULE = aa.Schedule("cosine", steps=12, warmup=2)
SPEC = aa.Optimizer("sgd", lr=0.1, clip_norm=0.2, schedule=SCHEDULE)


@pytest.fixture
def data() -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])


def mlp(n_in: int = 4, n_out: int = 1) -> Any:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8, use_bias=False), keras.layers.BatchNormalization(momentum=0.7)]
    return keras.Sequential([keras.Input((n_in,)), *layers, keras.layers.ReLU(), keras.layers.Dense(n_out)])


def regression(models: Any, batch: Any, optimizers: Any) -> Any:
    net = models["net"]
    with tf.GradientTape() as tape:
        outputs = net(batch["x"], training=True)
        loss = tf.reduce_mean((outputs - batch["y"]) ** 2)
    gradients = tape.gradient(loss, net.trainable_variables)
    optimizers["net"].apply_gradients(zip(gradients, net.trainable_variables, strict=True))
    return {"loss": loss, "mae": tf.reduce_mean(tf.abs(outputs - batch["y"]))}


def graph_of(data: aa.FeatureSet, model: Any = None, optimizer: Any = SPEC) -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", mlp() if model is None else model, data.reference())], optimizer)


def run(graph: aa.ModelGraph, step: Any = regression, data: Any = "all", **settings: Any) -> Any:
    settings = {"sampler": aa.SimpleSampler(BATCH), "epochs": EPOCHS, **settings}
    return aa.Experiment("own", graph, progress="none").run_phase(aa.TrainPhase("t", data=data, step=step, **settings))


def batches() -> list[dict[str, Any]]:
    parts = [slice(i, i + BATCH) for i in range(0, ROWS, BATCH)]
    return [{"x": tf.constant(X[part]), "y": tf.constant(Y[part])} for part in parts]


class Rates(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    def __init__(self, lr: float) -> None:
        self.lr = lr

    def __call__(self, step: Any) -> Any:
        return tf.gather(tf.constant([self.lr * SCHEDULE.factor(i) for i in range(20)], tf.float32), int(step))


def assert_close(actual: Any, expected: Any) -> None:
    pairs = zip(actual.get_weights(), expected.get_weights(), strict=True)
    for number, (a, b) in enumerate(pairs):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=expected.weights[number].path)


@pytest.mark.parametrize("compile_mode", ["auto", "off"])
def test_equals_the_loop_by_hand_and_validates_it(compile_mode: str, data: Any) -> None:
    graph, by_hand = graph_of(data), mlp()
    validation = aa.EvalPhase("v", data="all", losses=[aa.AppliedLoss("mse", on="net")])
    results = run(graph, compile=compile_mode, validation=validation)
    optimizer = keras.optimizers.SGD(Rates(0.1), global_clipnorm=0.2)
    losses, validated = [], []
    for _ in range(EPOCHS):
        figures = [(regression({"net": by_hand}, batch, {"net": optimizer}), len(batch["x"])) for batch in batches()]
        losses.append(sum(float(figure["loss"]) * n for figure, n in figures) / ROWS)
        validated.append(float(np.mean((by_hand(X, training=False).numpy() - Y) ** 2)))
    assert_close(graph["net"].model, by_hand)
    np.testing.assert_allclose(results.loss, losses, rtol=2e-6)
    np.testing.assert_allclose(results.figure("val_loss"), validated, rtol=2e-5)
    assert results.figures == ("loss", "mae", "val_loss", "val_loss.net")
    assert graph.optimizer_states["net"].step == 3 * EPOCHS
    evaluated = aa.Experiment("e", graph, progress="none").run_phase(validation)  # a phase of its own
    assert evaluated.loss == pytest.approx(validated[-1], rel=2e-5)


@pytest.mark.parametrize("make", [lambda: aa.Optimizer("adam", lr=0.01), lambda: aa.Optimizer(keras.optimizers.Adam)])
def test_optimizers_with_slots(make: Any, data: Any) -> None:
    spec = make()
    graph, by_hand, optimizer = graph_of(data, optimizer=spec), mlp(), keras.optimizers.Adam(spec.lr, epsilon=1e-8)
    run(graph)
    for batch in batches() * EPOCHS:
        regression({"net": by_hand}, batch, {"net": optimizer})
    for a, b in zip(graph["net"].model.get_weights(), by_hand.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)  # each adds its epsilon at another place


def test_it_is_traced_once_for_each_shape_and_at_each_step_without_compilation(data: Any) -> None:
    calls: list[Any] = []

    def step(models: Any, batch: Any, optimizers: Any) -> Any:
        calls.append(batch["x"].shape[0])
        return regression(models, batch, optimizers)

    run(graph_of(data), step)
    assert sorted(calls) == [6, 16]
    calls.clear()
    run(graph_of(data), step, compile="off")
    assert calls == [16, 16, 6] * EPOCHS


def test_two_phases_and_a_saved_state_continue(data: Any) -> None:
    spec = aa.Optimizer("adam", lr=0.01, schedule=SCHEDULE)
    whole, parts, loaded = (graph_of(data, optimizer=spec) for _ in range(3))
    run(whole, epochs=2)
    run(parts, epochs=1)
    loaded.load_state(parts.state())
    for graph in (parts, loaded):
        run(graph, epochs=1)
        assert_close(graph["net"].model, whole["net"].model)


def adversarial(models: Any, batch: Any, optimizers: Any) -> Any:
    """Three updates of the critic for each of the actor."""
    actor, critic = models["actor"], models["critic"]
    made = actor(batch["x"], training=True)
    for _ in range(3):
        with tf.GradientTape() as tape:
            real, fake = critic(batch["y"], training=True), critic(made, training=True)
            critic_loss = tf.reduce_mean(tf.nn.softplus(-real)) + tf.reduce_mean(tf.nn.softplus(fake))
        held = critic.trainable_variables
        optimizers["critic"].apply_gradients(zip(tape.gradient(critic_loss, held), held, strict=True))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.softplus(-critic(actor(batch["x"], training=True), training=True)))
    held = actor.trainable_variables
    optimizers["actor"].apply(tape.gradient(loss, held), held)
    return {"actor": loss, "critic": critic_loss}


@pytest.mark.parametrize("is_tf_function", [False, True])
def test_updates_that_take_turns(is_tf_function: bool, data: Any) -> None:
    actor, critic = mlp(), mlp(1)
    nodes = [
        aa.ModelNode("actor", actor, data.reference(), optimizer=aa.Optimizer("sgd", lr=0.05)),
        aa.ModelNode("critic", critic, "actor", optimizer=aa.Optimizer("sgd", lr=0.1, schedule=SCHEDULE)),
    ]
    graph = aa.ModelGraph(nodes)
    run(graph, tf.function(adversarial) if is_tf_function else adversarial)
    expected = {"actor": mlp(), "critic": mlp(1)}
    optimizers = {"actor": keras.optimizers.SGD(0.05), "critic": keras.optimizers.SGD(Rates(0.1))}
    for batch in batches() * EPOCHS:
        adversarial(expected, batch, optimizers)
    assert_close(actor, expected["actor"])
    assert_close(critic, expected["critic"])
    assert {node: state.step for node, state in graph.optimizer_states.items()} == {"actor": 6, "critic": 18}


def test_more_updates_than_were_foreseen_give_nan_and_not_another_rate(data: Any) -> None:
    def step(models: Any, batch: Any, optimizers: Any) -> Any:
        variables = models["net"].trainable_variables
        for _ in tf.range(tf.constant(1025)):
            optimizers["net"].apply_gradients([(tf.zeros_like(v), v) for v in variables])
        return tf.reduce_sum(variables[0])

    with pytest.warns(aa.errors.NaNWarning, match="'loss' of your step is nan at step 1 of epoch 1"):
        run(graph_of(data), tf.function(step), epochs=1)


def test_a_plateau_lowers_the_rate_of_the_next_epoch(data: Any) -> None:
    def step(models: Any, batch: Any, optimizers: Any) -> float:
        optimizers["net"].apply_gradients([(tf.ones_like(v), v) for v in models["net"].trainable_variables])
        return 1.0

    plateau = aa.ReduceLROnPlateau("loss", patience=0, factor=0.1)
    graph = graph_of(data, optimizer=aa.Optimizer("sgd", lr=1.0, schedule=plateau))
    run(graph, step, epochs=3)  # the second epoch is no better, so that the third has a tenth
    for actual, before in zip(graph["net"].model.trainable_variables, mlp().trainable_variables, strict=True):
        np.testing.assert_allclose(actual, before - (3 + 3 + 0.3), rtol=1e-5)


FACTOR = {"value": 1.0}


def test_a_value_that_a_callback_changes_is_seen(data: Any) -> None:
    class Annealing(aa.Callback):
        def epoch_start(self, run: Any) -> None:
            FACTOR["value"] = 1.0 + run.epoch

    results = run(graph_of(data), lambda models, batch, optimizers: FACTOR["value"], callbacks=[Annealing()])
    assert list(results.loss) == [1.0, 2.0]


def test_a_step_that_cannot_be_traced_runs_line_by_line_and_says_so(data: Any) -> None:
    def step(models: Any, batch: Any, optimizers: Any) -> Any:
        figures = regression(models, batch, optimizers)
        return {**figures, "large": float(figures["loss"]) > 0.1}

    expected, graph = graph_of(data), graph_of(data)
    run(expected)
    with pytest.warns(CompileWarning, match=r"the step cannot be compiled and runs eagerly: .*Hint: make it"):
        run(graph, step)
    assert_close(graph["net"].model, expected["net"].model)


def test_frozen_nodes_do_not_change_and_have_no_optimizer(data: Any) -> None:
    body, net = mlp(4, 3), mlp(3)
    body.layers[1].gamma.assign([2.0] * 8)
    body.layers[0].trainable = False  # by the user
    before = body.get_weights()
    graph = aa.ModelGraph([aa.ModelNode("body", body, data.reference()), aa.ModelNode("net", net, "body")], "adam")
    graph.freeze("body")
    seen: list[Any] = []

    def step(models: Any, batch: Any, optimizers: Any) -> Any:
        seen.append((list(optimizers), len(models["body"].trainable_variables)))
        features = models["body"](batch["x"], training=True)  # as Keras does, in inference mode where not trainable
        return tf.reduce_max(tf.abs(features - models["body"](batch["x"], training=False)))

    assert run(graph, step, epochs=1).loss[0] == 0.0
    assert seen[0] == (["net"], 0)
    for a, b in zip(body.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)
    trainable = [layer.trainable for layer in body.layers]
    assert trainable == [False, True, True, True]
    assert len(body.trainable_variables) == 4

    def updates(models: Any, batch: Any, optimizers: Any) -> None:
        optimizers["net"].apply_gradients([(tf.ones_like(v), v) for v in models["body"].weights[:1]])

    message = (
        r"the optimizer of net received the variable '.*', which none of them trains.*frozen nodes have no optimizer"
    )
    with pytest.raises(PhaseError, match=message):
        run(graph, updates)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda state, batch: None, r"accept 3 arguments, models, batch, optimizers: .*Hint: write def step\(models, "),
        (
            lambda models, batch, optimizers: optimizers["net"].apply(
                [None] * 4, models["net"].trainable_variables[:4]
            ),
            r"the optimizer of net received no gradient\. Hint: compute the loss inside `with tf\.GradientTape",
        ),
        (lambda models, batch, optimizers: {"loss": tf.ones(3)}, r"returned a \w+ of shape \[3\] as the figure 'loss'"),
    ],
)
def test_steps_that_are_none(step: Any, message: str, data: Any) -> None:
    with pytest.raises(PhaseError, match=message):
        run(graph_of(data), step)


def test_an_error_in_a_step_leaves_the_values_of_a_snapshot(data: Any) -> None:
    def step(models: Any, batch: Any, optimizers: Any) -> None:
        regression(models, batch, optimizers)
        if batch["x"].shape[0] < BATCH:
            raise ZeroDivisionError("in the last step")

    graph = graph_of(data)
    with pytest.raises(ZeroDivisionError, match="in the last step") as caught:
        run(graph, step, compile="off")
    assert "a step was broken off: values are those after " in str(caught.value.__notes__)
    n_done, by_hand = graph.optimizer_states["net"].step, mlp()
    optimizer = keras.optimizers.SGD(Rates(0.1), global_clipnorm=0.2)
    for batch in batches()[:n_done]:
        regression({"net": by_hand}, batch, {"net": optimizer})
    assert n_done < 3
    assert_close(graph["net"].model, by_hand)
