"""What the adapter asks of MLX so that it can train with it, and the program that follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import mlx.core as mx

from anyaccel import Device
from anyaccel.adapter import ArrayOps, ArrayProgram, Function, Kind, VjpResult
from anyaccel.segment import Segment
from anyaccel_mlx.arrays import arrays_in, name_of
from anyaccel_mlx.models import holding, outputs_of, update, values

F = TypeVar("F", bound=Function)


class MlxOps(ArrayOps):
    """Models as pure functions, compiled. MLX wants cotangents up front, so that a pullback computes forward again."""

    xp = mx

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._made: dict[tuple[int, bool], Sequence[Function]] = {}

    def parameters(self, model: Any) -> Mapping[str, Any]:
        """What is not frozen."""
        return values(model)[0]

    def buffers(self, model: Any) -> Mapping[str, Any]:
        """All other arrays."""
        return values(model)[1]

    def write(self, model: Any, parameters: Mapping[str, Any], buffers: Mapping[str, Any]) -> None:
        """Give the user's model the result, evaluated: an array that is still lazy belongs to the thread it is from."""
        mx.eval(parameters, buffers)
        update(model, parameters, buffers)

    def vjp(
        self,
        model: Any,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        inputs: tuple[Any, ...],
        train: bool,
        key: int,
    ) -> VjpResult:
        """MLX's own differentiation, with the same random numbers on the way back."""
        device = self._backend.device_of(model)
        if (id(model), train) not in self._made:
            random = mx.random.state
            made = [mx.compile(each, inputs=random, outputs=random) for each in functions(model, train)]
            self._made[id(model), train] = made
        forward, back = self._made[id(model), train]

        def pullback(cotangents: tuple[Any, ...]) -> Any:
            with self._backend.scope(device), drawing(key):
                return back(parameters, buffers, inputs, list(cotangents))

        with self._backend.scope(device), drawing(key):
            outputs, after = forward(parameters, buffers, inputs)
            started(after)  # nobody reads them yet
        return VjpResult(tuple(self._backend.put(output, device) for output in outputs), pullback, after)

    def compile(self, function: Function) -> Function:
        """By MLX: it traces once for shapes and dtypes, and joins small operations."""
        return mx.compile(function)

    def kind(self, array: Any) -> Kind:
        """By MLX's own classes of dtypes."""
        classes: dict[Kind, Any] = {"floating": mx.floating, "complex": mx.complexfloating, "integer": mx.integer}
        return next((kind for kind, cls in classes.items() if mx.issubdtype(array.dtype, cls)), "boolean")

    def itemsize(self, array: Any) -> int:
        """As MLX says."""
        return int(array.itemsize)

    def scalar(self, value: float) -> Any:
        """An array, in float64 where the device has it."""
        return mx.array(value, mx.float64 if isinstance(value, float) and mx.default_device() == mx.cpu else None)

    def move(self, array: Any, device: Device) -> Any:
        """As the backend's."""
        return self._backend.move(array, device)

    def gather_rows(self, column: Any, start: int, stop: int, order: Any) -> Any:
        """As the backend's."""
        return self._backend.gather_rows(column, start, stop, order)


def started(tree: Any) -> Any:
    """Arrays, their evaluation begun: what stays lazy holds on to all that it comes from, from step to step."""
    if any(True for _ in arrays_in(tree)):
        mx.async_eval(tree)  # waits if there is nothing to do
    return tree


def inside(method: F) -> F:
    """A method of a program, on the program's device."""

    @wraps(method)
    def run(self: Any, *given: Any) -> Any:
        with self.scope():
            return started(method(self, *given))

    return run  # type: ignore[return-value]


class MlxProgram(ArrayProgram):
    """Losses and updates are on the device of the first operation."""

    def __init__(self, segment: Segment, backend: Any) -> None:
        super().__init__(segment, MlxOps(backend))
        self.scope: Callable[[], Any] = lambda: backend.scope(segment.operations[0].device)

    def forward_pullback(self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None) -> Any:
        """As of `ArrayProgram`."""
        with self.scope():
            outputs, losses, pullback = super().forward_pullback(inputs, scale)
            started(losses)

        def back(cotangents: Sequence[Any]) -> tuple[Any, ...]:
            with self.scope():
                return pullback(cotangents)

        return outputs, losses, back

    forward = inside(ArrayProgram.forward)
    loss_weights = inside(ArrayProgram.loss_weights)
    grad_stats = inside(ArrayProgram.grad_stats)
    clip_factor = inside(ArrayProgram.clip_factor)
    optimizer_step = inside(ArrayProgram.optimizer_step)
    train_steps = inside(ArrayProgram.train_steps)


def functions(model: Any, train: bool) -> tuple[Function, Function]:
    """(parameters, buffers, inputs) to outputs and buffers; with cotangents too, to gradients and cotangents."""

    def forward(parameters: Any, buffers: Any, inputs: Any) -> Any:
        with holding(model, parameters, buffers, train=train):
            return outputs_of(model(*inputs)), values(model)[1]

    def back(parameters: Any, buffers: Any, inputs: Any, cotangents: Any) -> Any:
        floating = [i for i, x in enumerate(inputs) if "float" in name_of(x)]

        def outputs(*primals: Any) -> Any:
            given = dict(zip([*parameters, *floating], primals, strict=True))
            replaced = [given.get(i, x) for i, x in enumerate(inputs)]
            return forward({name: given[name] for name in parameters}, buffers, replaced)[0]

        primals = [*parameters.values(), *(inputs[i] for i in floating)]
        found = mx.vjp(outputs, primals, cotangents)[1] if primals else []
        named = dict(zip([*parameters, *floating], found, strict=True))
        return {name: named[name] for name in parameters}, [named.get(i) for i in range(len(inputs))]

    return forward, back


@contextmanager
def drawing(key: int) -> Iterator[None]:
    """Random numbers from a key; afterwards the user's own go on where they were."""
    state: Any = mx.random.state
    high, low = state[0].tolist()
    mx.random.seed(key)
    try:
        yield
    finally:
        mx.random.seed(high << 32 | low)
