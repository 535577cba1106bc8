"""Hints how to install a plugin, obeyed: their commands are run."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

from anyaccel import install_hints
from anyaccel.install_hints import HINTS, install_line

# Where the build backend is installed, pip need not install it for each build; `nox -s thirdparty` builds in isolation.
OPTIONS = ["--no-build-isolation"] if find_spec("hatchling") else []
PLUGINS = sorted({distribution for _, distribution in HINTS.values()})


def command_of(hint: str) -> list[str]:
    """The command of a hint, with this Python for `python`."""
    words = shlex.split(hint[hint.index("python -m pip") :])
    return [sys.executable, *words[1:]]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("distribution", PLUGINS)
@pytest.mark.parametrize("is_clone", [True, False], ids=["core in the clone", "core elsewhere"])
def test_the_hint_for_a_plugin_installs_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distribution: str, is_clone: bool
) -> None:
    if is_clone and Path(install_hints.__file__).parents[3] != root:
        pytest.skip("core is not run from this clone")
    if not is_clone:
        monkeypatch.setattr(install_hints, "__file__", str(tmp_path / "a/b/c/lib/site-packages/install_hints.py"))
    hint = install_line(distribution)
    assert ("folder of anyaccel's repository" in hint) is not is_clone
    where = tmp_path if is_clone else root  # with core in the clone the hint needs no certain folder
    command = [*command_of(hint), *OPTIONS, "--no-deps", "--quiet", "--target", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode and "hatchling" in done.stderr + done.stdout:
        pytest.skip("no index from which pip could take the build backend")
    assert done.returncode == 0, done.stderr
    names = {each.metadata["Name"] for each in distributions(path=[str(tmp_path / "site")])}
    assert names == {distribution}


@pytest.mark.parametrize("distribution", PLUGINS)
def test_the_folder_in_a_hint_is_that_of_the_plugin(root: Path, distribution: str) -> None:
    folder = root / "plugins" / Path(command_of(install_line(distribution))[-1]).name
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] == distribution and f"anyaccel-{folder.name}" == distribution


def test_other_distributions_come_from_the_index() -> None:
    assert install_line("pandas") == "python -m pip install pandas"
