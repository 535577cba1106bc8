"""A pytest plugin that writes down which tests were begun, how long each took, and which failed.

It writes into the folder that ANYACCEL_MUTANTS_RECORD names. Where coverage measures, it is told the test's name.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Name the test to coverage while it runs with its fixtures, and write down its time in seconds."""
    _name_to_coverage(item.nodeid)
    _write("begun", item.nodeid)
    started = time.perf_counter()
    try:
        return (yield)
    finally:
        _write("times", [item.nodeid, time.perf_counter() - started])
        _name_to_coverage("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down what failed."""
    if report.failed:
        _write("failed", report.nodeid)


def _name_to_coverage(test: str) -> None:
    coverage = sys.modules.get("coverage")
    measurement = coverage.Coverage.current() if coverage else None
    if measurement is not None:
        measurement.switch_context(test)
        # Processes that the test starts measure under its name, which the settings take from the environment.
        os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
        os.environ["COVERAGE_PROCESS_START"] = str(Path(os.environ["ANYACCEL_MUTANTS_RECORD"]) / "coveragerc")
        os.environ["ANYACCEL_MUTANTS_TEST"] = test


def _write(what: str, entry: Any) -> None:
    folder = Path(os.environ["ANYACCEL_MUTANTS_RECORD"])
    with (folder / f"{what}-{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(entry)}\n")


def read(folder: Path, what: str) -> list[Any]:
    """What was written of `begun`, `times` or `failed`, in the order of each process."""
    files = sorted(folder.glob(f"{what}-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
