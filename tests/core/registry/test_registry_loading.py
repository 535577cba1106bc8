"""Registry: plugins are loaded once, thread-safe, in sorted order, limited by the environment."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from threading import Timer
from types import ModuleType

import pytest

from anyaccel import plugin_loader
from anyaccel.errors import FrameworkError
from anyaccel.install_hints import install_line
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.plugin_loader import SWITCH
from anyaccel.plugin_testing import TinyBackend, entry, plugin_module, write_distribution
from anyaccel.registry import Registry


def offering(framework: str, *devices: str, **facts):
    """An entry point named as its framework, from the distribution anyaccel-FRAMEWORK."""
    hooks = {"backends": lambda: [TinyBackend(framework, devices or ("cpu",), **facts)]}
    return entry(framework, plugin_module(framework, **hooks), f"anyaccel-{framework}")


def test_nothing_is_loaded_before_the_first_lookup():
    asked = []
    registry = Registry(lambda: asked.append("built-in"), lambda: asked.append("entry points"))
    assert not asked
    assert registry is not None


def test_every_plugin_is_listed_once_with_its_distribution_and_version(make):
    registry = make(offering("b"), offering("a"))
    own, *others = registry.plugins
    assert (own.name, own.distribution) == ("numpy", "anyaccel")
    assert [(p.name, p.distribution, p.version) for p in others] == [
        ("a", "anyaccel-a", "0.1"),
        ("b", "anyaccel-b", "0.1"),
    ]
    assert [str(p) for p in others] == ["a (anyaccel-a 0.1)", "b (anyaccel-b 0.1)"]
    assert str(own).startswith("numpy (anyaccel")


def test_a_working_plugin_has_neither_cause_nor_remedy(make):
    assert {(p.cause, p.hint) for p in make(offering("a")).plugins} == {("", "")}


def test_plugins_are_loaded_in_the_order_of_their_names(make):
    names = ["d", "a", "c", "b"]
    assert make(*map(offering, names)).frameworks == ("numpy", "a", "b", "c", "d")


@pytest.mark.parametrize(
    ("switch", "there"),
    [
        ("", ("numpy",)),
        ("  ", ("numpy",)),
        ("b", ("numpy", "b")),
        ("c, a", ("numpy", "a", "c")),
        ("a,,nobody", ("numpy", "a")),
    ],
)
def test_the_environment_limits_what_is_loaded(make, monkeypatch, switch, there):
    monkeypatch.setenv(SWITCH, switch)
    assert make(*map(offering, "abc")).frameworks == there


def test_a_plugin_that_is_switched_off_is_not_even_imported(make, monkeypatch):
    monkeypatch.setenv(SWITCH, "other")
    loaded = []
    make(entry("torch", lambda: loaded.append(1))).load()
    assert not loaded


@pytest.mark.parametrize("n", [8])
def test_concurrent_threads_load_once(make, n):
    loaded, gate = [], threading.Barrier(n)

    def slow():
        time.sleep(0.05)
        loaded.append(threading.get_ident())
        return plugin_module("slow", backends=lambda: [TinyBackend("slow")])

    registry, seen = make(entry("slow", slow)), []

    def ask() -> None:
        gate.wait()
        seen.append(registry.frameworks)

    threads = [threading.Thread(target=ask) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(loaded) == 1
    assert seen == [("numpy", "slow")] * n


def test_a_plugin_may_ask_the_registry_while_it_is_loaded(make):
    """It is answered with what is there so far, and nothing is loaded twice."""
    calls = []

    def backends():
        calls.append(registry.frameworks)
        return [TinyBackend("asking")]

    registry = make(offering("a"), entry("b", plugin_module("b", backends=backends), "anyaccel-b"), offering("c"))
    assert registry.frameworks == ("numpy", "a", "asking", "c")
    assert calls == [("numpy", "a")]


def test_an_interrupted_load_can_be_repeated(make):
    """Ctrl-C while a plugin is imported ends the call, and the next one finds nothing amiss."""
    outcomes = iter([KeyboardInterrupt(), plugin_module("b", backends=lambda: [TinyBackend("b")])])

    def second():
        outcome = next(outcomes)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    registry = make(offering("a"), entry("b", second, "anyaccel-b"))
    with pytest.raises(KeyboardInterrupt):
        registry.load()
    assert registry.frameworks == ("numpy", "a", "b")
    assert [p.cause for p in registry.plugins] == ["", "", ""]


# -- what is really installed ------------------------------------------------------------------------------------------

GOOD = """
from anyaccel.hookspecs import hookimpl
from anyaccel.plugin_testing import TinyBackend

contract = 2

@hookimpl
def backends():
    return [TinyBackend("torch", ("cpu", "gpu:0"))]
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """`installed(name, source)` puts a distribution of that name on the path; a Registry made after finds it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, source: str, entry_name: str = "torch") -> None:
        module = f"fake_{name.replace('-', '_')}_{tmp_path.name}"
        write_distribution(tmp_path, name, entry_points={entry_name: module}, modules={module: source}, version="7.1")

    monkeypatch.setenv(SWITCH, "torch,jax")
    return write


def fresh() -> Registry:
    return Registry(lambda: TinyBackend("numpy"))


def only_fakes(registry: Registry):
    return {p.distribution: p for p in registry.plugins if p.version == "7.1"}


def test_an_installed_distribution_is_found(installed):
    installed("zz-third-party", GOOD)
    found = only_fakes(fresh())["zz-third-party"]
    assert found.name.startswith("torch")
    assert found.version == "7.1"


def in_a_clean_process(folder, question: str) -> str:
    """The answer of a process whose only plugins are those in `folder` (what is installed here must not matter)."""
    code = (
        "from importlib.metadata import distributions\n"
        "import anyaccel.registry as r\n"
        "from anyaccel.plugin_testing import TinyBackend\n"
        f"points = lambda: [e for d in distributions(path=[{str(folder)!r}]) for e in d.entry_points]\n"
        "registry = r.Registry(lambda: TinyBackend('numpy'), points)\n"
        f"try:\n    print({question})\nexcept Exception as error:\n    print(type(error).__name__, error)\n"
    )
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, SWITCH: "torch"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


def test_an_installed_plugin_serves_its_kinds(installed, tmp_path):
    installed("zz-third-party", GOOD)
    assert in_a_clean_process(tmp_path, "registry.kinds('torch')") == "('cpu', 'gpu')"


def test_a_plugin_that_fails_to_import_is_reported_with_name_version_and_cause(installed, tmp_path):
    installed("anyaccel-torch", "import a_framework_that_is_missing")
    said = in_a_clean_process(tmp_path, "registry.find('torch')")
    assert said.startswith("FrameworkError the plugin for torch, torch (anyaccel-torch 7.1), is installed but broken")
    assert "No module named 'a_framework_that_is_missing'" in said
    assert "install the module 'a_framework_that_is_missing', or uninstall anyaccel-torch" in said


def test_a_missing_plugin_is_reported_with_the_install_command(tmp_path):
    said = in_a_clean_process(tmp_path, "registry.find('torch')")
    assert said.startswith("FrameworkError no plugin for the framework 'torch' is installed")
    assert said.endswith(f"Hint: {install_line('anyaccel-torch')}.")


def test_not_installed_and_installed_but_broken_read_differently(make):
    with pytest.raises(FrameworkError) as absent:
        make().find("torch")
    with pytest.raises(FrameworkError) as broken:
        make(entry("torch", ImportError("libcudart.so.12: no such file"), "anyaccel-torch", "2.0")).find("torch")
    assert "is installed but broken" not in str(absent.value) and "pip install" in absent.value.hint
    assert "libcudart.so.12" in str(broken.value) and "pip install" not in broken.value.hint
    assert "anyaccel-torch" in broken.value.hint


def test_a_broken_plugin_is_recognised_by_its_distribution(make):
    registry = make(entry("zz", ImportError("gone"), "anyaccel-torch", "2.0"))
    with pytest.raises(FrameworkError, match="installed but broken"):
        registry.find("torch")


def test_a_broken_plugin_without_a_distribution_is_not_blamed_for_every_unknown_framework(make):
    registry = make(entry("bystander", ImportError("gone")))
    with pytest.raises(FrameworkError, match="no plugin for the framework 'mlx' is installed"):
        registry.find("mlx")


def test_policies_are_found_by_name(make):
    def first(nodes):
        return {}

    registry = make(entry("p", plugin_module("p", policies=lambda: {"first": first}), "anyaccel-p"))
    registry.load()
    assert registry.policies == {"first": (registry.plugins[-1], first)}


def test_a_policy_of_a_name_that_another_plugin_has_is_refused_and_told(make):
    def first(nodes):
        return {}

    plugins = [plugin_module(name, policies=lambda: {"first": first}) for name in ("p", "q")]
    registry = make(*(entry(module.__name__, module, f"anyaccel-{module.__name__}") for module in plugins))
    numpy, holder, newcomer = registry.plugins
    assert registry.policies["first"][0] is holder and not holder.is_broken and not numpy.is_broken
    assert newcomer.cause == "its policy 'first' is refused: p (anyaccel-p 0.1) already offers it"


def test_a_plugin_whose_metadata_are_damaged_is_loaded(make, tmp_path, monkeypatch):
    write_distribution(tmp_path, "anyaccel-dmg", entry_points={"dmg": "dmg"}, modules={"dmg": ""})
    next(tmp_path.glob("*.dist-info")).joinpath("METADATA").unlink()
    monkeypatch.syspath_prepend(tmp_path)
    registry = make(*(found for found in plugin_loader.installed() if found.name == "dmg"))
    assert [(plugin.name, plugin.is_broken) for plugin in registry.plugins] == [("numpy", False), ("dmg", False)]
    assert str(registry.plugins[-1]).startswith("dmg (")


@pytest.mark.parametrize("error", [KeyError("Name"), None])
def test_a_distribution_that_raises_is_told_without_its_name(make, error):
    class Damaged:
        name, value, load = "dmg", "dmg", lambda self: plugin_module("dmg")

        @property
        def dist(self):
            raise error or RuntimeError

    assert str(make(Damaged()).plugins[-1]) == "dmg (not a distribution)"


@pytest.mark.parametrize("missing", ["stderr", "threads"])
def test_plugins_are_loaded_where_there_is_no_standard_error_or_no_thread(make, monkeypatch, missing):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(plugin_loader, "PATIENCE", 0.01)
    monkeypatch.setattr(sys, "stderr", None) if missing == "stderr" else monkeypatch.setattr(Timer, "start", refuse)
    registry = make(entry("slow", lambda: time.sleep(0.1) or plugin_module("slow")))
    assert not registry.plugins[-1].is_broken


def test_anyaccels_own_backends_are_loaded_when_their_framework_is_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = []

    def plugin(name: str, framework: str, kinds: tuple[str, ...] = ("cpu",)) -> object:
        def module() -> object:
            loaded.append(name)
            return plugin_module(name, backends=lambda: [TinyBackend(framework, kinds)])

        return entry(name, module)

    entries = [plugin("jax", "jax"), plugin("mps", "torch", ("mps",)), plugin("odd", "odd"), plugin("torch", "torch")]
    for name in ("torch", "jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    known = Registry(NumpyBackend, lambda: entries)
    assert known.find("numpy").framework == "numpy" and known.hooks is not None
    assert loaded == ["odd"]  # a stranger's plugin may listen to everything
    assert known.find("torch").framework == "torch" and loaded == ["odd", "torch"]
    assert known.kinds("torch") == ("cpu", "mps") and loaded == ["odd", "torch", "mps"]
    assert known.backends_in_use == known.backends_in_use and "jax" not in loaded
    monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))
    assert known.owners(object()) == () and loaded[-1] == "jax"
    in_order = Registry(NumpyBackend, lambda: entries)
    assert known.frameworks == in_order.frameworks == ("numpy", "jax", "torch", "odd")
    assert [plugin.name for plugin in known.plugins] == ["numpy", "jax", "mps", "odd", "torch"]


def test_what_is_interrupted_while_one_is_loaded_is_loaded_again() -> None:
    attempts = []

    def module() -> object:
        attempts.append(1)
        if len(attempts) == 1:
            raise KeyboardInterrupt
        return plugin_module("torch", backends=lambda: [TinyBackend("torch")])

    known = Registry(NumpyBackend, lambda: [entry("torch", module)])
    assert known.find("numpy") is not None
    with pytest.raises(KeyboardInterrupt):
        known.find("torch")
    assert known.find("torch").framework == "torch"
    assert [plugin.status for plugin in known.plugins] == ["ok", "ok"]


FIT = """
import sys
import numpy as np
import anyaccel as aa
rows = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
aa.fit(aa.SequentialMLP(), rows, loss="mse", epochs=1, progress="none").predict(rows[0])
aa.move(aa.place(rows[0], "cpu"), "cpu")
backends = {"anyaccel_torch", "anyaccel_jax", "anyaccel_tensorflow", "anyaccel_mps"}
print(*backends.intersection(sys.modules))
"""


def test_fit_place_and_move_load_no_backend_that_is_not_used() -> None:
    """Those of the other tests are not installed everywhere; here, all that are installed count."""
    done = subprocess.run([sys.executable, "-c", FIT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
