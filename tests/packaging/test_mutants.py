"""Mutation testing: its lists name what exists, and it counts as noticed only what a mutant is to blame for.

Where cosmic-ray is not installed the lists alone are tested; `nox -s mutants` tests all before it begins.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from argparse import Namespace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests/mutants"

if not (ROOT / "core/src").is_dir():
    pytest.skip("the sources are not here", allow_module_level=True)


def test_every_survivor_is_a_line_of_its_file_and_has_a_reason() -> None:
    survivors = tomllib.loads((FOLDER / "survivors.toml").read_text("utf-8")).get("survivor", [])
    for each in survivors:
        lines = map(str.strip, (ROOT / each["file"]).read_text("utf-8").splitlines())
        assert each["before"] in lines, f"{each['file']} has no line {each['before']!r} any more"
        assert len(each["reason"].split()) > 3, each


def test_every_area_has_sources_and_tests() -> None:
    areas = tomllib.loads((FOLDER / "areas.toml").read_text("utf-8"))
    assert sum(area["mutants"] for area in areas.values()) >= 150
    for area in areas.values():
        assert all(any(ROOT.glob(pattern)) for pattern in area["sources"])
        assert all((ROOT / test).exists() for test in area["tests"])


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of tests/mutants."""
    pytest.importorskip("cosmic_ray")
    monkeypatch.syspath_prepend(FOLDER)
    import copies
    import line_coverage
    import mutations
    import run

    yield Namespace(copies=copies, line_coverage=line_coverage, mutations=mutations, run=run)
    for name in ("areas", "copies", "line_coverage", "mutations", "recorder", "run"):
        sys.modules.pop(name, None)


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A small repository, with functions whose tests see much, nothing, or fail anyhow."""
    root = tmp_path / "repository"
    write(
        root / "core/src/anyaccel_demo/code.py",
        """
        def tested(a, b):
            return a - b

        def run_only(a, b):
            return a - b - 1

        def never_run(a, b):
            return a - b - 2

        def in_a_child(a, b):
            return a - b - 4

        def of_a_failing_test(a, b):
            return a - b - 3
        """,
    )
    write(
        root / "tests/test_demo.py",
        """
        import subprocess
        import sys
        from anyaccel_demo import code

        def test_tested():
            assert code.tested(3, 2) == 1

        def test_run_only():
            code.run_only(3, 2)

        def test_in_a_child():
            child = "from anyaccel_demo import code; assert code.in_a_child(3, 2) == -3"
            subprocess.run([sys.executable, "-c", child], check=True)

        def test_fails_anyhow():
            assert code.of_a_failing_test(3, 2) == 1
        """,
    )
    write(root / "core/src/anyaccel_demo/__init__.py", "")
    write(
        root / "tests/mutants/areas.toml",
        """
        [demo]
        sources = ["core/src/anyaccel_demo/code.py"]
        without = []
        tests = ["tests"]
        mutants = 5
        """,
    )
    shutil.copy(FOLDER / "recorder.py", root / "tests/mutants")
    subprocess.run(["git", "init", "-q", root], check=True)
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text).lstrip(), "utf-8")


def examined(mutants: Any, root: Path, folder: Path, killers: Any = None, **arguments: Any) -> dict[str, Any]:
    """The results by the line that was changed."""
    given = Namespace(**({"sample": None, "seed": 0, "tests": None} | arguments))
    results = mutants.run.Examination(root, "demo", given, killers or {}, folder).results()
    return {result.mutant.before: result for result in results}


def test_a_mutant_is_noticed_only_by_a_test_that_passes_without_it(mutants: Any, demo: Path, tmp_path: Path) -> None:
    results = examined(mutants, demo, tmp_path / "copies")
    assert {before: result.outcome for before, result in results.items()} == {
        "return a - b": "killed",
        "return a - b - 1": "survived",
        "return a - b - 2": "unreached",
        "return a - b - 3": "unreached",
        "return a - b - 4": "killed",
    }
    assert results["return a - b"].killer == "tests/test_demo.py::test_tested"


def test_a_second_examination_asks_only_the_test_that_noticed(mutants: Any, demo: Path, tmp_path: Path) -> None:
    area = mutants.run.areas_of(demo)["demo"]
    seed = next(seed for seed in range(100) if area.sample(1, seed)[0].before == "return a - b")
    killed = examined(mutants, demo, tmp_path / "first", sample=1, seed=seed)["return a - b"]
    killers = {killed.mutant.key: killed.killer}
    arguments = {"sample": 1, "seed": seed, "tests": ["tests/no_such_test.py"]}
    again = examined(mutants, demo, tmp_path / "second", killers, **arguments)["return a - b"]
    assert (again.outcome, again.tests, again.killer) == ("killed", 1, "tests/test_demo.py::test_tested")


@pytest.mark.parametrize(("waits_without", "outcome"), [("False", "timeout"), ("True", "undecided")])
def test_a_test_that_does_not_end_decides_only_if_it_ends_without_the_mutant(
    mutants: Any, demo: Path, tmp_path: Path, waits_without: str, outcome: str
) -> None:
    write(
        demo / "tests/test_slow.py",
        f"""
        import time
        from anyaccel_demo import code

        def test_waits():
            if {waits_without} or code.tested(3, 2) != 1:
                time.sleep(60)
        """,
    )
    (mutant,) = (
        each
        for each in mutants.mutations.SourceFile(
            "core/src/anyaccel_demo/code.py", (demo / "core/src/anyaccel_demo/code.py").read_text("utf-8")
        ).mutants(2)
        if each.after == "return a + b"
    )
    copies = mutants.copies.Copies([mutants.copies.copy_repository(demo, tmp_path / "copy")])
    result = copies.try_mutant(mutant, ["tests/test_slow.py::test_waits"], 12.0)
    assert (result.outcome, result.killer) == (outcome, "tests/test_slow.py::test_waits")
    assert (tmp_path / "copy" / mutant.file).read_text("utf-8") == (demo / mutant.file).read_text("utf-8")


def test_a_change_elsewhere_draws_no_other_mutants(mutants: Any, demo: Path) -> None:
    file = demo / "core/src/anyaccel_demo/code.py"
    area = mutants.run.areas_of(demo)["demo"]
    before = [mutant.key for mutant in area.sample(2, 5)]
    file.write_text(f"# a comment\n\nimport os\n{file.read_text('utf-8')}", "utf-8")
    assert [mutant.key for mutant in area.sample(2, 5)] == before
    assert [mutant.key for mutant in area.sample(2, 6)] != before


def test_nothing_that_means_the_same_is_a_mutant(mutants: Any) -> None:
    code = dedent(
        """
        @dataclass(frozen=True)
        class C:
            @abstractmethod
            def f(self, *, clip: int | None) -> int | str:
                self.x: int
                return clip is None
        """
    ).lstrip()
    file = mutants.mutations.SourceFile("f.py", code)
    changes = {mutant.after for line in file.lines() for mutant in file.mutants(line)}
    assert changes == {"class C:", "return clip is not None"}


def test_what_runs_at_import_is_met_by_the_tests_of_what_mentions_it(mutants: Any) -> None:
    code = dedent(
        """
        LIMIT = 3

        def over(x):
            return (
                x
                > LIMIT
            )

        def other(x):
            return x
        """
    ).lstrip()
    assert mutants.line_coverage.statement_lines(code, 1) == (range(1, 2), True)
    assert mutants.line_coverage.lines_of_name(code, 1) == [1, 6]
    assert mutants.line_coverage.statement_lines(code, 6) == (range(4, 8), False)
    assert mutants.line_coverage.statement_lines(code, 3) == (range(3, 4), True)
