"""CompileWatch: whether Python values that compiled functions have read are still the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from anyaccel.adapter.python_values import Values, changed_paths


class CompileWatch:
    """The Python values that the functions of a segment read when they are traced.

    Args:
        read: reads them.
        values: what they are now.

    Attributes:
        values: what compiled functions have read. Changes that tracing itself makes (a counter) belong to it.
        is_traced: whether anything was traced.
    """

    def __init__(self, read: Callable[[], Values], values: Values) -> None:
        self.values = values
        self.is_traced = False
        self._read = read

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Around a trace: what it changes by itself is no change."""
        before = self._read()
        was_current = not self.is_traced or before == self.values  # before the first trace, nothing has read others
        yield
        self.is_traced = True
        if was_current:
            self.values = self._read()
            return
        after = self._read()
        own = set(changed_paths(before, after))
        if own:
            self.values = (
                *(pair for pair in self.values if pair[0] not in own),
                *(pair for pair in after if pair[0] in own),
            )

    def changed(self) -> list[str]:
        """Paths of the values that have changed since they were read."""
        return changed_paths(self.values, self._read())
