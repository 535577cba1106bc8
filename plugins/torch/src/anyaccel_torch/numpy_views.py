"""Tensors and arrays on one memory, bfloat16 among them: NumPy itself lacks it, and has it from ml_dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

BFLOAT16 = "bfloat16"


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """The array on the memory of a dense tensor on the CPU without gradients; `ml_dtypes.bfloat16` for bfloat16.

    A DTensor is gathered, by all processes of its mesh together.

    Raises:
        TypeError, RuntimeError: as `Tensor.numpy`.
    """
    import torch

    gather = getattr(tensor, "full_tensor", None)
    tensor = tensor if gather is None else gather()
    if tensor.dtype is not torch.bfloat16:
        return tensor.numpy()
    array: np.ndarray = tensor.view(torch.int16).numpy().view(numpy_dtype(BFLOAT16))
    return array


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """The tensor on the memory of a writable array.

    Raises:
        TypeError: torch lacks the dtype.
    """
    import torch

    if array.dtype.name != BFLOAT16:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a name; bfloat16 has one as soon as ml_dtypes is imported."""
    if name == BFLOAT16:
        import ml_dtypes  # noqa: F401
    return np.dtype(name)
