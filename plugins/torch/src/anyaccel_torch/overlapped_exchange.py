"""Overlapped exchange: gradients that are exchanged in buckets while the backward pass computes others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from anyaccel.errors import FrameworkError
from anyaccel_torch.gradient_buckets import (
    BUCKET_VARIABLE,
    AllReduce,
    Bucket,
    Head,
    buckets_of,
    exchange_in_buckets,
)


class OverlappedExchange:
    """The gradients of one program, of which each bucket is launched as soon as its last gradient is there.

    Buckets are launched in one order, which is the same in all replicas whatever the order of their gradients: what is
    missing at the end of a pass, and what waits for it, follows then. In the first pass it is seen in which order the
    gradients come; the buckets are made by that of the first replica, as DistributedDataParallel does it.

    Args:
        parameters: those that are trained.
        max_bytes: of a bucket.
        all_reduce: begins to add up a tensor.
    """

    def __init__(self, parameters: Sequence[Tensor], max_bytes: float, all_reduce: AllReduce) -> None:
        self._parameters, self._max_bytes, self._all_reduce = tuple(parameters), max_bytes, all_reduce
        self._buckets: list[Bucket] | None = None  # None until the order is known
        self._overlaps = True
        self._bucket_of = [0] * len(self._parameters)
        self._order: list[int] = []
        self._weight = self._factor = 1.0
        self._is_pending = self._expects = self._is_passing = False
        self._seen: set[int] = set()
        self._missing: list[int] = []
        self._n_launched = 0
        self._head: Head | None = None
        self._repeated = -1
        self._failure: RuntimeError | None = None
        self._handles: list[Any] = [
            parameter.register_post_accumulate_grad_hook(partial(self._arrived, i))  # type: ignore[no-untyped-call]
            for i, parameter in enumerate(self._parameters)
        ]

    def expect(self, weight: float, factor: float) -> None:
        """The next backward pass is the last of a step.

        Args:
            weight: of this replica in the means.
            factor: what its gradients are multiplied by.
        """
        self._weight, self._factor = weight, factor
        self._is_pending, self._expects, self._is_passing = True, True, False
        self._seen, self._n_launched, self._head, self._repeated, self._failure = set(), 0, None, -1, None
        self._missing = [len(bucket.parameters) for bucket in self._buckets or ()]

    def begin_pass(self) -> None:
        """A backward pass begins."""
        self._is_passing = self._expects

    def end_pass(self) -> None:
        """It is over: what was not launched in it follows."""
        if self._is_passing:
            self._is_passing = self._expects = False
            if self._overlaps and self._buckets is not None:
                self._flush()

    def _arrived(self, i: int, _: Tensor) -> None:
        """A parameter has its gradient."""
        if not self._is_passing:
            return
        if i in self._seen:
            if self._buckets is None or self._bucket_of[i] < self._n_launched:
                self._repeated = i
            return
        self._seen.add(i)
        if self._buckets is None:
            self._order.append(i)
        elif self._overlaps:
            self._missing[self._bucket_of[i]] -= 1
            while self._n_launched < len(self._missing) and self._missing[self._n_launched] == 0:
                self._launch_next()

    def _launch_next(self) -> None:
        assert self._buckets is not None
        bucket = self._buckets[self._n_launched]
        self._n_launched += 1
        bucket.launch(self._weight * self._factor, self._start)

    def _flush(self) -> None:
        assert self._buckets is not None
        while self._n_launched < len(self._buckets):
            self._launch_next()
        self._head = Head(self._buckets)
        present = [is_present for bucket in self._buckets for is_present in bucket.present]
        self._head.launch(self._weight, present, self._start)

    def _start(self, tensor: Tensor) -> Any:
        """Begin to add up; that another replica is lost is kept for `finish`, as a backward pass knows no step."""
        if self._failure is None:
            try:
                return self._all_reduce(tensor)
            except RuntimeError as error:
                self._failure = error
        return None

    @property
    def observation(self) -> list[Any] | None:
        """After the first pass: the order of the gradients, and whether one came twice; then None."""
        return None if self._buckets is not None else [self._order, self._repeated >= 0]

    def arrange(self, observations: Sequence[Sequence[Any]]) -> None:
        """Make the buckets by what all replicas have seen."""
        seen = dict.fromkeys(observations[0][0])
        order = [*seen, *(i for i in range(len(self._parameters)) if i not in seen)]
        self._overlaps = not any(came_twice for _, came_twice in observations)
        if not self._overlaps:
            self.close()
        self._buckets = buckets_of([self._parameters[i] for i in order], self._max_bytes)
        positions = {id(parameter): n for n, bucket in enumerate(self._buckets) for parameter in bucket.parameters}
        self._bucket_of = [positions[id(parameter)] for parameter in self._parameters]

    def finish(self, weight: float) -> None:
        """Replace the gradients by their means over all replicas; `weight` is for those that nobody expected.

        Raises:
            FrameworkError: a gradient came when its bucket was on its way.
            RuntimeError: another replica does not answer.
        """
        assert self._buckets is not None
        if not self._is_pending:
            self._weight, self._factor = weight, 1.0
        head, self._head, self._is_pending, self._expects = self._head, None, False, False
        if self._failure is not None:
            raise self._failure
        if self._repeated >= 0 and self._overlaps:
            raise _came_twice(self._parameters[self._repeated])
        if head is None:
            factor = self._weight * self._factor
            exchange_in_buckets(self._buckets, factor, self._weight, self._all_reduce, means=True)
            return
        total, every = head.sums
        for bucket, counts in zip(self._buckets, every, strict=True):
            bucket.finish(total, counts)

    def close(self) -> None:
        """Leave the parameters."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _came_twice(parameter: Tensor) -> FrameworkError:
    return FrameworkError(
        f"the gradient of a parameter of shape {list(parameter.shape)} came twice in one backward pass, and did not in "
        "the first step",
        cause="gradients in one backward pass each, which are exchanged while it goes on",
        hint=f"checkpoint with use_reentrant=False, or exchange all gradients after the pass: {BUCKET_VARIABLE}=inf",
    )
