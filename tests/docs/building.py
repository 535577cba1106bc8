"""Builds a site, as `nox -s site` does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def build(source: Path, folder: Path) -> Path:
    """Build a site; a warning is an error, and what Sphinx wrote is shown then."""
    options = ("--fail-on-warning", "--keep-going", "--quiet", "-d", str(folder / "doctrees"))
    command = [sys.executable, "-m", "sphinx", "-b", "html", *options, str(source), str(folder / "html")]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return folder / "html"
