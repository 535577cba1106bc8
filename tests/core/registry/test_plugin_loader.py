"""Broken plugins: each is reported in one line, and none breaks another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from anyaccel import plugin_loader
from anyaccel.backend import Backend
from anyaccel.device import Device
from anyaccel.distributions import check_library
from anyaccel.errors import DeviceUnavailableError, FrameworkError, PluginError
from anyaccel.hookspecs import hookimpl
from anyaccel.plugin_testing import TinyBackend, entry, plugin_module, write_distribution
from anyaccel.registry import Registry


class Lacking(Backend):
    """Forgot everything but its facts and its devices."""

    framework = "lacking"
    kinds = ("cpu",)
    import_roots = ("lacking",)

    def devices(self) -> list[Device]:
        return [Device("cpu")]


def _missing_import() -> ModuleType:
    import no_such_framework_anywhere  # noqa: F401

    raise AssertionError


def _nothing() -> list:
    return []


def _generator() -> object:
    yield Lacking()


def broken_entries() -> list:
    """One entry point for each way to be broken, each from a distribution of its own."""
    ways = {
        "import": _missing_import,
        "misspelt": plugin_module("misspelt", backend=_nothing),
        "argument": plugin_module("argument", epoch_end=lambda run, loss: None),
        "lacking": plugin_module("lacking", backends=lambda: [Lacking()]),
        "theft": plugin_module("theft", backends=lambda: [TinyBackend("good", ("cpu",))]),
        "number": plugin_module("number", backends=lambda: 7),
        "word": plugin_module("word", backends=lambda: "torch"),
        "alien": plugin_module("alien", backends=lambda: [object()]),
        "shadow": plugin_module("shadow", backends=lambda: [TinyBackend("numpy", ("gpu",))]),
        "policy": plugin_module("policy", policies=lambda: ["first"]),
        "exits": SystemExit(3),
    }
    return [entry(name, target, f"anyaccel-{name}", "0.3") for name, target in ways.items()]


def good_entry():
    return entry(
        "a-good", plugin_module("good", backends=lambda: [TinyBackend("good", ("cpu", "gpu:0"))]), "anyaccel-good"
    )


NAMED = {
    "import": ("ModuleNotFoundError", "no_such_framework_anywhere"),
    "misspelt": ("PluginValidationError", "unknown hook 'backend'"),
    "argument": ("PluginValidationError", "loss"),
    "lacking": ("TypeError", "move"),
    "theft": ("refused for good on cpu", "anyaccel-good"),
    "number": ("backends() of plugin number returned int", "not list"),
    "word": ("backends() of plugin word returned str", "not list"),
    "alien": ("offers object", "not a Backend"),
    "shadow": ("offers the framework 'numpy'", "built into anyaccel"),
    "policy": ("policies() of plugin policy returned list", "not dict"),
    "exits": ("SystemExit", "3"),
}


def test_the_good_plugin_works_beside_all_broken_ones(make):
    registry = make(good_entry(), *broken_entries())
    assert registry.frameworks == ("numpy", "good")
    assert registry.find("good", "gpu").device_string(Device("gpu")) == "good gpu 0"
    assert [p.name for p in registry.plugins if not p.is_broken] == ["numpy", "a-good"]


@pytest.mark.parametrize("name", NAMED)
def test_each_broken_plugin_is_named_in_one_line(make, name):
    plugins = {p.name: p for p in make(good_entry(), *broken_entries()).plugins}
    found = plugins[name]
    assert "\n" not in found.cause
    assert all(word in found.cause for word in NAMED[name]), found.cause
    assert found.hint, "a broken plugin without a remedy"
    assert f"anyaccel-{name}" in str(found) and "0.3" in str(found)


@pytest.mark.parametrize("name", NAMED)
def test_a_broken_plugin_breaks_nothing_when_it_comes_first_or_alone(make, name):
    alone = [found for found in broken_entries() if found.name == name and name != "theft"]
    registry = make(*alone)
    assert registry.frameworks == ("numpy",)
    assert registry.serves("numpy", "sim")


@pytest.mark.parametrize("name", ["lacking", "shadow"])
def test_a_refused_plugin_leaves_no_backend_and_no_hook_behind(make, name):
    registry = make(good_entry(), *broken_entries())
    assert not registry.hooks.has_plugin(name)
    assert not registry.serves("lacking", "cpu")
    assert not registry.serves("numpy", "gpu")


def offers(name: str, *backends: Backend, distribution: str = ""):
    return entry(name, plugin_module(name, backends=lambda: list(backends)), distribution or f"anyaccel-{name}")


def test_a_plugin_is_refused_only_for_what_another_has(make):
    newcomer = TinyBackend("good", ("cpu", "xpu"))
    registry = make(good_entry(), offers("new", TinyBackend("new"), newcomer))
    assert registry.find("good", "cpu") is not newcomer
    assert registry.find("good", "xpu") is newcomer and registry.serves("new", "cpu")
    (refused,) = [plugin for plugin in registry.plugins if plugin.is_broken]
    assert refused.name == "new"
    assert refused.cause == "it is refused for good on cpu, which a-good (anyaccel-good 0.1) serves"
    assert refused.hint == "update or uninstall anyaccel-new, or exclude it with ANYACCEL_PLUGINS"


@pytest.mark.parametrize("other", ["a-first", "z-last"])
def test_the_plugin_named_after_a_framework_serves_it_in_any_order_of_loading(make, other):
    home, stranger = TinyBackend("home", ("cpu", "gpu")), TinyBackend("home", ("cpu", "xpu"))
    registry = make(offers("home", home), offers(other, stranger))
    assert registry.find("home", "cpu") is registry.find("home", "gpu") is home
    assert registry.find("home", "xpu") is stranger
    assert {p.name: p.is_broken for p in registry.plugins} == {"numpy": False, "home": False, other: True}
    assert sorted(registry.devices("home")) == [("home", Device(kind)) for kind in ("cpu", "gpu", "xpu")]


def test_an_unavailable_device_names_both_plugins_of_a_conflict(make):
    registry = make(offers("home", TinyBackend("home", ("cpu",))), offers("other", TinyBackend("home", ("cpu",))))
    with pytest.raises(DeviceUnavailableError) as caught:
        registry.serving("home", Device("cpu", 3))
    assert (
        "plugin other (anyaccel-other 0.1) is broken: it is refused for home on cpu, which home (anyaccel-home 0.1)"
        in (str(caught.value))
    )


def test_the_remedy_for_a_missing_import_names_the_module(make):
    found = next(p for p in make(*broken_entries()).plugins if p.name == "import")
    assert found.hint == "install the module 'no_such_framework_anywhere', or uninstall anyaccel-import"


def test_two_plugins_of_one_name_are_both_listed_and_the_first_wins(make):
    first = entry("twice", plugin_module("first", backends=lambda: [TinyBackend("first")]), "anyaccel-a", "1")
    second = entry("twice", plugin_module("second", backends=lambda: [TinyBackend("second")]), "anyaccel-b", "2")
    registry = make(first, second)
    assert registry.frameworks == ("numpy", "first")
    refused = registry.plugins[-1]
    assert "two plugins are called 'twice'" in refused.cause and "anyaccel-a 1" in refused.cause
    assert "anyaccel-b" in refused.hint


def test_a_plugin_cannot_take_the_name_of_the_built_in_one(make):
    registry = make(entry("numpy", plugin_module("fake", backends=lambda: [TinyBackend("other")]), "anyaccel-fake"))
    assert registry.frameworks == ("numpy",)
    assert "two plugins are called 'numpy'" in registry.plugins[-1].cause


def test_a_failing_generator_keeps_its_message(make):
    """`backends` may be a generator; the missing methods of a backend made in it must not read as 'not a list'."""
    registry = make(entry("lazy", plugin_module("lazy", backends=_generator), "anyaccel-lazy"))
    assert "move" in registry.plugins[-1].cause, registry.plugins[-1].cause


def test_of_one_plugin_that_offers_a_pair_twice_the_first_serves(make):
    first = TinyBackend("pair")
    registry = make(offers("pair", first, TinyBackend("pair")))
    assert registry.find("pair", "cpu") is first
    assert "refused for pair on cpu, which pair (anyaccel-pair 0.1) serves" in registry.plugins[-1].cause


def test_a_module_that_two_entry_points_name_is_listed_once_as_good(make):
    module = plugin_module("watcher", epoch_start=lambda run: None)
    registry = make(entry("one", module, "anyaccel-one"), entry("two", module, "anyaccel-two"))
    assert [(p.name, p.error is None) for p in registry.plugins] == [("numpy", True), ("one", True), ("two", False)]


def test_register_by_hand_raises_what_is_wrong(make):
    registry = make(good_entry())
    with pytest.raises(PluginError, match=r"theft is broken: it is refused for good on cpu.*a-good.*uninstall"):
        registry.register(plugin_module("theft", backends=lambda: [TinyBackend("good")]), "theft")
    with pytest.raises(PluginError, match="returned int, not list"):
        registry.register(plugin_module("number", backends=lambda: 7), "number")
    assert [p.name for p in registry.plugins if not p.is_broken] == ["numpy", "a-good"]


def test_register_by_hand_names_a_misspelt_hook_as_a_plugin_error(make):
    with pytest.raises(PluginError, match="unknown hook 'backend'"):
        make().register(plugin_module("misspelt", backend=_nothing), "misspelt")


def test_register_by_hand_serves_at_once(make):
    registry = make()
    assert not registry.serves("late", "cpu")
    registry.register(plugin_module("late", backends=lambda: [TinyBackend("late")]), "late")
    assert registry.find("late").framework == "late"


def test_a_backends_function_without_the_decorator_is_not_silently_ignored(make):
    module = ModuleType("undecorated")
    module.backends = lambda: [TinyBackend("undecorated")]
    found = make(entry("undecorated", module, "anyaccel-undecorated")).plugins[-1]
    assert "hookimpl" in found.cause


def test_the_cause_of_an_error_of_ours_is_one_line_too(make):
    found = make(entry("lines", FrameworkError("two\nlines"), "anyaccel-lines")).plugins[-1]
    assert "\n" not in found.cause


def test_hookimpl_marks_a_hook():
    assert hasattr(hookimpl(lambda: None), "anyaccel_impl")


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        *(("kinds", kinds) for kinds in ("cpu", ("cuda",), ("GPU",), (), (3,), None)),
        *(("framework", framework) for framework in (7, "", None)),
        *(("import_roots", roots) for roots in ("odd", (3,), None)),
        *(("environment", names) for names in ("ODD_DEVICES", 5)),
    ],
)
def test_facts_of_another_type_are_refused(make, fact, value):
    """A text is read letter by letter, and an alias or a capital is never looked up: served, and never found."""
    backend = TinyBackend("odd")
    setattr(backend, fact, value)
    found = make(offers("odd", backend)).plugins[-1]
    assert f"offers a backend with {fact}={value!r}" in found.cause and "tuples of words as kinds" in found.cause
    assert found.hint == "define them as attributes of the class, or update anyaccel-odd"


@pytest.mark.parametrize("fact", ["framework", "kinds", "import_roots", "environment"])
@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(3)], ids=["error", "exit"])
def test_facts_that_raise_are_refused(make, fact, error):
    def fail(self):
        raise error

    facts = {"framework": "odd", "kinds": ("cpu",), "import_roots": ("odd",)} | {fact: property(fail)}
    backend = type("Odd", (TinyBackend,), {**facts, "__init__": lambda self: None})()
    registry = make(offers("odd", backend))
    assert registry.frameworks == ("numpy",)
    assert type(error).__name__ in registry.plugins[-1].cause


def test_a_slow_import_is_said_on_standard_error(make, monkeypatch, capfd):
    monkeypatch.setattr(plugin_loader, "PATIENCE", 0.05)
    make(entry("quick", plugin_module("quick"))).load()

    def slow():
        time.sleep(0.2)
        return plugin_module("slow")

    make(entry("slow", slow)).load()
    expected = "waiting for plugin slow (import); ANYACCEL_PLUGINS sets the plugins to load\n"
    assert capfd.readouterr().err == expected
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


@pytest.mark.parametrize(
    ("installed", "needed", "is_old"),
    [("2.9.1", "2.10", True), ("2.10.0+cpu", "2.10", False), ("2.9.1", "2.8.5", False), ("3.0rc1", "2.10", False)],
)
def test_a_library_older_than_a_plugin_needs_is_an_error_at_its_first_object(
    make: Callable[..., Registry],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    installed: str,
    needed: str,
    is_old: bool,
) -> None:
    """pip compares an extra's versions only where the extra is named: another version could give wrong numbers."""
    monkeypatch.syspath_prepend(tmp_path)
    check_library.cache_clear()
    write_distribution(tmp_path, "anyaccel-tiny", entry_points={}, modules={})
    [metadata] = tmp_path.glob("*/METADATA")
    extras = f'tiny_tiny-gpu>=9; extra == "gpu"\nRequires-Dist: tiny_tiny[all] >={needed},<99; extra == "tiny"'
    metadata.write_text(f"{metadata.read_text('utf-8')}Requires-Dist: {extras}\n", "utf-8")
    write_distribution(tmp_path, "tiny_tiny", entry_points={}, modules={}, version=installed)
    backend = TinyBackend("tiny")
    registry = make(entry("tiny", plugin_module("tiny", backends=lambda: [backend]), "anyaccel-tiny"))
    for _ in range(2):
        if is_old:
            with pytest.raises(PluginError) as caught:
                registry.owner(backend.new(1))
            assert str(caught.value) == (
                "tiny_tiny 2.9.1 is too old: anyaccel-tiny needs 2.10 or later. "
                'Hint: python -m pip install "tiny_tiny>=2.10".'
            )
        else:
            assert registry.owner(backend.new(1)) == "tiny"
