"""The contents of the wheels that `nox -s wheel` builds and installs."""

from __future__ import annotations

import os
import re
import sys
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

import anyaccel

FOLDER = os.environ.get("ANYACCEL_TEST_WHEELS", "")

pytestmark = pytest.mark.skipif(not FOLDER, reason="`nox -s wheel` runs these")


def wheels() -> list[Path]:
    return sorted(Path(FOLDER).glob("*.whl")) if FOLDER else []


def core_wheel() -> Path:
    return next(each for each in wheels() if each.name.startswith("anyaccel-"))


IMPORTED_ONLY = ("anyaccel_optuna-",)


def names_in(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata_of(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_installed_package_is_tested() -> None:
    assert "site-packages" in Path(anyaccel.__file__).parts
    assert not [each for each in sys.path if Path(each).name == "src"]


@pytest.mark.parametrize("wheel", wheels(), ids=lambda wheel: wheel.name.partition("-")[0])
def test_a_wheel_contains_type_information_and_license(wheel: Path) -> None:
    package = wheel.name.partition("-")[0]
    names = names_in(wheel)
    assert f"{package}/py.typed" in names
    assert [each for each in names if each.endswith(".dist-info/licenses/LICENSE")]
    assert metadata_of(wheel)["License-Expression"] == "Apache-2.0"
    assert {each.partition("/")[0].partition("-")[0] for each in names} == {package}, "a wheel has a single package"


@pytest.mark.parametrize("wheel", wheels(), ids=lambda wheel: wheel.name.partition("-")[0])
def test_a_wheel_contains_no_tests_and_caches(wheel: Path) -> None:
    assert not [each for each in names_in(wheel) if "__pycache__" in each or Path(each).name.startswith("test_")]


def test_the_wheel_of_core_contains_its_data() -> None:
    names = names_in(core_wheel())
    assert [each for each in names if each.startswith("anyaccel/data/") and not each.endswith(".py")]


def test_every_plugin_has_an_entry_point() -> None:
    """Of backends and hooks, of launchers, or of what a feature adds; one that users only import has none."""
    for wheel in wheels():
        if wheel != core_wheel() and not wheel.name.startswith(IMPORTED_ONLY):
            with ZipFile(wheel) as archive:
                name = next(each for each in archive.namelist() if each.endswith(".dist-info/entry_points.txt"))
                groups = set(re.findall(r"^\[(.+)\]$", archive.read(name).decode(), flags=re.MULTILINE))
                assert any(group.split(".")[0] == "anyaccel" for group in groups), wheel.name
