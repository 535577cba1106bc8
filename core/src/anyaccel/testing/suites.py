"""suite: the kit's test classes for one Subject."""

from __future__ import annotations

import sys

from anyaccel.testing.backend_tests import BackendTests
from anyaccel.testing.compute_tests import ComputeTests
from anyaccel.testing.exchange_tests import ExchangeTests
from anyaccel.testing.memory_tests import MemoryTests
from anyaccel.testing.multi_step_tests import MultiStepTests
from anyaccel.testing.subject import Subject

CLASSES: tuple[type[Subject], ...] = (BackendTests, ExchangeTests, ComputeTests, MultiStepTests, MemoryTests)


def suite(subject: type[Subject], name: str = "") -> dict[str, type]:
    """The kit's test classes for a Subject, by name, to put into a test module: `globals().update(suite(MySubject))`.

    A test file written like this also gets the classes that later versions of the kit add.

    Args:
        subject: a class derived from Subject.
        name: prefix of the class names, so that one file can test several subjects: `Sim` gives `TestSimBackend`.
    """
    module = sys.modules[subject.__module__].__name__
    classes = {}
    for tests in CLASSES:
        title = f"Test{name}{tests.__name__.removesuffix('Tests')}"
        body = {"__module__": module, "__doc__": tests.__doc__, "__qualname__": title}
        classes[title] = type(title, (subject, tests), body)
    return classes
