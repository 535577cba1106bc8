"""Models larger than a device: built without memory, planned, loaded, and run with weights that rest elsewhere.

Names and arguments are those of Accelerate's big-model tools where they mean the same. Importing this module does not
import torch; its names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyaccel.lazy_attributes import lazy_attributes

if TYPE_CHECKING:
    from anyaccel_torch.big_models.empty_weights import empty_weights as empty_weights
    from anyaccel_torch.big_models.empty_weights import init_empty_weights as init_empty_weights
    from anyaccel_torch.big_models.empty_weights import init_on_device as init_on_device
    from anyaccel_torch.big_models.loading import LoadedCheckpoint as LoadedCheckpoint
    from anyaccel_torch.big_models.loading import load_checkpoint as load_checkpoint
    from anyaccel_torch.big_models.loading import load_checkpoint_in_model as load_checkpoint_in_model

_MODULES = {
    "LoadedCheckpoint": ".loading",
    "empty_weights": ".empty_weights",
    "init_empty_weights": ".empty_weights",
    "init_on_device": ".empty_weights",
    "load_checkpoint": ".loading",
    "load_checkpoint_in_model": ".loading",
}

__getattr__, __dir__ = lazy_attributes(__name__, _MODULES)

__all__ = [
    "LoadedCheckpoint",
    "empty_weights",
    "init_empty_weights",
    "init_on_device",
    "load_checkpoint",
    "load_checkpoint_in_model",
]
