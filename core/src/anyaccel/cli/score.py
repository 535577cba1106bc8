"""The score of one backend: the kit run in a process of its own, and counted by capability."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyaccel.cli.console import print_line, print_table
from anyaccel.device import Device
from anyaccel.errors import PluginError

CAPABILITIES = ("backend", "exchange", "compute", "multi_step", "memory")
UNDECLARED = "is not declared"
_COLUMNS = ("passed", "failed", "not_declared", "not_testable_here")
_TESTS = """\
from hypothesis import settings

settings.register_profile("card", deadline=None, derandomize=True, database=None)
settings.load_profile("card")

from anyaccel.testing import suite
from anyaccel.testing.subject_discovery import select_subject

globals().update(suite(select_subject({plugin!r}, {index}, {subject!r}, {device!r})))
"""
# What a user has set for other runs of pytest, and plugins that are there for other tests, must not change the score.
_SWITCHED_OFF = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")


@dataclass
class Score:
    """What became of the tests of one backend.

    Attributes:
        subject: the published Subject, `""` where one was derived.
        facts: what the backend says of itself, and `device`, where the tests were done.
        counts: passed, failed, not declared and not testable here, by capability.
        failures: tests that failed: id, capability, and first line of the message.
        reasons: why tests could not be done here, and how many.
        broken: why nothing could be tested; `""` if something was.
    """

    subject: str
    facts: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[dict[str, str]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    broken: str = ""

    def enter(self, line: dict[str, Any]) -> None:
        """Take one line of `anyaccel.testing.json_report`."""
        if "test" in line:
            self._count(line)
        elif "broken" in line:
            self.broken = line["broken"]
        elif "backend" in line or "device" in line:
            self.facts.update(line)

    def _count(self, line: dict[str, str]) -> None:
        counts = self.counts.setdefault(line["capability"], Counter())
        if line["outcome"] != "skipped":
            counts[line["outcome"]] += 1
        elif line["message"].endswith(UNDECLARED):
            counts["not_declared"] += 1
        else:
            counts["not_testable_here"] += 1
            self.reasons[line["message"]] += 1
        if line["outcome"] == "failed":
            self.failures.append({"id": line["test"], "capability": line["capability"], "message": line["message"]})


def tried(plugin: str, index: int, subject: str, device: Device | None, timeout: float) -> Score:
    """Run the kit on a backend of a plugin, in a process of its own.

    Raises:
        PluginError: it took longer than `timeout` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="anyaccel-conform-") as name:
        folder = Path(name)
        wanted = str(device) if device else ""
        tests = _TESTS.format(plugin=plugin, index=index, subject=subject, device=wanted)
        folder.joinpath("test_conformance.py").write_text(tests, "utf-8")
        folder.joinpath("pytest.ini").write_text("[pytest]\n", "utf-8")
        child = _run(folder, plugin, timeout)
        file = folder / "card"
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return _score(subject, [json.loads(line) for line in lines], child)


def _run(folder: Path, plugin: str, timeout: float) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in _SWITCHED_OFF}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HYPOTHESIS_STORAGE_DIRECTORY": str(folder)}
    # -P: a file of the working directory must not stand in for a module.
    command = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        str(folder / "test_conformance.py"),
        "-c",
        str(folder / "pytest.ini"),
    ]
    command += [f"--rootdir={folder}", "--import-mode=importlib", "-q", "-p", "no:cacheprovider"]
    command += [
        "-p",
        "anyaccel.testing.pytest_plugin",
        "-p",
        "anyaccel.testing.json_report",
        f"--anyaccel-report={folder / 'card'}",
    ]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise PluginError(
            f"the kit did not end on plugin {plugin} within {timeout:g} s", hint="give it more with --timeout"
        ) from None


def _score(subject: str, lines: list[dict[str, Any]], child: subprocess.CompletedProcess[str]) -> Score:
    score = Score(subject, counts={name: Counter() for name in CAPABILITIES})
    for line in lines:
        score.enter(line)
    if not any("end" in line for line in lines):
        _enter_crash(score, lines, child)
    return score


def _enter_crash(score: Score, lines: list[dict[str, Any]], child: subprocess.CompletedProcess[str]) -> None:
    """A framework may take the process down: the test that was running has failed, and those after it were not run."""
    ended = f"the process ended with status {child.returncode} in it, and no test after it was run"
    last = lines[-1] if lines else {}
    running = next((line for line in reversed(lines) if "start" in line or "test" in line), last)
    if "start" in running:
        score.enter(
            {"test": running["start"], "capability": running["capability"], "outcome": "failed", "message": ended}
        )
    elif not score.broken:
        said = (child.stderr.strip() or child.stdout.strip()).splitlines()
        score.broken = said[-1] if said else f"its process ended with status {child.returncode}"


def told(score: Score) -> dict[str, Any]:
    """A score for a script."""
    return {
        **score.facts,
        "subject": score.subject or "derived",
        "capabilities": {name: _row(counts) for name, counts in score.counts.items()},
        "failures": score.failures,
        "not_testable_here": dict(score.reasons.most_common()),
    }


def _row(counts: Counter[str]) -> dict[str, int]:
    return {column: counts[column] for column in _COLUMNS}


def show(distribution: str, scores: list[Score]) -> None:
    """A card for each backend, for people."""
    for number, score in enumerate(scores):
        if number:
            print_line("")
        facts = score.facts
        print_line(
            f"{facts.get('framework', '')} on {', '.join(facts.get('kinds', ()))}, from {distribution}; "
            f"tested on {facts.get('device', 'no device')}",
            style="bold",
        )
        rows = [(name, *map(str, _row(counts).values())) for name, counts in score.counts.items()]
        print_table(("capability", *(column.replace("_", " ") for column in _COLUMNS)), rows)
        for reason, count in score.reasons.most_common():
            print_line(f"not testable here: {count} ({reason})", style="dim")
        for failure in score.failures:
            print_line(f"failed: {failure['id']}: {failure['message']}", style="red")
