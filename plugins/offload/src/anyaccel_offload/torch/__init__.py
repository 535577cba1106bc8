"""Models larger than a device: built without memory, planned, loaded, and run with weights that rest elsewhere.

Names and arguments are those of Accelerate's big-model tools where they mean the same. Importing this module does not
import torch; its names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyaccel.lazy_attributes import lazy_attributes

if TYPE_CHECKING:
    from anyaccel_offload.torch.auto_device_map import DeviceMap as DeviceMap
    from anyaccel_offload.torch.auto_device_map import infer_auto_device_map as infer_auto_device_map
    from anyaccel_offload.torch.dispatch import cpu_offload as cpu_offload
    from anyaccel_offload.torch.dispatch import disk_offload as disk_offload
    from anyaccel_offload.torch.dispatch import dispatch_model as dispatch_model
    from anyaccel_offload.torch.dispatch import load_checkpoint_and_dispatch as load_checkpoint_and_dispatch
    from anyaccel_offload.torch.empty_modules import empty_weights as empty_weights
    from anyaccel_offload.torch.empty_modules import init_empty_weights as init_empty_weights
    from anyaccel_offload.torch.empty_modules import init_on_device as init_on_device
    from anyaccel_offload.torch.loading import LoadedCheckpoint as LoadedCheckpoint
    from anyaccel_offload.torch.loading import load_checkpoint as load_checkpoint
    from anyaccel_offload.torch.loading import load_checkpoint_in_model as load_checkpoint_in_model
    from anyaccel_offload.torch.model_hooks import AlignDevicesHook as AlignDevicesHook
    from anyaccel_offload.torch.model_hooks import ModelHook as ModelHook
    from anyaccel_offload.torch.model_hooks import SequentialHook as SequentialHook
    from anyaccel_offload.torch.model_hooks import add_hook_to_module as add_hook_to_module
    from anyaccel_offload.torch.model_hooks import hook_of as hook_of
    from anyaccel_offload.torch.model_hooks import remove_hook_from_module as remove_hook_from_module
    from anyaccel_offload.torch.offload import BlockPlace as BlockPlace
    from anyaccel_offload.torch.offload import Offload as Offload
    from anyaccel_offload.torch.offload import offload_of as offload_of
    from anyaccel_offload.torch.offload import remove_offload as remove_offload
    from anyaccel_offload.torch.whole_model import CpuOffloadHook as CpuOffloadHook
    from anyaccel_offload.torch.whole_model import cpu_offload_with_hook as cpu_offload_with_hook

_MODULES = {
    "AlignDevicesHook": ".model_hooks",
    "ModelHook": ".model_hooks",
    "SequentialHook": ".model_hooks",
    "add_hook_to_module": ".model_hooks",
    "hook_of": ".model_hooks",
    "remove_hook_from_module": ".model_hooks",
    "BlockPlace": ".offload",
    "CpuOffloadHook": ".whole_model",
    "DeviceMap": ".auto_device_map",
    "LoadedCheckpoint": ".loading",
    "Offload": ".offload",
    "cpu_offload": ".dispatch",
    "cpu_offload_with_hook": ".whole_model",
    "disk_offload": ".dispatch",
    "dispatch_model": ".dispatch",
    "empty_weights": ".empty_modules",
    "infer_auto_device_map": ".auto_device_map",
    "init_empty_weights": ".empty_modules",
    "init_on_device": ".empty_modules",
    "load_checkpoint": ".loading",
    "load_checkpoint_and_dispatch": ".dispatch",
    "load_checkpoint_in_model": ".loading",
    "offload_of": ".offload",
    "remove_offload": ".offload",
}

__getattr__, __dir__ = lazy_attributes(__name__, _MODULES)

__all__ = [
    "AlignDevicesHook",
    "BlockPlace",
    "CpuOffloadHook",
    "DeviceMap",
    "LoadedCheckpoint",
    "ModelHook",
    "Offload",
    "SequentialHook",
    "add_hook_to_module",
    "cpu_offload",
    "cpu_offload_with_hook",
    "disk_offload",
    "dispatch_model",
    "empty_weights",
    "hook_of",
    "infer_auto_device_map",
    "init_empty_weights",
    "init_on_device",
    "load_checkpoint",
    "load_checkpoint_and_dispatch",
    "load_checkpoint_in_model",
    "offload_of",
    "remove_hook_from_module",
    "remove_offload",
]
