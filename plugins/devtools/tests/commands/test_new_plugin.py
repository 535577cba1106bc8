"""`anyaccel new-plugin`: what it refuses, what it writes, and that the project works as it is."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from contextlib import nullcontext
from datetime import date
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest

from anyaccel.backend import Backend
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.plugin_testing import TinyBackend, plugin_module
from anyaccel.registry import registry
from anyaccel_devtools.commands.new_plugin.base_backend import BaseBackend, import_base
from anyaccel_devtools.commands.new_plugin.project_files import PluginOptions, chip_project, import_lines

pytestmark = pytest.mark.slow

SHORT, LONG = "x", "aaaaaaaaaa_bbbbbbbbbb_cccccccc"


class Placing(Backend):
    """A backend without any capability."""

    framework, kinds, import_roots = "placing", ("unit",), ("placing_library",)

    def devices(self):
        return []

    def device_of(self, obj):
        return None

    def place(self, obj, device):
        return obj

    def move(self, tensor, device, *, pinned=False):
        return tensor

    def scope(self, device):
        return nullcontext()

    def device_string(self, device):
        return "unit"


def test_the_name_of_an_installed_package_is_told_how_to_become_a_framework(call, tmp_path):
    answer = call("new-plugin", "pluggy", "--path", str(tmp_path / "chip"))
    assert answer.exit_code == 0
    assert answer.stdout.splitlines()[-1].endswith("run `anyaccel new-plugin pluggy --kind framework`")
    for name, options in (("my_chip", ()), ("pluggy", ("--kind", "framework"))):
        answer = call("new-plugin", name, "--path", str(tmp_path / name), *options)
        assert answer.exit_code == 0 and "is an installed package" not in answer.stdout


# -- bad arguments -----------------------------------------------------------------------------------------------------

NO_NAME = "cannot be the name of a plugin"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("Chip",), (NO_NAME, "lower-case words such as 'chip' or 'my_chip'")),
        (("my-chip",), (NO_NAME,)),
        (("1chip",), (NO_NAME,)),
        (("chip_",), (NO_NAME,)),
        (("a__b",), (NO_NAME,)),
        (("../chip",), (NO_NAME,)),
        (("chip\n",), (NO_NAME,)),
        (("",), (NO_NAME,)),
        (("class",), (NO_NAME, "other than keywords of Python")),
        (("a" * 31,), (NO_NAME, "at most 30 characters")),
        (("numpy",), ("the name 'numpy' is reserved by core", "cpu", "sim")),
        (("cpu",), ("the name 'cpu' is reserved",)),
        (("sim",), ("the name 'sim' is reserved",)),
        (("cuda",), ("the name 'cuda' is reserved",)),
        (("torch",), ("the name 'torch' is taken by anyaccel-torch", "new-plugin NAME --framework torch")),
        (("keras",), ("the name 'keras' is taken",)),
        (("chip", "--author", "A\nB"), ("cannot be the name of an author", "one line")),
        (("chip", "--author", " A"), ("cannot be the name of an author",)),
        (("chip", "--framework", "nope"), ("no plugin for the framework 'nope' is loaded",)),
        (("chip", "--base", "nope"), ("'nope' is not of the form MODULE:CLASS", "anyaccel.numpy_backend:NumpyBackend")),
        (("chip", "--base", "a-b:C"), ("'a-b:C' is not of the form MODULE:CLASS",)),
        (("chip", "--base", "not_there:C"), ("the base not_there:C cannot be imported (ModuleNotFoundError",)),
        (("chip", "--base", "anyaccel.numpy_backend:Nope"), ("cannot be imported (AttributeError",)),
        (
            ("chip", "--base", "anyaccel.numpy_backend:Dense"),
            ("anyaccel.numpy_backend:Dense is <class", "not a backend class"),
        ),
        (("chip", "--base", "anyaccel.backend:Backend"), ("is an abstract class without device_of",)),
        (
            ("chip", "--base", "anyaccel.numpy_backend:NumpyBackend", "--framework", "other"),
            ("anyaccel.numpy_backend:NumpyBackend runs numpy, not other",),
        ),
        (("chip", "--kind", "framework", "--base", "a:B"), ("a new framework has no base", "--kind chip")),
        (("chip", "--kind", "framework", "--framework", "torch"), ("the name 'torch' is taken",)),
        (("chip", "--kind", "framework", "--framework", "A b"), ("cannot be the name of a framework",)),
    ],
)
def test_bad_arguments_are_refused_and_nothing_is_written(arguments, words, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = call("new-plugin", *arguments)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert all(word in answer.stderr for word in words), answer.stderr
    answer = call("new-plugin", *arguments, "--json")
    assert (answer.exit_code, answer.stderr) == (2, "")
    assert all(word in json.loads(answer.stdout)["error"]["message"] for word in words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise RuntimeError('no\\ndriver')", ("cannot be imported (RuntimeError: no driver)",)),
        ("raise SystemExit(3)", ("cannot be imported (SystemExit: 3)",)),
        (
            "from anyaccel.numpy_backend import NumpyBackend\n"
            "class C(NumpyBackend):\n    def __init__(self): raise OSError('no board')",
            ("cannot be constructed without arguments (OSError: no board)",),
        ),
    ],
)
def test_a_base_that_cannot_be_used_is_reported(source, words, call, tmp_path, monkeypatch):
    tmp_path.joinpath("odd_base.py").write_text(source, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_base", raising=False)
    answer = call("new-plugin", "chip", "--base", "odd_base:C", "--path", str(tmp_path / "p"))
    assert answer.exit_code == 2 and all(word in answer.stderr for word in words), answer.stderr
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        (TinyBackend("tiny", ["unit:0"]), "TinyBackend sets framework and kinds on its objects, not on the class"),
        (
            type("Inner", (NumpyBackend,), {"framework": "tiny", "__qualname__": "make.<locals>.Inner"})(),
            "is nested and cannot be imported by name",
        ),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_backend_that_no_class_can_derive_from_is_refused(backend, words, call, tmp_path):
    registry().register(plugin_module("tiny", backends=lambda: [backend]), "tiny")
    answer = call("new-plugin", "chip", "--framework", backend.framework, "--path", str(tmp_path / "p"))
    assert answer.exit_code == 2 and words in answer.stderr
    assert not (tmp_path / "p").exists()


def test_a_folder_that_is_not_empty_is_not_changed(call, tmp_path):
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "mine").write_text("kept")
    answer = call("new-plugin", "chip", "--path", str(folder))
    assert answer.exit_code == 2 and f"{folder} exists and is not empty" in answer.stderr
    assert [each.name for each in tmp_path.rglob("*")] == ["p", "mine"]
    answer = call("new-plugin", "chip", "--path", str(folder / "mine"))
    assert answer.exit_code == 2 and "exists and is not a folder" in answer.stderr
    answer = call("new-plugin", "chip", "--path", str(tmp_path / "no" / "where"))
    assert answer.exit_code == 2 and f"the folder {tmp_path / 'no'} does not exist" in answer.stderr


def test_nothing_is_left_if_writing_fails(call, tmp_path, monkeypatch):
    written = []

    def full(self, *arguments, **settings):
        written.append(self)
        if len(written) == 5:
            raise OSError(28, "No space left on device")
        return 0

    monkeypatch.setattr(Path, "write_text", full)
    answer = call("new-plugin", "chip", "--path", str(tmp_path / "p"))
    assert answer.exit_code == 2
    assert "cannot be written" in answer.stderr and "No space left on device" in answer.stderr
    assert len(written) == 5 and not list(tmp_path.iterdir())


# -- what is written ---------------------------------------------------------------------------------------------------


@pytest.fixture
def made(call, tmp_path):
    """`made("chip", ...)` writes a project; gives its folder."""

    def run(name: str, *arguments: str) -> Path:
        folder = tmp_path / f"project-{name}"
        answer = call("new-plugin", name, "--path", str(folder), *arguments)
        assert (answer.exit_code, answer.stderr) == (0, "")
        return folder

    return run


def test_by_default_it_writes_into_the_working_directory_and_says_what_is_next(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = call("new-plugin", "my_chip")
    assert answer.exit_code == 0
    assert [each.name for each in tmp_path.iterdir()] == ["anyaccel-my-chip"]
    first, *rest = answer.stdout.splitlines()
    assert first.endswith(
        "anyaccel-my-chip: 16 files of the chip my_chip, derived from anyaccel.numpy_backend:NumpyBackend"
    )
    assert rest[0] == f"  cd {tmp_path / 'anyaccel-my-chip'}"
    assert "  anyaccel conform my_chip" in rest
    assert rest[4] == "What to replace; `grep -rn REPLACE .` finds what is left:"
    marked = {line.split(":")[0].strip() for line in rest[5:]}
    assert {"README.md", "src/anyaccel_my_chip/backend.py", "tests/test_training.py"} <= marked


@pytest.mark.parametrize("kind", ["chip", "framework"])
def test_every_marked_place_is_listed_with_its_line(kind, made, call, tmp_path):
    answer = call("new-plugin", "unit", "--kind", kind, "--path", str(tmp_path / "p"), "--json")
    listed = {(place["file"], place["line"]) for place in json.loads(answer.stdout)["replace"]}
    marked = {
        (file.relative_to(tmp_path / "p").as_posix(), number)
        for file in (tmp_path / "p").rglob("*")
        if file.is_file()
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if "REPLACE:" in line
    }
    assert listed == marked and len(marked) >= 8
    assert all(place["text"] for place in json.loads(answer.stdout)["replace"])


def test_all_that_knows_the_stand_in_is_marked(made):
    """Each function of the plugin and of its tests that uses a name of the library in the framework's place."""
    folder = made("unit", "--kind", "framework")
    own_names = {"library", "weights", "values", "place", "to", "spec", "run", "UNIT"}
    used = {"id": lambda node: node.id, "attr": lambda node: node.attr}
    for file in [*folder.glob("src/anyaccel_unit/*.py"), *folder.glob("tests/*.py")]:
        text = file.read_text("utf-8")
        if file.name == "models.py":
            assert "REPLACE: build it from layers of your framework" in text
            continue
        for function in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)):
            names = {get(node) for node in ast.walk(function) for key, get in used.items() if hasattr(node, key)}
            source = "\n".join(text.splitlines()[function.lineno - 4 : function.end_lineno])
            assert not names & own_names or "REPLACE:" in source, f"{file.name}: {function.name}"


def test_an_empty_folder_is_filled(made, tmp_path):
    (tmp_path / "project-chip").mkdir()
    assert (made("chip") / "pyproject.toml").is_file()
    assert [each.name for each in tmp_path.iterdir()] == ["project-chip"]


@pytest.mark.parametrize("kind", ["chip", "framework"])
def test_json_lists_the_files(kind, call, tmp_path):
    folder = tmp_path / "p"
    report = json.loads(call("new-plugin", "unit", "--kind", kind, "--path", str(folder), "--json").stdout)
    assert (report["plugin"], report["kind"], report["framework"], report["path"]) == (
        "unit",
        kind,
        "unit",
        str(folder),
    )
    assert report["files"] == sorted(
        str(each.relative_to(folder).as_posix()) for each in folder.rglob("*") if each.is_file()
    )
    for needed in (".github/workflows/ci.yml", "CHANGELOG.md", "LICENSE", "README.md", "src/anyaccel_unit/py.typed"):
        assert needed in report["files"]


@pytest.mark.parametrize("kind", ["chip", "framework"])
def test_the_project_metadata_are_those_of_the_plugin(kind, made):
    author = 'A. "Quoted" Maker \\ Ünit $name'
    folder = made("my_unit", "--kind", kind, "--author", author)
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] == "anyaccel-my-unit"
    assert project["authors"] == [{"name": author}]
    assert project["entry-points"]["anyaccel"] == {"my_unit": "anyaccel_my_unit"}
    assert project["entry-points"]["anyaccel.conformance"] == {"my_unit": "anyaccel_my_unit.conformance:MyUnitSubject"}
    major, minor = version("anyaccel").split(".")[:2]
    assert f"anyaccel>={major}.{minor},<{major}.{int(minor) + 1}" in project["dependencies"]
    assert f"Copyright {date.today().year} {author}" in (folder / "LICENSE").read_text("utf-8")
    for file in [*folder.rglob("*.py"), *folder.rglob("*.md")]:
        assert "$" not in file.read_text("utf-8"), file
    assert "${{ matrix.python }}" in (folder / ".github/workflows/ci.yml").read_text("utf-8")
    assert "REPLACE" in (folder / "src/anyaccel_my_unit/backend.py").read_text("utf-8")


def test_a_chip_plugin_is_short(made):
    """A chip for a known framework is a class of some lines, beside the stand-in."""
    package = made("chip") / "src/anyaccel_chip"
    assert len((package / "backend.py").read_text("utf-8").splitlines()) < 40


def test_a_base_without_capabilities_gives_a_chip_without_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "placing_plugin", sys.modules[__name__])
    base = import_base("placing_plugin:Placing")
    project = chip_project(PluginOptions("chip", "placing"), base)
    text = project["src/anyaccel_chip/stand_in.py"]
    assert "class StandIn(Placing):" in text and 'HOST = "unit"' in text
    assert not [word for word in ("from_host", "def build", "def memory", "numpy") if word in text]
    assert "Experiment" not in project["tests/test_training.py"]


def test_the_base_of_an_installed_framework_is_found(call, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "placing_plugin", sys.modules[__name__])
    monkeypatch.setattr(Placing, "__module__", "placing_plugin")
    registry().register(plugin_module("placing", backends=lambda: [Placing()]), "placing")
    report = json.loads(
        call("new-plugin", "chip", "--framework", "placing", "--path", str(tmp_path / "p"), "--json").stdout
    )
    assert (report["framework"], report["base"]) == ("placing", "placing_plugin:Placing")
    answer = call("new-plugin", "unit", "--framework", "placing", "--path", str(tmp_path / "q"))
    assert answer.exit_code == 2 and "already runs placing on 'unit'" in answer.stderr


def test_a_published_subject_of_the_base_is_derived_from(tmp_path):
    base = BaseBackend(
        cls=NumpyBackend,
        module="lib.backend",
        distribution="anyaccel-lib",
        version="2.7.1",
        subject="lib.kit:LibSubject",
    )
    project = chip_project(PluginOptions("chip", "lib"), base)
    text = project["src/anyaccel_chip/conformance.py"]
    assert "from lib.kit import LibSubject" in text and "class ChipSubject(LibSubject):" in text
    assert '"anyaccel-lib>=2.7,<2.8"' in project["pyproject.toml"]


def test_a_base_of_unknown_version_is_required_as_it_is():
    project = chip_project(
        PluginOptions("chip", "lib"), BaseBackend(cls=NumpyBackend, module="lib", distribution="lib", version="main")
    )
    assert '    "lib",  # has NumpyBackend' in project["pyproject.toml"]


def test_long_imports_are_wrapped_as_linters_want():
    names = ["Word" * 10 + letter for letter in "cab"]
    assert (
        import_lines({"module": names})
        == "from module import (\n" + "".join(f"    {n},\n" for n in sorted(names)) + ")"
    )


def test_every_template_is_used():
    folder = files("anyaccel_devtools.commands") / "templates"
    templates = {f"{kind.name}/{each.name}" for kind in folder.iterdir() for each in kind.iterdir()}
    parts = {name for name in templates if ".part." in name}
    assert len(parts) == 8 and len(templates) == 31


# -- the project works -------------------------------------------------------------------------------------------------


@pytest.fixture
def trial(environment, tmp_path):
    """`trial(folder, "-m", "pytest")`: Python in a generated project, as if the project were installed."""

    def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
        info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir(exist_ok=True)
        info.joinpath("METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", "utf-8"
        )
        groups = project["entry-points"].items()
        lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items()) for group, entries in groups]
        info.joinpath("entry_points.txt").write_text("\n".join(lines), "utf-8")
        # pytest loads only the plugins that the project itself names
        variables = environment(
            ANYACCEL_PLUGINS=",".join(project["entry-points"]["anyaccel"]), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"
        )
        path = os.pathsep.join([str(folder / "src"), variables["PYTHONPATH"]])
        return subprocess.run(
            [sys.executable, "-P", *arguments],
            cwd=folder,
            env={**variables, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


@pytest.mark.parametrize("kind", ["chip", "framework"])
def test_the_project_passes_its_tests_and_conforms(kind, made, trial):
    folder = made("unit", "--kind", kind)
    answer = trial(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "failed" not in answer.stdout and " passed" in answer.stdout
    answer = trial(folder, "-m", "anyaccel", "conform", "unit", "--json")
    assert (answer.returncode, answer.stderr) == (0, "")
    report = json.loads(answer.stdout)
    (backend,) = report["backends"]
    assert (report["distribution"], backend["framework"], backend["device"]) == ("anyaccel-unit", "unit", "unit:0")
    assert backend["subject"] == "anyaccel_unit.conformance:UnitSubject"
    for capability in ("backend", "exchange", "compute", "multi_step"):
        assert backend["capabilities"][capability]["passed"] > 10, capability
    assert backend["capabilities"]["backend"]["not_testable_here"] == 0


def test_the_demo_runs_with_a_new_framework(made, trial):
    answer = trial(
        made("unit", "--kind", "framework"), "-m", "anyaccel", "demo", "--framework", "unit", "--epochs", "1", "--json"
    )
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["device"] == "unit:0"


FAULTS = """
import numpy as np
import unit_stand_in as library
from anyaccel import FeatureSet, ModelGraph, ModelNode
from anyaccel.errors import AnyaccelError

class Faulty(library.Model):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, call, x):
        if self.error and not x.values.all():
            raise self.error
        return x

arrays = {"x": np.zeros((4, 2), "float32"), "ones": np.ones((4, 2), "float32")}
data = FeatureSet.from_dict("data", arrays, ["x", "ones"])
for error, column in ((KeyError("gone"), "x"), (RuntimeError("too low"), "x"), (RuntimeError("too low"), "ones")):
    node = ModelNode("n", Faulty(error), {"x": data.reference(column)})
    try:
        print(ModelGraph([node]).build().shapes.outputs["n"])
    except AnyaccelError as refused:
        print(type(refused).__name__, refused)
try:
    ModelGraph([ModelNode("n", Faulty(None), {"y": data.reference("x")})]).build()
except AnyaccelError as refused:
    print(type(refused).__name__, refused)
"""


def test_whatever_a_model_of_a_new_framework_raises_is_translated(made, trial, tmp_path):
    """Errors of code end at once; after others the model is called with samples of the data."""
    script = tmp_path / "faults.py"
    script.write_text(FAULTS, "utf-8")
    answer = trial(made("unit", "--kind", "framework"), str(script))
    assert answer.returncode == 0, answer.stderr
    code, zeros, samples, keyword = answer.stdout.splitlines()
    assert code.startswith("GraphError node 'n': Faulty raised KeyError in forward, line 14 of ")
    assert zeros.startswith("ShapeError node 'n' does not accept float32[2]") and "too low" in zeros
    assert samples == "('n',)"
    assert keyword.startswith("GraphError node 'n': its model has no input 'y'") and "Available: x" in keyword


@pytest.mark.skipif(find_spec("ruff") is None, reason="ruff is not installed")
@pytest.mark.parametrize("kind", ["chip", "framework"])
@pytest.mark.parametrize("name", [SHORT, LONG])
def test_the_project_passes_ruff(kind, name, made, trial):
    folder = made(name, "--kind", kind)
    for arguments in (("check", "--no-cache"), ("format", "--check", "--no-cache")):
        answer = trial(folder, "-m", "ruff", *arguments)
        assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
@pytest.mark.parametrize("kind", ["chip", "framework"])
def test_the_project_passes_mypy(kind, made, trial, tmp_path):
    answer = trial(made("unit", "--kind", kind), "-m", "mypy", f"--cache-dir={tmp_path / 'cache'}")
    assert answer.returncode == 0, answer.stdout + answer.stderr
