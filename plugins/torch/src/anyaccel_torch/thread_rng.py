"""A stream of random numbers of one thread, in place of torch's generator of the CPU, which all threads share."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_DRAWING = frozenset(
    {
        *(torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal, torch.bernoulli, torch.multinomial),
        *(torch.poisson, torch.binomial, Tensor.random_, Tensor.uniform_, Tensor.normal_, Tensor.bernoulli_),
        *(Tensor.bernoulli, Tensor.multinomial, Tensor.exponential_, Tensor.log_normal_, Tensor.cauchy_),
        Tensor.geometric_,
    }
)
"""Functions that take a generator."""
_LIKE = {torch.rand_like: Tensor.uniform_, torch.randn_like: Tensor.normal_}
"""Functions that take none, and what fills a tensor in their place."""


class ThreadRandomness(TorchFunctionMode):
    """Inside, functions of torch that this thread calls without a generator draw on the CPU from one of its own.

    Nothing is changed in a process that was forked inside, such as a worker of a DataLoader, which has its own seed; on
    other devices; and in `torch.nn.functional` and `torch.nn.init`, whose functions draw within.

    Args:
        key: the seed, 64 bits; None: it follows from the state of torch's own generator.

    Attributes:
        draws: how many functions have drawn from it.
    """

    def __init__(self, key: int | None) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(_key_of_now() if key is None else key)
        self._process, self.draws = os.getpid(), 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch, with the generator if it would draw without one."""
        settings = kwargs or {}
        if (func in _DRAWING or func in _LIKE) and self._is_meant(args, settings):
            self.draws += 1
            if func in _LIKE:
                return _LIKE[func](torch.empty_like(*args, **settings), generator=self._generator)
            settings = {**settings, "generator": self._generator}
        return func(*args, **settings)

    def _is_meant(self, args: Sequence[Any], settings: Mapping[str, Any]) -> bool:
        if settings.get("generator") is not None or os.getpid() != self._process:
            return False
        tensors = [value for value in (*args, *settings.values()) if isinstance(value, Tensor)]
        device = settings.get("device") or (tensors[0].device if tensors else torch.get_default_device())
        return torch.device(device).type == "cpu"


def _key_of_now() -> int:
    """A seed that follows from the state of torch's own generator, and is none of its numbers."""
    return int.from_bytes(hashlib.blake2b(torch.get_rng_state().numpy().tobytes(), digest_size=8).digest(), "little")
