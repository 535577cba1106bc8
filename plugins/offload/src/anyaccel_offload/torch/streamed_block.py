"""StreamedBlock: a part of a model with offloaded weights, which are put into its modules while it computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.errors import CapabilityError, StateError
from anyaccel_offload.torch.host_buffers import PinnedMemory
from anyaccel_offload.torch.stored_tensor import StoredTensor
from anyaccel_offload.torch.weight_sources import FilePart, Part, PinnedPart, TensorPart, extent_of

_ALIGNMENT = 64


@dataclass(eq=False, kw_only=True)
class Member:
    """A parameter or buffer of a module of a block.

    Attributes:
        module, kind, key: Module, its dict `"_parameters"` or `"_buffers"`, and the name in that dict.
        name: Name in the model.
        rest: Offloaded tensor, which the module has while the block does not compute.
        offset: Offset in the flat memory of the block.
    """

    module: nn.Module
    kind: str
    key: str
    name: str
    rest: Tensor
    offset: int = 0
    address: int | None = None

    def __post_init__(self) -> None:
        self.table: dict[str, Any] = vars(self.module)[self.kind]

    def remember(self) -> None:
        """Record the place of its values, to notice if the model is moved."""
        self.address = None if isinstance(self.rest, StoredTensor) else self.rest.data_ptr()


class StreamedBlock:
    """Tensors that are copied to a device together.

    Args:
        name: Name of its module in the model.
        index: Position in the expected order of computation.
        members: All places of its tensors; tied places have the same tensor.

    Attributes:
        nbytes: Size of its flat memory.
        tensors: Tensors, each once.
        buffers: Positions of the buffers in `tensors`.
        users: Number of forward passes that are inside the block.
        training: Whether these passes build a graph for gradients.
    """

    def __init__(self, name: str, index: int, members: Sequence[Member]) -> None:
        self.name, self.index, self.members = name, index, list(members)
        offsets: dict[int, int] = {}
        end = 0
        for member in self.members:
            if id(member.rest) not in offsets:
                offsets[id(member.rest)] = end
                end += -(-member.rest.numel() * member.rest.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
            member.offset = offsets[id(member.rest)]
            member.remember()
        self.nbytes = end
        self.tensors = list({id(member.rest): member.rest for member in self.members}.values())
        self._extents = [extent_of(tensor, offsets[id(tensor)]) for tensor in self.tensors]
        self._recurrent = [it for it in {m.module: None for m in self.members} if isinstance(it, nn.RNNBase)]
        buffers = {id(member.rest) for member in self.members if member.kind == "_buffers"}
        self.buffers = [i for i, tensor in enumerate(self.tensors) if id(tensor) in buffers]
        counted = [
            i
            for i, tensor in enumerate(self.tensors)
            if not isinstance(tensor, StoredTensor) and not tensor.is_inference()
        ]
        self._counted = [self.tensors[i] for i in counted if i not in self.buffers]
        self._counted_buffers = [self.tensors[i] for i in counted if i in self.buffers]
        self.parts: list[Part] = [
            FilePart(extent, t) if isinstance(t, StoredTensor) else TensorPart(extent, t)
            for t, extent in zip(self.tensors, self._extents, strict=True)
        ]
        self.users, self.training = 0, False

    def pin(self, pinned: PinnedMemory) -> bool:
        """Move the weights into one piece of pinned memory, if all are in host memory and there is enough."""
        if any(tensor.device.type != "cpu" or isinstance(tensor, StoredTensor) for tensor in self.tensors):
            return False
        memory, is_pinned = pinned.empty(self.nbytes) if self.nbytes else (torch.empty(0), False)
        if not is_pinned:
            return False
        with torch.no_grad():
            for tensor, extent in zip(self.tensors, self._extents, strict=True):
                view = extent.view(memory)
                view.copy_(tensor)
                tensor.data = view
        self.parts = [PinnedPart(extent_of(memory, 0), memory)]
        for member in self.members:
            member.remember()
        return True

    def version(self) -> int:
        """Return a number that grows when an offloaded parameter is written to."""
        return sum([tensor._version for tensor in self._counted])  # noqa: SLF001  (counts writes)

    def buffer_version(self) -> int:
        """Return a number that grows when an offloaded buffer is written to."""
        return sum([tensor._version for tensor in self._counted_buffers])  # noqa: SLF001

    def is_training(self, position: int) -> bool:
        """Return whether a tensor is in a module in training mode, so that a kernel may write to it uncounted."""
        return any(m.module.training for m in self.members if m.rest is self.tensors[position])

    def check(self) -> None:
        """Check that the model has not changed since it was dispatched.

        Raises:
            StateError: A tensor was replaced, moved or converted.
        """
        for member in self.members:
            rest = member.rest
            if member.table.get(member.key) is not rest or (
                member.address is not None and rest.data_ptr() != member.address
            ):
                raise StateError(
                    f"{member.name} was replaced, moved or converted while the model is offloaded",
                    hint="call remove_offload(model) first, change the model, and dispatch it again",
                )

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return its tensors in flat memory, in the order of `tensors`."""
        return [extent.view(flat) for extent in self._extents]

    def install(self, tensors: Iterable[Tensor]) -> None:
        """Put tensors, in the order of `tensors`, into the modules."""
        by_rest = {id(rest): tensor for rest, tensor in zip(self.tensors, tensors, strict=True)}
        for member in self.members:
            member.table[member.key] = by_rest[id(member.rest)]
        self._refresh()

    def restore(self) -> None:
        """Put the offloaded tensors into the modules again."""
        for member in self.members:
            member.table[member.key] = member.rest
        self._refresh()

    def write_back(self, flat: Tensor) -> None:
        """Copy the changes of a forward pass to the offloaded parameters.

        Raises:
            CapabilityError: The pass has written to a weight in a file.
        """
        with torch.no_grad():
            for i, view in enumerate(self.views(flat)):
                rest = self.tensors[i]
                if i in self.buffers or torch.equal(view, rest.to(view.device)):
                    continue
                if isinstance(rest, StoredTensor):
                    raise CapabilityError(
                        f"the forward pass of {self.name} writes to a weight that stays in a file",
                        hint="dispatch this module to 'cpu' instead of 'disk', or to a device",
                    )
                rest.copy_(view)

    def _refresh(self) -> None:
        for module in self._recurrent:  # these keep their weights in a list as well
            names = vars(module)["_flat_weights_names"]
            vars(module)["_flat_weights"] = [vars(module)["_parameters"].get(name) for name in names]
