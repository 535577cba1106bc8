"""Hints of registries, plugins, devices, processes, saved folders and the ledger of transfers."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tomllib
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import distributions, hookimpl
from anyaccel.adapter.outer_contexts import LeavesContexts, OuterContexts
from anyaccel.adapter.transfer_observer import ObservesTransfers
from anyaccel.backend import DeviceInfo
from anyaccel.capability import capability_name
from anyaccel.distributions import CAPABILITIES
from anyaccel.errors import CapabilityError, StateError
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.numpy_backend.capabilities import NumpyTransfers
from anyaccel.numpy_backend.ops import NumpyPrecision
from anyaccel.plugin_loader import Plugin
from anyaccel.plugin_testing import TinyBackend, entry, write_distribution
from anyaccel.precision import ComputesPrecision
from anyaccel.registry import Registry
from anyaccel_devtools.commands.conform import find_plugin
from anyaccel_devtools.testing import Subject
from anyaccel_devtools.testing.subject_selection import select_subject
from anyaccel_distributed.launch_options import find_launcher

ROOT = Path(__file__).parents[2]
X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
DATA = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
LOSS = aa.AppliedLoss("mse", on="net")


@pytest.fixture(autouse=True)
def _numpy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands ask no other plugin, which would import its framework."""
    monkeypatch.setenv("ANYACCEL_PLUGINS", "numpy")


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`serve(backend, ...)`: the registry of this process has NumPy and these, from now on."""

    def exchange(*backends: Any) -> Registry:
        registry = Registry(NumpyBackend, lambda: ())
        for i, backend in enumerate(backends):
            module = SimpleNamespace(contract=2, backends=hookimpl(lambda backend=backend: [backend]))
            registry.register(module, f"p{i}")
        monkeypatch.setattr("anyaccel.registry._registry", [registry])
        return registry

    return exchange


def graph(model: Any = None, **settings: Any) -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", model or aa.SequentialMLP(1), DATA.reference(), **settings)], "sgd")


def trained(given: aa.ModelGraph, **settings: Any) -> Any:
    return given.run(aa.TrainPhase("train", data="all", losses=[LOSS], **settings), progress="none")


def test_optimizers(hint: Any) -> None:
    with hint("pass a name, or the optimizer's class, so that every node gets a separate instance"):
        aa.Optimizer(3)
    assert aa.Optimizer("adam").name == "adam"


def test_owners(hint: Any, serve: Any) -> None:
    first, second = TinyBackend("first"), TinyBackend("second")
    serve(first, second)
    both = type("Both", (first.cell, second.cell), {"__slots__": ()})(1, aa.Device("cpu"))
    with hint("name one: ModelNode(..., framework={})"):
        graph(both).build()
    assert aa.ModelNode("net", both, DATA.reference(), framework="first").framework == "first"
    with hint("install the plugin of its framework, or name it: ModelNode(..., framework=...)"):
        graph(object()).build()
    assert aa.ModelNode("net", object(), DATA.reference(), framework="first").framework == "first"
    assert trained(graph(framework="numpy"))


def test_devices_of_frameworks(hint: Any, serve: Any, cli: Any) -> None:
    serve(TinyBackend("cards", ("gpu:0",), vendor="amd"), TinyBackend("empty", (), kinds=("npu",)))
    with hint("write '{}' for a device of any vendor"):
        aa.Accelerator("cuda").check("cards")
    aa.Accelerator("gpu:0").check("cards")
    with hint("run `anyaccel devices` to see why"):
        aa.Accelerator("npu:0").check("empty")
    assert cli("devices").exit_code == 0  # anyaccel devices


def test_what_is_moved(hint: Any, serve: Any) -> None:
    cells = TinyBackend("cells", ("cpu", "xpu:0"))
    serve(cells)
    with hint("name the framework of the new tensor: move(..., framework='...')"):
        aa.move(X, "xpu")
    assert aa.move(X, "cpu", framework="numpy") is not None
    cell = cells.cell(1, aa.Device("cpu"))
    with hint("convert it to a NumPy array first: move(np.asarray(x), ..., framework={})"):
        aa.move([cell], "cpu", framework="numpy")
    x = [1.0]
    assert aa.device_of(aa.move(np.asarray(x), "cpu", framework="numpy")) == aa.Device("cpu")


class Cards(TinyBackend):
    """A framework with two H100."""

    def device_info(self, device: aa.Device) -> DeviceInfo:
        return DeviceInfo("NVIDIA H100 80GB HBM3", vendor="nvidia", total_memory=80 * 10**9)


def test_requests(hint: Any, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(Cards("cards", ("gpu:0", "gpu:1")))
    with hint("request one, or pass it to a TrainPhase and run that with anyaccel run --replicas {} SCRIPT"):
        aa.Accelerator("H100:2").check("cards")
    aa.Accelerator("H100").check("cards")
    phase = aa.TrainPhase("train", data="all", losses=[LOSS], accelerator="sim:0+1")
    place_in(monkeypatch, 0, 3)
    with aa.simulate(2):
        with hint("start the script as anyaccel run --replicas {} SCRIPT"):
            phase.plan(graph())
        for rank in range(2):  # as in the processes of anyaccel run --replicas 2 SCRIPT
            place_in(monkeypatch, rank, 2)
            assert str(phase.plan(graph()).device("net")) == f"sim:{rank}"


def place_in(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    """The variables of a launcher for one of several processes of this machine."""
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": 29500}
    for name, value in {**place, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))


def test_launchers(hint: Any) -> None:
    with hint("install its plugin; in the folder of anyaccel's repository, python -m pip install ./plugins/ray"):
        find_launcher("ray", {})
    settings = tomllib.loads((ROOT / "plugins/ray/pyproject.toml").read_text("utf-8"))  # pip install ./plugins/ray
    assert any("ray" in entries for entries in settings["project"]["entry-points"].values())
    assert find_launcher("ray", {"ray": lambda: print}) is print


def test_numbers_of_16_bits(hint: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    file = tmp_path / "weights.safetensors"
    given = graph()
    given.build()
    names = given.save_weights(file)
    arrays = {name.split("/")[-1]: array for name, array in given.state().items() if "/parameters/" in name}
    header = {"zzz": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + np.ones(1, ml_dtypes.bfloat16).tobytes())
    with monkeypatch.context() as patch, hint("python -m pip install ml_dtypes"):
        patch.setitem(sys.modules, "ml_dtypes", None)
        given.load_weights(file, strict=False)
    assert "ml_dtypes" in importlib.metadata.packages_distributions()["ml_dtypes"] and names and arrays
    with pytest.raises(StateError, match="zzz"):  # it is read
        given.load_weights(file)


def test_places_of_folders(hint: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    given = graph()
    given.build()
    with monkeypatch.context() as patch, hint("python -m pip install fsspec, or use a local path"):
        patch.setitem(sys.modules, "fsspec.core", None)
        given.save("memory://place/graph")
    assert "fsspec" in importlib.metadata.packages_distributions()["fsspec"]
    for place in ("memory://place/graph", tmp_path / "graph"):
        given.save(place)
        assert aa.ModelGraph.load(place, feature_sets=[DATA])


def test_versions_of_folders(hint: Any, tmp_path: Path) -> None:
    given = graph()
    given.build()
    given.save(tmp_path / "graph")
    (file,) = (tmp_path / "graph").rglob("manifest.json")
    written = file.read_text("utf-8")
    manifest = json.loads(written)
    file.write_text(json.dumps({**manifest, "schema_version": 99}), "utf-8")
    with hint("read it with the version of anyaccel that wrote it, or a newer version"):
        aa.ModelGraph.load(tmp_path / "graph", feature_sets=[DATA])
    file.write_text(written, "utf-8")
    assert aa.ModelGraph.load(tmp_path / "graph", feature_sets=[DATA])


class HalfSeen(NumpyTransfers):
    """Not those in kernels."""

    def unobserved_transfers(self) -> list[str]:
        return ["copies inside kernels"]


class Half(NumpyBackend):
    """A framework some of whose transfers cannot be seen."""

    framework = "half"
    import_roots = ("numpy",)
    capabilities = {**NumpyBackend.capabilities, ObservesTransfers: HalfSeen}

    def owns(self, obj: Any) -> bool:
        return False


def test_the_ledger_of_transfers(hint: Any, serve: Any) -> None:
    serve(Half())
    with (
        hint(
            "name the frameworks to check, no_transfers(frameworks=[...]), or import them before; "
            "no_transfers(partial=True) checks only observable transfers"
        ),
        aa.no_transfers(),
    ):
        pass
    with aa.no_transfers(frameworks=["numpy"]), aa.no_transfers(partial=True):
        assert X.sum()
    silent = TinyBackend("silent")
    assert silent.cell  # imports it
    serve(silent)
    with pytest.raises(CapabilityError, match=r"or import them before\.$"), aa.no_transfers():
        pass  # nothing of it can be seen, so that partial=True would be of no use


def test_frameworks_of_the_demo(hint: Any, serve: Any, cli: Any) -> None:
    serve(TinyBackend("empty", (), kinds=("npu",)))
    with hint("install {}, or run `anyaccel devices` to see why it has no device") as printed:
        printed.text = cli("demo", "--framework", "empty").output
    assert cli("devices").exit_code == 0  # anyaccel devices
    assert cli("demo", "--framework", "numpy", "--epochs", "1").exit_code == 0


def test_subjects_of_the_kit(hint: Any) -> None:
    with hint("subclass anyaccel_devtools.testing.Subject"):
        select_subject("numpy", 0, "pathlib:Path", "")
    derived = select_subject("numpy", 0, "anyaccel_devtools.numpy_subject:NumpySubject", "")
    assert issubclass(derived, Subject)


def test_plugins_that_are_broken(hint: Any, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANYACCEL_PLUGINS")
    broken = importlib.metadata.EntryPoint("odd", "json:zzz", "anyaccel")
    registry = Registry(NumpyBackend, lambda: [broken])
    monkeypatch.setattr("anyaccel.registry._registry", [registry])
    with hint("update or uninstall {}, or exclude it with {}") as printed:
        printed.text = cli("plugins").output
    monkeypatch.setenv("ANYACCEL_PLUGINS", "numpy")  # leaves it out
    monkeypatch.setattr("anyaccel.registry._registry", [Registry(NumpyBackend, lambda: [broken])])
    assert "odd" not in cli("plugins").output


def test_plugins_that_are_slow(hint: Any, cli: Any, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    serve()
    slow = Plugin("slow", "anyaccel-slow", "1.0", delays=["its import did not end within 3 s"])
    with hint("allow more time, such as --timeout 300, or exclude it with {} if it never ends"):
        find_plugin("slow", [slow])
    monkeypatch.setenv("ANYACCEL_PLUGINS", "numpy")  # leaves all others out
    assert cli("plugins", "--timeout", "300").exit_code == 0


class TwoPrecisions(NumpyPrecision):
    """Not all that NumPy has."""

    precisions = ("float32", "bf16-mixed")


class Twin(NumpyBackend):
    """NumPy under another name, for nodes that say `framework="twin"`."""

    framework = "twin"
    import_roots = ("twin_models",)
    kinds = ("cpu",)
    capabilities = {**NumpyBackend.capabilities, ComputesPrecision: TwoPrecisions}

    def devices(self) -> list[aa.Device]:
        return [aa.Device("cpu")]

    def owns(self, obj: Any) -> bool:
        return False


def test_losses_between_frameworks(hint: Any, serve: Any) -> None:
    serve(Twin())

    def chain(framework: str | None) -> aa.ModelGraph:
        first = aa.ModelNode("first", aa.SequentialMLP(3), DATA.reference())
        return aa.ModelGraph([first, aa.ModelNode("net", aa.SequentialMLP(3), "first", framework=framework)], "sgd")

    def compared(on: str, other: str) -> Any:
        loss = aa.AppliedLoss("mae", on=on, inputs=["outputs", other])
        return chain("twin").run(aa.TrainPhase("train", data="all", losses=[loss]), progress="none")

    with hint("put the loss on {}, with inputs=['outputs', {}]"):
        compared("first", "net")
    assert compared("net", other="first")  # inputs=['outputs', 'first']


def test_loss_scales_between_frameworks(hint: Any, serve: Any) -> None:
    serve(Twin())

    def mixed(precision: str) -> Any:
        first = aa.ModelNode("first", aa.SequentialMLP(3), DATA.reference(), framework="twin")
        last = aa.ModelNode("net", aa.SequentialMLP(1), "first", precision=precision)
        return trained(aa.ModelGraph([first, last], "sgd"))

    with hint("write precision='bf16-mixed', which needs no loss scale"):
        mixed("fp16-mixed")
    assert mixed(precision="bf16-mixed").loss.size


def test_subjects_that_cannot_be_imported(hint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = (
        "from anyaccel import hookimpl\nfrom anyaccel.plugin_testing import TinyBackend\n\n\n"
        "contract = 2\n\n@hookimpl\ndef backends():\n    return [TinyBackend('odd')]\n"
    )
    right = "from anyaccel_devtools.testing.subject_selection import DerivedSubject as OddSubject\n"
    modules = {"odd_plugin": plugin, "odd_kit": "raise ImportError('no kit')"}
    write_distribution(tmp_path, "anyaccel-odd", entry_points={"odd": "odd_plugin"}, modules=modules)
    with (tmp_path / "anyaccel_odd-0.1.dist-info/entry_points.txt").open("a") as file:
        file.write("[anyaccel.conformance]\nodd = odd_kit:OddSubject\n")
    monkeypatch.setenv("ANYACCEL_PLUGINS", "odd")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def kit() -> Any:
        command = [sys.executable, "-m", "anyaccel", "conform", "odd", "--capability", "backend"]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    with hint("fix {}; run `python -m pytest` in its project for details") as printed:
        printed.text = kit().stderr
    (tmp_path / "test_kit.py").write_text("import odd_kit\n\n\ndef test_it():\n    assert odd_kit.OddSubject\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]  # python -m pytest
    assert (
        "no kit"
        in subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path).stdout
    )
    (tmp_path / "odd_kit.py").write_text(right)
    done = kit()
    assert "the kit cannot run" not in done.stderr and "odd" in done.stdout


def test_variables_of_simulations(hint: Any) -> None:
    script = "import anyaccel as aa\nprint(len(aa.devices('sim')), 'devices')"

    def printed_with(**variables: str) -> str:
        environment = {**os.environ, "ANYACCEL_PLUGINS": "numpy", **variables}
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout + done.stderr

    with hint("set {}=2, or unset it") as printed:
        printed.text = printed_with(ANYACCEL_SIMULATE="two")
    assert "2 devices" in printed_with(ANYACCEL_SIMULATE="2") and "0 devices" in printed_with()


def test_two_plugins_that_bring_one_capability(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"numpy.{capability_name(LeavesContexts)}"
    strangers = [entry(name, lambda: Leaves, distribution) for distribution in ("one", "two")]
    monkeypatch.setattr(distributions, "entry_points", lambda group: strangers if group == CAPABILITIES else ())
    backend = NumpyBackend()
    Registry(lambda: backend, lambda: ()).load()
    with hint("uninstall one"):
        backend.capability(LeavesContexts)
    del strangers[0]  # uninstall one
    assert isinstance(backend.capability(LeavesContexts), Leaves)


class Leaves(LeavesContexts):
    """Leaves none."""

    def leave_contexts(self) -> Any:
        return nullcontext(OuterContexts())


CHIP = """
from anyaccel import hookimpl
from anyaccel.plugin_testing import TinyBackend
{}

@hookimpl
def backends():
    return [TinyBackend("chip")]
"""


def test_a_plugin_of_another_contract(hint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYACCEL_PLUGINS", "chip")

    def loaded(source: str) -> Registry:
        module = ModuleType("chip")
        exec(source, vars(module))  # noqa: S102 - the source of a plugin
        registry = Registry(NumpyBackend, lambda: [entry("chip", module)])
        if registry.plugins[-1].error is not None:
            raise registry.plugins[-1].error
        return registry

    with hint("set contract = {} in its module after converting its capabilities to objects; {}"):
        loaded(CHIP.format(""))
    assert loaded(CHIP.format("contract = 2")).find("chip")  # write contract = 2
    assert (ROOT / "docs/how-to/migrate-plugins.md").exists()  # see docs/how-to/migrate-plugins.md


class OldStyle(TinyBackend, LeavesContexts):
    """Has a capability as a base, as in 0.1."""

    def leave_contexts(self) -> Any:
        return nullcontext(OuterContexts())


class NewStyle(TinyBackend):
    """Names it."""

    capabilities = {LeavesContexts: Leaves}


class Between(NewStyle):
    """Names it, and has the method still."""

    leave_contexts = OldStyle.leave_contexts


class Misnamed(TinyBackend):
    """Names it by a text."""

    capabilities = {"leaves_contexts": Leaves}  # type: ignore[dict-item]


def test_a_backend_with_capabilities_as_its_bases(hint: Any, serve: Any) -> None:
    with hint("add a separate class to capabilities = {{}: ...}; {}"):
        serve(OldStyle("old"))
    with hint("write capabilities = {Memory: ChipMemory}; {}"):
        serve(Misnamed("old"))
    with hint("move it into the class that capabilities names; {}"):
        serve(Between("old"))
    new = NewStyle("new")
    serve(new)  # capabilities = {LeavesContexts: Leaves}, as {Memory: ChipMemory}
    assert isinstance(new.capability(LeavesContexts), Leaves)
