"""TensorBoard for anyaccel: what phases give, written to event files. A plugin of hooks alone; it has no backend.

Installed, it does nothing until it is asked: by the environment (`ANYACCEL_TENSORBOARD=FOLDER`), by `log_to(FOLDER)`,
or by `TensorBoard(FOLDER)` among the callbacks of a phase or an experiment. Importing this package imports no
TensorBoard; that happens when the first phase that is to be logged begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyaccel.hookspecs import hookimpl
from anyaccel_tensorboard import switch
from anyaccel_tensorboard.run_logger import Tracker
from anyaccel_tensorboard.switch import log_to

if TYPE_CHECKING:
    from anyaccel_tensorboard.callback import TensorBoard as TensorBoard

__all__ = ["TensorBoard", "before_placement", "epoch_end", "log_to", "phase_end", "phase_start"]

_tracker = Tracker()


@hookimpl
def phase_start(run: Any) -> None:
    """Opens a file for the run, if logging is on.

    Raises:
        PhaseError: the folder cannot be written.
    """
    folder = switch.folder()
    if folder is not None:
        _tracker.start(run, folder)


@hookimpl
def before_placement(run: Any) -> None:
    """Writes the plan and the graph."""
    _tracker.planned(run)


@hookimpl
def epoch_end(run: Any) -> None:
    """Writes the figures of an epoch."""
    _tracker.epoch(run)


@hookimpl
def phase_end(run: Any, error: BaseException | None) -> None:
    """Writes what an evaluation gave, or what ended the phase, and closes the file."""
    _tracker.end(run, error)


def __getattr__(name: str) -> Any:
    if name != "TensorBoard":
        raise AttributeError(f"module 'anyaccel_tensorboard' has no attribute {name!r}")
    from anyaccel_tensorboard.callback import TensorBoard

    globals()[name] = TensorBoard
    return TensorBoard


def __dir__() -> list[str]:
    return sorted(__all__)
