"""JaxProgram: a TracedProgram whose errors are anyaccel's, even if steps are not compiled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from anyaccel.adapter.custom_step import CustomStepProgram
from anyaccel.segment import Segment
from anyaccel_jax.custom_step import CustomStep
from anyaccel_jax.error_translation import translate_errors
from anyaccel_jax.ops import JaxOps


class JaxProgram(CustomStepProgram):
    """A segment of models that JAX computes.

    JAX computes asynchronously: a call that runs out of memory returns, and waiting for its result raises.
    `synchronize` waits.
    """

    def __init__(self, segment: Segment, ops: JaxOps) -> None:
        super().__init__(segment, ops)
        self._ops_in_use = ops
        # on a CPU, the compiler ends the process where it cannot allocate memory, and every trial is compiled
        self.raises_out_of_memory = all(operation.device.kind != "cpu" for operation in segment.operations)

    def scope(self, subject: str) -> AbstractContextManager[None]:
        """Return a context that adds the subject to errors."""
        return translate_errors(subject)

    def create_custom_step(self, step: Callable[..., Any]) -> CustomStep:
        """Create the runner of `step(state, batch)`, a pure function that returns (state, figures).

        `state` has a `TrainState` for each node.

        Raises:
            PhaseError: it does not take these arguments.
        """
        off = self.segment.compile == "off" or not self._as_a_whole
        return CustomStep(step, self.segment, self._ops_in_use, self._layout, self._state, off=off)
