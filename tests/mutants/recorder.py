"""A pytest plugin that records which test runs which line, and how long each test takes.

It needs coverage to run, and ANYACCEL_MUTANTS_TIMES, a folder for the times.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import coverage
import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Name the test to coverage while it runs with its fixtures, and write down its time in seconds."""
    measurement = coverage.Coverage.current()
    if measurement is not None:
        measurement.switch_context(item.nodeid)
    started = time.perf_counter()
    try:
        return (yield)
    finally:
        line = json.dumps([item.nodeid, time.perf_counter() - started])
        with (Path(os.environ["ANYACCEL_MUTANTS_TIMES"]) / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        if measurement is not None:
            measurement.switch_context("")
