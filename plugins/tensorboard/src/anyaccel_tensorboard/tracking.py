"""The switch and the folder for logging phases: for the process, by a call or by the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyaccel.call_hints import call_hints
from anyaccel.trackers import TrackerSwitch, TrackingScope
from anyaccel_tensorboard.run_dirs import as_folder

if TYPE_CHECKING:
    from anyaccel_tensorboard.run_logger import RunLogger

NAME, VARIABLE = "TensorBoard", "ANYACCEL_TENSORBOARD"


def run_logger(run: Any, folder: Path) -> RunLogger:
    """Return a logger with a new event file; imports TensorBoard.

    Raises:
        PhaseError: The folder cannot be written.
    """
    from anyaccel_tensorboard.run_logger import RunLogger

    return RunLogger(run, folder)


def _checked(folder: Any, setting: str) -> Path:
    """Return the folder; a folder from the environment is relative to the working folder at the start of a phase."""
    path = as_folder(folder, setting)
    return path if setting == VARIABLE else path.absolute()


switch = TrackerSwitch("anyaccel_tensorboard", NAME, run_logger, VARIABLE, _checked, "TensorBoard(folder)")


@call_hints
def log_to(folder: str | os.PathLike[str] | None) -> TrackingScope:
    """Log every phase of this process that begins from now on; as a context manager, those that begin in the block.

    Args:
        folder: Folder for event files, created when the first phase begins. None turns logging off, regardless of the
            environment.

    Raises:
        ConfigError: `folder` is not a local folder.
        PluginError: The plugin is not loaded, so no phase would be logged.
    """
    return switch.log_to(folder)
