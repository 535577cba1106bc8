"""The conformance kit: tests that a third party runs over its own backend, and what tests of core are made of.

A plugin's whole test file is a Subject and one line:

    from anyaccel.testing import Subject, suite

    class Torch(Subject): ...            # its fixtures: see Subject

    globals().update(suite(Torch))

Names are loaded when they are first used: pytest imports this package at every start, wherever anyaccel is installed.
What feeds a Registry (`plugin_module`, `entry`, `write_distribution`, `TinyBackend`) needs no pytest.
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
    from anyaccel.testing.multi_step_tests import SteppingTests as SteppingTests
    from anyaccel.testing.subject import Subject as Subject
    from anyaccel.testing.suites import suite as suite
    from anyaccel.testing.tiny import TinyBackend as TinyBackend

_HOMES = {
    "BackendTests": "backend_tests",
    "ComputeTests": "compute_tests",
    "ExchangeTests": "exchange_tests",
    "MemoryTests": "memory_tests",
    "SteppingTests": "stepping_tests",
    "Subject": "subject",
    "TinyBackend": "tiny",
    "entry": "faulty",
    "plugin_module": "faulty",
    "suite": "suites",
    "write_distribution": "faulty",
}
# Modules whose asserts shall explain themselves, as those of a test file do.
_ASSERTING = ("backend", "exchange", "memory", "model", "partial", "program", "segment", "stepping", "training")

_PLAIN = ("faulty", "tiny")  # modules that work where pytest is not installed

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'anyaccel.testing' has no attribute {name!r}")
    if _HOMES[name] not in _PLAIN:
        rewrite_asserts()
    value = getattr(import_module(f"anyaccel.testing.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def rewrite_asserts() -> None:
    """Let pytest rewrite the asserts of the kit's modules that are not imported yet."""
    import pytest

    modules = [f"anyaccel.testing.{name}_tests" for name in _ASSERTING] + ["anyaccel.testing.harness"]
    pytest.register_assert_rewrite(*(name for name in modules if name not in sys.modules))


def __dir__() -> list[str]:
    return sorted(__all__)
