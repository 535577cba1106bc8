"""Checkpoint files: read tensors of safetensors and `.bin` files, sharded or not, one by one to their final places."""

from __future__ import annotations

import math
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyaccel.arguments import shown
from anyaccel.errors import StateError
from anyaccel.saved_folder import tensor_file
from anyaccel.saved_folder.shards import INDEX_ENDING, shard_map, weight_file_in
from anyaccel.saved_folder.storage import LocalStorage
from anyaccel_torch.weight_files import load_tensors

SAFETENSORS = ".safetensors"
SUFFIXES = (SAFETENSORS, ".bin", ".pt", ".pth", ".ckpt")
PIECE = 16 * 2**20
"""Bytes of the host buffer for a tensor that cannot be read directly to its final place."""
_LARGEST_READ = 2**30  # some systems read at most 2 GiB in a call


class SavedTensor(ABC):
    """A tensor in a file: shape, dtype, and a method to read its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Size of its values in the file, in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @abstractmethod
    def read_into(self, target: Tensor) -> None:
        """Read the values into a tensor of the same shape, on any device, cast to that tensor's dtype.

        Raises:
            StateError: The file was changed or cannot be read, or a value would be infinite in that dtype.
        """

    @abstractmethod
    def has_values_of(self, other: SavedTensor) -> bool:
        """Return whether another tensor has the same dtype, shape and bytes."""


class SafetensorsFile:
    """A safetensors file that is opened once; its header is read and checked once.

    Args:
        path: Path of the file.

    Raises:
        StateError: The file is damaged or not a safetensors file; or its tensors overlap or lie outside of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._stream = path.open("rb", buffering=0)
            weakref.finalize(self, self._stream.close)
            self._stat = _identity(self._stream.fileno())
            if hasattr(os, "posix_fadvise"):  # it reads ahead; announcing the next read takes longer than that saves
                os.posix_fadvise(self._stream.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            entries = tensor_file.contents(self._stream, self._stat[0])
        except OSError as error:
            raise StateError(f"{str(path)!r} cannot be read: {error}", hint="use a readable file") from error
        except StateError as error:
            problem = f"{str(path)!r} cannot be read as safetensors: {error.problem}"
            raise StateError(problem, hint=error.hint or "copy or download it again") from error
        self._lock = threading.Lock()
        self.tensors = {name: FileTensor(self, name, entry) for name, entry in entries.items()}

    def read(self, begin: int, into: memoryview) -> None:
        """Read bytes from a position.

        Raises:
            StateError: The file was changed after it was opened.
        """
        with self._lock:
            if _identity(self._stream.fileno()) != self._stat:
                raise StateError(f"{str(self.path)!r} was changed while its tensors were in use", hint="load it again")
            self._stream.seek(begin)
            while into:
                count = self._stream.readinto(into[:_LARGEST_READ])
                if not count:
                    raise StateError(f"{str(self.path)!r} is truncated", hint="copy or download it again")
                into = into[count:]


@dataclass(eq=False)
class FileTensor(SavedTensor):
    """A tensor in a safetensors file."""

    file: SafetensorsFile
    name: str
    entry: tensor_file.TensorEntry

    def __post_init__(self) -> None:
        self.shape, self.dtype = self.entry.shape, getattr(torch, self.entry.dtype)

    def read_into(self, target: Tensor) -> None:
        """Read the values: directly into contiguous host memory of the same dtype, otherwise in pieces."""
        if target.device.type == "cpu" and target.dtype == self.dtype and target.is_contiguous():
            self.file.read(self.entry.begin, bytes_of(target))
            return
        whole = target.detach() if target.is_contiguous() else torch.empty_like(target, memory_format=_CONTIGUOUS)
        flat, begin, cast = whole.view(-1), 0, _Cast(target.dtype, self.name)
        for piece in self.pieces():
            values = piece.view(self.dtype)
            flat[begin : begin + len(values)].copy_(cast(values))
            begin += len(values)
        cast.check()
        if whole.data_ptr() != target.data_ptr():
            target.detach().copy_(whole)

    def pieces(self) -> Iterator[Tensor]:
        """Yield the bytes in the file piece by piece, in one buffer; nothing for a tensor without elements."""
        buffer = torch.empty(min(PIECE, self.nbytes), dtype=torch.uint8)
        for begin in range(0, self.nbytes, PIECE):
            piece = buffer[: min(PIECE, self.nbytes - begin)]
            self.file.read(self.entry.begin + begin, bytes_of(piece))
            yield piece

    def has_values_of(self, other: SavedTensor) -> bool:
        """Compare the tensors piece by piece."""
        if (self.shape, self.dtype) != (other.shape, other.dtype) or not isinstance(other, FileTensor):
            return False
        pieces = zip(self.pieces(), other.pieces(), strict=True)
        return all(torch.equal(mine, theirs) for mine, theirs in pieces)


class LoadedTensor(SavedTensor):
    """A tensor in a file of torch, whose values the system reads when they are used."""

    def __init__(self, values: Tensor, name: str) -> None:
        self.values, self.name = values.detach(), name
        self.shape, self.dtype = tuple(values.shape), values.dtype

    def read_into(self, target: Tensor) -> None:
        cast = _Cast(target.dtype, self.name)
        values = cast(self.values)
        cast.check()
        target.detach().copy_(values)

    def has_values_of(self, other: SavedTensor) -> bool:
        return isinstance(other, LoadedTensor) and torch.equal(self.values, other.values)


class _Cast:
    """Casts the values of one tensor to another dtype, piece by piece, and counts those that the dtype cannot hold."""

    def __init__(self, dtype: torch.dtype, name: str) -> None:
        self._dtype, self._name = dtype, name
        self._n_lost, self._first = 0, 0.0

    def __call__(self, values: Tensor) -> Tensor:
        """Return values in the dtype."""
        if not (values.is_floating_point() and self._dtype.is_floating_point):
            return values
        if torch.finfo(self._dtype).max >= torch.finfo(values.dtype).max:
            return values
        cast = values.to(self._dtype)
        lost = ~torch.isfinite(cast.float()) & torch.isfinite(values)
        if lost.any():
            self._first = self._first if self._n_lost else values[lost][0].item()
            self._n_lost += int(lost.sum())
        return cast

    def check(self) -> None:
        """Raise an error if finite values became infinite.

        Raises:
            StateError: Some did; the message has their number and the first one.
        """
        if not self._n_lost:
            return
        short = str(self._dtype).removeprefix("torch.")
        raise StateError(
            f"{self._name} has {self._n_lost:,} values in the checkpoint that would be infinite in {short}, such as "
            f"{self._first}",
            cause=f"{short} holds numbers up to {torch.finfo(self._dtype).max}",
            hint="load with dtype=torch.bfloat16, or keep this part in float32: keep_in_fp32=['PART']",
        )


_CONTIGUOUS = torch.contiguous_format


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU."""
    found: memoryview = tensor.detach().reshape(-1).view(torch.uint8).numpy().data
    return found


def open_checkpoint(where: str, checkpoint: Any) -> Mapping[str, SavedTensor]:
    """Return the tensors of a checkpoint by name; no values are read.

    Args:
        where: Beginning of an error message.
        checkpoint: A `.safetensors` file, a file of `torch.save`, an index of shards, or a folder with any of these.

    Raises:
        StateError: The file does not exist, or is damaged or hostile: offsets outside of it, or shards in other
            folders.
    """
    if not isinstance(checkpoint, str | os.PathLike) or not str(checkpoint):
        raise StateError(f"{where}checkpoint={shown(checkpoint)} is not a path", hint="write checkpoint='FOLDER'")
    path = Path(checkpoint).expanduser()
    path = path / weight_file_in(LocalStorage(path, follows_links=True), SUFFIXES) if path.is_dir() else path
    if not path.is_file():
        problem = f"{where}no file or folder {str(path)!r} exists"
        raise StateError(problem, hint="pass a weight file, an index of shards, or a folder with one")
    return _open_shards(path) if path.name.endswith(INDEX_ENDING) else _open_file(path)


def _open_file(path: Path) -> Mapping[str, SavedTensor]:
    if path.suffix == SAFETENSORS:
        return SafetensorsFile(path).tensors
    if path.suffix in SUFFIXES:
        return {name: LoadedTensor(value, name) for name, value in load_tensors(path, mapped=True).items()}
    raise StateError(f"{str(path)!r} is not a weight file", available=", ".join(SUFFIXES), hint=f"use {SAFETENSORS}")


def _open_shards(index: Path) -> Mapping[str, SavedTensor]:
    """Return the tensors of all shards of an index, which must hold exactly the tensors that it lists."""
    places = shard_map(LocalStorage(index.parent, follows_links=True), index.name, SUFFIXES)
    found: dict[str, SavedTensor] = {}
    wrong: set[str] = set()
    for shard in dict.fromkeys(places.values()):
        if not (index.parent / shard).is_file():
            raise StateError(f"{str(index)!r} names {shard!r}, which is missing", hint="copy or download it again")
        tensors = _open_file(index.parent / shard)
        wrong |= tensors.keys() ^ {name for name, place in places.items() if place == shard}
        found.update(tensors)
    if wrong:
        problem = f"{str(index)!r} and its shards differ in {', '.join(sorted(wrong)[:20])}"
        raise StateError(problem, hint="copy or download them again")
    return found


def _identity(descriptor: int) -> tuple[int, int]:
    """Return the size and modification time of an open file."""
    stat = os.fstat(descriptor)
    return stat.st_size, stat.st_mtime_ns
