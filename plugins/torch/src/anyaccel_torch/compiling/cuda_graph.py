"""Steps captured in a CUDA graph and replayed: no Python, and one launch, for several steps.

This has not run on a GPU yet. It is written by torch's documentation of `torch.cuda.CUDAGraph`: what is captured reads
and writes the same memory in every replay, and random numbers go on from replay to replay by themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyaccel_torch.compiling import strategies
from anyaccel_torch.compiling.flat_state import Held
from anyaccel_torch.compiling.spec import Whole

_WARM = 3  # calls before a capture, in which libraries choose their algorithms


class Graph:
    """`length` steps, captured over memory of its own: a replay copies what it needs there, and back.

    Args:
        whole: the modules and what is done with them.
        held: what the steps read and change.
        length: steps in a replay.
        rows: the inputs of one batch.
    """

    def __init__(self, whole: Whole, held: Held, length: int, rows: list[Tensor]) -> None:
        device = rows[0].device
        self._xs = [*[row.expand(length, *row.shape).contiguous() for row in rows], held.numbers(length, device)]
        self._state = held.copies()
        steps = strategies.writing(held.plan)
        beside: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(beside), torch.no_grad():
            for _ in range(_WARM):
                steps(whole, self._state, self._xs)
        torch.cuda.current_stream(device).wait_stream(beside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph), torch.no_grad():
            self._losses: list[Tensor] = steps(whole, self._state, self._xs)

    def replay(self, state: Any, xs: list[Tensor]) -> list[Tensor]:
        """The losses [steps] each; `state` is changed in place."""
        theirs, ours = strategies.tensors_of(state), strategies.tensors_of(self._state)
        with torch.no_grad():
            torch._foreach_copy_([*ours, *self._xs], [*theirs, *xs])
            self._graph.replay()
            torch._foreach_copy_(theirs, ours)
            return [loss.clone() for loss in self._losses]
