"""Hints of tensors, models and steps of TensorFlow."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.adapter.step_costs import StepCosts

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

tf = pytest.importorskip("tensorflow")
pytest.importorskip("anyaccel_tensorflow")
keras: Any = pytest.importorskip("keras")

from anyaccel.device import Device  # noqa: E402
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec  # noqa: E402
from anyaccel.specs import Loss  # noqa: E402
from anyaccel_tensorflow import transfers  # noqa: E402
from anyaccel_tensorflow.backend import TensorFlowBackend  # noqa: E402
from anyaccel_tensorflow.error_translation import translate_errors  # noqa: E402

if keras.backend.backend() != "tensorflow":
    pytest.skip("Keras runs on another framework in this process", allow_module_level=True)

layers = keras.layers
X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
Y = X[:, :1].copy()
ON, CPU, SECOND = "net", Device("cpu", 0), Device("cpu", 1)


def graph_of(model: Any, x: Any = X) -> aa.ModelGraph:
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": Y[: len(x)]}, ["x"], ["y"])
    return aa.ModelGraph([aa.ModelNode(ON, model, data.reference())], "sgd")


def train(model: Any, x: Any = X, graph: Any = None, **settings: Any) -> Any:
    settings = settings or {"losses": [aa.AppliedLoss("mse", on=ON)]}
    phase = aa.TrainPhase("train", data="all", accelerator="cpu:0", **settings)
    return (graph or graph_of(model, x)).run(phase, progress="none")


def evaluate(model: Any, graph: Any = None) -> Any:
    phase = aa.EvalPhase("eval", data="all", losses=[aa.AppliedLoss("mse", on=ON)], accelerator="cpu:0")
    return (graph or graph_of(model)).run(phase, progress="none")


(_cpu,) = tf.config.list_physical_devices("CPU")
if len(tf.config.get_logical_device_configuration(_cpu) or ()) < 2:
    with contextlib.suppress(RuntimeError):  # TensorFlow has started with one
        tf.config.set_logical_device_configuration(_cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


@pytest.fixture
def two_devices() -> None:
    if len(tf.config.list_logical_devices("CPU")) < 2:
        pytest.skip("TensorFlow has started with one device")


@pytest.mark.usefixtures("two_devices")
def test_devices(hint: Any, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = TensorFlowBackend()
    with tf.device("/CPU:1"):
        tensor = tf.constant([1.0])
    device = CPU
    tf.config.experimental.set_device_policy("explicit")
    try:
        with tf.device("/CPU:0"):
            x = tf.constant([1.0])
            with (
                hint(
                    "create tensors on the device of the inputs, for example in `with tf.device(x.device):`, store "
                    "constants in variables of the model, or move them first: anyaccel.move(tensor, device)"
                ),
                translate_errors("a sum"),
            ):
                x + tensor
            with tf.device(x.device):
                assert x + tf.constant([1.0]) == 2
            assert x + tf.Variable([1.0]) == 2
            assert x + aa.move(tensor, device) == 2
    finally:
        tf.config.experimental.set_device_policy("silent")
    tf.config.set_soft_device_placement(False)
    try:
        with (
            hint("run `anyaccel devices` to list the available devices, and the reasons for missing ones"),
            translate_errors("a batch"),
            tf.device("/GPU:3"),
        ):
            tf.constant([1.0])
    finally:
        tf.config.set_soft_device_placement(True)
    assert "cpu" in cli("devices").output  # anyaccel devices
    with (
        monkeypatch.context() as patched,
        hint("run `anyaccel devices` to list the available devices, and the reasons for missing ones"),
    ):
        patched.setattr(transfers.tf, "identity", lambda tensor: tensor)
        backend.move(tensor, CPU)
    assert "cpu" in cli("devices").output  # anyaccel devices


class Noisy(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.draw = tf.Variable([1.0]), tf.random.Generator.from_seed(1)


class Traced(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable([1.0])

    @tf.function
    def __call__(self, x: Any) -> Any:
        return x * self.w


@pytest.mark.usefixtures("two_devices")
def test_what_cannot_be_moved(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, device = TensorFlowBackend(), SECOND
    with tf.device("/CPU:0"):
        ragged, noisy, traced, variable = tf.ragged.constant([[1.0], []]), Noisy(), Traced(), keras.Variable([1.0])
        traced(tf.ones(1))
        early = Traced()
    with hint("place its tensors one by one, or create it inside anyaccel.scope(device, 'tensorflow')"):
        aa.place(ragged, device)
    assert backend.device_of(aa.place(ragged.values, device)) == SECOND
    with aa.scope(device, "tensorflow"):
        assert tf.ragged.constant([[1.0], []]).values.device.endswith("CPU:1")
    with hint("create the model inside anyaccel.scope(device, 'tensorflow')"):
        aa.place(noisy, device)
    with aa.scope(device, "tensorflow"):
        assert backend.device_of(Noisy()) == SECOND
    with hint(
        "place the model before it is called for the first time, or create it inside "
        "anyaccel.scope(device, 'tensorflow')"
    ):
        aa.place(traced, device)
    assert backend.device_of(aa.place(early, device)) == SECOND
    with aa.scope(device, "tensorflow"):
        assert backend.device_of(Traced()) == SECOND
    held = variable.value
    with (
        monkeypatch.context() as patched,
        hint(
            "build the model inside anyaccel.scope(device, 'tensorflow'), and report this to the authors of "
            "anyaccel-tensorflow"
        ),
    ):
        patched.setattr(type(variable), "value", property(lambda self: held))
        aa.place(variable, device)
    with aa.scope(device, "tensorflow"):
        assert backend.device_of(keras.Variable([1.0])) == SECOND


def test_tensors(hint: Any) -> None:
    backend = TensorFlowBackend()
    x, ragged, variable = tf.sparse.from_dense([[0.0, 1.0]]), tf.ragged.constant([[1.0], []]), tf.Variable([1.0])
    texts = tf.constant(["a", "b", "a"])
    with hint("convert texts to numbers first: keras.layers.StringLookup(vocabulary=words)(texts)"):
        backend.to_host(texts)
    words = ["a", "b"]
    assert backend.to_host(keras.layers.StringLookup(vocabulary=words)(texts)).tolist() == [1, 2, 1]
    with hint("convert it first: tf.sparse.to_dense(x), ragged.to_tensor(), variable.value()"):
        backend.to_host(x)
    assert backend.to_host(tf.sparse.to_dense(x)).sum() == 1
    assert backend.to_host(ragged.to_tensor()).sum() == 1
    assert backend.to_host(variable.value()).sum() == 1
    with hint("pass a plain array without gradients, or go through host memory with from_host"):
        backend.from_dlpack(object(), CPU)
    assert backend.from_dlpack(np.ones(2, "float32"), CPU).shape == (2,)
    assert backend.from_host(np.ones(2, "float32"), CPU).shape == (2,)
    array = np.array([1, 2], object)
    with hint("convert the array first, for example with array.astype('float32')"):
        backend.from_host(np.array([{}], object), CPU)
    assert backend.from_host(array.astype("float32"), CPU).shape == (2,)


class Plain(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(tf.ones((3, 1)))

    def __call__(self, x: Any) -> Any:
        return x @ self.w


class Writing(layers.Layer):
    def __init__(self, trainable_scale: bool) -> None:
        super().__init__()
        self.trainable_scale = trainable_scale

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(initializer="ones", trainable=self.trainable_scale)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.scale.assign(self.scale * 0.5)
        return x * self.scale


def test_models(hint: Any) -> None:
    with hint("define a __call__ that takes a batch and returns outputs"):
        graph_of(tf.Module()).build()
    assert train(Plain()).loss.size  # has a __call__
    with hint("make that weight trainable=False, or train the model with Keras's own loop and freeze its node"):
        train(keras.Sequential([Writing(True), layers.Dense(1)]))
    trainable = False
    assert train(keras.Sequential([Writing(trainable), layers.Dense(1)])).loss.size  # trainable=False
    model = keras.Sequential([Writing(True), layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    assert evaluate(model, graph_of(model).freeze(ON)).losses


def test_custom_steps(hint: Any) -> None:
    def none(models: Any, batch: Any, optimizers: Any) -> Any:
        variables = models[ON].trainable_variables
        optimizers[ON].apply([None] * len(variables), variables)

    def step(models: Any, batch: Any, optimizers: Any) -> Any:
        net = models[ON]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((net(batch["x"], training=True) - batch["y"]) ** 2)
        gradients = tape.gradient(loss, net.trainable_variables)
        optimizers["net"].apply_gradients(zip(gradients, net.trainable_variables, strict=True))
        return {"loss": loss}

    def net() -> Any:
        return keras.Sequential([layers.Dense(1)])

    with hint("compute the loss inside `with tf.GradientTape() as tape:`, from the models' outputs"):
        train(net(), step=none)
    assert train(net(), step=step).loss.size  # in a tf.GradientTape()

    def others(models: Any, batch: Any, optimizers: Any) -> Any:
        variable = tf.Variable([1.0])
        optimizers[ON].apply_gradients([(tf.ones(1), variable)])

    with hint("pass each node's variables to its own optimizer, optimizers['NODE']; frozen nodes have no optimizer"):
        train(net(), step=others)
    assert train(net(), step=step).loss.size  # optimizers["net"]


def segment_of(model: Any) -> Segment:
    form = {"x": (TensorSpec((4, 3), "float32"), CPU), "y": (TensorSpec((1,), "float32"), CPU)}
    term, group = LossTerm("l", ON, Loss("mse"), (ON, "y"), CPU), ParameterGroup("g", aa.Optimizer("sgd"), (ON,))
    return Segment("s", (Operation(ON, model, ("x",), (ON,), CPU),), form, (ON,), (term,), (group,))


def test_memory_of_steps(hint: Any) -> None:
    backend, model = TensorFlowBackend(), keras.Sequential([layers.GRU(2), layers.Dense(1)])
    backend.infer(model, [TensorSpec((4, 3), "float32")], 0)
    with hint("measure the memory during a run with run.stats"):
        backend.required(StepCosts).step_cost(segment_of(model), 8)
    seen = []

    class Memory(aa.Callback):
        def epoch_end(self, run: Any) -> None:
            seen.append(str(run.stats))

    rows = np.zeros((8, 4, 3), "float32")
    train(model, rows, losses=[aa.AppliedLoss("mse", on=ON)], callbacks=[Memory()])
    assert "cpu" in seen[0]


ARRAYS_ON_JAX = """
import jax.numpy as jnp, keras, numpy as np, anyaccel as aa, anyaccel_jax
x = np.ones((8, 3), "float32")
data = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
def run(optimizer):
    model = anyaccel_jax.Function(lambda p, x: x @ p["w"] + p["bias"], {"w": jnp.ones((3, 1)), "bias": jnp.zeros(1)})
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], optimizer)
    phase = aa.TrainPhase("train", data="all", losses=[aa.AppliedLoss("mse", on="net")], accelerator="cpu")
    return graph.run(phase, progress="none")
optimizer = keras.optimizers.AdamW(0.1)
optimizer.exclude_from_weight_decay(var_names=["bias"])
try:
    run(optimizer)
except aa.errors.SpecError as error:
    print(error.hint)
assert run(aa.Optimizer(keras.optimizers.AdamW, lr=0.1, groups={"*bias": {"weight_decay": 0.0}})).loss.size
"""


def test_optimizers_of_keras(hint: Any) -> None:
    def run(optimizer: Any) -> Any:
        net = keras.Sequential([layers.Dense(1)])
        data = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])
        return train(None, graph=aa.ModelGraph([aa.ModelNode(ON, net, data.reference())], optimizer)).loss.size

    optimizers = keras.optimizers
    with hint("leave it out: averages do not replace trained weights here"):
        run(optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=3))
    assert run(optimizers.SGD(0.1))
    with hint(
        "pass one of the inner optimizers, and set other rates or decays with groups=, or set optimizers on nodes"
    ):
        rates = optimizers.OptimizerMap(optimizers.SGD(0.1), {".*bias": optimizers.SGD(0.2)})
        run(optimizers.MultiOptimizer(rates))
    assert run(aa.Optimizer(optimizers.SGD, lr=0.1, groups={"*bias": {"lr": 0.2}}))


def test_classes_of_losses_of_keras(hint: Any) -> None:
    y = (X[:, 0] > 0).astype("int64")

    def fit(name: str, y: Any) -> Any:
        net = keras.Sequential([layers.Dense(2)])
        settings: Any = {"loss": getattr(keras.losses, name)(from_logits=True), "epochs": 1, "accelerator": "cpu"}
        return aa.fit(net, (X, y), progress="none", **settings).results.loss.size

    one_hot = np.eye(2, dtype="float32")[y]
    with hint("pass the indices of the classes: y.argmax(axis=-1)"):
        fit("SparseCategoricalCrossentropy", one_hot)
    assert fit("SparseCategoricalCrossentropy", one_hot.argmax(axis=-1))
    with hint("pass a row of probabilities for each class index: np.eye({}, dtype='float32')[y]"):
        fit("CategoricalCrossentropy", y)
    assert fit("CategoricalCrossentropy", np.eye(2, dtype="float32")[y])
    with pytest.raises(aa.errors.ShapeError, match="SparseCategoricalCrossentropy takes floats as probabilities"):
        fit("SparseCategoricalCrossentropy", y.astype("float32"))


@pytest.mark.across
@pytest.mark.slow
def test_exclusions_of_keras(hint: Any) -> None:
    pytest.importorskip("jax")
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    with hint(
        "pass its class and a pattern of names: Optimizer({}, lr=..., groups={'*bias': {'weight_decay': 0.0}})"
    ) as printed:
        done = subprocess.run([sys.executable, "-c", ARRAYS_ON_JAX], env=environment, capture_output=True, text=True)
        printed.text = done.stdout
    assert done.returncode == 0, done.stderr  # with aa.Optimizer(AdamW, lr=0.1, groups={...})


GROUPED = """
import keras, numpy as np, anyaccel as aa
layers = keras.layers
x, y = np.ones((8, 6, 6, 4), "float32"), np.ones((8, 1), "float32")
net = keras.Sequential([keras.Input((6, 6, 4)), layers.Conv2D(4, 3, groups=4), layers.Flatten(), layers.Dense(1)])
aa.fit(net, (x, y), loss="mse", epochs=1, accelerator="cpu", progress="none")
print(keras.backend.backend())
"""


@pytest.mark.across
@pytest.mark.slow
def test_grouped_convolutions(hint: Any) -> None:
    pytest.importorskip("jax")

    def net(second: Any, dtype: str = "float32") -> Any:
        before, after = layers.Conv2D(4, 1, dtype=dtype), [layers.Flatten(dtype=dtype), layers.Dense(1, dtype=dtype)]
        return keras.Sequential([keras.Input((6, 6, 4)), before, second, *after])

    x = np.ones((8, 6, 6, 4), "float32")
    grouped = layers.Conv2D(4, 3, padding="same", groups=4, dtype="float64")
    with hint(
        "train in float32 with TF_ENABLE_ONEDNN_OPTS=1, use DepthwiseConv2D(kernel_size) if Conv2D has one group "
        'per channel, freeze the node, or train with KERAS_BACKEND="jax" or "torch"'
    ):
        train(net(grouped, "float64"), x.astype("float64"))
    assert train(net(layers.DepthwiseConv2D(kernel_size=3, padding="same")), x).loss.size
    phase = aa.EvalPhase("eval", data="all", losses=[aa.AppliedLoss("mse", on=ON)], accelerator="cpu:0")
    model = net(layers.Conv2D(4, 3, padding="same", groups=4))
    assert graph_of(model, x).freeze(ON).run(phase, progress="none").losses
    # TensorFlow and Keras read their settings when they are imported; oneDNN is off by default on some processors
    for name, value, runs_on in (("TF_ENABLE_ONEDNN_OPTS", "1", "tensorflow"), ("KERAS_BACKEND", "jax", "jax")):
        environment = {**os.environ, name: value}
        done = subprocess.run([sys.executable, "-c", GROUPED], env=environment, capture_output=True, text=True)
        assert done.returncode == 0 and runs_on in done.stdout, done.stderr


JOINS = "from anyaccel_distributed import join; print(join('tensorflow').size)"


@pytest.mark.slow
def test_replicas(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from anyaccel_tensorflow import runtime_config
    from anyaccel_tensorflow.replica_group import join_cluster

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1] - 2)}
    for name, value in {**place, "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert tf.constant(1.0) == 1  # TensorFlow has started
    with hint("write at the top of the script: from anyaccel_distributed import join; join('tensorflow')"):
        join_cluster(1, 2)
    with (
        monkeypatch.context() as patched,
        hint("start all processes with one launcher, or set MASTER_PORT to a port followed by two more free ports"),
    ):
        patched.setattr(runtime_config, "is_started", lambda: False)
        patched.setenv("ANYACCEL_REPLICA_TIMEOUT", "0.1")
        join_cluster(1, 2)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", JOINS], env={**os.environ, **place, "RANK": rank}, stdout=subprocess.PIPE, text=True
        )  # from anyaccel_distributed import join; join('tensorflow'), at one MASTER_PORT
        for rank in ("0", "1")
    ]
    assert [process.communicate(timeout=300)[0].strip() for process in processes] == ["2", "2"]
