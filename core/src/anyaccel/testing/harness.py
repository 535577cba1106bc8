"""Bench: a backend, a device and a way to read tensors, and what many tests do with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from anyaccel.backend import Backend, Compute, Exchange, Program
from anyaccel.device import Device
from anyaccel.errors import MoveError, ShapeError, SpecError
from anyaccel.segment import LossTerm, NodeState, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer

Array = np.ndarray[Any, np.dtype[Any]]
GROUP = "all"
LOSS = "loss"
NODE = "node"


@dataclass(frozen=True)
class Batch:
    """Rows to train with: inputs [n, 4], and targets for each named loss of outputs [n, 3]."""

    x: Array
    targets: Mapping[str, Array]

    @classmethod
    def of(cls, n: int, dtype: str = "float32", seed: int = 0) -> Batch:
        """`n` rows, the same for a seed."""
        drawn = np.random.default_rng(seed)
        numbers, chances = drawn.normal(size=(n, 3)).astype(dtype), drawn.uniform(size=(n, 3)).astype(dtype)
        targets = {
            "mse": numbers,
            "mae": numbers
            + np.copysign(np.array(8, dtype), numbers),  # off its kink, over which no difference is a slope
            "cross_entropy": drawn.integers(0, 3, n),
            "binary_cross_entropy": chances,
        }
        return cls(drawn.normal(size=(n, 4)).astype(dtype), targets)

    def rows(self, which: Any) -> Batch:
        """Some of its rows."""
        return Batch(self.x[which], {name: target[which] for name, target in self.targets.items()})


@dataclass(frozen=True)
class Wiring:
    """A segment of one model with one loss, as the arguments that tests vary."""

    model: Any
    loss: str = "mse"
    optimizer: Optimizer | None = field(default_factory=lambda: Optimizer("sgd", lr=0.1))
    needs_pullback: tuple[str, ...] = ()
    states: Mapping[str, NodeState] = field(default_factory=dict)
    weight: float = 1.0


@dataclass(frozen=True)
class Bench:
    """`put` and `read` tensors, make models `ready`, and `build` and step programs on one device."""

    backend: Backend
    device: Device
    tensor: Callable[[Array], Any]
    read: Callable[[Any], Array]

    @property
    def compute(self) -> Compute:
        """The backend as one that computes; tests of other capabilities do not ask."""
        return cast("Compute", self.backend)

    @property
    def index_dtype(self) -> str:
        """Dtype of orders and class indices."""
        return self.backend.index_dtype if isinstance(self.backend, Exchange) else "int64"

    def put(self, array: Array) -> Any:
        """A tensor on the device."""
        return self.backend.move(self.tensor(array), self.device)

    def lent(self, array: Array) -> Any:
        """A tensor on the device that is the array's own memory where the backend can adopt it."""
        if not isinstance(self.backend, Exchange):
            return self.put(array)
        return self.backend.move(self.backend.from_dlpack(array, self.device), self.device)

    def order(self, rows: Array) -> Any:
        """Numbers of rows as a tensor on the device, as the backend takes them."""
        return self.put(rows.astype(self.index_dtype))

    def on(self, device: Device) -> Bench:
        """The same, on another device."""
        return replace(self, device=device)

    # -- models ----------------------------------------------------------------------------------------------------

    def ready(self, make: Callable[[], Any], seed: int = 7) -> Any:
        """A model as a node holds it, built for inputs [4] and placed."""
        model = self.compute.wrap(make())
        self.compute.infer(model, [TensorSpec((4,), self.compute.dtype_of(model) or "float32")], seed)
        return self.backend.place(model, self.device)

    def finest(self, exact: Callable[[], Any], usual: Callable[[], Any]) -> Any:
        """The exact model, or the usual one where the framework or the device lacks its dtype."""
        try:
            return self.ready(exact)
        except (MoveError, SpecError, ShapeError):
            return self.ready(usual)

    def twin(self, make: Callable[[], Any], model: Any) -> Any:
        """Another model with the same values, placed."""
        other = self.ready(make)
        self.compute.load_state(other, self.compute.state(model))
        return other

    def values(self, model: Any) -> dict[str, Array]:
        """Copies of the model's parameters, by name."""
        state = self.compute.state(model)
        return {name.partition("/")[2]: np.array(v) for name, v in state.items() if name.startswith("parameters/")}

    def dtype(self, model: Any) -> str:
        """Dtype of the model's inputs."""
        return self.compute.dtype_of(model) or "float32"

    # -- programs --------------------------------------------------------------------------------------------------

    def segment(self, wiring: Wiring) -> Segment:
        """Model `node` from x to y, judged against t by the loss `loss`, trained as the group `all`."""
        x = TensorSpec((4,), self.dtype(wiring.model))
        target = self.target(Batch.of(1, x.dtype), wiring.loss)
        t = TensorSpec(target.shape[1:], target.dtype.name)
        optimizer = wiring.optimizer
        return Segment(
            label="segment",
            operations=(self.operation(NODE, wiring.model, ("x",), ("y",), trainable=optimizer is not None),),
            inputs={"x": (x, self.device), "t": (t, self.device)},
            outputs=("y",),
            losses=(self.term(("y", "t"), wiring.loss, weight=wiring.weight),),
            groups=(ParameterGroup(GROUP, optimizer, (NODE,)),) if optimizer is not None else (),
            needs_pullback=wiring.needs_pullback,
            states=wiring.states,
        )

    def operation(
        self, label: str, model: Any, inputs: tuple[str, ...], outputs: tuple[str, ...], **settings: Any
    ) -> Operation:
        """An operation on the device."""
        return Operation(label, model, inputs, outputs, self.device, **settings)

    def term(self, inputs: tuple[str, ...], loss: str = "mse", label: str = LOSS, weight: float = 1.0) -> LossTerm:
        """A loss on the device."""
        return LossTerm(label, NODE, Loss(loss), inputs, self.device, weight)

    def build(self, model: Any, **settings: Any) -> Program:
        """A program of `Wiring(model, ...)`."""
        return self.compute.build(self.segment(Wiring(model, **settings)))

    def inputs(self, batch: Batch, loss: str = "mse") -> tuple[Any, Any]:
        """What a program of `segment` takes."""
        return self.put(batch.x), self.put(self.target(batch, loss))

    def target(self, batch: Batch, loss: str) -> Array:
        """What a loss takes beside outputs; class indices as the backend takes them."""
        target = batch.targets[loss]
        return target.astype(self.index_dtype) if target.dtype.kind == "i" else target

    def loss(self, pair: tuple[Any, Any]) -> float:
        """The mean that (sum, weight) make."""
        return float(self.read(pair[0])) / float(self.read(pair[1]))

    def evaluated(self, program: Program, batch: Batch, loss: str = "mse") -> float:
        """The mean loss in evaluation mode."""
        return self.loss(program.forward(self.inputs(batch, loss))[1][LOSS])

    # -- training --------------------------------------------------------------------------------------------------

    def pull(self, program: Program, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None) -> Any:
        """Forward and back in training mode; gives the losses."""
        outputs, losses, pullback = program.forward_pullback(inputs, scale)
        pullback([None] * len(outputs))
        return losses

    def gradients(self, program: Program) -> list[Array]:
        """Copies of the gradients that the program holds, in its order."""
        found: list[Array] = []

        def look(gradient: Any) -> Any:
            found.append(np.array(self.read(gradient)))
            return gradient

        program.map_gradients(look)
        return found

    def train(
        self, program: Program, batch: Batch, steps: int, loss: str = "mse", scale: Mapping[str, Any] | None = None
    ) -> list[list[Array]]:
        """Some steps on one batch; gives the gradients of each."""
        inputs, found = self.inputs(batch, loss), []
        for _ in range(steps):
            self.pull(program, inputs)
            found.append(self.gradients(program))
            program.optimizer_step(scale)
        return found

    def gradient_of(self, model: Any, batch: Batch, **settings: Any) -> dict[str, Array]:
        """The gradient of the mean loss on a batch, by parameter, from a program of its own."""
        program = self.build(model, **settings)
        self.pull(program, self.inputs(batch, settings.get("loss", "mse")))
        found = dict(zip(self.compute.parameters(model), self.gradients(program), strict=True))
        program.close()
        return found


def close(actual: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Assert that two arrays, or two mappings of them, have equal names and shapes and nearly equal values."""
    if isinstance(expected, Mapping):
        assert set(actual) == set(expected)
        for name in expected:
            close(actual[name], expected[name], rtol, atol)
        return
    assert np.shape(actual) == np.shape(expected)
    np.testing.assert_allclose(np.asarray(actual, np.float64), np.asarray(expected, np.float64), rtol, atol)


def scalar(bench: Bench, value: Any) -> float:
    """A number that is a float, or a tensor without axes on the bench's device."""
    if isinstance(value, float):
        return value
    assert bench.backend.device_of(value) == bench.device
    return float(bench.read(value))


def same(actual: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    """Assert that two mappings of arrays are equal to the bit."""
    assert set(actual) == set(expected)
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype, name
        np.testing.assert_array_equal(actual[name], value, err_msg=name)
