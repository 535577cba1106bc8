"""A program whose parameters, gradients and optimizer states are partly or fully sharded over replicas by FSDP2."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from anyaccel.device import Device
from anyaccel.precision import NodePrecision
from anyaccel.segment import NodeState, Operation, Segment
from anyaccel_torch import keras
from anyaccel_torch.module_state import submodules
from anyaccel_torch.precise_call import casts_everything
from anyaccel_torch.program import TorchProgram
from anyaccel_torch.sharded_module import ShardedModule, whole


class ShardedProgram(TorchProgram):
    """Train copies of the user's modules with sharded parameters, along with others that stay whole.

    Gradients of a step are sums over all replicas, of losses divided by the rows of all. FSDP2 sums those of sharded
    parameters in the backward pass; those of `undivided` parameters are summed before they are used.

    Args:
        segment: The segment to compute; its models are placed.
        torch_device: Function that returns the `torch.device` of a device.
        mesh: Mesh of the replicas.
        offload: Keep parameters, gradients and optimizer states in host memory.
        whole: Labels of the nodes whose modules stay whole.

    Raises:
        PhaseError: a model cannot be copied.
    """

    is_divided: ClassVar[bool] = True

    def __init__(
        self,
        segment: Segment,
        torch_device: Callable[[Device], torch.device],
        mesh: DeviceMesh,
        *,
        offload: bool,
        whole: Collection[str] = (),
    ) -> None:
        models: dict[nn.Module, None] = {}  # in training mode with parameters, in this order in all replicas
        for operation in segment.operations:
            model = operation.model
            is_trained = operation.trainable and operation.label not in whole and isinstance(model, nn.Module)
            if is_trained and next(model.parameters(), None) is not None:  # type: ignore[union-attr]
                models[model] = None  # type: ignore[index]
        self._shards = {
            id(model): ShardedModule(model, mesh, offload=offload, autocast=_autocast_dtype(segment, model))
            for model in models
        }
        self._shares: deque[float] = deque()
        self._is_abandoned = False
        copies = {key: shard.copy for key, shard in self._shards.items()}
        operations = tuple(replace(op, model=copies.get(id(op.model), op.model)) for op in segment.operations)
        by_node = {op.label: self._shards[id(op.model)] for op in segment.operations if id(op.model) in self._shards}
        states = {node: _divided(state, by_node.get(node)) for node, state in segment.states.items()}
        super().__init__(replace(segment, operations=operations, states=states), torch_device)
        self.undivided = [parameter for parameter in self.trained if not isinstance(parameter, DTensor)]
        self._release()

    def begin_step(self, sizes: Sequence[int], n_rows: float) -> None:
        """A step of `n_rows` in all replicas begins; this one computes parts of that many rows."""
        self._release()
        self._shares = deque(len(sizes) * size / n_rows for size in sizes)

    def take_used(self) -> list[bool]:
        """Return `ShardedModule.take_used` of all sharded parameters."""
        return [used for shard in self._shards.values() for used in shard.take_used()]

    def drop_unused(self, used: Sequence[float]) -> None:
        """Leave parameters that no replica has used unchanged, including by weight decay and momentum."""
        parameters = [parameter for shard in self._shards.values() for parameter in shard.parameters.values()]
        for parameter, is_used in zip(parameters, used, strict=True):
            if not is_used:
                parameter.grad = None

    def abandon(self) -> None:
        """Exchange nothing any more."""
        self._is_abandoned = True

    def sharded_bytes(self) -> int:
        """Return bytes of parameters and of optimizer slots, or their parts, that this replica keeps."""
        states = [state for group in self._groups for state in group.states(copies=False).values()]
        slots = {id(slot): slot for state in states for kept in state.slots.values() for slot in kept.values()}
        return sum(_local(tensor).nbytes for tensor in (*self.trained, *slots.values()))

    def _release(self) -> None:
        for shard in self._shards.values():
            shard.release()

    def _next_share(self) -> float:
        return self._shares.popleft() if self._shares else 1.0

    @torch.no_grad()
    def grad_stats(self) -> dict[str, tuple[Any, Any]]:
        """Return norms and finiteness over all replicas, with one all-reduce. Whole gradients are equal in all, and
        count once.
        """
        parts = [
            [parameter for parameter in group.parameters if isinstance(parameter, DTensor)] for group in self._groups
        ]
        wholes = [
            [parameter for parameter in group.parameters if not isinstance(parameter, DTensor)]
            for group in self._groups
        ]
        rows = [_local_stats(part) for part in parts]
        device = next((row.device for row, part in zip(rows, parts, strict=True) if part), rows[0].device)
        table = torch.stack([row.to(device) for row in rows])
        dist.all_reduce(table)
        if any(wholes):
            table = table + torch.stack([_local_stats(whole).to(table) for whole in wholes])
        return {group.name: (row[0], row[1] == 0) for group, row in zip(self._groups, table, strict=True)}

    def sync_models(self) -> None:
        """Copy the current values into the user's models; all replicas call this together."""
        if not self._is_abandoned:
            for shard in self._shards.values():
                shard.gather()

    def close(self) -> dict[str, NodeState]:
        """End the program; all replicas call this together, unless this one was abandoned.

        In that case the values are NaN, unless the models had them.
        """
        if self._final is None:
            self.zero_grad()
            for shard in self._shards.values():
                if not self._is_abandoned:
                    shard.gather()
                elif not shard.is_whole:
                    shard.give_up()
        return super().close()

    def _states(self, *, copies: bool) -> dict[str, NodeState]:
        states = super()._states(copies=False)
        if self._is_abandoned:
            return {node: NodeState(state.step) for node, state in states.items()}
        known: dict[int, NodeState] = {}  # nodes that share a model share its state
        for state in states.values():
            if id(state) not in known:
                slots: dict[str, dict[str, Tensor]] = {}
                for name, values in sorted(state.slots.items()):  # that of loaded slots differs between processes
                    slots[name] = {}
                    for slot, value in sorted(values.items()):
                        is_copied = copies and not isinstance(value, DTensor)
                        slots[name][slot] = value.clone() if is_copied else whole(value)
                known[id(state)] = NodeState(state.step, slots)
        return {node: known[id(state)] for node, state in states.items()}


def unshardable_reason(segment: Segment, whole: Collection[str] = ()) -> str:
    """Return why a segment cannot be sharded; see `ShardParameters.unshardable_reason`."""
    held: dict[int, Operation] = {}
    divided = {op.label for op in segment.operations} - {*whole}
    for operation in segment.operations:
        model = operation.model
        if not isinstance(model, nn.Module):
            continue
        reason = _undividable(model, _precision_of(segment, operation.label)) if operation.label in divided else ""
        if reason:
            return f"node {operation.label!r} {reason}"
        for parameter in model.parameters():
            other = held.setdefault(id(parameter), operation)
            if other.model is not model and not divided.isdisjoint((other.label, operation.label)):
                return f"nodes {other.label!r} and {operation.label!r} share a parameter"
    if len({operation.device for operation in segment.operations if operation.model is not None}) > 1:
        return "its nodes are on several devices"
    return ""


def _undividable(model: nn.Module, precision: NodePrecision | None) -> str:
    """Return what keeps the parameters of a module from being sharded; `""` if nothing does."""
    if keras.outermost(model):
        return "has Keras layers, and their variables cannot be sharded"
    if any(getattr(part, "sparse", False) for part in submodules(model)):
        return "has an embedding with sparse gradients"
    scalar = next((name for name, parameter in model.named_parameters() if parameter.dim() == 0), None)
    if scalar is not None:
        return f"has the parameter {scalar!r} without axes, but FSDP2 supports only shape [1]"
    if precision is not None and casts_everything(model, precision):
        return f"is cast to {precision.dtype} as a whole, which sharded parameters do not support"
    return ""


def _precision_of(segment: Segment, label: str) -> NodePrecision | None:
    precision: NodePrecision | None = None if segment.precision is None else segment.precision.of(label)
    return precision


def _autocast_dtype(segment: Segment, model: nn.Module) -> torch.dtype | None:
    """Return the autocast dtype of all nodes of a model; None if a node has no autocast."""
    nodes = [_precision_of(segment, op.label) for op in segment.operations if op.model is model]
    dtypes = {precision.dtype if precision is not None and precision.is_mixed else None for precision in nodes}
    (dtype,) = dtypes if len(dtypes) == 1 else (None,)
    return None if dtype is None else getattr(torch, dtype)


def _local_stats(parameters: Sequence[nn.Parameter]) -> Tensor:
    """The squared norm of this replica's parts of the gradients, and how many numbers in them are not finite."""
    parts = [_local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    device = parts[0].device if parts else torch.device("cpu")
    if not parts:
        return torch.zeros(2, device=device)
    squares = torch.stack([torch.linalg.vector_norm(part.float() if part.itemsize < 4 else part) for part in parts])
    broken = torch.stack([(~part.isfinite()).sum() for part in parts]).sum()
    total = squares.square().sum()
    return torch.stack([total, broken.to(total.dtype)])


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _divided(state: NodeState, module: ShardedModule | None) -> NodeState:
    """Return an optimizer state with slots sharded like their parameters; each replica passes the whole state."""
    if module is None:
        return state
    slots = {name: dict(values) for name, values in state.slots.items()}
    for name, values in slots.items():
        parameter = module.parameters.get(name)
        if isinstance(parameter, DTensor):
            mesh, placements = parameter.device_mesh, parameter.placements
            for slot, value in values.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape and value.ndim:
                    placed = value.detach().to(parameter.device)
                    values[slot] = distribute_tensor(placed, mesh, placements, src_data_rank=None)
    return NodeState(state.step, slots)
