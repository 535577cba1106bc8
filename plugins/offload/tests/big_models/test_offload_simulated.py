"""Offload to simulated devices: the tests of files beside this one, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = ("test_offload_on_devices.py", "test_nodes_on_devices.py", "test_peaks_on_devices.py")


@pytest.mark.parametrize("name", FILES)
def test_offload_to_simulated_devices(name: str) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")}
    settings = {"ANYACCEL_PLUGINS": "torch", "ANYACCEL_TORCH_SIMULATE": "2"}
    settings["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # those of others may warn, which is an error here
    options = ["-q", "-p", "no:cacheprovider", "-W", "error"]
    command = [sys.executable, "-m", "pytest", *options, str(HERE / name)]
    done = subprocess.run(command, capture_output=True, text=True, env=kept | settings, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
