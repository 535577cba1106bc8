"""How many examples hypothesis tries: few in the check of each change, many where ANYACCEL_TEST_FULL is set."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline, as machines may be slow or shared; the same examples in every run.
settings.register_profile("check", deadline=None, derandomize=True, max_examples=30)
settings.register_profile("full", deadline=None, derandomize=True, max_examples=300)
settings.load_profile("full" if os.environ.get("ANYACCEL_TEST_FULL") else "check")
