"""Samplers of a phase: one for all feature sets, or one for each, and the schedule by which these take part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyaccel.data import Sampler, SimpleSampler, sampler_from_config
from anyaccel.errors import PhaseError
from anyaccel.phases.loading.epoch_batches import SCHEDULES
from anyaccel.suggestions import did_you_mean

Samplers = Sampler | Mapping[str, Sampler]
"""A sampler, or one for each feature set by its label."""


def samplers_of(given: Any) -> Any:
    """Samplers as they are kept: any integer is a batch size, NumPy's too."""
    if isinstance(given, Mapping):
        return {name: samplers_of(one) for name, one in given.items()}
    return SimpleSampler(given, shuffle=True) if hasattr(given, "__index__") else given


def check_samplers(label: str, samplers: Any) -> None:
    """Make sure that these are samplers.

    Raises:
        PhaseError: one is none.
    """
    for one in samplers.values() if isinstance(samplers, Mapping) and samplers else [samplers]:
        if not isinstance(one, Sampler):
            raise PhaseError(
                f"phase {label!r}: sampler={one!r} is neither a sampler nor a batch size",
                hint="write sampler=32, or SimpleSampler(32, shuffle=True)",
            )


def samplers_config(samplers: Samplers) -> dict[str, Any]:
    """Samplers as plain data."""
    if isinstance(samplers, Sampler):
        return samplers.get_config()
    return {name: one.get_config() for name, one in samplers.items()}


def samplers_from(config: Any) -> Any:
    """A sampler, or a mapping of them, whose values are configurations in turn."""
    if isinstance(config, Mapping) and config and all(isinstance(one, Mapping) for one in config.values()):
        return {name: sampler_from_config(one) for name, one in config.items()}
    return sampler_from_config(config)


def check_schedule(label: str, schedule: str | None, samplers: Samplers) -> None:
    """Make sure of a schedule; None is the default.

    Raises:
        PhaseError: there is none of this name, or there are no several samplers.
    """
    if schedule is None:
        return
    if schedule not in SCHEDULES:
        raise PhaseError(
            f"phase {label!r}: schedule={schedule!r}",
            available=", ".join(SCHEDULES),
            hint=did_you_mean(schedule, SCHEDULES, "use one of these"),
        )
    if isinstance(samplers, Sampler) or len(samplers) < 2:
        raise PhaseError(
            f"phase {label!r} has schedule={schedule!r} and one sampler",
            hint="leave it out, or give sampler={'FEATURE_SET': ..., 'OTHER': ...}",
        )
