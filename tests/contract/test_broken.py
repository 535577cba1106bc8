"""The kit is tested: over each wrong backend, its own test fails and no test of another capability does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from xml.etree import ElementTree

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # the suite is made of modules beside this one, which a child process imports, too

from broken import all_faults  # noqa: E402

FAULTS = all_faults()
CAPABILITIES = ("Backend", "Exchange", "Compute", "MultiStepProgram", "Memory")


@dataclass(frozen=True)
class Case:
    """One test of the kit over one wrong backend."""

    fault: str
    capability: str
    name: str
    failed: bool

    @property
    def function(self) -> str:
        """The name without parameters."""
        return self.name.partition("[")[0]


def cases(report: Path) -> Iterator[Case]:
    """What a report of pytest's says, but for what was skipped."""
    for found in ElementTree.parse(report).iter("testcase"):
        title = found.get("classname", "").rpartition(".")[2].removeprefix("Test")
        capability = next(end for end in CAPABILITIES if title.endswith(end))
        if found.find("skipped") is None:
            failed = any(found.find(tag) is not None for tag in ("failure", "error"))
            yield Case(title.removesuffix(capability), capability.lower(), found.get("name", ""), failed)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """Every test of the kit over every wrong backend, in one child process."""
    report = tmp_path_factory.mktemp("kit") / "report.xml"
    plugins = ["-p", "no:cacheprovider", "-p", "broken"]
    if not entry_points(group="pytest11", name="anyaccel"):
        plugins += ["-p", "anyaccel.testing.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-o", "addopts=", *plugins, f"--junitxml={report}"]
    # Unmeasured where coverage is: it would take twice as long, and all that it shows is shown by other tests, too.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    environment = {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [*command, str(HERE / "broken_suite.py")], capture_output=True, text=True, env=environment, check=False
    )
    assert report.exists(), done.stdout + done.stderr
    return list(cases(report))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fails_its_own_test_and_none_of_another_capability(ran: list[Case], name: str) -> None:
    wrong = FAULTS[name]
    failed = [case for case in ran if case.fault == name and case.failed]
    assert wrong.own in [case.name for case in failed if case.capability == wrong.capability]
    assert not [case for case in failed if case.capability != wrong.capability]


def test_every_test_of_the_kit_can_fail(ran: list[Case]) -> None:
    """There is a wrong backend for each promise."""
    never = {(c.capability, c.function) for c in ran} - {(c.capability, c.function) for c in ran if c.failed}
    assert not sorted(never)


def test_every_test_of_the_kit_was_run(ran: list[Case]) -> None:
    """None is skipped over all of them: it would promise nothing."""
    from anyaccel.testing.suites import CLASSES

    kit = {(cls.__name__.removesuffix("Tests").lower(), name) for cls in CLASSES for name in dir(cls)}
    wanted = {(capability, name) for capability, name in kit if name.startswith("test_")}
    assert wanted == {(case.capability, case.function) for case in ran}
