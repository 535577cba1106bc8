"""LossScale: by what losses are multiplied so that gradients in float16 do not vanish, and how that changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self

from anyaccel import arguments
from anyaccel.arguments import is_integer, shown
from anyaccel.call_hints import constructor_hints
from anyaccel.errors import ConfigError, SpecError

_STATE = ("scale", "good_steps", "skipped")
LARGEST_SCALE = float(2**127)
"""A scale grows no further: float32, in which devices may keep it, has nothing beyond."""


@constructor_hints
@dataclass(frozen=True, slots=True)
class LossScale:
    """A factor on losses, by which gradients are divided before anything else sees them.

    A step whose gradients are not all finite is skipped: nothing is updated, no optimizer and no schedule counts it,
    and the factor shrinks. After `growth_interval` steps in a row that were not skipped it grows. The defaults are
    those of `torch.amp.GradScaler`.

    Args:
        initial: the factor of the first step, positive.
        growth: by what it is multiplied after `growth_interval` good steps, at least 1.
        backoff: by what it is multiplied after a skipped step, in (0, 1].
        growth_interval: a number of steps.

    Raises:
        SpecError: a number out of range.
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
        """A plain dict for `from_config`."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The loss scale that a configuration describes.

        Raises:
            ConfigError: malformed.
        """
        try:
            return cls(**config)
        except (TypeError, SpecError) as error:
            problem = f"{shown(config)} is not the configuration of a LossScale: {getattr(error, 'problem', error)}"
            raise ConfigError(problem, hint="give the dict that get_config() made") from None


@dataclass(frozen=True, slots=True)
class LossScaleState:
    """Where a loss scale stands.

    Attributes:
        scale: the factor of the next step.
        good_steps: steps since it changed.
        skipped: steps that were skipped so far.
    """

    scale: float
    good_steps: int = 0
    skipped: int = 0

    def after_step(self, spec: LossScale, *, finite: bool) -> LossScaleState:
        """The state after a step, whose gradients were all finite or not."""
        if not finite:
            return LossScaleState(self.scale * spec.backoff, 0, self.skipped + 1)
        good = self.good_steps + 1
        if good < spec.growth_interval:
            return LossScaleState(self.scale, good, self.skipped)
        grown = self.scale * spec.growth
        return LossScaleState(grown if grown < LARGEST_SCALE else self.scale, 0, self.skipped)

    def to_dict(self) -> dict[str, float]:
        """The state as plain data."""
        return {name: getattr(self, name) for name in _STATE}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """What `to_dict` gave.

        Raises:
            KeyError, TypeError, ValueError: malformed.
        """
        scale, good, skipped = (given[name] for name in _STATE)
        if not (float(scale) > 0 and is_integer(good) and is_integer(skipped) and min(good, skipped) >= 0):
            raise ValueError(f"{shown(given)} is not the state of a loss scale")
        return cls(float(scale), int(good), int(skipped))
