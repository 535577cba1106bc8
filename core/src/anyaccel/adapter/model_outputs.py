"""What a model returns: the tensors in it, their specs found by probing two batch sizes, and errors about both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anyaccel.errors import GraphError, ShapeError
from anyaccel.segment import Operation, TensorSpec

_PROBED_BATCHES = (2, 3)


def output_tuple(result: Any, tensor_type: type, noun: str = "tensor") -> tuple[Any, ...]:
    """The tensors that a model returned: one, or those of a tuple, a list or a dict in its order.

    Args:
        result: what the model returned.
        tensor_type: the framework's type of tensors.
        noun: what the framework calls them.

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
    raise ShapeError(
        f"the model returned a {type(result).__name__}{of}, which cannot be the output of a node",
        available=f"one {noun}, or a tuple, list or dict of {noun}s",
        hint=f"wrap the model in one that returns only {noun}s",
    )


def operation_outputs(operation: Operation, outputs: Sequence[Any], *, training: bool) -> Sequence[Any]:
    """What a model returned as the outputs of its operation; None for those that are missing in evaluation.

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
            hint="return the same outputs in every call, or name all that it returns in training, those of evaluation "
            "first: ModelNode(..., outputs=['NAME', ...])",
        )
    return outputs


def probe_output_specs(
    model_name: str,
    run: Callable[[int], Sequence[Any]],
    spec_of: Callable[[Any], TensorSpec],
    hint: str = "keep the batch as the first axis of what the model returns",
) -> tuple[TensorSpec, ...]:
    """Specs per sample of a model's outputs, which must be the same for batches of 2 and of 3 samples.

    Args:
        model_name: how errors name the model.
        run: the outputs for a batch of so many samples.
        spec_of: the spec per sample of an output.
        hint: what to do where an output has no batch axis.

    Raises:
        ShapeError: an output does not have the batch as its first axis, or its spec depends on the batch size.
    """
    outputs_by_batch = [tuple(run(batch)) for batch in _PROBED_BATCHES]
    for batch, outputs in zip(_PROBED_BATCHES, outputs_by_batch, strict=True):
        for shape in (tuple(output.shape) for output in outputs):
            if shape[:1] != (batch,):
                raise ShapeError(
                    f"{model_name} returns shape {list(shape)} for a batch of {batch}",
                    available="the first axis of every output must be the batch",
                    hint=hint,
                )
    first, second = (tuple(map(spec_of, outputs)) for outputs in outputs_by_batch)
    if first != second:
        shown = [", ".join(map(str, specs)) for specs in (first, second)]
        raise ShapeError(
            f"{model_name} returns {shown[0]} per sample for a batch of 2, but {shown[1]} for a batch of 3",
            hint="make the output of the model for a sample independent of the batch size",
        )
    return first


def input_error(model_name: str, inputs: Sequence[TensorSpec], reason: str, hint: str) -> ShapeError:
    """The error for a model that does not accept inputs of these specs per sample, with the framework's `reason`."""
    shown = " and ".join(map(str, inputs)) or "no input"
    return ShapeError(f"{model_name} does not accept {shown} per sample", available=reason, hint=hint)


def input_hint(
    inputs: Sequence[TensorSpec], *, is_code_error: bool = False, dtype: str | None = None, convert: str = ""
) -> str:
    """What to do where a model does not accept its inputs.

    Args:
        inputs: their specs per sample.
        is_code_error: whether the model's own code failed in a way that shapes and dtypes do not explain.
        dtype: the dtype of the model's parameters.
        convert: how to give the model the inputs' dtype, with `{dtype}` for it.
    """
    if any(spec.shape == () for spec in inputs):
        return "a scalar per sample arrives as [batch]; store the column as [n, 1] if the model expects [batch, 1]"
    if is_code_error:
        return "fix the model's code; the full traceback is above"
    other = next((spec.dtype for spec in inputs if dtype not in (None, spec.dtype)), None)
    if other is not None and "int" in other:
        return f"cast the data: feature_set.cast({{...: {dtype!r}}}, keep_splits=True)"
    if other is not None:
        return f"provide {dtype} inputs if the dtype is the problem, or {convert.format(dtype=other)}"
    return "correct the sizes of the model, or of what feeds it"
