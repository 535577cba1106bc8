"""The kit over every wrong backend. Run by test_broken.py in a process of its own; most of these tests fail."""

from __future__ import annotations

import broken_backends  # noqa: F401  # enters its faults
import broken_programs  # noqa: F401  # enters its faults
import broken_training  # noqa: F401  # enters its faults
from broken import FAULTS, Broken

from anyaccel.testing import suite

for name, wrong in FAULTS.items():
    subject = type(name, (Broken,), {"cls": wrong.cls, "fault": name, "__module__": __name__})
    globals().update(suite(subject, name))
