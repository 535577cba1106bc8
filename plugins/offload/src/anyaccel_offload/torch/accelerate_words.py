"""Arguments and names of Accelerate that do not exist here: ignored if they change no result, otherwise refused."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from anyaccel.errors import ConfigError

_Arguments = ParamSpec("_Arguments")
_Value = TypeVar("_Value")

IGNORED = frozenset({"offload_state_dict", "clean_result", "fallback_allocation", "clear_cache", "place_submodules"})
"""Arguments for the internals of Accelerate, which change no result."""

RENAMED: Mapping[str, str] = {"keep_in_fp32_modules": "keep_in_fp32"}

REFUSED: Mapping[str, tuple[object, str]] = {
    "verbose": (False, "leave it out, and print(device_map.plan.explain())"),
    "full_state_dict": (True, "leave it out, and pass the files of the whole model"),
    "broadcast_from_rank0": (False, "leave it out: each process reads the files"),
    "offload_8bit_bnb": (False, "leave it out: nothing is quantized"),
    "offload_index": (None, "load the files: load_checkpoint_and_dispatch(model, FOLDER, device_map)"),
    "offload_folder": (
        None,
        "write load_checkpoint_and_dispatch(model, FILES, device_map, offload_folder=FOLDER)",
    ),
    "tied_params_map": (None, "leave it out: ties are found"),
    "fp16_statistics": (None, "leave it out: nothing is quantized"),
    "offload": (False, "write cpu_offload(module, execution_device)"),
    "weights_map": (None, "write cpu_offload(module, execution_device, state_dict=weights)"),
    "offload_buffers": (False, "write cpu_offload(module, execution_device, offload_buffers=True)"),
}
"""Refused arguments, each with the value that has no effect, and the replacement for other values."""

NAMES: Mapping[str, str] = {
    "get_balanced_memory": "write infer_auto_device_map(model, max_memory), which balances",
    "get_max_memory": "write infer_auto_device_map(model), which uses the free memory",
    "clean_device_map": "keep the map: it names blocks in the order of their computation",
    "attach_align_device_hook": "write cpu_offload(module, execution_device)",
    "attach_align_device_hook_on_blocks": "write dispatch_model(model, device_map)",
    "attach_execution_device_hook": "write dispatch_model(model, {'': execution_device}, force_hooks=True)",
    "CpuOffload": "write cpu_offload_with_hook(model, execution_device)",
    "UserCpuOffloadHook": "write cpu_offload_with_hook(model, execution_device), which returns its hook",
    "load_offloaded_weights": "write OffloadedWeightsLoader(save_folder=FOLDER)",
    "has_offloaded_params": "write offload_of(model) is not None",
    "compute_module_total_buffer_size": "write compute_module_sizes(model, buffers_only=True)['']",
    "get_module_size_with_ties": "write infer_auto_device_map(model, max_memory).plan",
    "convert_file_size_to_int": "write the text: max_memory={0: '20GiB'}",
    "dtype_byte_size": "write dtype.itemsize",
    "extract_model_from_parallel": "write loop.unwrap(model)",
    "calculate_maximum_sizes": "write compute_module_sizes(model)",
}
"""Functions and classes of Accelerate that do not exist here, each with its replacement."""


def takes_accelerates(function: Callable[_Arguments, _Value]) -> Callable[_Arguments, _Value]:
    """Let a function accept Accelerate's additional arguments, by the tables above; its signature stays the same.

    Raises:
        ConfigError: An argument would change the result; the message contains the replacement.
    """
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def taking(*args: _Arguments.args, **keywords: _Arguments.kwargs) -> _Value:
        for name in [keyword for keyword in keywords if keyword not in parameters]:
            if name in IGNORED:
                del keywords[name]
            elif name in RENAMED and RENAMED[name] in parameters:
                keywords[RENAMED[name]] = keywords.pop(name) or ()
            elif name in REFUSED:
                plain, way = REFUSED[name]
                if keywords.pop(name) != plain:
                    called = function.__qualname__.removesuffix(".__init__")
                    raise ConfigError(f"{called} has no {name}, unlike Accelerate", hint=way)
        return function(*args, **keywords)

    return taking
