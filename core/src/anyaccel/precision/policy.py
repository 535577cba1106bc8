"""The names of the precisions, and the precision of each operation of a segment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

from anyaccel import arguments
from anyaccel.arguments import is_integer, shown
from anyaccel.call_hints import constructor_hints
from anyaccel.capability import Capability
from anyaccel.device import Device
from anyaccel.errors import AnyaccelError, ConfigError, SpecError
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
    """Return one of `PRECISIONS`; raise an error with the closest name for anything else."""
    if isinstance(value, str) and value in PRECISIONS:
        return value
    dtype = getattr(value, "name", getattr(value, "__name__", value))  # a dtype object instead of a name
    word = str(dtype).lower().rpartition(".")[2]
    meant = word if word in PRECISIONS else _MEANT.get(word)
    hint = f"write precision={meant!r}" if meant else did_you_mean(value, PRECISIONS, "use one of these")
    raise error(f"{where}unknown precision={shown(value)}", available=", ".join(map(repr, PRECISIONS)), hint=hint)


@dataclass(frozen=True, slots=True)
class NodePrecision:
    """The precision of a node's computation. Parameters, gradients and optimizer state keep the dtype of the model.

    Parameters and floating inputs are cast when they enter the model, and its floating outputs are cast back to the
    dtype of the parameters. In a mixed precision, normalizations and other operations that suffer from 16 bits stay in
    float32, to the extent that the framework knows them; so do buffers.

    Attributes:
        name: One of `PRECISIONS`.
    """

    name: str

    @property
    def dtype(self) -> str:
        """The dtype of most of the node's computation, by NumPy's name or as `"bfloat16"`."""
        return _DTYPES.get(self.name, self.name)

    @property
    def is_mixed(self) -> bool:
        """Whether parts of the node stay in float32."""
        return self.name.endswith("-mixed")

    @property
    def scales_losses(self) -> bool:
        """Whether gradients need a loss scale: float16 cannot represent values below 6e-8."""
        return self.name == "fp16-mixed"


@dataclass(frozen=True, slots=True)
class SegmentPrecision:
    """The precision of the operations of a segment, by label; hashable. Operations that are left out keep their
    model's.

    Attributes:
        precisions: Label and precision.
        recomputed: Label and `remat` of the operations whose values are computed again in the backward pass.
        loss_scale: Factor on the losses in training; None without a loss scale.
    """

    precisions: tuple[tuple[str, NodePrecision], ...] = ()
    recomputed: tuple[tuple[str, str], ...] = field(default=())
    loss_scale: LossScale | None = None

    def of(self, label: str) -> NodePrecision | None:
        """Return the precision of an operation, or None to use the precision of its model."""
        return dict(self.precisions).get(label)

    def remat(self, label: str) -> str:
        """Return the parts of an operation that are recomputed in its backward pass; `""` for nothing."""
        return dict(self.recomputed).get(label, "")


# -- LossScale: by what losses are multiplied so that gradients in float16 do not vanish, and how that changes ---------


_STATE = ("scale", "good_steps", "skipped")
LARGEST_SCALE = float(2**127)
"""A scale grows no further: float32, in which devices may keep it, has nothing beyond."""


@constructor_hints
@dataclass(frozen=True, slots=True)
class LossScale:
    """Scale losses by a factor that adapts, so that float16 gradients do not underflow.

    Gradients are divided by the factor before anything else reads them. A step whose gradients are not all finite is
    skipped: nothing is updated, no optimizer or schedule counts it, and the factor shrinks. After `growth_interval`
    steps in a row without a skip, the factor grows. The defaults equal those of `torch.amp.GradScaler`.

    Args:
        initial: Factor of the first step, positive.
        growth: Multiplier of the factor after `growth_interval` good steps, at least 1.
        backoff: Multiplier of the factor after a skipped step, in (0, 1].
        growth_interval: Number of steps.

    Raises:
        SpecError: a number out of range.

    Example:
        >>> import anyaccel as aa
        >>> scale = aa.LossScale(initial=1024, growth_interval=200)
        >>> phase = aa.TrainPhase("train", data="train", precision="fp16-mixed", loss_scale=scale)
    """

    initial: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        number, where = partial(arguments.number, SpecError, "LossScale: "), "LossScale: "
        number("initial", self.initial, lambda x: 0 < x < LARGEST_SCALE, "a positive number", 65536.0)
        number("growth", self.growth, lambda x: 1 <= x < LARGEST_SCALE, "a number of at least 1", 2.0)
        number("backoff", self.backoff, lambda x: 0 < x <= 1, "a number in (0, 1]", 0.5)
        arguments.integer(SpecError, where, "growth_interval", self.growth_interval, 1, 2000)

    def get_config(self) -> dict[str, Any]:
        """Return a plain dict for `from_config`."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Rebuild a loss scale from the output of `get_config`.

        Raises:
            ConfigError: malformed.
        """
        try:
            return cls(**config)
        except (TypeError, SpecError) as error:
            problem = f"{shown(config)} is not the configuration of a LossScale: {getattr(error, 'problem', error)}"
            raise ConfigError(problem, hint="pass the dict from get_config()") from None


@dataclass(frozen=True, slots=True)
class LossScaleState:
    """The current state of a loss scale.

    Attributes:
        scale: Factor of the next step.
        good_steps: Steps since it changed.
        skipped: Number of skipped steps so far.
    """

    scale: float
    good_steps: int = 0
    skipped: int = 0

    def after_step(self, spec: LossScale, *, finite: bool) -> LossScaleState:
        """Return the state after a step, given whether all its gradients were finite."""
        if not finite:
            return LossScaleState(self.scale * spec.backoff, 0, self.skipped + 1)
        good = self.good_steps + 1
        if good < spec.growth_interval:
            return LossScaleState(self.scale, good, self.skipped)
        grown = self.scale * spec.growth
        return LossScaleState(grown if grown < LARGEST_SCALE else self.scale, 0, self.skipped)

    def to_dict(self) -> dict[str, float]:
        """Return the state as plain data."""
        return {name: getattr(self, name) for name in _STATE}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """Rebuild a state from the output of `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: malformed.
        """
        scale, good, skipped = (given[name] for name in _STATE)
        if not (float(scale) > 0 and is_integer(good) and is_integer(skipped) and min(good, skipped) >= 0):
            raise ValueError(f"{shown(given)} is not the state of a loss scale")
        return cls(float(scale), int(good), int(skipped))


# -- What a backend and its programs can do about precision. Part of the plugin contract -------------------------------


class ComputesPrecision(Capability):
    """Capability: programs apply `Segment.precision`, a `SegmentPrecision`.

    A phase or node that requests a precision needs it.
    """

    precisions: ClassVar[tuple[str, ...]]
    """Those of `PRECISIONS` that its programs compute in. With `"fp16-mixed"` they are `ScalesLosses`, too."""
    matmul_precisions: ClassVar[tuple[Any, ...]] = ()
    """Values of the framework's own setting of the precision of matrix products, the default first; `()` for none."""

    @abstractmethod
    def precision_reason(self, model: Any, precision: str, device: Device) -> str:
        """Return why a built model cannot be computed in one of `precisions` on a device; `""` if it can."""

    def matmul_precision(self, value: Any) -> AbstractContextManager[Any]:
        """Return a context that sets the matrix multiplication precision to one of `matmul_precisions`, and restores it
        on exit.
        """
        return nullcontext()

    def float32_note(self, model: Any, device: Device) -> str:
        """Return what makes a float32 model less exact on a device by a default of the framework; `""` if nothing does.

        The text begins with the name of the framework, as in `"JAX multiplies float32 in TF32 on gpu:0: ..."`, and
        names the setting that makes it exact.
        """
        return ""

    def remat_blocks(self, model: Any, remat: str) -> Sequence[str]:
        """Return names of the parts of a model whose values are computed again in the backward pass for `remat`.

        `"blocks"` means the repeated parts of a model; any other text is a pattern of names. `("",)` is the whole
        model. The default, an empty result, means that the framework cannot do it.
        """
        return ()


class ScalesLosses(ABC):
    """Interface of a program whose segment has a loss scale.

    Its `forward_pullback` multiplies losses by the scale, so gradients and cotangents belong to scaled losses. The
    caller divides the gradients, skips the step if one of them is not finite, and calls `update_loss_scale`.
    `train_steps` does all of this without waiting in between.
    """

    @abstractmethod
    def loss_scale_state(self) -> LossScaleState:
        """Return the state of the loss scale; waits for the steps so far."""

    @abstractmethod
    def load_loss_scale_state(self, state: LossScaleState) -> None:
        """Continue from a state."""

    @abstractmethod
    def update_loss_scale(self, *, finite: bool) -> None:
        """Count a step that the caller did or skipped."""
