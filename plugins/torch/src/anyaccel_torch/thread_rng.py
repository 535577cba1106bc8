"""Random numbers of what reads data: in a thread apart from torch's generators, or in turn with the training."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from anyaccel_torch.state_guard import RandomState, generator_devices, seed_generators

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
    """Let functions of torch that this thread calls without a generator draw on the CPU from a separate generator.

    Nothing changes in a process that was forked inside, such as a worker of a DataLoader, which has its own seed; on
    other devices; and in `torch.nn.functional` and `torch.nn.init`, whose functions draw internally.

    Args:
        key: The seed, 64 bits; None derives it from the state of torch's own generator.

    Attributes:
        draws: Number of functions that have drawn from it.
        passed: Whether torch's own generator was seeded inside: the draws do not follow from that seed.
    """

    def __init__(self, key: int | None) -> None:
        super().__init__()
        if key is None:  # from the state of torch's own generator, but not one of its numbers
            state = torch.get_rng_state().numpy().tobytes()
            key = int.from_bytes(hashlib.blake2b(state, digest_size=8).digest(), "little")
        self._generator = torch.Generator().manual_seed(key)
        self._process, self.draws, self.passed = os.getpid(), 0, False
        self._seed = 0

    def __enter__(self) -> Self:
        self._seed = torch.default_generator.initial_seed()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        self.passed = self.passed or torch.default_generator.initial_seed() != self._seed

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch, with the generator if it draws random numbers."""
        settings = kwargs or {}
        if (func in _DRAWING or func in _LIKE) and os.getpid() == self._process and _draws_on_host(args, settings):
            self.draws += 1
            self.passed = self.passed or torch.default_generator.initial_seed() != self._seed  # also in fork_rng
            if func in _LIKE:
                return _LIKE[func](torch.empty_like(*args, **settings), generator=self._generator)
            settings = {**settings, "generator": self._generator}
        return func(*args, **settings)


class WatchedRandomness(TorchFunctionMode):
    """Use torch's generators as usual, and detect whether code would bypass `ThreadRandomness`.

    It is bypassed if the generator of the CPU is seeded or set, or if functions that take no generator draw from it.

    Attributes:
        passed: Whether that happened.
    """

    def __init__(self) -> None:
        super().__init__()
        self._process, self.passed = os.getpid(), False
        self._state = torch.default_generator.get_state()

    def __enter__(self) -> Self:
        self._state = torch.default_generator.get_state()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        self._look()

    def _look(self) -> None:
        self.passed = self.passed or not torch.equal(torch.default_generator.get_state(), self._state)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch, and look whether the state was changed by anything but those that draw."""
        settings = kwargs or {}
        if os.getpid() != self._process or not (func in _DRAWING or func in _LIKE):
            return func(*args, **settings)
        if not _draws_on_host(args, settings):
            return func(*args, **settings)
        self._look()
        result = func(*args, **settings)
        self._state = torch.default_generator.get_state()
        return result


class GlobalRandomness:
    """Inside, generators of the CPU and of devices continue from a seed, for all threads; afterwards they are as
    before.

    Args:
        key: The seed where it is entered for the first time, 64 bits.

    Attributes:
        draws: Number of times that the generator of the CPU was left in another state.
    """

    def __init__(self, key: int) -> None:
        self._key, self.draws = key, 0
        self._inner: RandomState | None = None
        self._outer: RandomState | None = None
        self._before = torch.default_generator.get_state()

    def __enter__(self) -> Self:
        devices = generator_devices()
        self._outer = RandomState(devices)
        if self._inner is None:
            seed_generators(devices, self._key)
        else:
            self._inner.restore()
        self._before = torch.default_generator.get_state()
        return self

    def __exit__(self, *exception: object) -> None:
        self.draws += not torch.equal(torch.default_generator.get_state(), self._before)
        self._inner, outer = RandomState(generator_devices()), self._outer
        if outer is not None:
            outer.restore()
        self._outer = None


def _draws_on_host(args: Sequence[Any], settings: Mapping[str, Any]) -> bool:
    """Whether a function that draws does so from torch's own generator of the CPU."""
    if settings.get("generator") is not None:
        return False
    tensors = [value for value in (*args, *settings.values()) if isinstance(value, Tensor)]
    device = settings.get("device") or (tensors[0].device if tensors else torch.get_default_device())
    return torch.device(device).type == "cpu"
