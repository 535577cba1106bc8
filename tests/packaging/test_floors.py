"""The floors of core: modules import only from floors below their own, without circles, and the kernel is closed.

Imports inside functions, those for annotations and texts that name a module count like all others. A feature can be
taken away: what is left imports, places, moves and trains.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

# Lowest first; modules and packages of one line do not import each other. "" is anyaccel/__init__.py.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("suggestions",),
    (
        "printable",
        "install_hints",
        "host_memory",
        "rng",
        "lazy_attributes",
        "interrupts",
        "user_level",
        "version",
    ),
    ("errors", "html", "attribute_hints"),
    ("call_hints", "distributions", "launched"),
    ("arguments", "capability", "containers", "device", "extensions", "formulas"),
    ("specs", "saved_folder", "precision"),
    ("segment",),
    ("program",),
    ("backend", "hookspecs"),
    ("adapter", "machine", "plugin_loader"),
    ("numpy_backend", "registry"),
    ("accelerator", "trackers"),
    ("placement",),
    ("data", "metrics", "plugin_testing"),
    ("graph",),
    ("results",),
    ("phases",),
    ("experiment",),
    ("fitting",),
    ("cli",),
    ("", "__main__"),
)

# What a library needs that only places and moves: NumPy and pluggy, and these modules. The NumPy backend is a plugin;
# the plugin loader names it by text, as an entry point names any other.
KERNEL = {
    *(
        "printable",
        "errors",
        "suggestions",
        "attribute_hints",
        "call_hints",
        "install_hints",
        "html",
        "containers",
        "device",
        "distributions",
        "extensions",
        "capability",
        "version",
    ),
    *(
        "formulas",
        "specs",
        "segment",
        "program",
        "backend",
        "hookspecs",
        "plugin_loader",
        "registry",
        "accelerator",
        "placement",
    ),
}
# The other modules of the top level: tools for plugins, the roof, and the lazy table of public names.
BESIDE_THE_KERNEL = {
    *(
        "arguments",
        "host_memory",
        "rng",
        "lazy_attributes",
        "interrupts",
        "launched",
        "user_level",
        "experiment",
        "plugin_testing",
        "trackers",
    ),
    *("", "__main__"),
}

# The NumPy backend stands high but uses only what a third party's backend could use.
ONLY: dict[str, set[str]] = {
    "numpy_backend": {
        *("printable", "errors", "arguments", "suggestions", "call_hints", "host_memory", "install_hints"),
        *("device", "rng"),
        *("specs", "segment", "program", "precision"),
        *("backend", "capability", "hookspecs", "adapter", "distributions"),
    },
}

LEVEL = {name: level for level, floor in enumerate(FLOORS) for name in floor}


# What may name a module above itself, or the NumPy backend, in a text, as the entry point of any plugin does.
ENTRY_POINTS = {
    "distributions": "machine.system_devices",  # of version 0.1 in requests
    "plugin_loader": "numpy_backend.plugin",
}

# Packages that can be left out, with a name of each that then is an ImportError.
FEATURES = {
    "plugin_testing.py": "",
    "cli": "",
    "results/plots.py": "",
}

# What can be added to training, and is not known to the loop, in `phases`.
LOOP_FEATURES = (
    *("checkpointing", "process_groups", "progress", "callbacks", "compile_policy", "nan_check"),
    *("oom_recovery", "step_listeners", "weight_averaging", "plateau"),
)


@dataclass(frozen=True)
class Import:
    """One import of a core module by another; `when` is "top", "deferred" (inside a function), "typing" or "text"."""

    source: str
    target: str
    line: int
    when: str

    @property
    def ends(self) -> tuple[str, str]:
        """The top-level modules or packages on both ends."""
        return self.source.partition(".")[0], self.target.partition(".")[0]

    def __str__(self) -> str:
        return (
            f"{self.source or '__init__'}, line {self.line}, imports {self.target or 'anyaccel itself'} ({self.when})"
        )


def module_names(sources: Mapping[str, str]) -> dict[str, str]:
    """Dotted names below `anyaccel`, each with its path: `data.table` and `data/table.py`; "" is the package."""
    return {path.removesuffix(".py").removesuffix("__init__").strip("/").replace("/", "."): path for path in sources}


def statements(node: ast.AST, when: str = "top") -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """Every import statement below a node, and when it is carried out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, when
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from statements(child, "deferred")
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from statements(ast.Module(child.body, []), "typing")
            yield from statements(ast.Module(child.orelse, []), when)
        else:
            yield from statements(child, when)


def targets(statement: ast.Import | ast.ImportFrom, package: str, names: Mapping[str, str]) -> Iterator[str]:
    """What of core a statement imports, as dotted names below `anyaccel`."""
    if isinstance(statement, ast.Import):
        found = [alias.name for alias in statement.names]
    else:
        above = ".".join(["anyaccel", *package.split(".")][: -(statement.level - 1) or None]).strip(".")
        base = ".".join(filter(None, [above if statement.level else "", statement.module or ""]))
        found = [f"{base}.{alias.name}" for alias in statement.names]
    for name in found:
        first, _, rest = name.partition(".")
        if first == "anyaccel":
            yield rest if rest in names else rest.rpartition(".")[0]


def named_in_texts(source: str) -> Iterator[tuple[str, int]]:
    """Modules below `anyaccel` that texts of a module name as a whole, such as `"anyaccel.data:rows"`, and their lines.

    Docstrings, and what functions print or explain, name modules among other words, and do not count.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = re.fullmatch(r"anyaccel\.([\w.]+)(?::\w+)?", node.value)
            if found:
                yield found[1], node.lineno


def imports(sources: Mapping[str, str]) -> list[Import]:
    """Every import of core by core."""
    names = module_names(sources)
    texts = [
        Import(name, text, line, "text")
        for name, path in names.items()
        for text, line in named_in_texts(sources[path])
        if text in names
    ]
    return texts + [
        Import(name, target, statement.lineno, when)
        for name, path in names.items()
        for statement, when in statements(ast.parse(sources[path]))
        for target in targets(statement, name if path.endswith("__init__.py") else name.rpartition(".")[0], names)
    ]


def goes_up(found: Import) -> bool:
    """Whether an import breaks the order of the floors."""
    low, high = found.ends
    if low == high or low not in LEVEL or ENTRY_POINTS.get(found.source) == found.target:
        return False
    if low in ONLY:
        return high not in ONLY[low]
    return LEVEL.get(high, len(FLOORS)) >= LEVEL[low]


def circle(found: Iterable[Import]) -> list[str]:
    """The modules of an import circle, empty if there is none."""
    graph: dict[str, set[str]] = {}
    for each in found:
        if each.source != each.target:
            graph.setdefault(each.source, set()).add(each.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def packages(sources: Mapping[str, str]) -> dict[str, str]:
    """The docstring of each package on a floor."""
    inits = {path.partition("/")[0]: text for path, text in sources.items() if re.fullmatch(r"\w+/__init__\.py", path)}
    return {name: ast.get_docstring(ast.parse(text)) or "" for name, text in inits.items()}


def stands_on(docstring: str) -> str:
    """The paragraph, or the rest of it, in which a docstring says what its package stands on; empty if it does not."""
    found = re.search(r"[Ss]tands\s+on\s(.*?)(?:\n\n|$)", docstring, re.DOTALL)
    return found.group(1) if found else ""


def test_every_module_stands_on_a_floor(core_sources: dict[str, str]) -> None:
    missing = {name.partition(".")[0] for name in module_names(core_sources)} - LEVEL.keys()
    assert not missing, "give these a place in FLOORS"


def test_imports_go_down(core_sources: dict[str, str]) -> None:
    assert not [str(each) for each in imports(core_sources) if goes_up(each)]


def test_no_import_goes_in_a_circle(core_sources: dict[str, str]) -> None:
    assert not circle(each for each in imports(core_sources) if each.when != "text")


def test_the_top_level_is_the_kernel_and_what_is_named_beside_it(core_sources: dict[str, str]) -> None:
    top = {name for name, path in module_names(core_sources).items() if "/" not in path}
    assert top == KERNEL | BESIDE_THE_KERNEL


def test_the_kernel_imports_only_the_kernel(core_sources: dict[str, str]) -> None:
    inside = [each for each in imports(core_sources) if each.source in KERNEL]
    inside = [each for each in inside if ENTRY_POINTS.get(each.source) != each.target]
    assert inside
    assert not [str(each) for each in inside if each.target not in KERNEL]


def test_the_numpy_backend_is_reached_as_a_plugin_alone(core_sources: dict[str, str]) -> None:
    """The roof offers its public names; generated projects and `--base` name it as text of theirs."""
    users = {each.source for each in imports(core_sources) if each.target.startswith("numpy_backend")}
    outside = {name for name in users if not name.startswith("numpy_backend")}
    of_numpy = {source for source, target in ENTRY_POINTS.items() if target.startswith("numpy_backend")}
    assert outside == {"", *of_numpy}


def test_the_loop_and_the_executor_import_no_feature_of_training(core_sources: dict[str, str]) -> None:
    """Features act on the loop as its extensions, which the loop's factory chooses."""
    names = module_names(core_sources)
    features = {f"phases.{name}" for name in LOOP_FEATURES}
    assert features <= names.keys()
    wrong = [
        str(each)
        for each in imports(core_sources)
        if each.source in ("phases.train_loop", "phases.loop_extension") or each.source.startswith("phases.executor")
        if any(f"{each.target}.".startswith(f"{feature}.") for feature in features)
    ]
    assert not wrong


def test_no_module_sets_what_another_reads(core_sources: dict[str, str]) -> None:
    """`other_module.name = ...` would be an import that goes up; what registers itself calls a function."""
    found = []
    for path, text in core_sources.items():
        tree = ast.parse(text)
        aliases = [it for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import) for it in node.names]
        modules = {it.asname or it.name for it in aliases} & {
            name.rpartition(".")[2] for name in module_names(core_sources)
        }
        for node in ast.walk(tree):
            targets_of = node.targets if isinstance(node, ast.Assign) else []
            if any(isinstance(it, ast.Attribute) and ast.unparse(it.value) in modules for it in targets_of):
                found.append(f"{path}, line {node.lineno}: {ast.unparse(node)}")
    assert not found


TRAIN = """
import sys
import numpy as np
import anyaccel as aa

assert aa.__file__.startswith(sys.argv[1]), aa.__file__
rng = np.random.default_rng(0)
rows = {"x": rng.normal(size=(40, 3)).astype("float32"), "y": rng.integers(0, 2, 40)}
net = aa.SequentialMLP([4], 2)
assert aa.place(net, aa.Accelerator("cpu")) is net and aa.move(rows, "cpu")["x"] is rows["x"]
data = aa.FeatureSet.from_dict("data", rows, ["x"], ["y"])
data.split_random({"train": 0.8, "test": 0.2}, seed=0)
graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference())], "adam")
train = aa.TrainPhase("train", data="train", losses=[aa.AppliedLoss("cross_entropy", on="net")], batch_size=8, epochs=2)
experiment = aa.Experiment("without", graph, progress="none")
assert len(experiment.run_phase(train).epochs) == 2
assert "train" in str(experiment.plan(train)) and experiment._repr_html_() and data._repr_html_()
result = experiment.run_phase(aa.EvalPhase.from_split("test", split="test", metrics=["accuracy"]))
assert 0 <= result.metrics["accuracy"] <= 1
fitted = aa.fit(aa.SequentialMLP([4], 2), (rows["x"], rows["y"]), loss="cross_entropy", epochs=2, progress="none")
assert len(fitted.predict(rows["x"])) == 40
for name in sys.argv[2:]:
    try:
        getattr(aa, name)
    except ImportError as error:
        assert f"anyaccel.{name} is in anyaccel." in str(error) and "not installed" in str(error), error
    else:
        raise AssertionError(name)
"""


@pytest.mark.parametrize("feature", [*FEATURES, "+".join(FEATURES)])
def test_a_feature_can_be_taken_away(root: Path, tmp_path: Path, feature: str) -> None:
    copied = tmp_path / "anyaccel"
    shutil.copytree(root / "core/src/anyaccel", copied, ignore=shutil.ignore_patterns("__pycache__"))
    for part in feature.split("+"):
        assert (copied / part).exists()
        shutil.rmtree(copied / part) if (copied / part).is_dir() else (copied / part).unlink()
    names = [FEATURES[part] for part in feature.split("+") if FEATURES[part]]
    code = [sys.executable, "-P", "-c", TRAIN, str(tmp_path), *names]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "ANYACCEL_PLUGINS": ""}
    done = subprocess.run(code, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr


def test_the_kernel_places_and_moves_without_arrow_rich_and_click() -> None:
    code = """
import os, sys
os.environ["ANYACCEL_PLUGINS"] = ""
for name in ("pyarrow", "rich", "click", "pandas"):
    sys.modules[name] = None  # an import of it fails
import numpy as np
import anyaccel
from anyaccel.numpy_backend.module import Module

batch = {"x": np.ones(3), "label": "a"}
assert anyaccel.move(batch, "cpu") is batch
assert anyaccel.place(batch["x"], anyaccel.Accelerator("cpu")) is batch["x"]
assert str(anyaccel.device_of(batch)) == "cpu:0"
assert [str(device) for device in anyaccel.devices()] == ["cpu:0"] == [str(anyaccel.best_device())]
with anyaccel.scope("cpu", "numpy"):
    pass
print(*sorted(name for name in sys.modules if name.startswith("anyaccel.") and name.count(".") == 1))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = {name.removeprefix("anyaccel.") for name in done.stdout.split()}
    assert loaded <= KERNEL | BESIDE_THE_KERNEL | {"adapter", "numpy_backend", "precision"}


def test_every_package_says_what_it_offers_and_what_it_stands_on(core_sources: dict[str, str]) -> None:
    """Its docstring has a sentence 'Stands on ...' that names every package it uses."""
    docstrings = packages(core_sources)
    assert all(len(text) > 40 for text in docstrings.values())
    unnamed = {
        f"{source} stands on {target}"
        for source, target in (it.ends for it in imports(core_sources) if it.when != "text")
        if source in docstrings and target in docstrings and source != target
        if not re.search(rf"\b{target}\b|all\s+other\s+packages", stands_on(docstrings[source]))
    }
    assert not unnamed
    assert not [name for name, text in docstrings.items() if not stands_on(text)]


@pytest.mark.parametrize(
    ("sources", "bad"),
    [
        ({"device.py": "from anyaccel.errors import E", "errors.py": ""}, False),
        ({"errors.py": "from anyaccel.device import D", "device.py": ""}, True),
        ({"errors.py": "from .device import D", "device.py": ""}, True),
        ({"errors.py": "from . import device", "device.py": ""}, True),
        ({"errors.py": "import anyaccel.device", "device.py": ""}, True),
        ({"errors.py": "from anyaccel import Device", "__init__.py": ""}, True),
        ({"errors.py": "def f():\n    from anyaccel.device import D", "device.py": ""}, True),
        ({"errors.py": "if TYPE_CHECKING:\n    from anyaccel.device import D", "device.py": ""}, True),
        ({"accelerator.py": "x = f('anyaccel.placement')", "placement.py": ""}, True),
        ({"accelerator.py": "x = f('anyaccel.placement:move')", "placement.py": ""}, True),
        ({"placement.py": "x = f('anyaccel.accelerator')", "accelerator.py": ""}, False),
        ({"accelerator.py": "def f():\n    from anyaccel.placement import move", "placement.py": ""}, True),
        ({"backend.py": "from anyaccel.registry import R", "registry.py": ""}, True),
        ({"numpy_backend/__init__.py": "from ..registry import r", "registry.py": ""}, True),
        ({"numpy_backend/b.py": "def f():\n    from ..graph import G", "graph/__init__.py": ""}, True),
        (
            {
                "numpy_backend/b.py": "from ..device import D\nfrom .c import d",
                "numpy_backend/c.py": "",
                "device.py": "",
            },
            False,
        ),
    ],
)
def test_the_check_sees_arrows_up(sources: dict[str, str], bad: bool) -> None:
    assert any(goes_up(each) for each in imports(sources)) is bad


@pytest.mark.parametrize(
    "back",
    [
        "from anyaccel.data.a import y",
        "def f():\n    from anyaccel.data.a import y",
        "if TYPE_CHECKING:\n    from .a import y",
    ],
)
def test_the_check_sees_circles(back: str) -> None:
    sources = {"data/a.py": "from .b import x", "data/b.py": back}
    assert set(circle(imports(sources))) == {"data.a", "data.b"}
