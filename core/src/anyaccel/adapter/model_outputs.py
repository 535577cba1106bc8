"""The tensors in the return value of a model, their specs found by probing two batch sizes, and the errors for both."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from anyaccel.errors import GraphError, ShapeError
from anyaccel.segment import Operation, OutputSpec, Path, TensorSpec

TensorType = type | tuple[type, ...]
"""What `isinstance` takes: a type, or several, as of arrays and of what stands for them in a trace."""
_PROBED_BATCHES = (2, 3)


def output_tuple(result: Any, tensor_type: TensorType, noun: str = "tensor") -> tuple[Any, ...]:
    """Return the tensors that a model returned: one, or those of a tuple, a list or a dict in its order.

    Args:
        result: Return value of the model.
        tensor_type: The framework's type of tensors, or a tuple of types.
        noun: The framework's word for its tensors.

    Raises:
        ShapeError: it returned something else.
    """
    if isinstance(result, tensor_type):
        return (result,)
    items = tuple(result.values()) if isinstance(result, Mapping) else result
    if isinstance(items, (tuple, list)) and items and all(isinstance(item, tensor_type) for item in items):
        return tuple(items)
    is_container = isinstance(items, (tuple, list))
    of = f" of {', '.join(type(item).__name__ for item in items) or 'nothing'}" if is_container else ""
    if result is None:
        problem, hint = "the model returned None", "end its forward, call or __call__ with `return ...`"
        raise ShapeError(f"{problem}, which cannot be the output of a node", available=f"{noun}s", hint=hint)
    raise ShapeError(
        f"the model returned a {type(result).__name__}{of}, which cannot be the output of a node",
        available=f"one {noun}, or a tuple, list or dict of {noun}s",
        hint=f"wrap the model in one that returns only {noun}s",
    )


def operation_outputs(operation: Operation, outputs: Sequence[Any], *, training: bool) -> Sequence[Any]:
    """Return the results of a model as the outputs of its operation; None for those that are missing in evaluation.

    Raises:
        GraphError: it returned another number.
    """
    missing = len(operation.outputs) - len(outputs)
    if missing and not training and missing == operation.training_only:
        return (*outputs, *[None] * missing)
    if missing:
        raise GraphError(
            f"node {operation.label!r} returns {len(outputs)} outputs in {'training' if training else 'evaluation'}; "
            f"the graph was built with {len(operation.outputs)}: {', '.join(operation.outputs)}",
            hint="return the same outputs in every call, or name all outputs in training, starting with those "
            "of evaluation: ModelNode(..., outputs=['NAME', ...])",
        )
    return outputs


def probe_outputs(
    model_name: str,
    run: Callable[[int], Mapping[Path, Any]],
    dtype_name: Callable[[Any], str],
    hint: str = "keep the batch as the first axis of each output",
) -> tuple[OutputSpec, ...]:
    """Find the outputs of a model from calls with batches of 2 and of 3 samples.

    The batch is the axis whose length follows the batch size; an output without such an axis exists once for a whole
    batch. A value that depends on the batch size in another way (a matrix of all pairs of samples) is not an output of
    a node; if there are outputs, it is left out.

    Args:
        model_name: Name of the model in errors.
        run: Function that returns the outputs by their paths, for a batch size.
        dtype_name: Function that returns the name of a tensor's dtype, as in a TensorSpec.
        hint: Advice if no output has a batch.

    Raises:
        ShapeError: no output has the batch as one of its axes.
    """
    first, second = map(run, _PROBED_BATCHES)
    found: list[OutputSpec] = []
    has_batch = False
    for path, output in first.items():
        shape = tuple(map(int, output.shape))
        other = tuple(map(int, second[path].shape)) if path in second else None
        if other is None or len(shape) != len(other):
            continue
        differ = [axis for axis in range(len(shape)) if shape[axis] != other[axis]]
        if not differ:
            found.append(OutputSpec(path, TensorSpec(shape, dtype_name(output)), None))
        elif len(differ) == 1 and (shape[differ[0]], other[differ[0]]) == _PROBED_BATCHES:
            axis, has_batch = differ[0], True
            found.append(OutputSpec(path, TensorSpec((*shape[:axis], *shape[axis + 1 :]), dtype_name(output)), axis))
    if not has_batch:
        if len(first) < len(second):
            hint = (
                "wrap a model that returns a list with an entry for each sample (a detector) in a module "
                "whose forward returns a tensor, and call it in a custom step, TrainPhase(step=...): "
                "docs/how-to/custom-step.md"
            )
        shown = [
            ", ".join(str(list(map(int, output.shape))) for output in outputs.values()) for outputs in (first, second)
        ]
        raise ShapeError(
            f"{model_name} returns {shown[0]} for a batch of {_PROBED_BATCHES[0]}, "
            f"and {shown[1]} for a batch of {_PROBED_BATCHES[1]}",
            cause="one axis of an output must be the batch, at any batch size",
            hint=hint,
        )
    return tuple(found)


CODE_ERRORS = (AttributeError, NameError, KeyError, NotImplementedError, ZeroDivisionError)
"""What a model raises by a mistake in its code, whatever the shapes and dtypes of its inputs."""


def code_error(model_name: str, error: Exception, reason: str) -> GraphError:
    """Create the error for a model whose code failed, with the framework's `reason` and the place in the user's
    code.
    """
    packages = [module for name, module in sys.modules.items() if re.fullmatch(r"anyaccel(_\w+)?", name)]
    ours = [folder for package in packages for folder in getattr(package, "__path__", ())]
    places = []
    for frame in traceback.extract_tb(error.__traceback__):
        path = PurePath(frame.filename)
        is_library = "site-packages" in path.parts or frame.filename.startswith("<")
        if not is_library and not any(map(path.is_relative_to, ours)):
            places.append(frame)
    where = f" in {places[-1].name}, line {places[-1].lineno} of {places[-1].filename}" if places else ""
    return GraphError(
        f"{model_name} raised {type(error).__name__}{where}: {reason}",
        hint="fix the model's code; the full traceback is above",
    )


def input_error(model_name: str, inputs: Sequence[TensorSpec], reason: str, hint: str) -> ShapeError:
    """Create the error for a model that rejects inputs of these specs per sample, with the framework's `reason`."""
    shown = " and ".join(map(str, inputs)) or "no input"
    return ShapeError(f"{model_name} does not accept {shown} per sample", cause=reason, hint=hint)


def call_hint(error: Exception) -> str:
    """Return what to do if a model's call takes other arguments than it receives; `""` if that is not the error."""
    if isinstance(error, TypeError) and re.search(r"missing (\d+|a) required|positional argument", str(error)):
        return "pass every argument of its call: ModelNode(label, model, [data.reference('a'), data.reference('b')])"
    return ""


_OF_SIZES = re.compile(
    r"\b(shapes?|sizes?|dim(ension)?s?|ndims?|\d-?d|ranks?|ax[ie]s|channels?|d?types?|elements?|index|indices|lengths?|"
    r"broadcast\w*|contract\w*|expected|incompatible|inputs?|unpack|reshape|divisible|columns?|rows?|features?|mat\d)\b",
    re.IGNORECASE,
)


def input_hint(
    inputs: Sequence[TensorSpec],
    *,
    is_code_error: bool = False,
    dtype: str | None = None,
    convert: str = "",
    error: Exception | None = None,
) -> str:
    """Return what to do if a model does not accept its inputs.

    Args:
        inputs: Specs of the inputs per sample.
        is_code_error: Whether the model's own code failed in a way that shapes and dtypes do not explain.
        dtype: Dtype of the model's parameters.
        convert: How to give the model the inputs' dtype, with `{dtype}` for it.
        error: The framework's error; one that mentions no sizes or dtypes comes from the model's code.
    """
    if error is not None and not _OF_SIZES.search(str(error)):
        return "fix the model's code; the full traceback is above"
    if any(spec.shape == () for spec in inputs):
        return "a scalar per sample arrives as [batch]; store the column as [n, 1] if the model expects [batch, 1]"
    if is_code_error:
        return "fix the model's code; the full traceback is above"
    other = next((spec.dtype for spec in inputs if dtype not in (None, spec.dtype)), None)
    if other is not None and ("int" in other or other == "bool"):
        return f"convert the data, array.astype({dtype!r}), or feature_set.cast({{...: {dtype!r}}}, keep_splits=True)"
    if other is not None:
        return f"provide {dtype} inputs if the dtype is the problem, or {convert.format(dtype=other)}"
    return "correct the sizes of the model or of its inputs"
