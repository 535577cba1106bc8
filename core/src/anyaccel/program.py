"""Program: a segment that is ready to run. Part of the plugin contract, also available from `anyaccel.backend`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from anyaccel.call_hints import constructor_hints
from anyaccel.segment import NodeState, Segment


class Program(ABC):
    """A segment that is ready to run: bound callables, without lookups. It owns its state until `close`.

    Inputs are in the order of `segment.inputs` and outputs in the order of `segment.outputs`, on the devices that the
    segment names. Losses are a mapping from label to (sum, weight), both on the device. Only `synchronize`, `snapshot`
    and `close` wait for a device. Inputs, and the cotangents passed to a pullback, may be memory of another framework
    and are never written to, even if a model writes to its inputs.

    An input may be None: this step has no rows for it. Everything that depends on it is skipped: operations do not run
    and their buffers do not change, outputs are None, and losses are not in the mapping. Cotangents of outputs and
    inputs that are None are also None. In a graph of several segments, an output that is None is passed on as None, and
    a segment whose inputs are all None is not called. `MultiStepProgram.train_steps` always has all columns.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> from anyaccel.registry import registry
        >>> from anyaccel.segment import Operation, Segment, TensorSpec
        >>> backend, cpu, spec = registry().computing("numpy"), aa.Device("cpu"), TensorSpec((3,), "float32")
        >>> model = aa.SequentialMLP([1])
        >>> outputs = backend.infer(model, [spec], seed=0)  # builds the model
        >>> net = Operation("net", model, inputs=("x",), outputs=("net",), device=cpu)
        >>> program = backend.build(Segment("example", (net,), {"x": (spec, cpu)}, outputs=("net",)))
        >>> outputs, losses = program.forward([np.zeros((2, 3), "float32")])
        >>> outputs[0].shape
        (2, 1)
    """

    segment: Segment
    raises_out_of_memory: bool = True
    """Whether a step that does not fit raises. False if it may end the process: then no trials find what would fit."""

    @abstractmethod
    def seed(self, key: int) -> None:
        """Restart the random streams (dropout) from a 64-bit key; called at the start of every epoch."""

    def random_state(self) -> Mapping[str, Any] | None:
        """Return the position of the streams since `seed`, as NumPy arrays; None if epochs cannot be resumed midway."""
        return None

    def load_random_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the output of `random_state`, in another process; called after `seed` with the same key."""

    @abstractmethod
    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]]]:
        """Compute outputs and losses in evaluation mode; nothing is kept for a pullback and no buffer changes."""

    @abstractmethod
    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]], Callable[[Sequence[Any]], tuple[Any, ...]]]:
        """Compute outputs and losses in training mode (frozen operations stay in evaluation mode), and the pullback.

        Args:
            inputs: Inputs in the order of `segment.inputs`.
            scale: Factor of each loss's *sum* in the total loss, by label. The default is the term's weight divided by
                the weight of its (sum, weight), which makes the total a weighted sum of means; 0 if that weight is 0.

        Returns:
            Outputs; losses; and a pullback, to be called once. It takes a cotangent for each output and returns one for
            each name in `segment.needs_pullback`, with None for zero in both. It accumulates the gradients of the total
            loss and of these cotangents into the parameters' gradients.
        """

    def loss_weights(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """Return the weight (1 for 0) of each loss that is not weighted by rows alone, by label, to scale its
        micro-batches.
        """
        return {}

    @abstractmethod
    def grad_stats(self) -> dict[str, tuple[Any, Any]]:
        """Return the squared L2 norm of the gradients of each parameter group, and whether all are finite.

        Both are scalars on the device of the group's first node.
        """

    def clip_factor(self, limit: float, squares: Sequence[Any]) -> Any:
        """Return the factor that clips gradients to norm `limit`: `min(1, limit / (norm + 1e-6))`, NaN if the norm is
        NaN.

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
        """Run one optimizer step with the gradients, times `scale[group]` if set; then discard the gradients.

        Parameters without a gradient do not change, and a node without any gradient does not count the step.
        """

    @abstractmethod
    def zero_grad(self) -> None:
        """Discard the gradients without a step."""

    def custom_step(self, step: Callable[..., Any], batch: Mapping[str, Any]) -> Any:
        """Return the result of `step(models, batch, optimizers)` without gradients; models and optimizers by node."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait for all steps so far; raise OutOfMemoryError if one of them did not fit. Default: errors are raised
        immediately.
        """

    @abstractmethod
    def snapshot(self) -> Any:
        """Return a copy of everything that a step changes: parameters, buffers, optimizer state, random state."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Restore a snapshot, which can be used again; gradients are discarded."""

    @abstractmethod
    def optimizer_states(self) -> dict[str, NodeState]:
        """Return the current optimizer state by node, as tensors of the framework on their devices, which no step
        changes.
        """

    def live_optimizer_states(self) -> dict[str, NodeState]:
        """Return `optimizer_states` to be read at once: the next step may change the tensors.

        By default these are the tensors of `optimizer_states`.
        """
        return self.optimizer_states()

    def sync_models(self) -> None:
        """Copy the current values into the user's models; by default nothing, for a program that works in place."""

    def renew_compiled(self) -> Sequence[str]:
        """Return the names of Python values that changed since compiled code read them; that code is dropped."""
        return ()

    @abstractmethod
    def close(self) -> dict[str, NodeState]:
        """End the program: write the result into the user's models, and return the optimizer state. May be called
        twice.
        """


@constructor_hints
@dataclass(frozen=True, slots=True)
class CompileEstimate:
    """The cost and gain of compiling: seconds to compile, and time of a compiled step / time of an uncompiled one.

    Example:
        >>> import anyaccel as aa
        >>> aa.CompileEstimate(2.5, 0.4)
        CompileEstimate(compile_seconds=2.5, step_ratio=0.4)
    """

    compile_seconds: float
    step_ratio: float


class MultiStepProgram(Program):
    """A Program that runs several whole training steps in a single call, in the fastest way of its framework.

    `compile` is called before the first step if the phase asks for it, or when `estimate_compile` predicts a gain;
    nothing is compiled if `segment.compile` is `"off"`. Compiling changes results only by rounding.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> from anyaccel.registry import registry
        >>> from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
        >>> backend, cpu, spec = registry().computing("numpy"), aa.Device("cpu"), TensorSpec((1,), "float32")
        >>> model = aa.SequentialMLP([1])
        >>> outputs = backend.infer(model, [spec], seed=0)  # builds the model
        >>> net = Operation("net", model, inputs=("x",), outputs=("net",), device=cpu)
        >>> loss = LossTerm("mse", "net", aa.Loss("mse"), ("net", "y"), cpu)
        >>> group = ParameterGroup("all", aa.Optimizer("sgd", lr=0.1), ("net",))
        >>> columns = {"x": (spec, cpu), "y": (spec, cpu)}
        >>> program = backend.build(Segment("example", (net,), columns, (), (loss,), (group,)))
        >>> x = np.linspace(0, 1, 8, dtype="float32").reshape(8, 1)
        >>> order = np.arange(8)
        >>> program.train_steps([x, 2 * x], [order, order], start=0, n_steps=2, batch_size=4).shape
        (2, 1)
    """

    supports_microbatching: ClassVar[bool] = False
    """Whether `train_steps` takes `n_microbatches`."""

    @abstractmethod
    def train_steps(
        self, columns: Sequence[Any], orders: Sequence[Any], start: int, n_steps: int, batch_size: int
    ) -> Any:
        """Run training steps over resident columns; step i takes rows `order[start + i * batch_size :][:batch_size]`.

        This includes clipping within the segment and the optimizer step, without transfers and without waiting. A
        program with `supports_microbatching` takes `n_microbatches: int = 1` after `batch_size`: each step computes its
        rows in that many micro-batches of equal size and accumulates their gradients.

        Args:
            columns: Resident columns in the order of `segment.inputs`.
            orders: The epoch's row order for each column, [n] of the backend's `index_dtype`, on the column's device.
            start, n_steps, batch_size: The rows, see above.

        Returns:
            Mean losses on the device, [n_steps or more, len(segment.losses)], in the order of `segment.losses`; then a
            column with the weight of each loss that `loss_weights` has. Rows from `n_steps` on are undefined.
        """

    def estimate_compile(self, max_steps: int) -> CompileEstimate | None:
        """Estimate cost and gain of calls of at most `max_steps` compiled steps, between steps; None without gain."""
        return None

    def compile(self, columns: Sequence[Any], orders: Sequence[Any], batch_size: int, n_microbatches: int = 1) -> None:
        """Compile `train_steps` now for such columns and `batch_size` rows (in `n_microbatches`). Changes no value.

        From then on `train_steps` runs compiled if possible; a last partial batch, for example, does not. Default:
        nothing.

        Raises:
            CompileError: the steps cannot be compiled (an untraceable model, no C++ compiler); they run uncompiled.
        """

    def run_uncompiled(self) -> None:
        """Run steps uncompiled until `compile` is called. Default: nothing, because nothing is compiled without it."""
