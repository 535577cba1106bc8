"""What is published about core and plugins: honest versions, wide requirements, entry points that load."""

from __future__ import annotations

import tomllib
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import anyaccel


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
    for folder, project in projects(root).items():
        assert not [each for each in project["dependencies"] if "==" in each], folder


def test_plugins_require_one_minor_version_of_core(root: Path) -> None:
    major, minor, *_ = (int(part) for part in version("anyaccel").split(".")[:2])
    requirement = f"anyaccel>={major}.{minor},<{major}.{minor + 1}"
    for folder, project in projects(root).items():
        assert folder == "core" or requirement in project["dependencies"], folder


def test_every_distribution_carries_the_license(root: Path) -> None:
    text = (root / "LICENSE").read_bytes()
    for folder, project in projects(root).items():
        assert project["license"] == "Apache-2.0", folder
        assert (root / folder / "LICENSE").read_bytes() == text, folder


def test_every_plugin_has_its_framework_pinned_for_tests(root: Path) -> None:
    groups = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    plugins = {folder.removeprefix("plugins/") for folder in projects(root)} - {"core"}
    assert plugins <= groups.keys()
    assert all("==" in each for name in plugins for each in groups[name])


def test_no_requirement_depends_on_the_system(root: Path) -> None:
    """In the predecessor, extras with a marker for one system silently installed nothing on others."""
    for folder, project in projects(root).items():
        extras = project.get("optional-dependencies", {}).values()
        requirements = [*project["dependencies"], *(each for extra in extras for each in extra)]
        assert not [each for each in requirements if "platform" in each], folder
