"""Checkpoints of a training phase: when they are due, what is in them, their folder, and the thread that writes."""

from anyaccel.phases.checkpointing.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
