"""A module whose functions test_spawn.py calls in processes of their own."""

from __future__ import annotations

import os
from pathlib import Path

from anyaccel_distributed import launched


def tell(folder: str, text: str) -> None:
    """Write a text into a file with the number of the replica, and print it."""
    place = launched()
    rank = 0 if place is None else place.rank
    print(f"replica {rank} of {os.environ['WORLD_SIZE']}: {text}")
    Path(folder, str(rank)).write_text(text)


def fail() -> None:
    """One replica raises."""
    if os.environ["RANK"] == "1":
        raise ValueError("a fault of its own")
