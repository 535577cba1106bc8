"""The pytest plugin, and what an author sees: skips, missing fixtures, expected failures, the report."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

SUBJECT = """
import numpy as np
import pytest
from anyaccel.testing import BackendTests, ComputeTests, ExchangeTests, Subject, TinyBackend, suite

class Tiny(Subject):
    @pytest.fixture
    def backend(self):
        return TinyBackend("tiny", ("cpu", "gpu:0"))
"""
TENSORS = """
    @pytest.fixture
    def tensor(self, backend):
        return lambda array: backend.new(array)

    @pytest.fixture
    def read(self):
        return lambda cell: np.array(cell.value)
"""


@pytest.fixture
def run(tmp_path: Path):
    """`run(source, *arguments, **files)` runs pytest over a test file in a folder of its own; gives what it printed."""

    def run(
        source: str, *arguments: str, ini: str = "", files: dict[str, str] | None = None, **environment: str
    ) -> str:
        (tmp_path / "test_it.py").write_text(source, "utf-8")
        (tmp_path / "pytest.ini").write_text(f"[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n{ini}\n")
        for name, text in (files or {}).items():
            (tmp_path / name).write_text(text, "utf-8")
        plugins = ["-p", "no:cacheprovider"]
        if not entry_points(group="pytest11", name="anyaccel"):
            plugins += ["-p", "anyaccel.testing.pytest_plugin"]
        path = os.pathsep.join(str(Path(each).resolve()) for each in filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": path, **environment}
        command = [sys.executable, "-m", "pytest", "-rsxXfE", *plugins, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
        return done.stdout + done.stderr

    return run


def test_classes_may_be_derived_by_hand_too(run):
    said = run(f"{SUBJECT}{TENSORS}\nclass TestIt(Tiny, BackendTests): ...", "-k", "device or move")
    assert "failed" not in said and " passed" in said


def test_a_capability_that_is_not_declared_is_skipped_with_its_name(run):
    said = run(
        f"{SUBJECT}{TENSORS}\nglobals().update(suite(Tiny))", "-k", "Exchange or Compute or MultiStepProgram or Memory"
    )
    for capability in ("exchange", "compute", "stepping", "memory"):
        assert f"{capability} is not declared" in said
    assert "passed" not in said and "failed" not in said


def test_one_device_only_is_a_reason_to_skip(run):
    source = SUBJECT.replace(', "gpu:0"', ",")
    said = run(f"{source}{TENSORS}\nclass TestIt(Tiny, BackendTests): ...", "-k", "move_lands")
    assert "one device only" in said


@pytest.mark.parametrize(
    ("missing", "test"), [("new_tensor", "scope_ends"), ("tensor", "move_lands"), ("read", "move_keeps")]
)
def test_a_fixture_that_is_missing_is_told_by_name(run, missing, test):
    said = run(f"{SUBJECT}\nclass TestIt(Tiny, BackendTests): ...", "-k", test)
    wanted = "tensor" if missing == "read" else missing
    assert f"the kit needs the fixture {wanted!r}: see anyaccel.testing.Subject" in said


def test_asserts_of_the_kit_explain_themselves(run):
    source = SUBJECT.replace('TinyBackend("tiny", ("cpu", "gpu:0"))', 'TinyBackend("tiny", ("cpu", "cpu"))')
    said = run(f"{source}\nclass TestIt(Tiny, BackendTests): ...", "-k", "listed_once")
    assert "assert 1 == 2" in said


FAILING = """
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


def test_tests_that_the_file_names_must_fail(run):
    lines = "# because of x\nTestIt::test_all   # both\n\ntest_it.py::TestIt::test_some[2]\n"
    said = run(FAILING, files={"expected.txt": lines}, **XFAIL)
    assert "2 passed, 3 xfailed" in said
    assert "stands in expected.txt" in said


def test_a_test_that_the_file_names_and_that_passes_is_a_failure(run):
    said = run(FAILING, "-k", "fine", files={"expected.txt": "test_fine"}, **XFAIL)
    assert "XPASS(strict)" in said and "1 failed" in said


def test_a_file_that_is_not_there_is_told(run):
    said = run(FAILING, **XFAIL)
    assert "anyaccel_xfail:" in said and "expected.txt cannot be read" in said


def test_the_report_says_what_is_tested(run):
    source = f"{SUBJECT}{TENSORS}\nglobals().update(suite(Tiny))"
    said = run(source, "--collect-only", ANYACCEL_PLUGINS="", ANYACCEL_SIMULATE="2")
    assert "anyaccel plugins: numpy (anyaccel" in said
    assert "anyaccel backends: numpy " in said
    assert "anyaccel settings: ANYACCEL_PLUGINS=, ANYACCEL_SIMULATE=2" in said


UNUSED = """
import sys

def test_nothing_is_imported():
    heavy = {"numpy", "hypothesis", "torch", "anyaccel.backend", "anyaccel.registry", "anyaccel.testing.subject"}
    assert not heavy & set(sys.modules)
"""


def test_it_costs_nothing_where_the_kit_is_not_used(run):
    others = {entry.name for entry in entry_points(group="pytest11")} - {"anyaccel"}
    said = run(UNUSED, *(part for name in sorted(others) for part in ("-p", f"no:{name}")))
    assert "1 passed" in said
    assert "anyaccel plugins" not in said


WITHOUT_PYTEST = """
import sys
sys.modules["pytest"] = sys.modules["_pytest"] = sys.modules["hypothesis"] = None

from anyaccel import hookimpl
from anyaccel.registry import registry
from anyaccel.testing import TinyBackend, entry, plugin_module, write_distribution

heard = []
registry().register(plugin_module("mine", phase_start=lambda phase: heard.append(phase)), "mine")
assert registry().find("numpy") and entry("tiny", TinyBackend).name == "tiny"
try:
    from anyaccel.testing import suite
except ImportError as error:
    print("the kit needs", error.name)
"""


def test_plugins_by_hand_need_no_pytest():
    """Users enter hooks of their own where pytest is not installed."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_PYTEST], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the kit needs pytest\n", "")


def test_markers_are_known(run):
    said = run("import pytest\n@pytest.mark.gpu\n@pytest.mark.slow\ndef test_it(): ...")
    assert "1 passed" in said
