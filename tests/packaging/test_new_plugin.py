"""Projects of `anyaccel new-plugin`, installed by pip away from the sources. `nox -s wheel` runs these."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest

FOLDER = os.environ.get("ANYACCEL_TEST_WHEELS", "")

pytestmark = pytest.mark.skipif(not FOLDER, reason="`nox -s wheel` runs these")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`run("anyaccel", "plugins")`: runs a module in a child process, with what was installed to `site`."""

    def run(module: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"}
        environment.pop("ANYACCEL_PLUGINS", None)
        child = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=cwd or tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert child.returncode == 0, child.stdout + child.stderr
        return child

    return run


def test_the_wheel_contains_the_templates() -> None:
    wheel = next(each for each in Path(FOLDER).glob("anyaccel_devtools-*.whl"))
    with ZipFile(wheel) as archive:
        templates = [each for each in archive.namelist() if each.startswith("anyaccel_devtools/commands/templates/")]
    assert {each.split("/")[3] for each in templates} == {"chip", "common", "framework"}
    assert all(each.endswith(".tmpl") for each in templates)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["chip", "framework"])
def test_a_project_can_be_built_installed_and_tested_and_conforms(kind: str, run: Run, tmp_path: Path) -> None:
    folder, site = tmp_path / "project", tmp_path / "site"
    run("anyaccel", "new-plugin", "wheel_try", "--kind", kind, "--path", str(folder))
    # Its dependencies are installed already, and where hatchling is, its build requirements, too.
    options = ["--no-build-isolation"] if find_spec("hatchling") else []
    run("pip", "install", "--quiet", "--no-deps", *options, "--target", str(site), str(folder))
    assert (site / "anyaccel_wheel_try/py.typed").is_file()
    assert list(site.glob("*.dist-info/licenses/LICENSE"))
    assert " passed" in run("pytest", "-q", "-p", "no:cacheprovider", cwd=folder).stdout
    report = json.loads(run("anyaccel", "conform", "anyaccel-wheel-try", "--json").stdout)
    assert (report["plugin"], report["version"], report["conforms"]) == ("wheel_try", "0.1.0", True)
    assert report["backends"][0]["backend"].startswith("anyaccel_wheel_try.")
    plugins = json.loads(run("anyaccel", "plugins", "--json", "--timeout", "300").stdout)["plugins"]
    assert next(each for each in plugins if each["name"] == "wheel_try")["status"] == "ok"
