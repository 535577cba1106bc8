"""Models larger than a device: build them without memory, plan, load, and run them with offloaded weights.

Names and arguments are those of Accelerate's big-model tools if they mean the same. Importing this module does not
import torch; its names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyaccel.lazy_attributes import lazy_attributes
from anyaccel_offload.torch.accelerate_words import NAMES

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
    from anyaccel_offload.torch.module_tools import LayerwiseCastingHook as LayerwiseCastingHook
    from anyaccel_offload.torch.module_tools import OffloadedWeightsLoader as OffloadedWeightsLoader
    from anyaccel_offload.torch.module_tools import align_module_device as align_module_device
    from anyaccel_offload.torch.module_tools import attach_layerwise_casting_hooks as attach_layerwise_casting_hooks
    from anyaccel_offload.torch.module_tools import check_device_map as check_device_map
    from anyaccel_offload.torch.module_tools import compute_module_sizes as compute_module_sizes
    from anyaccel_offload.torch.module_tools import extract_submodules_state_dict as extract_submodules_state_dict
    from anyaccel_offload.torch.module_tools import find_tied_parameters as find_tied_parameters
    from anyaccel_offload.torch.module_tools import get_state_dict_offloaded_model as get_state_dict_offloaded_model
    from anyaccel_offload.torch.module_tools import load_offloaded_weight as load_offloaded_weight
    from anyaccel_offload.torch.module_tools import load_state_dict as load_state_dict
    from anyaccel_offload.torch.module_tools import named_module_tensors as named_module_tensors
    from anyaccel_offload.torch.module_tools import offload_state_dict as offload_state_dict
    from anyaccel_offload.torch.module_tools import offload_weight as offload_weight
    from anyaccel_offload.torch.module_tools import remove_hook_from_submodules as remove_hook_from_submodules
    from anyaccel_offload.torch.module_tools import retie_parameters as retie_parameters
    from anyaccel_offload.torch.module_tools import set_module_tensor_to_device as set_module_tensor_to_device
    from anyaccel_offload.torch.offload import BlockPlace as BlockPlace
    from anyaccel_offload.torch.offload import Offload as Offload
    from anyaccel_offload.torch.offload import offload_of as offload_of
    from anyaccel_offload.torch.offload import remove_offload as remove_offload
    from anyaccel_offload.torch.whole_model import CpuOffloadHook as CpuOffloadHook
    from anyaccel_offload.torch.whole_model import cpu_offload_with_hook as cpu_offload_with_hook

_MODULES = {
    "LayerwiseCastingHook": ".module_tools",
    "OffloadedWeightsLoader": ".module_tools",
    "align_module_device": ".module_tools",
    "attach_layerwise_casting_hooks": ".module_tools",
    "check_device_map": ".module_tools",
    "compute_module_sizes": ".module_tools",
    "extract_submodules_state_dict": ".module_tools",
    "find_tied_parameters": ".module_tools",
    "get_state_dict_offloaded_model": ".module_tools",
    "load_offloaded_weight": ".module_tools",
    "load_state_dict": ".module_tools",
    "named_module_tensors": ".module_tools",
    "offload_state_dict": ".module_tools",
    "offload_weight": ".module_tools",
    "remove_hook_from_submodules": ".module_tools",
    "retie_parameters": ".module_tools",
    "set_module_tensor_to_device": ".module_tools",
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

__getattr__, __dir__ = lazy_attributes(__name__, _MODULES, NAMES)

__all__ = [
    "AlignDevicesHook",
    "BlockPlace",
    "CpuOffloadHook",
    "DeviceMap",
    "LayerwiseCastingHook",
    "LoadedCheckpoint",
    "ModelHook",
    "Offload",
    "OffloadedWeightsLoader",
    "SequentialHook",
    "add_hook_to_module",
    "align_module_device",
    "attach_layerwise_casting_hooks",
    "check_device_map",
    "compute_module_sizes",
    "cpu_offload",
    "cpu_offload_with_hook",
    "disk_offload",
    "dispatch_model",
    "empty_weights",
    "extract_submodules_state_dict",
    "find_tied_parameters",
    "get_state_dict_offloaded_model",
    "hook_of",
    "infer_auto_device_map",
    "init_empty_weights",
    "init_on_device",
    "load_checkpoint",
    "load_checkpoint_and_dispatch",
    "load_checkpoint_in_model",
    "load_offloaded_weight",
    "load_state_dict",
    "named_module_tensors",
    "offload_of",
    "offload_state_dict",
    "offload_weight",
    "remove_hook_from_module",
    "remove_hook_from_submodules",
    "remove_offload",
    "retie_parameters",
    "set_module_tensor_to_device",
]
