"""JaxProgram: a TracedProgram whose errors are anyaccel's, also where steps are not compiled."""

from __future__ import annotations

from contextlib import AbstractContextManager

from anyaccel.adapter import ScopedProgram, TracedOps
from anyaccel.segment import Segment
from anyaccel_jax.error_translation import translate_errors


class JaxProgram(ScopedProgram):
    """A segment of models that JAX computes.

    JAX computes later than it is called: a call that runs out of memory returns, and what it returned raises when it is
    waited for. `synchronize` waits.
    """

    def __init__(self, segment: Segment, ops: TracedOps) -> None:
        super().__init__(segment, ops)
        # on a CPU, the compiler ends the process where it cannot allocate memory, and every trial is compiled
        self.raises_out_of_memory = all(operation.device.kind != "cpu" for operation in segment.operations)

    def scope(self, subject: str) -> AbstractContextManager[None]:
        """Errors name the subject."""
        return translate_errors(subject)
