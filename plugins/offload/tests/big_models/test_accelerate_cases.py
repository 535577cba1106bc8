"""The cases of Accelerate's own tests that do not pass with our functions in its place, each with its reason.

Accelerate 1.15.0, tests/test_big_modeling.py, test_hooks.py, test_modeling_utils.py and test_offload.py, on two
simulated devices: 100 cases, of which 52 pass. A reason is a row of the page or a name that is not here, each with a
test of ours.
"""

from __future__ import annotations

import pytest

from anyaccel_offload.torch import accelerate_words as words

from .test_dispatched_models import DIFFERENCES

META = "offloaded weights are `meta` tensors between calls"
HOOKS = "modules have `_hf_hook` and another `forward`"
MOVED = "`model.to()` warns, or moves a part"
COPIED = "`copy.deepcopy` and pickles include the hooks"
STRICT = "`load_checkpoint_in_model` has `strict=False`"
INDEX = "an index without `weight_map`"
FOLDER = '`load_checkpoint_in_model(offload_folder=)` writes `"disk"` weights again'
BYTES = "maps count bytes"
EACH_TENSOR = "`cpu_offload` and `AlignDevicesHook(offload=True)` copy each tensor when it is used"
NUMBERS = "maps name devices by numbers"
IDLE = "a device that holds no block is left out, and the model computes on the CPU"
HERE_ONLY = ("files of the hub", "bitsandbytes", "CUDA", "skipped by Accelerate")
HUB, QUANTIZED, CUDA, SKIPPED = HERE_ONLY

CASES = {
    # test_big_modeling.py
    "cpu_offload_gpt2": HUB,
    "disk_offload_gpt2": HUB,
    "dispatch_model_gpt2_on_two_devices": HUB,
    "dispatch_model_bnb": QUANTIZED,
    "dispatch_model_int8_simple": QUANTIZED,
    "dipatch_model_fp4_simple": QUANTIZED,
    "dispatch_model_tied_weights_memory_with_nested_offload_disk": SKIPPED,
    "dispatch_model_tied_weights_memory_with_nested_offload_cpu": HOOKS,
    "dispatch_model_copy": COPIED,
    "dispatch_model_move_model_warning": MOVED,
    "dispatch_model_move_offloaded_model": MOVED,
    "load_checkpoint_and_dispatch": META,
    "load_checkpoint_and_dispatch_multi_device": META,
    "load_checkpoint_and_dispatch_multi_device_with_unused_submodules": META,
    "load_checkpoint_and_dispatch_with_unused_submodules": META,
    # test_hooks.py
    "cpu_offload_hook_moves_model": CUDA,
    "cpu_offload_hook_with_prev_module": CUDA,
    "add_and_remove_hooks": HOOKS,
    "append_and_remove_hooks": HOOKS,
    "align_devices_as_cpu_offload": EACH_TENSOR,
    "attach_align_device_hook_as_cpu_offload": "attach_align_device_hook",
    "attach_align_device_hook_as_cpu_offload_with_weight_map": "attach_align_device_hook",
    # test_modeling_utils.py
    "align_module_device_offloaded": META,
    "check_device_map_invalid_keys": "`check_device_map` warns of unknown names",
    "clean_device_map": "clean_device_map",
    "compute_module_total_buffer_size": "compute_module_total_buffer_size",
    "convert_file_size": "convert_file_size_to_int",
    "dtype_byte_size": "dtype_byte_size",
    "get_balanced_memory": "get_balanced_memory",
    "get_balanced_memory_no_split_module_classes_set": "get_balanced_memory",
    "get_module_size_with_ties": "get_module_size_with_ties",
    "infer_auto_device_map": BYTES,
    "infer_auto_device_map_on_t0pp": HUB,
    "infer_auto_device_map_with_buffer_check": BYTES,
    "infer_auto_device_map_with_buffer_check_and_multi_devices": BYTES,
    "infer_auto_device_map_with_fallback_allocation": BYTES,
    "infer_auto_device_map_with_fallback_allocation_and_buffers": BYTES,
    "infer_auto_device_map_with_fallback_allocation_no_fit": IDLE,
    "infer_auto_device_map_with_fallback_allocation_partial_fit": NUMBERS,
    "infer_auto_device_map_with_fallback_allocation_tied_weights": BYTES,
    "infer_auto_device_map_with_tied_weights": BYTES,
    "load_checkpoint_in_model": INDEX,
    "load_checkpoint_in_model_disk_offload": FOLDER,
    "load_checkpoint_in_model_one_gpu": INDEX,
    "load_checkpoint_in_model_two_gpu": INDEX,
    "load_checkpoint_in_model_unexpected_keys_0": STRICT,
    "load_checkpoint_in_model_unexpected_keys_1": STRICT,
    "set_module_tensor_checks_shape": "messages of errors",
}


@pytest.mark.parametrize("case", CASES)
def test_a_case_that_does_not_pass_has_a_reason_with_a_test(case: str) -> None:
    assert CASES[case] in {*DIFFERENCES, *words.NAMES, *HERE_ONLY}


def test_as_many_cases_are_on_the_page() -> None:
    elsewhere = sum(reason in HERE_ONLY for reason in CASES.values())
    assert (len(CASES), elsewhere) == (48, 10)
