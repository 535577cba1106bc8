"""A segment at work in torch: whole training steps in one call, or forward, pullback and apply one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyaccel.backend import CompileEstimate
from anyaccel.device import Device
from anyaccel.errors import CompileError
from anyaccel.segment import LossTerm, NodeState, Segment
from anyaccel_torch.eager_steps import PlainSteps, blocks
from anyaccel_torch.error_translation import telling
from anyaccel_torch.forward_plan import Wiring, for_all, members_of, modules_of, states_of
from anyaccel_torch.losses import BoundLoss, bind
from anyaccel_torch.module_state import parameters, parts, seeds
from anyaccel_torch.optimizers import GroupOptimizer, Kept
from anyaccel_torch.single import OneByOne
from anyaccel_torch.state_guard import Buffers, Gradients, Lent, Modes, RandomState, seed

if TYPE_CHECKING:
    from anyaccel_torch.compiling import Compiled, Work
    from anyaccel_torch.compiling.spec import Whole

# Rows are gathered for many steps at once, so that a step pays for no gather; this bounds what that holds.
BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What `TorchProgram.restore` goes back to."""

    parameters: list[Tensor]
    buffers: Buffers
    groups: list[Kept]
    random: RandomState


class TorchProgram(OneByOne):
    """Works on the user's own modules in place; their modes and `requires_grad` flags are as before after `release`.

    Parameters of the groups' nodes (and of own losses on them) are trained, but for those whose `requires_grad` the
    user has switched off; each is trained once, in whatever nodes it is. A node with `trainable=False` stays in
    evaluation mode, BatchNorm and dropout included, and passes gradients on without taking any. Torch's global random
    state is this program's until `release`.

    Args:
        segment: what to compute; its models are placed.
        torch_device: how torch calls a device.

    Raises:
        SpecError: an optimizer or loss that torch lacks.
    """

    supports_microbatching = True

    def __init__(self, segment: Segment, torch_device: Callable[[Device], torch.device]) -> None:
        self.segment = segment
        self._wiring = Wiring(segment, torch_device)
        self._losses = [self._bound(term, torch_device(term.device)) for term in segment.losses]
        self._outputs = [self._wiring.slot(name) for name in segment.outputs]
        self._pulled = [list(segment.inputs).index(name) for name in segment.needs_pullback]
        self._rest = [None] * (self._wiring.size - len(segment.inputs))
        self._devices = {torch_device(operation.device) for operation in segment.operations}
        self._places = self._devices | {torch_device(device) for _, device in segment.inputs.values()}
        self._modules = modules_of(segment, self._losses)
        self._seeds = [each for module in self._modules for each in seeds(module)]
        self._modes, self._random = Modes(self._modules), RandomState(self._devices, self._seeds)
        self._groups = self._made_groups()
        self._trained = [parameter for group in self._groups for parameter in group.parameters]
        held = [parameter for module in self._modules for parameter in parameters(module).values()]
        self._flags = Gradients(held) if self._groups else None
        if self._flags is not None:  # where nothing is trained, another program may have set the flags: leave them
            self._flags.only(self._trained)
        steppers = [group.stepper(clip=True) for group in self._groups]
        self._plain = PlainSteps(segment.label, self._wiring.runs, self._losses, steppers, self._trained)
        self._compiled: dict[tuple[int, int], Compiled] = {}
        self._whole: Whole | None = None
        self._seen: tuple[float, int] | None = None
        self._refused = False
        self._lent = Lent(segment)
        self._final: dict[str, NodeState] | None = None

    def _bound(self, term: LossTerm, device: torch.device) -> BoundLoss:
        return bind(term, [self._wiring.slot(name, device) for name in term.inputs], device)

    def _made_groups(self) -> list[GroupOptimizer]:
        seen: set[int] = set()
        states = states_of(self.segment)
        sparse = any(getattr(part, "sparse", False) for module in self._modules for part in parts(module))
        return [
            GroupOptimizer(group, members_of(self.segment, self._losses, group.nodes, seen), states, sparse=sparse)
            for group in self.segment.groups
        ]

    def seed(self, key: int) -> None:
        """As `Program.seed`, for the CPU and the devices of the segment; other devices' generators go on."""
        seed(self._devices, key, self._seeds)

    # -- whole steps -----------------------------------------------------------------------------------------------

    def train_steps(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        n_microbatches: int = 1,
    ) -> Any:
        """As `MultiStepProgram.steps`; plain ones give the same numbers, to the bit, as a loop by hand over the same rows.

        Compiled ones do to rounding; dropout is the same on the CPU. Parts that cannot be equal are as equal as can be.
        """
        self._enter(training=True)
        with telling(f"a training step of {batch_size} rows in segment {self.segment.label!r}"):
            done, table = self._compiled_steps(columns, orders, start, n_steps, batch_size, n_microbatches)
            if done == n_steps and table:
                return torch.cat(table) if len(table) > 1 else table[0]
            begun = time.perf_counter()
            values = self._batches(columns, orders, start + done * batch_size, n_steps - done, batch_size)
            found = self._plain.whole(values) if n_microbatches == 1 else self._plain.in_parts(values, n_microbatches)
            self._note((time.perf_counter() - begun) / max(1, n_steps - done), batch_size)
            stacked = self._stacked(found)
            return torch.cat([*table, stacked]) if table else stacked

    def _note(self, seconds: float, batch: int) -> None:
        """What a plain step takes: the least that was seen, as anything else may have run beside it."""
        if self._seen is None or batch > self._seen[1] or (batch == self._seen[1] and seconds < self._seen[0]):
            self._seen = seconds, batch

    def _batches(
        self, columns: Sequence[Tensor], orders: Sequence[Tensor], start: int, count: int, batch: int
    ) -> Iterator[list[Any]]:
        for block in blocks(columns, orders, start, start + count * batch, batch, BLOCK_BYTES):
            for rows in zip(*[torch.split(column, batch) for column in block], strict=True):
                yield [*rows, *self._rest]

    def _compiled_steps(
        self, columns: Sequence[Tensor], orders: Sequence[Tensor], start: int, count: int, batch: int, parts: int
    ) -> tuple[int, list[Tensor]]:
        """As many steps as the compiled way takes, from the first; how many, and tables of their losses."""
        compiled = self._compiled.get((batch, parts))
        if compiled is None or count == 0 or not compiled.fits():
            return 0, []
        found = compiled.steps(blocks(columns, orders, start, start + count * batch, batch, BLOCK_BYTES))
        tables = [torch.stack(losses, dim=1) for losses in found]
        return sum(map(len, tables)), tables

    def estimate_compile(self, max_steps: int) -> CompileEstimate | None:
        """As `MultiStepProgram.offer`: from the time of the plain steps that there were, and from compilations before."""
        device = self._one_device()
        if self.segment.compile == "off" or max_steps < 2 or self._compiled or self._refused or device is None:
            return None
        from anyaccel_torch.compiling import estimate

        work = self._work(device)
        return estimate.offer(work, estimate.kind_of(work, self._seen[1] if self._seen is not None else 0))

    def compile(self, columns: Sequence[Any], orders: Sequence[Any], batch_size: int, n_microbatches: int = 1) -> None:
        """As `MultiStepProgram.compile`; `compiled_as` says then in which way. An interrupt leaves all as it was.

        A smaller batch than one that is compiled already (the last of an epoch) stays plain: it would not pay.

        Raises:
            CompileError: it cannot be, or brings nothing; says why.
        """
        found = self._compiled.get((batch_size, n_microbatches))
        if any(size > batch_size and pieces == n_microbatches for size, pieces in self._compiled) or (
            found and found.fits()
        ):
            return
        device = self._one_device()
        if self.segment.compile == "off" or device is None:
            asked = f"steps of segment {self.segment.label!r} cannot be compiled"
            there = f"compile={self.segment.compile!r}; devices: {', '.join(sorted(map(str, self._places)))}"
            raise CompileError(asked, available=there, hint="only steps on one CPU or CUDA device can be")
        from anyaccel_torch.compiling import compiled, estimate

        self._enter(training=True)
        self.zero_grad()
        rows = self._one_batch(columns, orders, batch_size)
        work = self._work(device)
        try:
            with telling(f"compiled steps of {batch_size} rows in segment {self.segment.label!r}"):
                made = compiled(work, rows, n_microbatches)
        except CompileError:
            self._refused = True  # what failed once is not offered again
            raise
        self._compiled[batch_size, n_microbatches] = made
        estimate.remember(estimate.kind_of(work, batch_size), made.seconds)

    @property
    def compiled_as(self) -> str:
        """How the steps compiled last are run, in words; `""` where none are."""
        return next((made.text for made in reversed(self._compiled.values())), "")

    def _one_device(self) -> torch.device | None:
        """The segment's only device, if it is one that steps are compiled for."""
        if len(self._places) != 1 or not self._losses or not self._trained:
            return None
        (device,) = self._places
        return device if device.type in ("cpu", "cuda") else None

    def _one_batch(self, columns: Sequence[Tensor], orders: Sequence[Tensor], batch: int) -> list[Tensor]:
        rows = next(blocks(columns, orders, 0, batch, batch, BLOCK_BYTES))
        if any(len(row) < batch for row in rows):
            there = f"the shortest order has {min(map(len, rows))}"
            raise CompileError(f"steps of {batch} rows cannot be compiled: there is no whole batch", available=there)
        return rows

    def _work(self, device: torch.device) -> Work:
        from anyaccel_torch.compiling.spec import Whole, Work

        if self._whole is None:
            self._whole = Whole(list(self._modules), self._wiring.runs, self._losses)
        plain = self._seen[0] if self._seen is not None else 0.0
        return Work(self.segment, self._whole, self._losses, self._groups, device, len(self._rest), plain)

    def _stacked(self, found: list[Tensor]) -> Tensor:
        width = len(self._losses)
        if not found:
            return torch.empty(0, width, device=next(iter(self._devices), None))
        columns = [torch.stack(found[i::width]) for i in range(width)]
        return torch.stack([column.to(columns[0].device) for column in columns], dim=1)

    # -- state -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """As `Program.snapshot`; copies on the devices where things are."""
        with telling(f"a snapshot of segment {self.segment.label!r}"):
            return Snapshot(
                [parameter.detach().clone() for parameter in self._trained],
                Buffers(self._modules),
                [group.snapshot() for group in self._groups],
                RandomState(self._devices),
            )

    @torch.no_grad()
    def restore(self, snapshot: Snapshot) -> None:
        """As `Program.restore`; gradients are forgotten."""
        self.zero_grad()
        with telling(f"going back to a snapshot of segment {self.segment.label!r}"):
            for parameter, kept in zip(self._trained, snapshot.parameters, strict=True):
                parameter.copy_(kept)
            snapshot.buffers.restore()
            for group, was in zip(self._groups, snapshot.groups, strict=True):
                group.restore(was)
            snapshot.random.restore()

    def optimizer_states(self) -> dict[str, NodeState]:
        """As `Program.states`; copies, until `release` has handed out the tensors themselves."""
        return self._final if self._final is not None else self._states(copies=True)

    def close(self) -> dict[str, NodeState]:
        """As `Program.release`; modes, `requires_grad` flags and torch's random state are as they were at `build`."""
        if self._final is None:
            self.zero_grad()
            self._final = self._states(copies=False)
            if self._flags is not None:
                self._flags.restore()
            self._modes.restore()
            self._random.restore()
        return self._final

    def _states(self, *, copies: bool) -> dict[str, NodeState]:
        found: dict[str, NodeState] = {}
        for group in self._groups:
            found |= group.states(copies=copies)
        return for_all(self.segment, found)
