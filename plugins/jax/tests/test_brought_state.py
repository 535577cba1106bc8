"""Models that come with a state: TrainStates of Flax, functions with a state as of Haiku, arrays on several devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import DeviceMismatchError, PhaseError, StateError
from anyaccel_jax import Function, Linen

BATCH = 16
RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 4)).astype("float32")
Y = np.tanh(X @ RNG.normal(size=(4, 1))).astype("float32")


@pytest.fixture
def data() -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])


def train(data: Any, model: Any, optimizer: Any = None, epochs: int = 1) -> Any:
    """The node's model afterwards."""
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], optimizer or aa.Optimizer("sgd", lr=0.1))
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("t", data="all", losses=losses, sampler=aa.SimpleSampler(BATCH), epochs=epochs)
    aa.Experiment("e", graph, progress="none").run_phase(phase)
    node = graph["net"]
    assert isinstance(node, aa.ModelNode)
    return node.model


def batches() -> list[tuple[Any, Any]]:
    return [(X[i : i + BATCH], Y[i : i + BATCH]) for i in range(0, 64, BATCH)]


def assert_close(actual: Any, expected: Any) -> None:
    assert str(jax.tree.structure(actual)) == str(jax.tree.structure(expected))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), actual, expected)


@pytest.fixture
def train_state(linen: Any, optax: Any) -> Any:
    from flax.training import train_state

    base: Any = train_state.TrainState

    class WithStatistics(base):  # type: ignore[misc]
        batch_stats: Any = None

    class Net(linen.Module):  # type: ignore[misc]
        @linen.compact  # type: ignore[untyped-decorator, unused-ignore]
        def __call__(self, x: Any, train: bool = False) -> Any:
            x = linen.Dense(8, use_bias=False)(x)
            return linen.Dense(1)(linen.relu(linen.BatchNorm(use_running_average=not train)(x)))

    net = Net()
    variables = net.init(jax.random.key(0), X[:2])
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(1e-2, 12)))
    statistics = variables["batch_stats"]
    create: Any = WithStatistics.create
    return create(apply_fn=net.apply, params=variables["params"], tx=tx, batch_stats=statistics)


@jax.jit
def step_by_hand(state: Any, x: Any, y: Any) -> Any:
    def loss_of(params: Any) -> Any:
        variables = {"params": params, "batch_stats": state.batch_stats}
        outputs, updated = state.apply_fn(variables, x, True, mutable=["batch_stats"])
        return jnp.mean((outputs - y) ** 2), updated["batch_stats"]

    grads, statistics = jax.grad(loss_of, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=statistics)


def test_a_train_state_goes_on_and_is_given_back(data: Any, train_state: Any) -> None:
    before = jax.tree.map(np.array, train_state)
    by_hand = step_by_hand(train_state, *batches()[0])  # one step before
    actual = train(data, by_hand, aa.Optimizer(train_state.tx)).train_state
    actual = train(data, actual, aa.Optimizer(train_state.tx)).train_state  # in another graph
    for x, y in batches() * 2:
        by_hand = step_by_hand(by_hand, x, y)
    assert_close(actual, by_hand)
    assert int(actual.step) == 9
    assert_close(step_by_hand(actual, X, Y), step_by_hand(by_hand, X, Y))  # it is a TrainState in a loop by hand
    jax.tree.map(np.testing.assert_array_equal, train_state, before)


def test_a_train_state_of_another_optimizer_is_refused_once_it_has_steps(data: Any, train_state: Any) -> None:
    train(data, train_state, aa.Optimizer("sgd", lr=0.1))  # none is lost
    message = r"node 'net' has the state of another optimizer after 1 steps, which sgd cannot.*Hint: use the optimizer"
    with pytest.raises(StateError, match=message):
        train(data, step_by_hand(train_state, X, Y))


def test_a_train_state_of_no_module_is_refused(data: Any, train_state: Any) -> None:
    def apply(params: Any, x: Any) -> Any:
        return x @ params["w"]

    state = train_state.replace(apply_fn=apply, params={"w": jnp.zeros((4, 1))})
    message = (
        r"is not a method of a Linen module.*Hint: pass anyaccel_jax.Function\(function, state.params\), with "
        r"optim"
    )
    with pytest.raises(StateError, match=message):
        train(data, state)
    train(data, Function(state.apply_fn, state.params), aa.Optimizer(state.tx))  # as the hint says


def centred(params: Any, state: Any, x: Any, train: bool) -> Any:
    mean = state["mean"] * 0.9 + 0.1 * x.mean(axis=0) if train else state["mean"]
    return (x - mean) @ params["w"], {"mean": mean}


def test_a_function_with_state_is_its_loop_by_hand(data: Any) -> None:
    params, state = {"w": jnp.ones((4, 1))}, {"mean": jnp.ones(4)}
    model = train(data, Function(centred, params, state=state), epochs=2)
    for x, y in batches() * 2:

        def loss_of(params: Any, x: Any = x, y: Any = y, state: Any = state) -> Any:
            outputs, after = centred(params, state, x, True)
            return jnp.mean((outputs - y) ** 2), after

        grads, state = jax.grad(loss_of, has_aux=True)(params)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    assert_close(model.tree, params)
    assert_close(model.state, state)
    assert_close(model(X), centred(params, state, X, False)[0])


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        (
            lambda params, state, x: x @ params["w"],
            r"has a state, but returned a \w+\. Available: mean\. Hint: return",
        ),
        (lambda params, state, x: (x @ params["w"], {}), "has a state, but returned a state with another structure"),
    ],
)
def test_a_function_that_does_not_give_its_state_is_refused(data: Any, apply: Any, message: str) -> None:
    with pytest.raises(PhaseError, match=message):
        train(data, Function(apply, {"w": jnp.ones((4, 1))}, state={"mean": jnp.ones(4)}))


def noisy(params: Any, x: Any, key: Any) -> Any:
    return (x + jax.random.normal(key, x.shape)) @ params["w"]


def before_the_inputs(params: Any, rng: Any, x: Any) -> Any:
    return noisy(params, x, rng)


def after_the_inputs(params: Any, x: Any, rng: Any) -> Any:
    return noisy(params, x, rng)


def after_the_state(params: Any, state: Any, rng: Any, x: Any) -> Any:
    return noisy(params, x, rng), state


@pytest.mark.parametrize("apply", [before_the_inputs, after_the_inputs, after_the_state])
def test_a_key_is_called_key_or_rng_and_stands_before_or_after_the_inputs(data: Any, apply: Any) -> None:
    params = {"w": jnp.ones((4, 1))}
    state = {"calls": jnp.zeros(1)} if apply is after_the_state else None
    expected = train(data, Function(noisy, params)).tree["w"]
    np.testing.assert_array_equal(train(data, Function(apply, params, state=state)).tree["w"], expected)
    assert not np.allclose(expected, train(data, Function(lambda params, x: x @ params["w"], params)).tree["w"])


def test_the_apply_of_haiku_is_taken_as_it_is(data: Any) -> None:
    haiku = pytest.importorskip("haiku", reason="Haiku is not installed")

    def forward(x: Any, is_training: bool) -> Any:
        x = haiku.BatchNorm(True, True, 0.9)(haiku.Linear(8)(x), is_training)
        return haiku.Linear(1)(haiku.dropout(haiku.next_rng_key(), 0.2 if is_training else 0.0, x))

    net = haiku.transform_with_state(forward)
    params, state = net.init(jax.random.key(0), X[:2], True)

    def apply(params: Any, state: Any, x: Any, key: Any, is_training: bool) -> Any:
        return net.apply(params, state, key, x, is_training)

    expected = train(data, Function(apply, params, state=state), epochs=2)
    assert_close(train(data, Function(net.apply, params, state=state), epochs=2).tree, expected.tree)


def test_haiku_with_state_is_its_own_loop(data: Any) -> None:
    haiku = pytest.importorskip("haiku", reason="Haiku is not installed")

    def forward(x: Any, train: bool) -> Any:
        x = haiku.BatchNorm(True, True, 0.9)(haiku.Linear(8)(x), is_training=train)
        return haiku.Linear(1)(jax.nn.relu(x))

    net = haiku.transform_with_state(forward)
    params, state = net.init(jax.random.key(0), X[:2], True)

    def apply(params: Any, state: Any, x: Any, key: Any, train: bool) -> Any:
        return net.apply(params, state, key, x, train)

    with pytest.raises(
        PhaseError, match=r"its state would not change; pass the state: Function\(apply, parameters, state="
    ):
        train(data, Function(lambda params, x: net.apply(params, state, None, x, True)[0], params))
    model = train(data, Function(apply, params, state=state), epochs=2)
    for x, y in batches() * 2:

        def loss_of(params: Any, x: Any = x, y: Any = y, state: Any = state) -> Any:
            outputs, after = net.apply(params, state, None, x, True)
            return jnp.mean((outputs - y) ** 2), after

        grads, state = jax.grad(loss_of, has_aux=True)(params)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    expected = net.apply(params, state, None, X, False)[0]
    np.testing.assert_allclose(model(X), expected, rtol=1e-4, atol=1e-5)


def test_parameters_on_several_devices_are_refused_and_taken_as_the_hint_says(data: Any, linen: Any) -> None:
    partition: Any = jax.sharding.PartitionSpec
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:2]), ("d",))
    net = linen.Dense(1)
    variables = net.init(jax.random.key(0), X[:2])
    sharding = jax.sharding.NamedSharding(mesh, partition())
    sharded = jax.device_put(variables, sharding)
    message = r"the array is on several devices.*Hint: put it on one: jax\.device_put\(array, device\)"
    with pytest.raises(DeviceMismatchError, match=message):
        train(data, Linen(net, sharded))
    model = train(data, Linen(net, jax.device_put(sharded, jax.devices("cpu")[0])))
    assert_close(model.variables, train(data, Linen(net, variables)).variables)


def test_columns_on_several_devices_are_taken(linen: Any) -> None:
    partition: Any = jax.sharding.PartitionSpec
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:2]), ("d",))
    sharding = jax.sharding.NamedSharding(mesh, partition("d"))
    x = jax.device_put(jnp.asarray(X), sharding)
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": jax.device_put(jnp.asarray(Y), sharding)}, ["x"], ["y"])
    np.testing.assert_array_equal(data.array("x"), X)
    np.testing.assert_array_equal(aa.move(x, "cpu:1"), X)
    assert aa.device_of(aa.move(x, "cpu:1")) == aa.Device("cpu", 1)
