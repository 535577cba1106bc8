"""The pytest plugin: markers, a line that says what is tested, and a file of failures that are expected.

It is loaded at every start of pytest where anyaccel is installed, so it imports nothing until a test of the kit is
found.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

XFAIL = "anyaccel_xfail"
SWITCHES = ("ANYACCEL_PLUGINS", "ANYACCEL_SIMULATE")
MARKERS = (
    "gpu: needs a device of the kind gpu",
    "slow: takes long",
    "anyaccel_capability(name): a test of the conformance kit for backends that declare this capability",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """An option of pytest's configuration file."""
    parser.addini(XFAIL, "file of ids of conformance tests that must fail, one a line; # begins a comment", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Make markers known, for those who run with --strict-markers."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that the file names: they are run, must fail, and are no failure of the run."""
    name = config.getini(XFAIL)
    if not name:
        return
    file = config.rootpath / name
    expected = set(_lines(file))
    for item in items:
        if any(_named(item.nodeid, line) for line in expected):
            item.add_marker(pytest.mark.xfail(reason=f"stands in {name}", strict=True))


def _lines(file: Path) -> Iterator[str]:
    try:
        text = file.read_text("utf-8")
    except OSError as error:
        raise pytest.UsageError(f"{XFAIL}: {file} cannot be read ({error})") from error
    stripped = (line.partition("#")[0].strip() for line in text.splitlines())
    return (line for line in stripped if line)


def _named(nodeid: str, line: str) -> bool:
    """A line is a whole id, or its end from a class or a function on; without `[...]` it names every parameter."""
    ids = {nodeid, nodeid.partition("[")[0]}
    return any(each == line or each.endswith(f"::{line}") for each in ids)


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
    """What is tested, and with which settings; nothing where no test of the kit was found."""
    if not any(item.get_closest_marker("anyaccel_capability") for item in items):
        return []
    from anyaccel.registry import registry

    plugins = [f"{p} is broken: {p.cause}" if p.error else str(p) for p in registry().plugins]
    frameworks = [f"{b.framework}{_versions(b.import_roots)} on {', '.join(b.kinds)}" for b in registry().backends]
    switches = [f"{switch}={os.environ[switch]}" for switch in SWITCHES if switch in os.environ]
    return [
        f"anyaccel plugins: {'; '.join(plugins)}",
        f"anyaccel backends: {'; '.join(frameworks)}",
        *([f"anyaccel settings: {', '.join(switches)}"] if switches else []),
    ]


def _versions(roots: Sequence[str]) -> str:
    """The version of the first root that is a distribution of the same name, without importing it."""
    from importlib.metadata import PackageNotFoundError, version

    for root in roots:
        try:
            return f" {version(root)}"
        except PackageNotFoundError:
            continue
    return ""
