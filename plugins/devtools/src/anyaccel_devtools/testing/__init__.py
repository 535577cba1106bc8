"""The conformance kit: tests that a plugin author runs over a backend.

A plugin's test file is a Subject and one line:

    from anyaccel_devtools.testing import Subject, suite

    class TorchSubject(Subject): ...  # its fixtures: see Subject

    globals().update(suite(TorchSubject))

`pytest_plugins = ["anyaccel_devtools.testing.pytest_plugin"]` in a conftest.py adds markers, a header and expected
failures. Names are imported on first use. `plugin_module`, `entry`, `write_distribution` and `TinyBackend` come from
`anyaccel.plugin_testing`, and need no pytest.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyaccel.plugin_testing import TinyBackend as TinyBackend
    from anyaccel.plugin_testing import entry as entry
    from anyaccel.plugin_testing import plugin_module as plugin_module
    from anyaccel.plugin_testing import write_distribution as write_distribution
    from anyaccel_devtools.testing.backend_tests import BackendTests as BackendTests
    from anyaccel_devtools.testing.compute_tests import ComputeTests as ComputeTests
    from anyaccel_devtools.testing.exchange_tests import ExchangeTests as ExchangeTests
    from anyaccel_devtools.testing.memory_tests import MemoryTests as MemoryTests
    from anyaccel_devtools.testing.multi_step_tests import MultiStepTests as MultiStepTests
    from anyaccel_devtools.testing.subject import Subject as Subject
    from anyaccel_devtools.testing.suites import model_suite as model_suite
    from anyaccel_devtools.testing.suites import suite as suite

_MODULES = {
    "BackendTests": "backend_tests",
    "ComputeTests": "compute_tests",
    "ExchangeTests": "exchange_tests",
    "MemoryTests": "memory_tests",
    "MultiStepTests": "multi_step_tests",
    "Subject": "subject",
    "model_suite": "suites",
    "suite": "suites",
}
_WITHOUT_PYTEST = ("TinyBackend", "entry", "plugin_module", "write_distribution")
# pytest rewrites the asserts of these modules, so that they explain a failure as those of a test file do.
_WITH_ASSERTS = (
    *(
        "backend_tests",
        "compile_tests",
        "device_replica_tests",
        "exchange_tests",
        "forward_tests",
        "harness",
        "memory_tests",
        "missing_input_tests",
    ),
    *("model_tests", "multi_step_tests", "ownership_tests", "program_tests", "segment_tests", "training_tests"),
    "replica_tests",
    "transfer_tests",
)

__all__ = [*_MODULES, *_WITHOUT_PYTEST]


def __getattr__(name: str) -> Any:
    if name in _WITHOUT_PYTEST:
        module = "anyaccel.plugin_testing"
    elif name in _MODULES:
        rewrite_asserts()
        module = f"{__name__}.{_MODULES[name]}"
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def rewrite_asserts() -> None:
    """Let pytest rewrite the asserts of those kit modules that are not imported yet."""
    import pytest

    modules = [f"{__name__}.{name}" for name in _WITH_ASSERTS]
    pytest.register_assert_rewrite(*(name for name in modules if name not in sys.modules))


def __dir__() -> list[str]:
    return sorted(__all__)
