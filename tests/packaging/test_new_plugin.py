"""What `anyaccel new-plugin` writes, installed by pip far from any source. `nox -s wheel` runs these."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

FOLDER = os.environ.get("ANYACCEL_TEST_WHEELS", "")

pytestmark = pytest.mark.skipif(not FOLDER, reason="`nox -s wheel` runs these")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`run("anyaccel", "plugins")`: a module as a process, with what was installed to `site`."""

    def run(module: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"}
        environment.pop("ANYACCEL_PLUGINS", None)
        answer = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=cwd or tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer

    return run


def test_core_brings_the_templates() -> None:
    wheel = next(each for each in Path(FOLDER).glob("anyaccel-*.whl"))
    with ZipFile(wheel) as archive:
        found = [each for each in archive.namelist() if each.startswith("anyaccel/cli/templates/")]
    assert {each.split("/")[3] for each in found} == {"chip", "common", "framework"}
    assert all(each.endswith(".tmpl") for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["chip", "framework"])
def test_a_project_is_built_installed_tested_and_conforms(kind: str, run: Run, tmp_path: Path) -> None:
    folder, site = tmp_path / "project", tmp_path / "site"
    run("anyaccel", "new-plugin", "wheel_try", "--kind", kind, "--path", str(folder))
    # What it needs is installed already; only the build's own requirements are fetched.
    run("pip", "install", "--quiet", "--no-deps", "--target", str(site), str(folder))
    assert (site / "anyaccel_wheel_try/py.typed").is_file()
    assert list(site.glob("*.dist-info/licenses/LICENSE"))
    assert " passed" in run("pytest", "-q", "-p", "no:cacheprovider", cwd=folder).stdout
    told = json.loads(run("anyaccel", "conform", "anyaccel-wheel-try", "--json").stdout)
    assert (told["plugin"], told["version"], told["conforms"]) == ("wheel_try", "0.1.0", True)
    assert told["backends"][0]["backend"].startswith("anyaccel_wheel_try.")
    plugins = json.loads(run("anyaccel", "plugins", "--json").stdout)["plugins"]
    assert next(one for one in plugins if one["name"] == "wheel_try")["status"] == "ok"
