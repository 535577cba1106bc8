"""A pytest plugin that writes down what became of each test of the kit, one JSON object a line.

Loaded by `anyaccel conform` with `-p`; what is written survives a process that a framework takes down. The lines:

    {"backend": ..., "framework": ..., "kinds": [...], "devices": [...], "import_roots": [...]}    once
    {"device": "gpu:0"}                                                                     where the tests are done
    {"start": ID, "capability": ...}                                                        before each test
    {"test": ID, "capability": ..., "outcome": "passed" | "failed" | "skipped", "message": ...}
    {"broken": MESSAGE}                                                                     nothing could be collected
    {"end": true}                                                                           all tests were run
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from anyaccel.backend import Backend
from anyaccel.device import Device

OPTION = "--anyaccel-card"
CAPABILITY_MARK = "anyaccel_capability"
_ORDER = ("passed", "skipped", "failed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The file to write to."""
    parser.addoption(OPTION, default="", help="file for what became of each test, as lines of JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to write."""
    if file := config.getoption(OPTION):
        config.pluginmanager.register(Card(Path(file)), "anyaccel_card")


class Card:
    """Writes the lines, each as soon as it is known."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._capabilities: dict[str, str] = {}
        self._seen: set[str] = set()
        self._worst: tuple[str, str] = ("passed", "")

    def _write(self, **line: Any) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    # -- what is tested --------------------------------------------------------------------------------------------

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Something could not be collected: the Subject, or the backend."""
        if report.failed:
            lines = [line for line in str(report.longrepr).splitlines() if line.strip()]
            said = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
            self._write(broken=(said or lines or ["no reason was given"])[-1])

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Which capability each test belongs to."""
        for item in session.items:
            mark = item.get_closest_marker(CAPABILITY_MARK)
            self._capabilities[item.nodeid] = mark.args[0] if mark is not None else "backend"

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        """The first backend and the first device that the tests are given."""
        value = yield
        if fixturedef.argname == "backend" and isinstance(value, Backend) and "backend" not in self._seen:
            self._seen.add("backend")
            self._write(**_facts(value))
        if fixturedef.argname == "device" and isinstance(value, Device) and "device" not in self._seen:
            self._seen.add("device")
            self._write(device=str(value))
        return value

    # -- what became of it -----------------------------------------------------------------------------------------

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins, and may be the last."""
        self._worst = ("passed", "")
        self._write(start=_short(nodeid), capability=self._capabilities[nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Setup, call and teardown: the worst of them counts."""
        found = _outcome(report)
        self._worst = max(self._worst, found, key=lambda each: _ORDER.index(each[0]))
        if report.when == "teardown":
            outcome, message = self._worst
            capability = self._capabilities[report.nodeid]
            self._write(test=_short(report.nodeid), capability=capability, outcome=outcome, message=message)

    def pytest_sessionfinish(self) -> None:
        """Nothing is missing."""
        self._write(end=True)


def _facts(backend: Backend) -> dict[str, Any]:
    return {
        "backend": f"{type(backend).__module__}:{type(backend).__qualname__}",
        "framework": backend.framework,
        "kinds": list(backend.kinds),
        "devices": [str(device) for device in backend.devices()],
        "import_roots": list(backend.import_roots),
    }


def _short(nodeid: str) -> str:
    return nodeid.partition("::")[2]


def _outcome(report: pytest.TestReport) -> tuple[str, str]:
    """An expected failure is a failure here: the card says what is, not what was expected."""
    if report.passed:
        return "passed", ""
    if report.failed or hasattr(report, "wasxfail"):
        return "failed", _first_line(report)
    reason = report.longrepr[2] if isinstance(report.longrepr, Sequence) else str(report.longrepr)
    return "skipped", reason.removeprefix("Skipped: ")


def _first_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
