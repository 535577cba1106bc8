"""Hints of models, optimizers and steps of JAX."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

import anyaccel as aa

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")  # read when JAX is imported

jax = pytest.importorskip("jax")
anyaccel_jax = pytest.importorskip("anyaccel_jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp  # noqa: E402

from anyaccel.device import Device  # noqa: E402
from anyaccel_distributed.processes import free_port  # noqa: E402
from anyaccel_jax import runtime_config  # noqa: E402
from anyaccel_jax.backend import JaxBackend  # noqa: E402
from anyaccel_jax.error_translation import translate_errors  # noqa: E402
from anyaccel_jax.replica_group import join_cluster, own_gpu  # noqa: E402
from anyaccel_offload.jax import OffloadedChain  # noqa: E402

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
Y = X[:, :1].copy()
ON, CPU = "net", Device("cpu")


def parameters(n_in: int = 3, n_out: int = 1) -> dict[str, Any]:
    return {"w": jnp.ones((n_in, n_out)) / 3, "b": jnp.zeros(n_out)}


def linear(params: Any, x: Any) -> Any:
    return x @ params["w"] + params["b"]


def model(apply: Any = linear, n_in: int = 3, n_out: int = 1) -> Any:
    return anyaccel_jax.Function(apply, parameters(n_in, n_out))


def features() -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])


def graph_of(given: Any = None, optimizer: Any = "sgd", **settings: Any) -> aa.ModelGraph:
    given = model() if given is None else given
    return aa.ModelGraph([aa.ModelNode(ON, given, features().reference(), **settings)], optimizer)


def train(given: Any = None, optimizer: Any = "sgd", step: Any = None, graph: Any = None) -> Any:
    graph = graph or graph_of(given, optimizer)
    losses = {"losses": [aa.AppliedLoss("mse", on=ON)]} if step is None else {"step": step}
    phase = aa.TrainPhase("train", data="all", accelerator="cpu", **losses)
    return graph.run(phase, progress="none")


def step_of(label: str = ON, **more: Any) -> Any:
    """A step that trains a node; `more` goes to `apply_gradients`, `value` as the loss."""

    def step(state: Any, batch: Any) -> Any:
        net = state[label]

        def loss_of(params: Any) -> Any:
            outputs, _ = net.apply(params, batch["x"])
            return jnp.mean((outputs - batch["y"]) ** 2)

        loss, grads = jax.value_and_grad(loss_of)(net.params)
        values = {"value": loss} if more.get("value") else {}
        return {**state, label: net.apply_gradients(grads, **values)}, {"loss": loss}

    return step


def test_models_that_must_be_wrapped(hint: Any) -> None:
    linen, eqx = pytest.importorskip("flax.linen"), pytest.importorskip("equinox")
    backend, key = JaxBackend(), jax.random.key(0)
    module = linen.Dense(1)
    with hint("wrap it: anyaccel_jax.Linen(module)"):
        backend.state(module)
    assert train(anyaccel_jax.Linen(module)).loss.size
    module = eqx.nn.Linear(3, 1, key=key)
    with hint("wrap it: anyaccel_jax.Equinox(module)"):
        backend.state(module)
    assert train(anyaccel_jax.Equinox(module)).loss.size
    with hint("pass anyaccel_jax.Function(apply, parameters), or a module of Flax, Equinox or Keras"):
        backend.parameters(object())
    assert train(anyaccel_jax.Function(linear, parameters())).loss.size

    class Net(eqx.Module):  # type: ignore[name-defined,misc]
        layer: Any
        norm: Any

        def __init__(self) -> None:
            self.layer, self.norm = eqx.nn.Linear(3, 1, key=key), eqx.nn.BatchNorm(1, "batch", mode="ema")

        def __call__(self, x: Any, state: Any) -> Any:
            return self.norm(self.layer(x), state)

    made = linen.Dense(1)
    variables = made.init(key, X)
    for wrong in ((made, variables), eqx.nn.make_with_state(Net)()):
        with hint(
            "in JAX, with its values: anyaccel_jax.Linen(module, variables), or anyaccel_jax.Equinox(module, state)"
        ):
            graph_of(wrong)
    module = made
    with hint("pass all collections, as module.init returns them: anyaccel_jax.Linen(module, variables)"):
        train(anyaccel_jax.Linen(module, variables["params"]))
    variables = module.init(key, X)
    assert train(anyaccel_jax.Linen(module, variables)).loss.size
    function = linear
    with hint("in JAX, pass the function with its parameters: anyaccel_jax.Function(function, parameters)"):
        graph_of(function)
    assert train(anyaccel_jax.Function(function, parameters())).loss.size

    class Transformed(NamedTuple):  # as of Haiku
        init: Any
        apply: Any

    model = Transformed(parameters, linear)
    with hint("in JAX, pass the function with its parameters: anyaccel_jax.Function(function, parameters)"):
        train(model)
    with hint("pass the function: Function(model.apply, parameters)"):
        anyaccel_jax.Function(model, parameters())
    assert train(anyaccel_jax.Function(model.apply, model.init())).loss.size
    module, state = eqx.nn.make_with_state(Net)()
    with hint("pass both to the node: anyaccel_jax.Equinox(module, state)"):
        anyaccel_jax.Equinox(module)
    assert train(anyaccel_jax.Equinox(module, state)).loss.size


def test_states_of_flax(hint: Any) -> None:
    nnx, train_state = pytest.importorskip("flax.nnx"), pytest.importorskip("flax.training.train_state")
    state = train_state.TrainState.create(apply_fn=linear, params=parameters(), tx=optax.sgd(0.1))
    with hint("pass anyaccel_jax.Function(function, state.params), with optimizer=Optimizer(state.tx)"):
        graph_of(state).build()
    function = linear
    node = anyaccel_jax.Function(function, state.params)
    assert train(graph=graph_of(node, optimizer=aa.Optimizer(state.tx))).loss.size

    class Counting(nnx.Module):  # type: ignore[name-defined,misc]
        def __init__(self, kept: bool) -> None:
            self.layer, self.kept = nnx.Linear(3, 1, rngs=nnx.Rngs(0)), kept
            self.calls = nnx.Variable(jnp.zeros(())) if kept else 0

        def __call__(self, x: Any) -> Any:
            if self.kept:
                self.calls[...] += 1
            else:
                self.calls += 1
            return self.layer(x)

    with hint("store it in an nnx.Variable, use a layer that does not change its parameters, or freeze the node"):
        train(Counting(kept=False))
    assert train(Counting(kept=True)).loss.size
    assert train(nnx.Linear(3, 1, rngs=nnx.Rngs(0))).loss.size
    frozen = graph_of(Counting(kept=False)).freeze(ON)
    evaluation = aa.EvalPhase("eval", data="all", losses=[aa.AppliedLoss("mse", on=ON)], accelerator="cpu")
    assert frozen.run(evaluation, progress="none").losses


def test_models_that_are_compiled(hint: Any) -> None:
    with hint("use jax.numpy.where or jax.lax.cond for conditions in the model: it is compiled without values"):
        graph_of(model(lambda p, x: linear(p, x) if x.sum() > 0 else -linear(p, x))).build()
    graph_of(model(lambda p, x: jax.numpy.where(x.sum() > 0, linear(p, x), -linear(p, x)))).build()
    graph_of(
        model(lambda p, x: jax.lax.cond(x.sum() > 0, lambda: linear(p, x), lambda: -linear(p, x))),
    ).build()
    with hint("use functions of jax.numpy instead of numpy in the model: it is compiled without values"):
        graph_of(model(lambda p, x: np.asarray(linear(p, x)))).build()
    graph_of(model(lambda p, x: jax.numpy.asarray(linear(p, x)))).build()


def test_optimizers(hint: Any) -> None:
    with hint("pass a transformation, Optimizer({}(...)), or a function of learning_rate"):
        train(optimizer=aa.Optimizer(optax.clip_by_global_norm, max_norm=1.0))
    both = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))
    assert train(optimizer=aa.Optimizer(both)).loss.size

    def clipped(learning_rate: float) -> Any:
        return optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(learning_rate))

    assert train(optimizer=aa.Optimizer(clipped, lr=0.1)).loss.size

    nnx = pytest.importorskip("flax.nnx")
    net = nnx.Linear(3, 1, rngs=nnx.Rngs(0))

    def fit(optimizer: Any) -> Any:
        settings: Any = {"epochs": 1, "accelerator": "cpu", "progress": "none"}
        return aa.fit(net, (X, Y), loss="mse", optimizer=optimizer, **settings).results.loss.size

    with hint("pass the transformation itself, optimizer=optax.adam(1e-3), or a named optimizer"):
        fit(nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param))
    assert fit(optimizer=optax.adam(1e-3)) and fit(optimizer="adam")

    def by_labels(labels: Any) -> Any:
        return aa.Optimizer(optax.multi_transform({"a": optax.sgd(0.1), "z": optax.set_to_zero()}, labels))

    with hint(
        "pass labels and masks as functions of such a tree, or create them with jax.tree.map from {}; if the labels "
        "are in a callable module, such as an Equinox module, pass lambda _: labels"
    ):
        train(optimizer=by_labels({"kernel": "a"}))
    assert train(optimizer=by_labels(lambda tree: jax.tree.map(lambda _: "a", tree))).loss.size
    labels = jax.tree.map(lambda _: "a", parameters())
    assert train(optimizer=by_labels(labels)).loss.size and train(optimizer=by_labels(lambda _: labels)).loss.size


def test_steps(hint: Any) -> None:
    with hint("write return state, {'loss': loss}, where state is a dict like the given one"):
        train(step=lambda state, batch: {"loss": 1.0})
    assert train(step=lambda state, batch: (state, {"loss": jnp.ones(())})).loss.size
    with hint("write return {**state, 'NODE': changed}, ..."):
        train(step=lambda state, batch: ({}, 1.0))
    assert train(step=step_of()).loss.size
    with hint("pass jax.grad(loss)(state.params) with the params of the same node"):
        train(step=lambda state, batch: ({ON: state[ON].apply_gradients(jnp.ones(3))}, 1.0))

    def with_gradients(states: Any, batch: Any) -> Any:
        state = states[ON]

        def loss(params: Any) -> Any:
            return jnp.mean((state.apply(params, batch["x"])[0] - batch["y"]) ** 2)

        return {ON: state.apply_gradients(jax.grad(loss)(state.params))}, loss(state.params)

    assert train(step=with_gradients).loss.size
    plateau = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(factor=0.5, patience=1, rtol=0.9))
    with hint("write apply_gradients(grads, value=loss)"):
        train(optimizer=aa.Optimizer(plateau), step=step_of())
    assert train(optimizer=aa.Optimizer(plateau), step=step_of(value=True)).loss.size  # apply_gradients(grads, ...)

    def two(optimizer: Any, own: Any = None) -> aa.ModelGraph:
        nodes = [
            aa.ModelNode("body", model(n_out=3), features().reference(), optimizer=own),
            aa.ModelNode(ON, model(), "body", optimizer=own),
        ]
        return aa.ModelGraph(nodes, optimizer)

    with hint("use a separate optimizer for each node: ModelNode(..., optimizer=Optimizer(..., clip_norm=...))"):
        train(graph=two(aa.Optimizer("sgd", clip_norm=1.0)), step=step_of())
    clipping = aa.Optimizer("sgd", clip_norm=1.0)
    nodes = [aa.ModelNode("body", model(n_out=3), features().reference(), optimizer=clipping)]
    nodes.append(aa.ModelNode(ON, model(), "body", optimizer=aa.Optimizer("sgd", lr=0.2, clip_norm=1.0)))
    assert train(graph=aa.ModelGraph(nodes, "sgd"), step=step_of()).loss.size


def test_arrays(hint: Any) -> None:
    backend = JaxBackend()
    array = np.array(["1", "2"])
    with hint("convert the array first, for example with array.astype('float32')"):
        backend.from_host(array, CPU)
    assert backend.from_host(array.astype("float32"), CPU).sum() == 3
    with hint("call {} (or set JAX_ENABLE_X64=1) before you use JAX, or convert first: astype('{}')"):
        backend.from_host(np.ones(2), CPU)
    assert backend.from_host(np.ones(2).astype("float32"), CPU).sum() == 2
    jax.config.update("jax_enable_x64", True)  # as with JAX_ENABLE_X64
    try:
        assert backend.from_host(np.ones(2), CPU).dtype == "float64"
    finally:
        jax.config.update("jax_enable_x64", False)
    keys = jax.random.key(0)
    with hint("convert it first, for example with jax.random.key_data(keys)"):
        backend.to_host(keys)
    assert backend.to_host(jax.random.key_data(keys)).shape == (2,)
    with hint("pass a plain array without gradients, or go through host memory with from_host"):
        backend.from_dlpack(object(), CPU)
    assert backend.from_dlpack(np.ones(2, "float32"), CPU).sum() == 2
    assert backend.from_host(np.ones(2, "float32"), CPU).sum() == 2

    def block(params: Any, x: Any) -> Any:
        return {"h": x["h"] * params["w"] + jax.random.normal(x["key"]), "key": x["key"]}

    with hint("pass keys of jax.random with the input: x = {'h': h, 'key': key}"):
        OffloadedChain(block, [{"w": jnp.ones(3), "key": jax.random.key(0)}])
    h, key = jnp.ones(3), jax.random.key(0)
    x = {"h": h, "key": key}
    assert OffloadedChain(block, [{"w": jnp.ones(3)}])(x)["h"].shape == (3,)


def test_arrays_on_several_devices(hint: Any) -> None:
    devices = jax.devices("cpu")
    if len(devices) < 2:
        pytest.skip("JAX has started with one device")
    first, second = devices[:2]
    sharding = jax.sharding.NamedSharding(jax.make_mesh((2,), ("a",), devices=devices[:2]), jax.P("a"))
    array = jax.device_put(np.ones(2, "float32"), sharding)
    with hint("put it on one: jax.device_put(array, device)"):
        aa.device_of(array)
    device = first
    assert aa.device_of(jax.device_put(array, device)) == Device("cpu", 0)
    here, there = jax.device_put(np.ones(2), first), jax.device_put(np.ones(2), second)
    with (
        hint("create arrays on the device of the inputs, or move them to one device with anyaccel.move(obj, device)"),
        translate_errors("a sum"),
    ):
        here + there
    obj = there
    with translate_errors("a sum"):
        assert (here + aa.move(obj, Device("cpu", 0))).sum() == 4
        assert (here + jax.device_put(np.ones(2), device)).sum() == 4


JOINS = """
from anyaccel_distributed import join
join('jax')
import jax, os
from anyaccel.errors import FrameworkError
from anyaccel_jax.replica_group import join_cluster
assert jax.process_count() == 2
try:
    join_cluster(int(os.environ['RANK']), 3)
except FrameworkError as error:
    print(error.hint)
join_cluster(int(os.environ['RANK']), int(os.environ['WORLD_SIZE']))  # without jax.distributed.initialize()
"""


def replicas(script: str, ranks: Sequence[int] = (0, 1), **settings: str) -> list[str]:
    """What two processes print that run a script, and how they end."""
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, **place, **settings, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in ranks
    ]
    return [process.communicate(timeout=300)[0] + f" status {process.returncode}" for process in processes]


@pytest.mark.slow
def test_replicas(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert jnp.ones(2).sum() == 2  # JAX has started
    with hint("write at the top of the script: from anyaccel_distributed import join; join('jax')"):
        join_cluster(0, 2)
    assert "join('jax')" in JOINS  # which the replicas below run
    with (
        socket.socket() as taken,
        hint("start all processes with one launcher, or set {}=HOST:PORT to a port that is free") as printed,
    ):
        taken.bind(("", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        (printed.text,) = replicas(JOINS, [0], JAX_COORDINATOR_ADDRESS=address)
    with hint("leave out jax.distributed.initialize, or pass it the launcher's RANK and WORLD_SIZE") as printed:
        first, second = replicas(JOINS, JAX_COORDINATOR_ADDRESS=f"127.0.0.1:{free_port()}")
        printed.text = first
    assert first.endswith("status 0") and second.endswith("status 0"), first + second
    given = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with monkeypatch.context() as patched, hint("start as many processes as there are GPUs, or set JAX_PLATFORMS=cpu"):
        patched.setattr(runtime_config, "expected_count", lambda kind: 1)
        own_gpu(1, 2)
    assert own_gpu(1, 2) == {}  # with JAX_PLATFORMS=cpu
    with monkeypatch.context() as patched:
        patched.setattr(runtime_config, "expected_count", lambda kind: 2)
        assert own_gpu(1, 2) == {"local_device_ids": [1]}


def test_class_indices_of_losses_of_optax(hint: Any) -> None:
    y = (X[:, 0] > 0).astype("float32")
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": y}, ["x"], ["y"])

    def loss(outputs: Any, targets: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(outputs, targets).mean()

    def fit(data: Any) -> Any:
        return aa.fit(model(n_out=2), data, loss=loss, epochs=1, accelerator="cpu", progress="none").results.loss.size

    with hint("cast class indices: feature_set.cast({'y': 'int32'}), or y.astype('int32')"):
        fit(data)
    with pytest.raises(aa.errors.SpecError, match=r"the loss 'loss' needs integer targets, but .* float32\[24\]"):
        fit((X, y))
    assert fit(data.cast({"y": "int32"})) and fit((X, y.astype("int32")))
