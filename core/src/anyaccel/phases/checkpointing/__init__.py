"""Checkpoints of a training phase: when they are written, their content, their folder, and the thread that writes."""

from anyaccel.phases.checkpointing.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
