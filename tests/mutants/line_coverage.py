"""Which tests run a line, measured by coverage."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import coverage
import recorder
from areas import Area
from mutations import Mutant

MOST_SECONDS = 240.0  # of tests for one mutant, as they took without it


class Trace:
    """Runs tests once where the area is, unchanged, and tells which of them run a line.

    A test that fails then is left out: it would "notice" every mutant.
    """

    def __init__(self, area: Area, tests: Sequence[str], folder: Path, workers: int) -> None:
        self._root = area.root
        self._codes = {str(path.relative_to(area.root)): path.read_text("utf-8") for path in area.sources}
        self._data = coverage.CoverageData(str(folder / "coverage"))
        _measure(area, tests, folder, workers)
        self._data.read()
        self.failing: list[str] = sorted(set(recorder.read(folder, "failed")))
        self.seconds: dict[str, float] = dict(recorder.read(folder, "times"))
        for test in self.failing:
            self.seconds.pop(test, None)
        self._lines: dict[str, dict[int, list[str]]] = {}

    def tests(self, mutant: Mutant) -> tuple[list[str], int]:
        """The tests that run the mutant's line, the quickest first, as many as `MOST_SECONDS` allow; and how many more.

        What runs at import is not run by a test: all tests of the file may notice it. First come those that run lines
        which mention the name defined there, then those of test files that mention it.
        """
        code = self._codes[mutant.file]
        if mutant.file not in self._lines:
            self._lines[mutant.file] = self._data.contexts_by_lineno(str(self._root / mutant.file))
        lines, at_import = statement_lines(code, mutant.line)
        reached = self._quickest(mutant.file, lines)
        if at_import:
            names = names_defined(code, mutant.line)
            reached = self._quickest(mutant.file, lines_of_name(code, mutant.line))
            reached += [test for test in self._mentioning(names) if test not in reached]
            reached += [test for test in self._quickest(mutant.file, self._lines[mutant.file]) if test not in reached]
        chosen, total = [], 0.0
        for test in reached:
            total += self.seconds[test]
            if chosen and total > MOST_SECONDS:
                break
            chosen.append(test)
        return chosen, len(reached) - len(chosen)

    def _mentioning(self, names: set[str]) -> list[str]:
        files = {
            file: (self._root / file).read_text("utf-8") for file in {test.split("::")[0] for test in self.seconds}
        }
        mentioning = {file for file, text in files.items() if names & set(re.findall(r"\w+", text))}
        return sorted(
            (test for test in self.seconds if test.split("::")[0] in mentioning), key=self.seconds.__getitem__
        )

    def _quickest(self, file: str, lines: Iterator[int] | Sequence[int] | dict[int, list[str]]) -> list[str]:
        by_line = self._lines[file]
        tests = {test for line in lines for test in by_line.get(line, ())}
        return sorted(tests & self.seconds.keys(), key=self.seconds.__getitem__)


def _measure(area: Area, tests: Sequence[str], folder: Path, workers: int) -> None:
    settings = folder / "coveragerc"
    parts = {part for path in area.sources for part in path.relative_to(area.root).parts}
    settings.write_text(
        f"[run]\nparallel = true\npatch = subprocess\ndata_file = {folder / 'coverage'}\n"
        "context = ${ANYACCEL_MUTANTS_TEST-}\n"
        f"source_pkgs = {','.join(sorted(part for part in parts if part.startswith('anyaccel')))}\n",
        "utf-8",
    )
    environment = environment_of(area.root, folder)
    run = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", *tests]
    run += ["-q", "--tb=short", "-p", "recorder", "-n", str(workers), "--dist", "loadfile", "-p", "no:cacheprovider"]
    if subprocess.run(run, cwd=area.root, env=environment, check=False).returncode not in (0, 1):
        sys.exit(f"The tests {' '.join(tests)} do not run.")
    combine = [sys.executable, "-m", "coverage", "combine", "-q", f"--rcfile={settings}"]
    subprocess.run(combine, cwd=area.root, check=True)


def environment_of(root: Path, record: Path) -> dict[str, str]:
    """The environment of tests of the copy `root`, whose recorder writes to `record`."""
    parts = [root / "tests/mutants", root / "core/src", *sorted(root.glob("plugins/*/src"))]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, parts)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "ANYACCEL_MUTANTS_RECORD": str(record),
    }


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def statement_lines(code: str, line: int) -> tuple[range, bool]:
    """The lines of the statement that `line` belongs to, without its body; and whether it runs at import.

    Coverage notes a statement of several lines by some of them.
    """
    tree = ast.parse(code)
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and line in _span(node)]
    if not inside:
        return range(line, line + 1), True
    statement = max(inside, key=lambda node: (_span(node).start, -_span(node).stop))
    within = any(isinstance(node, _FUNCTIONS) and node is not statement and line >= _body(node) for node in inside)
    span = _span(statement)
    return range(span.start, max(min(span.stop, _body(statement)), line + 1)), not within


def names_defined(code: str, line: int) -> set[str]:
    """The names that the statement at `line`, run at import, defines."""
    statement = _statement(code, line)
    if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
        return {statement.name}
    nodes = ast.walk(statement) if statement else ()
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def lines_of_name(code: str, line: int) -> list[int]:
    """Lines that mention a name which the statement at `line`, run at import, defines; and the body of a definition."""
    statement = _statement(code, line)
    names = names_defined(code, line)
    mentioned = {number for number, text in enumerate(code.splitlines(), 1) if names & set(re.findall(r"\w+", text))}
    return sorted(mentioned | set(_span(statement) if statement else ()))


def _statement(code: str, line: int) -> ast.stmt | None:
    """The innermost statement that the line belongs to."""
    inside = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.stmt) and line in _span(node)]
    return max(inside, key=lambda node: (_span(node).start, -_span(node).stop), default=None)


def _span(node: ast.stmt) -> range:
    decorators = [decorator.lineno for decorator in getattr(node, "decorator_list", ())]
    return range(min([node.lineno, *decorators]), (node.end_lineno or node.lineno) + 1)


def _body(node: ast.stmt) -> int:
    """The first line of a statement's body; beyond its end if it has none."""
    body = getattr(node, "body", None)
    return _span(body[0]).start if body else _span(node).stop
