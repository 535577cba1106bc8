"""Broken plugins: each is reported in one line, and none breaks another."""

from __future__ import annotations

from types import ModuleType

import pytest

from anyaccel.backend import Backend
from anyaccel.device import Device
from anyaccel.errors import FrameworkError, PluginError
from anyaccel.hookspecs import hookimpl
from anyaccel.testing.fake_plugins import entry, plugin_module
from anyaccel.testing.tiny import TinyBackend


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
    "theft": ("offers good on cpu", "anyaccel-good"),
    "number": ("backends() of plugin number returned int", "not list"),
    "word": ("backends() of plugin word returned str", "not list"),
    "alien": ("offers object", "not a Backend"),
    "shadow": ("offers the framework 'numpy'", "core's own"),
    "policy": ("policies() of plugin policy returned list", "not dict"),
    "exits": ("SystemExit", "3"),
}


def test_the_good_plugin_works_beside_all_broken_ones(make):
    registry = make(good_entry(), *broken_entries())
    assert registry.frameworks == ("numpy", "good")
    assert registry.find("good", "gpu").device_string(Device("gpu")) == "good gpu 0"
    assert [p.name for p in registry.plugins if p.error is None] == ["numpy", "a-good"]


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


@pytest.mark.parametrize("name", ["lacking", "theft", "shadow"])
def test_a_refused_plugin_leaves_no_backend_and_no_hook_behind(make, name):
    registry = make(good_entry(), *broken_entries())
    assert not registry.hooks.has_plugin(name)
    assert not registry.serves("lacking", "cpu")
    assert not registry.serves("numpy", "gpu")


def test_a_plugin_is_refused_as_a_whole_if_another_has_one_of_its_pairs(make):
    both = plugin_module("both", backends=lambda: [TinyBackend("new", ("cpu",)), TinyBackend("good", ("gpu",))])
    registry = make(good_entry(), entry("both", both))
    assert not registry.serves("new", "cpu")


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


def test_one_plugin_that_offers_a_pair_twice_is_refused(make):
    twice = plugin_module("twice", backends=lambda: [TinyBackend("pair"), TinyBackend("pair")])
    registry = make(entry("twice", twice, "anyaccel-twice"))
    assert not registry.serves("pair", "cpu")
    assert "pair on cpu" in registry.plugins[-1].cause


def test_a_module_that_two_entry_points_name_is_listed_once_as_good(make):
    module = plugin_module("watcher", epoch_start=lambda run: None)
    registry = make(entry("one", module, "anyaccel-one"), entry("two", module, "anyaccel-two"))
    assert [(p.name, p.error is None) for p in registry.plugins] == [("numpy", True), ("one", True), ("two", False)]


def test_register_by_hand_raises_what_is_wrong(make):
    registry = make(good_entry())
    with pytest.raises(PluginError, match=r"offers good on cpu.*a-good.*uninstall"):
        registry.register(plugin_module("theft", backends=lambda: [TinyBackend("good")]), "theft")
    assert [p.name for p in registry.plugins] == ["numpy", "a-good"]


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


@pytest.mark.parametrize("kinds", ["cpu", ("cuda",), ("GPU",), ()])
def test_kinds_that_are_not_canonical_words_are_refused(make, kinds):
    """A text is read letter by letter, and an alias or a capital is never looked up: served, and never found."""
    backend = TinyBackend("odd")
    backend.kinds = kinds
    registry = make(entry("odd", plugin_module("odd", backends=lambda: [backend]), "anyaccel-odd"))
    assert registry.plugins[-1].error is not None
    assert "odd" not in registry.frameworks
