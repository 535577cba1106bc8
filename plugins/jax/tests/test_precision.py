"""Precision on JAX, beside loops by hand with cast parameters and inputs, and masters in float32."""

from __future__ import annotations

from typing import Any

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import anyaccel as aa
from anyaccel.errors import CapabilityError, PhaseError
from anyaccel.precision import ComputesPrecision
from anyaccel_jax import JaxBackend, Linen, SequentialMLP

N, BATCH = 96, 16
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(N, 6)).astype("float32")
Y = RANDOM.integers(0, 3, N)
SETTINGS: dict[str, Any] = {"losses": [aa.AppliedLoss("cross_entropy", on="net")], "sampler": aa.SimpleSampler(BATCH)}


def data(x: np.ndarray = X) -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("data", {"x": x, "y": Y}, ["x"], ["y"])


def graph(model: Any, **node: Any) -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", model, node.pop("rows", data()).reference(), **node)], "adam")


def mlp() -> SequentialMLP:
    return SequentialMLP((3,), n_layers=2, hidden_dim=16)


def train(network: aa.ModelGraph, rows: aa.FeatureSet, **settings: Any) -> aa.TrainResults:
    return network.run(aa.TrainPhase("train", data=rows, **{**SETTINGS, "epochs": 3, **settings}))


def cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda array: array.astype(dtype), tree)


def by_hand(dtype: Any, epochs: int) -> list[float]:
    """Parameters and inputs cast in each step, logits back in float32, Optax over the masters."""
    network = graph(mlp()).build()
    model = network["net"].model
    parameters, optimizer = dict(model.parameters), optax.adam(1e-3)
    state, losses = optimizer.init(parameters), []

    def loss_of(parameters: Any, x: Any, y: Any) -> Any:
        (logits,), _ = model.apply(cast(parameters, dtype), {}, (x.astype(dtype),), True, jax.random.key(0))
        return optax.softmax_cross_entropy_with_integer_labels(logits.astype("float32"), y).mean()

    @jax.jit
    def step(parameters: Any, state: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, updates), state, loss

    for _ in range(epochs):
        epoch = []
        for start in range(0, N, BATCH):
            parameters, state, loss = step(parameters, state, X[start : start + BATCH], Y[start : start + BATCH])
            epoch.append(float(loss))
        losses.append(float(np.mean(epoch)))
    return losses


@pytest.mark.parametrize(("precision", "dtype"), [("bf16-mixed", jnp.bfloat16), ("fp16-mixed", jnp.float16)])
@pytest.mark.parametrize("compile_", ["off", "steps"])
def test_losses_are_those_of_a_loop_by_hand(precision: str, dtype: Any, compile_: str) -> None:
    network = graph(mlp())
    results = train(network, data(), precision=precision, compile=compile_)
    np.testing.assert_allclose(results.loss, by_hand(dtype, 3), rtol=2e-4)
    assert {str(array.dtype) for array in network["net"].model.parameters.values()} == {"float32"}


@pytest.mark.parametrize("compile_", ["off", "steps"])
def test_infinite_gradients_are_skipped_on_the_device(compile_: str) -> None:
    """Compiled or not, the same steps are skipped, no optimizer counts them, and the scale recovers."""
    x = X.copy()
    x[[20, 37]] = 1e6
    rows, scale = data(x), aa.LossScale(initial=2.0**10, growth_interval=3)
    network = graph(mlp(), rows=rows)
    scales: list[float] = []

    class Listens(aa.Callback):
        def epoch_end(self, run: Any) -> None:
            scales.append(run.loss_scale.scale)

    results = train(
        network,
        rows,
        precision="fp16-mixed",
        loss_scale=scale,
        compile=compile_,
        on_nan="ignore",
        epochs=4,
        callbacks=[Listens()],
    )
    told = [event.message for event in results.events if event.kind == "precision"]
    assert [message.split(" because")[0] for message in told] == ["2 of 6 steps were skipped"] * 4
    assert network.optimizer_states["net"].step == 4 * 4
    assert scales == [512.0, 256.0, 128.0, 64.0] and all(np.isfinite(v).all() for v in network.state().values())
    clean = train(network, data(), precision="fp16-mixed", loss_scale=scale, compile=compile_)
    assert np.isfinite(clean.loss).all()


def test_skipped_steps_give_the_same_numbers_compiled_and_not() -> None:
    x = X.copy()
    x[[20, 37]] = 1e6
    rows, states = data(x), []
    for compile_ in ("off", "steps"):
        optimizer = aa.Optimizer("adam", lr=1e-2, clip_norm=0.1, schedule=aa.Schedule("linear", steps=20))
        network = aa.ModelGraph([aa.ModelNode("net", mlp(), rows.reference())], optimizer)
        train(network, rows, precision="fp16-mixed", compile=compile_, on_nan="ignore")
        states.append({name: value for name, value in network.state().items() if "parameters" in name})
    for off, steps in zip(states[0].values(), states[1].values(), strict=True):
        np.testing.assert_allclose(off, steps, rtol=2e-3, atol=2e-5)


class Seen(linen.Module):
    """Notes the dtypes that its operations see, while it is traced."""

    name_of: str

    @linen.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        y = linen.Dense(8)(x)
        z = linen.BatchNorm(use_running_average=not train)(y)
        SEEN.setdefault(self.name_of, set()).add((str(x.dtype), str(y.dtype)))
        return linen.Dense(3)(z)


SEEN: dict[str, set[tuple[str, str]]] = {}


def test_a_node_kept_in_float32_sees_float32() -> None:
    rows = data()
    nodes = [
        aa.ModelNode("narrow", Linen(Seen("narrow")), rows.reference()),
        aa.ModelNode("net", Linen(Seen("kept")), rows.reference(), precision="float32"),
    ]
    losses = [aa.AppliedLoss("cross_entropy", on=label, label=label) for label in ("narrow", "net")]
    network = aa.ModelGraph(nodes, "adam")
    aa.Experiment("e", network).plan(aa.TrainPhase("plan", data=rows, losses=losses))  # shapes are inferred
    SEEN.clear()
    train(network, rows, losses=losses, precision="bf16-mixed", epochs=1)
    assert SEEN["narrow"] == {("bfloat16", "bfloat16")} and SEEN["kept"] == {("float32", "float32")}
    statistics = network["narrow"].model.buffers
    assert {str(array.dtype) for array in statistics.values()} == {"float32"}


def test_double_precision_needs_a_setting_of_jax() -> None:
    with pytest.raises(
        CapabilityError, match=r"JAX has float64 only after jax.config.update.*Available: .*'bf16-mixed'"
    ):
        train(graph(mlp()), data(), precision="float64")


def test_matmul_precision_holds_for_the_phase_alone() -> None:
    seen: list[Any] = []

    class Watches(aa.Callback):
        def epoch_end(self, run: Any) -> None:
            seen.append(jax.config.jax_default_matmul_precision)

    before = jax.config.jax_default_matmul_precision
    train(graph(mlp()), data(), matmul_precision="highest", callbacks=[Watches()], epochs=1)
    assert seen == ["highest"] and jax.config.jax_default_matmul_precision == before
    with pytest.raises(PhaseError, match=r"no framework of the graph has matmul_precision=True"):
        train(graph(mlp()), data(), matmul_precision=True)


@pytest.mark.parametrize("precision", [None, "bf16-mixed"])
def test_a_model_that_is_computed_again_gives_the_same_numbers(precision: str | None) -> None:
    losses = []
    for remat in (None, "blocks"):
        network = graph(SequentialMLP((3,), n_layers=3, hidden_dim=16, dropout=0.3), remat=remat)
        losses.append(train(network, data(), precision=precision).loss)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6 if precision is None else 1e-3)


def test_products_in_tf32_by_default_are_said() -> None:
    note, model = JaxBackend().required(ComputesPrecision).float32_note, mlp()
    with jax.default_matmul_precision("default"):
        assert "JAX multiplies float32 in TF32 on gpu:0 by default" in note(model, aa.Device("gpu"))
        assert note(model, aa.Device("cpu")) == ""
    with jax.default_matmul_precision("highest"):
        assert note(model, aa.Device("gpu")) == ""
