"""Errors: one base class, one form of message, a docstring each."""

from __future__ import annotations

import pytest

from anyaccel import errors

ALL = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.AnyaccelError)]


@pytest.mark.parametrize("cls", ALL)
def test_each_error_derives_from_the_base_class_and_has_a_docstring(cls):
    assert issubclass(cls, errors.AnyaccelError)
    assert (cls.__doc__ or "").splitlines()[0].endswith(".")


@pytest.mark.parametrize("cls", ALL)
def test_an_error_reads_problem_available_hint(cls):
    error = cls("gpu:7 is not here.", available="cpu:0", hint="use cpu:0")
    assert str(error) == "gpu:7 is not here. Available: cpu:0. Hint: use cpu:0."
    assert (error.problem, error.available, error.hint) == ("gpu:7 is not here.", "cpu:0", "use cpu:0")


@pytest.mark.parametrize(
    ("parts", "text"),
    [({}, "problem."), ({"available": "a"}, "problem. Available: a."), ({"hint": "b"}, "problem. Hint: b.")],
)
def test_a_part_that_is_empty_is_left_out(parts, text):
    assert str(errors.AnyaccelError("problem", **parts)) == text
