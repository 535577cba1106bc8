"""The loss scale of a program: on the host between calls, and as an array of three numbers inside compiled steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anyaccel.adapter.array_ops import ArrayOps
from anyaccel.precision import LossScale, LossScaleState
from anyaccel.segment import Segment

KEY = "loss_scale"
"""Of the array in the state of a step: the scale, good steps since it changed, and steps skipped in this call."""


def loss_scale_of(segment: Segment) -> LossScale | None:
    """Return the loss scale of a segment that trains; None if losses are not scaled."""
    return segment.precision.loss_scale if segment.precision is not None else None


class ProgramLossScale:
    """The loss scale of a program.

    Attributes:
        state: The current state, once `settle` has read the result of compiled steps.
    """

    def __init__(self, spec: LossScale) -> None:
        self._spec = spec
        self.state = LossScaleState(spec.initial)
        self._left: Any = None

    def array(self, ops: ArrayOps, like: Any) -> Any:
        """Return the state for compiled steps: float32 [3], on the device of `like`."""
        numbers = ops.constant([self.state.scale, self.state.good_steps, 0.0], like)
        return ops.astype(numbers, ops.xp.float32)

    def leave(self, array: Any) -> None:
        """Store the array that compiled steps returned, without reading it yet."""
        self._left = array

    def settle(self) -> int:
        """Read the stored array; return how many steps were skipped. Waits for them."""
        if self._left is None:
            return 0
        scale, good, skipped = (float(number) for number in self._left)
        self._left = None
        self.state = LossScaleState(scale, int(good), self.state.skipped + int(skipped))
        return int(skipped)

    def count(self, *, finite: bool) -> None:
        """Count a step, given whether all its gradients were finite."""
        self.state = self.state.after_step(self._spec, finite=finite)


def scale_after(ops: ArrayOps, spec: LossScale, held: Any, finite: Any) -> Any:
    """Return the array after a step, in a traced function; `finite` is a boolean scalar."""
    xp = ops.xp
    scale, good, skipped = held[0], held[1], held[2]
    after, grown = good + 1.0, scale * spec.growth
    grows = after >= float(spec.growth_interval)
    larger = xp.where(xp.isfinite(grown), grown, scale)
    return xp.stack(
        [
            ops.astype(xp.where(finite, xp.where(grows, larger, scale), scale * spec.backoff), held.dtype),
            ops.astype(xp.where(finite, xp.where(grows, 0.0, after), 0.0), held.dtype),
            ops.astype(xp.where(finite, skipped, skipped + 1.0), held.dtype),
        ]
    )


def kept_unless(ops: ArrayOps, finite: Any, after: Any, before: Any) -> Any:
    """Return `after` where `finite` is true, otherwise `before`: trees of arrays; entries only in `after` are kept."""
    if isinstance(after, Mapping):
        return {
            name: kept_unless(ops, finite, tree, before[name]) if name in before else tree
            for name, tree in after.items()
        }
    return ops.astype(ops.xp.where(finite, after, before), after.dtype)


def steps_behind(state: Any, as_integer: Callable[[Any], Any]) -> Any:
    """Return the number of steps that the optimizers skipped in a call, as an integer array; 0 without a scale."""
    return as_integer(state[KEY][2]) if KEY in state else 0
