"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# No deadline, as machines may be slow or shared; the same examples in every run.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
