"""Checks of a model's state (NumPy arrays by name) before any of it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from anyaccel.errors import StateError
from anyaccel.segment import TensorSpec


def state_names(parameters: Mapping[str, Any], buffers: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters and buffers under the names of a state: `parameters/NAME` and `buffers/NAME`."""
    named = {f"parameters/{name}": value for name, value in parameters.items()}
    return named | {f"buffers/{name}": value for name, value in buffers.items()}


def check_state(state: Mapping[str, np.ndarray], expected: Mapping[str, TensorSpec]) -> None:
    """Check that a state has exactly the expected names, shapes and dtypes (byte order does not matter).

    Args:
        state: Values to load, by name.
        expected: Whole shape and dtype of each value of the model.

    Raises:
        StateError: it does not.
    """
    missing = [name for name in expected if name not in state]
    unknown = [name for name in state if name not in expected]
    if missing or unknown:
        problems = [f"lacks {', '.join(missing)}"] if missing else []
        problems += [f"has {', '.join(unknown)}, which is not in the model"] if unknown else []
        raise StateError(
            f"the state {' and '.join(problems)}",
            cause=f"the model has {', '.join(expected) or 'no values'}",
            hint="load the state of a model with the same architecture",
        )
    for name, spec in expected.items():
        value = np.asarray(state[name])
        found_spec = TensorSpec(value.shape, _dtype_name(value.dtype))
        if found_spec != spec:
            raise StateError(
                f"{name} in the state is {found_spec}",
                cause=f"{name} of the model is {spec}",
                hint="load the state of a model with the same sizes and dtype",
            )


@cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    """Return `dtype.name`, which NumPy takes microseconds to make."""
    return dtype.name


def not_built_error(
    model: Any, hint: str = "build the graph that contains it, or call it once with a batch"
) -> StateError:
    """Create the error for a model that has no parameters yet."""
    return StateError(
        f"{type(model).__name__} has no parameters yet, because the shapes of its inputs are not known", hint=hint
    )
