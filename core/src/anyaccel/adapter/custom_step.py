"""Custom training steps in a framework that traces: a program for them, scalars computed ahead, and compilation."""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from anyaccel.adapter.compile_cache import CompileWatch, first_line, python_values
from anyaccel.adapter.optimizers import UpdateRule
from anyaccel.adapter.parameter_state import ParameterState
from anyaccel.adapter.python_values import ValueReader, Values
from anyaccel.adapter.scoped_program import ScopedProgram
from anyaccel.adapter.segment_functions import SegmentLayout
from anyaccel.adapter.traced_ops import TracedOps
from anyaccel.adapter.traced_program import Losses
from anyaccel.errors import AnyaccelError, CompileWarning, PhaseError
from anyaccel.segment import NodeState, Segment

ROWS = 1024
"""Updates of a node whose scalars are computed ahead."""
_SPARE = 4  # a step may come to take so many times more updates than those before it


class UpdateTables:
    """The scalars of the next updates of every node, on its device, so that one step can make any number of updates.

    Row i belongs to the node's update number `first + i`, counted from 1. Steps count their updates on the device, and
    this count is read only occasionally. An update beyond the last row must return NaN, not another rate.

    Args:
        rules: Update rules by node.
        put: Function that moves a float64 array to the device of a node, in the framework's own precision.

    Attributes:
        tables: Arrays [ROWS] by node and name of the scalar.
        first: Number of updates before the first row, by node.
    """

    def __init__(self, rules: Mapping[str, UpdateRule], put: Callable[[str, np.ndarray], Any]) -> None:
        self._rules, self._put = rules, put
        self.tables: dict[str, dict[str, Any]] = {}
        self.first: dict[str, int] = {}
        self._calls, self._max_calls = 0, 0

    def invalidate(self) -> None:
        """Compute them again before the next step, because a schedule may have changed, or counts were restored."""
        self.tables, self._max_calls = {}, 0

    def advance(self, read_counts: Callable[[], Mapping[str, int]]) -> bool:
        """Count a step that is about to begin; return whether the tables were computed again for it.

        Args:
            read_counts: Function that returns the number of updates of each node so far; it waits for the device.
        """
        self._calls += 1
        if self.tables and self._calls <= self._max_calls:
            return False
        counts = read_counts()
        taken = [counts[node] - first for node, first in self.first.items()] if self.tables else []
        per_call = max([1, *taken]) / max(self._calls - 1, 1) if taken else ROWS
        self._max_calls = max(1, int(ROWS / _SPARE / per_call))
        self._calls, self.first = 1, dict(counts)
        self.tables = {
            node: {name: self._put(node, column) for name, column in rule.table(counts[node] + 1, ROWS).items()}
            for node, rule in self._rules.items()
        }
        return True


class StepCompiler:
    """Run a step compiled, or line by line if requested or if it cannot be traced.

    Args:
        read: Function that reads the Python values that the step depends on.
        compile_function: Function that compiles a function.
        off: Never compile.
        fatal: Errors that occur while running, not while tracing: the state may have changed then.
    """

    def __init__(
        self,
        read: Callable[[], Values],
        compile_function: Callable[[Callable[..., Any]], Any],
        *,
        off: bool,
        fatal: tuple[type[Exception], ...] = (),
    ) -> None:
        self._read, self._compile_function, self._off = read, compile_function, off
        self._fatal: tuple[type[Exception], ...] = (AnyaccelError, MemoryError, *fatal)
        self._watch: CompileWatch | None = None
        self._compiled: Any = None
        self._is_proven = False

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a function, which is always the same one and changes nothing while it is traced."""
        if self._off:
            return function(*arguments)
        if self._compiled is None:
            self._watch = CompileWatch(self._read, self._read())
            self._compiled = self._compile_function(self._watched(function))
        if self._is_proven:
            return self._compiled(*arguments)
        try:
            result = self._compiled(*arguments)
        except self._fatal:
            raise
        except Exception as error:
            result = function(*arguments)  # if it fails too, that is the user's error
            self._off = True
            warnings.warn(
                f"the step cannot be compiled and runs eagerly: {first_line(error)}. "
                "Hint: make it traceable, or set compile='off'",
                CompileWarning,
                stacklevel=2,
            )
            return result
        self._is_proven = True
        return result

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def traced(*arguments: Any) -> Any:
            assert self._watch is not None
            with self._watch.tracing():
                return function(*arguments)

        return traced

    def renew(self) -> list[str]:
        """Return the names of the values that changed since they were read; the compiled code is then dropped."""
        changed = [] if self._watch is None or self._off else self._watch.changed()
        if changed:
            self._compiled, self._is_proven = None, False
        return changed


class CustomStepRunner(ABC):
    """A custom step, which owns the state of a program while it is current.

    Args:
        step: The user's function.
        segment: The segment to train.
        ops: Ops of the program.
        layout: Layout of the segment.
        state: Parameters and optimizer state of the program.
        off: Do not compile.
        put: See `UpdateTables`.
        compile_function, fatal: See `StepCompiler`.

    Attributes:
        arguments: Names of the arguments that this framework's steps take.
        example: An example of such a step, for the hint.
        step: As passed.

    Raises:
        PhaseError: the function does not take these arguments.
    """

    arguments: ClassVar[tuple[str, ...]]
    example: ClassVar[str]

    def __init__(
        self,
        step: Callable[..., Any],
        segment: Segment,
        ops: TracedOps,
        layout: SegmentLayout,
        state: ParameterState,
        *,
        off: bool,
        put: Callable[[str, np.ndarray], Any],
        compile_function: Callable[[Callable[..., Any]], Any],
        fatal: tuple[type[Exception], ...] = (),
    ) -> None:
        try:
            inspect.signature(step).bind(*self.arguments)
        except ValueError:
            pass  # it has no signature to look at
        except TypeError as error:
            raise PhaseError(
                f"the step must accept {len(self.arguments)} arguments, {', '.join(self.arguments)}: {error}",
                hint=f"write {self.example}",
            ) from None
        self.step, self._state = step, state
        self._groups = {owner: group for group, owners in layout.groups.items() for owner in owners}
        self._tables = UpdateTables({owner: state.optimizer.rules[group] for owner, group in self._groups.items()}, put)

        def read() -> Values:
            reader = ValueReader(ops.is_live, ops.libraries)
            reader.read("step", step)
            of_step = tuple((f"{path} of the step", key) for path, key in reader.pairs)
            return (*python_values(segment, ops, lambda model: model), *of_step)

        self._compiler = StepCompiler(read, compile_function, off=off or ops.eager, fatal=fatal)

    @abstractmethod
    def begin(self, buffers: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over the current state: parameters and optimizer state of the program, and its buffers."""

    @abstractmethod
    def run(self, batch: Mapping[str, Any], key: Any) -> Any:
        """Return the result of the step.

        Args:
            batch: Columns by name.
            key: Random key of the step, as data.
        """

    @abstractmethod
    def collect(self) -> Mapping[str, Mapping[str, Any]]:
        """Write the state to the program and return the buffers, after waiting for the last step."""

    def begin_epoch(self) -> None:
        """Read schedules again, because they may have changed."""
        self._tables.invalidate()

    def renew(self) -> list[str]:
        """Return the names of the Python values that have changed since the step was compiled, which is then done
        again; see `Program.renew_compiled`.
        """
        return self._compiler.renew()

    def close(self) -> None:
        """End, after `collect`."""


class CustomStepProgram(ScopedProgram):
    """A ScopedProgram that also runs custom training steps."""

    def __init__(self, segment: Segment, ops: TracedOps) -> None:
        super().__init__(segment, ops)
        self._own: CustomStepRunner | None = None
        self._own_is_current = False

    @abstractmethod
    def create_custom_step(self, step: Callable[..., Any]) -> CustomStepRunner:
        """Create the runner of a custom step.

        Raises:
            PhaseError: it is not such a function.
        """

    def custom_step(self, step: Callable[..., Any], batch: Mapping[str, Any]) -> Any:
        """Run a custom step with the arguments that are usual in the framework; see `Program.custom_step`."""
        with self.scope(f"the custom step on segment {self.segment.label!r}"):
            if self._own is None or self._own.step != step:
                self._collect()
                self._own, self._own_is_current = self.create_custom_step(step), False
            if not self._own_is_current:
                self._own.begin(self._buffers)
                self._own_is_current = True
            key = self._traced.fold(self._key, self._traced.scalar(self._draws + 1))
            figures = self._own.run(batch, key)
        self._draws += 1
        return figures

    def _collect(self) -> None:
        if self._own is not None and self._own_is_current:
            with self.scope("the state of models"):
                self._buffers = {**self._buffers, **self._own.collect()}

    def seed(self, key: int) -> None:
        """Restart the random streams at the beginning of an epoch."""
        super().seed(key)
        if self._own is not None:
            self._own.begin_epoch()

    def renew_compiled(self) -> list[str]:
        """Return the names of changed Python values, including those of the custom step; see `ScopedProgram`."""
        renewed = [] if self._own is None else self._own.renew()
        return list(dict.fromkeys([*renewed, *super().renew_compiled()]))

    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], Losses]:
        self._collect()
        return super().forward(inputs)

    def synchronize(self) -> None:
        self._collect()
        super().synchronize()

    def snapshot(self) -> Any:
        self._collect()
        return super().snapshot()

    def restore(self, snapshot: Any) -> None:
        super().restore(snapshot)
        self._own_is_current = False

    def optimizer_states(self) -> dict[str, NodeState]:
        self._collect()
        return super().optimizer_states()

    def sync_models(self) -> None:
        self._collect()
        super().sync_models()

    def close(self) -> dict[str, NodeState]:
        try:
            self._collect()
        finally:
            if self._own is not None:
                self._own.close()
                self._own = None
        return super().close()
