"""Every kind of model, trained in a graph and by a loop as users of its library write it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anyaccel as aa
import anyaccel_jax as ours
from anyaccel.device import Device
from anyaccel.errors import GraphError, PhaseError, ShapeError, StateError
from anyaccel.segment import TensorSpec
from anyaccel_jax import Function, JaxBackend, SequentialCNN, SequentialMLP

Train = Callable[..., tuple[Any, np.ndarray]]
Batches = list[tuple[np.ndarray, np.ndarray]]
RATE = 0.1
IN, OUT = [TensorSpec((3,), "float32")], (TensorSpec((1,), "float32"),)


def by_hand(loss: Callable[..., Any], parameters: Any, state: Any, batches: Batches) -> tuple[Any, Any, np.ndarray]:
    """Plain gradient descent on `loss(parameters, state, x, y)`, which gives the loss and the next state."""
    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    losses = []
    for x, y in batches:
        (value, state), gradients = step(parameters, state, x, y)
        parameters = jax.tree.map(lambda w, g: w - RATE * g, parameters, gradients)
        losses.append(float(value))
    return parameters, state, np.array(losses).reshape(-1, 3).mean(axis=1)


def mse(outputs: Any, targets: Any) -> Any:
    return ((outputs - targets) ** 2).mean()


def close(actual: Any, expected: Any) -> None:
    """Equal structure, and nearly equal values."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for leaf, expected_leaf in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, expected_leaf, rtol=1e-5, atol=1e-6)


# -- pure functions ----------------------------------------------------------------------------------------------------


def weights() -> Any:
    draw = jax.random.split(jax.random.key(0))
    return {"a": [jax.random.normal(draw[0], (3, 5)), np.zeros(5, "f4")], "b": jax.random.normal(draw[1], (5, 1))}


def apply(parameters: Any, x: Any) -> Any:
    (w, b), v = parameters["a"], parameters["b"]
    return jnp.tanh(x @ w + b) @ v


def test_a_function_is_trained_as_by_hand(train: Train, batches: Batches) -> None:
    given = weights()
    model, losses = train(Function(apply, given))
    expected, _, by = by_hand(lambda p, s, x, y: (mse(apply(p, x), y), s), given, None, batches)
    np.testing.assert_allclose(losses, by, rtol=1e-5)
    close(model.tree, expected)
    assert list(model.parameters) == ["a.0", "a.1", "b"]
    assert repr(model) == "Function(apply)"
    np.testing.assert_allclose(model(batches[0][0]), apply(expected, batches[0][0]), rtol=1e-5, atol=1e-5)


def test_a_functions_parameters_are_copied_and_stay(train: Train) -> None:
    given = weights()
    before = jax.tree.map(np.array, given)
    train(Function(apply, given))
    close(given, before)
    given["a"][1][:] = 9
    model = Function(apply, given)
    given["a"][1][:] = 7
    assert float(model.tree["a"][1][0]) == 9


def test_a_function_gets_mode_and_key_if_it_has_parameters_for_them(backend: JaxBackend, train: Train) -> None:
    def noisy(parameters: Any, x: Any, *, train: bool, key: Any) -> Any:
        return x @ parameters["w"] + (jax.random.normal(key, (x.shape[0], 1)) if train else 0.0)

    def build() -> Function:
        return Function(noisy, {"w": jnp.zeros((3, 1)), "steps": 4})

    model = build()
    assert (list(model.parameters), list(model.buffers)) == (["w"], ["steps"])
    first, same, other = (train(build(), seed=seed)[1] for seed in (1, 1, 2))
    assert (first == same).all() and (first != other).any()
    assert (model(np.ones((2, 3), "f4")) == 0).all()


def test_equal_short_names_become_whole_paths() -> None:
    model = Function(lambda p, x: x, {"a.b": jnp.ones(1), "a": {"b": jnp.ones(2)}})
    assert sorted(model.parameters) == ["['a']['b']", "['a.b']"]
    assert {name: value.shape for name, value in model.tree.items() if name == "a.b"} == {"a.b": (1,)}


# -- Flax Linen --------------------------------------------------------------------------------------------------------


@pytest.fixture
def linen_net(linen: ModuleType) -> Any:
    class Net(linen.Module):  # type: ignore[name-defined,misc]
        rate: float = 0.0

        @linen.compact
        def __call__(self, x: Any, train: bool) -> Any:
            x = linen.BatchNorm(use_running_average=not train, momentum=0.9)(linen.Dense(5)(x))
            return linen.Dense(1)(linen.Dropout(self.rate, deterministic=not train)(jnp.tanh(x)))

    return Net


def test_a_linen_module_is_wrapped_and_trained_as_by_hand(train: Train, batches: Batches, linen_net: Any) -> None:
    module = linen_net()
    variables = module.init(jax.random.key(1), batches[0][0], train=False)

    def loss(p: Any, s: Any, x: Any, y: Any) -> Any:
        outputs, after = module.apply({"params": p, "batch_stats": s}, x, train=True, mutable=["batch_stats"])
        return mse(outputs, y), after["batch_stats"]

    expected, stats, by = by_hand(loss, variables["params"], variables["batch_stats"], batches)
    before = jax.tree.map(np.array, variables)
    model, losses = train(ours.Linen(module, variables))
    np.testing.assert_allclose(losses, by, rtol=1e-5)
    close(model.variables, {"params": expected, "batch_stats": stats})
    close(variables, before)
    assert "BatchNorm_0.scale" in model.parameters and list(model.buffers) == [
        "batch_stats.BatchNorm_0.mean",
        "batch_stats.BatchNorm_0.var",
    ]


def test_a_raw_linen_module_is_initialised_from_the_graphs_seed(train: Train, linen_net: Any) -> None:
    result = [train(linen_net(), seed=seed, epochs=1)[0] for seed in (3, 3, 4)]
    assert [type(model) for model in result] == [ours.Linen] * 3 and repr(result[0]) == "Linen(Net)"
    first, same, other = (model.parameters["Dense_0.kernel"] for model in result)
    assert (first == same).all() and (first != other).any()


def test_linens_dropout_follows_the_seed_and_is_off_in_evaluation(train: Train, linen_net: Any) -> None:
    first, same, other = (train(linen_net(rate=0.5), seed=seed)[1] for seed in (1, 1, 2))
    assert (first == same).all() and (first != other).any()
    model = train(linen_net(rate=0.5))[0]
    x = np.ones((4, 3), "f4")
    assert (model(x) == model.module.apply(model.variables, x, train=False)).all()


def test_linen_modules_that_box_their_parameters(backend: JaxBackend, linen: ModuleType, train: Train) -> None:
    init = linen.with_partitioning(linen.initializers.lecun_normal(), ("in", "out"))
    model, losses = train(linen.Dense(1, kernel_init=init))
    assert list(model.parameters) == ["bias", "kernel"] and losses[-1] < losses[0]
    assert type(model.variables["params"]["kernel"]).__name__ == "Partitioned"


def test_a_linen_module_that_is_not_built_holds_nothing(backend: JaxBackend, linen: ModuleType) -> None:
    model = ours.Linen(linen.Dense(2))
    assert not model.is_built and model.variables == model.parameters == model.buffers == {}


def test_linens_wishes(backend: JaxBackend, linen: ModuleType) -> None:
    assert backend.dtype_of(linen.Dense(2)) == "float32"
    assert backend.dtype_of(linen.Dense(2, param_dtype=jnp.bfloat16)) == "bfloat16"
    conv, elementwise = linen.Conv(4, (3, 3)), linen.Sequential([linen.relu, linen.Conv(4, (3, 3)), jnp.tanh])
    assert backend.data_format(conv) == ("channels_last",) * 2 == backend.data_format(elementwise)
    assert backend.data_format(linen.Sequential([conv, lambda x: x.mean((1, 2)), linen.Dense(2)])) == (
        "channels_last",
        "",
    )


# -- Flax NNX ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def nnx_net(nnx: ModuleType) -> Any:
    class Net(nnx.Module):  # type: ignore[name-defined,misc]
        def __init__(self, rate: float = 0.0) -> None:
            rngs = nnx.Rngs(0, dropout=1)
            self.first, self.last = nnx.Linear(3, 5, rngs=rngs), nnx.Linear(5, 1, rngs=rngs)
            self.norm, self.drop = nnx.BatchNorm(5, momentum=0.9, rngs=rngs), nnx.Dropout(rate, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.last(self.drop(jnp.tanh(self.norm(self.first(x)))))

    return Net


def test_an_nnx_module_is_trained_in_place_as_by_hand(
    train: Train, batches: Batches, nnx: ModuleType, nnx_net: Any
) -> None:
    given, own = nnx_net(), nnx_net()

    @nnx.jit
    def step(module: Any, x: Any, y: Any) -> Any:
        loss, gradients = nnx.value_and_grad(lambda m: mse(m(x), y))(module)
        nnx.update(module, jax.tree.map(lambda w, g: w - RATE * g, nnx.state(module, nnx.Param), gradients))
        return loss

    own.train()
    by = np.array([float(step(own, x, y)) for x, y in batches]).reshape(-1, 3).mean(axis=1)
    model, losses = train(given)
    assert model is given
    np.testing.assert_allclose(losses, by, rtol=1e-5)
    for kind in (nnx.Param, nnx.BatchStat):
        close(nnx.state(given, kind), nnx.state(own, kind))


def test_nnx_names_modes_and_streams_stay_the_users(
    backend: JaxBackend, train: Train, nnx: ModuleType, nnx_net: Any
) -> None:
    model = nnx_net(0.5)
    model.train()
    key = jax.random.key_data(model.drop.rngs.key[...])
    train(model)
    assert not model.drop.deterministic and not model.norm.use_running_average
    assert int(model.drop.rngs.count[...]) == 0
    assert (jax.random.key_data(model.drop.rngs.key[...]) == key).all()
    state = backend.state(model)
    assert sorted(state) == sorted(
        [f"parameters/{name}.{part}" for name in ("first", "last") for part in ("bias", "kernel")]
        + ["parameters/norm.bias", "parameters/norm.scale", "buffers/norm.mean", "buffers/norm.var"]
    )


def test_nnx_dropout_follows_the_seed(train: Train, nnx_net: Any) -> None:
    first, same, other = (train(nnx_net(0.5), seed=seed)[1] for seed in (1, 1, 2))
    assert (first == same).all() and (first != other).any()


def test_an_nnx_module_that_asks_for_streams_and_mode(backend: JaxBackend, train: Train, nnx: ModuleType) -> None:
    class Net(nnx.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            self.drop, self.layer = nnx.Dropout(0.5), nnx.Linear(3, 1, rngs=nnx.Rngs(0))

        def __call__(self, x: Any, *, rngs: Any, deterministic: bool) -> Any:
            return self.layer(self.drop(x, rngs=rngs, deterministic=deterministic))

    first, same, other = (train(Net(), seed=seed)[1] for seed in (1, 1, 2))
    assert (first == same).all() and (first != other).any()


def test_streams_of_several_keys_keep_their_shape(nnx: ModuleType) -> None:
    from anyaccel_jax.models.nnx import NnxModel

    class Net(nnx.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            self.key = nnx.RngKey(jax.random.split(jax.random.key(0, impl="rbg"), 3), tag="noise")

        def __call__(self, x: Any) -> Any:
            assert self.key[...].shape == (3,) and str(jax.random.key_impl(self.key[...])) == "rbg"
            return x + jax.random.normal(self.key[...][2], x.shape)

    view = NnxModel(Net())
    first, other = (view.apply({}, {}, [jnp.zeros((2, 3))], True, jax.random.key(i))[0][0] for i in range(2))
    assert (first != other).any()


def test_nnx_layouts(backend: JaxBackend, nnx: ModuleType) -> None:
    rngs = nnx.Rngs(0)
    conv = nnx.Conv(3, 4, (3, 3), rngs=rngs)
    assert backend.data_format(nnx.Sequential(nnx.Dropout(0.1, rngs=rngs), conv, nnx.relu)) == ("channels_last",) * 2
    assert backend.data_format(nnx.Linear(2, 2, rngs=rngs)) == ("", "")


def test_only_a_batch_normalization_couples_a_batch(
    backend: JaxBackend, nnx: ModuleType, nnx_net: Any, eqx: ModuleType, eqx_net: Any
) -> None:
    assert backend.batch_coupling(nnx_net()) == "BatchNorm" == backend.batch_coupling(eqx_net())
    assert backend.batch_coupling(nnx.Linear(2, 2, rngs=nnx.Rngs(0))) == ""
    assert backend.batch_coupling(eqx.nn.Linear(2, 2, key=jax.random.key(0))) == ""


# -- Equinox -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def eqx_net(eqx: ModuleType) -> Any:
    class Net(eqx.Module):  # type: ignore[name-defined,misc]
        first: Any
        norm: Any
        drop: Any
        last: Any

        def __init__(self, rate: float = 0.0) -> None:
            first, second = jax.random.split(jax.random.key(0))
            self.first, self.last = eqx.nn.Linear(3, 5, key=first), eqx.nn.Linear(5, 1, key=second)
            self.norm, self.drop = eqx.nn.BatchNorm(5, "batch", mode="ema"), eqx.nn.Dropout(rate)

        def __call__(self, x: Any, state: Any, *, key: Any) -> Any:
            x, state = self.norm(self.first(x), state)
            return self.last(self.drop(jnp.tanh(x), key=key)), state

    return Net


def test_an_equinox_module_is_mapped_over_the_batch_and_trained_as_by_hand(
    train: Train, batches: Batches, eqx: ModuleType, eqx_net: Any
) -> None:
    module, state = eqx.nn.make_with_state(eqx_net)()
    arrays, static = eqx.partition(module, eqx.is_inexact_array)

    def loss(p: Any, s: Any, x: Any, y: Any) -> Any:
        net = eqx.combine(p, static)
        over = jax.vmap(lambda x, s: net(x, s, key=None), axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        outputs, s = over(x, s)
        return mse(outputs, y), s

    expected, after, by = by_hand(loss, arrays, state, batches)
    for given in (ours.Equinox(module, state), eqx_net()):
        model, losses = train(given)
        np.testing.assert_allclose(losses, by, rtol=1e-5)
        close(eqx.filter(model.module, eqx.is_inexact_array), expected)
        close(model.state, after)
    assert repr(model) == "Equinox(Net)" and "first.weight" in model.parameters
    np.testing.assert_array_equal(module.first.weight, eqx_net().first.weight)


def test_equinox_dropout_gets_a_key_for_each_sample(train: Train, eqx_net: Any, eqx: ModuleType) -> None:
    first, same, other = (train(eqx_net(0.5), seed=seed)[1] for seed in (1, 1, 2))
    assert (first == same).all() and (first != other).any()
    drop = ours.Equinox(eqx.nn.Dropout(0.5))
    ((result,), _) = drop.apply({}, {}, [jnp.ones((64, 4))], True, jax.random.key(0))
    assert len({tuple(row) for row in np.asarray(result)}) > 8
    assert (drop(jnp.ones((4, 4))) == 1).all()


def test_equal_equinox_modules_have_equal_cache_keys(eqx: ModuleType, eqx_net: Any) -> None:
    keys = [ours.Equinox(eqx_net(rate)).cache_key for rate in (0.5, 0.5, 0.25)]
    assert keys[0] == keys[1] != keys[2] and hash(keys[0]) == hash(keys[1])


def test_an_equinox_module_without_its_state_raises(eqx: ModuleType, eqx_net: Any) -> None:
    module, _ = eqx.nn.make_with_state(eqx_net)()
    with pytest.raises(ShapeError, match=r"the state of Net is missing.*Equinox\(module, state\)"):
        ours.Equinox(module)


def test_arrays_that_are_not_trained_stay_in_the_equinox_module(train: Train, eqx: ModuleType) -> None:
    class Net(eqx.Module):  # type: ignore[name-defined,misc]
        layer: Any
        order: Any
        name: str = "net"

        def __call__(self, x: Any) -> Any:
            return self.layer(x[self.order])

    model, losses = train(Net(eqx.nn.Linear(3, 1, key=jax.random.key(0)), jnp.array([2, 0, 1])))
    assert list(model.buffers) == ["order"] and model.state is None and losses[-1] < losses[0]
    assert model.module.name == "net" and (model.module.order == jnp.array([2, 0, 1])).all()


def test_equinox_layouts(backend: JaxBackend, eqx: ModuleType) -> None:
    conv, pool = eqx.nn.Conv2d(3, 4, 3, key=jax.random.key(0)), eqx.nn.MaxPool2d(2)
    both = ("channels_first",) * 2
    assert (
        backend.data_format(conv)
        == both
        == backend.data_format(eqx.nn.Sequential([eqx.nn.Lambda(jax.nn.relu), conv, pool]))
    )
    assert backend.data_format(eqx.nn.Sequential([conv, eqx.nn.Lambda(jnp.ravel)])) == ("channels_first", "")


# -- ours --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "identity"])
@pytest.mark.parametrize(("kernel", "pool", "size"), [(3, 2, (8, 6)), (5, 3, (10, 11)), (1, 1, (3, 4))])
def test_the_cnn_is_that_of_the_reference(
    backend: JaxBackend, activation: str, kernel: int, pool: int, size: tuple[int, int]
) -> None:
    from anyaccel.numpy_backend import NumpyBackend
    from anyaccel.numpy_backend import SequentialCNN as Reference

    settings: dict[str, Any] = {"channels": (4, 5), "kernel_size": kernel, "pool": pool, "activation": activation}
    spec, numpy = TensorSpec((2, *size), "float32"), NumpyBackend()
    ours, theirs = SequentialCNN((2, 3), **settings), Reference((2, 3), **settings)
    assert backend.infer(ours, [spec], 5) == numpy.infer(theirs, [spec], 5) == (TensorSpec((2, 3), "float32"),)
    assert list(backend.state(ours)) == list(numpy.state(theirs))
    for name, value in numpy.state(theirs).items():
        np.testing.assert_array_equal(backend.state(ours)[name], value)
    x = np.random.default_rng(0).normal(size=(4, 2, *size)).astype("f4")
    result = theirs.apply(theirs.parameters, (x,), train=False, key=0).outputs[0]
    np.testing.assert_allclose(ours(x), result, rtol=2e-5, atol=1e-6)
    assert backend.data_format(ours) == ("channels_first", "") and ours.get_config()["kernel_size"] == kernel


def test_the_cnn_trains_as_the_reference_does() -> None:
    from anyaccel.numpy_backend import SequentialCNN as Reference

    draw = np.random.default_rng(0)
    x, y = np.round(draw.normal(size=(32, 1, 6, 6)), 1).astype("f4"), draw.normal(size=(32, 2)).astype("f4")
    result = []
    for cls in (SequentialCNN, Reference):
        source = aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ["x"], ["y"])
        graph = aa.ModelGraph([aa.ModelNode("net", cls(2, (3,)), source.reference())], aa.Optimizer("adam", lr=1e-2))
        phase = aa.TrainPhase("t", data=source, losses=[aa.AppliedLoss("mse", on="net")], batch_size=8, epochs=5)
        result.append((aa.Experiment("e", graph, progress="none").run_phase(phase).loss, graph.state()))
    np.testing.assert_allclose(result[0][0], result[1][0], rtol=1e-5)
    for name, value in result[1][1].items():
        np.testing.assert_allclose(result[0][1][name], value, rtol=1e-4, atol=1e-6)


def test_equal_values_in_a_window_give_their_gradient_to_the_first(backend: JaxBackend) -> None:
    model = SequentialCNN(1, (1,), kernel_size=1, activation="identity")
    backend.infer(model, [TensorSpec((1, 2, 2), "float32")], 0)
    parameters = {**model.parameters, "convs.0.weight": jnp.ones((1, 1, 1, 1)), "head.weight": jnp.ones((1, 1))}
    back = jax.grad(lambda x: model.apply(parameters, {}, [x], False, None)[0][0].sum())(jnp.ones((1, 1, 2, 2)))
    np.testing.assert_array_equal(back[0, 0], [[1, 0], [0, 0]])


def test_a_model_of_ours_builds_itself_at_its_first_batch() -> None:
    model = SequentialMLP((2, 2), n_layers=3)
    assert not model.is_built
    assert model(np.ones((4, 3), "f4"), np.ones((4, 1, 2), "f4")).shape == (4, 2, 2)
    with pytest.raises(ShapeError, match=r"cannot take inputs of shapes \[7\].*built for \[3\] and \[1, 2\]"):
        model.build([TensorSpec((7,), "float32")], 0)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_modules_that_hold_nothing_must_be_wrapped(backend: JaxBackend, linen: ModuleType, eqx: ModuleType) -> None:
    for module, name in ((linen.Dense(1), "Linen"), (eqx.nn.Linear(1, 1, key=jax.random.key(0)), "Equinox")):
        with pytest.raises(StateError, match=rf"has no trainable values.*anyaccel_jax.{name}\(module\)"):
            backend.state(module)
    with pytest.raises(StateError, match=r"Function\(apply, parameters\)"):
        backend.parameters(object())
    with pytest.raises(StateError, match=r"SequentialMLP has no parameters yet.*build the graph"):
        backend.state(SequentialMLP())


REFUSED = {
    "sizes": (
        lambda p, x: x @ jnp.ones((7, 1)),
        r"does not accept float32\[3\] per sample.*dot_general.*\(3,\).*\(7,\)",
    ),
    "values": (lambda p, x: x if x.sum() > 0 else -x, "Attempted boolean conversion.*jax.numpy.where"),
    "no batch": (lambda p, x: x.sum(axis=0), r"returns \[3\] for a batch of 2.*keep the batch"),
    "a scalar": (lambda p, x: x.sum(), r"returns \[\] for a batch of 2"),
    "batch inside": (lambda p, x: x @ x.T, r"returns \[2, 2\] for a batch of 2, and \[3, 3\] for"),
    "no array": (lambda p, x: "text", "returned a str, which"),
    "nothing": (lambda p, x: (), "returned a tuple of nothing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_do_not_accept_their_inputs_raise(backend: JaxBackend, name: str) -> None:
    function, words = REFUSED[name]
    with pytest.raises(ShapeError, match=words):
        backend.infer(Function(function, {}), IN, 0)


def test_a_mistake_in_a_models_code_is_not_told_as_one_of_shapes(backend: JaxBackend) -> None:
    with pytest.raises(
        GraphError, match=r"raised AttributeError in <lambda>, .*nothing.*fix the model's code"
    ) as caught:
        backend.infer(Function(lambda p, x: x.nothing, {}), IN, 0)
    assert not isinstance(caught.value, ShapeError)


def test_a_single_number_a_sample_is_explained(backend: JaxBackend, linen: ModuleType) -> None:
    with pytest.raises(ShapeError, match=r"store the column as \[n, 1\]"):
        backend.infer(Function(lambda p, x: x @ jnp.ones((3, 1)), {}), [TensorSpec((), "float32")], 0)


def test_several_outputs_in_any_container(backend: JaxBackend) -> None:
    for made in (lambda x: (x, x[:, :1]), lambda x: [x, x[:, :1]], lambda x: {"a": x, "b": x[:, :1]}):
        model = Function(lambda p, x, made=made: made(x), {})
        assert backend.infer(model, IN, 0) == (TensorSpec((3,), "float32"), TensorSpec((1,), "float32"))


def test_placed_and_trained_on_another_device(train: Train) -> None:
    model, _ = train(SequentialMLP(), accelerator="cpu:1")
    assert aa.device_of(model) == Device("cpu", 1)


# -- models that keep state ------------------------------------------------------------------------------------------


def nnx_layers(nnx: ModuleType) -> dict[str, Callable[[], Any]]:
    class Centred(nnx.Module):  # type: ignore[name-defined,misc]
        """Keeps a running mean, which it uses in evaluation."""

        def __init__(self) -> None:
            self.mean, self.dense = nnx.Variable(jnp.zeros(3)), nnx.Linear(3, 1, rngs=nnx.Rngs(0))
            self.use_running_average = False

        def __call__(self, x: Any) -> Any:
            if not self.use_running_average:
                self.mean[...] = 0.9 * self.mean[...] + 0.1 * x.mean(0)
            return self.dense(x - self.mean[...])

    class Looped(nnx.Module):  # type: ignore[name-defined,misc]
        """One BatchNorm several times in a call."""

        def __init__(self) -> None:
            self.norm, self.dense = nnx.BatchNorm(3, rngs=nnx.Rngs(0)), nnx.Linear(3, 1, rngs=nnx.Rngs(0))

        def __call__(self, x: Any) -> Any:
            for _ in range(3):
                x = self.norm(x)
            return self.dense(x)

    class Counting(nnx.Module):  # type: ignore[name-defined,misc]
        """Counts its calls in an attribute, and computes with that."""

        def __init__(self) -> None:
            self.calls, self.dense = 1, nnx.Linear(3, 1, rngs=nnx.Rngs(0))

        def __call__(self, x: Any) -> Any:
            self.calls += 1
            return self.dense(x) / self.calls

    def normalized(kind: Any) -> Any:
        inner = kind(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0))
        return nnx.Sequential(inner, nnx.Linear(4, 1, rngs=nnx.Rngs(1)))

    return {
        "a running mean": Centred,
        "BatchNorm in a loop": Looped,
        "a counter": Counting,
        "SpectralNorm": lambda: normalized(nnx.SpectralNorm),
        "WeightNorm": lambda: normalized(nnx.WeightNorm),
    }


@pytest.mark.parametrize("kind", ["a running mean", "BatchNorm in a loop"])
@pytest.mark.parametrize("mode", ["auto", "off"])
def test_state_of_an_nnx_module_is_that_of_its_own_loop(
    train: Train, batches: Batches, nnx: ModuleType, optax: ModuleType, kind: str, mode: str
) -> None:
    own, given = (nnx_layers(nnx)[kind]() for _ in range(2))
    optimizer = nnx.Optimizer(own, optax.sgd(RATE), wrt=nnx.Param)
    own.train()
    for x, y in batches:
        optimizer.update(own, nnx.grad(lambda model, x=x, y=y: mse(model(x), y))(own))
    train(given, compile=mode)
    own.eval(), given.eval()
    x = np.concatenate([x for x, _ in batches[:3]])
    np.testing.assert_allclose(given(x), own(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("a counter", "calls"),
        ("SpectralNorm", r"layers\.0\.layer_instance\.kernel"),
        ("WeightNorm", r"layers\.0\.layer_instance\.kernel"),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "off"])
def test_an_nnx_module_that_writes_what_is_not_carried_is_refused(
    train: Train, nnx: ModuleType, kind: str, name: str, mode: str
) -> None:
    model = nnx_layers(nnx)[kind]()
    with pytest.raises(
        PhaseError,
        match=rf"cannot be trained: its call writes to {name}, and this change would be "
        r"lost.*Hint",
    ):
        train(model, compile=mode)


@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_equinox_state_is_that_of_its_own_loop(
    train: Train, batches: Batches, eqx: ModuleType, optax: ModuleType, mode: str
) -> None:
    class Net(eqx.Module):  # type: ignore[name-defined,misc]
        first: Any
        norm: Any
        last: Any

        def __init__(self) -> None:
            key = jax.random.key(0)
            self.first = eqx.nn.SpectralNorm(eqx.nn.Linear(3, 4, key=key), "weight", key=key)
            self.norm, self.last = eqx.nn.BatchNorm(4, "batch", mode=mode), eqx.nn.Linear(4, 1, key=key)

        def __call__(self, x: Any, state: Any) -> Any:
            x, state = self.first(x, state)
            x, state = self.norm(x, state)
            return self.last(x), state

    def outputs(module: Any, x: Any, state: Any) -> Any:
        return jax.vmap(module, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)

    @eqx.filter_jit  # type: ignore[untyped-decorator]
    def step(module: Any, state: Any, x: Any, y: Any) -> Any:
        def loss(module: Any) -> Any:
            given, after = outputs(module, x, state)
            return mse(given, y), after

        (_, after), gradients = eqx.filter_value_and_grad(loss, has_aux=True)(module)
        return eqx.apply_updates(module, jax.tree.map(lambda gradient: -RATE * gradient, gradients)), after

    own, state = eqx.nn.make_with_state(Net)()
    for x, y in batches:
        own, state = step(own, state, x, y)
    model, _ = train(Net())
    x = np.concatenate([x for x, _ in batches[:3]])
    expected, _ = outputs(eqx.nn.inference_mode(own), x, state)
    actual, _ = outputs(eqx.nn.inference_mode(model.module), x, model.state)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_function_that_calls_a_haiku_model_with_state_is_refused_in_training(
    train: Train,
) -> None:
    """A stand-in: Haiku is recognised by the names of its modules."""

    class TransformedWithState(NamedTuple):
        init: Any
        apply: Any

    def apply(params: Any, state: Any, rng: Any, x: Any) -> Any:
        return x @ params["w"] - state["mean"], state

    TransformedWithState.__module__ = apply.__module__ = "haiku._src.transform"
    net = TransformedWithState(None, apply)
    state = {"mean": jnp.zeros(1)}
    names = {"net": net, "state": state}
    exec("def of_globals(params, x): return net.apply(params, state, None, x)[0]", names)  # noqa: S102
    for wrapped in (
        lambda params, x: net.apply(params, state, None, x)[0],
        lambda params, x: apply(params, state, None, x)[0],
        names["of_globals"],
    ):
        with pytest.raises(PhaseError, match="calls a model of Haiku with state, and its state would not change"):
            train(Function(wrapped, {"w": jnp.ones((3, 1))}))


def test_live_state_shares_memory_and_loads_into_the_same_model(backend):
    model = SequentialMLP([2], hidden_dim=3)
    backend.infer(model, [TensorSpec((4,), "float32")], 1)
    live, copies = backend.live_state(model), backend.state(model)
    assert live.keys() == copies.keys()
    assert all(np.array_equal(live[name], copies[name]) and not live[name].flags.writeable for name in copies)
    changed = {name: value + 1 for name, value in copies.items()}
    first = next(iter(copies))
    backend.load_state(model, {**changed, first: live[first]})
    for name, value in backend.state(model).items():
        np.testing.assert_array_equal(value, copies[name] if name == first else changed[name])
        assert value.flags.writeable
