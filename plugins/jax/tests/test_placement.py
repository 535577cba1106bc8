"""Where arrays, pytrees, models and optimizers are, and moving them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import anyaccel_jax as ours
from anyaccel.device import Device
from anyaccel.errors import DeviceMismatchError, DeviceUnavailableError, OutOfMemoryError
from anyaccel.segment import TensorSpec
from anyaccel_jax import JaxBackend, SequentialMLP
from anyaccel_jax.error_translation import translate_errors, with_translated_errors

CPU, SECOND = Device("cpu"), Device("cpu", 1)
pytestmark = pytest.mark.usefixtures("arrays_on_cpu")


def test_the_devices_are_jaxs_own_and_keep_their_numbers(backend: JaxBackend) -> None:
    cpus = [device for device in backend.devices() if device.kind == "cpu"]
    assert cpus == [CPU, SECOND] == list(backend.devices())[-2:]
    assert [backend.jax_device(device) for device in cpus] == jax.devices("cpu")
    assert [backend.device_string(device) for device in cpus] == ["cpu:0", "cpu:1"]


def test_a_missing_device_is_a_named_error(backend: JaxBackend) -> None:
    with pytest.raises(DeviceUnavailableError, match=r"JAX has no cpu:7\. Available: "):
        backend.move(jnp.ones(2), Device("cpu", 7))


@pytest.mark.parametrize("verb", ["place", "move"])
def test_an_array_in_place_is_committed_and_then_the_same_object(backend: JaxBackend, verb: str) -> None:
    loose = jnp.arange(3.0)
    placed = getattr(backend, verb)(loose, CPU)
    assert placed.committed and not loose.committed
    assert placed.unsafe_buffer_pointer() == loose.unsafe_buffer_pointer()
    assert backend.place(placed, CPU) is backend.move(placed, CPU) is placed
    tree = {"a": (placed, 3, None, "text")}
    assert backend.place(tree, CPU) is tree


def test_a_tracer_has_no_device(backend: JaxBackend) -> None:
    actual: list[Any] = []

    @jax.jit
    def look(x: Any) -> Any:
        actual.append(backend.device_of(x))
        return backend.move(x, CPU) * 2

    np.testing.assert_array_equal(look(jnp.ones(2)), 2 * np.ones(2))
    assert actual == [None]


def test_an_array_on_several_devices_raises(backend: JaxBackend) -> None:
    mesh = Mesh(np.array(jax.devices("cpu")), ("i",))
    spread = jax.device_put(jnp.arange(4.0), NamedSharding(mesh, PartitionSpec("i")))
    with pytest.raises(DeviceMismatchError, match=r"on several devices.*NamedSharding.*device_put"):
        backend.device_of(spread)


def test_a_placed_array_is_committed(backend: JaxBackend) -> None:
    there = backend.place(jnp.ones(3), SECOND)
    assert (there + jnp.ones(3)).devices() == {backend.jax_device(SECOND)}


def test_moved_arrays_of_two_devices_are_not_mixed_by_a_hidden_copy(backend: JaxBackend) -> None:
    """`move` left an array that was there uncommitted, and JAX copied it to the other device."""
    here, there = backend.move(jnp.ones(3), CPU), backend.move(jnp.ones(3), SECOND)
    with pytest.raises(ValueError, match="incompatible devices"):
        here + there


def test_keys_are_placed_as_they_are(backend: JaxBackend) -> None:
    key = backend.place(jax.random.key(3), SECOND)
    assert backend.device_of(key) == SECOND
    assert (jax.random.key_data(key) == jax.random.key_data(jax.random.key(3))).all()


def test_optax_state_is_placed_with_its_model(backend: JaxBackend, optax: ModuleType) -> None:
    parameters = {"w": jnp.ones(3)}
    state = optax.adam(1e-3).init(parameters)
    placed = backend.place(state, SECOND)
    assert type(placed) is type(state) and backend.owns(placed[0])
    assert {backend.device_of(leaf) for leaf in jax.tree.leaves(placed)} == {SECOND}


def test_an_nnx_module_and_its_optimizer_are_placed_in_place(
    backend: JaxBackend, nnx: ModuleType, optax: ModuleType
) -> None:
    module = nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1)))
    optimizer = nnx.Optimizer(module, optax.adam(1e-3), wrt=nnx.Param)
    for obj in (module, optimizer):
        assert backend.place(obj, SECOND) is obj
        assert {backend.device_of(leaf) for leaf in jax.tree.leaves(nnx.state(obj))} == {SECOND}


def test_placing_an_equinox_module_gives_a_new_one(backend: JaxBackend, eqx: ModuleType) -> None:
    module = eqx.nn.Linear(2, 3, key=jax.random.key(0))
    placed = backend.place(module, SECOND)
    assert backend.device_of(placed) == SECOND and backend.device_of(module) == CPU
    np.testing.assert_array_equal(placed.weight, module.weight)


def test_a_linen_module_holds_nothing_and_its_wrapper_does(backend: JaxBackend, linen: ModuleType) -> None:
    module = linen.Dense(2)
    assert backend.device_of(module) is None and backend.place(module, SECOND) is module
    held = ours.Linen(module, module.init(jax.random.key(0), jnp.ones((1, 3))))
    assert backend.place(held, SECOND) is held
    assert {backend.device_of(leaf) for leaf in jax.tree.leaves(held.variables)} == {SECOND}


def test_a_keras_model_is_placed_in_place(backend: JaxBackend, keras: ModuleType) -> None:
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dropout(0.5)])
    model.build((None, 3))
    assert backend.owns(model) and backend.place(model, SECOND) is model
    assert {backend.device_of(variable.value) for variable in model.variables} == {SECOND}
    assert backend.device_of(model.variables[0]) == SECOND


def test_keras_on_another_framework_is_not_ours(
    backend: JaxBackend, keras: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = keras.Sequential([keras.layers.Dense(2)])
    assert backend.owns(model)
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    assert not backend.owns(model)


def test_a_model_of_ours_is_placed_in_place(backend: JaxBackend) -> None:
    model = SequentialMLP(2)
    assert backend.device_of(model) is None
    backend.infer(model, [TensorSpec((3,), "float32")], 0)
    assert backend.place(model, SECOND) is model
    assert {backend.device_of(tensor) for tensor in model.parameters.values()} == {SECOND}


def test_synchronize_waits_for_pending_arrays(backend: JaxBackend) -> None:
    @jax.jit
    def long(a: Any) -> Any:
        return jax.lax.fori_loop(0, 60, lambda i, a: a @ a / 400.0, a)

    result = long(jnp.ones((400, 400)))
    backend.synchronize(backend.device_of(result))
    assert result.is_ready()


# -- faults ------------------------------------------------------------------------------------------------------------


def test_arrays_on_different_devices_raise() -> None:
    first, second = (jax.device_put(jnp.ones(2), device) for device in jax.devices("cpu"))
    with pytest.raises(DeviceMismatchError, match=r"a sum: arrays are on several devices.*incompatible.*anyaccel.move"):
        with_translated_errors(jax.jit(jnp.add), "a sum")(first, second)


@pytest.mark.parametrize("words", ["RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes", "out of memory"])
def test_running_out_of_memory_is_a_named_error(words: str) -> None:
    with (
        pytest.raises(OutOfMemoryError, match=r"not enough memory for 8 bytes.*smaller batches") as caught,
        translate_errors("8 bytes"),
    ):
        raise jax.errors.JaxRuntimeError(words)
    assert words in str(caught.value)


def test_other_errors_pass() -> None:
    with pytest.raises(ValueError, match="something else"), translate_errors("8 bytes"):
        raise ValueError("something else")
    with pytest.raises(ZeroDivisionError):
        with_translated_errors(lambda: 1 // 0, "a step")()
