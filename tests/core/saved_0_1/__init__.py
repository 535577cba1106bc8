"""Everything that anyaccel 0.1 saved with the built-in backend, and tests that it is read: see `write.py`."""
