"""What is published about core and plugins: honest versions, wide requirements, entry points that load."""

from __future__ import annotations

import tomllib
from importlib.metadata import entry_points, version
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import anyaccel
from anyaccel.distributions import OFFERED, load
from anyaccel.install_hints import DISTRIBUTIONS


def projects(root: Path) -> dict[str, dict[str, Any]]:
    """The `[project]` table of each distribution, by its folder."""
    files = [root / "core/pyproject.toml", *sorted(root.glob("plugins/*/pyproject.toml"))]
    return {
        file.parent.relative_to(root).as_posix(): tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        for file in files
    }


def test_versions_agree() -> None:
    assert anyaccel.__version__ == version("anyaccel")


def test_the_console_script_loads() -> None:
    command = entry_points(group="console_scripts", name="anyaccel")
    assert [callable(each.load()) for each in command] == [True]


def test_no_distribution_loads_itself_into_every_pytest_run(root: Path) -> None:
    """The kit's pytest plugin is loaded where a project asks for it."""
    for folder, project in projects(root).items():
        assert "pytest11" not in project.get("entry-points", {}), folder


def test_published_requirements_are_wide(root: Path) -> None:
    """But for those of anyaccel's own distributions, which go together."""
    for folder, project in projects(root).items():
        others = [each for each in project["dependencies"] if not each.startswith("anyaccel")]
        assert not [each for each in others if "==" in each], folder


def test_all_distributions_have_one_version_and_require_it_of_each_other(root: Path) -> None:
    for folder, project in projects(root).items():
        assert project["version"] == version("anyaccel"), folder
        extras = project.get("optional-dependencies", {}).values()
        required = [each for each in (*project["dependencies"], *chain(*extras)) if each.startswith("anyaccel")]
        assert all(each.endswith(f"=={project['version']}") for each in required), folder
        assert folder == "core" or f"anyaccel=={project['version']}" in required, folder


def test_every_distribution_is_known_to_core(root: Path) -> None:
    assert {project["name"] for project in projects(root).values()} - {"anyaccel"} <= DISTRIBUTIONS


@pytest.mark.parametrize("group", OFFERED)
def test_core_knows_what_each_of_its_distributions_offers(root: Path, group: str) -> None:
    """For the message where one is not installed."""
    offered = {
        project["name"]: set(project["entry-points"][group])
        for project in projects(root).values()
        if group in project.get("entry-points", {})
    }
    assert {home: set(names.split()) for home, names in OFFERED[group].items()} == offered
    for name in set().union(*offered.values()):
        assert load(group, name) is not None


def test_all_brings_every_feature_and_no_framework(root: Path) -> None:
    features = {home for names in OFFERED.values() for home in names}
    extras = projects(root)["core"]["optional-dependencies"]
    assert {each.partition("==")[0] for each in extras.get("all", [])} == features


def test_every_distribution_carries_the_license(root: Path) -> None:
    text = (root / "LICENSE").read_bytes()
    for folder, project in projects(root).items():
        assert project["license"] == "Apache-2.0", folder
        assert (root / folder / "LICENSE").read_bytes() == text, folder


def test_every_plugin_has_its_framework_pinned_for_tests(root: Path) -> None:
    groups = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    features = {home.removeprefix("anyaccel-") for names in OFFERED.values() for home in names}
    plugins = {folder.removeprefix("plugins/") for folder in projects(root)} - {"core", *features}
    assert plugins <= groups.keys()
    assert all("==" in each for name in plugins for each in groups[name])


def test_no_requirement_depends_on_the_system(root: Path) -> None:
    """In the predecessor, extras with a marker for one system silently installed nothing on others.

    `isal` only saves time: zlib computes the same checksums where it has no wheel.
    """
    for folder, project in projects(root).items():
        extras = project.get("optional-dependencies", {}).values()
        requirements = [*project["dependencies"], *(each for extra in extras for each in extra)]
        assert not [each for each in requirements if "platform" in each and not each.startswith("isal")], folder
