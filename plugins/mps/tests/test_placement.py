"""Devices, moves and dtype checks. Fake tensors of torch say where things would be; calls of torch.mps are recorded."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from anyaccel.backend import DeviceInfo, Memory, MemoryInfo
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.machine import ExpectedDevices, Machine, SystemDevice
from anyaccel_mps import MpsBackend
from anyaccel_mps import backend as dtype_support

CPU, MPS, GIB = Device("cpu"), Device("mps"), 2**30
CLOSEST = "Available: float32. Hint: convert it first:"


@pytest.fixture
def backend() -> MpsBackend:
    return MpsBackend()


@pytest.fixture(autouse=True)
def no_cached_answers() -> Iterator[None]:
    dtype_support.refusal.cache_clear()
    yield
    dtype_support.refusal.cache_clear()


# -- devices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "found"), [(1, [MPS]), (0, [])])
def test_there_is_one_device_or_none(
    backend: MpsBackend, monkeypatch: pytest.MonkeyPatch, count: int, found: list[Device]
) -> None:
    monkeypatch.setattr(torch.mps, "device_count", lambda: count)
    assert list(backend.devices()) == found


def test_a_second_device_is_unavailable(backend: MpsBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.mps, "device_count", lambda: 1)
    assert backend.unavailable_reason(MPS) == ""
    assert backend.unavailable_reason(Device("mps", 1)) == "torch has one Apple GPU, mps:0"


@pytest.mark.parametrize(
    ("system", "built", "reason"),
    [
        ("Linux", False, "MPS is part of macOS, but this is Linux"),
        ("", False, "MPS is part of macOS, but this is another system"),
        ("Darwin", False, f"this torch, {torch.__version__}, is built without MPS"),
        (
            "Darwin",
            True,
            f"torch {torch.__version__} finds no MPS: macOS 12.1 is too old for it, or the Mac has no supported GPU",
        ),
    ],
)
def test_the_reason_for_no_device(
    backend: MpsBackend, monkeypatch: pytest.MonkeyPatch, system: str, built: bool, reason: str
) -> None:
    monkeypatch.setattr(torch.mps, "device_count", lambda: 0)
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.mac_ver", lambda: ("12.1", ("", "", ""), "arm64"))
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: built)
    assert backend.unavailable_reason(MPS) == reason


def test_a_torch_that_cannot_be_imported(backend: MpsBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def broken(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "torch":
            raise OSError("libtorch.dylib: missing\nmore")
        return real(name, *args, **kwargs)

    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr(builtins, "__import__", broken)
    assert list(backend.devices()) == []
    assert backend.unavailable_reason(MPS) == "torch cannot be imported: libtorch.dylib: missing"


def test_device_info_is_from_metal(backend: MpsBackend, metal: list[str]) -> None:
    assert backend.device_info(MPS) == DeviceInfo("Apple M2", "apple", total_memory=11 * GIB)
    assert backend.device_info(MPS).memory_space == ""  # sharing memory with the CPU is not claimed


def test_an_older_torch_has_no_name(backend: MpsBackend, metal: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.backends.mps, "get_name")
    assert backend.device_info(MPS).name == "Apple GPU"


def test_memory_is_from_torch_and_metal(backend: MpsBackend, metal: list[str]) -> None:
    assert backend.required(Memory).memory(MPS) == MemoryInfo(total=11 * GIB, free=8 * GIB, used=2 * GIB, peak=0)
    backend.required(Memory).release_memory(MPS)
    assert metal[-1] == "empty_cache"


def test_free_memory_is_never_negative(backend: MpsBackend, metal: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 12 * GIB)  # above what Metal recommends
    assert backend.required(Memory).memory(MPS).free == 0


def test_synchronize_calls_torch(backend: MpsBackend, metal: list[str]) -> None:
    backend.synchronize(MPS)
    assert metal == ["synchronize"]


def test_scope_makes_tensors_on_mps(backend: MpsBackend) -> None:
    with FakeTensorMode(), backend.scope(MPS):
        assert backend.device_of(torch.zeros(2)) == MPS


# -- moves -----------------------------------------------------------------------------------------------------------


class Copies(TorchDispatchMode):
    """Whether each copy between devices would not be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.unawaited: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.name() == "aten::_to_copy":
            self.unawaited.append(bool(kwargs.get("non_blocking")))
        assert func.name() != "aten::copy_"
        assert not kwargs.get("pin_memory")
        return func(*args, **kwargs)


def test_moves_are_synchronous_and_not_pinned(backend: MpsBackend) -> None:
    """Fake tensors; that Metal really waits is only seen on a Mac."""
    with FakeTensorMode(), Copies() as copies:
        there = backend.move(torch.zeros(3), MPS, pinned=True)
        backend.move(there, CPU)
    assert copies.unawaited == [False, False]


def test_copies_of_arrays_are_synchronous(cpu_backend: MpsBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pinned=True` has no effect, though torch here could pin memory."""
    calls: list[tuple[Any, Any]] = []
    real = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append((args, kwargs))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pytest.fail("pinned"))
    cpu_backend.from_host(np.ones(3, "float32"), MPS, pinned=True)
    cpu_backend.move(torch.ones(3), MPS, pinned=True)
    cpu_backend.from_host_owned(np.ones(3, "float32"), MPS)
    cpu_backend.copy_async(cpu_backend.staging_buffer((3,), "float32", MPS), MPS).source_reusable()
    assert [kwargs.get("non_blocking", False) for _, kwargs in calls] == [False] * 4


def test_a_moved_tensor_is_on_mps(backend: MpsBackend) -> None:
    with FakeTensorMode():
        there = backend.move(torch.zeros(3, dtype=torch.bfloat16), MPS)
        assert backend.device_of(there) == MPS
        assert there.device == torch.device("mps:0")
        assert there.dtype is torch.bfloat16
        assert backend.move(there, MPS) is there


def test_a_placed_tree_is_on_mps(backend: MpsBackend) -> None:
    with FakeTensorMode():
        placed = backend.place({"a": [torch.zeros(3)], "b": (torch.ones(2, dtype=torch.int64), "text")}, MPS)
    assert backend.device_of(placed["a"]) == MPS
    assert backend.device_of(placed["b"]) == MPS
    assert placed["b"][1] == "text"


def test_an_optimizer_of_float64_parameters_is_not_refused(backend: MpsBackend) -> None:
    """Its state follows its parameters, and those were refused before."""
    optimizer = torch.optim.Adam(nn.Linear(2, 1).double().parameters())
    assert backend.place(optimizer, MPS) is optimizer


# -- unsupported dtypes -------------------------------------------------------------------------------------------


def test_a_float64_tensor_is_refused(backend: MpsBackend) -> None:
    with pytest.raises(MoveError) as caught:
        backend.move(torch.zeros(3, dtype=torch.float64), MPS)
    assert str(caught.value) == f"a tensor is float64, which mps:0 does not support. {CLOSEST} tensor.float()."


def test_a_complex128_tensor_is_refused(backend: MpsBackend) -> None:
    with pytest.raises(
        MoveError, match=r"complex128, which mps:0 does not support.*complex64.*tensor\.to\(torch\.complex64"
    ):
        backend.move(torch.zeros(3, dtype=torch.complex128), MPS)


@pytest.mark.parametrize("method", ["place", "move"])
def test_a_module_is_refused_as_a_whole_and_its_parameter_named(backend: MpsBackend, method: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1).double())
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(MoveError) as caught:
        getattr(backend, method)(model, MPS)
    expected = f"parameter '1.weight' of Sequential is float64, which mps:0 does not support. {CLOSEST} model.float()."
    assert str(caught.value) == expected
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


def test_a_buffer_is_named(backend: MpsBackend) -> None:
    model = nn.BatchNorm1d(2)
    model.running_mean = torch.zeros(2, dtype=torch.float64)
    with pytest.raises(MoveError, match="buffer 'running_mean' of BatchNorm1d is float64"):
        backend.place(model, MPS)


def test_a_tree_is_refused_as_a_whole(backend: MpsBackend) -> None:
    first, second = nn.Linear(2, 1), nn.Linear(2, 1).double()
    with pytest.raises(MoveError, match=r"parameter 'weight' of Linear item \['two'\]\[0\] is float64"):
        backend.place({"one": first, "two": [second]}, MPS)
    assert first.weight.device.type == "cpu"
    with pytest.raises(MoveError, match=r"item \[1\] is float64.*tensor\.float\(\)"):
        backend.place([torch.zeros(1), torch.zeros(1).double()], MPS)


@pytest.mark.parametrize(
    ("dtype", "closest"), [("float64", "float32"), (">f8", "float32"), ("complex128", "complex64")]
)
def test_an_unsupported_array_is_refused(backend: MpsBackend, dtype: str, closest: str) -> None:
    name = np.dtype(dtype).newbyteorder("=").name
    for act in (backend.from_host, backend.from_host_owned, backend.copy_async):
        with pytest.raises(MoveError) as caught:
            act(np.zeros(3, dtype), MPS)
        assert str(caught.value) == (
            f"the array is {name}, which mps:0 does not support. Available: {closest}. "
            f"Hint: convert it first: array.astype('{closest}')."
        )


def test_an_unsupported_tensor_of_another_framework_is_refused(backend: MpsBackend) -> None:
    with pytest.raises(MoveError, match="a tensor is float64, which mps:0 does not support"):
        backend.from_dlpack(np.zeros(3), MPS)


def test_torch_is_asked_once_for_other_dtypes(backend: MpsBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's answer is recorded: bfloat16 on macOS 13 was refused in these words."""
    words = "MPS BFloat16 is only supported on MacOS 14 or newer"
    asked: list[Any] = []

    def empty(*size: int, dtype: torch.dtype, device: str) -> Any:
        asked.append((size, dtype, device))
        raise TypeError(words)

    monkeypatch.setattr(torch, "empty", empty)
    for _ in range(2):
        with pytest.raises(MoveError) as caught:
            backend.move(torch.zeros(3, dtype=torch.bfloat16), MPS)
    assert asked == [((0,), torch.bfloat16, "mps")]  # and no more than once
    assert str(caught.value) == (
        f"a tensor is bfloat16, which mps:0 does not support: {words}. {CLOSEST} tensor.float()."
    )


@pytest.mark.parametrize(
    ("system", "release", "expected"),
    [("linux", "", {}), ("darwin", "15.1", {MPS: DeviceInfo("Apple GPU", "apple")}), ("darwin", "12.6", None)],
)
def test_the_gpu_is_expected_where_system_and_torch_support_it(
    backend: MpsBackend, monkeypatch: pytest.MonkeyPatch, system: str, release: str, expected: Any
) -> None:
    gpu = SystemDevice(kind="mps", name="Apple GPU", vendor="apple")
    monkeypatch.setattr("platform.mac_ver", lambda: (release, ("", "", ""), "arm64"))
    assert (
        backend.required(ExpectedDevices).expected_devices(Machine(system=system, devices=(gpu,), visible=(gpu,)))
        == expected
    )
