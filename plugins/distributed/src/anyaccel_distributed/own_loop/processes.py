"""Processes of a loop: the values that they exchange, apart from gradients, and the random numbers of each."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from anyaccel.data.streaming.random_states import RandomStates, from_arrays, to_arrays
from anyaccel.errors import DataError, FrameworkError, OutOfMemoryError
from anyaccel.rng import key
from anyaccel_distributed.own_loop.plain_state import packed, unpacked

_OUT_OF_MEMORY = re.compile(
    "OutOfMemory|out of memory|ResourceExhausted|RESOURCE_EXHAUSTED|can't allocate memory|not enough memory"
)
"""Pattern in the out-of-memory errors of frameworks."""


class _OutOfMemoryElsewhereError(OutOfMemoryError):
    """Another process is out of memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python or a framework says that memory is exhausted."""
    return isinstance(error, MemoryError) or bool(_OUT_OF_MEMORY.search(f"{type(error).__name__}: {error}"))


class Order:
    """The source of an epoch's random numbers: by default the global generators, as in a plain loop.

    Attributes:
        key: Key of the random numbers that later batches draw while the loop computes; None uses the global generators.
    """

    key: int | None = None

    def drawing(self) -> AbstractContextManager[Any]:
        """Return the context for drawing the order of the rows, and the first batch."""
        return nullcontext()


class LoopProcesses:
    """The processes that compute a loop together, from the point of view of one of them.

    Args:
        group: Gathers plain values; see `ReplicaGroup`.
        seed: Seed of all random numbers; None uses the state of the generators.
        seed_framework: Function that seeds the framework's global generators, if it has any.

    Attributes:
        rank, size: Rank of this process, from 0, and number of processes.
        group, seed: As passed.
        is_trying: Whether a function runs in `try_together`.
    """

    def __init__(self, group: Any, seed: int | None, seed_framework: Callable[[int], object]) -> None:
        self.group, self.seed, self._seed_framework = group, seed, seed_framework
        self.rank: int = group.rank
        self.size: int = group.size
        self.is_trying = False

    def gather_plain(self, value: Any, call: str = "") -> list[Any]:
        """Return the plain values of all processes, by rank.

        Args:
            value: Value of this process.
            call: The call of the loop that gathers, the same in all processes.

        Raises:
            FrameworkError: The processes are in different calls.
            OutOfMemoryError: Another process is out of memory; only within `try_together`.
        """
        if self.size == 1:
            return [value]
        every = self.group.gather([call, "", value])
        for rank, (_, problem, _) in enumerate(every):
            if problem and self.is_trying:
                raise _OutOfMemoryElsewhereError(
                    f"process {rank} is out of memory: {problem}", hint="use smaller batches in all processes"
                )
        calls = [other[0] for other in every]
        if len(set(calls)) > 1:
            told = ", ".join(f"process {rank} {other or 'in prepare()'}" for rank, other in enumerate(calls))
            raise FrameworkError(
                f"the processes are in different calls of the loop: {told}",
                cause="each would get values of another call",
                hint="make the same calls in all processes, in the same order, and none inside "
                "`if loop.is_main_process:`",
            )
        return [other for _, _, other in every]

    def first_difference(self, digests: Mapping[str, str], call: str) -> tuple[str, int] | None:
        """Return the first name with another digest than in process 0, or missing in one, and the rank; None if all
        processes have the same.

        Args:
            digests: Digests of this process, by name.
            call: See `gather_plain`.
        """
        every = self.gather_plain(dict(digests), call)
        for rank, other in enumerate(every):
            for name in {**every[0], **other}:
                if every[0].get(name) != other.get(name):
                    return name, rank
        return None

    def check_memory(self) -> None:
        """Within `try_together`, end if another process is out of memory.

        Called before each exchange of tensors. A process that is out of memory takes part only in the next exchange of
        plain values, so that no other waits for its tensors.

        Raises:
            OutOfMemoryError: Another process is out of memory.
        """
        if self.is_trying:
            self.gather_plain(None, "before an exchange of tensors")

    def try_together(self, call: Callable[[], Any]) -> Any:
        """Return the result of a function that all processes call; if one runs out of memory, it ends in all of them.

        Raises:
            OutOfMemoryError: Another process is out of memory.
            Exception: The error of this process.
        """
        self.is_trying = self.size > 1
        try:
            result = call()
            self.check_memory()
            return result
        except Exception as error:
            if self.is_trying and is_out_of_memory(error) and not isinstance(error, _OutOfMemoryElsewhereError):
                text = f"{type(error).__name__}: {error}".partition("\n")[0]
                self.group.gather(["", text[:100], None])
            raise
        finally:
            self.is_trying = False

    def gather(self, value: Any, call: str) -> list[Any]:
        """Return the values of all processes, by rank: nested dicts, lists and tuples of plain values and arrays.

        Args:
            value, call: See `gather_plain`.
        """
        if self.size == 1:
            return [value]
        return [unpacked(message) for message in self.gather_plain(packed(value), call)]

    # -- random numbers --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make models that are created from here on start equal in all processes."""
        if self.seed is not None:
            self.seed_all(key(self.seed, "own loop"))
        elif self.size > 1:
            self.set_random_states(from_arrays(self.gather(to_arrays(self.random_states()), "in Loop()")[0]))

    def part(self) -> None:
        """Let each process except the first draw different numbers from here on, such as those of dropout."""
        if self.rank > 0:
            self.seed_all(key(_text(to_arrays(self.random_states())), "process", self.rank))

    def random_states(self) -> dict[str, Any]:
        """Return the states of the global generators of Python, NumPy and frameworks."""
        return RandomStates(None).states(frameworks=True)

    def set_random_states(self, states: Mapping[str, Any]) -> None:
        """Restore the result of `random_states`."""
        RandomStates(None).load(states)

    def seed_all(self, seed: int) -> None:
        """Seed the global generators of Python, NumPy and the framework of the loop."""
        random.seed(seed)
        np.random.seed(seed % 2**32)
        self._seed_framework(seed)

    def order(
        self,
        generators: RandomStates,
        states: Mapping[str, Any],
        number: int | None,
        n_batches: int | None,
        marks: Mapping[str, Sequence[float]],
    ) -> Order:
        """Return the source of an epoch's order, which is the same in all processes.

        Args:
            generators: Generators of a loader, in addition to the global ones.
            states: States of all of them at the start of the epoch.
            number: Number of the epoch if the user has set it.
            n_batches: Number of batches; None if it is unknown.
            marks: Numbers that must be equal in all processes, by what they belong to.

        Raises:
            DataError: The processes have different numbers of batches, or different marks.
        """
        first: Mapping[str, np.ndarray] = {}
        if self.size > 1:
            is_needed = self.rank == 0 and number is None
            every = self.gather(
                (n_batches, to_arrays(states) if is_needed else {}, dict(marks)), "at the start of a loop over a loader"
            )
            numbers, first = [other[0] for other in every], every[0][1]
            _check_marks([other[2] for other in every])
            if len(set(numbers)) > 1:
                raise DataError(
                    f"the loader has different numbers of batches in the processes: {', '.join(map(str, numbers))}",
                    hint="create the loader from the whole data set in every process, without a DistributedSampler",
                )
        if number is not None:
            return _SeededOrder(self, key(self.seed or 0, "order", number))
        return Order() if self.size == 1 else _SharedOrder(self, generators, first)


def _check_marks(every: Sequence[Mapping[str, Sequence[float]]]) -> None:
    for rank, marks in enumerate(every):
        for name in {**every[0], **marks}:
            pair = every[0].get(name, ()), marks.get(name, ())
            # on different processors, equal steps round differently
            if len(pair[0]) != len(pair[1]) or not np.allclose(*pair, rtol=1e-3, atol=1e-6, equal_nan=True):
                raise DataError(
                    f"process {rank} has other {name} than process 0",
                    cause="they were changed in one process only, by something else than loop.backward(loss) and "
                    "optimizer.step()",
                    hint="load and change weights in all processes, and step schedules with one value: "
                    "schedule.step(loop.reduce(value))",
                )


class _SharedOrder(Order):
    """The generators of the first process, in all processes."""

    def __init__(self, processes: LoopProcesses, generators: RandomStates, arrays: Mapping[str, np.ndarray]) -> None:
        self._processes, self._generators, self._arrays = processes, generators, arrays
        self.key = key(_text(arrays), "stream")

    @contextmanager
    def drawing(self) -> Iterator[None]:
        if self._processes.rank == 0:  # its generators have these states already
            yield
            return
        kept = self._processes.random_states()
        self._generators.load(from_arrays(self._arrays))
        try:
            yield
        finally:
            self._processes.set_random_states(kept)


class _SeededOrder(Order):
    """Generators that are seeded for an epoch with a set number, and restored afterwards."""

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
