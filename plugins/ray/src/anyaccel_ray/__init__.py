"""Ray for anyaccel: `anyaccel run --on ray` runs a script as replicas, each a worker of Ray Train, and
`TuneReportCallback` reports the epochs of a phase to Ray Tune.
"""

from typing import TYPE_CHECKING, Any

from anyaccel_ray.launcher import launch

if TYPE_CHECKING:
    from anyaccel_ray.tune import TuneReportCallback as TuneReportCallback

__all__ = ["TuneReportCallback", "launch"]


def __getattr__(name: str) -> Any:
    if name != "TuneReportCallback":
        raise AttributeError(f"module 'anyaccel_ray' has no attribute {name!r}")
    from anyaccel_ray.tune import TuneReportCallback

    globals()[name] = TuneReportCallback
    return TuneReportCallback


def __dir__() -> list[str]:
    return sorted(__all__)
