"""Values that a user's loop logs, in an event file; see the extension point `loop_trackers`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyaccel_tensorboard.run_logger import EventFile


class LoopTracker:
    """An event file in the folder of `Loop(log=FOLDER)`.

    Args:
        folder: An existing folder.
    """

    def __init__(self, folder: Path) -> None:
        from anyaccel_tensorboard.run_logger import EventFile  # imports TensorBoard

        self._file: EventFile = EventFile(folder)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write numbers of one step by name."""
        self._file.scalars(step, values)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
