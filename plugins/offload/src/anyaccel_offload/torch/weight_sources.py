"""Sources of a block's weights, and how their bytes are copied to a device: each tensor in contiguous memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from anyaccel_offload.torch.checkpoint_files import FileTensor, bytes_of
from anyaccel_offload.torch.stored_tensor import StoredTensor


class Extent(NamedTuple):
    """The position of a tensor in the flat memory of a block, with its dtype and shape."""

    offset: int
    nbytes: int
    dtype: torch.dtype
    shape: torch.Size

    def view(self, flat: Tensor) -> Tensor:
        """Return the tensor in flat memory."""
        return flat[self.offset : self.offset + self.nbytes].view(self.dtype).view(self.shape)


def extent_of(tensor: Tensor, offset: int) -> Extent:
    """Return the extent of a tensor from an offset."""
    return Extent(offset, tensor.numel() * tensor.dtype.itemsize, tensor.dtype, tensor.shape)


@dataclass(eq=False)
class Part(ABC):
    """Bytes that are copied to an extent of the flat memory of a block."""

    extent: Extent

    @abstractmethod
    def copy_into(self, flat: Tensor, non_blocking: bool) -> None:
        """Copy all bytes."""

    @property
    def is_plain(self) -> bool:
        """Whether its bytes can be read in the form that the device needs."""
        return False

    def read_bytes(self, begin: int, into: Tensor) -> None:
        """Copy some bytes into host memory."""
        raise NotImplementedError


@dataclass(eq=False)
class PinnedPart(Part):
    """Pinned memory, copied in one call."""

    memory: Tensor

    def copy_into(self, flat: Tensor, non_blocking: bool) -> None:
        self.extent.view(flat).copy_(self.memory, non_blocking=non_blocking)


@dataclass(eq=False)
class TensorPart(Part):
    """A tensor in ordinary host memory, or on another device."""

    tensor: Tensor

    def copy_into(self, flat: Tensor, non_blocking: bool) -> None:
        self.extent.view(flat).copy_(self.tensor.detach(), non_blocking=non_blocking)

    @property
    def is_plain(self) -> bool:
        """Whether the tensor is contiguous in host memory."""
        return self.tensor.device.type == "cpu" and self.tensor.is_contiguous()

    def read_bytes(self, begin: int, into: Tensor) -> None:
        into.copy_(self.tensor.detach().view(-1).view(torch.uint8)[begin : begin + len(into)])


@dataclass(eq=False)
class FilePart(Part):
    """A tensor in a file."""

    stored: StoredTensor

    @property
    def is_plain(self) -> bool:
        """Whether it is in a safetensors file, and needs no cast."""
        saved = self.stored.saved
        return isinstance(saved, FileTensor) and saved.dtype == self.extent.dtype

    def copy_into(self, flat: Tensor, non_blocking: bool) -> None:
        self.stored.saved.read_into(self.extent.view(flat))

    def read_bytes(self, begin: int, into: Tensor) -> None:
        saved = self.stored.saved
        if isinstance(saved, FileTensor):
            saved.file.read(saved.entry.begin + begin, bytes_of(into))
