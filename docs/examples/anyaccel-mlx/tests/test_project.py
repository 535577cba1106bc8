"""What the project promises as a whole: it is small, and light to list."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from importlib.metadata import entry_points
from pathlib import Path

import anyaccel_mlx
import anyaccel_mlx.conformance

from anyaccel.registry import registry

SOURCES = sorted(set(Path(anyaccel_mlx.__file__).parent.glob("*.py")) - {Path(anyaccel_mlx.conformance.__file__)})
SILENT = {tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """Lines that hold code: not those that are empty, or hold a comment or a docstring only."""
    documented = [n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    strings = [node.body[0] for node in documented if ast.get_docstring(node) is not None]
    told = {line for s in strings for line in range(s.lineno, (s.end_lineno or 0) + 1)}
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type not in SILENT]
    return len({line for t in tokens for line in range(t.start[0], t.end[0] + 1)} - told)


def test_code_lines_are_counted() -> None:
    assert (
        code_lines('"""Doc."""\n\n# note\nx = [\n    1,\n]\n\n\ndef f():\n    """Doc\n    string."""\n    return 1\n')
        == 5
    )


def test_the_whole_plugin_is_small() -> None:
    assert sum(code_lines(source.read_text("utf-8")) for source in SOURCES) < 350


def test_placement_is_under_a_hundred_lines_with_all_its_words() -> None:
    (placement,) = (source for source in SOURCES if source.name == "placement.py")
    assert len(placement.read_text("utf-8").splitlines()) < 100


def test_it_is_found_by_its_entry_point() -> None:
    assert [entry.value for entry in entry_points(group="anyaccel", name="mlx")] == ["anyaccel_mlx"]
    assert registry().find("mlx").framework == "mlx"


def test_listing_backends_does_not_import_mlx() -> None:
    script = "import sys, anyaccel_mlx; anyaccel_mlx.backends(); sys.exit('mlx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_package_gives_its_model_when_asked_and_nothing_else() -> None:
    assert anyaccel_mlx.SequentialMLP.__name__ == "SequentialMLP"
    try:
        anyaccel_mlx.SequentialCNN  # noqa: B018
    except AttributeError as error:
        assert "anyaccel_mlx" in str(error) and "SequentialCNN" in str(error)
    else:
        raise AssertionError("a name that is not there was given")
