"""Placement: listing devices, the best device, the device of an object, scopes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from anyaccel import Accelerator, best_device, device_of, devices, devices_or_cpu, scope
from anyaccel.device import Device
from anyaccel.errors import DeviceMismatchError, DeviceParseError, FrameworkError, NoBackendError
from anyaccel.plugin_testing import TinyBackend


@dataclass
class Batch:
    x: Any
    y: Any = None


@pytest.fixture
def three(use) -> list[TinyBackend]:
    """Three frameworks on overlapping kinds, offered in an order that is nobody's preference."""
    backends = [
        TinyBackend("a", ("cpu", "sim:0")),
        TinyBackend("b", ("xpu:0", "gpu:1", "gpu:0")),
        TinyBackend("c", ("mps", "gpu:0")),
    ]
    use(*backends)
    return backends


def test_devices_are_listed_once_and_best_first(three):
    assert [str(d) for d in devices()] == ["gpu:0", "gpu:1", "mps:0", "xpu:0", "cpu:0", "sim:0"]


@pytest.mark.parametrize(
    ("kind", "there"),
    [
        ("gpu", ["gpu:0", "gpu:1"]),
        ("cuda", ["gpu:0", "gpu:1"]),
        ("metal", ["mps:0"]),
        ("GPU", ["gpu:0", "gpu:1"]),
        ("tpu", []),
    ],
)
def test_devices_of_a_kind_by_any_of_its_names(three, kind, there):
    assert [str(d) for d in devices(kind)] == there


def test_text_that_is_not_a_kind_is_refused(three):
    with pytest.raises(DeviceParseError):
        devices("no kind")


@pytest.mark.parametrize(("i", "found"), [(0, "gpu:0"), (1, "gpu:1"), (2, "cpu:0")])
def test_best_device_is_that_gpu_or_the_cpu(three, i, found):
    assert str(best_device(i)) == found


def test_best_device_is_another_accelerator_without_a_gpu(use):
    use(TinyBackend("a", ("cpu", "xpu:0", "sim:0", "sim:1")))
    assert (str(best_device()), str(best_device(1))) == ("xpu:0", "cpu:0")


def test_devices_or_cpu_is_never_empty(use):
    use()
    assert devices_or_cpu("gpu") == devices_or_cpu() == [Device("cpu")]


def test_devices_or_cpu_are_those_of_the_kind_if_any(three):
    assert devices_or_cpu() == [Device("gpu", 0), Device("gpu", 1)]


# -- device_of ---------------------------------------------------------------------------------------------------------


def test_device_of_a_tensor_and_of_its_container(three):
    backend, there = three[1], Device("gpu", 1)
    cell = backend.cell(1, there)
    for holder in (cell, [cell], {"x": (cell, 3)}, Batch(cell, "text"), Batch([Batch(cell)])):
        assert device_of(holder) == there


@pytest.mark.parametrize("nothing", [3, "cpu", None, [], {}, (1, 2.0), {"a": ["b"]}, Batch(1)])
def test_device_of_a_container_without_tensors_is_none(three, nothing):
    assert device_of(nothing) is None


def test_tensors_of_two_frameworks_on_one_device_are_on_one_device(three):
    _, b, c = three
    assert device_of([b.cell(1, Device("gpu")), c.cell(2, Device("gpu"))]) == Device("gpu")


def test_tensors_on_several_devices_are_an_error_that_lists_them(three):
    b = three[1]
    with pytest.raises(DeviceMismatchError) as caught:
        device_of({"x": b.cell(1, Device("gpu", 1)), "y": b.cell(1, Device("gpu", 0))})
    assert caught.value.problem == "the tensors of a dict are on several devices"
    assert caught.value.available == "gpu:0, gpu:1"


def test_device_of_an_object_without_owner_is_an_error(three):
    with pytest.raises(NoBackendError):
        device_of([object()])


def test_a_model_that_is_a_dataclass_is_where_its_backend_says(three):
    """A user may write `@dataclass class Net(framework.Module)`; its sizes are fields, its parameters are not."""
    backend = three[1]

    @dataclass(eq=False)
    class Net(backend.cell):
        hidden: int = 3

    net = Net()
    net.value, net.device = 0, Device("gpu", 1)
    assert device_of(net) == Device("gpu", 1)


# -- scope -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["gpu:1", Device("gpu", 1), Accelerator("cuda:1")])
def test_a_scope_sets_the_device_of_new_tensors_and_restores_it(three, where):
    b = three[1]
    before = b.new().device
    with scope(where, "b"):
        assert b.new().device == Device("gpu", 1)
    assert b.new().device == before


def test_a_scope_without_a_plugin_is_an_error(three):
    with pytest.raises(FrameworkError, match="no installed plugin runs a on 'gpu'"):
        scope("gpu", "a")
