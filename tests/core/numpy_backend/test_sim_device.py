"""Simulated devices: their lifetime, memory, counters and refusals, and arrays on them."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from anyaccel.backend import Memory
from anyaccel.device import Device
from anyaccel.errors import ConfigError, DeviceMismatchError, DeviceUnavailableError, MoveError, OutOfMemoryError
from anyaccel.numpy_backend import SimArray, array, simulate, zeros
from anyaccel.placement import place

CPU, SIM0, SIM1 = Device("cpu"), Device("sim", 0), Device("sim", 1)


@pytest.fixture
def sims():
    with simulate(2) as made:
        yield made


@pytest.fixture
def to_sim(backend, sims):
    """Puts a plain array on sim:0, not counted."""

    def put(values, device=SIM0):
        placed = backend.from_host(np.asarray(values), device)
        for sim in sims:
            sim.clear()
        return placed

    return put


# -- coming and going ----------------------------------------------------------------------------------------------


def test_there_is_only_the_cpu_until_devices_are_simulated(backend):
    assert backend.devices() == [CPU]
    with simulate(3) as sims:
        assert backend.devices() == [CPU, SIM0, SIM1, Device("sim", 2)]
        assert [str(sim) for sim in sims] == ["sim:0", "sim:1", "sim:2"]
        assert len(sims) == 3
        assert sims[-1].device == Device("sim", 2)
    assert backend.devices() == [CPU]


def test_a_simulation_lasts_until_closed_and_the_last_one_counts(backend):
    outer = simulate(1)
    with simulate(2):
        assert len(backend.devices()) == 3
    assert len(backend.devices()) == 2
    outer.close()
    outer.close()
    assert backend.devices() == [CPU]


def test_devices_are_removed_after_an_error(backend):
    with pytest.raises(ZeroDivisionError), simulate(1):
        raise ZeroDivisionError
    assert backend.devices() == [CPU]


def test_the_environment_makes_devices_at_the_first_listing(backend, monkeypatch):
    monkeypatch.setenv("ANYACCEL_SIMULATE", "2")
    assert backend.devices() == [CPU, SIM0, SIM1]
    first = backend.move(np.ones(2), SIM1)
    assert backend.move(first, SIM1) is first
    assert backend.unavailable_reason(Device("sim", 2)).startswith(
        "2 simulated devices were made; use anyaccel.simulate(3) or "
    )


@pytest.mark.parametrize("text", ["two", "-1", "1.5", "65", "9" * 5000])
def test_an_environment_variable_that_is_not_a_count_is_told(text, backend, monkeypatch):
    monkeypatch.setenv("ANYACCEL_SIMULATE", text)
    message = r"environment variable ANYACCEL_SIMULATE='\S+ is not a count from 0 to 64\. Hint: set ANYACCEL_SIMULATE=2"
    with pytest.raises(ConfigError, match=message):
        backend.devices()
    with pytest.raises(ConfigError, match=message):  # as it is, and not as a fault of the plugin
        place(np.ones(2, "float32"), "sim:0")
    monkeypatch.setenv("ANYACCEL_SIMULATE", "2")  # the hint
    assert backend.devices() == [CPU, SIM0, SIM1]
    monkeypatch.setenv("ANYACCEL_SIMULATE", text)
    with simulate(1):  # devices made in code are not affected
        assert backend.unavailable_reason(SIM1).startswith("1 simulated device was made")


@pytest.mark.parametrize("count", [0, -1, 65, 1.0, True, "2"])
def test_bad_counts_are_refused(count):
    with pytest.raises(ConfigError, match=r"is not a number of devices\. Available: 1 to 64"):
        simulate(count)


@pytest.mark.parametrize("capacity", [0, -5, 1e9, True])
def test_bad_capacities_are_refused(capacity):
    with pytest.raises(ConfigError, match="is not a positive number of bytes"):
        simulate(1, capacity=capacity)


def test_the_error_for_a_missing_device_says_how_to_make_it(backend):
    with pytest.raises(DeviceUnavailableError) as caught:
        backend.move(np.ones(2), SIM1)
    assert str(caught.value) == (
        "numpy has no sim:1: none exists; use anyaccel.simulate(2) or ANYACCEL_SIMULATE=2 to create it. "
        "Available: cpu:0. Hint: call anyaccel.simulate(2), or use one of these."
    )
    with pytest.raises(DeviceUnavailableError, match=r"numpy has no gpu:0\. Available: cpu:0"):
        backend.move(np.ones(2), Device("gpu"))


def test_arrays_on_a_closed_device_can_be_read_but_not_mixed(backend):
    with simulate(1):
        old = backend.move(np.ones(2), SIM0)
    with simulate(1):
        new = backend.move(np.ones(2), SIM0)
        with pytest.raises(DeviceMismatchError, match=r"operands are on sim:0 \(closed\) and sim:0"):
            old + new
        assert backend.move(old, SIM0) is not old
    assert backend.to_host(old).tolist() == [1, 1]


# -- staying on the device -----------------------------------------------------------------------------------------

STAYS = {
    "arithmetic": lambda x: 2 * x + 1 - x / 3 + np.float32(1) + np.array(2.0),
    "in place": lambda x: x.__iadd__(1),
    "ufunc with out": lambda x: np.exp(x, out=x),
    "function": lambda x: np.concatenate([x, x]),
    "function of keywords": lambda x: np.stack(arrays=(x, x)),
    "parts": lambda x: np.split(x, 3)[1],
    "pair": lambda x: np.linalg.qr(x)[0],
    "view": lambda x: x[1:].T.reshape(-1),
    "mask": lambda x: x[x > 1],
    "gather": lambda x: x[(x[:, 0] > 0).nonzero()[0]],
    "element": lambda x: x[0, 0],
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(axis=0),
    "variance": lambda x: x.var(),
    "any": lambda x: (x > 0).any(),
    "argmax": lambda x: x.argmax(),
    "sorted": lambda x: np.sort(x),
    "argsort": lambda x: x.argsort(),
    "cumsum": lambda x: x.cumsum(),
    "round": lambda x: x.round(1),
    "copy": lambda x: x.copy(),
    "cast": lambda x: x.astype("float32"),
    "flat": lambda x: x.flatten(),
    "clip": lambda x: x.clip(0, 1),
    "dot": lambda x: x.dot(x.T),
    "take": lambda x: x.take(x.argmax()),
    "compress": lambda x: x.compress(x[:, 0] > 0, axis=0),
    "reduction": lambda x: np.add.reduce(x),
    "outer": lambda x: np.multiply.outer(x, x),
    "einsum": lambda x: np.einsum("ij,ij->i", x, x),
    "where": lambda x: np.where(x > 0, x, 0.0),
    "zeros like": lambda x: np.zeros_like(x),
    "iteration": lambda x: next(iter(x)),
}
AS_LONG_AS_VALUES_SAY = {"mask", "gather", "compress"}
"""The host waits to learn how long the result is."""


@pytest.mark.parametrize("name", STAYS)
def test_results_stay_on_the_device_and_have_the_right_values(name, to_sim, sims):
    values = np.arange(9.0).reshape(3, 3)
    x = to_sim(values)
    result = STAYS[name](x)
    assert isinstance(result, SimArray)
    assert result.device == SIM0
    assert (sims[0].transfers.out.number, sims[0].transfers.into.number) == (0, 0)
    assert sims[0].syncs == (name in AS_LONG_AS_VALUES_SAY)
    np.testing.assert_array_equal(np.asarray(result), STAYS[name](values.copy()))


MIXES = {
    "ufunc": lambda x, y: x + y,
    "ufunc the other way": lambda x, y: y + x,
    "out": lambda x, y: np.negative(x, out=y),
    "mask of a ufunc": lambda x, y: np.add(x, 1, where=y > 0),
    "function": lambda x, y: np.concatenate([x, y]),
    "function of keywords": lambda x, y: np.where(x > 0, x, y),
    "matrix product": lambda x, y: x @ y,
    "method": lambda x, y: x.dot(y),
    "index": lambda x, y: x[y.astype(int)],
    "index in a tuple": lambda x, y: x[..., y.astype(int)],
    "assignment": lambda x, y: x.__setitem__(slice(None), y),
}


@pytest.mark.parametrize("other", [CPU, SIM1], ids=str)
@pytest.mark.parametrize("name", MIXES)
def test_operands_on_two_devices_are_refused_by_name(name, other, to_sim, backend):
    x, y = to_sim(np.ones(2)), backend.move(np.ones(2), other)
    with pytest.raises(DeviceMismatchError) as caught:
        MIXES[name](x, y)
    message = str(caught.value)
    assert "sim:0" in message
    assert str(other) in message
    assert "Hint: move them to one device with anyaccel.move(x, device)" in message


def test_assignment_on_the_device(to_sim):
    x = to_sim(np.zeros(3))
    x[1:] = to_sim(np.ones(2))
    x[0] = 5
    assert np.asarray(x).tolist() == [5, 1, 1]


# -- counting ------------------------------------------------------------------------------------------------------


def test_transfers_are_counted_with_their_bytes(backend, sims):
    x = backend.from_host(np.zeros(10, "float32"), SIM0)
    y = backend.move(x, SIM1)
    assert backend.move(y, SIM1) is y
    backend.move(y, CPU)
    backend.to_host(x)
    first, second = (sim.transfers for sim in sims)
    assert (first.into.number, first.into.nbytes) == (1, 40)
    assert (second.into.number, second.out.number, second.out.nbytes) == (0, 1, 40)
    assert first.between == second.between
    assert (first.between.number, first.between.nbytes) == (1, 40)
    assert first.out.number == 1
    sims[0].clear()
    assert sims[0].transfers.into.number == sims[0].syncs == 0
    assert sims[1].transfers.between.number == 1


@pytest.mark.parametrize(
    "wait",
    [float, int, bool, complex, str, repr, lambda x: x.item(), lambda x: x.tolist(), lambda x: [1, 2, 3][x],
     lambda x: np.array_equal(x, x)],
)  # fmt: skip
def test_reading_a_value_counts_as_a_synchronization(wait, to_sim, sims):
    x = to_sim(np.array(1))
    wait(x)
    assert sims[0].syncs == 1


def test_to_host_and_synchronize_count_as_synchronizations(backend, to_sim, sims):
    backend.to_host(to_sim(np.ones(2)))
    backend.synchronize(SIM0)
    backend.synchronize(CPU)
    assert sims[0].syncs == 2


def test_an_array_has_its_device(to_sim):
    assert repr(to_sim(np.array([1.0]))) == "array([1.]) on sim:0"


def test_memory_is_counted_once_for_all_views_and_freed(to_sim, sims):
    x = to_sim(np.zeros(100))
    views = [x[1:], x.reshape(10, 10).T, x[::2][1:]]
    assert sims[0].used == 800
    gathered = x[[1, 2]]
    scalar = x.sum()
    assert sims[0].used == 800 + 16 + 8
    del x, gathered, scalar
    gc.collect()
    assert sims[0].used == 800
    del views
    gc.collect()
    assert (sims[0].used, sims[0].peak) == (0, 824)


TOO_MUCH = {
    "arithmetic": lambda x, backend: x + 1,
    "method": lambda x, backend: x.copy(),
    "function": lambda x, backend: np.stack([x, x]),
    "transfer": lambda x, backend: backend.from_host(np.zeros(26), SIM0),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_running_out_of_memory_reports_the_sizes(name, backend):
    with simulate(1, capacity=1000) as sims:
        x = backend.from_host(np.zeros(100), SIM0)
        words = r"not enough memory for \d+ bytes on sim:0; 200 bytes free of 1000\. Hint: free arrays"
        with pytest.raises(OutOfMemoryError, match=words):
            TOO_MUCH[name](x, backend)
        gc.collect()
        assert sims[0].used == 800
        assert backend.required(Memory).memory(SIM0).free == 200
        x += 1


def test_freed_memory_can_be_used_again(backend):
    with simulate(1, capacity=1000):
        for _ in range(3):
            assert backend.from_host(np.zeros(125), SIM0).nbytes == 1000


WIDER = {
    "move": lambda x, backend: backend.move(np.ones(3), SIM0),
    "cast": lambda x, backend: x.astype("float64"),
    "promotion": lambda x, backend: x + x.astype("int64"),
    "function": lambda x, backend: np.zeros_like(x, dtype="complex128"),
}


@pytest.mark.parametrize("name", WIDER)
def test_a_device_without_float64_refuses_it(name, backend):
    with simulate(1, float64=False):
        x = backend.from_host(np.ones(3, "float32"), SIM0)
        with pytest.raises(MoveError) as caught:
            WIDER[name](x, backend)
        assert str(caught.value).startswith("sim:0 cannot hold ")
        assert "it was simulated with float64=False. Hint: cast to float32" in str(caught.value)


def test_python_numbers_do_not_change_the_dtype(backend):
    with simulate(1, float64=False):
        x = backend.from_host(np.ones(3, "float32"), SIM0)
        assert (x * 2.5).dtype == (x / 3).mean().dtype == (1 - x.sum()).dtype == (2.5 / x.sum()).dtype == np.float32


def test_simulated_arrays_cannot_be_exported_by_dlpack(to_sim):
    with pytest.raises(MoveError, match="an array on sim:0 cannot be exported by DLPack"):
        np.from_dlpack(to_sim(np.ones(2)))


# -- scope ---------------------------------------------------------------------------------------------------------


def test_new_arrays_are_on_the_device_of_the_scope(backend, sims):
    with backend.scope(SIM1):
        assert zeros((2, 3)).device == array([1, 2]).device == SIM1
        with backend.scope(CPU):
            assert type(array([1.0])) is type(zeros(2)) is np.ndarray
        assert zeros(2, "int64").dtype == np.int64
    assert type(zeros(2)) is np.ndarray
    with pytest.raises(ZeroDivisionError), backend.scope(SIM0):
        raise ZeroDivisionError
    assert backend.device_of(array(1.0)) == CPU


def test_a_scope_on_a_missing_device_is_an_error(backend):
    with pytest.raises(DeviceUnavailableError, match="numpy has no sim:0"), backend.scope(SIM0):
        pass


def test_an_array_is_a_copy(sims):
    values = np.ones(2)
    made = array(values)
    values[0] = 5
    assert made.tolist() == [1, 1]
