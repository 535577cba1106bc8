"""Settings of a TrainPhase for what several replicas share."""

from __future__ import annotations

from anyaccel.phases.setting import Setting, choice, flag, integer, optional

SHARDING = ("full", "full offload")

SETTINGS = {
    "replicas": Setting(optional(integer(1))),
    "per_replica": Setting(flag),
    "deterministic": Setting(flag),
    "sharding": Setting(optional(choice(*SHARDING))),
    "sync_batchnorm": Setting(flag),
}
