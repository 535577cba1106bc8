"""The floors of core: modules import only from floors below their own, without circles, and the kernel is closed.

Imports inside functions and those for annotations count like all others.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import pytest

# Lowest first; modules and packages of one line do not import each other. "" is anyaccel/__init__.py.
FLOORS: tuple[tuple[str, ...], ...] = (
    (
        "printable",
        "suggestions",
        "install_hints",
        "host_memory",
        "rng",
        "lazy_attributes",
        "extensions",
        "interrupts",
        "user_level",
    ),
    ("errors", "html", "attribute_hints"),
    ("call_hints",),
    ("arguments", "capability", "containers", "device", "display"),
    ("specs", "saved_folder", "planner", "precision"),
    ("segment",),
    ("program",),
    ("backend", "hookspecs"),
    ("adapter", "plugin_loader"),
    ("estimators",),
    ("numpy_backend", "registry"),
    ("accelerator",),
    ("placement",),
    ("data", "metrics", "replicas", "requests", "transfer_ledger"),
    ("graph", "doctor"),
    ("results",),
    ("phases",),
    ("experiment",),
    ("fitting",),
    ("testing",),
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
        "call_hints",
        "install_hints",
        "html",
        "containers",
        "device",
        "extensions",
        "capability",
    ),
    *("specs", "segment", "program", "backend", "hookspecs", "plugin_loader", "registry", "accelerator", "placement"),
}
# The other modules of the top level: tools for plugins, the roof, and the lazy table of public names.
BESIDE_THE_KERNEL = {
    *(
        "arguments",
        "attribute_hints",
        "host_memory",
        "rng",
        "lazy_attributes",
        "interrupts",
        "user_level",
        "experiment",
    ),
    *("", "__main__"),
}

# The NumPy backend stands high but uses only what a third party's backend could use.
ONLY: dict[str, set[str]] = {
    "numpy_backend": {
        *("printable", "errors", "arguments", "suggestions", "call_hints", "host_memory", "install_hints"),
        *("device", "rng"),
        *("specs", "segment", "program", "precision"),
        *("backend", "hookspecs", "adapter", "estimators"),
    },
}

LEVEL = {name: level for level, floor in enumerate(FLOORS) for name in floor}


# The Subject of NumPy is published to the kit and imported by it alone, as that of any plugin: it stands on `testing`.
PUBLISHED = {"numpy_backend.subject"}


@dataclass(frozen=True)
class Import:
    """One import of a core module by another; `when` is "top", "deferred" (inside a function) or "typing"."""

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


def imports(sources: Mapping[str, str]) -> list[Import]:
    """Every import of core by core."""
    names = module_names(sources)
    return [
        Import(name, target, statement.lineno, when)
        for name, path in names.items()
        for statement, when in statements(ast.parse(sources[path]))
        for target in targets(statement, name if path.endswith("__init__.py") else name.rpartition(".")[0], names)
    ]


def goes_up(found: Import) -> bool:
    """Whether an import breaks the order of the floors."""
    low, high = found.ends
    if low == high or low not in LEVEL or found.source in PUBLISHED:
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
    assert not circle(each for each in imports(core_sources))


def test_the_top_level_is_the_kernel_and_what_is_named_beside_it(core_sources: dict[str, str]) -> None:
    top = {name for name, path in module_names(core_sources).items() if "/" not in path}
    assert top == KERNEL | BESIDE_THE_KERNEL


def test_the_kernel_imports_only_the_kernel(core_sources: dict[str, str]) -> None:
    inside = [each for each in imports(core_sources) if each.source in KERNEL]
    assert inside
    assert not [str(each) for each in inside if each.target not in KERNEL]


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
        for source, target in (each.ends for each in imports(core_sources) if each.source not in PUBLISHED)
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
