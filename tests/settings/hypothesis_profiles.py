"""How many examples hypothesis tries: few in the check of each change, many where ANYACCEL_TEST_FULL is set."""

from __future__ import annotations

import os

from hypothesis import settings

IS_FULL = bool(os.environ.get("ANYACCEL_TEST_FULL"))


def examples(count: int) -> int:
    """Of so many examples, those that are tried: a quarter in the check, but at least five."""
    return count if IS_FULL else max(count // 4, 5)


# No deadline, as machines may be slow or shared; the same examples in every run.
settings.register_profile("check", deadline=None, derandomize=True, max_examples=10)
settings.register_profile("full", deadline=None, derandomize=True, max_examples=300)
settings.load_profile("full" if IS_FULL else "check")
