"""Whether phases are logged, and where to: for the whole process, by a call or by the environment."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from types import TracebackType

from anyaccel.errors import PluginError
from anyaccel_tensorboard.run_dirs import checked

VARIABLE = "ANYACCEL_TENSORBOARD"


class Logging:
    """What `log_to` gives. It holds from the call on; as a context, until the end of the block.

    `folder` is where to, None for nowhere.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._before = _calls[-1] if _calls else None
        _calls[:] = [self]

    def __repr__(self) -> str:
        return f"log_to({str(self.folder)!r})" if self.folder else "log_to(None)"

    def __enter__(self) -> Logging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What held before the call holds again; runs that have begun are logged to their end."""
        _calls[:] = [self._before] if self._before else []


_calls: list[Logging] = []  # the call that holds; empty while there was none, and the environment decides


def log_to(folder: str | os.PathLike[str] | None) -> Logging:
    """Log every phase that begins from now on, in this process; as a context manager, those that begin in the block.

    Args:
        folder: where to; made when the first phase begins. None: nowhere, whatever the environment says.

    Raises:
        ConfigError: `folder` is no folder of this machine.
        PluginError: the plugin is not loaded, so that it would hear of no phase.
    """
    found = None if folder is None else checked(folder, "log_to").absolute()
    if found is not None:
        _check_loaded()
    return Logging(found)


def folder() -> Path | None:
    """Where a phase that begins now is to be logged; None for nowhere.

    Raises:
        ConfigError: the environment names what is no folder of this machine.
    """
    if _calls:
        return _calls[-1].folder
    text = os.environ.get(VARIABLE, "").strip()
    return checked(text, VARIABLE) if text else None


def _check_loaded() -> None:
    from anyaccel.registry import registry  # imports NumPy

    if not registry().hooks.is_registered(import_module("anyaccel_tensorboard")):
        raise PluginError(
            "log_to() has no effect: the plugin 'tensorboard' is not loaded",
            available=", ".join(plugin.name for plugin in registry().plugins),
            hint="add it to ANYACCEL_PLUGINS or install anyaccel-tensorboard, or give phases the callback "
            "TensorBoard(folder)",
        )
