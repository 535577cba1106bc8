"""The subject of the conformance kit for JAX; imported by `anyaccel conform jax`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from anyaccel.backend import Backend
from anyaccel_devtools.testing import Subject
from anyaccel_jax import Function
from anyaccel_jax.backend import JaxBackend

FOLDER = "jax_compilation_cache_dir"
ENTRIES_OF_ANY_SIZE = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


class JaxSubject(Subject):
    """JAX on the best device of this machine, with the models that every framework has.

    JAX's compiled programs are cached for the other tests of the run: many trace the same program of another model
    object.
    """

    @pytest.fixture(autouse=True)
    def compile_once(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        """Cache compiled programs in a folder of the run, unless the user has set one."""
        with compilation_cache_in(tmp_path_factory.getbasetemp() / "jax-compiled"):
            yield

    @pytest.fixture
    def backend(self) -> Backend:
        """Return the backend, which serves gpu, tpu and cpu."""
        return JaxBackend()

    @pytest.fixture
    def new_tensor(self) -> Callable[[], Any]:
        """Create a tensor on the framework's default device."""
        return lambda: jnp.zeros(3)

    @pytest.fixture
    def parameter_free_model(self) -> Callable[[], Any]:
        """Return a pure function without parameters."""
        return lambda: Function(lambda parameters, x: jnp.tanh(x), {})

    @pytest.fixture
    def custom_loss(self) -> Callable[[Any, Any], Any]:
        """Return a loss in jax.numpy."""
        return lambda outputs, targets: jnp.mean((outputs - targets) ** 2)

    @pytest.fixture
    def keyword_model(self) -> Callable[[], Any]:
        """Return a pure function of two arrays, which returns a dict."""
        return lambda: Function(difference, {})

    @pytest.fixture
    def time_first_model(self) -> Callable[[], Any]:
        """Return a pure function of [time, batch, features]."""
        return lambda: Function(lambda parameters, x: jnp.cumsum(x, 0), {})

    @pytest.fixture
    def custom_step(self) -> Callable[..., Any]:
        """Return a pure function of the state of training and a batch."""
        return train_step


def difference(parameters: Any, minuend: jax.Array, subtrahend: jax.Array) -> dict[str, Any]:
    """Return the difference, as `Subject.keyword_model` requires."""
    return {"difference": minuend - subtrahend, "parts": {"first": minuend}}


def train_step(state: Any, batch: Any) -> Any:
    """Run a step for `Subject.custom_step`."""
    node = state["node"]

    def loss_of(params: Any) -> Any:
        outputs, buffers = node.apply(params, batch["x"])
        return jnp.mean((outputs - batch["t"]) ** 2), buffers

    (loss, buffers), grads = jax.value_and_grad(loss_of, has_aux=True)(node.params)
    return {"node": node.apply_gradients(grads, buffers=buffers)}, {"loss": loss}


@contextmanager
def compilation_cache_in(folder: Path) -> Iterator[None]:
    """Put JAX's compilation cache into a folder, with entries of any size; if a folder is set already, change
    nothing.
    """
    settings: dict[str, Any] = {FOLDER: str(folder), **ENTRIES_OF_ANY_SIZE}
    before = {name: getattr(jax.config, name) for name in settings}
    if before[FOLDER]:
        yield
        return
    _configure(settings)
    try:
        yield
    finally:
        _configure(before)


def _configure(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]
    compilation_cache.reset_cache()
