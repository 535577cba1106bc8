"""ScopedProgram: a TracedProgram that computes inside a context of its framework."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager

from anyaccel.adapter.traced_program import TracedProgram


class ScopedProgram(TracedProgram):
    """A TracedProgram that runs its methods inside `scope`: on its device, for example, or with translated errors.

    The computations of `__init__` do not run inside it.
    """

    @abstractmethod
    def scope(self, subject: str) -> AbstractContextManager[None]:
        """Return the context of one call.

        Args:
            subject: The computation, for messages, such as `"a batch through segment 'net'"`.
        """

    def call_scope(self, subject: str) -> AbstractContextManager[None]:
        return self.scope(subject)
