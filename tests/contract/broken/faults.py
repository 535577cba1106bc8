"""The table of wrong backends, each with the capability and the test of the kit that it must fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyaccel.adapter import ArrayProgram
from anyaccel.backend import Program
from anyaccel.capability import Capability
from anyaccel.device import Device
from anyaccel.numpy_backend import NumpyBackend, simulate, zeros
from anyaccel.numpy_backend.builtin_models import Sequential
from anyaccel.numpy_backend.layers import Activation, BatchNorm, Dense
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.segment import Segment
from anyaccel_devtools.numpy_subject import squared_error
from anyaccel_devtools.testing import Subject
from anyaccel_distributed import ShardParameters

from .in_place_models import CopyingBackend, mutating_model

FIRST, SECOND = Device("sim", 0), Device("sim", 1)
AREAS = (
    *("backend", "exchange", "ownership", "memory", "models", "model_traits", "programs", "missing_inputs"),
    *("training", "multi_step", "compile", "keyword_models"),
    *(
        "batch_axes",
        "weighted_losses",
        "parameter_groups",
        "custom_steps",
        "weight_files",
        "precision",
        "device_replicas",
    ),
    *("transfers", "offload", "replicas", "profiles"),
)


@dataclass(frozen=True)
class Fault:
    """A wrong backend, the test that must detect it, and a further capability whose tests it may fail."""

    cls: type[NumpyBackend]
    capability: str
    test: str
    also: str = ""


FAULTS: dict[str, Fault] = {}
_folders: dict[type[NumpyBackend], Path] = {}


def all_faults() -> dict[str, Fault]:
    """The whole table, filled by importing the modules of this package."""
    for area in AREAS:
        import_module(f"{__package__}.{area}")
    return FAULTS


def fault(capability: str, test: str, also: str = "") -> Callable[[Any], Any]:
    """Register a wrong backend, or a wrong part of a right one: a capability, a program, ops, a function over segments.

    Args:
        capability: the capability that the fault violates; tests of others must pass, except of `also`.
        test: name of the test that must fail, with its parameters.
        also: another capability that the fault violates, too.
    """

    def register(wrong: Any) -> Any:
        title, cls = wrong.__name__, wrong
        if not isinstance(wrong, type):
            title = title.title().replace("_", "")
            cls = _backend_class(title, lambda segment: ArrayProgram(wrong(segment), NumpyOps()))
        elif issubclass(wrong, Capability):
            cls = having(wrong)
        elif issubclass(wrong, ArrayProgram):
            cls = _backend_class(title, lambda segment: wrong(segment, NumpyOps()))
        elif issubclass(wrong, NumpyOps):
            cls = _backend_class(title, lambda segment: ArrayProgram(segment, wrong()))
        assert title not in FAULTS
        FAULTS[title] = Fault(cls, capability, test, also)
        return wrong

    return register


def having(*wrong: type[Capability], base: type[NumpyBackend] = NumpyBackend, **facts: Any) -> type[NumpyBackend]:
    """A backend with these classes in place of its own for the capabilities that they implement."""
    kinds = {next(kind for kind in cls.__mro__ if _is_of_the_contract(kind)): cls for cls in wrong}
    return type(wrong[0].__name__, (base,), {"capabilities": {**base.capabilities, **kinds}, **facts})


def _is_of_the_contract(cls: type) -> bool:
    return cls.__module__.startswith("anyaccel") and not cls.__module__.startswith("anyaccel.numpy_backend")


def _backend_class(name: str, build: Callable[[Segment], Program]) -> type[NumpyBackend]:
    return type(name, (NumpyBackend,), {"build": lambda self, segment: build(segment)})


class BrokenSubject(Subject):
    """A wrong backend on simulated devices. Tensors are made and read by NumPy, not by the backend under test."""

    cls: type[NumpyBackend] = NumpyBackend

    @pytest.fixture
    def backend(self) -> Iterator[NumpyBackend]:
        with simulate(2):
            backend = self.cls()
            yield backend
            for context in reversed(getattr(backend, "left_open", [])):
                context.__exit__(None, None, None)

    @pytest.fixture
    def new_tensor(self):
        return lambda: zeros((3,))

    @pytest.fixture
    def from_numpy(self):
        return np.copy

    @pytest.fixture
    def to_numpy(self):
        return lambda tensor: np.array(np.asarray(tensor))

    @pytest.fixture
    def buffered_model(self):
        return lambda: Sequential(Dense(5), BatchNorm(), Dense(3))

    @pytest.fixture
    def tied_model(self):
        def make():
            tied = Dense(4)
            return Sequential(tied, Activation("tanh"), tied, Dense(3))

        return make

    @pytest.fixture
    def models_that_share(self):
        def make():
            layer = Dense(5)
            return Sequential(layer, Dense(3)), Sequential(layer, Activation("tanh"), Dense(3))

        return make

    @pytest.fixture
    def custom_loss(self):
        return squared_error

    @pytest.fixture
    def parameter_free_model(self):
        return lambda: Activation("tanh")

    @pytest.fixture
    def mutating_model(self):
        if not issubclass(self.cls, CopyingBackend):
            pytest.skip("modules of the NumPy backend may not write to their inputs")
        return mutating_model

    @pytest.fixture
    def keyword_model(self):
        from .keyword_models import Difference

        return Difference

    @pytest.fixture
    def time_first_model(self):
        from .batch_axes import RunningTotal

        return RunningTotal

    @pytest.fixture
    def custom_step(self):
        from .custom_steps import train_step

        return train_step

    @pytest.fixture
    def replica_folder(self, harness, tmp_path_factory):
        from anyaccel_devtools.testing.replica_tests import save_start

        from .replicas import Threads, perform

        if not issubclass(self.cls.capabilities.get(ShardParameters, object), Threads):
            pytest.skip("the backend does not declare replicate")
        if self.cls not in _folders:
            _folders[self.cls] = tmp_path_factory.mktemp("replicas")
            save_start(harness, _folders[self.cls])
            perform(self.cls, _folders[self.cls])
        return _folders[self.cls]

    @pytest.fixture
    def device(self, backend) -> Device:
        return FIRST

    @pytest.fixture
    def second_device(self, backend) -> Device:
        return SECOND
