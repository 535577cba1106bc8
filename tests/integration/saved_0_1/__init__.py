"""Everything that anyaccel 0.1 saved with each framework, and tests that it is read: see `tests/core/saved_0_1`."""
