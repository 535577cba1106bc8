"""TracedOps: the operations that a framework implements if it differentiates and compiles whole functions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar, Protocol

from anyaccel.adapter.array_ops import ArrayOps, Function, LossFunction, LossResult, VjpResult, is_differentiable
from anyaccel.adapter.loss_scaling import steps_behind
from anyaccel.adapter.losses import make_loss, outputs_first
from anyaccel.adapter.step_cursor import StepCursor
from anyaccel.errors import SpecError
from anyaccel.specs import Loss


class StepFunction(Protocol):
    """One training step, which `TracedOps.compile_steps` repeats: `step(state, rest, scalars)` returns (state, losses).

    `state` changes from step to step; `rest` does not; `scalars` come from `StepCursor.scalars`.
    """

    batch_size: int
    """Rows that it takes of each column, from `scalars["start"]` on."""
    __name__: str
    """Has the nodes in it, for compilers that tell programs apart by their names."""

    def __call__(self, state: Any, rest: Any, scalars: Any) -> tuple[Any, Any]:
        """Return the new state, and the losses."""

    def flatten(self, state: Any) -> tuple[Any, Function, Function]:
        """Return a state of fewer arrays, the step for it, and the inverse function; for a loop, while it is traced.

        Calls `xp.reshape`.
        """


ValueAndPullback = tuple[Any, Any, Callable[[Any], Any]]
StepLoop = Callable[[Any, Any, StepCursor, int], tuple[Any, Any]]


class TracedOps(ArrayOps):
    """The operations of a framework for `TracedProgram`: models are pure functions, compiled together as one.

    Every method that takes arrays may be called with the framework's tracers. Trees are dicts, tuples and lists of
    arrays.
    """

    donates: ClassVar[bool] = False
    """Whether functions made by `compile_steps` destroy the state they are given; the program then keeps copies."""
    multi_device: ClassVar[bool] = True
    """Whether a compiled function may use several devices."""
    eager_seconds: float | None = None
    """Seconds to spend on eager execution before anything is compiled without being asked for: about what it takes.

    None where eager execution is never better, not even in the first step: then whole steps are compiled at once.
    Otherwise whole steps are compiled only on request.
    """

    libraries: ClassVar[frozenset[str]] = frozenset()
    """Top-level modules of the framework and its libraries: their code is constant, and is not searched for values."""

    variant: Hashable = None
    """What compiled functions depend on besides the class and the models: those of another are not taken."""

    eager = False
    """Set by the program: models are called one by one, with arrays that have values, and nothing is compiled."""

    def eager_scope(self) -> AbstractContextManager[Any]:
        """Return a context for eager execution of functions that could be compiled; the default does nothing."""
        return nullcontext()

    def named_scope(self, name: str) -> AbstractContextManager[Any]:
        """Return a context that assigns traced code to a node, for profiles; `name` comes from `trace_name`.

        The default does nothing. Each call of a model enters it, so it should do nothing if nothing is traced.
        """
        return nullcontext()

    @abstractmethod
    def apply(
        self,
        model: Any,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        inputs: tuple[Any, ...],
        train: bool,
        key: Any,
    ) -> tuple[tuple[Any, ...], Mapping[str, Any] | None]:
        """Return a model's outputs and its new buffers (None if unchanged), as a pure function.

        `key` comes from `fold`; all randomness depends only on it.
        """

    @abstractmethod
    def value_and_pullback(self, function: Function, primals: Any, rest: Any) -> ValueAndPullback:
        """Return values, auxiliary results and the pullback of `function(primals, rest)`, which returns (values,
        auxiliary).

        The pullback takes a tree like `values`, a cotangent for each array, and returns one like `primals`, with zeros
        where nothing flows. It is called at most once. `values` and `primals` are trees of floating or complex arrays;
        arrays that are also in `rest` are constants there.
        """

    @abstractmethod
    def key(self, seed: int) -> Any:
        """Return a random key as an array, from 64 bits."""

    @abstractmethod
    def fold(self, key: Any, number: Any) -> Any:
        """Return another key, from a key and a number (an int, or a `scalar` of one)."""

    @abstractmethod
    def gather_batch(self, column: Any, order: Any, start: Any, size: int) -> Any:
        """Gather rows like `gather_rows(column, start, start + size, order)`; `start` may be a `scalar` of an int.

        The order is None if `compile_steps` has replaced it by None.
        """

    def compile_value_and_pullback(self, function: Function) -> Callable[[Any, Any], ValueAndPullback]:
        """Return `value_and_pullback` of a function, compiled for many calls; the default differentiates a compiled
        one.

        Override it if auxiliary results of a compiled function would be differentiated, even only by zeros.
        """
        compiled = self.compile(function)
        return lambda primals, rest: self.value_and_pullback(compiled, primals, rest)

    def compile_steps(self, step: StepFunction, *, quick: bool = False) -> StepLoop:
        """Return a function of (state, rest, cursor, n_steps) that runs `step` `n_steps` times.

        Args:
            step: The step; its scalars are passed as `scalar`s. `rest` has `columns` and `orders`, one for each column,
                which may be replaced by others that hold the same rows. With scaled losses, coefficients are those of
                the step minus `steps_behind(state, ...)`.
            quick: Prefer a short compilation to fast steps, because only a few calls will follow.

        Returns:
            The function. It returns the last state and the stacked losses (with more rows than steps if that saves
            compilations), and advances the cursor. With `n_steps=0` it only compiles: the state is unchanged, the
            losses are empty.
        """
        compiled = self.compile(step)

        def run(state: Any, rest: Any, cursor: StepCursor, n_steps: int) -> tuple[Any, Any]:
            if n_steps == 0:
                compiled(state, rest, self._as_scalars(cursor.scalars()))
                return state, None
            losses = []
            for _ in range(n_steps):
                scalars = cursor.scalars(steps_behind(state, int))
                state, step_losses = compiled(state, rest, self._as_scalars(scalars))
                cursor.advance(1)
                losses.append(step_losses)
            return state, self.xp.stack(losses)

        return run

    def _as_scalars(self, tree: Any) -> Any:
        if isinstance(tree, Mapping):
            return {name: self._as_scalars(subtree) for name, subtree in tree.items()}
        return self.scalar(tree)

    def accumulate(self, function: Function, carry: Any, count: int) -> tuple[Any, Any]:
        """Call `function(carry, i)`, which returns (carry, tree), for i from 0 to count - 1 in turn.

        It is called while a function is traced. Only one tree, and its computation, must be in memory at once.

        Returns:
            The last carry, and the sum of all trees. The default unrolls the loop.
        """
        carry, total = function(carry, 0)
        for i in range(1, count):
            carry, tree = function(carry, i)
            total = _tree_sum(total, tree)
        return carry, total

    # -- compiled functions that outlive a program -----------------------------------------------------------------

    def shareable(self) -> TracedOps | None:
        """Return equivalent ops that hold no model, for compiled functions that serve several programs of the same
        models.

        None, the default, if each program compiles for itself.
        """
        return None

    def cache_key(self, model: Any) -> Any:
        """Return a hashable key of everything that a compiled `apply` of a model depends on, other than its array
        arguments.

        The key must not hold the model; `attributes_key` creates such a key. It is requested at the start of a phase,
        when functions are traced, and after callbacks: if it differs, functions are compiled again. None, the default,
        if it is unknown.
        """
        return None

    def is_live(self, value: Any) -> bool:
        """Return whether compiled functions read the value of this object in each call, like a variable; by default
        not.
        """
        return False

    def forget_compiled(self) -> None:
        """Drop the code compiled for single models; the default does nothing."""

    def copy(self, array: Any) -> Any:
        """Return a copy of an array in separate memory; needed if the framework `donates`."""
        return self.xp.copy(array)

    def wait(self, arrays: Any) -> None:
        """Wait until a tree of arrays is computed. The default does nothing: an operation that fails raises
        immediately.

        Raises:
            OutOfMemoryError: there was not enough memory to compute them.
        """

    # -- derived from the above ------------------------------------------------------------------------------------

    def vjp(
        self,
        model: Any,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        inputs: tuple[Any, ...],
        train: bool,
        key: Any,
        differentiate: Sequence[bool] | None = None,
        **layout: Any,
    ) -> VjpResult:
        """Apply a model by `apply` and `value_and_pullback`; see `ArrayOps.vjp`.

        `key` may also come from `fold`. Inputs that are not differentiated reach the model unchanged, not traced.
        """
        wanted = differentiate or [True] * len(inputs)
        active = [is_differentiable(self, x) and want for x, want in zip(inputs, wanted, strict=True)]
        pairs = list(zip(inputs, active, strict=True))
        primals = {"parameters": dict(parameters), "inputs": [x for x, is_active in pairs if is_active]}
        key = self.key(key) if isinstance(key, int) else key
        rest = {"inputs": [x for x, is_active in pairs if not is_active], "buffers": dict(buffers), "key": key}
        apply: Callable[..., tuple[Any, Any]] = partial(self.apply, model, **layout)

        def function(primals: Any, rest: Any) -> tuple[Any, Any]:
            traced, constant = iter(primals["inputs"]), iter(rest["inputs"])
            arguments = tuple(next(traced) if is_active else next(constant) for is_active in active)
            outputs, changed = apply(primals["parameters"], rest["buffers"], arguments, train, rest["key"])
            named = {str(i): output for i, output in enumerate(outputs)}
            values = {i: x for i, x in named.items() if x is not None and is_differentiable(self, x)}
            return values, ({i: x for i, x in named.items() if i not in values}, changed)

        values, (others, changed), pull = self.value_and_pullback(function, primals, rest)

        def pullback(cotangents: tuple[Any, ...]) -> tuple[Mapping[str, Any], Sequence[Any]]:
            pulled = pull({name: cotangents[int(name)] for name in values})
            back = iter(pulled["inputs"])
            return pulled["parameters"], [next(back) if is_active else None for is_active in active]

        outputs = {**values, **others}
        return VjpResult(tuple(outputs[str(i)] for i in range(len(outputs))), pullback, changed)

    def custom_loss(self, loss: Loss) -> LossFunction:
        """Return a loss from a callable that returns the mean over the batch; a class is instantiated with
        `loss_kwargs`.
        """
        function = outputs_first(make_loss(loss))

        def evaluate(inputs: Sequence[Any]) -> LossResult:
            floating = [i for i, value in enumerate(inputs) if is_differentiable(self, value)]

            def total(primals: Any, rest: Any) -> tuple[Any, Any]:
                arguments = [*rest]
                for i, primal in zip(floating, primals, strict=True):
                    arguments[i] = primal
                return _checked_mean(loss, function(*arguments)) * inputs[0].shape[0], ()

            value, _, pull = self.value_and_pullback(total, [inputs[i] for i in floating], list(inputs))

            def gradients() -> Sequence[Any]:
                back = dict(zip(floating, pull(self.xp.full_like(value, 1.0)), strict=True))
                return [back.get(i) for i in range(len(inputs))]

            return LossResult(value, self.xp.full_like(value, inputs[0].shape[0]), gradients)

        return evaluate


def _checked_mean(loss: Loss, mean: Any) -> Any:
    if tuple(getattr(mean, "shape", (0,))) != ():
        shown = f"shape {list(mean.shape)}" if hasattr(mean, "shape") else f"a {type(mean).__name__}"
        raise SpecError(
            f"the loss {loss.name!r} returns {shown}; a loss must return a scalar",
            hint="return the mean over the batch",
        )
    return mean


def _tree_sum(left: Any, right: Any) -> Any:
    if isinstance(left, Mapping):
        return {name: _tree_sum(subtree, right[name]) for name, subtree in left.items()}
    if isinstance(left, (tuple, list)):
        return type(left)(_tree_sum(*pair) for pair in zip(left, right, strict=True))
    return left + right
