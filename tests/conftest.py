"""Settings of every test below this folder."""

from __future__ import annotations

from hypothesis import settings

# Slow and shared machines must not fail a property for its time, and a run must find what the last one found.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
