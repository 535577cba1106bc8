"""CompileSwitch: whether the functions of a traced program run compiled or eagerly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from anyaccel.adapter.compile_cache import CompiledSegment
from anyaccel.adapter.optimizer_step import CompiledOptimizerStep
from anyaccel.adapter.parameter_state import ParameterState
from anyaccel.adapter.traced_ops import TracedOps
from anyaccel.errors import AnyaccelError

Result = TypeVar("Result")


class CompileSwitch:
    """Runs functions compiled; eagerly where that is turned off, has failed, or does not pay yet.

    The optimizer functions of the parameter state follow.

    Args:
        ops: the framework; its `eager` is set from here.
        state: the parameters of the program.
        compiled: the compiled functions.
        off: never compile.

    Attributes:
        untraceable_reason: why nothing is compiled any more, after a failed attempt; `""` otherwise.
    """

    def __init__(self, ops: TracedOps, state: ParameterState, compiled: CompiledSegment, *, off: bool) -> None:
        self._ops, self._state, self._compiled = ops, state, compiled
        self._eager_functions = CompiledOptimizerStep(state.optimizer, lambda function: function)
        self._seconds_spent = 0.0
        self.untraceable_reason = ""
        ops.eager = off
        state.optimizer_functions = self._eager_functions if off or ops.eager_seconds else compiled.optimizer_functions

    def replace(self, compiled: CompiledSegment) -> None:
        """Run other compiled functions from now on."""
        if self._state.optimizer_functions is self._compiled.optimizer_functions:
            self._state.optimizer_functions = compiled.optimizer_functions
        self._compiled = compiled

    @contextmanager
    def eagerly(self) -> Iterator[None]:
        """Nothing is compiled inside."""
        before = self._ops.eager, self._state.optimizer_functions
        self._ops.eager, self._state.optimizer_functions = True, self._eager_functions
        try:
            with self._ops.eager_scope():
                yield
        finally:
            self._ops.eager, self._state.optimizer_functions = before

    def run(self, name: str, compiled: Callable[[], Result], eager: Callable[[], Result]) -> Result:
        """The result of a function: run eagerly for `TracedOps.eager_seconds` first, or if it must be."""
        if self._ops.eager:
            return eager()
        if name not in self._compiled.proven and self._seconds_spent < (self._ops.eager_seconds or 0.0):
            began = time.perf_counter()
            with self.eagerly():
                result = eager()
            self._seconds_spent += time.perf_counter() - began
            return result
        return self.run_compiled(name, compiled, eager)

    def run_compiled(self, name: str, compiled: Callable[[], Result], eager: Callable[[], Result]) -> Result:
        """The result of a compiled function; if it fails at its first run, and the eager one does not, give up on it.

        Raises:
            AnyaccelError: raised by the compiled function, or any exception of one that has run before.
        """
        try:
            result = compiled()
        except (AnyaccelError, MemoryError):
            raise
        except Exception as error:
            if name in self._compiled.proven:
                raise
            reason = first_line(error)
        else:
            self._compiled.proven.add(name)
            self._state.optimizer_functions = self._compiled.optimizer_functions
            return result
        with self.eagerly():
            result = eager()
        self.untraceable_reason, self._ops.eager = reason, True
        self._state.optimizer_functions = self._eager_functions
        return result


def first_line(error: Exception) -> str:
    """The type of an error and the first line of its message that is not empty."""
    lines = [line.strip() for line in str(error).splitlines()]
    return f"{type(error).__name__}: {next((line for line in lines if line), '')}"
