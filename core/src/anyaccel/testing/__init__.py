"""The conformance kit: tests that a plugin author runs over a backend, and fakes for tests of plugins and registries.

A plugin's test file is a Subject and one line:

    from anyaccel.testing import Subject, suite

    class TorchSubject(Subject): ...  # its fixtures: see Subject

    globals().update(suite(TorchSubject))

`pytest_plugins = ["anyaccel.testing.pytest_plugin"]` in a conftest.py adds markers, a header and expected failures.
Names are imported on first use. The fakes (`plugin_module`, `entry`, `write_distribution`, `TinyBackend`) need no
pytest. Stands on the kernel (contract, segments, registry), `precision`, `replicas` and
`adapter.model_specs`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyaccel.testing.backend_tests import BackendTests as BackendTests
    from anyaccel.testing.compute_tests import ComputeTests as ComputeTests
    from anyaccel.testing.exchange_tests import ExchangeTests as ExchangeTests
    from anyaccel.testing.fake_plugins import entry as entry
    from anyaccel.testing.fake_plugins import plugin_module as plugin_module
    from anyaccel.testing.fake_plugins import write_distribution as write_distribution
    from anyaccel.testing.memory_tests import MemoryTests as MemoryTests
    from anyaccel.testing.multi_step_tests import MultiStepTests as MultiStepTests
    from anyaccel.testing.subject import Subject as Subject
    from anyaccel.testing.suites import model_suite as model_suite
    from anyaccel.testing.suites import suite as suite
    from anyaccel.testing.tiny import TinyBackend as TinyBackend

_MODULES = {
    "BackendTests": "backend_tests",
    "ComputeTests": "compute_tests",
    "ExchangeTests": "exchange_tests",
    "MemoryTests": "memory_tests",
    "MultiStepTests": "multi_step_tests",
    "Subject": "subject",
    "TinyBackend": "tiny",
    "entry": "fake_plugins",
    "model_suite": "suites",
    "plugin_module": "fake_plugins",
    "suite": "suites",
    "write_distribution": "fake_plugins",
}
_WITHOUT_PYTEST = ("fake_plugins", "tiny")
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

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'anyaccel.testing' has no attribute {name!r}")
    if _MODULES[name] not in _WITHOUT_PYTEST:
        rewrite_asserts()
    value = getattr(import_module(f"anyaccel.testing.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def rewrite_asserts() -> None:
    """Let pytest rewrite the asserts of those kit modules that are not imported yet."""
    import pytest

    modules = [f"anyaccel.testing.{name}" for name in _WITH_ASSERTS]
    pytest.register_assert_rewrite(*(name for name in modules if name not in sys.modules))


def __dir__() -> list[str]:
    return sorted(__all__)
