"""TensorBoard for anyaccel: losses, metrics and device statistics of phases in event files. A plugin without a backend.

Logging is off until it is turned on: by the environment (`ANYACCEL_TENSORBOARD=FOLDER`), by `log_to(FOLDER)`, or by
`TensorBoard(FOLDER)` among the callbacks of a phase or an experiment. Importing this package imports no TensorBoard;
that happens when the first logged phase begins. It stands on anyaccel's hooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyaccel.lazy_attributes import lazy_attributes
from anyaccel_tensorboard.tracking import log_to, switch

if TYPE_CHECKING:
    from anyaccel_tensorboard.callback import TensorBoard as TensorBoard

__all__ = ["TensorBoard", "before_placement", "epoch_end", "log_to", "phase_end", "phase_start"]

phase_start, before_placement, epoch_end, phase_end = switch.phase_start, switch.plan, switch.epoch, switch.end

__getattr__, __dir__ = lazy_attributes(__name__, {"TensorBoard": ".callback"})
