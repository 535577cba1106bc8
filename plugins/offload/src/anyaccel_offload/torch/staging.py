"""Staging: which weights of streamed blocks are on a device, and which are copied next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks

from anyaccel.errors import StateError
from anyaccel_offload.torch.copy_engine import Arrival, CopyEngine
from anyaccel_offload.torch.stored_tensor import StoredTensor
from anyaccel_offload.torch.streamed_block import StreamedBlock

INFER, TRAIN, BACKWARD = range(3)
Key = tuple[int, int]
"""An action on a block, and the index of the block."""


@dataclass(eq=False)
class Visit:
    """A block that a forward pass is inside of."""

    block: StreamedBlock
    staged: Staged
    hooks: Any = None


@dataclass(eq=False)
class ForwardPass:
    """One call of a model in one thread, and the backward pass that belongs to it.

    Attributes:
        ahead: Whether blocks are fetched ahead; false for a block that is called outside of its model.
        last: Last action.
        visits: Blocks that the pass is inside of.
        leaves: Graph inputs for blocks that have not been computed yet.
        moved: Inputs that were moved to a device.
        over: Whether the call has ended.
    """

    ahead: bool = True
    last: Key | None = None
    visits: list[Visit] = field(default_factory=list)
    leaves: dict[StreamedBlock, Resting] = field(default_factory=dict)
    moved: dict[Any, Any] = field(default_factory=dict)
    over: bool = False


@dataclass(eq=False)
class Staged:
    """The weights of a block on the device; `buffers` are those of the current pass, by position."""

    arrival: Arrival
    weights_version: int
    buffer_version: int
    owner: ForwardPass
    flat_version: int = -1
    buffers: list[tuple[int, Tensor, int]] = field(default_factory=list)

    def is_fresh(self, block: StreamedBlock) -> bool:
        """Return whether the offloaded weights are unchanged since the copy began."""
        return (self.weights_version, self.buffer_version) == (block.version(), block.buffer_version())

    @property
    def flat(self) -> Tensor:
        """Bytes of the weights."""
        return self.arrival.flat


class Staging:
    """Memory on one device for the weights of blocks that compute now or next.

    Blocks are copied in the order of the last pass, at first in the given order. The memory holds at most two of the
    largest block, or one, and exceeds this only while blocks compute inside others.

    Args:
        engine: Engine that copies.
        blocks: Blocks in the expected order of computation.
        slots: 2; or 1 for memory with room for only one block, so that none is copied ahead.

    Attributes:
        capacity: Bytes of the slots.
        fetches: Number of copied blocks.
        most_bytes: Maximum number of bytes in use.
    """

    def __init__(self, engine: CopyEngine, blocks: Sequence[StreamedBlock], slots: int = 2) -> None:
        self.engine, self.blocks = engine, list(blocks)
        self.capacity = slots * max((block.nbytes for block in blocks), default=0)
        self.fetches = self.most_bytes = 0
        self._lock = threading.Condition(threading.RLock())
        self._staged: dict[StreamedBlock, Staged] = {}
        self._using: dict[StreamedBlock, None] = {}
        self._next: dict[Key, Key | None] = {}
        self._plans: dict[Key, tuple[StreamedBlock, ...]] = {}

    # -- forward -------------------------------------------------------------------------------------------------------

    def begin(self, run: ForwardPass) -> None:
        """Begin a call of the model, and discard remainders of earlier calls."""
        with self._lock:
            self._drop(lambda block, staged: staged.owner.over)
        if torch.is_grad_enabled():
            for block in self.blocks:
                run.leaves[block] = resting([it for it in block.tensors if it.requires_grad])

    def end(self, run: ForwardPass, grad: bool) -> None:
        """End a call of the model, with or without an error."""
        while run.visits:
            self.exit(run.visits[-1].block, run)
        run.leaves.clear()
        run.moved.clear()
        run.over = True
        if not grad:
            with self._lock:
                if run.last is not None and self._following(run.last) is not None:
                    self._next[run.last] = None
                    self._plans.clear()
                self._drop(lambda block, staged: staged.owner is run)

    def enter(self, block: StreamedBlock, run: ForwardPass) -> None:
        """Wait for the weights of a block, and put them into its modules.

        Raises:
            StateError: The model was changed, or a file cannot be read.
            OutOfMemoryError: The device is full.
        """
        grad = torch.is_grad_enabled()
        with self._lock:
            outer = next((visit for visit in run.visits if visit.block is block), None)
            if outer is not None:  # it calls itself
                run.visits.append(Visit(block, outer.staged))
                return
            self._lock.wait_for(lambda: self._may_enter(block, grad, run))
            if not block.users:
                block.check()
            staged = self._fetched((TRAIN if grad else INFER, block.index), block, run)
            if not block.users:
                block.install(self._tensors(block, staged, run, grad))
                block.training = grad
            block.users += 1
            self._using[block] = None
            visit = Visit(block, staged)
            run.visits.append(visit)
        if grad:
            visit.hooks = saved_tensors_hooks(lambda it: self._pack(it, run), _unpack)
            visit.hooks.__enter__()

    def exit(self, block: StreamedBlock, run: ForwardPass) -> None:
        """Put the offloaded tensors into the modules of a block again; do nothing if the pass is not inside it."""
        if not run.visits or run.visits[-1].block is not block:
            return
        visit = run.visits.pop()
        if visit.hooks is not None:
            visit.hooks.__exit__()
        if any(other.block is block for other in run.visits):
            return
        with self._lock:
            block.users -= 1
            try:
                if not block.users:
                    block.restore()
                    self._keep_writes(visit)
            finally:
                if not block.users:
                    del self._using[block]
                    self._lock.notify_all()

    def close(self) -> None:
        """Drop all copies.

        Raises:
            StateError: A forward pass is inside a block.
        """
        with self._lock:
            if self._using:
                raise StateError("the model is computing in another thread", hint="wait for it to end")
            self._drop(lambda block, staged: True)
        self.engine.close()

    def _may_enter(self, block: StreamedBlock, grad: bool, run: ForwardPass) -> bool:
        """Return whether a pass can enter a block now: memory is limited, and with gradients a block has one user."""
        if block.users:
            return not (grad or block.training)
        others = sum(block.nbytes for block in self._using)
        return bool(run.visits) or not others or others + block.nbytes <= self.capacity

    def _tensors(self, block: StreamedBlock, staged: Staged, run: ForwardPass, grad: bool) -> list[Tensor]:
        """Return the tensors to put into the modules."""
        with torch.inference_mode(False), torch.set_grad_enabled(grad):
            views = block.views(staged.flat)
            staged.buffers = []
            for i in block.buffers:
                views[i] = views[i].clone()  # written to, which torch refuses for parts of memory that is in a graph
                staged.buffers.append((i, views[i], views[i]._version))  # noqa: SLF001  (counts writes)
            trained = [i for i, tensor in enumerate(block.tensors) if grad and tensor.requires_grad]
            if not trained:
                return views
            rest = run.leaves.pop(block, None) or resting([block.tensors[i] for i in trained])
            whole = len(trained) == len(views)
            finished = (lambda: self._finished(block)) if whole else (lambda: None)
            made = uploaded(rest, [views[i] for i in trained], self.engine, finished)
            for i, tensor in zip(trained, made, strict=True):
                views[i] = tensor
            return views

    def _keep_writes(self, visit: Visit) -> None:
        """Copy the tensors that a forward pass has written to into their offloaded places; skip all others."""
        block, staged = visit.block, visit.staged
        written = staged.flat._version != staged.flat_version  # noqa: SLF001  (counts writes)
        for i, buffer, version in staged.buffers:
            if buffer._version != version or block.is_training(i):  # noqa: SLF001
                with torch.no_grad():
                    block.tensors[i].copy_(buffer)
                    block.views(staged.flat)[i].copy_(buffer)
        staged.buffers = []
        if written and not block.training:
            block.write_back(staged.flat)
        staged.flat_version, staged.weights_version = staged.flat._version, block.version()  # noqa: SLF001
        staged.buffer_version = block.buffer_version()

    # -- backward ------------------------------------------------------------------------------------------------------

    def _pack(self, tensor: Tensor, run: ForwardPass) -> Tensor | SavedWeight:
        for visit in run.visits:
            block, version = visit.block, visit.staged.weights_version
            kept = saved(tensor, visit.staged.flat, lambda b=block, v=version: self._fetch_again(b, v, run))  # type: ignore[misc]
            if kept is not None:
                return kept
        return tensor

    def _fetch_again(self, block: StreamedBlock, version: int, run: ForwardPass) -> Tensor:
        key = (BACKWARD, block.index)
        with self._lock:
            if block.version() != version:
                raise StateError(
                    f"weights of {block.name} were changed between forward and backward",
                    hint="call backward() before optimizer.step(), or run the forward pass again",
                )
            staged = self._staged.get(block)
            if staged is None or run.last != key:
                staged = self._fetched(key, block, run)
            return staged.flat

    def _finished(self, block: StreamedBlock) -> None:
        with self._lock:
            if not block.users:
                self._drop(lambda other, staged: other is block)

    # -- both ----------------------------------------------------------------------------------------------------------

    def _fetched(self, key: Key, block: StreamedBlock, run: ForwardPass) -> Staged:
        """Wait for the weights of a block and return them; begin to copy those of the next."""
        plan: tuple[StreamedBlock, ...] = (self.blocks[key[1]],)
        if run.ahead:
            if run.last is not None and self._following(run.last) != key:
                self._next[run.last] = key
                self._plans.clear()
            run.last = key
            if key not in self._plans:
                self._plans[key] = self._made_plan(key)
            plan = self._plans[key]
        self._drop(lambda other, staged: other not in plan)
        staged = self._staged.get(block)
        if staged is not None and not staged.is_fresh(block) and not block.users:
            self._drop(lambda other, staged: other is block)
            staged = None
        if staged is None:
            if self._bytes() + block.nbytes > self.capacity:  # blocks that other threads have fetched ahead
                self._drop(lambda other, staged: True)
            staged = self._start(block, run)
        for other in plan[1:]:
            if other not in self._staged and self._bytes() + other.nbytes <= self.capacity:
                self._start(other, run)
        try:
            if not staged.arrival.done:
                staged.arrival.wait()
                staged.flat_version = staged.flat._version  # noqa: SLF001
        except BaseException:
            self._staged.pop(block, None)
            raise
        return staged

    def _start(self, block: StreamedBlock, run: ForwardPass) -> Staged:
        made = Staged(self.engine.start(block.parts, block.nbytes), block.version(), block.buffer_version(), run)
        self._staged[block] = made
        self.fetches += 1
        self.most_bytes = max(self.most_bytes, self._bytes())
        return made

    def _bytes(self) -> int:
        return sum(block.nbytes for block in self._staged)

    def _drop(self, chosen: Callable[[StreamedBlock, Staged], bool]) -> None:
        for block, staged in list(self._staged.items()):
            if not block.users and chosen(block, staged):
                staged.arrival.abandon()
                del self._staged[block]

    def _made_plan(self, key: Key) -> tuple[StreamedBlock, ...]:
        made = [self.blocks[key[1]]]
        room = self.capacity - made[0].nbytes
        for _ in range(2 * len(self.blocks)):
            following = self._following(key)
            if following is None:
                break
            key, block = following, self.blocks[following[1]]
            if block in made:
                continue
            room -= block.nbytes
            if room < 0:
                break
            made.append(block)
        return tuple(made)

    def _following(self, key: Key) -> Key | None:
        """Return the expected next action: that of the last pass, or the given order."""
        if key in self._next:
            return self._next[key]
        kind, index = key
        if kind == BACKWARD:
            return (BACKWARD, index - 1) if index else None
        if index + 1 < len(self.blocks):
            return (kind, index + 1)
        return (BACKWARD, index) if kind == TRAIN else None


def _unpack(kept: Tensor | SavedWeight) -> Tensor:
    return kept.value() if isinstance(kept, SavedWeight) else kept


# -- Gradients of streamed weights: the graph holds no copy of a weight; gradients are copied to the offloaded weights


class Ticket:
    """Records when the gradients of one use of a block are in host memory."""

    def __init__(self) -> None:
        self.wait: Callable[[], object] = lambda: None


class _Arrive(torch.autograd.Function):
    """An offloaded parameter, whose gradient is waited for.

    Its node is created at the beginning of a forward pass, so that a backward pass reaches it last. On accelerators it
    runs in another thread than the other nodes. No computation therefore waits for the copy of a gradient.
    """

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, ticket: Ticket) -> Tensor:
        ctx.ticket = ticket
        return parameter.view_as(parameter)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:
        ctx.ticket.wait()
        return grad, None


class _Upload(torch.autograd.Function):
    """Maps offloaded parameters to their copies on the device; gradients go the other way."""

    @staticmethod
    def forward(ctx: Any, views: Sequence[Tensor], returned: Callable[..., Any], *_: Tensor) -> tuple[Tensor, ...]:
        ctx.returned = returned
        ctx.set_materialize_grads(False)
        return tuple(views)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        return (None, None, *ctx.returned(grads))


class Resting(NamedTuple):
    """The graph inputs for the trained tensors of a block."""

    ticket: Ticket
    leaves: tuple[Tensor, ...]


def resting(tensors: Sequence[Tensor]) -> Resting:
    """Return the graph inputs for tensors that require gradients."""
    ticket = Ticket()
    arrive: Any = _Arrive.apply
    return Resting(ticket, tuple(it if isinstance(it, StoredTensor) else arrive(it, ticket) for it in tensors))


def uploaded(
    rest: Resting, views: Sequence[Tensor], engine: CopyEngine, finished: Callable[[], object]
) -> tuple[Tensor, ...]:
    """Return copies on the device as part of a graph.

    Args:
        rest: Graph inputs of these tensors.
        views: Copies on the device.
        engine: Engine that copies gradients to host memory.
        finished: Called when all gradients of the block are known.
    """

    def returned(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        leaving = [
            i
            for i, grad in enumerate(grads)
            if grad is not None and rest.leaves[i].device.type == "cpu" != grad.device.type
        ]
        arrived = [g if g is None or i in leaving else g.to(rest.leaves[i].device) for i, g in enumerate(grads)]
        if leaving:
            hosts, rest.ticket.wait = engine.to_host([grads[i] for i in leaving])  # type: ignore[misc]
            for i, host in zip(leaving, hosts, strict=True):
                arrived[i] = host
        finished()
        return arrived

    upload: Any = _Upload.apply
    made: tuple[Tensor, ...] = upload(views, returned, *rest.leaves)
    return made


class SavedWeight(NamedTuple):
    """A replacement for a weight, or for a view of it, in a graph."""

    fetch: Callable[[], Tensor]
    offset: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]

    def value(self) -> Tensor:
        """Return the weight; copy it to the device again if necessary."""
        flat = self.fetch().view(self.dtype)
        return flat.as_strided(self.size, self.stride, self.offset // self.dtype.itemsize)


def saved(tensor: Tensor, flat: Tensor, fetch: Callable[[], Tensor]) -> SavedWeight | None:
    """Return the replacement for a tensor in flat memory; None if the tensor is elsewhere."""
    if isinstance(tensor, StoredTensor) or tensor.layout is not torch.strided or tensor.device != flat.device:
        return None
    offset = tensor.data_ptr() - flat.data_ptr()
    if not 0 <= offset < flat.numel():
        return None
    return SavedWeight(fetch, offset, tensor.dtype, tensor.size(), tensor.stride())
