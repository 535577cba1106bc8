"""Export: the formats by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anyaccel.arguments import shown
from anyaccel.errors import ConfigError
from anyaccel.requests.entry import RequestEntry
from anyaccel.requests.exports.kubernetes import kubernetes, resource_claim
from anyaccel.requests.exports.modal import modal
from anyaccel.requests.exports.ray import ray
from anyaccel.requests.exports.skypilot import skypilot
from anyaccel.requests.exports.slurm import slurm
from anyaccel.suggestions import did_you_mean

FORMATS: Mapping[str, Callable[[Sequence[RequestEntry], bool], Any]] = {
    "modal": modal,
    "skypilot": skypilot,
    "ray": ray,
    "slurm": slurm,
    "kubernetes": kubernetes,
    "dra": resource_claim,
}


def export(entries: Sequence[RequestEntry], ordered: bool, to: str) -> Any:
    """Wishes as a scheduler writes them.

    Raises:
        ConfigError: an unknown format, or a wish that the scheduler has no words for.
    """
    if not isinstance(to, str) or to not in FORMATS:
        hint = did_you_mean(to if isinstance(to, str) else "", FORMATS, "use one of these")
        raise ConfigError(f"{shown(to)} is not a format of requests", available=", ".join(FORMATS), hint=hint)
    return FORMATS[to](entries, ordered)
