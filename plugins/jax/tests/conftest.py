"""Fixtures of the JAX plugin's tests: two CPU devices, the backend, and the segment that most tests use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.device import Device
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel_jax.backend import JaxBackend

# Read when JAX and Keras are imported, which is after this file and those like it: tests of other folders may run in
# the same process, and want settings of their own.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")
os.environ.setdefault("KERAS_BACKEND", "jax")
# On a GPU JAX multiplies float32 in TF32 unless it is told not to: three digits, and tests compare more.
os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "float32")

CPU = Device("cpu")


@pytest.fixture(scope="session")
def backend() -> JaxBackend:
    return JaxBackend()


@pytest.fixture(scope="session")
def segment_of() -> Callable[..., Segment]:
    """A segment `x -> node -> loss against y`; keywords change parts of it."""
    return make_segment


def make_segment(
    model: Any,
    *,
    optimizer: Optimizer | None = None,
    loss: Any = "mse",
    weight: float = 1.0,
    features: tuple[int, ...] = (3,),
    target: tuple[int, ...] = (1,),
    **changes: Any,
) -> Segment:
    given: dict[str, Any] = {
        "label": "s",
        "operations": (Operation("a", model, ("x",), ("a",), CPU),),
        "inputs": {"x": (TensorSpec(features, "float32"), CPU), "y": (TensorSpec(target, "float32"), CPU)},
        "outputs": ("a",),
        "losses": (LossTerm("l", "a", Loss(loss), ("a", "y"), CPU, weight),),
        "groups": (ParameterGroup("g", optimizer or Optimizer("sgd", lr=0.1), ("a",)),),
    }
    return Segment(**{**given, **changes})


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns x [24, 3] and y [24, 1], and an order of their rows."""
    draw = np.random.default_rng(7)
    x, y = draw.normal(size=(24, 3)).astype("float32"), draw.normal(size=(24, 1)).astype("float32")
    return x, y, draw.permutation(24).astype("int32")


@pytest.fixture(scope="session")
def linen() -> ModuleType:
    """Flax Linen."""
    return pytest.importorskip("flax.linen", reason="Flax is not installed")


@pytest.fixture(scope="session")
def nnx() -> ModuleType:
    """Flax NNX."""
    return pytest.importorskip("flax.nnx", reason="Flax is not installed")


@pytest.fixture(scope="session")
def eqx() -> ModuleType:
    """Equinox."""
    return pytest.importorskip("equinox", reason="Equinox is not installed")


@pytest.fixture(scope="session")
def optax() -> ModuleType:
    """Optax."""
    return pytest.importorskip("optax", reason="Optax is not installed")


@pytest.fixture(scope="session")
def keras() -> ModuleType:
    """Keras, where it runs on JAX."""
    result = pytest.importorskip("keras", reason="Keras is not installed")
    if result.backend.backend() != "jax":
        pytest.skip(f"Keras runs on {result.backend.backend()} in this process")
    return result


@pytest.fixture
def train(data: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Callable[..., tuple[Any, Any]]:
    """Trains a model in a graph on x and y, in batches of 8 in their order; gives the model and each epoch's loss."""

    def run(
        model: Any, optimizer: Any = None, loss: Any = "mse", epochs: int = 3, seed: int = 0, **settings: Any
    ) -> tuple[Any, np.ndarray]:
        source = aa.FeatureSet.from_dict("data", {"x": data[0], "y": data[1]}, ["x"], ["y"])
        graph = aa.ModelGraph(
            [aa.ModelNode("net", model, source.reference())], optimizer or aa.Optimizer("sgd", lr=0.1), seed=seed
        )
        phase = aa.TrainPhase(
            "t",
            data=source,
            losses=[aa.AppliedLoss(loss, on="net")],
            sampler=aa.SimpleSampler(8),
            epochs=epochs,
            **settings,
        )
        results = aa.Experiment("e", graph, progress="none").run_phase(phase)
        return graph["net"].model, np.asarray(results.loss)

    return run


@pytest.fixture
def batches(data: tuple[np.ndarray, np.ndarray, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The batches of `train`, of three epochs."""
    x, y, _ = data
    return [(x[i : i + 8], y[i : i + 8]) for i in range(0, 24, 8)] * 3


@pytest.fixture(scope="session")
def x64() -> Callable[[bool], AbstractContextManager[None]]:
    """A context in which JAX's 64-bit types are enabled or disabled; arrays created inside keep their dtype outside."""
    import jax

    if hasattr(jax, "enable_x64"):
        return jax.enable_x64
    from jax.experimental import enable_x64  # before JAX 0.8

    return enable_x64


@pytest.fixture
def arrays_on_cpu() -> Iterator[None]:
    """New arrays are on the CPU, also where there is a GPU."""
    import jax

    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.fixture(autouse=True)
def narrow(x64: Callable[[bool], AbstractContextManager[None]]) -> Iterator[None]:
    """JAX as it is installed, without 64-bit types, whatever other tests of this process have set."""
    with x64(False):
        yield
