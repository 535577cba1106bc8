"""Attributes of a package are imported on first use."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from anyaccel.lazy_attributes import lazy_attributes


@pytest.fixture
def package(monkeypatch):
    module = ModuleType("a_package")
    module.__all__ = ["Fraction", "b", "a"]
    module.__getattr__, module.__dir__ = lazy_attributes("a_package", {"Fraction": "fractions", "a": "no.such.module"})
    monkeypatch.setitem(sys.modules, "a_package", module)
    return module


def test_a_name_is_imported_once_when_it_is_asked_for(package):
    assert "Fraction" not in vars(package)
    assert package.Fraction(1, 2) == 0.5 and "Fraction" in vars(package)


def test_a_module_that_is_missing_is_an_import_error_and_an_unknown_name_is_none(package):
    with pytest.raises(ModuleNotFoundError):
        package.a  # noqa: B018
    with pytest.raises(AttributeError, match=r"module 'a_package' has no attribute 'zz'"):
        package.zz  # noqa: B018


def test_the_public_names_are_listed_without_importing_them(package):
    assert dir(package) == ["Fraction", "a", "b"] and "Fraction" not in vars(package)
