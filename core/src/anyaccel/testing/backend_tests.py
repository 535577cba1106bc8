"""BackendTests: the promises that every backend makes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anyaccel.backend import Backend, DeviceInfo
from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.testing.harness import Array, Bench
from anyaccel.testing.subject import Subject

VALUES = np.arange(6, dtype="float32").reshape(2, 3) - 2.5
COUNTS = np.arange(6).reshape(2, 3)
DTYPES = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool", "complex64")
UNSEEN = 77

MAKE = """
import importlib, sys
import anyaccel.backend
before = {name.partition(".")[0] for name in sys.modules}
module, names, unseen = sys.argv[1:]
try:
    found = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
except (ImportError, AttributeError):
    sys.exit(int(unseen))
found()
print(*{name.partition(".")[0] for name in sys.modules} - before)
"""


def imported_by_making(cls: type[Backend]) -> set[str]:
    """The top-level modules that a fresh process has imported after making a backend of this class."""
    arguments = [sys.executable, "-c", MAKE, cls.__module__, cls.__qualname__, str(UNSEEN)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment, check=False)
    if done.returncode == UNSEEN:
        pytest.skip(f"{cls.__qualname__} cannot be imported by name")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


class FactTests(Subject):
    """What a backend says of itself and of its devices."""

    def test_making_it_imports_no_framework(self, backend: Backend) -> None:
        """Making a backend imports none of its roots: whoever lists backends must not wait for frameworks."""
        own = type(backend).__module__.partition(".")[0]  # a plugin may own models of its own package
        assert not imported_by_making(type(backend)) & (set(backend.import_roots) - {own})

    def test_facts_are_well_formed(self, backend: Backend) -> None:
        """The framework is a lower-case identifier, kinds are canonical words, roots are top-level modules."""
        assert backend.framework.isidentifier() and backend.framework == backend.framework.lower()
        assert isinstance(backend.kinds, tuple) and backend.kinds
        assert [Device(kind).kind for kind in backend.kinds] == list(backend.kinds)
        assert isinstance(backend.import_roots, tuple) and backend.import_roots
        assert all(root.isidentifier() for root in backend.import_roots)
        assert isinstance(backend.environment, tuple)
        assert all(isinstance(name, str) and name.isidentifier() for name in backend.environment)

    def test_devices_are_of_its_kinds(self, backend: Backend) -> None:
        """Every device listed is a Device of a kind that the backend serves."""
        assert all(isinstance(device, Device) and device.kind in backend.kinds for device in backend.devices())

    def test_devices_are_listed_once(self, backend: Backend) -> None:
        """No device is listed twice."""
        there = list(backend.devices())
        assert len(set(there)) == len(there)

    def test_devices_are_stable(self, backend: Backend) -> None:
        """Asked again, it lists the same devices in the same order."""
        assert list(backend.devices()) == list(backend.devices())

    def test_device_strings_are_distinct_texts(self, backend: Backend) -> None:
        """The framework's own name of a device is text, and no two devices share one."""
        named = [backend.device_string(device) for device in backend.devices()]
        assert all(isinstance(text, str) and text for text in named)
        assert len(set(named)) == len(named)

    def test_device_info_is_well_formed(self, backend: Backend) -> None:
        """A device has a name; its vendor is lower case, its memory a number of bytes."""
        for device in backend.devices():
            info = backend.device_info(device)
            assert isinstance(info, DeviceInfo)
            assert info.name and all(isinstance(text, str) for text in (info.name, info.identity, info.memory_space))
            assert info.vendor == info.vendor.lower()
            assert isinstance(info.total_memory, int) and info.total_memory >= 0

    def test_identities_are_distinct(self, backend: Backend) -> None:
        """No two devices have one identity, unless it is unknown."""
        known = [info for d in backend.devices() if (info := backend.device_info(d).identity)]
        assert len(set(known)) == len(known)

    def test_why_not_answers_for_an_absent_device(self, backend: Backend) -> None:
        """Asked why a device is not there, it answers with text and does not raise."""
        for kind in backend.kinds:
            assert isinstance(backend.unavailable_reason(Device(kind, 9999)), str)

    def test_it_is_one_object_among_others(self, backend: Backend) -> None:
        """A backend can be looked up: it is hashable and equal to itself."""
        assert backend in {backend: 1} and backend == backend  # a broken __eq__ is what is looked for


class TensorTests(Subject):
    """What a backend does with single tensors."""

    def test_device_of_a_tensor(self, bench: Bench) -> None:
        """A tensor that was moved to a device is there."""
        assert bench.backend.device_of(bench.put(VALUES)) == bench.device

    def test_device_of_what_holds_no_tensor(self, bench: Bench) -> None:
        """An object that holds no tensor is nowhere."""
        assert bench.backend.device_of([]) is None

    def test_move_lands(self, bench: Bench, second: Device) -> None:
        """A moved tensor is on the device it was moved to, and the one it came from stays where it was."""
        before = bench.put(VALUES)
        assert bench.backend.device_of(bench.backend.move(before, second)) == second
        assert bench.backend.device_of(before) == bench.device

    def test_move_keeps_values(self, bench: Bench, second: Device) -> None:
        """There and back, no value changes."""
        there = bench.backend.move(bench.put(VALUES), second)
        back = bench.backend.move(there, bench.device)
        np.testing.assert_array_equal(bench.read(there), VALUES)
        np.testing.assert_array_equal(bench.read(back), VALUES)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_move_keeps_the_dtype(self, bench: Bench, second: Device, dtype: str) -> None:
        """A moved tensor has the dtype it had; a device that lacks it raises MoveError."""
        before = made(bench, COUNTS.astype(dtype))
        try:
            after = bench.backend.move(before, second)
        except MoveError:
            return
        assert bench.read(after).dtype == bench.read(before).dtype

    def test_move_to_where_it_is_gives_the_same_object(self, bench: Bench) -> None:
        """Nothing is copied that is there already."""
        there = bench.put(VALUES)
        assert bench.backend.move(there, bench.device) is there

    def test_pinned_is_only_a_wish(self, bench: Bench) -> None:
        """`pinned` has no effect on what comes out, also where memory cannot be pinned: towards the CPU, say."""
        for device in bench.backend.devices():
            moved = bench.backend.move(bench.put(VALUES), device, pinned=True)
            assert bench.backend.device_of(moved) == device
            np.testing.assert_array_equal(bench.read(moved), VALUES)

    def test_place_returns_what_to_use(self, bench: Bench) -> None:
        """`place` gives back the object, on the device."""
        assert bench.backend.device_of(bench.backend.place(bench.tensor(VALUES), bench.device)) == bench.device

    def test_place_goes_through_a_tree(self, bench: Bench) -> None:
        """A dict and list of tensors is placed whole, with its values and structure."""
        tree = bench.backend.place({"a": [bench.tensor(VALUES)], "b": bench.tensor(-VALUES)}, bench.device)
        assert bench.backend.device_of(tree["a"][0]) == bench.backend.device_of(tree["b"]) == bench.device
        np.testing.assert_array_equal(bench.read(tree["a"][0]), VALUES)
        np.testing.assert_array_equal(bench.read(tree["b"]), -VALUES)

    def test_place_twice_changes_nothing(self, bench: Bench) -> None:
        """Placing what is placed keeps values and device."""
        placed = bench.backend.place(bench.tensor(VALUES), bench.device)
        again = bench.backend.place(placed, bench.device)
        assert bench.backend.device_of(again) == bench.device
        np.testing.assert_array_equal(bench.read(again), VALUES)

    def test_place_moves_between_devices(self, bench: Bench, second: Device) -> None:
        """A placed object can be placed elsewhere, and keeps its values."""
        placed = bench.backend.place(bench.put(VALUES), second)
        assert bench.backend.device_of(placed) == second
        np.testing.assert_array_equal(bench.read(placed), VALUES)

    def test_synchronize_returns(self, bench: Bench) -> None:
        """It can wait for every device, and what was asked of it is then real."""
        for device in bench.backend.devices():
            moved = bench.backend.move(bench.put(VALUES), device)
            bench.backend.synchronize(device)
            np.testing.assert_array_equal(bench.read(moved), VALUES)

    def test_it_owns_its_tensors(self, bench: Bench) -> None:
        """A tensor of the framework is its own."""
        assert bench.backend.owns(bench.put(VALUES))

    @pytest.mark.parametrize(
        "foreign", [object(), 3, 2.5, "text", None, [1], {"a": 1}, Device("cpu")], ids=lambda it: type(it).__name__
    )
    def test_it_owns_nothing_foreign(self, backend: Backend, foreign: Any) -> None:
        """Plain Python objects belong to no framework."""
        assert not backend.owns(foreign)


class ScopeTests(Subject):
    """Where new tensors land."""

    def test_scope_decides_where_new_tensors_land(
        self, backend: Backend, new_tensor: Callable[[], Any], device: Device
    ) -> None:
        """Inside the scope of a device, a tensor made without naming one is there."""
        with backend.scope(device):
            assert backend.device_of(new_tensor()) == device

    def test_scope_decides_for_every_device(
        self, backend: Backend, new_tensor: Callable[[], Any], second: Device
    ) -> None:
        """The scope of another device holds as well."""
        with backend.scope(second):
            assert backend.device_of(new_tensor()) == second

    def test_scope_ends(self, backend: Backend, new_tensor: Callable[[], Any]) -> None:
        """After a scope, new tensors land where they did before."""
        before = backend.device_of(new_tensor())
        for device in backend.devices():
            with backend.scope(device):
                new_tensor()
            assert backend.device_of(new_tensor()) == before

    def test_scope_ends_after_an_error(self, backend: Backend, new_tensor: Callable[[], Any]) -> None:
        """An exception inside passes through, and what was before is restored."""
        before = backend.device_of(new_tensor())
        for device in backend.devices():
            with pytest.raises(ZeroDivisionError), backend.scope(device):
                _ = 1 // 0
            assert backend.device_of(new_tensor()) == before

    def test_scopes_nest(self, backend: Backend, new_tensor: Callable[[], Any], device: Device, second: Device) -> None:
        """The inner scope holds, and after it the outer one again."""
        with backend.scope(device):
            with backend.scope(second):
                inner = backend.device_of(new_tensor())
            assert (inner, backend.device_of(new_tensor())) == (second, device)


@pytest.mark.anyaccel_capability("backend")
class BackendTests(FactTests, TensorTests, ScopeTests):
    """Every promise of `Backend`."""


def made(bench: Bench, array: Array) -> Any:
    """A tensor on the device, or a skip where the framework or the device lacks the dtype."""
    try:
        return bench.put(array)
    except (MoveError, TypeError):
        pytest.skip(f"no {array.dtype} here")
