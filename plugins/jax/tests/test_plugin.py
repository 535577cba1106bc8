"""What the plugin offers, and that it imports JAX only on use."""

from __future__ import annotations

import subprocess
import sys

import pytest

import anyaccel_jax
from anyaccel.backend import Backend, capabilities
from anyaccel.device import Device
from anyaccel.registry import Registry


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_neither_the_import_nor_the_backend_imports_jax() -> None:
    code = (
        "import sys, anyaccel_jax; found = anyaccel_jax.backends(); dir(anyaccel_jax);"
        "print(len(found), found[0].framework, found[0].device_string, 'jax' in sys.modules)"
    )
    assert run(code).startswith("1 jax") and run(code).endswith("False")


@pytest.mark.parametrize("name", ["SequentialMLP", "SequentialCNN", "TabularMLP", "Function"])
def test_models_are_loaded_on_first_use_and_import_no_library(name: str) -> None:
    code = (
        f"import sys; from anyaccel_jax import {name}; "
        f"print({name}.__name__, [m for m in ('jax', 'flax', 'equinox', 'optax', 'keras') if m in sys.modules])"
    )
    assert run(code) == f"{name} ['jax']"


def test_training_a_model_of_ours_imports_no_library() -> None:
    code = (
        "import sys, numpy as np, anyaccel_jax; from anyaccel.device import Device; from anyaccel.segment import *;"
        "b = anyaccel_jax.JaxBackend(); m = b.wrap(anyaccel_jax.SequentialMLP()); cpu = Device('cpu');"
        "b.infer(m, [TensorSpec((3,), 'float32')], 0); b.data_format(m); b.owns(m); b.device_of(m); b.place(m, cpu);"
        "p = b.build(Segment('s', (Operation('a', m, ('x',), ('a',), cpu),), "
        "{'x': (TensorSpec((3,), 'float32'), cpu)}, ('a',)));"
        "p.forward([b.from_host(np.zeros((2, 3), 'float32'), cpu)]);"
        "print([m for m in ('flax', 'equinox', 'optax', 'keras', 'torch') if m in sys.modules])"
    )
    assert run(code) == "[]"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        anyaccel_jax.Nothing  # noqa: B018
    assert "SequentialMLP" in dir(anyaccel_jax)


def test_the_backend_declares_every_capability() -> None:
    (backend,) = anyaccel_jax.backends()
    assert isinstance(backend, Backend)
    assert capabilities(backend) == ("exchange", "compute", "memory")
    assert (backend.framework, backend.kinds) == ("jax", ("gpu", "tpu", "cpu"))


class _Nothing(Backend):
    framework, kinds, import_roots = "numpy", ("cpu",), ("numpy",)
    devices = device_of = place = move = scope = device_string = None  # type: ignore[assignment]


def test_the_registry_takes_the_plugin_and_its_models() -> None:
    registry = Registry(_Nothing, list)
    registry.register(anyaccel_jax, "jax")
    assert registry.kinds("jax") == ("gpu", "tpu", "cpu")
    assert registry.serving("jax", Device("cpu")).framework == "jax"
    assert registry.owner(anyaccel_jax.SequentialMLP()) == "jax"
    assert registry.owner(anyaccel_jax.Function(lambda p, x: x, {})) == "jax"
    assert registry.owners(anyaccel_jax.JaxBackend()) == ()


def test_the_registry_tells_why_a_device_is_missing() -> None:
    from anyaccel.errors import DeviceUnavailableError

    registry = Registry(_Nothing, list)
    registry.register(anyaccel_jax, "jax")
    with pytest.raises(DeviceUnavailableError, match=r"cpu:5 is not on this machine .*\"jax_num_cpu_devices\", 6"):
        registry.serving("jax", Device("cpu", 5))
