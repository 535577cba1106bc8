"""The Subject with which `anyaccel conform` tests a plugin: the published one, or one derived from the backend."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any, NoReturn

import pytest

from anyaccel.backend import Backend
from anyaccel.device import Device
from anyaccel.errors import PluginError
from anyaccel.plugin_loader import BUILT_IN
from anyaccel.registry import registry
from anyaccel_devtools.testing.subject import Subject

NUMPY_SUBJECT = "anyaccel_devtools.numpy_subject:NumpySubject"
"""Of core's own backend, which publishes none: core needs no kit."""


class DerivedSubject(Subject):
    """A Subject derived from a backend; tests that need more are skipped until the plugin publishes one."""

    def missing_fixture(self, name: str) -> NoReturn:
        """Skip: no one has defined the fixture."""
        pytest.skip(f"the plugin publishes no Subject with the fixture {name!r}")


def select_subject(plugin: str, index: int, subject: str, device: str) -> type[Subject]:
    """Return the Subject class for `suite`.

    Args:
        plugin: Name of an installed plugin.
        index: Index of the backend.
        subject: A published Subject as `module:Class`; `""` derives one from the backend.
        device: Device of the tests; `""` leaves the choice to the Subject.

    Raises:
        PluginError: the published object is not a Subject.
    """
    backend = next(candidate for candidate in registry().plugins if candidate.name == plugin).backends[index]
    body: dict[str, Any] = {"__module__": __name__, "__doc__": f"The plugin {plugin}, selected by name."}
    base = _resolve(subject or NUMPY_SUBJECT) if subject or plugin == BUILT_IN else DerivedSubject
    if not subject:
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
            f"the published {subject} is not a Subject", hint="subclass anyaccel_devtools.testing.Subject"
        )
    return cls
