"""Which tests a sample takes: shared ones run with one framework each, and none is left out of all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sampling
from find_long_tests import long_tests

ROOT = Path(__file__).resolve().parents[2]
CASES = [f"case {i}" for i in range(40)]


def item(framework: str, case: str, frameworks: tuple[str, ...] = ()) -> Any:
    """A test that is marked `shared`, as pytest collects it."""
    name = f"{framework}-{case}"
    marks = {"shared": SimpleNamespace(args=frameworks)}
    call = SimpleNamespace(id=name, params={"framework": framework, "case": case})
    return SimpleNamespace(
        nodeid=f"tests/test_it.py::test_it[{name}]", originalname="test_it", callspec=call, get_closest_marker=marks.get
    )


def takers(case: str, *frameworks: str) -> list[str]:
    return [name for name in (*sampling.FRAMEWORKS, "other") if sampling.is_chosen(item(name, case, frameworks))]


def test_each_shared_test_is_run_with_one_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "IS_SHARED", True)
    monkeypatch.setattr(sampling, "OF_ALL", 1)
    dealt = [takers(case) for case in CASES]
    assert all(len(names) == 2 and names[-1] == "other" for names in dealt)  # one that has no such session runs all
    assert {names[0] for names in dealt} == set(sampling.FRAMEWORKS)
    assert {takers(case, "torch", "jax")[0] for case in CASES} == {"torch", "jax"}


def test_all_are_run_where_none_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "IS_SHARED", False)
    monkeypatch.setattr(sampling, "OF_ALL", 1)
    assert all(takers(case) == [*sampling.FRAMEWORKS, "other"] for case in CASES)


def test_another_draw_is_another_part(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [sampling.number_of(case) for case in CASES]
    monkeypatch.setattr(sampling, "DRAW", "another")
    assert len(set(before)) == len(CASES) and not set(before) & {sampling.number_of(case) for case in CASES}


def marked(*arguments: int, case: str = "case 0", name: str = "sampled") -> Any:
    """A test that is marked `sampled(*arguments)`, or otherwise."""
    mark = {name: SimpleNamespace(args=arguments)}
    named = f"test_it[{case}]"
    return SimpleNamespace(
        nodeid=f"test_it.py::{named}", name=named, originalname="test_it", parent=0, get_closest_marker=mark.get
    )


@pytest.fixture
def in_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"IS_SHARED": False, "IS_FULL": False, "OF_ALL": 1, "OF_FILES": 1}.items():
        monkeypatch.setattr(sampling, name, value)


@pytest.mark.usefixtures("in_the_check")
def test_parts_of_a_sample_are_apart_and_together_all() -> None:
    for case in CASES:
        assert [sampling.is_chosen(marked(3, part, case=case)) for part in range(3)].count(True) == 1


@pytest.mark.usefixtures("in_the_check")
def test_a_sample_has_one_of_each_function() -> None:
    items = [marked(10_000, case=case) for case in CASES]
    assert not any(map(sampling.is_chosen, items))
    assert len(sampling.first_of_each(items)) == 1
    assert sampling.first_of_each([marked(1, case=case) for case in CASES]) == []  # they run anyway


@pytest.mark.usefixtures("in_the_check")
def test_what_is_left_to_the_whole_runs_with_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not sampling.is_chosen(marked(name="whole"))
    monkeypatch.setattr(sampling, "IS_FULL", True)
    assert sampling.is_chosen(marked(name="whole")) and sampling.is_chosen(marked(10_000))


@pytest.mark.usefixtures("in_the_check")
def test_each_long_test_is_in_one_part_and_the_tests_of_a_long_file_together(monkeypatch: pytest.MonkeyPatch) -> None:
    long = [SimpleNamespace(nodeid=f"test_a.py::test_long[{case}]") for case in CASES]
    together = [SimpleNamespace(nodeid=f"test_b.py::test_{case}") for case in CASES]
    short = [SimpleNamespace(nodeid=f"test_a.py::test_short[{case}]") for case in CASES]
    monkeypatch.setattr(sampling, "LONG", {"files": ["test_b.py"], "functions": ["test_a.py::test_long"]})
    parts = []
    for part in range(4):
        monkeypatch.setattr(sampling, "PART", f"{part}/4")
        assert all(map(sampling.is_of_part, short))
        parts.append([test for test in (*long, *together) if sampling.is_of_part(test)])
    assert all(sum(test in part for part in parts) == 1 for test in (*long, *together))
    assert [sum(test in part for test in together) for part in parts].count(len(CASES)) == 1
    assert all(any(test in part for test in long) for part in parts)
    monkeypatch.setattr(sampling, "IS_FULL", True)
    assert all(map(sampling.is_of_part, (*long, *together)))


@pytest.mark.parametrize("kind", ["files", "functions"])
def test_long_tests_are_dealt_out_evenly(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"test_{i}.py" if kind == "files" else f"test_a.py::test_{i}" for i in range(20)]
    monkeypatch.setattr(sampling, "IS_FULL", False)
    monkeypatch.setattr(sampling, "LONG", {"files": [], "functions": [], kind: names})
    tests = [SimpleNamespace(nodeid=f"{name}::test_it" if kind == "files" else name) for name in names]
    for part in range(4):
        monkeypatch.setattr(sampling, "PART", f"{part}/4")
        assert [i for i, test in enumerate(tests) if sampling.is_of_part(test)] == [part, *range(part + 4, 20, 4)]


def test_every_test_that_is_listed_as_long_is_there() -> None:
    assert sampling.LONG["files"] and sampling.LONG["functions"]
    texts: dict[str, str] = {}
    for test in (*sampling.LONG["files"], *sampling.LONG["functions"]):
        file, _, name = test.partition("::")
        if file not in texts:
            texts[file] = (ROOT / file).read_text("utf-8")
        is_of_kit = "::" in name  # a method that the file inherits
        assert not name or is_of_kit or f"def {name}(" in texts[file], test


def test_long_tests_are_those_that_took_long() -> None:
    printed = """
3.10s call     tests/test_a.py::test_one[case 1]
0.90s call     tests/test_a.py::test_two
2.90s setup    tests/test_a.py::test_two
3.00s call     README.md::line:7,column:1
7.00s setup    plugins/b/tests/test_b.py::test_three[x]
9.00s call     plugins/b/tests/test_b.py::test_three[x]
4.00s call     tests/test_c.py::TestAll::test_four
0.90s call     tests/test_c.py::test_five[case 1]
0.90s call     tests/test_c.py::test_five[case 2]
0.90s call     tests/test_c.py::test_five[case 3]
0.90s call     tests/test_c.py::test_five[case 4]
0.90s call     docs/another-page.md::line:1,column:1
3.00s call     docs/a-page.md::line:7,column:1
"""
    functions = ["tests/test_a.py::test_one", "tests/test_c.py::TestAll::test_four", "tests/test_c.py::test_five"]
    assert long_tests(printed) == (["docs/a-page.md", "plugins/b/tests/test_b.py"], functions)


@pytest.mark.parametrize(
    ("part", "status"), [("0/1000000007", pytest.ExitCode.OK), ("", pytest.ExitCode.NO_TESTS_COLLECTED)]
)
def test_a_part_without_any_test_of_a_command_is_no_failure(part: str, status: int) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--collect-only"]
    file = "tests/integration/test_kills.py"
    names = [] if part else ["-k", "no_test_has_this_name"]
    environment = {**os.environ, "ANYACCEL_TEST_PART": part, "ANYACCEL_TEST_FULL": ""}
    run = subprocess.run([*command, file, *names], cwd=ROOT, env=environment, capture_output=True, check=False)
    assert run.returncode == status
