"""Placement: move and place tensors in containers of every kind; nothing but their device changes."""

from __future__ import annotations

import collections
import collections.abc
import copy
import dataclasses
import types
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

from anyaccel.accelerator import Accelerator
from anyaccel.backend import Exchange
from anyaccel.device import Device
from anyaccel.errors import (
    CapabilityError,
    DeviceUnavailableError,
    FrameworkError,
    MoveError,
    NoBackendError,
)
from anyaccel.placement import move, place
from anyaccel.plugin_testing import Cell, TinyBackend

SIM = Device("sim", 1)


@pytest.fixture
def tiny(use) -> TinyBackend:
    backend = TinyBackend("tiny", ("cpu", "sim:0", "sim:1"))
    use(backend)
    return backend


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Batch:
    x: Any
    name: str = "b"


@dataclass(frozen=True)
class Frozen:
    x: Any
    rest: tuple[Any, ...] = ()


@dataclass(slots=True)
class Slotted:
    x: Any


@dataclass
class Counting:
    """Has a field that its constructor does not take."""

    x: Any
    seen: int = field(default=0, init=False)


@dataclass
class Doubled:
    """Derives a tensor that its constructor does not take."""

    x: Any
    twin: Any = field(init=False)

    def __post_init__(self) -> None:
        self.twin = copy.copy(self.x)


@dataclass
class Seeded:
    x: Any
    seed: dataclasses.InitVar[int]


class Own:
    """Says itself how it is moved."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell

    def __anyaccel_move__(self, move):
        return Own(move(self.cell))


class ByHand(dict):
    """A dict that is made differently."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__({first: 1, second: 2})


# -- leaves ------------------------------------------------------------------------------------------------------------


def test_a_tensor_is_moved_and_keeps_its_value(tiny):
    moved = move(tiny.new(7), "sim:1")
    assert (moved.value, moved.device) == (7, SIM)


def test_a_tensor_already_on_the_device_is_the_same_object(tiny):
    cell = tiny.new()
    assert move(cell, "cpu") is cell


@pytest.mark.parametrize("plain", ["text", b"bytes", True, 3, 2.5, 1j, None])
def test_text_numbers_and_none_pass(tiny, plain):
    assert move(plain, "sim:0") is plain
    assert move([plain], "sim:0") == [plain]


def test_an_object_without_owner_is_an_error(tiny):
    with pytest.raises(NoBackendError, match=r"builtins\.set has no backend"):
        move({"a": {1, 2}}, "sim:0")


def test_pin_memory_reaches_the_backend(tiny, monkeypatch):
    from anyaccel import Accelerator

    asked = []
    monkeypatch.setattr(tiny, "move", lambda t, d, *, pinned=False: asked.append(pinned) or t, raising=False)
    move(tiny.new(), Accelerator("sim:1", pin_memory=True))
    move(tiny.new(), "sim:1")
    assert asked == [True, False]


# -- containers --------------------------------------------------------------------------------------------------------


def there(value: Any) -> bool:
    """Whether every cell below is on SIM, found without the code under test."""
    if isinstance(value, Cell):
        return value.device == SIM
    if isinstance(value, dict):
        return all(map(there, value.values()))
    return not isinstance(value, (list, tuple)) or all(map(there, value))


@pytest.mark.parametrize(
    "kind",
    [
        lambda c: {"x": c, "n": 1},
        lambda c: [c, "text"],
        lambda c: (c, None),
        lambda c: Pair(c, 2),
        lambda c: collections.OrderedDict(b=c, a=1),
        lambda c: {"deep": [({"er": (c,)}, Pair(c, [c]))]},
    ],
)
def test_containers_are_mapped_and_keep_type_and_order(tiny, kind):
    before = kind(tiny.new(5))
    moved = move(before, SIM)
    assert type(moved) is type(before)
    assert there(moved) and not there(before)
    assert list(moved) == list(before) if isinstance(before, dict) else len(moved) == len(before)


def test_a_read_only_mapping_stays_one(tiny):
    moved = move(types.MappingProxyType({"x": tiny.new()}), SIM)
    assert isinstance(moved, types.MappingProxyType)
    assert there(dict(moved))


def test_a_defaultdict_is_a_dict(tiny):
    moved = move(collections.defaultdict(list, x=tiny.new()), SIM)
    assert there(moved)
    assert moved["new"] == []


@pytest.mark.parametrize(
    "kind", [lambda c: {"x": c}, lambda c: [c, [c]], lambda c: (c,), lambda c: Pair(c, c), Batch, Frozen]
)
def test_a_container_already_on_the_device_is_the_same_object(tiny, kind):
    before = kind(tiny.new())
    assert move(before, "cpu") is before


def test_a_part_that_did_not_change_stays_the_same_object(tiny):
    stays, goes = [tiny.cell(1, SIM)], [tiny.new()]
    moved = move({"stays": stays, "goes": goes}, SIM)
    assert moved["stays"] is stays
    assert moved["goes"] is not goes


def test_a_dict_with_a_constructor_of_its_own_is_copied(tiny):
    mine = ByHand("a", "b")
    mine["a"] = tiny.new()
    moved = move(mine, SIM)
    assert type(moved) is ByHand
    assert moved["a"].device == SIM
    assert mine["a"].device != SIM


def test_a_mapping_that_cannot_be_rebuilt_is_an_error_with_a_hint(tiny):
    class Stubborn(collections.abc.Mapping):
        def __init__(self, first, second):
            self.items_ = {"first": first, "second": second}

        def __getitem__(self, key):
            return self.items_[key]

        def __iter__(self):
            return iter(self.items_)

        def __len__(self):
            return len(self.items_)

    with pytest.raises(MoveError, match=r"a Stubborn cannot be rebuilt .* __anyaccel_move__"):
        move(Stubborn(tiny.new(), 1), SIM)


def test_empty_containers_pass(tiny):
    for empty in ({}, [], ()):
        assert move(empty, SIM) is empty


def test_an_object_with_anyaccel_move_is_moved_by_it(tiny):
    moved = move({"own": [Own(tiny.new(3))]}, SIM)["own"][0]
    assert (moved.cell.value, moved.cell.device) == (3, SIM)


# -- dataclasses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Batch, Frozen, Slotted])
def test_dataclasses_are_mapped(tiny, kind):
    moved = move(kind(tiny.new(4)), SIM)
    assert type(moved) is kind
    assert (moved.x.value, moved.x.device) == (4, SIM)


def test_nested_dataclasses_and_their_plain_fields(tiny):
    moved = move(Frozen(Batch(tiny.new(), name="inner"), rest=(tiny.new(), 2)), SIM)
    assert moved.x.name == "inner"
    assert moved.x.x.device == moved.rest[0].device == SIM
    assert moved.rest[1] == 2


def test_a_dataclass_without_fields_and_a_dataclass_itself(tiny):
    @dataclass
    class Nothing:
        pass

    nothing = Nothing()
    assert move(nothing, SIM) is nothing
    with pytest.raises(NoBackendError):
        move(Batch, SIM)


def test_a_field_that_the_constructor_does_not_take_keeps_its_value(tiny):
    batch = Counting(tiny.new())
    batch.seen = 5
    assert move(batch, SIM).seen == 5


def test_a_tensor_that_the_constructor_does_not_take_is_moved_too(tiny):
    moved = move(Doubled(tiny.new(2)), SIM)
    assert moved.x.device == moved.twin.device == SIM


def test_a_constructor_argument_that_is_not_a_field_is_no_obstacle(tiny):
    assert move(Seeded(tiny.new(), seed=1), SIM).x.device == SIM


# -- numpy on the way --------------------------------------------------------------------------------------------------


class TinyExchange(TinyBackend, Exchange):
    """Takes an array as the value of one cell."""

    def from_host(self, array, device, *, pinned=False):
        return self.cell(array.copy(), device)

    def to_host(self, tensor):
        return np.asarray(tensor.value)

    def from_dlpack(self, foreign, device):
        return self.from_host(np.asarray(foreign), device)

    def gather_rows(self, column, start, stop, order=None):
        return self.cell(column.value[start:stop], column.device)


def test_arrays_become_tensors_of_the_named_framework(use):
    backend = TinyExchange("tiny", ("cpu", "sim:0", "sim:1"))
    use(backend)
    moved = move({"x": np.arange(3), "already": backend.new(1)}, SIM, framework="tiny")
    assert isinstance(moved["x"], backend.cell)
    assert moved["x"].value.tolist() == [0, 1, 2]
    assert moved["x"].device == moved["already"].device == SIM


def test_a_tensor_of_another_framework_than_the_named_one_is_refused(use):
    backend, other = (
        cls(name, ("cpu", "sim:0", "sim:1")) for cls, name in ((TinyExchange, "tiny"), (TinyBackend, "other"))
    )
    use(backend, other)
    with pytest.raises(MoveError, match=r"of other cannot be moved to tiny.* Hint: convert it to a NumPy array"):
        move({"x": other.new()}, SIM, framework="tiny")


def test_numpy_scalars_become_tensors_of_the_named_framework_too(use):
    backend = TinyExchange("tiny", ("cpu", "sim:0", "sim:1"))
    use(backend)
    moved = move({"x": np.float32(2), "plain": 2.0}, SIM, framework="tiny")
    assert isinstance(moved["x"], backend.cell) and moved["x"].value == 2 and moved["plain"] == 2.0


def test_a_framework_that_cannot_import_arrays_is_an_error(tiny):
    with pytest.raises(CapabilityError, match="cannot create tensors from NumPy arrays"):
        move(np.arange(3), SIM, framework="tiny")


def test_a_framework_without_a_plugin_is_an_error_before_anything_moves(tiny):
    with pytest.raises(FrameworkError, match=r"pip install \S*plugins/jax"):
        move([tiny.new()], SIM, framework="jax")


# -- place and errors --------------------------------------------------------------------------------------------------


def test_place_gives_what_the_backend_returns(tiny):
    placed = place(tiny.new(9), "sim:1")
    assert (placed.value, placed.device) == (9, SIM)
    assert place(placed, "sim:1") is placed


def test_place_takes_containers_of_everything_that_it_takes(tiny):
    model, other = tiny.new(1), tiny.new(2)
    placed = place({"models": [model, (other, None)], "name": "pair", "steps": 3}, "sim:1")
    assert placed["models"][0].device == placed["models"][1][0].device == SIM
    assert (placed["models"][1][1], placed["name"], placed["steps"]) == (None, "pair", 3)
    assert place(placed, "sim:1") is placed
    assert Accelerator("sim:1").place({"a": model})["a"].device == SIM


def test_place_checks_all_of_a_container_before_anything_moves(tiny, monkeypatch):
    calls = []
    monkeypatch.setattr(type(tiny), "place", lambda *given: calls.append(given))
    with pytest.raises(NoBackendError, match=r"builtins\.object has no backend"):
        place([tiny.new(), object()], "sim:1")
    assert not calls


@pytest.mark.parametrize("ask", ["device_string", "scope"])
def test_a_framework_that_lacks_the_device_is_refused_and_not_given_the_cpu(tiny, ask):
    with pytest.raises(FrameworkError) as caught:
        getattr(Accelerator("mps"), ask)("tiny")
    assert str(caught.value) == (
        "no installed plugin runs tiny on 'mps'. Available: tiny on cpu, sim. Hint: choose one of these, or install a "
        "plugin for it."
    )


@pytest.mark.parametrize("act", [move, place])
def test_a_missing_device_is_an_error_before_anything_moves(tiny, act):
    with pytest.raises(DeviceUnavailableError, match=r"sim:9 is not on this machine for tiny.*Available: cpu:0, sim:0"):
        act(tiny.new(), "sim:9")


@pytest.mark.parametrize("act", [move, place])
def test_a_kind_on_which_no_plugin_runs_the_framework_is_an_error(tiny, act):
    with pytest.raises(FrameworkError, match="no installed plugin runs tiny on 'mps'"):
        act(tiny.new(), "mps")


@pytest.mark.parametrize("act", [move, place])
def test_a_vendor_word_is_a_constraint_for_move_and_place(use, act):
    backend = TinyBackend("tiny", ("cpu", "gpu:0"), vendor="amd")
    use(backend)
    with pytest.raises(DeviceUnavailableError, match="gpu:0 is a device of amd, not of nvidia"):
        act(backend.new(), "cuda")
    assert act(backend.new(), "rocm").device == Device("gpu")


def test_a_tensor_that_is_in_a_container_twice_is_one_tensor_afterwards(tiny: TinyBackend) -> None:
    cell = tiny.new(1)
    for verb in (move, place):
        result = verb({"a": cell, "b": [cell, Batch(cell)]}, SIM)
        assert result["a"] is result["b"][0] is result["b"][1].x and result["a"] is not cell
