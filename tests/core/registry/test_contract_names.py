"""A plugin built for the old names of the contract fails at load, with one error that names every renamed method."""

from __future__ import annotations

import pytest

from anyaccel.backend import Backend, Compute, Exchange, MultiStepProgram, Program
from anyaccel.contract_names import RENAMED, RENAMED_CLASSES
from anyaccel.errors import PluginError
from anyaccel.testing.fake_plugins import entry, plugin_module
from anyaccel.testing.tiny import TinyBackend

CLASSES = {
    "Backend": (Backend,),
    "Exchange": (Backend, Exchange),
    "Compute": (Backend, Compute),
    "Program": (Program,),
    "MultiStepProgram": (MultiStepProgram,),
}


def old_plugin():
    """The `backends()` of a plugin whose backend class has the old names of three of the contract's classes."""

    class OldBackend(Backend, Exchange, Compute):
        framework = "old"
        kinds = ("cpu",)
        roots = ("old",)

        def take(self, array, device):
            raise NotImplementedError

        def rows(self, column, start, stop, order=None):
            raise NotImplementedError

        def mixes(self, model):
            return "BatchNorm"

    return [OldBackend()]


@pytest.mark.parametrize("name", RENAMED)
def test_a_class_with_old_names_is_refused_with_every_new_one(name):
    assert name in CLASSES, "give this class of the contract its bases in CLASSES"
    old = {old: lambda self: None for old in RENAMED[name]}
    with pytest.raises(PluginError) as caught:
        type("Old", CLASSES[name], {**old, "__module__": "some_plugin"})
    assert "some_plugin.Old uses renamed names of the plugin contract" in caught.value.problem
    assert all(f"{old} -> {new}" in caught.value.problem for old, new in RENAMED[name].items())
    assert caught.value.hint == "rename them, or update the plugin"


@pytest.mark.parametrize("name", RENAMED)
def test_every_new_name_is_in_the_contract_and_no_old_one(name):
    contract = CLASSES[name][-1]
    for old, new in RENAMED[name].items():
        assert not hasattr(contract, old)
        assert hasattr(contract, new) or new in contract.__annotations__


def test_an_old_name_beside_the_new_one_is_a_method_of_the_plugins_own():
    class Both(Program):
        def apply(self):
            return "mine"

        def optimizer_step(self, scale=None):
            return None

    assert Both.apply(None) == "mine"


def test_an_old_name_of_a_mixin_is_seen_too():
    class Mixin:
        def send(self, array, device):
            raise NotImplementedError

    with pytest.raises(PluginError, match=r"Mixed uses renamed names of the plugin contract: send -> copy_async"):
        type("Mixed", (Mixin, Backend, Exchange), {})


def test_an_old_plugin_is_one_error_when_it_is_loaded_and_breaks_no_other(make):
    registry = make(
        entry("old", plugin_module("old", backends=old_plugin), "anyaccel-old", "0.0.9"),
        entry("new", plugin_module("new", backends=lambda: [TinyBackend("new")]), "anyaccel-new"),
    )
    plugins = {plugin.name: plugin for plugin in registry.plugins}
    assert isinstance(plugins["old"].error, PluginError)
    for renamed in (
        "roots -> import_roots",
        "take -> from_host_owned",
        "rows -> gather_rows",
        "mixes -> batch_coupling",
    ):
        assert renamed in plugins["old"].cause
    assert plugins["new"].error is None
    with pytest.raises(PluginError, match=r"take -> from_host_owned.*rename them"):
        registry.register(plugin_module("older", backends=old_plugin), "older")


@pytest.mark.parametrize("old", RENAMED_CLASSES)
@pytest.mark.parametrize("module", ["anyaccel", "anyaccel.backend", "anyaccel.program"])
def test_an_import_of_a_renamed_class_is_a_plugin_error_with_its_new_name(make, module, old):
    def backends():
        exec(f"from {module} import {old}")  # noqa: S102  # the import is what is tested
        return []

    plugin = make(entry("old", plugin_module("old", backends=backends), "anyaccel-old")).plugins[-1]
    assert plugin.cause.startswith(
        f"plugin old imports a renamed class of the plugin contract: {old} -> {RENAMED_CLASSES[old]}."
    )
    assert plugin.hint == "rename it, or update anyaccel-old"


def test_another_failing_import_keeps_its_message(make):
    def backends():
        from anyaccel.backend import no_such_name  # noqa: F401

        return []

    plugin = make(entry("odd", plugin_module("odd", backends=backends), "anyaccel-odd")).plugins[-1]
    assert plugin.cause.startswith("ImportError: cannot import name 'no_such_name'")
