"""What a backend and its programs can do about precision. Part of the plugin contract."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from anyaccel.capability import Capability
from anyaccel.device import Device
from anyaccel.precision.loss_scale import LossScaleState


class ComputesPrecision(Capability):
    """Capability: programs heed `Segment.precision`, a `SegmentPrecision`.

    A backend without it is refused where a phase or node asks for a precision.
    """

    precisions: ClassVar[tuple[str, ...]]
    """Those of `PRECISIONS` that its programs compute in. With `"fp16-mixed"` they are `ScalesLosses`, too."""
    matmul_precisions: ClassVar[tuple[Any, ...]] = ()
    """Values of the framework's own setting of the precision of matrix products, the default first; `()` for none."""

    @abstractmethod
    def precision_reason(self, model: Any, precision: str, device: Device) -> str:
        """Why a built model cannot be computed in one of `precisions` on a device; `""` if it can."""

    def matmul_precision(self, value: Any) -> AbstractContextManager[Any]:
        """A context in which matrices are multiplied as one of `matmul_precisions` says; then it is as before."""
        return nullcontext()

    def float32_note(self, model: Any, device: Device) -> str:
        """What makes a model in float32 less exact on a device by a default of the framework; `""` if nothing does.

        It begins with the name of the framework, as in `"JAX multiplies float32 in TF32 on gpu:0: ..."`, and says what
        setting makes it exact.
        """
        return ""

    def remat_blocks(self, model: Any, remat: str) -> Sequence[str]:
        """Names of the parts of a model whose values `remat` leaves to be computed again in the backward pass.

        `"blocks"` means the repeated parts of a model, another text is a pattern of names. `("",)` is the whole model;
        the default, nothing, means that the framework cannot.
        """
        return ()


class ScalesLosses(ABC):
    """What a program also has whose segment has a loss scale.

    Its `forward_pullback` multiplies losses by the scale, so that gradients and cotangents are of scaled losses; the
    caller divides the gradients, skips the step where one is not finite, and calls `update_loss_scale`. `train_steps`
    does all of this by itself, without waiting in between.
    """

    @abstractmethod
    def loss_scale_state(self) -> LossScaleState:
        """Where the loss scale stands; waits for the steps so far."""

    @abstractmethod
    def load_loss_scale_state(self, state: LossScaleState) -> None:
        """Go on from a state."""

    @abstractmethod
    def update_loss_scale(self, *, finite: bool) -> None:
        """Count a step that the caller did or skipped."""
