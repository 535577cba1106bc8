"""A pytest plugin that writes the result of each test of the kit to a file, one JSON object a line.

`anyaccel conform` loads it with `-p`. Lines that were written survive a crash of the process. The lines:

    {"backend": ..., "framework": ..., "kinds": [...], "devices": [...], "import_roots": [...]}    once
    {"device": "gpu:0"}                                                                     the device of the tests
    {"start": ID, "capability": ...}                                                        before each test
    {"test": ID, "capability": ..., "outcome": "passed" | "failed" | "skipped", "message": ...}
    {"broken": MESSAGE}                                                                     collection failed
    {"end": true}                                                                           all tests have run
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from anyaccel.backend import Backend
from anyaccel.device import Device
from anyaccel_devtools.testing.pytest_plugin import capability_of

OPTION = "--anyaccel-report"
_SEVERITY = ("passed", "skipped", "failed")
_GROUP = re.compile(r"(\w+\.)*(Base)?ExceptionGroup: |  \+ Exception Group")
_ERROR = re.compile(r"(\w+\.)*[A-Z]\w+(: .*)?")
_NUMPY = re.compile(r"(Not|Arrays are not|Items are not) (almost )?equal")
_ONLY_VALUES = re.compile(r"assert ((not|and|or|in|is|True|False|None|nan|inf)\b|[-\d.e+\s()<>=!,\[\]])+")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the file."""
    parser.addoption(OPTION, default="", help="file for the result of each test, as lines of JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Start the report if a file was named."""
    if file := config.getoption(OPTION):
        config.pluginmanager.register(JsonReport(Path(file)), "anyaccel_json_report")


class JsonReport:
    """Write each line as soon as possible."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._capabilities: dict[str, str] = {}
        self._written: set[str] = set()
        self._worst: tuple[str, str] = ("passed", "")

    def _write(self, **line: Any) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    # -- what is tested --------------------------------------------------------------------------------------------

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write why collection failed: an error in the Subject or in the backend."""
        if report.failed:
            lines = [line for line in str(report.longrepr).splitlines() if line.strip()]
            errors = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
            self._write(broken=(errors or lines or ["no reason was given"])[-1])

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Remember the capability of each test."""
        self._capabilities = {item.nodeid: capability_of(item) or "backend" for item in session.items}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        """Write the first backend and the first device that tests get."""
        value = yield
        name = fixturedef.argname
        if name not in self._written:
            if name == "backend" and isinstance(value, Backend):
                self._written.add(name)
                self._write(**_description(value))
            elif name == "device" and isinstance(value, Device):
                self._written.add(name)
                self._write(device=str(value))
        return value

    # -- results ---------------------------------------------------------------------------------------------------

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Write that a test starts: if the process crashes, it is the one to blame."""
        self._worst = ("passed", "")
        self._write(start=_short_id(nodeid), capability=self._capabilities[nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the worst outcome of setup, call and teardown."""
        if report.passed:
            result = "passed", ""
        elif report.failed or hasattr(report, "wasxfail"):
            crash = getattr(report.longrepr, "reprcrash", None)
            text = str(report.longrepr) if crash is None else crash.message
            if _GROUP.match(text):
                lines = [line.strip(" |+-") for line in str(report.longrepr).splitlines()]
                errors = [i for i, line in enumerate(lines) if _ERROR.fullmatch(line) and not _GROUP.match(line)]
                text = "\n".join(lines[errors[0] :] if errors else lines)
            lines = list(filter(None, map(str.strip, text.removeprefix("AssertionError").lstrip(": ").splitlines())))
            if not lines or _ONLY_VALUES.fullmatch(lines[0]):
                source, values = _failed_statement(report), "".join(lines[:1]).removeprefix("assert ")
                shown = f" ({values})" if " " in values else ""  # `assert False` has no values
                first_line = f"{source}{shown}" if source else "".join(lines[:1]) or text
            else:
                first_line = _with_figures(lines) if _NUMPY.match(lines[0]) else lines[0]
            result = "failed", first_line
        else:
            reason = report.longrepr[2] if isinstance(report.longrepr, Sequence) else str(report.longrepr)
            result = "skipped", reason.removeprefix("Skipped: ")
        self._worst = max(self._worst, result, key=lambda outcome: _SEVERITY.index(outcome[0]))
        if report.when == "teardown":
            outcome, message = self._worst
            capability = self._capabilities[report.nodeid]
            self._write(test=_short_id(report.nodeid), capability=capability, outcome=outcome, message=message)

    def pytest_sessionfinish(self) -> None:
        """Write that the report is complete."""
        self._write(end=True)


def _description(backend: Backend) -> dict[str, Any]:
    return {
        "backend": f"{type(backend).__module__}:{type(backend).__qualname__}",
        "framework": backend.framework,
        "kinds": list(backend.kinds),
        "devices": [str(device) for device in backend.devices()],
        "import_roots": list(backend.import_roots),
    }


def _short_id(node_id: str) -> str:
    return node_id.partition("::")[2]


def _with_figures(lines: list[str]) -> str:
    """Return NumPy's message about two arrays that differ, without the arrays."""
    figures = [line for line in lines[1:] if line.startswith(("Mismatched elements", "Max absolute"))]
    label = [line for line in lines[1:2] if line not in figures]
    return "; ".join([lines[0], *label, *figures])


def _failed_statement(report: pytest.TestReport) -> str:
    """Return the source of the statement that failed, as one line; `""` if the traceback does not have it."""
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", [])
    lines: list[str] = getattr(entries[-1], "lines", []) if entries else []
    start = next((i for i, line in enumerate(lines) if line.startswith(">")), len(lines))
    source = [line.removeprefix(">").strip() for line in lines[start:] if not line.startswith("E ")]
    return " ".join(line for line in source if line.strip("^"))
