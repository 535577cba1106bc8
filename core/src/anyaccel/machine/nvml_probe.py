"""Prints NVIDIA's devices as JSON, from NVML, which creates no context on them. Runs in its own process."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any


def nvml_rows(nvml: Any) -> list[dict[str, Any]]:
    """Name, identity and memory in bytes of each device, in NVML's order; of a divided one (MIG), of its parts.

    Args:
        nvml: The module `pynvml`, started.
    """
    rows = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        rows += [_row(nvml, part) for part in _parts(nvml, handle) or [handle]]
    return rows


def _parts(nvml: Any, handle: Any) -> list[Any]:
    try:
        if not nvml.nvmlDeviceGetMigMode(handle)[0]:
            return []
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:  # a device that cannot be divided
        return []
    parts = []
    for index in range(most):
        try:
            parts.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except nvml.NVMLError:  # no part of this number
            continue
    return parts


def _row(nvml: Any, handle: Any) -> dict[str, Any]:
    name, identity = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle)
    texts = [text.decode("utf-8", "replace") if isinstance(text, bytes) else text for text in (name, identity)]
    return {"name": texts[0], "identity": texts[1], "nbytes": int(nvml.nvmlDeviceGetMemoryInfo(handle).total)}


if __name__ == "__main__":
    library = import_module("pynvml")
    library.nvmlInit()
    sys.stdout.write(f"{json.dumps(nvml_rows(library))}\n")
    library.nvmlShutdown()
