"""The kit detects faults: each wrong backend fails its own test and none of another capability."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from anyaccel_devtools.testing.suites import CLASSES

from .broken.faults import all_faults

FAULTS = all_faults()
SUITE = Path(__file__).parent / "broken/suite.py"
CAPABILITIES = {cls.__name__.removesuffix("Tests"): cls.capability for cls in CLASSES}


@dataclass(frozen=True)
class Result:
    """The result of one test of the kit over one wrong backend."""

    fault: str
    capability: str
    test: str
    failed: bool

    @property
    def function(self) -> str:
        """The test's name without its parameters."""
        return self.test.partition("[")[0]


def read_report(report: Path) -> Iterator[Result]:
    """The results in a JUnit report, without skipped tests."""
    for case in ElementTree.parse(report).iter("testcase"):
        title = case.get("classname", "").rpartition(".")[2]
        fault, suffix = re.fullmatch(rf"Test(.*)({'|'.join(CAPABILITIES)})", title).groups()
        if case.find("skipped") is None:
            failed = any(case.find(tag) is not None for tag in ("failure", "error"))
            yield Result(fault, CAPABILITIES[suffix], case.get("name", ""), failed)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """Every test of the kit over every wrong backend, run in one child process."""
    report = tmp_path_factory.mktemp("kit") / "report.xml"
    options = ["-q", "--tb=no", "-o", "addopts=", "--import-mode=importlib", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", str(SUITE)]
    # Coverage is not measured: it would take twice as long, and other tests show the same lines.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    # The kit imports some of the backends by name in processes of its own.
    path = [str(SUITE.parents[2]), *filter(None, sys.path)]
    environment = {**kept, "PYTHONPATH": os.pathsep.join(path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    child = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert report.exists(), child.stdout + child.stderr
    return list(read_report(report))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fails_its_own_test_and_none_of_another_capability(results: list[Result], name: str) -> None:
    fault = FAULTS[name]
    failed = [result for result in results if result.fault == name and result.failed]
    assert fault.test in [result.test for result in failed if result.capability == fault.capability]
    assert not [result for result in failed if result.capability not in (fault.capability, fault.also)]


def test_every_test_of_the_kit_fails_over_some_wrong_backend(results: list[Result]) -> None:
    passed_always = {(r.capability, r.function) for r in results} - {
        (r.capability, r.function) for r in results if r.failed
    }
    assert not sorted(passed_always)


def test_every_test_of_the_kit_runs_over_some_wrong_backend(results: list[Result]) -> None:
    """A test that is skipped over all of them would check nothing."""
    kit = {(cls.capability, name) for cls in CLASSES for name in dir(cls) if name.startswith("test_")}
    assert kit == {(result.capability, result.function) for result in results}
