"""Registry: which backend serves what, who owns an object, but the errors where there is not a table."""

from __future__ import annotations

import gc
import sys
import types
import weakref

import pytest

from anyaccel.backend import DeviceInfo
from anyaccel.device import Device
from anyaccel.errors import (
    AmbiguousOwnerError,
    AnyaccelError,
    DeviceUnavailableError,
    FrameworkError,
    NoBackendError,
    PluginError,
)
from anyaccel.install_hints import install_line
from anyaccel.plugin_testing import TinyBackend, entry, plugin_module


def offering(*backends: TinyBackend):
    name = backends[0].framework
    return entry(name, plugin_module(name, backends=lambda: list(backends)), f"anyaccel-{name}")


def raised(error: type[AnyaccelError], call, *args, **options) -> AnyaccelError:
    """The error, of exactly this class, so that its three parts can be read."""
    with pytest.raises(error) as caught:
        call(*args, **options)
    assert type(caught.value) is error
    return caught.value


# -- find --------------------------------------------------------------------------------------------------------------


def test_find_without_a_kind_prefers_the_cpu(make):
    registry = make(offering(TinyBackend("a", ("gpu:0",)), TinyBackend("a", ("cpu",))))
    assert registry.find("a").kinds == ("cpu",)


def test_find_without_a_kind_gives_the_first_kind_without_a_cpu(make):
    registry = make(offering(TinyBackend("a", ("xpu:0",)), TinyBackend("a", ("gpu:0",))))
    assert registry.find("a").kinds == ("xpu",)


def test_two_plugins_serve_one_framework_on_different_kinds(make):
    """MPS is torch on mps: a vendor's plugin adds a kind to a framework that another plugin brought."""
    base = entry("a", plugin_module("a", backends=lambda: [TinyBackend("torch", ("cpu",))]), "anyaccel-torch")
    more = entry("b", plugin_module("b", backends=lambda: [TinyBackend("torch", ("mps",))]), "anyaccel-mps")
    registry = make(base, more)
    assert registry.kinds("torch") == ("cpu", "mps")
    assert registry.find("torch", "mps") is not registry.find("torch", "cpu")
    assert len(registry.backends) == 3


def test_a_kind_without_the_framework_is_an_error_that_lists_its_kinds(make):
    registry = make(offering(TinyBackend("a", ("cpu", "gpu:0"))), offering(TinyBackend("b", ("mps",))))
    error = raised(FrameworkError, registry.find, "a", "mps")
    assert error.problem == "no installed plugin runs a on 'mps'"
    assert error.available == "a on cpu, gpu"
    assert error.hint


def test_a_kind_without_any_plugin_is_an_error(make):
    error = raised(FrameworkError, make().find, "numpy", "hpu")
    assert error.problem == "no installed plugin runs numpy on 'hpu'"


def test_an_unknown_framework_is_an_error_that_lists_the_known_ones(make):
    error = raised(FrameworkError, make(offering(TinyBackend("a"))).find, "pytorhc")
    assert error.problem == "no plugin for the framework 'pytorhc' is installed"
    assert error.available == "numpy, a"
    assert error.hint == "check the spelling, or install its plugin"


def test_a_known_framework_without_plugin_is_an_error_with_the_install_command(make):
    error = raised(FrameworkError, make().kinds, "jax")
    assert error.hint == install_line("anyaccel-jax")
    for name in ("flax", "optax"):
        assert raised(FrameworkError, make().kinds, name).hint == install_line("anyaccel-jax")


def test_another_name_of_a_framework_that_is_installed_is_understood(make):
    registry = make(offering(TinyBackend("torch", ("cpu",))))
    assert raised(FrameworkError, registry.kinds, "pytorch").hint == "did you mean 'torch'?"


def test_serves_never_raises(make):
    registry = make(offering(TinyBackend("a", ("gpu:0",))))
    assert registry.serves("a", "gpu")
    assert not registry.serves("a", "cpu")
    assert not registry.serves("nobody", "cpu")


# -- serving -----------------------------------------------------------------------------------------------------------


def test_serving_gives_the_backend_of_a_usable_device(make):
    registry = make(offering(TinyBackend("a", ("gpu:0", "gpu:1"))))
    assert registry.serving("a", Device("gpu", 1)) is registry.find("a", "gpu")


def test_a_missing_device_is_an_error_with_the_reason_and_the_usable_ones(make):
    """The predecessor took such a device and failed mid-run with the framework's own words."""
    registry = make(offering(TinyBackend("a", ("gpu:0", "gpu:1"), absent="the driver is too old")))
    error = raised(DeviceUnavailableError, registry.serving, "a", Device("gpu", 7))
    assert error.problem == "gpu:7 is not on this machine for a (the driver is too old)"
    assert error.available == "gpu:0, gpu:1"
    assert error.hint == "use one of these, such as 'gpu:0'"


def test_a_kind_without_a_device_is_an_error(make):
    registry = make(offering(TinyBackend("a", ("cpu",), kinds=("cpu", "gpu"))))
    error = raised(DeviceUnavailableError, registry.serving, "a", Device("gpu"))
    assert error.problem == "gpu:0 is not on this machine for a"


def test_a_missing_simulated_device_is_an_error_with_the_call_that_creates_it(make):
    error = raised(DeviceUnavailableError, make().serving, "numpy", Device("sim", 3))
    assert error.hint == "create simulated devices first: anyaccel.simulate(4)"


def test_a_device_of_another_vendor_is_refused_with_the_spelling_for_any(make):
    registry = make(offering(TinyBackend("a", ("gpu:0",), vendor="amd")))
    error = raised(DeviceUnavailableError, registry.serving, "a", Device("gpu"), vendor="nvidia")
    assert error.problem == "gpu:0 is a device of amd, not of nvidia"
    assert error.hint == "write 'gpu:0' for a device of any vendor"


@pytest.mark.parametrize("vendor", ["", "amd"])
def test_a_device_of_the_vendor_that_was_asked_for_is_served(make, vendor):
    registry = make(offering(TinyBackend("a", ("gpu:0",), vendor="amd")))
    assert registry.serving("a", Device("gpu"), vendor=vendor)


def test_an_unknown_vendor_is_accepted(make):
    registry = make(offering(TinyBackend("a", ("gpu:0",), vendor="")))
    assert registry.serving("a", Device("gpu"), vendor="nvidia")


# -- owner -------------------------------------------------------------------------------------------------------------


def test_an_object_belongs_to_the_framework_of_its_class_or_of_a_base_of_it(make):
    backend = TinyBackend("a")
    registry = make(offering(backend))

    class OfTheUser(backend.cell):
        """Lives in a module of the user's."""

    assert registry.owner(backend.new()) == "a"
    assert registry.owner(OfTheUser(1, Device("cpu"))) == "a"


def test_an_object_without_owner_is_an_error_with_its_class(make):
    error = raised(NoBackendError, make().owner, {1, 2})
    assert error.problem == "builtins.set has no backend: no installed plugin supports it"
    assert error.available == "backends for numpy"
    assert "framework=" in error.hint


def test_an_object_of_a_known_framework_is_an_error_with_the_install_command(make):
    tensor = type("Tensor", (), {"__module__": "torch"})()
    error = raised(NoBackendError, make().owner, tensor)
    assert error.problem == "torch.Tensor has no backend: no plugin for the framework 'torch' is installed"
    assert error.hint == install_line("anyaccel-torch")


def test_an_object_whose_plugin_is_broken_is_an_error_with_the_cause(make):
    tensor = type("Array", (), {"__module__": "jaxlib._jax"})()
    registry = make(entry("jax", ImportError("no XLA"), "anyaccel-jax", "1.0"))
    error = raised(NoBackendError, registry.owner, tensor)
    assert "jax (anyaccel-jax 1.0), is installed but broken (ImportError: no XLA)" in str(error)


def test_two_owners_are_an_error_that_names_both(make):
    a, b = TinyBackend("a"), TinyBackend("b")
    both = type("Both", (a.cell, b.cell), {"__slots__": ()})(1, Device("cpu"))
    error = raised(AmbiguousOwnerError, make(offering(a), offering(b)).owner, both)
    assert "belongs to several frameworks: a and b" in error.problem
    assert error.hint == "name one: ModelNode(..., framework='a')"


def test_two_backends_of_one_framework_are_one_owner(make):
    cpu, gpu = TinyBackend("a", ("cpu",)), TinyBackend("a", ("gpu:0",))
    assert make(offering(cpu, gpu)).owners(cpu.new()) == ("a",)


def test_a_backend_whose_framework_is_not_imported_is_not_asked(make, monkeypatch):
    """Nobody imports a framework to find out: while its module is not there, no object can be its own."""
    backend = TinyBackend("absent")
    cell = backend.new()
    monkeypatch.delitem(sys.modules, "tiny_absent")
    asked = []
    monkeypatch.setattr(backend, "owns", lambda obj: asked.append(obj) or True, raising=False)
    assert make(offering(backend)).owners(cell) == () and not asked


class PlainModel:
    """A model of a framework whose models derive from nothing, as tinygrad's: it holds tensors."""

    def __init__(self, *cells):
        self.cells = list(cells)


class OwningByContent(TinyBackend):
    """Owns cells, and whatever holds one of its cells."""

    def owns(self, obj):
        return any(isinstance(value, self.cell) for value in [obj, *getattr(obj, "cells", ())])


def test_a_backend_with_an_owns_of_its_own_is_asked_about_classes_from_elsewhere(make):
    backend = OwningByContent("a")
    registry = make(offering(backend), offering(TinyBackend("b")))
    assert registry.owner(PlainModel(backend.new())) == "a"
    assert registry.owners(PlainModel()) == ()


def test_each_object_of_such_a_class_is_asked_about_and_a_no_is_not_remembered(make):
    a, b = OwningByContent("a"), OwningByContent("b")
    registry, model = make(offering(a), offering(b)), PlainModel()
    assert registry.owners(model) == ()
    model.cells.append(a.new())
    assert registry.owners(model) == ("a",)
    assert registry.owners(PlainModel(b.new())) == ("b",)
    assert registry.owners(PlainModel(a.new(), b.new())) == ("a", "b")


def test_classes_of_a_framework_are_not_asked_about_elsewhere(make):
    a, b = TinyBackend("a"), OwningByContent("b")
    b.owns = lambda obj: isinstance(obj, a.cell)
    assert make(offering(a), offering(b)).owners(a.new()) == ("a",)


def test_texts_numbers_and_containers_are_asked_about_nowhere(make):
    backend = OwningByContent("a")
    assert backend.cell
    asked = []
    backend.owns = lambda obj: asked.append(obj) or False
    registry = make(offering(backend))
    assert {registry.owners(plain) for plain in ("text", 3, 2.5, None, True, {"a": 1}, [1], (2,))} == {()}
    assert not asked and registry.owners(PlainModel()) == () and len(asked) == 1


def test_a_backend_that_owns_everything_gets_nothing_of_others(make):
    greedy, a = TinyBackend("greedy"), TinyBackend("a")
    assert greedy.cell
    greedy.owns = lambda obj: True
    registry = make(offering(greedy), offering(a))
    assert registry.owner(a.new()) == "a"
    assert registry.owners(PlainModel()) == ()
    assert registry.owner(greedy.new()) == "greedy"


def test_a_framework_keeps_the_classes_of_the_module_of_its_name(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "home", types.ModuleType("home"))
    home, stranger = TinyBackend("home"), TinyBackend("stranger")
    home.import_roots = stranger.import_roots = ("home",)
    model = type("Model", (), {"__module__": "home.nn"})()
    assert make(offering(home), offering(stranger)).owners(model) == ("home",)


# -- backends that do something wrong ----------------------------------------------------------------------------------


def fail(error):
    def method(*arguments):
        raise error

    return method


WRONG = {
    "devices raises": ("devices", fail(RuntimeError("no\ndriver")), "raised RuntimeError: no driver"),
    "devices exits": ("devices", fail(SystemExit(3)), "raised SystemExit: 3"),
    "devices is None": ("devices", lambda: None, "raised TypeError: 'NoneType' object is not iterable"),
    "devices are texts": ("devices", lambda: ["cpu"], "returned ('cpu',), not devices of its kinds, each once"),
    "of another kind": ("devices", lambda: [Device("mps")], "not devices of its kinds, each once"),
    "listed twice": ("devices", lambda: [Device("gpu")] * 2, "not devices of its kinds, each once"),
    "info raises": ("device_info", fail(OSError("gone")), "raised OSError: gone"),
    "info is a text": ("device_info", lambda device: "H100", "returned 'H100', not a complete DeviceInfo"),
    "info of numbers": ("device_info", lambda device: DeviceInfo(7), "not a complete DeviceInfo"),
    "reason is None": ("unavailable_reason", lambda device: None, "returned None, not a text"),
    "name is None": ("device_string", lambda device: None, "returned None, not a text"),
    "owns is None": ("owns", lambda obj: None, "returned None, not True or False"),
    "owns raises": ("owns", fail(ValueError("what?")), "raised ValueError: what?"),
}
ARGUMENTS = {"devices": (), "owns": (PlainModel(),)}
STAND_INS = {
    "devices": (),
    "owns": False,
    "device_info": DeviceInfo("gpu:0"),
    "device_string": "gpu:0",
    "unavailable_reason": "",
}


@pytest.mark.parametrize("way", WRONG)
def test_a_wrong_answer_is_replaced_and_remembered_with_the_plugin(make, way):
    name, method, cause = WRONG[way]
    backend = TinyBackend("a", ("gpu:0",))
    setattr(backend, name, method)
    registry = make(offering(backend))
    assert registry.plugins[-1].faults == []
    for _ in range(2):
        assert registry.ask(backend, name, *ARGUMENTS.get(name, (Device("gpu"),))) == STAND_INS[name]
    plugin = registry.plugins[-1]
    assert plugin.is_broken and len(plugin.faults) == 1
    assert plugin.cause.startswith(f"{name}() of its backend for a ") and plugin.cause.endswith(cause)
    assert plugin.hint == "update or uninstall anyaccel-a, or exclude it with ANYACCEL_PLUGINS"


@pytest.mark.parametrize("method", ["devices", "owns"])
def test_an_interrupt_is_not_a_wrong_answer(make, method):
    backend = TinyBackend("a")
    cell = backend.new()
    setattr(backend, method, fail(KeyboardInterrupt()))
    registry = make(offering(backend))
    with pytest.raises(KeyboardInterrupt):
        registry.devices() if method == "devices" else registry.owners(cell)
    assert not registry.plugins[-1].is_broken


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (fail(RuntimeError("no driver")), "raised RuntimeError: no driver"),
        (lambda device: None, "returned None, not a"),
    ],
)
def test_a_required_answer_that_is_wrong_is_an_error_that_names_the_plugin(make, answer, cause):
    backend = TinyBackend("a")
    backend.native_device = answer
    registry = make(offering(backend))
    registry.load()
    error = raised(PluginError, registry.ask, backend, "native_device", Device("cpu"), required=True)
    assert error.problem.startswith(f"plugin a (anyaccel-a 0.1): native_device() of the backend for a {cause}")
    assert error.hint == "update or uninstall anyaccel-a, or exclude it with ANYACCEL_PLUGINS"
    assert registry.plugins[-1].is_broken


def test_an_owns_that_raises_once_is_asked_again(make):
    backend, errors = TinyBackend("a"), [OSError("busy")]
    cell = backend.new()

    def owns(obj):
        if errors:
            raise errors.pop()
        return isinstance(obj, backend.cell)

    backend.owns = owns
    registry = make(offering(backend))
    assert registry.owner(cell) == "a" and not registry.plugins[-1].is_broken


def test_a_framework_that_is_imported_later_is_asked_then(make, monkeypatch):
    """What classes could belong to is remembered, and not which frameworks were there."""
    backend = TinyBackend("late")
    cell = backend.new()
    registry = make(offering(backend))
    module = sys.modules["tiny_late"]
    monkeypatch.delitem(sys.modules, "tiny_late")
    assert registry.owners(cell) == ()
    monkeypatch.setitem(sys.modules, "tiny_late", module)
    assert registry.owners(cell) == ("late",)


def test_classes_are_not_kept_alive(make):
    registry = make(offering(TinyBackend("a")))

    def passing():
        cls = type("Passing", (), {})
        assert registry.owners(cls()) == ()
        return weakref.ref(cls)

    reference = passing()
    gc.collect()
    assert reference() is None


def test_each_object_costs_few_calls(make):
    """Whose an object is, is found for each leaf of what is moved: by a look into a table and one call of `owns`."""
    own, others = OwningByContent("a"), [TinyBackend(f"b{i}") for i in range(20)]
    registry, cell, stranger = make(offering(own), *map(offering, others)), own.new(), PlainModel()
    assert [backend.cell for backend in others]
    for obj, most in ((cell, 40), (stranger, 70)):
        registry.owners(obj)
        calls = []
        sys.setprofile(lambda frame, event, argument, calls=calls: calls.append(event))
        try:
            registry.owners(obj)
        finally:
            sys.setprofile(None)
        assert 0 < len(calls) <= most


def test_a_device_of_a_broken_backend_is_an_error_that_names_plugin_and_cause(make):
    backend = TinyBackend("a", ("gpu:0",))
    backend.devices = fail(RuntimeError("no driver"))
    registry = make(offering(backend), offering(TinyBackend("b", ("gpu:0",))))
    error = raised(DeviceUnavailableError, registry.serving, "a", Device("gpu"))
    assert error.problem == (
        "gpu:0 is not on this machine for a (plugin a (anyaccel-a 0.1) is broken: "
        "devices() of its backend for a raised RuntimeError: no driver)"
    )
    assert registry.devices() == [("numpy", Device(*at)) for at in (("cpu",), ("sim", 0), ("sim", 1))] + [
        ("b", Device("gpu"))
    ]


def test_an_object_of_a_backend_whose_owns_fails_is_an_error_that_names_it(make):
    backend = TinyBackend("a")
    cell, backend.owns = backend.new(), fail(ValueError("what?"))
    error = raised(NoBackendError, make(offering(backend)).owner, cell)
    assert "plugin a (anyaccel-a 0.1) is broken: owns() of its backend for a raised ValueError: what?" in error.problem


def test_backends_need_not_be_hashable_or_comparable(make):
    class Odd(TinyBackend):
        __hash__ = None

        def __eq__(self, other):
            raise TypeError("do not compare me")

    odd = Odd("odd")
    registry = make(offering(odd), offering(TinyBackend("a")))
    assert registry.frameworks == ("numpy", "a", "odd")
    assert registry.find("odd") is odd and len(registry.backends) == 3
    assert registry.owner(odd.new()) == "odd" and len(registry.devices()) == 5


def test_ownership_is_decided_anew_when_a_plugin_is_registered(make):
    registry, backend = make(), TinyBackend("late")
    assert registry.owners(backend.new()) == ()
    registry.register(plugin_module("late", backends=lambda: [backend]), "late")
    assert registry.owner(backend.new()) == "late"


def test_a_class_without_a_module_is_owned_by_nobody(make):
    error = raised(NoBackendError, make().owner, type("Odd", (), {"__module__": None})())
    assert "Odd" in error.problem


# -- hooks -------------------------------------------------------------------------------------------------------------


def test_hooks_of_a_plugin_without_backends_are_called(make):
    seen = []
    registry = make(entry("watch", plugin_module("watch", epoch_start=lambda run: seen.append(run)), "anyaccel-watch"))
    registry.hooks.hook.epoch_start(run=types.SimpleNamespace(epoch=3))
    assert [run.epoch for run in seen] == [3]


def test_offering_hooks_are_called_once_when_the_plugin_is_loaded(make):
    calls = []

    def backends():
        calls.append(1)
        return []

    registry = make(entry("once", plugin_module("once", backends=backends), "anyaccel-once"))
    assert registry.frameworks and registry.plugins and registry.hooks and registry.backends
    assert calls == [1]
