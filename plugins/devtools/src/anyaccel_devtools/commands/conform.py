"""`anyaccel conform`: run the conformance kit on an installed plugin and report the results by capability.

The kit runs with pytest in a child process, as a framework may crash it; `testing.json_report` writes results to a file
while it runs.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from anyaccel.cli.console import console, print_json, print_line, print_table
from anyaccel.cli.plugin_loading import child_environment
from anyaccel.cli.plugins import hooks_of
from anyaccel.device import Device
from anyaccel.errors import CapabilityError, DeviceUnavailableError, PluginError
from anyaccel.install_hints import install_line
from anyaccel.plugin_loader import Plugin
from anyaccel.registry import registry
from anyaccel_devtools.testing.subject_discovery import canonical_name, published_subject

REQUIRED = ("pytest", "hypothesis")
CAPABILITIES = ("backend", "exchange", "compute", "multi_step", "memory")
_COUNTS = ("passed", "failed", "not_declared", "not_testable_here")
_TEST_FILE = """\
from hypothesis import settings

settings.register_profile("conform", deadline=None, derandomize=True, database=None)
settings.load_profile("conform")

from anyaccel_devtools.testing import suite
from anyaccel_devtools.testing.subject_selection import select_subject

classes = suite(select_subject({plugin!r}, {index}, {subject!r}, {device!r}))
globals().update({{name: cls for name, cls in classes.items() if cls.capability in {capabilities!r}}})
"""
_NOT_GIVEN = re.compile(r"no (\w+_model) was given")
# A user's settings and plugins for other runs of pytest must not change the results.
_UNSET = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")


def run(
    name: str,
    device: str | None,
    timeout: float,
    as_json: bool,
    left_out: Sequence[Plugin],
    capabilities: Sequence[str] = (),
) -> int:
    """Test every backend of a plugin; returns 1 if a test failed, otherwise 0.

    Args:
        name: Name of the plugin or of its distribution.
        device: Device of the tests; None leaves the choice to the plugin's Subject.
        timeout: Seconds for each backend.
        as_json: Print JSON instead of tables.
        left_out: Plugins that could not be imported, as `load_plugins` returns them.
        capabilities: Capabilities to test, out of CAPABILITIES; all if empty.
    """
    chosen = [name for name in CAPABILITIES if name in capabilities or not capabilities]
    target = Device.parse(device) if device else None
    plugin = find_plugin(name, left_out)
    indices = [i for i, backend in enumerate(plugin.backends) if target is None or target.kind in backend.kinds]
    if not indices:
        served = "; ".join(f"{backend.framework} on {', '.join(backend.kinds)}" for backend in plugin.backends)
        raise DeviceUnavailableError(
            f"plugin {plugin} does not support {target}", available=served, hint="set --device to one of these kinds"
        )
    missing = [name for name in REQUIRED if find_spec(name) is None]
    if missing:
        raise CapabilityError(
            f"the conformance kit needs {' and '.join(REQUIRED)}, but {' and '.join(missing)} cannot be imported",
            hint=install_line(" ".join(missing)),
        )
    reports = []
    for i in indices:
        backend = plugin.backends[i]
        with console(stderr=True).status(f"testing {backend.framework} on {', '.join(backend.kinds)} …"):
            report = run_kit(plugin.name, i, published_subject(plugin, backend), target, timeout, chosen)
        # Raise PluginError if nothing could be tested, and DeviceUnavailableError if the device is not here
        if report.broken:
            raise PluginError(
                f"the kit cannot run on {backend.framework}: {report.broken}",
                hint=f"fix {report.subject or 'the plugin'}; run `python -m pytest` in its project for details",
            )
        if target is not None and str(target) not in report.facts.get("devices", [str(target)]):
            reason = registry().ask(backend, "unavailable_reason", target)
            raise DeviceUnavailableError(
                f"{backend.framework} has no device {target} on this machine" + (f" ({reason})" if reason else ""),
                available=", ".join(report.facts["devices"]),
                hint="leave --device out, or name an available device",
            )
        reports.append(report)
    if as_json:
        roots = [root for report in reports for root in report.facts.get("import_roots", ())]
        names = dict.fromkeys(("anyaccel", plugin.distribution, *roots, *REQUIRED))
        versions = {name: text for name in names if (text := _version(name))}
        print_json(
            {
                "plugin": plugin.name,
                "distribution": plugin.distribution,
                "version": plugin.version,
                "versions": {"python": platform.python_version(), **versions},
                "platform": platform.platform(),
                "conforms": not any(report.failures for report in reports),
                "backends": [
                    {
                        **report.facts,
                        "subject": report.subject or "derived",
                        "capabilities": {capability: report.row(capability) for capability in report.counts},
                        "failures": report.failures,
                        "missing_fixtures": report.missing_fixtures,
                        "not_testable_here": dict(report.skip_reasons.most_common()),
                    }
                    for report in reports
                ],
            }
        )
    else:
        distribution = f"{plugin.distribution} {plugin.version}".strip()
        for number, report in enumerate(reports):
            if number:
                print_line("")
            facts = report.facts
            print_line(
                f"{facts.get('framework', '')} on {', '.join(facts.get('kinds', ()))}, from {distribution}; "
                f"tested on {facts.get('device', 'no device')}",
                style="bold",
            )
            rows = [(capability, *map(str, report.row(capability).values())) for capability in report.counts]
            print_table(("capability", *(column.replace("_", " ") for column in _COUNTS)), rows)
            for reason, count in report.skip_reasons.most_common():
                print_line(f"not testable here: {count} ({reason})", style="dim")
            if report.missing_fixtures:
                print_line(f"to test more, define in the Subject: {', '.join(report.missing_fixtures)}", style="dim")
            for failure in report.failures:
                print_line(f"failed: {failure['id']}: {failure['message']}", style="red")
    return int(any(report.failures for report in reports))


# -- the plugin --------------------------------------------------------------------------------------------------------


def find_plugin(name: str, left_out: Sequence[Plugin] = ()) -> Plugin:
    """Return the installed plugin with this name or distribution name.

    Raises:
        PluginError: it is not installed, or broken.
        CapabilityError: it has no backend to test.
    """
    plugins = (*registry().plugins, *left_out)
    plugin = next((candidate for candidate in plugins if candidate.name == name), None)
    plugin = plugin or next((p for p in plugins if canonical_name(p.distribution) == canonical_name(name)), None)
    if plugin is None:
        raise PluginError(
            f"no plugin or distribution called {name!r} is installed",
            available=", ".join(candidate.name for candidate in plugins),
            hint="check the spelling, or install the plugin; `anyaccel plugins` lists what is installed",
        )
    if plugin.error is not None or plugin.delays:
        raise PluginError(f"plugin {plugin} is {plugin.status}: {plugin.cause}", hint=plugin.hint)
    if not plugin.backends:
        hooks = hooks_of(plugin)
        content = f", only hooks ({', '.join(hooks)})" if hooks else " and no hooks"
        raise CapabilityError(
            f"plugin {plugin} has no backend to test{content}",
            available="plugins with a backend: "
            + ", ".join(plugin.name for plugin in registry().plugins if plugin.backends),
            hint="name one of these; test a plugin of hooks with its own tests",
        )
    return plugin


# -- running the kit ---------------------------------------------------------------------------------------------------


@dataclass
class KitReport:
    """Results of the kit for one backend.

    Attributes:
        subject: The published Subject, `""` if one was derived from the backend.
        facts: Facts that the backend reports, and `device`, the device of the tests.
        counts: Passed, failed, not declared and not testable here, by capability.
        failures: Id, capability and first line of the message of each test that failed.
        skip_reasons: Why tests could not run on this machine, with their number.
        broken: Why nothing could be tested, `""` if something was.
    """

    subject: str
    facts: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in CAPABILITIES})
    failures: list[dict[str, str]] = field(default_factory=list)
    skip_reasons: Counter[str] = field(default_factory=Counter)
    broken: str = ""

    def add(self, line: dict[str, Any]) -> None:
        """Add one line written by `anyaccel_devtools.testing.json_report`."""
        if "test" in line:
            counts = self.counts.setdefault(line["capability"], Counter())
            if line["outcome"] != "skipped":
                counts[line["outcome"]] += 1
            elif line["message"].endswith("is not declared"):
                counts["not_declared"] += 1
            else:
                counts["not_testable_here"] += 1
                self.skip_reasons[line["message"]] += 1
            if line["outcome"] == "failed":
                self.failures.append({"id": line["test"], "capability": line["capability"], "message": line["message"]})
        elif "broken" in line:
            self.broken = line["broken"]
        elif "backend" in line or "device" in line:
            self.facts.update(line)

    @property
    def missing_fixtures(self) -> list[str]:
        """The fixtures that the Subject lacks, so that tests were not run."""
        matches = (_NOT_GIVEN.fullmatch(reason) for reason in self.skip_reasons)
        return sorted(match[1] for match in matches if match)

    def row(self, capability: str) -> dict[str, int]:
        """The counts of a capability by column."""
        return {column: self.counts[capability][column] for column in _COUNTS}


def run_kit(
    plugin: str, index: int, subject: str, device: Device | None, timeout: float, capabilities: Sequence[str]
) -> KitReport:
    """Run the kit on one backend of a plugin, in a child process.

    Raises:
        PluginError: it took longer than `timeout` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="anyaccel-conform-") as name:
        folder = Path(name)
        device_name = str(device) if device else ""
        tests = _TEST_FILE.format(
            plugin=plugin, index=index, subject=subject, device=device_name, capabilities=tuple(capabilities)
        )
        folder.joinpath("test_conformance.py").write_text(tests, "utf-8")
        folder.joinpath("pytest.ini").write_text("[pytest]\n", "utf-8")
        child = _run_pytest(folder, plugin, timeout)
        file = folder / "report"
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
    report = KitReport(subject, counts={name: Counter() for name in capabilities})
    told = [json.loads(line) for line in lines]
    for line in told:
        report.add(line)
    if not any("end" in line for line in told):
        # Count the test that was running when the process crashed as failed
        last: dict[str, Any] = next((line for line in reversed(told) if "start" in line or "test" in line), {})
        if "start" in last:
            message = f"the process ended with status {child.returncode} in this test, and no test after it ran"
            report.add(
                {"test": last["start"], "capability": last["capability"], "outcome": "failed", "message": message}
            )
        elif not report.broken:
            output = (child.stderr.strip() or child.stdout.strip()).splitlines()
            report.broken = output[-1] if output else f"its process ended with status {child.returncode}"
    return report


def _run_pytest(folder: Path, plugin: str, timeout: float) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in child_environment().items() if name not in _UNSET}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HYPOTHESIS_STORAGE_DIRECTORY": str(folder)}
    # -P: a file of the working directory must not stand in for a module.
    command = [sys.executable, "-P", "-m", "pytest", str(folder / "test_conformance.py")]
    command += ["-c", str(folder / "pytest.ini"), f"--rootdir={folder}", "--import-mode=importlib"]
    command += ["-q", "-p", "no:cacheprovider", "-p", "anyaccel_devtools.testing.json_report"]
    command += [f"--anyaccel-report={folder / 'report'}"]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise PluginError(
            f"the kit did not finish on plugin {plugin} within {timeout:g} s", hint="allow more time with --timeout"
        ) from None


# -- output ------------------------------------------------------------------------------------------------------------


def _version(distribution: str) -> str:
    try:
        return version(distribution) if distribution else ""
    except PackageNotFoundError:
        return ""
