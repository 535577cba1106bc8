"""Outer contexts: JAX's contexts of the caller, which a phase leaves: a mesh, transfer guards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import numpy as np
from jax._src import core  # JAX has no public way to ask whether it traces

from anyaccel.adapter.outer_contexts import LeavesContexts, OuterContexts
from anyaccel.errors import PhaseError
from anyaccel_jax.runtime_config import setting

_GUARDS = ("host_to_device", "device_to_device", "device_to_host")


class JaxContexts(LeavesContexts):
    """Contexts of JAX."""

    @contextmanager
    def leave_contexts(self) -> Iterator[OuterContexts]:
        """Leave a mesh and transfer guards; threads get the 64-bit setting of this thread."""
        set_aside: list[str] = []
        with ExitStack() as entered:
            guarded = [name for name in _GUARDS if "disallow" in (_guard(name) or "")]
            if guarded:
                entered.enter_context(_allowed(guarded))
                set_aside.append(
                    "jax.transfer_guard around the phase is ignored, because the phase loads data; use "
                    "anyaccel.ledger() to list transfers"
                )
            if not core.trace_state_clean():
                raise PhaseError(
                    "a graph is computed inside a function that JAX transforms (jit, grad, vmap): it would train while "
                    "the function is traced, and never again",
                    hint="run it outside of the function",
                )
            mesh = jax.sharding.get_mesh() if hasattr(jax.sharding, "get_mesh") else None
            if mesh is not None and not mesh.empty:
                nothing: Any = np.empty((), object)
                entered.enter_context(jax.set_mesh(jax.sharding.Mesh(nothing, ())))
                set_aside.append("jax.set_mesh around the phase is ignored: set accelerator instead")
            bits = bool(setting("jax_enable_x64"))

            @contextmanager
            def in_threads() -> Iterator[None]:
                with _allowed(guarded), _x64(bits):
                    yield

            yield OuterContexts(set_aside=tuple(set_aside), in_threads=in_threads)


def _guard(name: str) -> str | None:
    level: str | None = setting(f"jax_transfer_guard_{name}") or setting("jax_transfer_guard")
    return level


@contextmanager
def _allowed(guarded: list[str]) -> Iterator[None]:
    with ExitStack() as entered:
        for name in guarded:
            entered.enter_context(getattr(jax, f"transfer_guard_{name}")("allow"))
        yield


def _x64(enabled: bool) -> Any:
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(enabled)
    from jax import experimental

    older: Any = experimental
    return older.enable_x64(enabled)
