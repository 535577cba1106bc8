"""Capabilities of backends: their own, inherited ones, and those that other plugins bring."""

from __future__ import annotations

from pathlib import Path

import pytest

import anyaccel as aa
from anyaccel import registry as registry_module
from anyaccel.adapter.step_profiler import ProfilesSteps, SpanRecorder, read_trace, write_trace
from anyaccel.backend import Memory, MemoryInfo, capabilities
from anyaccel.device import Device
from anyaccel.errors import CapabilityError, PluginError
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.registry import Registry
from anyaccel.replicas import Replicate, ShardParameters
from anyaccel.testing.fake_plugins import entry, plugin_module, write_distribution
from anyaccel.testing.tiny import TinyBackend

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


class Shards(ShardParameters):
    """Divides nothing."""

    replica_group = unshardable_reason = sharded_blocks = build_sharded = lambda self, *arguments: None


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
        capabilities = {ShardParameters: Shards}

    backend = Dividing()
    assert backend.capability(Replicate) is backend.capability(ShardParameters) is not None

    class Joining(TinyBackend):
        capabilities = {Replicate: Shards}

    assert isinstance(Joining().capability(Replicate), Shards)
    assert Joining().capability(ShardParameters) is None


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


def bringing(name: str, kind: type, make: object) -> object:
    """The entry point of a plugin that brings a capability for the framework `tiny`."""
    brings = lambda backend: {kind: make} if backend.framework == "tiny" else {}  # noqa: E731
    return entry(name, plugin_module(name, capabilities=brings), f"anyaccel-{name}")


def offering(backend: TinyBackend) -> object:
    return entry("tiny", plugin_module("tiny", backends=lambda: [backend]), "anyaccel-tiny")


def test_a_plugin_brings_a_capability_for_the_framework_of_another() -> None:
    backend = TinyBackend("tiny")
    known = Registry(NumpyBackend, lambda: [offering(backend), bringing("stranger", Memory, Counted)])
    known.load()
    memory = backend.capability(Memory)
    assert isinstance(memory, Counted)
    assert memory.backend is backend
    assert backend.capability(Memory) is memory
    assert backend.capability(ProfilesSteps) is None
    assert not any(plugin.is_broken for plugin in known.plugins)


def test_it_is_asked_once_for_a_backend_and_only_where_something_is_lacking() -> None:
    asked = []

    def brings(backend: object) -> dict:
        asked.append(backend)
        return {}

    tiny, counting = TinyBackend("tiny"), Counting("counting")
    module = plugin_module("stranger", capabilities=brings)
    known = Registry(
        NumpyBackend,
        lambda: [
            offering(tiny),
            entry("more", plugin_module("m", backends=lambda: [counting])),
            entry("stranger", module),
        ],
    )
    known.load()
    assert counting.capability(Memory) is not None
    assert asked == []
    for kind in (Memory, ProfilesSteps, Memory):
        assert tiny.capability(kind) is None
    assert asked == [tiny]


def test_the_own_one_comes_first() -> None:
    backend = Counting("tiny")
    known = Registry(NumpyBackend, lambda: [offering(backend), bringing("stranger", Memory, Other)])
    known.load()
    assert type(backend.capability(Memory)) is Counted


def test_two_that_bring_the_same_are_an_error_that_names_both() -> None:
    backend = TinyBackend("tiny")
    strangers = [
        bringing("one", Memory, Counted),
        bringing("two", Memory, Other),
        bringing("three", ProfilesSteps, Other),
    ]
    known = Registry(NumpyBackend, lambda: [offering(backend), *strangers])
    known.load()
    with pytest.raises(PluginError) as caught:
        backend.capability(Memory)
    assert caught.value.problem == (
        "one (anyaccel-one 0.1) and two (anyaccel-two 0.1) both bring the capability Memory for tiny"
    )
    assert caught.value.hint == "uninstall one, or leave it out with ANYACCEL_PLUGINS"


def test_a_plugin_that_is_registered_later_brings_too() -> None:
    backend = TinyBackend("tiny")
    known = Registry(NumpyBackend, lambda: [offering(backend)])
    known.load()
    assert backend.capability(Memory) is None
    known.register(plugin_module("late", capabilities=lambda backend: {Memory: Counted}), "late")
    assert isinstance(backend.capability(Memory), Counted)


@pytest.mark.parametrize(
    ("brings", "cause"),
    [
        (lambda backend: 1 / 0, "capabilities() for the backend of tiny raised ZeroDivisionError: division by zero"),
        (lambda backend: [Memory], "returned [<class 'anyaccel.backend.Memory'>], not a dict of capability classes"),
        (lambda backend: None, "returned None, not a dict of capability classes"),
        (lambda backend: {"memory": Counted}, "not a dict of capability classes"),
        (lambda backend: {Memory: lambda backend: 7}, "its capability Memory for tiny is 7"),
    ],
)
def test_a_broken_one_is_remembered_and_others_go_on(brings: object, cause: str) -> None:
    backend = TinyBackend("tiny")
    known = Registry(
        NumpyBackend,
        lambda: [
            offering(backend),
            entry("broken", plugin_module("broken", capabilities=brings)),
            bringing("sound", ProfilesSteps, lambda backend: Profiler(backend)),
        ],
    )
    known.load()
    assert backend.capability(Memory) is None
    assert isinstance(backend.capability(ProfilesSteps), Profiler)
    (fault,) = [plugin.cause for plugin in known.plugins if plugin.is_broken]
    assert cause in fault


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


_STRANGER = """
from contextlib import contextmanager

from anyaccel import hookimpl

contract = 2


@hookimpl
def capabilities(backend):
    from anyaccel.adapter.step_profiler import ProfilesSteps, SpanRecorder, write_trace

    class Profiler(ProfilesSteps):
        @contextmanager
        def profile_steps(self, path, nodes, devices):
            recorder = SpanRecorder()
            with recorder.span(f"the stranger profiles {self.backend.framework}"):
                yield recorder.span
            write_trace(path, recorder.events)

    return {ProfilesSteps: Profiler} if backend.framework == "numpy" else {}
"""


def test_core_profiles_numpy_by_the_installed_plugin_of_a_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithoutProfiler(NumpyBackend):
        capabilities = {k: make for k, make in NumpyBackend.capabilities.items() if k is not ProfilesSteps}

    write_distribution(
        tmp_path / "site",
        "stranger",
        entry_points={"stranger": "stranger_plugin"},
        modules={"stranger_plugin": _STRANGER},
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(registry_module, "_registry", [Registry(WithoutProfiler)])
    monkeypatch.setenv("ANYACCEL_PLUGINS", "stranger")
    data = aa.FeatureSet.from_dict("data", {"x": [[0.0], [1.0]] * 8, "y": [[0.0], [1.0]] * 8}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(), data.reference())], optimizer=aa.Optimizer("sgd"))
    profile = aa.Profile((2, 4), folder=str(tmp_path / "traces"))
    train = aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")], n_epochs=8, callbacks=[profile])
    aa.Experiment("e", graph).run_phase(train)
    (file,) = profile.files
    assert "the stranger profiles numpy" in [event["name"] for event in read_trace(Path(file))]
