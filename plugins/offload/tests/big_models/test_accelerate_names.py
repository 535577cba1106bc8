"""Each parameter of Accelerate's big-model tools is on the page that maps it to ours, or is taken as it is."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from anyaccel_offload import torch as big_models

PAGE = Path(__file__).parents[4] / "docs/how-to/big-models.md"
NAMES = (
    *("init_empty_weights", "init_on_device", "infer_auto_device_map", "load_checkpoint_and_dispatch"),
    *("load_checkpoint_in_model", "dispatch_model", "cpu_offload", "disk_offload", "cpu_offload_with_hook"),
)
HOOKS = ("add_hook_to_module", "remove_hook_from_module", "AlignDevicesHook", "SequentialHook", "ModelHook")


@pytest.mark.parametrize("name", [*NAMES, *HOOKS])
def test_each_parameter_is_taken_or_on_the_page(name: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    theirs = getattr(accelerate, name, None) or getattr(accelerate.hooks, name)
    page = PAGE.read_text("utf-8").partition("## From Accelerate")[2]
    assert page and f"{name}" in page
    ours = inspect.signature(getattr(big_models, name)).parameters
    unmapped = [each for each in inspect.signature(theirs).parameters if each not in ours and each not in page]
    assert not unmapped
