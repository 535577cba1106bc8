"""suite: the test classes of the kit over one subject, for a test file of one line."""

from __future__ import annotations

import sys

from anyaccel.testing.backend_tests import BackendTests
from anyaccel.testing.compute_tests import ComputeTests
from anyaccel.testing.exchange_tests import ExchangeTests
from anyaccel.testing.memory_tests import MemoryTests
from anyaccel.testing.multi_step_tests import SteppingTests
from anyaccel.testing.subject import Subject

CLASSES: tuple[type[Subject], ...] = (BackendTests, ExchangeTests, ComputeTests, SteppingTests, MemoryTests)


def suite(subject: type[Subject], name: str = "") -> dict[str, type]:
    """One test class for each of the kit's, by name: `globals().update(suite(Torch))`.

    Later versions of the kit may have more classes; a test file that is written in this way gets them.

    Args:
        subject: a class derived from Subject that says what is tested.
        name: put in front of the names, so that one file can test several subjects: `TestSimBackend`.
    """
    module = sys.modules[subject.__module__]
    made = {}
    for tests in CLASSES:
        title = f"Test{name}{tests.__name__.removesuffix('Tests')}"
        body = {"__module__": module.__name__, "__doc__": tests.__doc__, "__qualname__": title}
        made[title] = type(title, (subject, tests), body)
    return made
