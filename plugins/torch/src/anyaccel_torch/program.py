"""A segment at work in torch: whole training steps in one call, or forward, pullback and apply one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyaccel.backend import Stepping
from anyaccel.device import Device
from anyaccel.errors import PhaseError
from anyaccel.segment import LossTerm, NodeState, Segment
from anyaccel_torch.contents import parameters, parts, seeds
from anyaccel_torch.custody import Buffers, Gradients, Lent, Modes, RandomState, seed
from anyaccel_torch.faults import telling
from anyaccel_torch.losses import BoundLoss, bind
from anyaccel_torch.optimizers import GroupOptimizer, Kept
from anyaccel_torch.wiring import Wiring, for_all, members_of, modules_of, states_of

Losses = dict[str, tuple[Tensor, Tensor]]

# Rows are gathered for many steps at once, so that a step pays for no gather; this bounds what that holds.
BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What `TorchProgram.restore` goes back to."""

    parameters: list[Tensor]
    buffers: Buffers
    groups: list[Kept]
    random: RandomState


class TorchProgram(Stepping):
    """Works on the user's own modules in place; their modes and `requires_grad` flags are as before after `release`.

    Parameters of the groups' nodes (and of own losses on them) are trained, but for those whose `requires_grad` the
    user has switched off; each is trained once, in whatever nodes it is. A node with `trainable=False` stays in
    evaluation mode, BatchNorm and dropout included, and passes gradients on without taking any. Torch's global random
    state is this program's until `release`.

    Args:
        segment: what to compute; its models are placed.
        torch_device: how torch calls a device.

    Raises:
        RecipeError: an optimizer or loss that torch lacks.
    """

    def __init__(self, segment: Segment, torch_device: Callable[[Device], torch.device]) -> None:
        self.segment = segment
        self._wiring = Wiring(segment, torch_device)
        self._losses = [self._bound(term, torch_device(term.device)) for term in segment.losses]
        self._outputs = [self._wiring.slot(name) for name in segment.outputs]
        self._pulled = [list(segment.inputs).index(name) for name in segment.needs_pullback]
        self._rest = [None] * (self._wiring.size - len(segment.inputs))
        self._devices = {torch_device(operation.device) for operation in segment.operations}
        self._modules = modules_of(segment, self._losses)
        self._seeds = [each for module in self._modules for each in seeds(module)]
        self._modes, self._random = Modes(self._modules), RandomState(self._devices, self._seeds)
        self._groups = self._made_groups()
        self._trained = [parameter for group in self._groups for parameter in group.parameters]
        held = [parameter for module in self._modules for parameter in parameters(module).values()]
        self._flags = Gradients(held) if self._groups else None
        if self._flags is not None:  # where nothing is trained, another program may have set the flags: leave them
            self._flags.only(self._trained)
        self._steppers = [group.stepper(clip=True) for group in self._groups]
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

    def steps(self, columns: Sequence[Any], orders: Sequence[Any], start: int, count: int, batch: int) -> Any:
        """As `Stepping.steps`; the same numbers, to the bit, as a loop by hand over the same rows."""
        self._enter(training=True)
        with telling(f"a training step of {batch} rows in segment {self.segment.label!r}"):
            found = self._stepped(self._batches(columns, orders, start, count, batch))
            return self._stacked(found)

    def _stepped(self, batches: Iterator[list[Any]]) -> list[Tensor]:
        runs, steppers, trained = self._wiring.runs, self._steppers, self._trained
        means, backward = [loss.mean for loss in self._losses], torch.autograd.backward
        kept: list[Tensor] = []
        roots: list[int] | None = None
        for values in batches:
            for run in runs:
                run(values)
            found: list[Tensor] = []
            for mean in means:  # a comprehension would be kept by an error, and with it all values
                found.append(mean(values))
            if roots is None:
                roots, weights = self._roots(found)
            backward([found[i] for i in roots], weights)
            for step in steppers:
                step()
            for parameter in trained:
                parameter.grad = None
            kept += [value.detach() for value in found]
        return kept

    def _roots(self, found: Sequence[Tensor]) -> tuple[list[int], list[Tensor]]:
        """Which losses reach a parameter, and the weight of each as the gradient that its pullback starts from."""
        roots = [i for i, value in enumerate(found) if value.requires_grad]
        if not roots or not self._trained:
            raise PhaseError(
                f"no loss of segment {self.segment.label!r} reaches a parameter that is to be trained",
                there=f"losses: {', '.join(loss.label for loss in self._losses) or 'none'}; "
                f"parameters to train: {len(self._trained)}",
                remedy="unfreeze a node before the loss, set requires_grad on its parameters, or add a loss after it",
            )
        return roots, [torch.full_like(found[i], self._losses[i].weight, requires_grad=False) for i in roots]

    def _batches(
        self, columns: Sequence[Tensor], orders: Sequence[Tensor], start: int, count: int, batch: int
    ) -> Iterator[list[Any]]:
        row = sum(math.prod(column.shape[1:]) * column.element_size() for column in columns)
        stop, rows_held = start + count * batch, batch * max(1, BLOCK_BYTES // max(1, row * batch))
        for begin in range(start, stop, rows_held):
            end = min(begin + rows_held, stop)
            gathered = [column.index_select(0, order[begin:end]) for column, order in zip(columns, orders, strict=True)]
            for rows in zip(*[torch.split(block, batch) for block in gathered], strict=True):
                yield [*rows, *self._rest]

    def _stacked(self, found: list[Tensor]) -> Tensor:
        width = len(self._losses)
        if not found:
            return torch.empty(0, width, device=next(iter(self._devices), None))
        columns = [torch.stack(found[i::width]) for i in range(width)]
        return torch.stack([column.to(columns[0].device) for column in columns], dim=1)

    # -- one by one ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], Losses]:
        """As `Program.forward`; an input that a module writes to is copied before."""
        self._enter(training=False)
        with telling(f"a batch of segment {self.segment.label!r}"):
            values = self._computed(inputs, training=False)
            return tuple(values[i] for i in self._outputs), self._judged(values)

    def _judged(self, values: Sequence[Any]) -> Losses:
        """The losses whose inputs there are."""
        found: Losses = {}
        for loss in self._losses:
            if not any(values[i] is None for i in loss.slots):
                found[loss.label] = loss.parts(values)
        return found

    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], Losses, Callable[[Sequence[Any]], tuple[Any, ...]]]:
        """As `Program.forward_pullback`; the pullback is one backward pass over total loss and outputs."""
        self._enter(training=True)
        leaves = {i: inputs[i].detach().requires_grad_() for i in self._pulled if inputs[i] is not None}
        with telling(f"a batch of segment {self.segment.label!r}"):
            # torch forbids a module to write into a leaf, as an in-place activation would: it gets a copy
            given = [leaves[i].clone() if i in leaves else tensor for i, tensor in enumerate(inputs)]
            values = self._computed(given, training=True)
            losses = self._judged(values)
            there = [loss for loss in self._losses if loss.label in losses]
            terms = [losses[loss.label][0] * self._factor(loss.label, loss.weight, losses, scale) for loss in there]
        outputs = [values[i] for i in self._outputs]

        def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
            seeds = [(term, None) for term in terms]
            seeds += [pair for pair in zip(outputs, cotangents, strict=True) if pair[1] is not None]
            seeds = [pair for pair in seeds if pair[0] is not None and pair[0].requires_grad]
            try:
                with telling(f"the pullback of segment {self.segment.label!r}"):
                    if seeds:
                        torch.autograd.backward([root for root, _ in seeds], [start for _, start in seeds])
                    return tuple(_cotangent(leaves.get(i)) for i in self._pulled)
            finally:  # an error keeps this function, and with it the graph, though its frame is cleared
                for held in (terms, outputs, leaves):
                    held.clear()

        detached = {label: (total.detach(), weight) for label, (total, weight) in losses.items()}
        return tuple(output if output is None else output.detach() for output in outputs), detached, pullback

    def _factor(self, label: str, weight: float, losses: Losses, scale: Mapping[str, Any] | None) -> Any:
        return weight / losses[label][1] if scale is None else scale[label]

    def _computed(self, inputs: Sequence[Any], *, training: bool) -> list[Any]:
        """All values. An input that a module writes to is copied before: it belongs to somebody else."""
        with self._lent.given(inputs, training=training) as given:
            values = [*given, *self._rest]
            if any(tensor is None for tensor in inputs):
                self._wiring.partly(values)
            else:
                for run in self._wiring.runs:
                    run(values)
        return values

    def _enter(self, *, training: bool) -> None:
        """Set modes where they differ: another program over the same modules may have set them meanwhile."""
        for module, trained in self._modules.items():
            self._modes.enter(module, training=training and trained)

    # -- gradients and state ---------------------------------------------------------------------------------------

    def grad_stats(self) -> dict[str, tuple[Any, Any]]:
        """As `Program.grad_stats`; each on the device of the group's first parameter."""
        return {group.name: group.stats() for group in self._groups}

    @torch.no_grad()
    def clip_factor(self, limit: float, squares: Sequence[Any]) -> Any:
        """As `Program.clip_factor`; nothing is waited for."""
        total = squares[0]
        for square in squares[1:]:
            total = total + square.to(total.dtype)
        return torch.clamp(limit / (total.sqrt() + 1e-6), max=1.0)

    def reduce(self, fn: Callable[[Any], Any]) -> None:
        """As `Program.reduce`; a parameter that no loss reached has no gradient, and `fn` is not called for it."""
        for parameter in self._trained:
            if parameter.grad is not None:
                parameter.grad = fn(parameter.grad)

    def apply(self, scale: Mapping[str, Any] | None = None) -> None:
        """As `Program.apply`; does not clip, which whoever gives `scale` has done."""
        with telling(f"an optimizer step of segment {self.segment.label!r}"):
            for group in self._groups:
                group.apply(None if scale is None else scale.get(group.name))
        self.discard()

    def discard(self) -> None:
        """As `Program.discard`."""
        for parameter in self._trained:
            parameter.grad = None

    def snapshot(self) -> Snapshot:
        """As `Program.snapshot`; copies on the devices where things are."""
        return Snapshot(
            [parameter.detach().clone() for parameter in self._trained],
            Buffers(self._modules),
            [group.snapshot() for group in self._groups],
            RandomState(self._devices),
        )

    @torch.no_grad()
    def restore(self, snapshot: Snapshot) -> None:
        """As `Program.restore`; gradients are forgotten."""
        self.discard()
        for parameter, kept in zip(self._trained, snapshot.parameters, strict=True):
            parameter.copy_(kept)
        snapshot.buffers.restore()
        for group, was in zip(self._groups, snapshot.groups, strict=True):
            group.restore(was)
        snapshot.random.restore()

    def states(self) -> dict[str, NodeState]:
        """As `Program.states`; copies, until `release` has handed out the tensors themselves."""
        return self._final if self._final is not None else self._states(copies=True)

    def release(self) -> dict[str, NodeState]:
        """As `Program.release`; modes, `requires_grad` flags and torch's random state are as they were at `build`."""
        if self._final is None:
            self.discard()
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


def _cotangent(leaf: Tensor | None) -> Tensor | None:
    """What came back to an input: zeros where nothing did, None where there was no input."""
    return torch.zeros_like(leaf) if leaf is not None and leaf.grad is None else getattr(leaf, "grad", None)
