"""Whether phases are logged, and to which folder: for the process, by a call or by the environment."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from types import TracebackType

from anyaccel.call_hints import call_hints
from anyaccel.errors import PluginError
from anyaccel_tensorboard.run_dirs import as_folder

VARIABLE = "ANYACCEL_TENSORBOARD"


class LoggingScope:
    """The result of `log_to`: in effect from the call on; as a context manager, until the end of the block.

    Attributes:
        folder: The folder for event files; None turns logging off.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._before = _calls[-1] if _calls else None
        _calls[:] = [self]

    def __repr__(self) -> str:
        return f"log_to({str(self.folder)!r})" if self.folder else "log_to(None)"

    def __enter__(self) -> LoggingScope:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Return to the setting before the call; runs that have begun are logged to their end."""
        _calls[:] = [self._before] if self._before else []


_calls: list[LoggingScope] = []  # the call in effect; empty: the environment decides


@call_hints
def log_to(folder: str | os.PathLike[str] | None) -> LoggingScope:
    """Log every phase of this process that begins from now on; as a context manager, those that begin in the block.

    Args:
        folder: Folder for event files, made when the first phase begins. None turns logging off, whatever the
            environment says.

    Raises:
        ConfigError: `folder` is not a local folder.
        PluginError: the plugin is not loaded, so that no phase would be logged.

    Example:
        >>> from anyaccel_tensorboard import log_to
        >>> with log_to("runs"):  # experiments that run here are logged
        ...     pass
    """
    path = None if folder is None else as_folder(folder, "log_to").absolute()
    if path is not None:
        from anyaccel.registry import registry  # imports NumPy

        if not registry().hooks.is_registered(import_module("anyaccel_tensorboard")):
            raise PluginError(
                "log_to() has no effect: the plugin 'tensorboard' is not loaded",
                available=", ".join(plugin.name for plugin in registry().plugins),
                hint="add it to ANYACCEL_PLUGINS or install anyaccel-tensorboard, or give phases the callback "
                "TensorBoard(folder)",
            )
    return LoggingScope(path)


def folder() -> Path | None:
    """Return the folder for a phase that begins now; None where logging is off.

    Raises:
        ConfigError: the environment variable is not a local folder.
    """
    if _calls:
        return _calls[-1].folder
    text = os.environ.get(VARIABLE, "").strip()
    return as_folder(text, VARIABLE) if text else None
