"""Steps captured in a CUDA graph and replayed: no Python, and one launch, for several steps.

This has not run on a GPU yet. It follows torch's documentation of `torch.cuda.CUDAGraph`: a replay reads and writes
the memory of the capture, and random numbers advance from replay to replay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyaccel_torch.compiling import strategies
from anyaccel_torch.compiling.flat_state import FlatState
from anyaccel_torch.compiling.spec import SegmentModule

_WARMUP_CALLS = 3  # before a capture, in which libraries choose their algorithms


class CapturedSteps:
    """`length` steps, captured over memory of their own: a replay copies the state there, and back.

    Args:
        module: the modules of the segment.
        flat_state: the state that the steps read and change.
        length: steps in a replay.
        rows: the inputs of one batch.
    """

    def __init__(self, module: SegmentModule, flat_state: FlatState, length: int, rows: list[Tensor]) -> None:
        device = rows[0].device
        repeated = [row.expand(length, *row.shape).contiguous() for row in rows]
        self._xs = [*repeated, flat_state.scalars(length, device)]
        self._state = flat_state.copies()
        steps = strategies.in_place_function(flat_state.spec)
        side_stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side_stream), torch.no_grad():
            for _ in range(_WARMUP_CALLS):
                steps(module, self._state, self._xs)
        torch.cuda.current_stream(device).wait_stream(side_stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph), torch.no_grad():
            self._losses: list[Tensor] = steps(module, self._state, self._xs)

    def replay(self, state: Any, xs: list[Tensor]) -> list[Tensor]:
        """The losses [steps] each; `state` is changed in place."""
        given, captured = strategies.tensors_of(state), strategies.tensors_of(self._state)
        with torch.no_grad():
            torch._foreach_copy_([*captured, *self._xs], [*given, *xs])
            self._graph.replay()
            torch._foreach_copy_(given, captured)
            return [loss.clone() for loss in self._losses]
