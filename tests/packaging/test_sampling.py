"""Which tests a sample takes: shared ones run with one framework each, and none is left out of all of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sampling

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
