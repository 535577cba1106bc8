"""Shards: the arrays of a folder in files of at most 5 GB, and the index that other tools use to find them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO

import numpy as np

from anyaccel.arguments import shown
from anyaccel.errors import StateError
from anyaccel.saved_folder import strict_json, tensor_file
from anyaccel.saved_folder.manifest import ArraysFile, is_saved
from anyaccel.saved_folder.storage import Storage, unique_token

INDEX = "model.safetensors.index.json"
"""Name of the index that transformers, accelerate and others look for."""
LARGEST_SHARD = 5 * 10**9
_WRITER = "anyaccel"
_LARGEST_INDEX = 256 * 2**20


def written(
    storage: Storage,
    group: str,
    arrays: Mapping[str, np.ndarray],
    largest: int,
    pause: Callable[[], object] | None = None,
) -> Iterator[ArraysFile]:
    """Write arrays into new files of a folder, one file for each step of this iterator.

    Args:
        storage: The folder.
        group: Prefix of the names of the files.
        arrays: Arrays by name.
        largest: Maximum bytes of arrays in one file, unless a single one has more.
        pause: See `tensor_file.write`.

    Raises:
        StateError: safetensors has no such dtype or name.
        OSError: the folder cannot be written to.
    """
    split: list[dict[str, np.ndarray]] = []  # in their order, cut where a file would become too large
    in_last = 0
    for name, array in arrays.items():
        if not split or in_last + array.nbytes > largest:
            split.append({})
            in_last = 0
        split[-1][name] = array
        in_last += array.nbytes
    for shard in split:
        name = f"{group}-{unique_token()}.safetensors"
        try:
            with storage.create(name) as stream:
                digests, size = tensor_file.write(stream, shard, pause=pause)
        except StateError as error:
            kinds = ", ".join(sorted({str(array.dtype) for array in arrays.values()}))
            problem = f"the state cannot be written as safetensors: {error.problem}"
            raise StateError(problem, cause=f"it has {kinds}") from error
        yield ArraysFile(file=name, group=group, size=size, digests=digests)


def read(storage: Storage, file: ArraysFile, *, mapped: bool = False) -> dict[str, np.ndarray]:
    """Return the arrays of a file, after checking every byte; see `tensor_file.read` for `mapped`.

    Raises:
        StateError: it is missing, was changed, or is incomplete.
    """
    name, size = storage.file_name(file.file), storage.size(file.file)
    missing = StateError(f"{name!r} is missing or not a regular file", hint="copy the whole folder")
    if size is None:
        raise missing
    problem = "its size differs"
    try:
        if size == file.size:
            with storage.open(file.file) as stream:
                if file.digests is not None:
                    return tensor_file.read(stream, file.size, file.digests, mapped=mapped)
                contents = stream.read(file.size)  # of schema version 1, which has one hash of all
                if hashlib.sha256(contents).hexdigest() != file.sha256:
                    raise StateError("its hash differs")
                return tensor_file.read(BytesIO(contents), file.size)
    except FileNotFoundError:  # removed a moment ago
        raise missing from None
    except StateError as error:
        if error.hint:
            raise
        problem = error.problem
    raise StateError(
        f"{name!r} differs from what was written: {problem}",
        cause=f"{size:,} bytes; written: {file.size:,}",
        hint="copy the folder again, or save again",
    )


def index_text(files: Sequence[ArraysFile], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the index of files: which of them each array is in, in the form that transformers writes."""
    total = sum(array.nbytes for array in arrays.values())
    places = {name: file.file for file in files if file.digests is not None for name in file.digests.tensors}
    index = {"metadata": {"total_size": total, "written_by": _WRITER}, "weight_map": dict(sorted(places.items()))}
    return json.dumps(index, indent=1).encode()


def has_foreign_index(storage: Storage) -> bool:
    """Whether a folder has an index that something else wrote."""
    size = storage.size(INDEX)
    if size is None or size > _LARGEST_INDEX:
        return INDEX in (storage.names() or ())
    with storage.open(INDEX) as stream:
        text = stream.read(size)
    try:
        index = strict_json.parse(text)
        return bool(index["metadata"]["written_by"] != _WRITER)
    except ValueError:  # beside a manifest a store may have a part of ours
        return storage.replaces_at_once or not is_saved(storage)
    except (TypeError, KeyError):
        return True


# -- -------------------------------------------------------------------------------------------------------------------
# Checkpoints of other libraries in several files: which file a folder has, and which shard each tensor is in.


INDEX_ENDING = ".index.json"
USUAL_NAMES = ("model", "diffusion_pytorch_model", "pytorch_model", "adapter_model")
"""Names that libraries give to files of weights in a folder."""


def weight_file_in(folder: Storage, suffixes: Sequence[str]) -> str:
    """Return the name of the file, or of the index of shards, that a folder has.

    Args:
        folder: Folder of a library's checkpoint.
        suffixes: Endings of files of weights, the preferred first.

    Raises:
        StateError: it has no weight file, or several.
    """
    if is_saved(folder):
        raise StateError(
            f"{folder.name!r} is a saved graph or a checkpoint, not a weight file",
            hint=f"load all of it with ModelGraph.load({folder.name!r}), or load the matching parts with strict=False",
        )
    endings = tuple(ending for suffix in suffixes for ending in (suffix, f"{suffix}{INDEX_ENDING}"))
    there = sorted(folder.names() or ())
    names = [name for name in there if name.endswith(endings) and folder.size(name) is not None]
    for suffix in suffixes:
        files = [name for name in names if name.endswith(suffix)]
        for name in (
            *(f"{usual}{suffix}{INDEX_ENDING}" for usual in USUAL_NAMES),
            *(f"{usual}{suffix}" for usual in USUAL_NAMES),
        ):
            if name in names:
                return name
        indexes = [name for name in names if name.endswith(f"{suffix}{INDEX_ENDING}")]
        if len(indexes or files) == 1:
            return (indexes or files)[0]
        if files:
            break
    raise StateError(
        f"{folder.name!r} has {'several files' if files else 'no file'} of weights",
        available=", ".join(there[:20]),
        hint="pass the file itself",
    )


def shard_map(folder: Storage, index: str, suffixes: Sequence[str]) -> dict[str, str]:
    """Return the file of each tensor in an index of shards, by the tensor's name.

    Args:
        folder: The folder of the index.
        index: Name of the index.
        suffixes: File extensions of weights.

    Raises:
        StateError: it is not such an index, or names files in other places.
    """
    try:
        size = folder.size(index) or 0
        if size > _LARGEST_INDEX:
            raise ValueError("it is too large")
        with folder.open(index) as stream:
            weight_map: dict[str, str] = json.loads(stream.read(size))["weight_map"]
        are_names = isinstance(weight_map, dict)
        for name in weight_map.values() if are_names else ():  # of files of weights in the folder of the index
            if not isinstance(name, str) or not name.endswith(tuple(suffixes)) or set(name) & set("/\\:\x00"):
                are_names = False
        if not are_names:
            raise ValueError(f"weight_map is {shown(weight_map)}")
    except (ValueError, KeyError, TypeError, RecursionError, OSError) as error:
        problem = f"{folder.file_name(index)!r} is not an index of shards: {type(error).__name__}: {error}"
        raise StateError(problem, hint="pass an index with weight_map={'NAME': 'FILE IN ITS FOLDER'}") from error
    return weight_map
