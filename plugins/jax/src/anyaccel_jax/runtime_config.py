"""JAX's devices if known before JAX starts, and settings that must be made before.

JAX starts when it first touches a device: from then on its devices and its way of allocating memory are fixed.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from anyaccel_jax.nvidia_gpus import visible_nvidia_gpus

PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
_MEMORY_VARIABLES = (
    *(PREALLOCATE, "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"),
    "XLA_PYTHON_CLIENT_ALLOCATOR",
)
AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
# JAX's names of a kind of device in its settings, and the packages that serve a platform.
_PLATFORMS = {"cpu": ("cpu",), "gpu": ("cuda", "rocm", "gpu"), "tpu": ("tpu",)}
_PLUGINS = {"cuda": ("jax_cuda12_plugin", "jax_cuda13_plugin"), "rocm": ("jax_rocm60_plugin", "jax_rocm7_plugin")}


def is_started() -> bool:
    """Whether JAX has touched its devices; starts nothing and imports nothing."""
    if "jax" not in sys.modules:
        return False
    from jax._src import xla_bridge  # JAX has no public way to ask

    ask = getattr(xla_bridge, "backends_are_initialized", None)
    return ask is None or bool(ask())


def is_installed() -> bool:
    """Return whether the JAX package is installed; imports nothing."""
    spec = find_spec("jax")
    return spec is not None and spec.submodule_search_locations is not None


def expected_count(kind: str) -> int:
    """Return the number of devices of a kind that JAX will have after its start; import nothing."""
    enabled = {word.strip() for word in (setting("jax_platforms") or "").split(",") if word.strip()}
    if enabled and not enabled & set(_PLATFORMS.get(kind, (kind,))):
        return 0
    if kind == "cpu":
        configured = int(setting("jax_num_cpu_devices") or 0)
        flag = re.search(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
        return configured if configured > 0 else int(flag.group(1)) if flag else 1
    if kind == "gpu":
        return len(visible_nvidia_gpus()) if has_plugin("cuda") else _amd_gpu_count() if has_plugin("rocm") else 0
    return len(list(Path("/dev").glob("accel[0-9]*"))) if kind == "tpu" and find_spec("libtpu") else 0


def has_plugin(platform: str) -> bool:
    """Whether a package is installed that makes JAX use `"cuda"` or `"rocm"`."""
    return any(find_spec(name) is not None for name in _PLUGINS[platform])


def setting(name: str) -> Any:
    """Return a setting of JAX's, such as `"jax_platforms"`; until JAX is imported, the variable that it will read."""
    if "jax" not in sys.modules:
        return os.environ.get(name.upper())
    import jax

    return getattr(jax.config, name)


def _amd_gpu_count() -> int:
    """Return the number of nodes of AMD's kernel driver that have compute units."""
    nodes = AMD_NODES.glob("*/properties")
    return sum(re.search(r"^simd_count [1-9]", node.read_text(), re.MULTILINE) is not None for node in nodes)


def disable_preallocation() -> str:
    """Let JAX allocate GPU memory on demand; the user's configuration is kept.

    Returns:
        `""`, or why it is too late, and what to do.
    """
    if any(name in os.environ for name in _MEMORY_VARIABLES):
        return ""
    if not is_started():
        os.environ[PREALLOCATE] = "false"
        return ""
    return (
        "JAX was started before anyaccel could prevent it from reserving three quarters of the GPU's memory; set "
        f"{PREALLOCATE}=false, or XLA_PYTHON_CLIENT_MEM_FRACTION, before anything else uses JAX"
    )
