"""Tests of the contract of `Backend`: facts, devices, tensors, scopes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from anyaccel.backend import Backend, DeviceInfo
from anyaccel.capability import Capability
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.registry import Registry
from anyaccel_devtools.testing.harness import Harness
from anyaccel_devtools.testing.subject import Subject

VALUES = np.arange(6, dtype="float32").reshape(2, 3) - 2.5
COUNTS = np.arange(6).reshape(2, 3)
DTYPES = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool", "complex64")
NOT_IMPORTABLE = 77

CONSTRUCT = """
import importlib, sys
import anyaccel.backend
before = {name.partition(".")[0] for name in sys.modules}
module, names, not_importable = sys.argv[1:]
try:
    cls = importlib.import_module(module)
    for name in names.split("."):
        cls = getattr(cls, name)
except (ImportError, AttributeError):
    sys.exit(int(not_importable))
cls()
print(*{name.partition(".")[0] for name in sys.modules} - before)
"""


def modules_imported_by_constructing(cls: type[Backend]) -> set[str]:
    """Return the top-level modules that a fresh process imports while it constructs a backend of this class."""
    arguments = [sys.executable, "-c", CONSTRUCT, cls.__module__, cls.__qualname__, str(NOT_IMPORTABLE)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = subprocess.run(arguments, capture_output=True, text=True, env=environment, check=False)
    if child.returncode == NOT_IMPORTABLE:
        pytest.skip(f"{cls.__qualname__} cannot be imported by name")
    assert child.returncode == 0, child.stderr
    return set(child.stdout.split())


class FactTests(Subject):
    """Facts about a backend and its devices."""

    def test_making_it_imports_no_framework(self, backend: Backend) -> None:
        """Constructing a backend imports none of its `import_roots`: listing backends must stay cheap."""
        package = type(backend).__module__.partition(".")[0]  # a plugin may own models of its own package
        assert not modules_imported_by_constructing(type(backend)) & (set(backend.import_roots) - {package})

    def test_facts_are_well_formed(self, backend: Backend) -> None:
        """`framework` is a lower-case identifier, `kinds` are canonical, `import_roots` are top-level modules."""
        assert backend.framework.isidentifier() and backend.framework == backend.framework.lower()
        assert isinstance(backend.kinds, tuple) and backend.kinds
        assert [Device(kind).kind for kind in backend.kinds] == list(backend.kinds)
        assert isinstance(backend.import_roots, tuple) and backend.import_roots
        assert all(root.isidentifier() for root in backend.import_roots)
        assert isinstance(backend.environment, tuple)
        assert all(isinstance(name, str) and name.isidentifier() for name in backend.environment)

    def test_capabilities_are_what_they_are_entered_as(self, backend: Backend) -> None:
        """Each class in `capabilities` gives an object of it, always the same one; none of them is a base."""
        for kind in backend.capabilities:
            if isinstance(kind, str):  # of a package that may be missing; who has it tests it
                continue
            assert issubclass(kind, Capability) and not isinstance(backend, kind)
            found = backend.capability(kind)
            assert isinstance(found, kind) and backend.capability(kind) is found

    def test_devices_are_of_its_kinds(self, backend: Backend) -> None:
        """`devices()` lists Devices of the backend's kinds."""
        assert all(isinstance(device, Device) and device.kind in backend.kinds for device in backend.devices())

    def test_devices_are_listed_once(self, backend: Backend) -> None:
        """No device is listed twice."""
        devices = list(backend.devices())
        assert len(set(devices)) == len(devices)

    def test_devices_are_stable(self, backend: Backend) -> None:
        """A second call lists the same devices in the same order."""
        assert list(backend.devices()) == list(backend.devices())

    def test_device_strings_are_distinct_texts(self, backend: Backend) -> None:
        """`device_string` gives each device its own non-empty name."""
        names = [backend.device_string(device) for device in backend.devices()]
        assert all(isinstance(name, str) and name for name in names)
        assert len(set(names)) == len(names)

    def test_device_info_is_well_formed(self, backend: Backend) -> None:
        """A device has a name, a lower-case vendor and its memory in bytes."""
        for device in backend.devices():
            info = backend.device_info(device)
            assert isinstance(info, DeviceInfo)
            assert info.name and all(isinstance(text, str) for text in (info.name, info.identity, info.memory_space))
            assert info.vendor == info.vendor.lower()
            assert isinstance(info.total_memory, int) and info.total_memory >= 0

    def test_identities_are_distinct(self, backend: Backend) -> None:
        """No two devices share a known identity."""
        infos = [info for d in backend.devices() if (info := backend.device_info(d).identity)]
        assert len(set(infos)) == len(infos)

    def test_unavailable_reason_is_text_for_an_absent_device(self, backend: Backend) -> None:
        """`unavailable_reason` returns text and does not raise."""
        for kind in backend.kinds:
            assert isinstance(backend.unavailable_reason(Device(kind, 9999)), str)

    def test_it_is_hashable_and_equal_to_itself(self, backend: Backend) -> None:
        """A backend can be the key of a dictionary."""
        assert backend in {backend: 1} and backend == backend  # detects a broken __eq__


class TensorTests(Subject):
    """Moving and placing tensors."""

    def test_device_of_a_tensor(self, harness: Harness) -> None:
        """`device_of` gives the device that a tensor was moved to."""
        assert harness.backend.device_of(harness.put(VALUES)) == harness.device

    def test_device_of_an_object_without_tensors_is_none(self, harness: Harness) -> None:
        """`device_of` of an empty container is None."""
        assert harness.backend.device_of([]) is None

    def test_move_puts_the_tensor_on_the_device(self, harness: Harness, second_device: Device) -> None:
        """The result is on the device, and the original stays where it was."""
        before = harness.put(VALUES)
        assert harness.backend.device_of(harness.backend.move(before, second_device)) == second_device
        assert harness.backend.device_of(before) == harness.device

    def test_move_keeps_values(self, harness: Harness, second_device: Device) -> None:
        """Moving to another device and back changes no value."""
        moved = harness.backend.move(harness.put(VALUES), second_device)
        back = harness.backend.move(moved, harness.device)
        np.testing.assert_array_equal(harness.to_numpy(moved), VALUES)
        np.testing.assert_array_equal(harness.to_numpy(back), VALUES)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_move_keeps_the_dtype(self, harness: Harness, dtype: str) -> None:
        """The dtype is kept on every device; a device that does not support it raises MoveError."""
        try:
            before = harness.from_numpy(COUNTS.astype(dtype))  # not `put`, which moves
        except (MoveError, TypeError):
            pytest.skip(f"{dtype} is not supported on {harness.device}")
        kept = harness.to_numpy(before).dtype
        for device in harness.backend.devices():
            with suppress(MoveError):
                before = harness.backend.move(before, device)
                assert harness.to_numpy(before).dtype == kept

    def test_move_to_the_same_device_returns_the_same_object(self, harness: Harness) -> None:
        """A tensor that is on the device already is not copied."""
        tensor = harness.put(VALUES)
        assert harness.backend.move(tensor, harness.device) is tensor

    def test_pinned_does_not_change_the_result(self, harness: Harness) -> None:
        """`pinned=True` changes no result, even if memory cannot be pinned, as on the CPU."""
        for device in harness.backend.devices():
            moved = harness.backend.move(harness.put(VALUES), device, pinned=True)
            assert harness.backend.device_of(moved) == device
            np.testing.assert_array_equal(harness.to_numpy(moved), VALUES)

    def test_place_returns_what_to_use(self, harness: Harness) -> None:
        """`place` returns the object on the device."""
        assert (
            harness.backend.device_of(harness.backend.place(harness.from_numpy(VALUES), harness.device))
            == harness.device
        )

    def test_place_places_nested_containers(self, harness: Harness) -> None:
        """Dicts and lists of tensors are placed with their structure and values."""
        tree = harness.backend.place(
            {"a": [harness.from_numpy(VALUES)], "b": harness.from_numpy(-VALUES)}, harness.device
        )
        assert harness.backend.device_of(tree["a"][0]) == harness.backend.device_of(tree["b"]) == harness.device
        np.testing.assert_array_equal(harness.to_numpy(tree["a"][0]), VALUES)
        np.testing.assert_array_equal(harness.to_numpy(tree["b"]), -VALUES)

    def test_place_twice_changes_nothing(self, harness: Harness) -> None:
        """Placing a placed object keeps device and values."""
        placed = harness.backend.place(harness.from_numpy(VALUES), harness.device)
        again = harness.backend.place(placed, harness.device)
        assert harness.backend.device_of(again) == harness.device
        np.testing.assert_array_equal(harness.to_numpy(again), VALUES)

    def test_place_moves_between_devices(self, harness: Harness, second_device: Device) -> None:
        """A placed object can be placed on another device and keeps its values."""
        placed = harness.backend.place(harness.put(VALUES), second_device)
        assert harness.backend.device_of(placed) == second_device
        np.testing.assert_array_equal(harness.to_numpy(placed), VALUES)

    def test_synchronize_waits_for_every_device(self, harness: Harness) -> None:
        """`synchronize` works for every device, and results are then available."""
        for device in harness.backend.devices():
            moved = harness.backend.move(harness.put(VALUES), device)
            harness.backend.synchronize(device)
            np.testing.assert_array_equal(harness.to_numpy(moved), VALUES)

    def test_it_owns_its_tensors(self, harness: Harness) -> None:
        """A tensor of the framework belongs to the backend."""
        assert harness.backend.owns(harness.put(VALUES))

    def test_a_registry_finds_it_by_its_tensors(self, harness: Harness) -> None:
        """Core finds the backend of a tensor, by `import_roots` or by its `owns`."""
        registry = Registry(lambda: harness.backend, lambda: ())
        assert registry.owners(harness.put(VALUES)) == (harness.backend.framework,)

    @pytest.mark.parametrize(
        "foreign", [object(), 3, 2.5, "text", None, [1], {"a": 1}, Device("cpu")], ids=lambda it: type(it).__name__
    )
    def test_it_owns_nothing_foreign(self, backend: Backend, foreign: Any) -> None:
        """Plain Python objects belong to no framework."""
        assert not backend.owns(foreign)


class ScopeTests(Subject):
    """`scope`: the device of new tensors."""

    def test_scope_sets_the_device_of_new_tensors(
        self, backend: Backend, new_tensor: Callable[[], Any], device: Device
    ) -> None:
        """Inside a scope, a tensor made without naming a device is on the scope's device."""
        with backend.scope(device):
            assert backend.device_of(new_tensor()) == device

    def test_scope_works_on_a_second_device(
        self, backend: Backend, new_tensor: Callable[[], Any], second_device: Device
    ) -> None:
        """The scope of another device works as well."""
        with backend.scope(second_device):
            assert backend.device_of(new_tensor()) == second_device

    def test_scope_restores_the_default_device(self, backend: Backend, new_tensor: Callable[[], Any]) -> None:
        """After a scope, new tensors are created on the previous device."""
        before = backend.device_of(new_tensor())
        for device in backend.devices():
            with backend.scope(device):
                new_tensor()
            assert backend.device_of(new_tensor()) == before

    def test_scope_restores_the_default_device_after_an_error(
        self, backend: Backend, new_tensor: Callable[[], Any]
    ) -> None:
        """An exception passes through a scope, and the default device is restored."""
        before = backend.device_of(new_tensor())
        for device in backend.devices():
            with pytest.raises(ZeroDivisionError), backend.scope(device):
                _ = 1 // 0
            assert backend.device_of(new_tensor()) == before

    def test_scopes_nest(
        self, backend: Backend, new_tensor: Callable[[], Any], device: Device, second_device: Device
    ) -> None:
        """The inner scope wins, and after it the outer one applies again."""
        with backend.scope(device):
            with backend.scope(second_device):
                inner = backend.device_of(new_tensor())
            assert (inner, backend.device_of(new_tensor())) == (second_device, device)


class BackendTests(FactTests, TensorTests, ScopeTests):
    """Everything that `Backend` promises."""
