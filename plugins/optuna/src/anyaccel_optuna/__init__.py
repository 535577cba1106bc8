"""Optuna for anyaccel: prune the trials of a study while they train."""

from anyaccel_optuna.callback import AnyaccelPruningCallback

__all__ = ["AnyaccelPruningCallback"]
