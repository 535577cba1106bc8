"""The precisions by name, and those of the operations of a segment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from anyaccel.arguments import shown
from anyaccel.errors import AnyaccelError
from anyaccel.precision.loss_scale import LossScale
from anyaccel.suggestions import did_you_mean

PRECISIONS = ("float32", "bf16-mixed", "fp16-mixed", "bf16", "float64")
"""Names of precisions, as phases and nodes take them."""

_MEANT = {
    **dict.fromkeys(("16", "fp16", "float16", "half", "16-mixed", "mixed_float16"), "fp16-mixed"),
    **dict.fromkeys(("mixed", "amp", "mixed_bfloat16", "bfloat16-mixed"), "bf16-mixed"),
    **dict.fromkeys(("bfloat16", "bf16-true"), "bf16"),
    **dict.fromkeys(("32", "fp32", "32-true", "single"), "float32"),
    **dict.fromkeys(("64", "fp64", "64-true", "double"), "float64"),
}
_DTYPES = {"bf16-mixed": "bfloat16", "fp16-mixed": "float16", "bf16": "bfloat16"}


def checked_precision(error: type[AnyaccelError], where: str, value: Any) -> str:
    """One of `PRECISIONS`; anything else is an error with the one that is meant."""
    if isinstance(value, str) and value in PRECISIONS:
        return value
    meant = _MEANT.get(str(value).lower())
    hint = f"write precision={meant!r}" if meant else did_you_mean(value, PRECISIONS, "use one of these")
    raise error(f"{where}unknown precision={shown(value)}", available=", ".join(map(repr, PRECISIONS)), hint=hint)


@dataclass(frozen=True, slots=True)
class NodePrecision:
    """How a node is computed. Parameters, gradients and optimizer state stay in the model's own dtype.

    Parameters and floating inputs are cast on their way into the model, and its floating outputs back to the dtype of
    the parameters on their way out. In a mixed precision, normalizations and what else would suffer from 16 bits stay
    in float32, as far as the framework knows it, and so do buffers.

    Attributes:
        name: one of `PRECISIONS`.
    """

    name: str

    @property
    def dtype(self) -> str:
        """The dtype in which most of the node is computed, by NumPy's name (also `"bfloat16"`)."""
        return _DTYPES.get(self.name, self.name)

    @property
    def is_mixed(self) -> bool:
        """Whether parts of the node stay in float32."""
        return self.name.endswith("-mixed")

    @property
    def scales_losses(self) -> bool:
        """Whether gradients need a loss scale: float16 has none below 6e-8."""
        return self.name == "fp16-mixed"


@dataclass(frozen=True, slots=True)
class SegmentPrecision:
    """What is said of the operations of a segment, by their labels; hashable. Operations left out are as they are.

    Attributes:
        precisions: label and precision.
        recomputed: label and `remat` of the operations whose values are computed again in the backward pass.
        loss_scale: by what losses are multiplied in training; None where they are not.
    """

    precisions: tuple[tuple[str, NodePrecision], ...] = ()
    recomputed: tuple[tuple[str, str], ...] = field(default=())
    loss_scale: LossScale | None = None

    def of(self, label: str) -> NodePrecision | None:
        """The precision of an operation; None for that of its model."""
        return dict(self.precisions).get(label)

    def remat(self, label: str) -> str:
        """What is computed again in the backward pass of an operation; `""` for nothing."""
        return dict(self.recomputed).get(label, "")
