"""Builds a site like `nox -s site`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def build(source: Path, folder: Path) -> Path:
    """Build a site with warnings as errors; a failure shows the output of Sphinx."""
    options = ("--fail-on-warning", "--keep-going", "--quiet", "-d", str(folder / "doctrees"))
    command = [sys.executable, "-m", "sphinx", "-b", "html", *options, str(source), str(folder / "html")]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return folder / "html"
