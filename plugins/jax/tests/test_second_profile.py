"""Profiles after others: XLA tells of a compiled program once, and its operations have their nodes all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_profiles_in_the_reverse_order_have_their_nodes() -> None:
    """The tests of profiles of the kit, of which the one that reads the nodes runs last."""
    tests = [f"{HERE / 'test_conformance.py'}::TestCompute::test_{name}" for name in NAMES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", *tests]
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")}
    environment = {**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env=environment)
    assert done.returncode == 0, done.stdout[-2000:]
    assert f"{len(NAMES)} passed" in done.stdout


NAMES = (
    "steps_outside_a_profile_are_not_recorded",
    "an_error_ends_a_profile",
    "profiled_steps_have_the_same_numbers",
    "a_profile_is_a_trace_with_names",
)
