"""Rules for sources: core names no framework, and plugins use only public names of core."""

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
    "saved_folder/shard_index.py": {"USUAL_NAMES"},
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


def is_private(name: str) -> bool:
    """Whether a name starts with an underscore and is no dunder."""
    return name.startswith("_") and not name.startswith("__")


def test_core_names_no_framework(core_sources: dict[str, str]) -> None:
    assert not {
        path: named
        for path, source in core_sources.items()
        if (tables := TABLES.get(path, set())) is not None and (named := frameworks_named(source, tables))
    }


def test_plugins_import_no_private_name_of_core(plugin_sources: dict[str, str]) -> None:
    assert plugin_sources
    assert not {path: found for path, source in plugin_sources.items() if (found := private_imports(source))}


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
