"""Models of libraries: which are installed, and how many of them are tested."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

ALL = "ANYACCEL_TEST_MODELS" in os.environ
"""Whether every model is tested, and every library needed; otherwise a sample of what is installed."""

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are built from configurations, and nothing is downloaded


def library(name: str) -> Any:
    """A library of torch models; its tests are skipped where it is not installed, unless all are wanted."""
    _declare_operators()  # others import torchvision, too
    return importlib.import_module(name) if ALL else pytest.importorskip(name)


def chosen(names: Iterable[str], sample: Collection[str]) -> list[str]:
    """All names, or those of the sample."""
    return [name for name in names if ALL or name in sample]


_declared: list[Any] = []


def _declare_operators() -> None:
    """Declare the operators that `import torchvision` gives shapes for, if its compiled part cannot be loaded.

    That part is made for one build of torch, and the one for GPUs is not loaded beside torch for CPUs. Without it the
    import fails, though its classifiers do not need it.
    """
    import torch

    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None or _declared:
        return
    try:
        for path in Path(found.origin).parent.glob("_C*"):
            torch.ops.load_library(path)
    except OSError:
        _declared.append(torch.library.Library("torchvision", "DEF"))  # what it declares lives as long as it does
        for name in ("nms", "qnms"):
            _declared[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
