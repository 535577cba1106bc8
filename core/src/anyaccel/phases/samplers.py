"""The samplers of a phase: one for all feature sets or one for each, and the schedule that combines them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyaccel.arguments import is_integer, shown
from anyaccel.data import Sampler, SimpleSampler, sampler_from_config
from anyaccel.errors import PhaseError
from anyaccel.phases.loading.epoch_batches import SCHEDULES
from anyaccel.phases.setting import Setting
from anyaccel.suggestions import did_you_mean

Samplers = Sampler | Mapping[str, Sampler]
"""A sampler for all feature sets, or a mapping with one for each label."""


def checked_samplers(phase: Any, name: str, given: Any) -> Samplers:
    """Samplers from the argument of a phase; integers (NumPy's too) are batch sizes.

    Raises:
        PhaseError: they are neither.
    """
    samplers = {label: _sampler(one) for label, one in given.items()} if isinstance(given, Mapping) else _sampler(given)
    for sampler in samplers.values() if isinstance(samplers, Mapping) and samplers else [samplers]:
        if not isinstance(sampler, Sampler):
            raise PhaseError(
                f"phase {phase.label!r}: sampler must be a Sampler or a batch size, got {shown(sampler)}",
                hint="write sampler=32, or sampler=SimpleSampler(32, shuffle=True)",
            )
    return samplers


def _sampler(given: Any) -> Any:
    return SimpleSampler(given, shuffle=True) if isinstance(given, bool) or is_integer(given) else given


def samplers_config(samplers: Samplers) -> dict[str, Any]:
    """Samplers as plain data."""
    if isinstance(samplers, Sampler):
        return samplers.get_config()
    return {name: sampler.get_config() for name, sampler in samplers.items()}


def samplers_from(config: Any) -> Any:
    """Samplers from what `samplers_config` gave."""
    if isinstance(config, Mapping) and config and all(isinstance(part, Mapping) for part in config.values()):
        return {name: sampler_from_config(part) for name, part in config.items()}
    return sampler_from_config(config)


def check_schedule(phase: Any, name: str, given: Any) -> str | None:
    """How samplers are combined; None is the default.

    Raises:
        PhaseError: an unknown name, or there is only one sampler.
    """
    if given is None:
        return None
    if given not in SCHEDULES:
        raise PhaseError(
            f"phase {phase.label!r}: unknown schedule={shown(given)}",
            available=", ".join(SCHEDULES),
            hint=did_you_mean(given, SCHEDULES, "use one of these"),
        )
    if isinstance(phase.sampler, Sampler) or len(phase.sampler) < 2:
        raise PhaseError(
            f"phase {phase.label!r} has schedule={given!r} but only one sampler",
            hint="leave schedule out, or write sampler={'FEATURE_SET': 32, 'OTHER': 32}",
        )
    return str(given)


SAMPLER = Setting(checked_samplers, lambda phase, kept: samplers_config(kept), samplers_from, samplers_config)
"""The setting `sampler` of a TrainPhase."""
