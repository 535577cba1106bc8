"""Which Subject the kit is run with: a published one, or one that follows from the backend as far as it can."""

from __future__ import annotations

import re
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any, NoReturn

import numpy as np
import pytest

from anyaccel.backend import Backend, Compute, Exchange
from anyaccel.device import Device
from anyaccel.errors import PluginError
from anyaccel.numpy_backend import BatchNorm, Dense, Sequential, zeros
from anyaccel.plugin_loader import Plugin
from anyaccel.registry import BUILT_IN, registry
from anyaccel.testing.subject import STANDARD_MODEL, Subject


class NumpySubject(Subject):
    """Core's own backend."""

    @pytest.fixture
    def new_tensor(self) -> Callable[[], Any]:
        """As users make it who name no device."""
        return lambda: zeros((3,))

    @pytest.fixture
    def buffered_model(self) -> Callable[[], Any]:
        """With batch normalisation."""
        return lambda: Sequential(Dense(5), BatchNorm(), Dense(3))


class DerivedSubject(Subject):
    """What follows from a backend alone. What does not is skipped, with the remedy: publish a Subject."""

    @pytest.fixture
    def new_tensor(self) -> Callable[[], Any]:
        """Nothing says how users make a tensor."""
        _unpublished("new_tensor")

    @pytest.fixture
    def tensor(self, backend: Backend, request: pytest.FixtureRequest) -> Callable[[np.ndarray], Any]:
        """By `from_host`."""
        if not isinstance(backend, Exchange):
            _unpublished("tensor")
        there = list(backend.devices())
        where = Device("cpu") if Device("cpu") in there else request.getfixturevalue("device")
        return lambda array: backend.from_host(array, where)

    @pytest.fixture
    def read(self, backend: Backend) -> Callable[[Any], np.ndarray]:
        """By `to_host`."""
        if not isinstance(backend, Exchange):
            _unpublished("read")
        return backend.to_host

    @pytest.fixture
    def model(self, backend: Backend) -> Callable[[], Any]:
        """The SequentialMLP that the backend offers."""
        offered = backend.models() if isinstance(backend, Compute) else {}
        if STANDARD_MODEL not in offered:
            _unpublished("model")
        made: Callable[..., Any] = offered[STANDARD_MODEL]
        return lambda: made(output_shape=(3,), n_layers=2, hidden_dim=5, activation="tanh")


def _unpublished(name: str) -> NoReturn:
    pytest.skip(f"no Subject is published that gives {name}")


def chosen(plugin: str, index: int, subject: str, device: str) -> type[Subject]:
    """The class for `suite`.

    Args:
        plugin: name of an installed plugin.
        index: which of its backends.
        subject: a published Subject as `module:Class`; `""` derives one from the backend.
        device: where the tests are done; `""` leaves that to the Subject.

    Raises:
        PluginError: what is published is no Subject.
    """
    backend = next(each for each in registry().plugins if each.name == plugin).backends[index]
    body: dict[str, Any] = {"__module__": __name__, "__doc__": f"{plugin}, chosen by name."}
    if subject:
        base = _resolved(subject)
    else:
        base = NumpySubject if plugin == BUILT_IN else DerivedSubject
        body["backend"] = pytest.fixture(lambda self: backend)
    if device:
        body["device"] = pytest.fixture(lambda self, backend: _there(backend, Device.parse(device)))
    return type("Chosen", (base,), body)


def _there(backend: Backend, device: Device) -> Device:
    if device not in backend.devices():
        pytest.skip(f"{device} is not here")
    return device


def _resolved(subject: str) -> type[Subject]:
    found = resolve_name(subject)
    if not (isinstance(found, type) and issubclass(found, Subject)):
        raise PluginError(
            f"{subject} is no Subject", available="a class derived from anyaccel.testing.Subject is published"
        )
    return found


GROUP = "anyaccel.conformance"


def canonical(distribution: str) -> str:
    """The name of a distribution as indexes compare it: `My_Chip` is `my-chip`."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def published(plugin: Plugin, backend: Backend) -> str:
    """The Subject that a plugin's own distribution publishes for one of its backends: `module:Class`, `""` if none."""
    from importlib.metadata import entry_points

    own = canonical(plugin.distribution)
    there = {
        each.name: each.value for each in entry_points(group=GROUP) if each.dist and canonical(each.dist.name) == own
    }
    return next((there[name] for name in _names(plugin, backend) if name in there), "")


def _names(plugin: Plugin, backend: Backend) -> list[str]:
    """By which name a backend's Subject may be published, the most exact first."""
    framework = f"{plugin.name}.{backend.framework}"
    names = [*(f"{framework}.{kind}" for kind in backend.kinds), framework]
    return [*names, plugin.name] if len(plugin.backends) == 1 else names
