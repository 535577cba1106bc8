"""The kit over every wrong backend. test_broken_backends.py runs it in a child process; many of these tests fail."""

from __future__ import annotations

from anyaccel_devtools.testing import suite

from .faults import BrokenSubject, all_faults

for name, fault in all_faults().items():
    subject = type(name, (BrokenSubject,), {"cls": fault.cls, "fault": name, "__module__": __name__})
    globals().update(suite(subject, name))
