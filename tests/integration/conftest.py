"""Fixtures for tests over every framework that is installed here; frameworks are set up before they start."""

from __future__ import annotations

import importlib.util
import os

import pytest

from anyaccel.backend import Compute
from anyaccel.registry import registry

# 64 bits, so that every framework can be compared in them, and two devices each where a CPU can be several.
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
_KERAS_BACKENDS = [name for name in ("tensorflow", "torch", "jax") if importlib.util.find_spec(name) is not None]
os.environ.setdefault("KERAS_BACKEND", next(iter(_KERAS_BACKENDS), "numpy"))  # Keras has one backend in a process
if importlib.util.find_spec("tensorflow") is not None:
    import tensorflow

    cpus = tensorflow.config.list_physical_devices("CPU")
    tensorflow.config.set_logical_device_configuration(cpus[0], [tensorflow.config.LogicalDeviceConfiguration()] * 2)


def frameworks() -> list[str]:
    """Installed frameworks other than NumPy that compute and have the common models."""
    plugins = registry()
    names = [name for name in plugins.frameworks if name != "numpy" and isinstance(plugins.find(name), Compute)]
    return [name for name in names if "SequentialMLP" in plugins.computing(name).models()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with a `framework` over all of them; fail where none is installed."""
    if "framework" in metafunc.fixturenames:
        names = frameworks()
        if not names:
            raise pytest.UsageError("tests/integration needs a plugin with its framework installed")
        metafunc.parametrize("framework", names)


@pytest.hookimpl(tryfirst=True)  # before what `-m` leaves out is chosen
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs three frameworks as a test of several."""
    for item in items:
        if "three" in getattr(item, "fixturenames", ()):
            item.add_marker("across")


@pytest.fixture(scope="session")
def three() -> tuple[str, str, str]:
    """torch, JAX and TensorFlow; the session `mixed` requires all of them, others skip."""
    required = ("torch", "jax", "tensorflow")
    missing = [name for name in required if name not in frameworks()]
    if missing and os.environ.get("ANYACCEL_TEST_MIXED"):
        pytest.fail(f"this session is for all frameworks, and {', '.join(missing)} cannot be used")
    if missing:
        pytest.skip(f"needs {', '.join(missing)} too")
    return required
