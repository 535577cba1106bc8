"""CallLayout: how an operation's inputs become the arguments of its model's call, and which results are outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from anyaccel.adapter.model_outputs import TensorType, output_tuple
from anyaccel.errors import PhaseError, ShapeError
from anyaccel.segment import Operation, OutputSpec, Path


class ArgumentPaths(tuple[Path, ...]):
    """Paths of inputs, as `Operation.arguments`, for a model whose batch is not on the first axis.

    Only backends whose `Compute.moves_batch_axis` is true receive these; `CallLayout` applies them.

    Attributes:
        batch_axes: For each input, the axis of the batch in the argument; inputs themselves are batch first.
    """

    batch_axes: tuple[int, ...]

    def __new__(cls, paths: Iterable[Path], batch_axes: Iterable[int]) -> Self:
        made = super().__new__(cls, paths)
        made.batch_axes = tuple(batch_axes)
        return made

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, other) is True and batch_axes_of(other) == self.batch_axes

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((tuple(self), self.batch_axes))

    def __reduce__(self) -> Any:
        return ArgumentPaths, (tuple(self), self.batch_axes)


def is_positional(arguments: Sequence[Path]) -> bool:
    """Return whether inputs are the positional arguments of a call, in their order."""
    return tuple(arguments) == tuple((i,) for i in range(len(arguments)))


def batch_axes_of(arguments: Any) -> tuple[int, ...]:
    """Return the batch axes of some arguments; `()` if all are batch first."""
    return arguments.batch_axes if isinstance(arguments, ArgumentPaths) else ()


Arguments = tuple[Sequence[Any], dict[str, Any]]
"""Positional arguments, and those by keyword."""


class CallLayout:
    """How inputs become arguments, and which of the results are outputs.

    Args:
        arguments: See `Operation.arguments`.
        results: See `Operation.results` and `Operation.training_results`.
    """

    def __init__(self, arguments: Sequence[Path] = (), results: Sequence[OutputSpec | None] = ()) -> None:
        self._axes = batch_axes_of(arguments)
        self._key = tuple(arguments), tuple(results), self._axes
        self._arguments, self._results = self._key[:2]
        names = [path[0] for path in self._arguments if len(path) == 1 and isinstance(path[0], str)]
        self._names = names if len(names) == len(self._arguments) else []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallLayout) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def is_named(self) -> bool:
        """Whether an argument is passed by keyword."""
        return any(isinstance(path[0], str) for path in self._key[0])

    def bind(self, inputs: Sequence[Any], move_axis: Callable[[Any, int, int], Any] | None = None) -> Arguments:
        """Return the arguments of the call.

        Args:
            inputs: Inputs, batch first.
            move_axis: `moveaxis` of the framework; None if models always have the batch first.

        Raises:
            ShapeError: an input must have the batch on another axis, and cannot.
        """
        if self._axes:
            moved = list(inputs)
            for i, (x, axis) in enumerate(zip(inputs, self._axes, strict=True)):
                if not axis:
                    continue
                if move_axis is None:
                    raise ShapeError(
                        "models of this kind have the batch on the first axis",
                        hint="leave batch_axis out, or wrap the model",
                    )
                if axis >= len(x.shape):
                    raise ShapeError(
                        f"batch_axis={axis}, but the input has only {len(x.shape)} axes, including the batch",
                        available=f"batch_axis=0 to {len(x.shape) - 1}",
                        hint="set it for each input: batch_axis={'INPUT': 1}",
                    )
                moved[i] = move_axis(x, 0, axis)
            inputs = moved
        if not self._arguments:
            return inputs, {}
        if self._names:
            return (), dict(zip(self._names, inputs, strict=True))
        tree = _tree(list(zip(self._arguments, inputs, strict=True)))
        positions = sorted(key for key in tree if isinstance(key, int))
        return [tree[i] for i in positions], {key: value for key, value in tree.items() if isinstance(key, str)}

    def outputs(
        self, result: Any, tensor_type: TensorType, move_axis: Callable[[Any, int, int], Any], noun: str = "tensor"
    ) -> tuple[Any, ...]:
        """Return the outputs among the results of the model, batch first; None for those that it lacks in this mode.

        Args:
            result: Return value of the model.
            tensor_type: The framework's type of tensors, or a tuple of types.
            move_axis: `moveaxis` of the framework.
            noun: The framework's word for its tensors.

        Raises:
            ShapeError: it returned no tensors, or more than a flat container of them, where one is required.
            PhaseError: it lacks a tensor that the model returned when the graph was built.
        """
        if not self._results:
            return output_tuple(result, tensor_type, noun)
        outputs: list[Any] = []
        for output in self._results:
            if output is None:
                outputs.append(None)
                continue
            value = result
            for key in output.path:
                try:
                    value = value[key] if isinstance(value, Mapping) or isinstance(key, int) else getattr(value, key)
                except (KeyError, IndexError, AttributeError, TypeError):
                    value = None
            if not isinstance(value, tensor_type):
                name = ".".join(map(str, output.path)) or "tensor"
                raise PhaseError(
                    f"a model returned a {type(result).__name__} without {name}, which it returned when the graph was "
                    "built",
                    hint="return the same outputs in training as in evaluation",
                )
            outputs.append(move_axis(value, output.batch_axis, 0) if output.batch_axis else value)
        return tuple(outputs)


class ProbeLayout(CallLayout):
    """The layout of a call with unknown results: all tensors at any depth are outputs, unchanged.

    Attributes:
        paths: Path to each output of the last call.
    """

    paths: tuple[Path, ...] = ()

    def outputs(
        self, result: Any, tensor_type: TensorType, move_axis: Callable[[Any, int, int], Any], noun: str = "tensor"
    ) -> tuple[Any, ...]:
        """Return every tensor in the result of the model.

        Raises:
            ShapeError: there is none.
        """
        tensors = leaves(result, tensor_type)
        if not tensors:
            output_tuple(result, tensor_type, noun)  # says what it is
        self.paths = tuple(tensors)
        return tuple(tensors.values())

    def by_path(self, outputs: Sequence[Any]) -> dict[Path, Any]:
        """Return the outputs of the last call by their paths."""
        return dict(zip(self.paths, outputs, strict=True))


def layout_of(operation: Operation, *, training: bool) -> CallLayout:
    """Return the layout of an operation's call in a mode; `POSITIONAL` itself if it is positional."""
    results = operation.training_results if training else operation.results
    return CallLayout(operation.arguments, results) if operation.arguments or results else POSITIONAL


def leaves(result: Any, tensor_type: TensorType, path: Path = ()) -> dict[Path, Any]:
    """Return the tensors in the result of a model, by the path to each; everything else is left out.

    It looks into mappings with keys of text, named tuples, tuples, lists and dataclasses. Paths begin with `path`.
    """
    if isinstance(result, tensor_type):
        return {path: result}
    items: list[tuple[str | int, Any]] = []
    if isinstance(result, Mapping):
        items = [(key, item) for key, item in result.items() if isinstance(key, str)]
    elif isinstance(result, tuple) and hasattr(result, "_fields"):
        items = list(zip(result._fields, result, strict=True))
    elif isinstance(result, (tuple, list)):
        items = list(enumerate(result))
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        items = [(field.name, getattr(result, field.name, None)) for field in dataclasses.fields(result)]
    found: dict[Path, Any] = {}
    for key, item in items:
        found |= leaves(item, tensor_type, (*path, key))
    return found


def _tree(pairs: Sequence[tuple[Path, Any]]) -> dict[str | int, Any]:
    """Return values by the first step of their paths: the value, or a dict or list of those with longer paths."""
    groups: dict[str | int, list[tuple[Path, Any]]] = {}
    for path, value in pairs:
        groups.setdefault(path[0], []).append((path[1:], value))
    tree: dict[str | int, Any] = {}
    for key, inner in groups.items():
        if not inner[0][0]:
            tree[key] = inner[0][1]
            continue
        below = _tree(inner)
        is_list = all(isinstance(step, int) for step in below)
        tree[key] = [below[i] for i in sorted(below, key=int)] if is_list else below
    return tree


POSITIONAL = CallLayout()
"""The inputs are the positional arguments, and the results are the outputs."""
