"""What a contestant says when it cannot take part."""

from __future__ import annotations


class Absent(Exception):
    """Something that the contestant needs is not on this machine, or not in this version."""
