"""Ray for anyaccel: `anyaccel run --on ray` runs a script as replicas, each a worker of Ray Train."""

from anyaccel_ray.launcher import launch

__all__ = ["launch"]
