"""The floors of core: a module imports only from floors below its own, and nothing imports in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import pytest

# Lowest first; the modules (or packages) of one line do not import each other. "" is anyaccel/__init__.py.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "suggestions", "install_hints", "html", "host_memory"),
    ("device", "rng"),
    ("specs",),
    ("segment",),
    ("program",),
    ("backend",),
    ("adapter",),
    ("numpy_backend",),
    ("hookspecs",),
    ("plugin_loader",),
    ("registry",),
    ("accelerator",),
    ("placement",),
    ("data",),
    ("graph",),
    ("phases",),
    ("results",),
    ("experiment",),
    ("testing",),
    ("cli",),
    ("", "__main__"),
)

# These stand high but may use little: what a third party's backend could use, and no more.
ONLY: dict[str, set[str]] = {
    "numpy_backend": {
        "errors",
        "suggestions",
        "host_memory",
        "install_hints",
        "device",
        "rng",
        "specs",
        "segment",
        "program",
        "backend",
        "adapter",
    },
}

# Imports inside functions that go up all the same, each with its reason.
DEFERRED_UP: dict[tuple[str, str], str] = {
    ("accelerator", "placement"): "methods that are short for the functions of the same name",
}

LEVEL = {name: level for level, floor in enumerate(FLOORS) for name in floor}


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
    """Whether an import breaks the order of the floors. Annotations may name what stands above."""
    low, high = found.ends
    if low == high or low not in LEVEL or found.when == "typing":
        return False
    if low in ONLY:
        return high not in ONLY[low]
    return LEVEL.get(high, len(FLOORS)) >= LEVEL[low] and not (found.when == "deferred" and found.ends in DEFERRED_UP)


def circle(found: list[Import]) -> list[str]:
    """A circle among imports that are carried out when a module is loaded, empty if there is none."""
    graph: dict[str, set[str]] = {}
    for each in found:
        if each.when == "top":
            graph.setdefault(each.source, set()).add(each.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_module_stands_on_a_floor(core_sources: dict[str, str]) -> None:
    missing = {name.partition(".")[0] for name in module_names(core_sources)} - LEVEL.keys()
    assert not missing, "give these a place in FLOORS"


def test_imports_go_down(core_sources: dict[str, str]) -> None:
    assert not [str(each) for each in imports(core_sources) if goes_up(each)]


def test_no_import_goes_in_a_circle(core_sources: dict[str, str]) -> None:
    assert not circle(imports(core_sources))


def test_exceptions_are_used(core_sources: dict[str, str]) -> None:
    unused = DEFERRED_UP.keys() - {each.ends for each in imports(core_sources) if each.when == "deferred"}
    assert not unused, "these exceptions are needed no more"


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
        ({"errors.py": "if TYPE_CHECKING:\n    from anyaccel.device import D", "device.py": ""}, False),
        ({"accelerator.py": "def f():\n    from anyaccel.placement import move", "placement.py": ""}, False),
        ({"backend.py": "from anyaccel.registry import R", "registry.py": ""}, True),
        ({"reference/__init__.py": "from ..registry import r", "registry.py": ""}, True),
        ({"reference/b.py": "def f():\n    from ..graph import G", "graph/__init__.py": ""}, True),
        ({"reference/b.py": "from ..device import D\nfrom .c import d", "reference/c.py": "", "device.py": ""}, False),
    ],
)
def test_the_check_sees_arrows_up(sources: dict[str, str], bad: bool) -> None:
    assert any(goes_up(each) for each in imports(sources)) is bad


def test_the_check_sees_circles() -> None:
    sources = {"data/a.py": "from .b import x", "data/b.py": "from anyaccel.data.a import y"}
    assert set(circle(imports(sources))) == {"data.a", "data.b"}
