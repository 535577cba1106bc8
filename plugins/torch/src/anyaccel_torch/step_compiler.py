"""Compilation of a program's training steps: decide whether it pays off, compile, and run compiled steps.

`anyaccel_torch.compiling`, which imports torch's compiler, is imported when a phase first asks about it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from anyaccel.adapter.python_values import Values, changed_paths
from anyaccel.backend import CompileEstimate
from anyaccel.errors import CompileError
from anyaccel.segment import Segment
from anyaccel_torch.error_translation import translate_errors
from anyaccel_torch.forward_plan import ForwardPlan
from anyaccel_torch.loss_scaling import UNSCALED, LossScaling
from anyaccel_torch.losses import BoundLoss
from anyaccel_torch.module_traits import has_dtensors
from anyaccel_torch.optimizers import GroupOptimizer
from anyaccel_torch.placement import find_offload

if TYPE_CHECKING:
    from anyaccel_torch.compiling.spec import CompileRequest, SegmentModule
    from anyaccel_torch.compiling.steps import CompiledSteps

# Rows are gathered for many steps at once, which saves a gather per step; this bounds the memory for it.
BLOCK_BYTES = 64 * 2**20


def gathered_blocks(
    columns: Sequence[Tensor], orders: Sequence[Tensor], start: int, stop: int, batch: int, max_bytes: int
) -> Iterator[list[Tensor]]:
    """Yield rows `order[start:stop]` of each column, gathered for several batches together, in at most `max_bytes`."""
    row_bytes = sum(math.prod(column.shape[1:]) * column.element_size() for column in columns)
    n_rows = batch * max(1, max_bytes // max(1, row_bytes * batch))
    for begin in range(start, stop, n_rows):
        end = min(begin + n_rows, stop)
        yield [column.index_select(0, order[begin:end]) for column, order in zip(columns, orders, strict=True)]


class StepCompiler:
    """The compiled steps of a program, by batch size and number of micro-batches.

    Args:
        segment: Segment of the program.
        plan: Its operations.
        modules: All modules of the program.
        losses: Its losses.
        groups: Its parameter groups.
        devices: Devices of its operations and inputs.
        scaling: Loss scaling of the program.
    """

    def __init__(
        self,
        segment: Segment,
        plan: ForwardPlan,
        modules: Sequence[nn.Module],
        losses: Sequence[BoundLoss],
        groups: Sequence[GroupOptimizer],
        devices: set[torch.device],
        scaling: LossScaling = UNSCALED,
    ) -> None:
        self._segment, self._plan, self._modules = segment, plan, modules
        self._losses, self._groups, self._devices, self._scaling = losses, groups, devices, scaling
        self._on_host = all(device.type == "cpu" for device in devices)
        self._compiled: dict[tuple[int, int], CompiledSteps] = {}
        self._segment_module: SegmentModule | None = None
        self._eager_time: tuple[float, int] | None = None  # seconds a step, and its batch size
        self._failed = False
        self.exchanges = False
        """Whether processes exchange gradients in each step."""
        self._captured_values: Values | None = None

    def record_eager_time(self, seconds: float, processor: float, n_steps: int, batch: int) -> None:
        """Record the time of an uncompiled step: the least at the largest batch, because other work may disturb it.

        Args:
            seconds: Elapsed time of some steps.
            processor: Processor time of these steps, which is used on a CPU: other processes may take some of the
                elapsed time.
            n_steps: Their number.
            batch: Rows of each.
        """
        seconds = (min(seconds, processor) if self._on_host and processor else seconds) / n_steps
        known = self._eager_time
        if known is None or batch > known[1] or (batch == known[1] and seconds < known[0]):
            self._eager_time = seconds, batch

    def run(
        self, columns: Sequence[Tensor], orders: Sequence[Tensor], start: int, n_steps: int, batch: int, n_micro: int
    ) -> tuple[int, list[Tensor]]:
        """Do as many steps as are compiled, from the first; returns how many, and tables of their losses."""
        compiled = self._compiled.get((batch, n_micro))
        if compiled is None or n_steps == 0 or not compiled.fits():
            return 0, []
        calls = compiled.run(gathered_blocks(columns, orders, start, start + n_steps * batch, batch, BLOCK_BYTES))
        tables = [torch.stack(losses, dim=1) for losses in calls]
        return sum(map(len, tables)), tables

    def has_compiled(self, batch: int, n_micro: int) -> bool:
        """Whether steps of this size are compiled."""
        return (batch, n_micro) in self._compiled

    def estimate(self, max_steps: int) -> CompileEstimate | None:
        """Estimate the gain of compiling, from measured uncompiled steps and from earlier compilations.

        None before an uncompiled step was measured: nothing can be said then, and torch's compiler is not imported.
        """
        if self._segment.compile == "off" or max_steps < 2 or self._compiled or self._failed or not self._eager_time:
            return None
        device = self._compilable_device()
        if device is None:
            return None
        from anyaccel_torch.compiling.estimate import estimate_compile

        return estimate_compile(self._request(device), self._eager_time[1])

    def needs_compiling(self, batch: int, n_micro: int) -> bool:
        """Whether steps of this size are to be compiled; not those of a last, smaller batch, as it would not pay."""
        compiled = self._compiled.get((batch, n_micro))
        is_smaller = any(size > batch and parts == n_micro for size, parts in self._compiled)
        return not is_smaller and not (compiled is not None and compiled.fits())

    def check(self) -> torch.device:
        """Return the device to compile for.

        Raises:
            CompileError: compiling is off, or the segment is not on one CPU or CUDA device.
        """
        device = self._compilable_device()
        if self._segment.compile == "off" or device is None:
            devices = ", ".join(sorted(map(str, self._devices)))
            reason = self._uncompilable()
            if reason:
                raise CompileError(
                    f"training steps of segment {self._segment.label!r} cannot be compiled: {reason}",
                    hint="leave compile out: they run uncompiled",
                )
            raise CompileError(
                f"training steps of segment {self._segment.label!r} cannot be compiled: "
                f"compile={self._segment.compile!r}, devices: {devices}",
                hint="set compile='auto', and train at least one node, with all nodes on one CPU or CUDA "
                "device and without constraints of Keras",
            )
        return device

    def compile(
        self, columns: Sequence[Tensor], orders: Sequence[Tensor], batch: int, n_micro: int, device: torch.device
    ) -> None:
        """Compile steps of this size.

        Raises:
            CompileError: Compilation fails, or does not pay off; the message has the reason.
        """
        from anyaccel_torch.compiling.estimate import remember, request_key
        from anyaccel_torch.compiling.steps import compile_steps

        rows = next(gathered_blocks(columns, orders, 0, batch, batch, BLOCK_BYTES))
        if any(len(column) < batch for column in rows):
            raise CompileError(
                f"steps of {batch} rows cannot be compiled: the shortest order has {min(map(len, rows))} rows",
                hint="use a smaller batch_size",
            )
        request = self._request(device)
        try:
            with translate_errors(f"compiled steps of {batch} rows in segment {self._segment.label!r}"):
                compiled = compile_steps(request, rows, n_micro)
        except CompileError:
            self._failed = True  # what failed once is not offered again
            raise
        if device.type == "cuda":
            self.renew()
            self.watch()
        self._compiled[batch, n_micro] = compiled
        remember(request_key(request, batch), compiled.compile_seconds)

    def watch(self) -> None:
        """Remember the Python values that steps have read which were captured just now."""
        from anyaccel_torch.compiling.watched_values import watched_values

        self._captured_values = watched_values(self._segment, self._modules)

    def renew(self) -> list[str]:
        """Return changed Python values for captured steps; code of torch's compiler has guards."""
        if self._captured_values is None:
            return []
        before = self._captured_values
        self.watch()
        changed = changed_paths(before, self._captured_values)
        if changed:
            self._compiled.clear()
        return changed

    @property
    def description(self) -> str:
        """A description of how the steps compiled last run; `""` if none were compiled."""
        return next((compiled.description for compiled in reversed(self._compiled.values())), "")

    def _compilable_device(self) -> torch.device | None:
        """Return the segment's only device, if steps are compiled for such."""
        trained = any(group.parameters for group in self._groups)
        constrained = any(group.constraints for group in self._groups)
        if len(self._devices) != 1 or not self._losses or not trained or constrained or self._uncompilable():
            return None
        (device,) = self._devices
        return device if device.type in ("cpu", "cuda") else None

    def _uncompilable(self) -> str:
        """Return what compiled steps do not support: an exchange of gradients, offloaded or sharded weights,
        recomputation on a GPU; or `""`.
        """
        if self.exchanges:
            return "replicas exchange gradients within each step"
        nodes = (operation for operation in self._segment.operations if operation.model is not None)
        resting = next((operation.label for operation in nodes if find_offload(operation.model) is not None), None)
        if resting is not None:
            return f"weights of node {resting!r} are offloaded, and copied for each step"
        if any(map(has_dtensors, self._modules)):
            return "parameters are sharded over processes, so their steps must stay equal"
        recomputed = self._segment.precision is not None and self._segment.precision.recomputed
        if recomputed and not self._on_host:
            return "values are recomputed (remat), which a captured graph does not support"
        return ""

    def _request(self, device: torch.device) -> CompileRequest:
        from anyaccel_torch.compiling.spec import CompileRequest, SegmentModule

        if self._segment_module is None:
            self._segment_module = SegmentModule(self._modules, self._plan.runs, self._losses)
        return CompileRequest(
            segment=self._segment,
            module=self._segment_module,
            losses=self._losses,
            groups=self._groups,
            device=device,
            n_computed=self._plan.size - len(self._segment.inputs),
            eager_seconds=self._eager_time[0] if self._eager_time else 0.0,
            scaling=self._scaling,
            forwards=self._plan.forwards,
        )
