"""torch's functions under NumPy's names: the namespace that named optimizers and losses compute with.

torch itself takes NumPy's `axis` and `keepdims`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

abs = torch.abs
all = torch.all
any = torch.any
concatenate = torch.cat
exp = torch.exp
float32 = torch.float32
full_like = torch.full_like
isfinite = torch.isfinite
log = torch.log
log1p = torch.log1p
max = torch.amax
reshape = torch.reshape
sign = torch.sign
sqrt = torch.sqrt
stack = torch.stack
sum = torch.sum
tanh = torch.tanh
where = torch.where
zeros_like = torch.zeros_like


def maximum(a: Any, b: Any) -> Tensor:
    """Return the larger of two arrays, or of an array and a number, element by element."""
    return torch.maximum(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else _limited(a, b, torch.clamp_min)


def minimum(a: Any, b: Any) -> Tensor:
    """Return the smaller of two arrays, or of an array and a number, element by element."""
    return torch.minimum(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else _limited(a, b, torch.clamp_max)


def _limited(a: Any, b: Any, clamp: Any) -> Tensor:
    limited: Tensor = clamp(a, b) if isinstance(a, Tensor) else clamp(b, a)
    return limited
