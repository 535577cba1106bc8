"""`suite` and `model_suite`: which tests they have."""

from __future__ import annotations

import pytest

from anyaccel_devtools.testing import Subject, model_suite, suite
from anyaccel_devtools.testing.suites import MODEL_TESTS


class Odd(Subject):
    """A Subject without fixtures."""


def names(cls: type) -> set[str]:
    return {name for name in dir(cls) if name.startswith("test_") and callable(getattr(cls, name))}


@pytest.mark.parametrize("tests", MODEL_TESTS, ids=lambda cls: cls.__name__)
def test_the_tests_of_models_are_tests_of_the_kit(tests: type) -> None:
    chosen = MODEL_TESTS[tests]
    single = [each for each in chosen if isinstance(each, str)]
    assert set(single) <= names(tests) and len(set(single)) == len(single)
    assert all(issubclass(tests, each) for each in chosen if not isinstance(each, str))


def test_a_model_suite_has_these_tests_and_no_other() -> None:
    whole, part = suite(Odd, "Odd"), model_suite(Odd, "Odd")
    assert list(part) == ["TestOddCompute", "TestOddMultiStep"]
    for title, cls in part.items():
        assert issubclass(cls, Odd) and cls.__name__ == title
        assert names(cls) < names(whole[title])
    compute, steps = part.values()
    assert {"test_infer_gives_shape_and_dtype", "test_a_tied_parameter_decays_once"} <= names(compute)
    assert not {"test_an_optimizer_follows_its_formula", "test_a_clip_factor_follows_its_formula"} & names(compute)
    assert names(steps) == set(MODEL_TESTS[steps.__mro__[2]])
