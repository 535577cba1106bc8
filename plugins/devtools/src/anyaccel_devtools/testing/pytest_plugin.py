"""The kit's pytest plugin: markers, a header with the tested plugins, and a file of expected failures.

Load it where the kit is used: `pytest_plugins = ["anyaccel_devtools.testing.pytest_plugin"]` in tests/conftest.py, or
`-p anyaccel_devtools.testing.pytest_plugin`. The kit's tests do not depend on it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

XFAIL = "anyaccel_xfail"
CAPABILITY_MARKER = "anyaccel_capability"
ENVIRONMENT = ("ANYACCEL_PLUGINS", "ANYACCEL_SIMULATE")
MARKERS = (
    "gpu: needs a device of the kind gpu",
    "slow: takes long",
    f"{CAPABILITY_MARKER}(name): a test of the conformance kit for backends that declare this capability",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `anyaccel_xfail` to pytest's configuration file."""
    parser.addini(
        XFAIL, "file with ids of conformance tests that must fail, one per line; # begins a comment", default=""
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, for `--strict-markers`."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each test of the kit with its capability: `-m "anyaccel_capability(name='exchange')"` selects by it."""
    if capability := capability_of(item):
        item.add_marker(getattr(pytest.mark, CAPABILITY_MARKER)(name=capability))


def capability_of(item: pytest.Item) -> str:
    """Return the capability that a test of the kit checks, `""` for other tests."""
    cls = getattr(item, "cls", None)
    return str(getattr(cls, "capability", "")) if hasattr(cls, "skip_undeclared_capability") else ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests listed in the `anyaccel_xfail` file as strictly expected failures."""
    name = config.getini(XFAIL)
    if not name:
        return
    file = config.rootpath / name
    try:
        text = file.read_text("utf-8")
    except OSError as error:
        raise pytest.UsageError(f"{XFAIL}: {file} cannot be read ({error})") from error
    stripped = (line.partition("#")[0].strip() for line in text.splitlines())
    expected = {line for line in stripped if line}
    for item in items:
        if any(_matches(item.nodeid, test_id) for test_id in expected):
            item.add_marker(pytest.mark.xfail(reason=f"listed in {name}", strict=True))


def _matches(node_id: str, test_id: str) -> bool:
    """Whether a test id is a whole node id or its end from a class or function on; without `[...]` it means all."""
    candidates = {node_id, node_id.partition("[")[0]}
    return any(candidate == test_id or candidate.endswith(f"::{test_id}") for candidate in candidates)


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
    """Return lines about plugins, backends and settings; nothing if no test of the kit was collected."""
    if not any(map(capability_of, items)):
        return []
    from anyaccel.registry import registry

    plugins = [f"{plugin} is broken: {plugin.cause}" if plugin.error else str(plugin) for plugin in registry().plugins]
    backends = [f"{b.framework}{_version(b.import_roots)} on {', '.join(b.kinds)}" for b in registry().backends]
    settings = [f"{name}={os.environ[name]}" for name in ENVIRONMENT if name in os.environ]
    return [
        f"anyaccel plugins: {'; '.join(plugins)}",
        f"anyaccel backends: {'; '.join(backends)}",
        *([f"anyaccel settings: {', '.join(settings)}"] if settings else []),
    ]


def _version(import_roots: Sequence[str]) -> str:
    """Return the version of the first root that is a distribution of the same name, found without importing it."""
    from importlib.metadata import PackageNotFoundError, version

    for root in import_roots:
        try:
            return f" {version(root)}"
        except PackageNotFoundError:
            continue
    return ""
