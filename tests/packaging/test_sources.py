"""Rules for sources: core names no framework, plugins use only public names of core, and nothing is unpickled."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

FRAMEWORKS = {
    *("torch", "pytorch", "tensorflow", "keras", "jax", "jaxlib", "flax", "optax", "equinox", "mlx", "cupy"),
    *("tensorboard", "wandb"),  # no frameworks, but not known to core either
}

# Where names of frameworks are data: whole files (None), or the values of these names.
TABLES: dict[str, set[str] | None] = {
    "install_hints.py": None,
    "device.py": {"ALIASES"},
    "graph/weight_files.py": {"FRAMEWORK_SUFFIXES"},
    "saved_folder/shards.py": {"USUAL_NAMES"},
}


def words(text: str) -> set[str]:
    """The words of an identifier or a text, lower case; both `TorchBackend` and `TensorFlow` are understood."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[A-Za-z]+", text)} | {
        word.lower() for word in re.findall(r"[A-Za-z]+", text)
    }


def is_table(node: ast.AST, names: set[str]) -> bool:
    """Whether a statement assigns to one of these names."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return any(isinstance(target, ast.Name) and target.id in names for target in targets)


def texts(node: ast.AST, tables: set[str]) -> Iterator[tuple[int, str]]:
    """Line and text of every identifier and string below a node, without docstrings and tables."""
    for child in ast.iter_child_nodes(node):
        if is_table(child, tables) or (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
            continue
        for _, value in ast.iter_fields(child):
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, str):
                    yield getattr(child, "lineno", getattr(node, "lineno", 0)), each
        yield from texts(child, tables)


def frameworks_named(source: str, tables: set[str]) -> list[str]:
    """Each place of a source that names a framework."""
    return [f"line {line}: {text!r}" for line, text in texts(ast.parse(source), tables) if FRAMEWORKS & words(text)]


def private_imports(source: str) -> list[str]:
    """Each import of a private name, or from a private module, of core."""
    private = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        parts = [name.split(".") for name in names]
        private += [".".join(part) for part in parts if part[0] == "anyaccel" and any(map(is_private, part))]
    return private


UNPICKLES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def unpickling(source: str) -> list[str]:
    """Each place of a source that may run code of a file: imports, and calls that do not say that they only read."""
    places = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            places += [alias.name for alias in node.names if alias.name.partition(".")[0] in UNPICKLES]
        elif isinstance(node, ast.ImportFrom) and not node.level and str(node.module).partition(".")[0] in UNPICKLES:
            places.append(str(node.module))
        elif isinstance(node, ast.Call):
            places += [ast.unparse(node.func)] if runs_code(node) else []
    return places


def runs_code(node: ast.Call) -> bool:
    """Whether a call is one of `torch.load` without weights_only=True, of NumPy with allow_pickle=True, or the like."""
    given = {each.arg: getattr(each.value, "value", None) for each in node.keywords}
    if given.get("allow_pickle", False) is not False:
        return True
    name = ast.unparse(node.func)
    if name == "torch.load":
        return given.get("weights_only") is not True
    return name in {"eval", "exec", "pd.read_pickle", "pandas.read_pickle"}


def is_private(name: str) -> bool:
    """Whether a name starts with an underscore and is no dunder."""
    return name.startswith("_") and not name.startswith("__")


CALLED_BY_OTHERS = {"_load_pyfunc", "_is_in_bad_fork"}
"""Private functions that another library calls: MLflow, and torch."""
OF_OTHERS = {"_replace", "_cdata"}
"""Private attributes of classes of other libraries: named tuples, and torch."""


def loose_ends(sources: dict[str, str]) -> list[str]:
    """Private functions that nothing names, and private attributes of `self` that no class of the family has.

    Neither mypy nor the tests of one class see a method that a subclass overrides and the class no longer calls, or
    one that a class with `__getattr__` lacks: uncompiled steps of JAX drew other random numbers that way.
    """
    bases: dict[str, set[str]] = {}
    has: dict[str, set[str]] = {}
    needs: list[tuple[str, str, str]] = []
    defined: dict[str, str] = {}
    named: set[str] = set()
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and is_private(node.name):
                defined[node.name] = path
            elif isinstance(node, (ast.Attribute, ast.Name)):
                named.add(node.attr if isinstance(node, ast.Attribute) else node.id)
            elif isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(re.findall(r"\w+", " ".join(map(ast.unparse, node.bases))))
                for child in ast.walk(node):
                    if isinstance(child, ast.FunctionDef):
                        has.setdefault(node.name, set()).add(child.name)
                    elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                        has.setdefault(node.name, set()).add(child.id)
                    elif isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
                        has.setdefault(node.name, set()).add(child.attr)
                    elif isinstance(child, ast.Attribute) and ast.unparse(child.value) in ("self", "super()"):
                        needs.append((path, node.name, child.attr))
                    elif isinstance(child, ast.Constant) and isinstance(child.value, str):  # __slots__, getattr
                        has.setdefault(node.name, set()).add(child.value)

    def above(name: str) -> set[str]:
        found, left = {name}, [name]
        while left:
            new = bases.get(left.pop(), set()) - found
            found |= new
            left += new
        return found

    families = {name: above(name) for name in bases}
    known: dict[str, set[str]] = {}  # with the classes beside it in those that derive from it
    for of_class in families.values():
        attributes = set().union(*(has.get(name, set()) for name in of_class))
        for name in of_class:
            known.setdefault(name, set()).update(attributes)
    lost = [f"{path}: nothing calls {name}" for name, path in defined.items() if name not in named | CALLED_BY_OTHERS]
    return lost + [
        f"{path}: {owner} has no {name}"
        for path, owner, name in needs
        if is_private(name) and name not in known[owner] | OF_OTHERS
    ]


def test_core_names_no_framework(core_sources: dict[str, str]) -> None:
    assert not {
        path: named
        for path, source in core_sources.items()
        if (tables := TABLES.get(path, set())) is not None and (named := frameworks_named(source, tables))
    }


def test_private_methods_are_called_and_exist(core_sources: dict[str, str], plugin_sources: dict[str, str]) -> None:
    assert not loose_ends({**core_sources, **plugin_sources})


def test_the_check_finds_private_methods_that_are_not_called_or_missing() -> None:
    above = "class Above:\n    def step(self): return {}\n    def __getattr__(self, name): ...\n"
    below = "class Below(Above):\n    def _key(self): return 1\n"
    assert not loose_ends({"a": above.format("self._key()"), "b": below})
    assert loose_ends({"a": above.format("0"), "b": below}) == ["b: nothing calls _key"]
    assert loose_ends({"a": above.format("self._key()"), "b": "_key = 1"}) == ["a: Above has no _key"]


def test_plugins_import_no_private_name_of_core(plugin_sources: dict[str, str]) -> None:
    assert plugin_sources
    assert not {path: found for path, source in plugin_sources.items() if (found := private_imports(source))}


def test_nothing_is_unpickled_and_no_text_is_run(core_sources: dict[str, str], plugin_sources: dict[str, str]) -> None:
    assert core_sources and plugin_sources
    sources = {**core_sources, **plugin_sources}
    found = {path: places for path, source in sources.items() if (places := unpickling(source))}
    # The one exception: a function of a session, which spawn writes, and only its own new processes read.
    assert found == {"plugins/distributed/src/anyaccel_distributed/spawn.py": ["marshal", "cloudpickle"]}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n    from joblib import load",
        "np.load(f, allow_pickle=True)",
        "np.load(f, allow_pickle=x)",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "eval(text)",
        "pd.read_pickle(f)",
    ],
)
def test_the_check_finds_what_unpickles(source: str) -> None:
    assert unpickling(source)
    assert not unpickling("np.load(f, allow_pickle=False)\ntorch.load(f, weights_only=True)\nmodel.eval()")


@pytest.mark.parametrize(
    "source",
    [
        "import torch",
        "from jax import numpy",
        "def f():\n    import keras.layers",
        "name = 'torch'",
        "name = f'{x} of jax'",
        "def torch_device(): ...",
        "class TorchBackend: ...",
        "x.is_tensorflow",
        "raise E('install TensorFlow')",
        "f(jax=1)",
        "def f(optax): ...",
    ],
)
def test_the_check_finds_frameworks(source: str) -> None:
    assert frameworks_named(source, set())


@pytest.mark.parametrize(
    "source",
    ["'''Such as torch.'''", "x = 1\n'''Of jax.'''", "torchlight = 1", "T = {'jax': 1}", "T: dict = {'mlx': 1}"],
)
def test_the_check_allows_everything_else(source: str) -> None:
    assert not frameworks_named(source, {"T"})


def test_the_check_finds_private_imports() -> None:
    assert private_imports("from anyaccel.data import _x")
    assert private_imports("import anyaccel._y")
    assert not private_imports("from anyaccel import __version__\nfrom anyaccel_torch._z import a\nfrom . import _w")
