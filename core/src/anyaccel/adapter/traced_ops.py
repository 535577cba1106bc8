"""TracedOps: what a framework says about itself if it differentiates and compiles whole functions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from anyaccel.adapter.array_ops import ArrayOps, Function, LossFunction, LossResult, VjpResult
from anyaccel.adapter.step_cursor import StepCursor
from anyaccel.errors import SpecError
from anyaccel.specs import Loss


class StepFunction(Protocol):
    """What `TracedOps.compile_steps` does many times: `body(state, rest, row)` to (state, result)."""

    batch_size: int
    """Rows that it takes of each column, from `row["start"]` on."""

    def __call__(self, state: Any, rest: Any, row: Any) -> tuple[Any, Any]:
        """The state afterwards, and a result."""

    def flatten(self, state: Any) -> tuple[Any, Function, Function]:
        """For a loop, while that is traced: a state of fewer arrays, the body for it, and the way back from it.

        It asks `xp` for `reshape`.
        """


ValueAndPullback = tuple[Any, Any, Callable[[Any], Any]]
StepLoop = Callable[[Any, Any, StepCursor, int], tuple[Any, Any]]


class TracedOps(ArrayOps):
    """One framework, for `TracedProgram`: models are pure functions, and a program compiles them as a whole.

    Everything that takes arrays here may be called with what the framework traces by. Trees are dicts, tuples and
    lists of arrays.
    """

    donates: ClassVar[bool] = False
    """Whether functions made by `compile_steps` destroy the state that they are given; the program then keeps copies."""
    multi_device: ClassVar[bool] = True
    """Whether a compiled function may use several devices."""
    eager_seconds: float | None = None
    """Seconds that may go into doing things one by one before they are compiled unasked: about what that takes.

    None where one by one is never better, not in the first step either: then whole steps are compiled at once. Else
    whole steps are compiled when they are asked to be.
    """

    eager = False
    """Set by the program: models are called one by one, with arrays that have values, and nothing is compiled."""

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
        """A model's outputs, and its buffers afterwards (None where they are as before), as a pure function.

        `key` comes from `fold`; what is random depends on it alone.
        """

    @abstractmethod
    def value_and_pullback(self, function: Function, primals: Any, rest: Any) -> ValueAndPullback:
        """Values, others and the pullback of `function(primals, rest)`, which gives (values, others).

        The pullback takes a tree like `values`, a cotangent for each array, and gives one like `primals`, with zeros
        where nothing flows. It is called at most once. `values` and `primals` are trees of floating arrays; arrays
        that stand in `rest` too are constants there.
        """

    @abstractmethod
    def key(self, seed: int) -> Any:
        """A random key as an array, from 64 bits."""

    @abstractmethod
    def fold(self, key: Any, number: Any) -> Any:
        """Another key, from a key and a number (an int, or a `scalar` of one)."""

    @abstractmethod
    def gather_batch(self, column: Any, order: Any, start: Any, size: int) -> Any:
        """As `rows(column, start, start + size, order)`, where `start` may be a `scalar` of an int.

        An order is None where `repeated` has replaced it by None.
        """

    def compile_value_and_pullback(self, function: Function) -> Callable[[Any, Any], ValueAndPullback]:
        """`pulled` of a function for many calls, compiled; the default pulls back through the compiled function."""
        compiled = self.compile(function)
        return lambda primals, rest: self.value_and_pullback(compiled, primals, rest)

    def compile_steps(self, body: StepFunction, *, quick: bool = False) -> StepLoop:
        """`body(state, rest, row)` to (state, result), called `count` times in one go.

        Args:
            body: `row` is as of `StepCursor.scalars`, with each number as a `scalar`. `rest` has `columns` and `orders`, one
                for each column, which may be replaced by others in which the same rows stand.
            quick: whether to compile soon is worth more than to compute fast: a few calls are to come.

        Returns:
            a function of (state, rest, cursor, count). It gives the last state, and the results (one array each)
            stacked, with more rows than steps where that saves compiling, and leaves the cursor behind the last step.
            With a count of 0 it is only compiled: the state
            is as it was, the result is none.
        """
        compiled = self.compile(body)

        def run(state: Any, rest: Any, cursor: StepCursor, count: int) -> tuple[Any, Any]:
            if count == 0:
                compiled(state, rest, self._row(cursor.scalars()))
                return state, None
            results = []
            for _ in range(count):
                state, result = compiled(state, rest, self._row(cursor.scalars()))
                cursor.advance(1)
                results.append(result)
            return state, self.xp.stack(results)

        return run

    def _row(self, row: Any) -> Any:
        if isinstance(row, Mapping):
            return {name: self._row(part) for name, part in row.items()}
        return self.scalar(row)

    def accumulate(self, body: Function, carried: Any, count: int) -> tuple[Any, Any]:
        """`body(carried, i)` to (carried, tree), called for i from 0 to count - 1, one after the other.

        Called while a function is traced. Only one tree, and what makes it, need be in memory at once.

        Returns:
            the last `carried`, and the sum of all trees. The default writes the calls out.
        """
        carried, total = body(carried, 0)
        for i in range(1, count):
            carried, more = body(carried, i)
            total = _added(total, more)
        return carried, total

    # -- what outlives a program -----------------------------------------------------------------------------------

    def shareable(self) -> TracedOps | None:
        """The same for functions that other programs of the same models shall use, too.

        It holds no model: where one is asked for, it is given, and not kept. None, the default, where nothing is
        shared, and each program compiles by itself.
        """
        return None

    def cache_key(self, model: Any) -> Any:
        """All that a compiled `apply` of a model depends on beside the arrays that it is given, to be compared.

        Holds nothing that holds the model. None, the default, where that is not known.
        """
        return None

    def copy(self, array: Any) -> Any:
        """An array with memory of its own; needed where `donates`."""
        return self.xp.copy(array)

    # -- what follows ----------------------------------------------------------------------------------------------

    def vjp(
        self,
        model: Any,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        inputs: tuple[Any, ...],
        train: bool,
        key: Any,
        flows: Sequence[bool] | None = None,
    ) -> VjpResult:
        """As in `ArrayOps`, by `apply` and `pulled`.

        `key` may be one of `fold`, too. Where something does not flow back to an input, the model is given the input
        itself, and not what the framework differentiates by.
        """
        floating = [is_floating(value) and (flows is None or flows[i]) for i, value in enumerate(inputs)]
        primals = {
            "parameters": dict(parameters),
            "inputs": [x for x, yes in zip(inputs, floating, strict=True) if yes],
        }

        def function(primals: Any, rest: Any) -> tuple[Any, Any]:
            found, others = iter(primals["inputs"]), iter(rest["inputs"])
            given = tuple(next(found) if yes else next(others) for yes in floating)
            outputs, changed = self.apply(model, primals["parameters"], rest["buffers"], given, train, rest["key"])
            values = {str(i): output for i, output in enumerate(outputs) if is_floating(output)}
            return values, ({str(i): one for i, one in enumerate(outputs) if str(i) not in values}, changed)

        rest = {
            "inputs": [x for x, yes in zip(inputs, floating, strict=True) if not yes],
            "buffers": dict(buffers),
            "key": self.key(key) if isinstance(key, int) else key,
        }
        values, (others, changed), pull = self.value_and_pullback(function, primals, rest)

        def pullback(cotangents: tuple[Any, ...]) -> tuple[Mapping[str, Any], Sequence[Any]]:
            found = pull({name: cotangents[int(name)] for name in values})
            back = iter(found["inputs"])
            return found["parameters"], [next(back) if yes else None for yes in floating]

        whole = {**values, **others}
        return VjpResult(tuple(whole[str(i)] for i in range(len(whole))), pullback, changed)

    def custom_loss(self, loss: Loss) -> LossFunction:
        """A callable that gives the mean over the batch as a scalar; a class is made with `loss_kwargs` first."""
        function = loss.own(**loss.kwargs) if isinstance(loss.own, type) else loss.own

        def judged(inputs: Sequence[Any]) -> LossResult:
            places = [i for i, value in enumerate(inputs) if is_floating(value)]

            def total(primals: Any, rest: Any) -> tuple[Any, Any]:
                given = [*rest]
                for i, primal in zip(places, primals, strict=True):
                    given[i] = primal
                mean = self._scalar_mean(loss, function(*given))
                return mean * inputs[0].shape[0], ()

            found, _, pull = self.value_and_pullback(total, [inputs[i] for i in places], list(inputs))

            def gradients() -> Sequence[Any]:
                back = dict(zip(places, pull(self.xp.full_like(found, 1.0)), strict=True))
                return [back.get(i) for i in range(len(inputs))]

            return LossResult(found, self.xp.full_like(found, inputs[0].shape[0]), gradients)

        return judged

    def _scalar_mean(self, loss: Loss, found: Any) -> Any:
        if tuple(getattr(found, "shape", (0,))) != ():
            shown = f"shape {list(found.shape)}" if hasattr(found, "shape") else f"a {type(found).__name__}"
            raise SpecError(
                f"the loss {loss.name!r} gives {shown}",
                available="a loss must give a scalar",
                hint="let it give the mean over the batch",
            )
        return found


def is_floating(array: Any) -> bool:
    """Whether an array has a floating dtype (bfloat16 too)."""
    return "float" in str(array.dtype)


def _added(one: Any, other: Any) -> Any:
    """The sum of two trees."""
    if isinstance(one, Mapping):
        return {name: _added(part, other[name]) for name, part in one.items()}
    if isinstance(one, (tuple, list)):
        return type(one)(_added(*parts) for parts in zip(one, other, strict=True))
    return one + other
