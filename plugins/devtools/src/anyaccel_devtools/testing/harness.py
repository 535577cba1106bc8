"""Harness: a backend on a device, and what many tests do with it: make tensors, models and programs, and train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest

from anyaccel.backend import Backend, Compute, Exchange, Kind, Program
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
    """Training data: inputs [n, 4], and for each named loss targets that suit outputs [n, 3]."""

    x: Array
    targets: Mapping[str, Array]

    @classmethod
    def of(cls, n: int, dtype: str = "float32", seed: int = 0) -> Batch:
        """Return `n` random rows, the same for a seed."""
        random = np.random.default_rng(seed)
        values, probabilities = random.normal(size=(n, 3)).astype(dtype), random.uniform(size=(n, 3)).astype(dtype)
        targets = {
            "mse": values,
            # far from its kink, where finite differences do not approximate the gradient
            "mae": values + np.copysign(np.array(8, dtype), values),
            "cross_entropy": random.integers(0, 3, n),
            "binary_cross_entropy": probabilities,
        }
        return cls(random.normal(size=(n, 4)).astype(dtype), targets)

    def rows(self, index: Any) -> Batch:
        """Return the batch of some of its rows."""
        return Batch(self.x[index], {name: target[index] for name, target in self.targets.items()})


@dataclass(frozen=True, kw_only=True)
class SegmentOptions:
    """The options of a segment with one model and one loss that tests vary."""

    loss: str = "mse"
    optimizer: Optimizer | None = field(default_factory=lambda: Optimizer("sgd", lr=0.1))
    needs_pullback: tuple[str, ...] = ()
    states: Mapping[str, NodeState] = field(default_factory=dict)
    weight: float = 1.0
    compile: str = "auto"


@dataclass(frozen=True)
class Harness:
    """A backend on one device.

    Attributes:
        from_numpy: Function that makes a tensor on the framework's default device.
        to_numpy: Function that reads the values of a tensor.
    """

    backend: Backend
    device: Device
    from_numpy: Callable[[Array], Any]
    to_numpy: Callable[[Any], Array]

    @property
    def compute(self) -> Compute:
        """The backend, typed as one that computes; only tests of that capability use it."""
        return cast("Compute", self.backend)

    def declared(self, kind: type[Kind], name: str) -> Kind:
        """Return the backend's object of a capability; skip the test without it."""
        capability = self.backend.capability(kind)
        if capability is None:
            pytest.skip(f"{name} is not declared")
        return capability

    @property
    def index_dtype(self) -> str:
        """Dtype of row orders and class indices."""
        return self.backend.index_dtype if isinstance(self.backend, Exchange) else "int64"

    def on_device(self, device: Device) -> Harness:
        """Return the same harness on another device."""
        return replace(self, device=device)

    def put(self, array: Array) -> Any:
        """Return a tensor on the device."""
        return self.backend.move(self.from_numpy(array), self.device)

    def put_aliased(self, array: Array) -> Any:
        """Return a tensor on the device, in the array's own memory where the backend can do that."""
        if not isinstance(self.backend, Exchange):
            return self.put(array)
        return self.backend.move(self.backend.from_dlpack(array, self.device), self.device)

    def put_indices(self, indices: Array) -> Any:
        """Return row numbers on the device, in the backend's index dtype."""
        return self.put(indices.astype(self.index_dtype))

    # -- models ----------------------------------------------------------------------------------------------------

    def prepare_model(self, make: Callable[[], Any], seed: int = 7) -> Any:
        """Return a model wrapped as a node holds it, built for inputs [4], and placed."""
        model = self.compute.wrap(make())
        self.compute.infer(model, [TensorSpec((4,), self.compute.dtype_of(model) or "float32")], seed)
        return self.backend.place(model, self.device)

    def prepare_most_precise(self, precise: Callable[[], Any], fallback: Callable[[], Any]) -> Any:
        """Return the precise model, or the fallback where the framework or the device lacks its dtype."""
        try:
            return self.prepare_model(precise)
        except (MoveError, SpecError, ShapeError):
            return self.prepare_model(fallback)

    def clone_model(self, make: Callable[[], Any], model: Any) -> Any:
        """Return another placed model with the same values."""
        clone = self.prepare_model(make)
        self.compute.load_state(clone, self.compute.state(model))
        return clone

    def parameter_values(self, model: Any) -> dict[str, Array]:
        """Return copies of the model's parameters, by name."""
        state = self.compute.state(model)
        return {name.partition("/")[2]: np.array(v) for name, v in state.items() if name.startswith("parameters/")}

    def input_dtype(self, model: Any) -> str:
        """Return the dtype of the model's inputs."""
        return self.compute.dtype_of(model) or "float32"

    # -- programs --------------------------------------------------------------------------------------------------

    def segment(self, model: Any, **options: Any) -> Segment:
        """Return one operation `node` from x to y with a loss against t, trained as the group `all`.

        Args:
            model: A placed model.
            options: See `SegmentOptions`.
        """
        chosen = SegmentOptions(**options)
        x = TensorSpec((4,), self.input_dtype(model))
        target = self.target(Batch.of(1, x.dtype), chosen.loss)
        t = TensorSpec(target.shape[1:], target.dtype.name)
        trainable = chosen.optimizer is not None
        return Segment(
            label="segment",
            operations=(self.operation(NODE, model, ("x",), ("y",), trainable=trainable),),
            inputs={"x": (x, self.device), "t": (t, self.device)},
            outputs=("y",),
            losses=(self.loss_term(("y", "t"), chosen.loss, weight=chosen.weight),),
            groups=(ParameterGroup(GROUP, chosen.optimizer, (NODE,)),) if chosen.optimizer is not None else (),
            needs_pullback=chosen.needs_pullback,
            states=chosen.states,
            compile=chosen.compile,
        )

    def operation(
        self, label: str, model: Any, inputs: tuple[str, ...], outputs: tuple[str, ...], **settings: Any
    ) -> Operation:
        """Return an operation on the device."""
        return Operation(label, model, inputs, outputs, self.device, **settings)

    def loss_term(self, inputs: tuple[str, ...], loss: str = "mse", label: str = LOSS, weight: float = 1.0) -> LossTerm:
        """Return a loss of `node` on the device."""
        return LossTerm(label, NODE, Loss(loss), inputs, self.device, weight)

    def build(self, model: Any, **options: Any) -> Program:
        """Return a program of `segment(model, **options)`."""
        return self.compute.build(self.segment(model, **options))

    def build_reference(self, segment: Segment) -> Program:
        """Return an uncompiled program, whose results others are compared with: it is ready sooner where compiling is
        slow.
        """
        return self.compute.build(replace(segment, compile="off"))

    def inputs(self, batch: Batch, loss: str = "mse") -> tuple[Any, Any]:
        """Return the inputs x and t of a program of `segment`, on the device."""
        return self.put(batch.x), self.put(self.target(batch, loss))

    def target(self, batch: Batch, loss: str) -> Array:
        """Return the targets of a loss, class indices in the backend's index dtype."""
        target = batch.targets[loss]
        return target.astype(self.index_dtype) if target.dtype.kind == "i" else target

    def mean_loss(self, loss: tuple[Any, Any]) -> float:
        """The mean of a loss given as (sum, weight)."""
        return float(self.to_numpy(loss[0])) / float(self.to_numpy(loss[1]))

    def eval_loss(self, program: Program, batch: Batch, loss: str = "mse") -> float:
        """The mean loss in evaluation mode."""
        return self.mean_loss(program.forward(self.inputs(batch, loss))[1][LOSS])

    # -- training --------------------------------------------------------------------------------------------------

    def forward_backward(
        self, program: Program, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> Mapping[str, tuple[Any, Any]]:
        """Run forward and backward in training mode; returns the losses."""
        outputs, losses, pullback = program.forward_pullback(inputs, scale)
        pullback([None] * len(outputs))
        return losses

    def gradients(self, program: Program) -> list[Array]:
        """Return copies of the gradients that the program holds, in its order."""
        gradients: list[Array] = []

        def record(gradient: Any) -> Any:
            gradients.append(np.array(self.to_numpy(gradient)))
            return gradient

        program.map_gradients(record)
        return gradients

    def train(
        self, program: Program, batch: Batch, steps: int, loss: str = "mse", scale: Mapping[str, Any] | None = None
    ) -> list[list[Array]]:
        """Train some steps on one batch; returns the gradients of each step."""
        inputs, gradients = self.inputs(batch, loss), []
        for _ in range(steps):
            self.forward_backward(program, inputs)
            gradients.append(self.gradients(program))
            program.optimizer_step(scale)
        return gradients

    def gradient_of(self, model: Any, batch: Batch, **options: Any) -> dict[str, Array]:
        """The gradient of the mean loss on a batch, by parameter, from its own program, by default uncompiled."""
        program = self.build(model, **{"compile": "off", **options})
        self.forward_backward(program, self.inputs(batch, options.get("loss", "mse")))
        gradients = dict(zip(self.compute.parameters(model), self.gradients(program), strict=True))
        program.close()
        return gradients

    def as_float(self, value: Any) -> float:
        """Return the value of a float, or of a scalar tensor, which must be on the device."""
        if isinstance(value, float):
            return value
        assert self.backend.device_of(value) == self.device
        return float(self.to_numpy(value))


def assert_close(actual: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Assert that two arrays, or two mappings of arrays, have equal names and shapes and nearly equal values."""
    if isinstance(expected, Mapping):
        assert set(actual) == set(expected)
        for name in expected:
            assert_close(actual[name], expected[name], rtol, atol)
        return
    assert np.shape(actual) == np.shape(expected)
    np.testing.assert_allclose(np.asarray(actual, np.float64), np.asarray(expected, np.float64), rtol, atol)


def assert_equal(actual: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    """Assert that two mappings of arrays have equal names, dtypes and values, bit for bit."""
    assert set(actual) == set(expected)
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype, name
        np.testing.assert_array_equal(actual[name], value, err_msg=name)
