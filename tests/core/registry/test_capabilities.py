"""Capabilities of backends: their own, inherited ones, and those that other plugins bring."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anyaccel import distributions
from anyaccel.adapter.step_profiler import ProfilesSteps, SpanRecorder, write_trace
from anyaccel.backend import Memory, MemoryInfo, capabilities
from anyaccel.capability import Capability, capability_name
from anyaccel.device import Device
from anyaccel.distributions import CAPABILITIES
from anyaccel.errors import CapabilityError, PluginError
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.plugin_testing import TinyBackend, entry, plugin_module
from anyaccel.registry import Registry

CPU = Device("cpu")


class Counted(Memory):
    """Says the same of every device."""

    def memory(self, device: Device) -> MemoryInfo:
        return MemoryInfo(100, 60, 40, 50)

    def release_memory(self, device: Device) -> None:
        pass


class Other(Counted):
    """Another class for the same."""


class Counting(TinyBackend):
    """Declares memory."""

    capabilities = {Memory: Counted}


class Joins(Capability):
    """A kind of capability."""


class Divides(Joins):
    """A narrower kind."""


def test_an_object_is_made_once_and_only_when_it_is_asked_for() -> None:
    made = []

    class Lazy(TinyBackend):
        capabilities = {Memory: lambda backend: made.append(backend) or Counted(backend)}

    backend = Lazy()
    assert made == []
    memory = backend.capability(Memory)
    assert isinstance(memory, Counted)
    assert memory.backend is backend
    assert backend.capability(Memory) is memory
    assert made == [backend]
    assert Lazy().capability(Memory) is not memory


def test_what_is_not_declared_is_none_and_an_error_where_it_is_required() -> None:
    backend = TinyBackend("tiny")
    assert backend.capability(Memory) is None
    with pytest.raises(CapabilityError, match="the plugin of tiny lacks the capability Memory"):
        backend.required(Memory)
    assert capabilities(backend) == ()
    assert capabilities(Counting()) == ("memory",)


def test_a_capability_of_a_wider_kind_is_the_same_object() -> None:
    class Dividing(TinyBackend):
        capabilities = {Divides: Divides}

    backend = Dividing()
    assert backend.capability(Joins) is backend.capability(Divides) is not None

    class Joining(TinyBackend):
        capabilities = {Joins: Divides}

    assert isinstance(Joining().capability(Joins), Divides)
    assert Joining().capability(Divides) is None


def test_a_derived_backend_inherits_overrides_and_leaves_out() -> None:
    class Inherits(Counting):
        pass

    class Overrides(Counting):
        capabilities = {**Counting.capabilities, Memory: Other}

    class LeavesOut(Counting):
        capabilities = {kind: make for kind, make in Counting.capabilities.items() if kind is not Memory}

    assert type(Inherits().capability(Memory)) is Counted
    assert type(Overrides().capability(Memory)) is Other
    assert LeavesOut().capability(Memory) is None


# -- brought by another plugin ----------------------------------------------------------------------------------------


@pytest.fixture
def bring(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs the entry point of a distribution that brings a capability for the framework `tiny`."""
    entries: list[object] = []
    monkeypatch.setattr(distributions, "entry_points", lambda group: entries if group == CAPABILITIES else ())

    def install(kind: type, make: object, distribution: str = "anyaccel-stranger") -> None:
        entries.append(entry(f"tiny.{capability_name(kind)}", lambda: make, distribution))

    return install


def loaded_tiny(backend: TinyBackend) -> TinyBackend:
    Registry(NumpyBackend, lambda: [entry("tiny", plugin_module("tiny", backends=lambda: [backend]))]).load()
    return backend


def test_a_plugin_brings_a_capability_for_the_framework_of_another(bring: Callable[..., None]) -> None:
    bring(Memory, Counted)
    backend = loaded_tiny(TinyBackend("tiny"))
    memory = backend.capability(Memory)
    assert isinstance(memory, Counted)
    assert memory.backend is backend
    assert backend.capability(Memory) is memory
    assert backend.capability(ProfilesSteps) is None


def test_one_that_cannot_serve_a_backend_gives_none(bring: Callable[..., None]) -> None:
    bring(Memory, lambda backend: None)
    assert loaded_tiny(TinyBackend("tiny")).capability(Memory) is None


def test_the_own_one_comes_first(bring: Callable[..., None]) -> None:
    bring(Memory, Other)
    assert type(loaded_tiny(Counting("tiny")).capability(Memory)) is Counted


def test_two_that_bring_the_same_are_an_error_that_names_both(bring: Callable[..., None]) -> None:
    bring(Memory, Counted, "anyaccel-one")
    bring(Memory, Other, "anyaccel-two")
    bring(ProfilesSteps, Other, "anyaccel-three")
    with pytest.raises(PluginError) as caught:
        loaded_tiny(TinyBackend("tiny")).capability(Memory)
    name = "'tiny.anyaccel.Memory'"
    assert caught.value.problem == f"anyaccel-one 0.1 and anyaccel-two 0.1 both provide {name} in anyaccel.capabilities"
    assert caught.value.hint == "uninstall one"


def test_a_broken_one_is_an_error_where_it_is_asked_for_and_others_go_on(bring: Callable[..., None]) -> None:
    bring(Memory, lambda backend: 7)
    bring(ProfilesSteps, lambda backend: Profiler(backend))
    backend = loaded_tiny(TinyBackend("tiny"))
    with pytest.raises(PluginError, match=r"the entry point tiny\.anyaccel\.Memory returns 7, which is not a Memory"):
        backend.capability(Memory)
    assert isinstance(backend.capability(ProfilesSteps), Profiler)


class Named(TinyBackend):
    """Has a capability of a package that need not be installed."""

    capabilities = {"a_feature.Feature": lambda backend: Feature(backend)}


class Feature(Capability):
    """As if it were in the package `a_feature`."""


Feature.__module__ = "a_feature.of_something"


def test_a_capability_is_named_by_text_where_its_package_need_not_be_installed() -> None:
    backend = loaded_tiny(Named("tiny"))
    assert isinstance(backend.capability(Feature), Feature)
    assert backend.capability(Feature) is backend.capability(Feature)
    assert backend.capability(Memory) is None


class Profiler(ProfilesSteps):
    """Writes the spans that core marks."""

    def profile_steps(self, path, nodes, devices):
        from contextlib import contextmanager

        @contextmanager
        def recording():
            recorder = SpanRecorder()
            try:
                yield recorder.span
            finally:
                write_trace(path, recorder.events)

        return recording()
