"""Deliberately wrong backends: the table of faults, each with the one capability and the test of the kit it breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from writers import Guarded, writing_model

from anyaccel.adapter import ArrayProgram
from anyaccel.backend import Program
from anyaccel.device import Device
from anyaccel.numpy_backend import NumpyBackend, simulate, zeros
from anyaccel.numpy_backend.layers import BatchNorm, Dense
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.numpy_backend.sequential import Sequential
from anyaccel.segment import Segment
from anyaccel.testing import Subject

FIRST, SECOND = Device("sim", 0), Device("sim", 1)


@dataclass(frozen=True)
class Fault:
    """A wrong backend, and the test that must tell."""

    cls: type[NumpyBackend]
    capability: str
    own: str


FAULTS: dict[str, Fault] = {}
PARTS = (
    *(
        "backends",
        "exchange",
        "giving",
        "memory",
        "models",
        "custody",
        "programs",
        "partial",
        "training",
        "stepping",
        "compiling",
    ),
)


def all_faults() -> dict[str, Fault]:
    """The whole table, from the modules beside this one."""
    for part in PARTS:
        import_module(f"broken_{part}")
    return FAULTS


def fault(capability: str, own: str) -> Callable[[Any], Any]:
    """Enter a wrong backend; or a wrong program, wrong ops or a function that spoils a segment, in a right backend."""

    def enter(wrong: Any) -> Any:
        title, cls = wrong.__name__, wrong
        if not isinstance(wrong, type):
            title = title.title().replace("_", "")
            cls = _built(title, lambda segment: ArrayProgram(wrong(segment), NumpyOps()))
        elif issubclass(wrong, ArrayProgram):
            cls = _built(title, lambda segment: wrong(segment, NumpyOps()))
        elif issubclass(wrong, NumpyOps):
            cls = _built(title, lambda segment: ArrayProgram(segment, wrong()))
        assert title not in FAULTS
        FAULTS[title] = Fault(cls, capability, own)
        return wrong

    return enter


def _built(name: str, build: Callable[[Segment], Program]) -> type[NumpyBackend]:
    return type(name, (NumpyBackend,), {"build": lambda self, segment: build(segment)})


class Broken(Subject):
    """A wrong backend on simulated devices; tensors are made and read in NumPy's own way, past the backend."""

    cls: type[NumpyBackend] = NumpyBackend

    @pytest.fixture
    def backend(self) -> Iterator[NumpyBackend]:
        with simulate(2):
            made = self.cls()
            yield made
            for opened in reversed(getattr(made, "left_open", [])):
                opened.__exit__(None, None, None)

    @pytest.fixture
    def new_tensor(self):
        return lambda: zeros((3,))

    @pytest.fixture
    def tensor(self):
        return np.copy

    @pytest.fixture
    def read(self):
        return lambda tensor: np.array(np.asarray(tensor))

    @pytest.fixture
    def buffered_model(self):
        return lambda: Sequential(Dense(5), BatchNorm(), Dense(3))

    @pytest.fixture
    def writing_model(self):
        if not issubclass(self.cls, Guarded):
            pytest.skip("modules of the reference backend may not write to their inputs")
        return writing_model

    @pytest.fixture
    def device(self, backend) -> Device:
        return FIRST

    @pytest.fixture
    def second(self, backend) -> Device:
        return SECOND


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a fault's own test, and of other capabilities every test with one of its parameters."""
    seen: set[tuple[Any, str]] = set()
    kept = []
    for item in items:
        wrong, key = FAULTS[item.cls.fault], (item.cls, item.originalname)
        if item.get_closest_marker("anyaccel_capability").args[0] == wrong.capability:
            wanted = item.name == wrong.own
        else:
            wanted = key not in seen and item.originalname != "test_making_it_imports_no_framework"
        seen.add(key)
        if wanted:
            kept.append(item)
    items[:] = kept
