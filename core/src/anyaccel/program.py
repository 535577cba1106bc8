"""Programs: what a backend makes of a segment. Part of the contract; `anyaccel.backend` has these names, too."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from anyaccel.segment import NodeState, Segment


class Program(ABC):
    """A segment made ready to run: bound callables, no lookups left. It owns its state until `release`.

    Inputs are given as a tuple in the order of `segment.inputs`, outputs come in the order of `segment.outputs`, all
    on the devices that the segment names. Losses are a mapping from label to (sum, weight), both left on the device.
    Nothing here waits for a device but `snapshot` and `release`. Inputs, and the cotangents that a pullback is given,
    may be memory of another framework: nothing is ever written to them, whatever the models do.

    An input may be None: this step has no rows for it. What needs it, directly or through other operations, is left
    out: operations do not run and their buffers stay as they are, outputs are None, and losses are not in the mapping.
    Cotangents of outputs and of inputs that are None are None. Parameters that no gradient has reached are not touched
    by `apply`, and their node does not count the step. `MultiStepProgram.steps` always has all columns. In a graph of several
    segments an output that is None is given as None to the segments that take it, and one all of whose inputs are None
    is not asked in this step.
    """

    segment: Segment

    @abstractmethod
    def seed(self, key: int) -> None:
        """Restart the random streams (dropout) from a 64-bit key. Called at the start of every epoch."""

    @abstractmethod
    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]]]:
        """Outputs and losses in evaluation mode; nothing is kept for a pullback, no buffer changes.

        Args:
            inputs: values in the order of `segment.inputs`; None where there are none in this step.

        Returns:
            outputs, and losses as (sum, weight); what needs a missing input is None, or not there.
        """

    @abstractmethod
    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]], Callable[[Sequence[Any]], tuple[Any, ...]]]:
        """Outputs and losses in training mode (frozen operations stay in evaluation mode), and the pullback.

        Args:
            inputs: values in the order of `segment.inputs`; None where there are none in this step.
            scale: factor by which each loss's *sum* enters the total, by label; None is its term's weight divided by
                the (sum, weight) weight, which makes the total a weighted sum of means.

        Returns:
            outputs; losses; and a function that takes one cotangent for each output (None for zero), adds the
            gradients of total loss and cotangents to the parameters' and returns a cotangent for each name in
            `segment.needs_pullback` (None for zero, and for inputs that were None). It may be called once.
        """

    @abstractmethod
    def grad_stats(self) -> dict[str, tuple[Any, Any]]:
        """Per parameter group: squared L2 norm of its gradients and whether all are finite.

        Both are scalars on the device of the group's first node.
        """

    def clip_factor(self, limit: float, squares: Sequence[Any]) -> Any:
        """The factor for gradients whose squared norms add up to the sum of `squares`, so that their norm is `limit`.

        `min(1, limit / (norm + 1e-6))`, NaN where the norm is. The default waits for the squares.

        Args:
            limit: the largest norm that is left as it is.
            squares: scalars of this framework on one device, one for each part of a group.

        Returns:
            what `apply` takes as a scale: a tensor on that device where nothing is to be waited for, else a float.
        """
        norm = math.sqrt(sum(float(square) for square in squares))
        return limit / (norm + 1e-6) if not norm + 1e-6 <= limit else 1.0

    @abstractmethod
    def map_gradients(self, fn: Callable[[Any], Any]) -> None:
        """Replace every parameter's gradient by `fn(gradient)`, in the order of the groups' nodes and parameters."""

    @abstractmethod
    def optimizer_step(self, scale: Mapping[str, Any] | None = None) -> None:
        """One optimizer step with the gradients, times `scale[group]` where given; then forget the gradients.

        Parameters that no gradient has reached stay as they are, and a node of which none was reached does not count
        the step.
        """

    @abstractmethod
    def zero_grad(self) -> None:
        """Forget the gradients without a step."""

    @abstractmethod
    def snapshot(self) -> Any:
        """A copy of everything a step changes: parameters, buffers, optimizer state, random state."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot, which can be used again; gradients are forgotten."""

    @abstractmethod
    def optimizer_states(self) -> dict[str, NodeState]:
        """The optimizer state by node, as it is now; tensors of the framework, on their devices."""

    def sync_models(self) -> None:
        """Let the user's own models hold the values of now; the program goes on, and its state stays its own.

        The default does nothing, which is right for a program that works on the user's models in place.
        """

    @abstractmethod
    def close(self) -> dict[str, NodeState]:
        """End: the user's own models hold the result, and the optimizer state is handed out. May be called twice."""


@dataclass(frozen=True, slots=True)
class CompileEstimate:
    """What it would take to compile whole steps, and what it would bring: both guesses, from what the program knows.

    `seconds` is the time of the compilation; `ratio` that of a compiled step as a part of one that is not.
    """

    compile_seconds: float
    step_ratio: float


class MultiStepProgram(Program):
    """A Program that can run whole training steps in one call, however its framework does that best.

    Steps may be compiled: core calls `compile` before the first of them if the phase asks for it, or when `offer`
    promises that it pays. All else stays as it is, and the numbers too, but for rounding. Where `segment.compile` is
    `"off"` core asks for neither, and the program does not compile by itself nor import what would.
    """

    supports_microbatching: ClassVar[bool] = False
    """Whether `steps` takes `parts`."""

    @abstractmethod
    def train_steps(
        self, columns: Sequence[Any], orders: Sequence[Any], start: int, n_steps: int, batch_size: int
    ) -> Any:
        """`count` training steps over resident columns; step i takes rows `order[start + i*batch :][:batch]`.

        Includes clipping within the segment and the optimizer step. No transfer and no wait happens inside. A program
        with `in_parts` takes `parts: int = 1` after `batch`: each step computes its rows in so many parts of equal
        size, one after the other, adds up their gradients, and ends as it would with all rows at once but for what
        mixes the rows of a batch.

        Args:
            columns: resident columns in the order of `segment.inputs`.
            orders: for each column the epoch's order, [n] of the backend's `index_dtype`, on the column's device.
            start: first row in the order.
            count: number of steps.
            batch: rows in each step.

        Returns:
            mean losses on the device, [count or more, len(segment.losses)], in the order of `segment.losses`; rows
            from `count` on say nothing.
        """

    def estimate_compile(self, max_steps: int) -> CompileEstimate | None:
        """What compiling steps would take and bring if calls are of at most `most` steps; None if nothing.

        Asked between steps, so that it may answer from what it has seen. The default has nothing to compile.
        """
        return None

    def compile(self, columns: Sequence[Any], orders: Sequence[Any], batch_size: int, n_microbatches: int = 1) -> None:
        """Compile `steps` of `batch` rows (in `parts`) over such columns, now. Changes no value.

        From then on `steps` takes the compiled way wherever it fits, and any other way where it does not (a last
        partial batch). The default does nothing: `steps` is as fast as it gets.

        Raises:
            CompileError: it cannot be, and why (a model that cannot be traced, no C++ compiler); steps go on as before.
        """
