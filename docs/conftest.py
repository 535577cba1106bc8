"""The documentation, run as tests.

The Python blocks of a Markdown file run in order, in one namespace and in a temporary folder. `<!--- skip: next -->`
before a block leaves it out. A `text` block right after a Python block is what the Python block prints: it is compared,
`...` stands for any text, and numbers with a decimal point may differ by 2 %. A block that prints must have one.
The blocks of the first tab of a set run like all others. Those of another tab run in a copy of the namespace, with the
names of earlier tabs of its framework, and are skipped if the framework is missing. The first block after the tabs runs
once for each tab, in a separate folder.
`ANYACCEL_TEST_REWRITE=1` writes the outputs into the files instead. Each script of docs/examples/ runs in an
interpreter of its own; what follows `It prints:` in its docstring is compared with its output.
"""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import SkipTest

import pytest
from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser

HERE = Path(__file__).parent
REWRITE = os.environ.get("ANYACCEL_TEST_REWRITE") == "1"
OUTPUT = re.compile(
    r"\n```\n\n```text\n(.*?)\n?```\n", re.DOTALL
)  # which may be empty still
DECIMAL = re.compile(r"(-?\d[\d,]*\.\d+(?:e[+-]?\d+)?)")


TAB = re.compile(r"^::::\{tab-set\}$|^:::(?:\{tab-item\} (.+))?$", re.MULTILINE)
NEEDS = {
    "JAX": "anyaccel_jax flax optax",
    "Keras": "anyaccel_tensorflow keras tensorflow",
}
"""By tab: the modules without which its blocks are skipped."""


def tab_of(text: str, position: int) -> tuple[str, bool]:
    """The tab that a position is in, `""` if in none, and whether it is the first of its set."""
    marks = list(TAB.finditer(text, 0, position))
    name = marks[-1][1] or "" if marks else ""
    return name, bool(name) and "tab-set" in marks[-2][0]


def fits(expected: str, printed: str) -> bool:
    """Whether a page shows what was printed; spacing counts for nothing, as it follows from the width of numbers."""
    parts = [DECIMAL.split(" ".join(part.split())) for part in expected.split("...")]
    pattern = ".*?".join(
        "".join(_pattern(piece, index) for index, piece in enumerate(part))
        for part in parts
    )
    match = re.fullmatch(pattern, " ".join(printed.split()), re.DOTALL)
    numbers = [float(piece.replace(",", "")) for part in parts for piece in part[1::2]]
    return bool(match) and [
        float(text.replace(",", "")) for text in match.groups()
    ] == pytest.approx(numbers, rel=0.02)


def _pattern(piece: str, index: int) -> str:
    return DECIMAL.pattern if index % 2 else re.escape(piece).replace(r"\ ", r"\s*")


class BlockEvaluator:
    """Runs a Python block and compares what it prints with the text block after it."""

    def __init__(self) -> None:
        self.evaluator = PythonEvaluator()

    def run(self, example: Example) -> None:
        """Run a block in the namespace of its document, or of its tab."""
        main = example.document.namespace
        tab, is_first = tab_of(example.document.text, example.start)
        others: dict[str, dict[str, Any]] = main.setdefault("_tabs", {})
        if tab and not is_first:
            missing = [name for name in NEEDS[tab].split() if find_spec(name) is None]
            if missing:
                raise SkipTest(f"{tab} needs {', '.join(missing)}")
            names = main.setdefault("_names_of_tabs", {}).get(tab, {})
            others.setdefault(tab, {**main["_before_tabs"], **names})
            self.run_in_tab(example, main, tab)
            return
        if tab:
            main.setdefault("_before_tabs", dict(main))
        self.evaluator(example)
        if tab or not others:
            return
        for name in others:
            with (
                tempfile.TemporaryDirectory() as folder,
                chdir(folder),
                redirect_stdout(io.StringIO()),
            ):
                self.run_in_tab(example, main, name)
        others.clear()
        del main["_before_tabs"]

    def run_in_tab(self, example: Example, main: dict[str, Any], tab: str) -> None:
        """Run a block in the namespace of a tab, and keep its names for later tabs."""
        namespace = example.namespace = main["_tabs"][tab]
        before = dict(namespace)
        self.evaluator(example)
        names = main["_names_of_tabs"].setdefault(tab, {})
        names |= {k: v for k, v in namespace.items() if before.get(k, names) is not v}

    def __call__(self, example: Example) -> str | None:
        with redirect_stdout(io.StringIO()) as output:
            self.run(example)
        printed = "\n".join(
            line.rstrip() for line in output.getvalue().strip("\n").splitlines()
        )
        text = example.document.text
        shown = OUTPUT.match(text, text.index("\n```", example.start + 3))
        if fits(shown[1] if shown else "", printed):
            return None
        if REWRITE:
            return self._note_edit(example, shown, printed)
        return f"The page shows:\n{shown[1] if shown else '(nothing)'}\n\nThe block prints:\n{printed}"

    def _note_edit(
        self, example: Example, shown: re.Match[str] | None, printed: str
    ) -> None:
        text = example.document.text
        start = text.index("\n```", example.start + 3) + len("\n```\n")
        block = f"\n```text\n{printed}\n```\n"
        example.namespace.setdefault("_edits", []).append(
            (start, shown.end() if shown else start, block)
        )
        example.namespace["_document"] = example.document


def enter(namespace: dict[str, Any]) -> None:
    """Give a document a folder of its own to write into, and the name that a script has."""
    namespace["__name__"] = "__main__"
    namespace["_folder"] = (tempfile.TemporaryDirectory(), Path.cwd())
    os.chdir(namespace["_folder"][0].name)


def leave(namespace: dict[str, Any]) -> None:
    """Go back, remove the folder, and unregister what the page registered by hand."""
    from anyaccel.registry import registry

    by_hand = [plugin.name for plugin in registry().plugins if not plugin.distribution]
    for name in filter(registry().hooks.has_plugin, by_hand):
        registry().hooks.unregister(name=name)
    folder, before = namespace["_folder"]
    os.chdir(before)
    if "_edits" in namespace:
        rewrite(
            namespace["_document"].path,
            namespace["_document"].text,
            namespace["_edits"],
        )
    namespace.clear()
    folder.cleanup()


def rewrite(path: str, text: str, edits: list[tuple[int, int, str]]) -> None:
    """Write the outputs that differ into a page, last first."""
    for start, end, block in sorted(edits, reverse=True):
        text = text[:start] + block + text[end:]
    Path(path).write_text(text, encoding="utf-8")


class Script(pytest.File):
    """One script of docs/examples/."""

    def collect(self) -> list[pytest.Item]:
        return [ScriptRun.from_parent(self, name="run")]


class ScriptRun(pytest.Item):
    """Run a script as a user does; a warning is an error, and what it prints is shown where it fails."""

    def runtest(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-W", "error", str(self.path)]
            answer = subprocess.run(
                command,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        if answer.returncode:
            pytest.fail(
                f"{self.path.name} ended with {answer.returncode}\n{answer.stdout}{answer.stderr}",
                pytrace=False,
            )
        text = ast.get_docstring(ast.parse(self.path.read_text(encoding="utf-8"))) or ""
        _, announced, shown = text.partition("It prints:\n")
        if announced and not fits(shown, answer.stdout):
            pytest.fail(
                f"{self.path.name} says that it prints:\n{shown}\n\nIt prints:\n{answer.stdout}",
                pytrace=False,
            )

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.path.name


class Documents:
    """Collects Markdown files: those of this folder, and every README, which no conftest of its own reaches."""

    pytest_collect_file = staticmethod(
        Sybil(
            [CodeBlockParser("python", BlockEvaluator()), SkipParser()],
            path=str(HERE.parent),
            patterns=["*.md"],
            setup=enter,
            teardown=leave,
        ).pytest()
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Documents(), "documents")


def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> pytest.Collector | None:
    if file_path.suffix == ".py" and file_path.parent == HERE / "examples":
        return Script.from_parent(parent, path=file_path)
    return None
