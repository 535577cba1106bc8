"""The kit over every wrong backend. Run by test_broken.py in a process of its own; most of these tests fail."""

from __future__ import annotations

from broken import Broken, all_faults

from anyaccel.testing import suite

for name, wrong in all_faults().items():
    subject = type(name, (Broken,), {"cls": wrong.cls, "fault": name, "__module__": __name__})
    globals().update(suite(subject, name))
