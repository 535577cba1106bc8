"""The Subject with which `anyaccel conform` tests a plugin: the published one, or one derived from the backend."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any, NoReturn

import pytest

from anyaccel.backend import Backend
from anyaccel.device import Device
from anyaccel.errors import PluginError
from anyaccel.numpy_backend import Activation, BatchNorm, Dense, Sequential, zeros
from anyaccel.plugin_loader import BUILT_IN
from anyaccel.registry import registry
from anyaccel.testing.subject import Subject


class NumpySubject(Subject):
    """Core's own NumPy backend."""

    @pytest.fixture
    def new_tensor(self) -> Callable[[], Any]:
        """An array made without naming a device."""
        return lambda: zeros((3,))

    @pytest.fixture
    def buffered_model(self) -> Callable[[], Any]:
        """A model with batch normalization."""
        return lambda: Sequential(Dense(5), BatchNorm(), Dense(3))

    @pytest.fixture
    def tied_model(self) -> Callable[[], Any]:
        """A model that calls one layer twice."""

        def make() -> Sequential:
            tied = Dense(4)
            return Sequential(tied, Activation("tanh"), tied, Dense(3))

        return make

    @pytest.fixture
    def models_that_share(self) -> Callable[[], tuple[Any, Any]]:
        """One layer in two models."""

        def make() -> tuple[Sequential, Sequential]:
            layer = Dense(5)
            return Sequential(layer, Dense(3)), Sequential(layer, Activation("tanh"), Dense(3))

        return make

    @pytest.fixture
    def custom_loss(self) -> Callable[[Any, Any], Any]:
        """With its gradient, as NumPy does not differentiate."""
        return squared_error

    @pytest.fixture
    def parameter_free_model(self) -> Callable[[], Any]:
        """An activation."""
        return lambda: Activation("tanh")


def squared_error(outputs: Any, targets: Any) -> tuple[Any, int, list[Any]]:
    """The mean squared error of each row summed over the rows, their number, and the gradients of the sum."""
    difference = outputs - targets
    return (difference**2).sum() / outputs.shape[1], len(outputs), [2 * difference / outputs.shape[1], None]


class DerivedSubject(Subject):
    """What follows from a backend alone; tests that need more are skipped until the plugin publishes a Subject."""

    def missing_fixture(self, name: str) -> NoReturn:
        """Skip: nobody has defined the fixture."""
        pytest.skip(f"the plugin publishes no Subject with the fixture {name!r}")


def select_subject(plugin: str, index: int, subject: str, device: str) -> type[Subject]:
    """The Subject class to give to `suite`.

    Args:
        plugin: name of an installed plugin.
        index: which of its backends.
        subject: a published Subject as `module:Class`; `""` derives one from the backend.
        device: device to run the tests on; `""` leaves the choice to the Subject.

    Raises:
        PluginError: what is published is no Subject.
    """
    backend = next(each for each in registry().plugins if each.name == plugin).backends[index]
    body: dict[str, Any] = {"__module__": __name__, "__doc__": f"The plugin {plugin}, selected by name."}
    if subject:
        base = _resolve(subject)
    else:
        base = NumpySubject if plugin == BUILT_IN else DerivedSubject
        body["backend"] = pytest.fixture(lambda self: backend)
    if device:
        body["device"] = pytest.fixture(lambda self, backend: _require_device(backend, Device.parse(device)))
    return type("SelectedSubject", (base,), body)


def _require_device(backend: Backend, device: Device) -> Device:
    if device not in backend.devices():
        pytest.skip(f"{device} is not on this machine")
    return device


def _resolve(subject: str) -> type[Subject]:
    cls = resolve_name(subject)
    if not (isinstance(cls, type) and issubclass(cls, Subject)):
        raise PluginError(
            f"the published {subject} is not a Subject", hint="derive the class from anyaccel.testing.Subject"
        )
    return cls
