"""The loss scale of compiled steps: on the device from call to call, and read by the host after some of them."""

from __future__ import annotations

import torch
from torch import Tensor

from anyaccel.precision import LARGEST_SCALE, LossScale, LossScaleState
from anyaccel_torch.loss_scaling import UNSCALED, LossScaling


class DeviceLossScale:
    """The loss scale of compiled steps between calls; this base class is for losses that are not scaled."""

    def arrays(self) -> list[Tensor]:
        """Return the state that a call takes and leaves; at most one array."""
        return []

    def leave(self, arrays: list[Tensor]) -> None:
        """Store the state that a call returned."""

    def settle(self) -> int:
        """Read the states stored by the calls so far; return how many steps they skipped. Waits for them."""
        return 0

    def rows(self, table: Tensor, start: int, count: int) -> Tensor:
        """Return `count` rows after `start` of a table with a row for each counted step, without skipped steps."""
        return table[start : start + count]


def device_loss_scale(scaling: LossScaling, device: torch.device) -> DeviceLossScale:
    """Return the device loss scale of a program."""
    return DeviceLossScale() if scaling is UNSCALED else DynamicDeviceLossScale(scaling, device)


class DynamicDeviceLossScale(DeviceLossScale):
    """The loss scale of a program, as a tensor while compiled steps run.

    Args:
        scaling: Loss scaling of the program.
        device: Device of its steps.
    """

    def __init__(self, scaling: LossScaling, device: torch.device) -> None:
        self._scaling, self._device = scaling, device
        self._left: list[Tensor] = []  # what each call since the last `settle` has left

    def arrays(self) -> list[Tensor]:
        """Return float64 [3]: the scale, good steps since it changed, and 0 for the steps that the next call skips."""
        if self._left:
            return [torch.cat([self._left[-1][:2], self._left[-1].new_zeros(1)])]
        state = self._scaling.state
        numbers = (state.scale, float(state.good_steps), 0.0)
        filled = [torch.full((), number, dtype=torch.float64, device=self._device) for number in numbers]
        return [torch.stack(filled)]  # which transfers nothing

    def leave(self, arrays: list[Tensor]) -> None:
        self._left += arrays

    def settle(self) -> int:
        if not self._left:
            return 0
        (scale, good, _), skipped = self._left[-1].tolist(), int(torch.stack(self._left)[:, 2].sum())
        self._left.clear()
        self._scaling.load(LossScaleState(scale, int(good), self._scaling.state.skipped + skipped))
        return skipped

    def rows(self, table: Tensor, start: int, count: int) -> Tensor:
        first = start - sum((left[2] for left in self._left), torch.zeros((), device=self._device))
        return table.index_select(0, first.long() + torch.arange(count, device=self._device))


def scale_after(spec: LossScale, held: Tensor, finite: Tensor) -> Tensor:
    """Return the array after a step, like `LossScaleState.after_step`; `finite` is a boolean scalar."""
    scale, good, skipped = held.unbind()
    after, grown = good + 1, scale * spec.growth
    larger = torch.where(grown < LARGEST_SCALE, grown, scale)
    grows = after >= spec.growth_interval
    return torch.stack(
        [
            torch.where(finite, torch.where(grows, larger, scale), scale * spec.backoff),
            torch.where(finite & ~grows, after, torch.zeros_like(after)),
            torch.where(finite, skipped, skipped + 1),
        ]
    )
