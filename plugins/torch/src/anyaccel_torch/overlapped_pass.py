"""Overlapped pass: the backward pass in which torch's DistributedDataParallel adds up gradients over all replicas."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from anyaccel.errors import FrameworkError
from anyaccel_torch.gradient_buckets import BUCKET_VARIABLE, exchange_dtype

_READY_TWICE = re.compile(r"index (\d+).*marked as ready twice", re.DOTALL)


class BackwardPass:
    """The backward passes of a program that exchanges nothing within them."""

    is_watched = False
    """Whether it is not decided yet if gradients are added up within the pass."""
    sums = False
    """Whether gradients can be added up within the pass."""
    is_expected = False
    """Whether they are in this step."""

    def run(self, roots: Sequence[Tensor], starts: Sequence[Any]) -> None:
        """Accumulate the gradients of some roots, each with its cotangent; None for that of a scalar."""
        if roots:
            torch.autograd.backward(roots, starts)

    def close(self) -> None:
        """Leave the parameters."""


class StepWeight:
    """What part of a step a replica has; the rows of all are added up while the next pass goes forward.

    Args:
        weight: the rows of this replica.
        part: over how many of them its gradients are a mean.

    Raises:
        RuntimeError: another replica does not answer.
    """

    def __init__(self, weight: float, part: float) -> None:
        self._part, self._total = part, torch.tensor(float(weight), dtype=torch.float64)
        self._work: Any = dist.all_reduce(self._total, async_op=True)
        self.failure: Exception | None = None
        """What went wrong within the pass, which knows no step; for `OverlappedPass.finish`."""

    @cached_property
    def factor(self) -> float:
        """What gradients are multiplied by."""
        self._work.wait()
        return self._part / float(self._total)


class OverlappedPass(BackwardPass):
    """The backward passes of a program; in the last of a step, gradients become means over all replicas.

    No module of the user is wrapped: DistributedDataParallel is given the roots of the pass, and a module that holds
    the parameters. The pass of the first step is watched, and exchanges nothing: what is computed again by a reentrant
    checkpoint cannot be found from the roots, and may have its gradient twice; sparse gradients have no place in a
    bucket.

    Args:
        parameters: those that are trained, of one device.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.is_watched, self.is_summable = True, True
        self._parameters = tuple(parameters)
        self._counts = [0] * len(self._parameters)
        self._handles: list[Any] = [
            parameter.register_post_accumulate_grad_hook(partial(self._arrived, i))  # type: ignore[no-untyped-call]
            for i, parameter in enumerate(self._parameters)
        ]
        self._ddp: DistributedDataParallel | None = None
        self._state = _HookState()
        self._has_run = False

    def _arrived(self, i: int, _: Tensor) -> None:
        self._counts[i] += 1

    def decide(self, *, sums: bool, bucket_bytes: float) -> None:
        """Add up gradients from the next step on, or never; the same in all replicas."""
        for handle in self._handles:
            handle.remove()
        self.is_watched, self.sums, self._handles = False, sums, []
        if sums:
            self._ddp = DistributedDataParallel(
                Roots(self._parameters),
                init_sync=False,
                find_unused_parameters=True,  # else one that lacks a gradient never sends its bucket
                bucket_cap_mb=bucket_bytes / 2**20,
            )
            self._ddp.register_comm_hook(self._state, _sum_bucket)

    def expect(self, step: StepWeight) -> None:
        """The next pass is the last of a step."""
        self._state.step, self.is_expected, self._has_run = step, True, False

    def run(self, roots: Sequence[Tensor], starts: Sequence[Any]) -> None:
        if self.is_watched:
            reachable = _variables(roots)
            self._counts = [0] * len(self._parameters)
            super().run(roots, starts)
            self._look(reachable)
        elif self._ddp is None or not self.is_expected or self._has_run:
            super().run(roots, starts)
        else:
            self._sum(self._ddp, roots, starts)

    def _look(self, reachable: set[Tensor]) -> None:
        for parameter, count in zip(self._parameters, self._counts, strict=True):
            if count > 1 or (count and parameter not in reachable):
                self.is_summable = False
            if parameter.grad is not None and parameter.grad.is_sparse:
                self.is_summable = False

    def _sum(self, ddp: DistributedDataParallel, roots: Sequence[Tensor], starts: Sequence[Any]) -> None:
        self._has_run = True
        try:
            with torch.enable_grad():
                ddp.module.use_the_last()
                given = ddp(*roots)
            torch.autograd.backward(given, [*starts, None])
        except RuntimeError as error:
            twice = _READY_TWICE.search(str(error))
            if twice is not None:
                self._state.step.failure = _came_twice(self._parameters[int(twice[1])])
            elif self._state.step.failure is None:
                raise

    def finish(self) -> None:
        """The passes of a step are over.

        Raises:
            FrameworkError: a gradient came when its bucket was on its way.
            RuntimeError: another replica does not answer.
        """
        assert self._ddp is not None
        if not self._has_run:  # this replica has no rows for it, and others have
            self._sum(self._ddp, [], [])
        self.is_expected = False
        if self._state.step.failure is not None:
            raise self._state.step.failure

    def close(self) -> None:
        self.decide(sums=False, bucket_bytes=0.0)
        self._ddp = None  # its hooks go with it


class _HookState:
    """Keeps no wrapper, which would keep it in a circle that Python does not see."""

    step: StepWeight


class Roots(nn.Module):
    """Gives the roots of a backward pass as they are, and one of its own; holds the parameters."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__()
        always, never = (nn.Parameter(torch.zeros((), device=parameters[0].device)) for _ in range(2))
        self.held = nn.ParameterList([*parameters, always, never])

    def forward(self, *roots: Tensor) -> list[Tensor]:
        """With a root that is there also where no other depends on a parameter: this replica takes part."""
        return [*roots, self.held[-2] * 0]

    def use_the_last(self) -> None:
        """Give a gradient to the one that no pass uses.

        Without one that is unused, torch warns on stderr; without its gradient, torch waits in each step for the other
        replicas to know whether some has one.
        """
        torch.autograd.backward(self.held[-1] * 0)


def _sum_bucket(state, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are text
    """Communication hook: the sum over all replicas in at least float32, each times its part of the step."""
    flat, step = bucket.buffer(), state.step
    try:
        wide = flat.to(exchange_dtype(flat)).mul_(step.factor)
        sent = dist.all_reduce(wide, async_op=True)
    except RuntimeError as error:
        step.failure = error
        raise

    def give(future):  # type: ignore[no-untyped-def]
        try:
            future.value()
        except RuntimeError as error:
            step.failure = error
            raise
        return flat if wide is flat else flat.copy_(wide)

    return sent.get_future().then(give)


def _variables(roots: Sequence[Tensor]) -> set[Tensor]:
    """The leaves that an autograd graph reaches."""
    found = {root for root in roots if root.is_leaf}
    nodes = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen: set[Any] = set(nodes)
    while nodes:
        node = nodes.pop()
        if hasattr(node, "variable"):
            found.add(node.variable)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return found


def _came_twice(parameter: Tensor) -> FrameworkError:
    return FrameworkError(
        f"the gradient of a parameter of shape {list(parameter.shape)} came twice in one backward pass, and did not in "
        "the first step",
        cause="gradients in one backward pass each, which are exchanged while it goes on",
        hint=f"checkpoint with use_reentrant=False, or exchange all gradients after the pass: {BUCKET_VARIABLE}=inf",
    )
