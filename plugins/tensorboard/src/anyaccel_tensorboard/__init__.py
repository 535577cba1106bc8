"""TensorBoard for anyaccel: losses, metrics and device statistics of phases in event files. A plugin without a backend.

Logging is off until it is turned on: by the environment (`ANYACCEL_TENSORBOARD=FOLDER`), by `log_to(FOLDER)`, or by
`TensorBoard(FOLDER)` among the callbacks of a phase or an experiment. Importing this package imports no TensorBoard;
that happens when the first logged phase begins. It stands on anyaccel's hooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyaccel.hookspecs import hookimpl
from anyaccel.lazy_attributes import lazy_attributes
from anyaccel_tensorboard.tracking import log_to, switch

if TYPE_CHECKING:
    from anyaccel_tensorboard.callback import TensorBoard as TensorBoard

__all__ = ["TensorBoard", "before_placement", "epoch_end", "log_to", "phase_end", "phase_start"]


@hookimpl
def phase_start(run: Any) -> None:
    """Open an event file for the run, if logging is on.

    Raises:
        PhaseError: the folder cannot be written.
    """
    switch.phase_start(run)


@hookimpl
def before_placement(run: Any) -> None:
    """Write the plan and the graph."""
    switch.plan(run)


@hookimpl
def epoch_end(run: Any) -> None:
    """Write the figures of an epoch."""
    switch.epoch(run)


@hookimpl
def phase_end(run: Any, error: BaseException | None) -> None:
    """Write the outcome of the phase, and close the file."""
    switch.end(run, error)


__getattr__, __dir__ = lazy_attributes(__name__, {"TensorBoard": ".callback"})
