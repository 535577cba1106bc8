"""Processes of a loop: what they exchange beside gradients, and the random numbers of each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from anyaccel.data.streaming.random_states import RandomStates, from_arrays, to_arrays
from anyaccel.own_loop.plain_state import packed, unpacked
from anyaccel.rng import key


class Order:
    """What the random numbers of an epoch follow from; by itself those that are there, as in a loop by hand.

    Attributes:
        key: of those that further batches draw while the loop computes; None takes those that are there.
    """

    key: int | None = None

    def drawing(self) -> AbstractContextManager[Any]:
        """Around what draws the order of the rows, and the first batch."""
        return nullcontext()


class LoopProcesses:
    """The processes that compute a loop together, as one of them sees it.

    Args:
        group: gathers plain values; see `ReplicaGroup`.
        seed: of all random numbers; None takes what the generators hold.
        seed_framework: seeds the framework's global generators, if it has such.

    Attributes:
        rank, size: which one this is, from 0, and how many there are.
        group, seed: as given.
    """

    def __init__(self, group: Any, seed: int | None, seed_framework: Callable[[int], object]) -> None:
        self.group, self.seed, self._seed_framework = group, seed, seed_framework
        self.rank: int = group.rank
        self.size: int = group.size

    def gather_plain(self, value: Any) -> list[Any]:
        """The plain values that all give, by rank."""
        gathered: list[Any] = self.group.gather(value)
        return gathered

    def gather(self, value: Any) -> list[Any]:
        """What all give, by rank: nested dicts, lists and tuples of plain values and NumPy arrays."""
        if self.size == 1:
            return [value]
        return [unpacked(message) for message in self.gather_plain(packed(value))]

    # -- random numbers --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Models that are made from here on begin alike in all processes."""
        if self.seed is not None:
            self.seed_all(key(self.seed, "own loop"))
        elif self.size > 1:
            self.set_random_states(from_arrays(self.gather(to_arrays(self.random_states()))[0]))

    def part(self) -> None:
        """From here on each process but the first draws numbers of its own, such as those of dropout."""
        if self.rank > 0:
            self.seed_all(key(_text(to_arrays(self.random_states())), "process", self.rank))

    def random_states(self) -> dict[str, Any]:
        """Of the global generators of Python, NumPy and frameworks."""
        return RandomStates(None).states(frameworks=True)

    def set_random_states(self, states: Mapping[str, Any]) -> None:
        """Set what `random_states` gave."""
        RandomStates(None).load(states)

    def seed_all(self, seed: int) -> None:
        """Seed the global generators of Python, NumPy and the framework of the loop."""
        random.seed(seed)
        np.random.seed(seed % 2**32)
        self._seed_framework(seed)

    def order(self, generators: RandomStates, states: Mapping[str, Any], number: int | None) -> Order:
        """What an epoch draws its order from; the same in all processes.

        Args:
            generators: those of a loader count, too.
            states: of all of them as the epoch begins.
            number: of the epoch where it was set by the user.
        """
        if number is not None:
            return _SeededOrder(self, key(self.seed or 0, "order", number))
        if self.size == 1:
            return Order()
        first = self.gather(to_arrays(states) if self.rank == 0 else {})[0]
        return _SharedOrder(self, generators, first)


class _SharedOrder(Order):
    """The generators of the first process, in all."""

    def __init__(self, processes: LoopProcesses, generators: RandomStates, arrays: Mapping[str, np.ndarray]) -> None:
        self._processes, self._generators, self._arrays = processes, generators, arrays
        self.key = key(_text(arrays), "stream")

    @contextmanager
    def drawing(self) -> Iterator[None]:
        if self._processes.rank == 0:  # they are as they were told
            yield
            return
        kept = self._processes.random_states()
        self._generators.load(from_arrays(self._arrays))
        try:
            yield
        finally:
            self._processes.set_random_states(kept)


class _SeededOrder(Order):
    """Generators that are seeded for an epoch of a given number, and are afterwards what they were."""

    def __init__(self, processes: LoopProcesses, seed: int) -> None:
        self._processes, self.key = processes, seed

    @contextmanager
    def drawing(self) -> Iterator[None]:
        kept = self._processes.random_states()
        self._processes.seed_all(self.key)  # type: ignore[arg-type]
        try:
            yield
        finally:
            self._processes.set_random_states(kept)


def _text(arrays: Mapping[str, np.ndarray]) -> str:
    return "".join(array.tobytes().hex() for array in arrays.values())
