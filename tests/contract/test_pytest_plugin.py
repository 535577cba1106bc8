"""The kit's pytest plugin, and what a plugin author sees: skips, missing fixtures, expected failures, the header."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOAD = "pytest_plugins = ['anyaccel_devtools.testing.pytest_plugin']\n"
SUBJECT = """
import numpy as np
import pytest
from anyaccel.plugin_testing import TinyBackend
from anyaccel_devtools.testing import BackendTests, ComputeTests, ExchangeTests, Subject, suite

class Tiny(Subject):
    @pytest.fixture
    def backend(self):
        return TinyBackend("tiny", ("cpu", "gpu:0"))
"""
TENSORS = """
    @pytest.fixture
    def from_numpy(self, backend):
        return lambda array: backend.new(array)

    @pytest.fixture
    def to_numpy(self):
        return lambda cell: np.array(cell.value)
"""


@pytest.fixture
def run(tmp_path: Path):
    """`run(source, *arguments, **settings)` runs pytest over a test file in a folder of its own; returns its output."""

    def run(
        source: str, *arguments: str, ini: str = "", files: dict[str, str] | None = None, **environment: str
    ) -> str:
        (tmp_path / "test_it.py").write_text(source, "utf-8")
        (tmp_path / "pytest.ini").write_text(
            f"[pytest]\naddopts = --strict-markers --strict-config\nfilterwarnings = error\n{ini}\n"
        )
        for name, text in (files or {}).items():
            (tmp_path / name).write_text(text, "utf-8")
        path = os.pathsep.join(str(Path(each).resolve()) for each in filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
        command = [sys.executable, "-m", "pytest", "-rsxXfE", "-p", "no:cacheprovider", *arguments]
        child = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
        return child.stdout + child.stderr

    return run


def test_the_kit_runs_without_its_pytest_plugin(run):
    output = run(f"{SUBJECT}{TENSORS}\nglobals().update(suite(Tiny))", "-k", "move or gather_rows")
    assert "failed" not in output and "error" not in output and " passed" in output
    assert "exchange is not declared" in output
    assert "anyaccel plugins" not in output


def test_classes_may_be_derived_by_hand(run):
    output = run(f"{SUBJECT}{TENSORS}\nclass TestIt(Tiny, BackendTests): ...", "-k", "device or move")
    assert "failed" not in output and " passed" in output


def test_a_capability_that_is_not_declared_is_skipped_with_its_name(run):
    output = run(
        f"{SUBJECT}{TENSORS}\nglobals().update(suite(Tiny))", "-k", "Exchange or Compute or MultiStep or Memory"
    )
    for capability in ("exchange", "compute", "multi_step", "memory"):
        assert f"{capability} is not declared" in output
    assert "passed" not in output and "failed" not in output


def test_tests_that_need_two_devices_are_skipped_where_there_is_one(run):
    source = SUBJECT.replace(', "gpu:0"', ",")
    output = run(f"{source}{TENSORS}\nclass TestIt(Tiny, BackendTests): ...", "-k", "move_keeps_values")
    assert "one device only" in output


@pytest.mark.parametrize(
    ("missing", "test"),
    [("new_tensor", "scope_restores"), ("from_numpy", "move_to_the_same"), ("to_numpy", "place_moves_between")],
)
def test_a_missing_fixture_is_named(run, missing, test):
    tensors = TENSORS.replace(f"def {missing}(", "def other(")
    output = run(f"{SUBJECT}{tensors}\nclass TestIt(Tiny, BackendTests): ...", "-k", test)
    assert f"the kit needs the fixture {missing!r}. Hint: see anyaccel_devtools.testing.Subject" in output


def test_asserts_of_the_kit_explain_themselves(run):
    source = SUBJECT.replace('TinyBackend("tiny", ("cpu", "gpu:0"))', 'TinyBackend("tiny", ("cpu", "cpu"))')
    output = run(f"{source}\nclass TestIt(Tiny, BackendTests): ...", "-k", "listed_once")
    assert "assert 1 == 2" in output


FAILING = f"""
{LOAD}
import pytest

class TestIt:
    @pytest.mark.parametrize("n", [1, 2])
    def test_all(self, n):
        assert n < 0

    @pytest.mark.parametrize("n", [1, 2])
    def test_some(self, n):
        assert n == 1

def test_fine(): ...
"""
XFAIL = {"ini": "anyaccel_xfail = expected.txt"}


def test_listed_tests_must_fail(run):
    lines = "# because of x\nTestIt::test_all   # both\n\ntest_it.py::TestIt::test_some[2]\n"
    output = run(FAILING, files={"expected.txt": lines}, **XFAIL)
    assert "2 passed, 3 xfailed" in output
    assert "listed in expected.txt" in output


def test_a_listed_test_that_passes_is_a_failure(run):
    output = run(FAILING, "-k", "fine", files={"expected.txt": "test_fine"}, **XFAIL)
    assert "XPASS(strict)" in output and "1 failed" in output


def test_a_missing_file_is_reported(run):
    output = run(FAILING, **XFAIL)
    assert "anyaccel_xfail:" in output and "expected.txt cannot be read" in output


def test_the_header_says_what_is_tested(run):
    source = f"{LOAD}{SUBJECT}{TENSORS}\nglobals().update(suite(Tiny))"
    output = run(source, "--collect-only", ANYACCEL_PLUGINS="", ANYACCEL_SIMULATE="2")
    assert "anyaccel plugins: numpy (anyaccel" in output
    assert "anyaccel backends: numpy " in output
    assert "anyaccel settings: ANYACCEL_PLUGINS=, ANYACCEL_SIMULATE=2" in output


def test_the_marker_selects_tests_of_a_capability(run):
    source = f"{LOAD}{SUBJECT}{TENSORS}\nglobals().update(suite(Tiny))"
    output = run(source, "--collect-only", "-q", "-m", "anyaccel_capability(name='memory')")
    assert "::TestMemory::" in output
    assert "::TestBackend::" not in output


@pytest.mark.parametrize("conftest", [False, True])
def test_it_can_be_loaded_by_a_test_file_or_a_conftest(run, conftest):
    test = "def test_fine(): ..."
    output = run(test if conftest else LOAD + test, "-k", "fine", files={"conftest.py": LOAD} if conftest else {})
    assert "1 passed" in output


UNUSED = f"""
{LOAD}
import sys

def test_nothing_is_imported():
    kit = "anyaccel_devtools.testing.subject"
    heavy = {{"numpy", "hypothesis", "torch", "anyaccel.backend", "anyaccel.registry", kit}}
    assert not heavy & set(sys.modules)
"""


def test_it_imports_nothing_heavy_where_the_kit_is_not_used(run):
    output = run(UNUSED)
    assert "1 passed" in output
    assert "anyaccel plugins" not in output


WITHOUT_PYTEST = """
import sys
sys.modules["pytest"] = sys.modules["_pytest"] = sys.modules["hypothesis"] = None

from anyaccel import hookimpl
from anyaccel.registry import registry
from anyaccel.plugin_testing import TinyBackend, entry, plugin_module, write_distribution

phases = []
registry().register(plugin_module("mine", phase_start=lambda phase: phases.append(phase)), "mine")
assert registry().find("numpy") and entry("tiny", TinyBackend).name == "tiny"
try:
    from anyaccel_devtools.testing import suite
except ImportError as error:
    print("the kit needs", error.name)
"""


def test_the_fakes_need_no_pytest():
    """Users register hooks of their own where pytest is not installed."""
    child = subprocess.run([sys.executable, "-c", WITHOUT_PYTEST], capture_output=True, text=True, check=False)
    assert (child.returncode, child.stdout, child.stderr) == (0, "the kit needs pytest\n", "")


def test_its_markers_are_known(run):
    output = run("import pytest\n@pytest.mark.gpu\n@pytest.mark.slow\ndef test_it(): ...", files={"conftest.py": LOAD})
    assert "1 passed" in output
