"""Program: a segment made ready to run. Part of the plugin contract, also available from `anyaccel.backend`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from anyaccel.call_hints import constructor_hints
from anyaccel.segment import NodeState, Segment


class Program(ABC):
    """A segment made ready to run: bound callables, no lookups left. It owns its state until `close`.

    Inputs are in the order of `segment.inputs` and outputs in the order of `segment.outputs`, on the devices that the
    segment names. Losses are a mapping from label to (sum, weight), both on the device. Only `synchronize`, `snapshot`
    and `close` wait for a device. Inputs, and the cotangents given to a pullback, may be memory of another framework
    and are never written to, whatever the models do.

    An input may be None: this step has no rows for it. Everything that depends on it is left out: operations do not
    run and their buffers stay as they are, outputs are None, and losses are not in the mapping. Cotangents of outputs
    and inputs that are None are None. In a graph of several segments, an output that is None is passed on as None, and
    a segment whose inputs are all None is not called. `MultiStepProgram.train_steps` always has all columns.
    """

    segment: Segment
    raises_out_of_memory: bool = True
    """Whether a step that does not fit raises. False if it may end the process: then no trials find what would fit."""

    @abstractmethod
    def seed(self, key: int) -> None:
        """Restart the random streams (dropout) from a 64-bit key; called at the start of every epoch."""

    def random_state(self) -> Mapping[str, Any] | None:
        """How far the streams have come since `seed`, as NumPy arrays; None if epochs cannot be continued midway."""
        return None

    def load_random_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `random_state` was taken, in another process; called after `seed` with the same key."""

    @abstractmethod
    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]]]:
        """Outputs and losses in evaluation mode; keeps nothing for a pullback and changes no buffer."""

    @abstractmethod
    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]], Callable[[Sequence[Any]], tuple[Any, ...]]]:
        """Outputs and losses in training mode (frozen operations stay in evaluation mode), and the pullback.

        Args:
            inputs: as of `forward`.
            scale: factor of each loss's *sum* in the total loss, by label. The default is the term's weight divided by
                the weight of its (sum, weight), which makes the total a weighted sum of means; 0 where that is 0.

        Returns:
            outputs; losses; and a pullback, to be called once. It takes a cotangent for each output and returns one for
            each name in `segment.needs_pullback`, None for zero in both, and accumulates the gradients of the total
            loss and of these cotangents into the parameters' gradients.
        """

    def loss_weights(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """By label, the weight (1 for 0) of each loss that weighs more than rows alone, to scale its micro-batches."""
        return {}

    @abstractmethod
    def grad_stats(self) -> dict[str, tuple[Any, Any]]:
        """For each parameter group: the squared L2 norm of its gradients, and whether all are finite.

        Both are scalars on the device of the group's first node.
        """

    def clip_factor(self, limit: float, squares: Sequence[Any]) -> Any:
        """The factor that clips gradients to norm `limit`: `min(1, limit / (norm + 1e-6))`, NaN if the norm is NaN.

        `squares` are scalars of this framework on one device that add up to the squared norm. The result is a scale for
        `optimizer_step`: a tensor on that device, or a float. The default waits for the squares.
        """
        norm = math.sqrt(sum(float(square) for square in squares))
        return limit / (norm + 1e-6) if not norm + 1e-6 <= limit else 1.0

    @abstractmethod
    def map_gradients(self, fn: Callable[[Any], Any]) -> None:
        """Replace each parameter's gradient by `fn(gradient)`, in the order of groups, nodes and parameters."""

    @abstractmethod
    def optimizer_step(self, scale: Mapping[str, Any] | None = None) -> None:
        """One optimizer step with the gradients, times `scale[group]` where given; then discard the gradients.

        Parameters without a gradient stay as they are, and a node without any gradient does not count the step.
        """

    @abstractmethod
    def zero_grad(self) -> None:
        """Discard the gradients without a step."""

    def custom_step(self, step: Callable[..., Any], batch: Mapping[str, Any]) -> Any:
        """What `step(models, batch, optimizers)` gives, without gradients; models and optimizers go by node."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait for all steps so far; OutOfMemoryError if one of them did not fit. The default: errors came at once."""

    @abstractmethod
    def snapshot(self) -> Any:
        """A copy of everything that a step changes: parameters, buffers, optimizer state, random state."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot, which can be used again; gradients are discarded."""

    @abstractmethod
    def optimizer_states(self) -> dict[str, NodeState]:
        """The current optimizer state by node; tensors of the framework on their devices, which no step changes."""

    def sync_models(self) -> None:
        """Copy the current values into the user's models; by default nothing, as for a program that works in place."""

    def renew_compiled(self) -> Sequence[str]:
        """Names of Python values that have changed since compiled code read them; that code is dropped."""
        return ()

    @abstractmethod
    def close(self) -> dict[str, NodeState]:
        """End: the user's models receive the result, and the optimizer state is returned. May be called twice."""


@constructor_hints
@dataclass(frozen=True, slots=True)
class CompileEstimate:
    """What compiling costs and gains: seconds to compile, and time of a compiled step / time of an uncompiled one."""

    compile_seconds: float
    step_ratio: float


class MultiStepProgram(Program):
    """A Program that runs several whole training steps in one call, in the way that is fastest in its framework.

    Core calls `compile` before the first step if the phase asks for it, or when `estimate_compile` says that it pays;
    nothing is compiled if `segment.compile` is `"off"`. Compiling changes results by rounding only.
    """

    supports_microbatching: ClassVar[bool] = False
    """Whether `train_steps` takes `n_microbatches`."""

    @abstractmethod
    def train_steps(
        self, columns: Sequence[Any], orders: Sequence[Any], start: int, n_steps: int, batch_size: int
    ) -> Any:
        """Training steps over resident columns; step i takes rows `order[start + i * batch_size :][:batch_size]`.

        Includes clipping within the segment and the optimizer step, without transfers and without waiting. A program
        with `supports_microbatching` takes `n_microbatches: int = 1` after `batch_size`: each step computes its rows in
        so many micro-batches of equal size and accumulates their gradients.

        Args:
            columns: resident columns in the order of `segment.inputs`.
            orders: for each column the epoch's row order, [n] of the backend's `index_dtype`, on the column's device.
            start, n_steps, batch_size: which rows, as above.

        Returns:
            mean losses on the device, [n_steps or more, len(segment.losses)], in the order of `segment.losses`; then
            a column with the weight of each loss that `loss_weights` has. Rows from `n_steps` on are undefined.
        """

    def estimate_compile(self, max_steps: int) -> CompileEstimate | None:
        """Cost and gain of calls of at most `max_steps` compiled steps, asked between steps; None without gain."""
        return None

    def compile(self, columns: Sequence[Any], orders: Sequence[Any], batch_size: int, n_microbatches: int = 1) -> None:
        """Compile `train_steps` for such columns and `batch_size` rows (in `n_microbatches`), now. Changes no value.

        From then on `train_steps` runs compiled where it can; not, for example, a last partial batch. Default: nothing.

        Raises:
            CompileError: the steps cannot be compiled (an untraceable model, no C++ compiler); they run uncompiled.
        """

    def run_uncompiled(self) -> None:
        """Run steps uncompiled until `compile` is called. The default: nothing, as nothing is compiled without it."""
