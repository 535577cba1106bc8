"""NumpyBackend: ownership, placement, exchange, shapes, state, memory, and their error messages."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import pytest

from anyaccel.backend import Memory, capabilities
from anyaccel.device import Device
from anyaccel.errors import DeviceMismatchError, MoveError, ShapeError, StateError
from anyaccel.host_memory import HostMemory
from anyaccel.numpy_backend import (
    Activation,
    BatchNorm,
    Dense,
    Module,
    Sequential,
    SequentialMLP,
    SimArray,
    VjpResult,
    simulate,
)
from anyaccel.registry import Registry
from anyaccel.segment import TensorSpec
from anyaccel.specs import Loss, Optimizer

CPU, SIM0, SIM1 = Device("cpu"), Device("sim", 0), Device("sim", 1)
THREE = TensorSpec((3,), "float32")


class Pair(NamedTuple):
    """A tree with names."""

    first: object
    second: object


@pytest.fixture
def sims():
    with simulate(2) as made:
        yield made


@pytest.fixture
def dense(backend):
    module = Dense(2)
    backend.infer(module, [THREE], 0)
    return module


# -- what it is ----------------------------------------------------------------------------------------------------


def test_the_backend_has_every_capability(backend):
    assert capabilities(backend) == ("exchange", "compute", "memory")


def test_the_registry_finds_the_backend_as_the_owner(backend):
    registry = Registry(lambda: backend, list)
    for mine in (np.ones(2), np.float32(1), Dense(2)):
        assert registry.owner(mine) == "numpy"
    assert not any(registry.owners(other) for other in (Loss("mse"), Optimizer(), np.dtype("int8"), np.sum, [], 1.0))


def test_device_of_arrays_and_modules(backend, sims, dense):
    assert backend.device_of(np.ones(2)) == backend.device_of(np.float32(1)) == CPU
    assert backend.device_of(backend.move(np.ones(2), SIM1)) == SIM1
    assert backend.device_of(dense) == CPU
    assert backend.device_of(Dense(2)) is backend.device_of("text") is None
    dense.parameters["bias"] = backend.move(dense.parameters["bias"], SIM0)
    with pytest.raises(
        DeviceMismatchError, match=r"values of a Dense are on several devices\. Available: cpu:0, sim:0"
    ):
        backend.device_of(dense)


def test_device_info(backend, sims):
    assert [backend.device_string(device) for device in (CPU, SIM1)] == ["cpu", "sim:1"]
    assert backend.device_info(CPU).memory_space == "host"
    assert backend.device_info(CPU).name
    assert backend.device_info(SIM1).memory_space == "sim:1"
    assert "simulated" in backend.device_info(SIM1).name


def test_reasons_for_unavailable_devices(backend):
    assert backend.unavailable_reason(CPU) == ""
    assert backend.unavailable_reason(Device("cpu", 1)) == "numpy counts all cores as cpu:0"
    assert backend.unavailable_reason(SIM0) == (
        "none exists; use anyaccel.simulate(1) or ANYACCEL_SIMULATE=1 to create it"
    )
    assert backend.unavailable_reason(Device("gpu")) == ""
    with simulate(1):
        assert backend.unavailable_reason(SIM1).startswith("1 simulated device was made; ")


def test_memory_figures(backend):
    assert backend.required(Memory).memory(CPU).total >= backend.required(Memory).memory(CPU).free >= 0
    backend.required(Memory).release_memory(CPU)
    with simulate(1, capacity=1000):
        kept = backend.from_host(np.zeros(10), SIM0)
        del kept
        kept = backend.from_host(np.zeros(5), SIM0)
        info = backend.required(Memory).memory(SIM0)
        assert (info.total, info.free, info.used, info.peak) == (1000, 960, 40, 80)
        assert backend.device_info(SIM0).total_memory == 1000
        assert kept.nbytes == 40
    with simulate(1):
        assert backend.required(Memory).memory(SIM0).total == backend.required(Memory).memory(SIM0).free == 0


def test_memory_of_a_system_that_does_not_report_it(backend, monkeypatch):
    monkeypatch.setattr("anyaccel.numpy_backend.capabilities.host_memory", lambda: HostMemory(0, 0))
    info = backend.required(Memory).memory(CPU)
    assert (info.total, info.free, info.used, info.peak) == (0, 0, 0, 0)


# -- place and move ------------------------------------------------------------------------------------------------


def test_an_array_that_is_there_is_returned_itself(backend, sims):
    host = np.ones(2)
    on_sim = backend.move(host, SIM0)
    assert backend.move(host, CPU) is host
    assert backend.move(on_sim, SIM0, pinned=True) is on_sim
    assert backend.place(on_sim, SIM0) is on_sim
    assert type(backend.move(on_sim, CPU)) is np.ndarray


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "bool", "float16", "float32", "complex64"])
def test_dtypes_and_shapes_are_kept(dtype, backend, sims):
    host = np.zeros((2, 0, 3), dtype)
    on_sim = backend.move(host, SIM0)
    assert (on_sim.dtype, on_sim.shape) == (host.dtype, host.shape)
    assert backend.move(np.ones((), dtype)[()], SIM0).dtype == dtype


def test_placing_a_module_moves_its_values_and_returns_it(backend, sims):
    module = Sequential(Dense(2), BatchNorm())
    backend.infer(module, [THREE], 0)
    assert backend.place(module, SIM1) is module
    values = [*module.parameters.values(), *module.buffers.values()]
    assert {backend.device_of(value) for value in values} == {SIM1}
    backend.place(module, SIM1)
    assert all(value is before for value, before in zip(module.parameters.values(), values, strict=False))
    assert backend.infer(module, [THREE], 0) == (TensorSpec((2,), "float32"),)
    assert backend.device_of(backend.place(module, CPU)) == CPU


def test_placing_a_tree_leaves_text_and_numbers(backend, sims):
    tree = {"a": [np.ones(1), None, 3], "b": (np.zeros(1), "text", 1.5, True)}
    placed = backend.place(tree, SIM0)
    assert backend.device_of(placed["a"][0]) == backend.device_of(placed["b"][0]) == SIM0
    assert placed["a"][1:] == [None, 3]
    assert type(backend.place(Pair(np.ones(1), 2), SIM0)) is Pair
    assert placed["b"][1:] == ("text", 1.5, True)


def test_objects_that_cannot_be_moved_or_placed_are_refused(backend):
    with pytest.raises(MoveError, match=r"a Dense is not a NumPy array\. Hint: use anyaccel\.place"):
        backend.move(Dense(2), CPU)
    with pytest.raises(MoveError, match=r"numpy cannot place a set\. Available: modules, arrays, and trees of arrays"):
        backend.place({1}, CPU)


# -- exchange ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [CPU, SIM0], ids=str)
def test_from_host_copies(device, backend, sims):
    host = np.arange(4)
    taken = backend.from_host(host, device, pinned=True)
    host[0] = 9
    assert backend.to_host(taken).tolist() == [0, 1, 2, 3]
    assert backend.to_host(taken).dtype == np.int64
    assert type(backend.to_host(taken)) is np.ndarray


def test_to_host_shares_memory_on_the_cpu_only(backend, sims):
    host = np.ones(2)
    assert backend.to_host(host) is host
    on_sim = backend.from_host(host, SIM0)
    copy = backend.to_host(on_sim)
    copy[0] = 5
    assert np.asarray(on_sim).tolist() == [1, 1]


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.array(["2020"], "datetime64[Y]")])
def test_arrays_without_numbers_are_refused(array, backend):
    with pytest.raises(MoveError, match=r"does not contain numbers\. Hint: encode it as numbers first"):
        backend.from_host(array, CPU)


class Foreign:
    """Another framework's tensor, by DLPack."""

    def __init__(self, array, refusal=None):
        self.array = array
        self.refusal = refusal

    def __dlpack__(self, **kwargs):
        if self.refusal:
            raise self.refusal
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_from_dlpack_shares_read_only_memory_on_the_cpu(backend, sims):
    host = np.ones(3, "float32")
    shared = backend.from_dlpack(Foreign(host), CPU)
    host[0] = 7
    assert shared.tolist() == [7, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        shared[0] = 1
    copied = backend.from_dlpack(Foreign(host), SIM0)
    host[0] = 8
    assert np.asarray(copied).tolist() == [7, 1, 1]
    assert sims[0].transfers.into.number == 1
    assert backend.from_dlpack(host, CPU) is host


def test_from_dlpack_reports_the_refusal_of_the_other_framework(backend):
    refusal = BufferError("Can't export tensors that require gradient")
    with pytest.raises(MoveError) as caught:
        backend.from_dlpack(Foreign(np.ones(1), refusal), CPU)
    assert f"Foreign cannot be imported by DLPack: {refusal}" in str(caught.value)
    assert "Hint: detach it, move it to the CPU, or cast it (bfloat16 to float32)" in str(caught.value)
    with pytest.raises(MoveError, match="a list cannot be imported by DLPack: it has no __dlpack__"):
        backend.from_dlpack([1.0], CPU)


@pytest.mark.parametrize("device", [CPU, SIM0], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_gather_rows(device, dtype, backend, sims):
    column = np.arange(10).astype(dtype).reshape(5, 2)
    on_device, order = backend.from_host(column, device), backend.from_host(np.array([4, 2, 0, 1, 3]), device)
    sims[0].clear()
    plain, mixed = backend.gather_rows(on_device, 1, 3), backend.gather_rows(on_device, 1, 9, order)
    assert backend.device_of(plain) == backend.device_of(mixed) == device
    assert (sims[0].syncs, sims[0].transfers.out.number) == (0, 0)
    np.testing.assert_array_equal(backend.to_host(plain), column[1:3])
    np.testing.assert_array_equal(backend.to_host(mixed), column[[2, 0, 1, 3]])


def test_scalars_come_as_float64(backend, sims):
    values = [np.float32(1.5), np.array(2), backend.from_host(np.array(3.0), SIM0)]
    assert backend.scalars(values).tolist() == [1.5, 2, 3]


# -- compute -------------------------------------------------------------------------------------------------------


def test_shapes_are_inferred_and_models_built_once(backend):
    mlp = SequentialMLP((2, 2))
    assert backend.infer(mlp, [THREE, TensorSpec((2, 2), "float32")], 5) == (TensorSpec((2, 2), "float32"),)
    assert backend.parameters(mlp)["layers.0.weight"] == TensorSpec((16, 7), "float32")
    again = SequentialMLP((2, 2))
    backend.infer(again, [TensorSpec((7,), "float32")], 5)
    np.testing.assert_array_equal(again.parameters["layers.0.weight"], mlp.parameters["layers.0.weight"])


def test_dtypes_that_models_require(backend):
    class Scale(Module):
        def __init__(self):
            super().__init__()
            self.parameters.update(index=np.zeros(1, "int64"), factor=np.ones(1))

        def apply(self, values, inputs, *, train, key):
            return VjpResult(inputs, lambda cotangents: ({}, cotangents))

    assert backend.dtype_of(SequentialMLP(dtype="float64")) == "float64"
    assert backend.dtype_of(Sequential(Activation("tanh"), Dense(2))) == "float32"
    assert backend.dtype_of(Scale()) == "float64"
    assert backend.dtype_of(Activation("tanh")) is None


class Odd(Module):
    """Gives whatever it was made with."""

    def __init__(self, gives):
        super().__init__()
        self.gives = gives
        self.parameters["w"] = np.ones((4, 3))

    def apply(self, values, inputs, *, train, key):
        return VjpResult((self.gives(values["w"], *inputs),), lambda cotangents: ({}, ()))


@pytest.mark.parametrize(
    ("gives", "words"),
    [
        (lambda w, x: w @ x, "Odd does not accept float32[3]: matmul: "),
        (
            lambda w, x: x[0],
            "Odd returned [3] for a batch of 2 samples. Hint: return arrays with the batch",
        ),
        (lambda w, x: 1.0, "Odd returned float for a batch of 2 samples"),
        (lambda w, x, y: x, "Odd does not accept float32[3]: "),
    ],
)
def test_errors_of_a_model_are_quoted(gives, words, backend):
    with pytest.raises(ShapeError) as caught:
        backend.infer(Odd(gives), [THREE], 0)
    assert words in str(caught.value)


def test_the_message_has_the_shapes_of_the_parameters(backend):
    with pytest.raises(ShapeError, match=r"; parameters w \[4, 3\]\. Hint: change its inputs, or the module"):
        backend.infer(Odd(lambda w, x: w @ x), [THREE], 0)


def test_a_dtype_that_numpy_lacks_is_refused(backend):
    with pytest.raises(ShapeError, match="does not accept bfloat16"):
        backend.infer(Activation("tanh"), [TensorSpec((3,), "bfloat16")], 0)


def test_a_plain_function_is_not_a_model(backend):
    with pytest.raises(ShapeError) as caught:
        backend.infer(np.tanh, [THREE], 0)
    assert str(caught.value) == (
        "a ufunc is not a NumPy model: its gradients are unknown. "
        "Hint: subclass anyaccel.numpy_backend.Module, and implement pullback."
    )


def test_builtin_models_and_unsupported_specs(backend):
    assert [*backend.models()] == ["SequentialMLP", "SequentialCNN", "TabularMLP"]
    assert (
        backend.unsupported_reason(Optimizer("adam"))
        == backend.unsupported_reason(Loss("mse"))
        == backend.unsupported_reason(Loss(max))
        == ""
    )
    assert backend.unsupported_reason(Optimizer(Dense)) == "numpy supports named optimizers only"


def test_losses_of_another_framework_are_refused_by_their_module(backend):
    def foreign(outputs, targets):
        return 0.0

    foreign.__module__ = "optax.losses"  # that package need not be there
    for own in (foreign, functools.partial(foreign, targets=0)):
        assert backend.unsupported_reason(Loss(own)).endswith(" comes from optax.losses")
    base = type("Base", (), {"__module__": "torch.nn", "__call__": foreign})
    derived = type("Derived", (base,), {"__module__": "mine"})
    assert backend.unsupported_reason(Loss(derived)) == "Derived comes from torch.nn"
    assert backend.unsupported_reason(Loss(derived())).endswith(" comes from torch.nn")
    foreign.__module__ = "torchlike.losses"
    assert backend.unsupported_reason(Loss(foreign)) == ""


# -- state ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [CPU, SIM0], ids=str)
def test_state_is_copied_and_loaded_in_place(device, backend, sims):
    module = Sequential(Dense(2), BatchNorm())
    backend.infer(module, [THREE], 0)
    backend.place(module, device)
    state = backend.state(module)
    assert list(state) == [
        "parameters/0.weight", "parameters/0.bias", "parameters/1.weight", "parameters/1.bias",
        "buffers/1.running_mean", "buffers/1.running_var",
    ]  # fmt: skip
    changed = {name: value + 1 for name, value in state.items()}
    backend.load_state(module, changed)
    for values in changed.values():
        values += 1
    assert backend.device_of(module) == device
    for name, value in backend.state(module).items():
        assert type(value) is np.ndarray
        np.testing.assert_array_equal(value, state[name] + 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("parameters/bias"), "the state lacks parameters/bias"),
        (lambda s: s.update(x=s["parameters/bias"]), "the state has x, which is not in the model"),
        (lambda s: s.clear(), "the state lacks parameters/weight, parameters/bias"),
        (lambda s: s.update({"parameters/bias": np.zeros(5, "f4")}), "parameters/bias of the model is float32[2]"),
        (lambda s: s.update({"parameters/bias": np.zeros(2)}), "parameters/bias in the state is float64[2]"),
    ],
)  # fmt: skip
def test_a_state_that_does_not_match_is_refused_as_a_whole(change, words, backend, dense):
    before, state = dict(dense.parameters), backend.state(dense)
    state["parameters/weight"] += 1
    change(state)
    with pytest.raises(StateError) as caught:
        backend.load_state(dense, state)
    assert words in str(caught.value)
    assert all(dense.parameters[name] is value for name, value in before.items())


def test_an_unbuilt_model_refuses_a_state(backend, dense):
    with pytest.raises(StateError, match=r"the state has .*parameters/bias.*, which is not in the model"):
        backend.load_state(Dense(2), backend.state(dense))


def test_arrays_on_simulated_devices_are_sim_arrays(backend, sims):
    assert isinstance(backend.move(np.float64(2), SIM0), SimArray)
