"""Saved folders: one JSON manifest and files of arrays as safetensors, published at once by renaming; no pickle.

The manifest names every other file, with its size and hash. Files of arrays have names made of their contents and are
never overwritten: who reads while another writes gets the old contents or the new, never a mixture.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

from anyaccel.arguments import shown
from anyaccel.errors import ConfigError, StateError

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
_FORMAT = "anyaccel"
_LARGEST_MANIFEST = 256 * 2**20
_HINT = "give the folder that save() wrote"
_ARRAYS = re.compile(r"state-[0-9a-f]{16}\.safetensors")
_TEMPORARY = re.compile(r"\.(manifest\.json|state-[0-9a-f]{16}\.safetensors)\.\d+\.tmp")
_KINDS = {"F": "f", "I": "i", "U": "u", "C": "c"}
"""NumPy's kinds by the first letter of the codes of safetensors."""
_LEFT_BEHIND_SECONDS = 3600.0  # no writer takes so long


def write(folder: str | os.PathLike[str], parts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write plain data and arrays into a folder, which holds them or what it held before, whatever happens.

    Args:
        folder: made if it is not there.
        parts: plain data by name, for the manifest.
        arrays: of numbers, by name.

    Raises:
        ConfigError: the folder has a manifest of something else, or `parts` are not plain.
        StateError: arrays that safetensors does not know.
        OSError: the folder cannot be written to.
    """
    path = _path(folder)
    earlier = _earlier(path)
    path.mkdir(parents=True, exist_ok=True)
    entry = _write_arrays(path, arrays)
    manifest = {
        "format": _FORMAT,
        "schema_version": SCHEMA_VERSION,
        "written_by": {name: metadata.version(name) for name in ("anyaccel", "numpy", "safetensors")},
        **parts,
        "arrays": [entry],
    }
    try:
        text = json.dumps(manifest, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"what was to be saved in {str(path)!r} is not plain data: {error}") from error
    _publish(path / MANIFEST, text.encode())
    _remove_unused(path, {str(each["file"]) for each in earlier} - {entry["file"]})


def read(folder: str | os.PathLike[str], part: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The manifest of a folder, which must have `part`, and its arrays, of which every byte was checked.

    Raises:
        ConfigError: no such folder, not a manifest of this library, or one of a newer version.
        StateError: a file of arrays is missing, was changed, or is incomplete.
    """
    while True:
        path, manifest = _manifest_with(folder, part)
        arrays: dict[str, np.ndarray] = {}
        try:
            for entry in _entries(path, manifest):
                arrays.update(_read_arrays(path, entry))
            return manifest, arrays
        except StateError:
            if _manifest(path) == manifest:  # else it was replaced meanwhile, and the files that it named are gone
                raise


def part(folder: str | os.PathLike[str], name: str) -> Any:
    """A part of the manifest of a folder, without its arrays.

    Raises:
        ConfigError: as `read`.
    """
    return _manifest_with(folder, name)[1][name]


def _manifest_with(folder: Any, part: str) -> tuple[Path, dict[str, Any]]:
    path = _path(folder)
    manifest = _manifest(path)
    if part not in manifest:
        known = ", ".join(sorted(set(manifest) - {"format", "schema_version", "written_by", "arrays"}))
        raise ConfigError(f"{str(path)!r} holds no {part}", available=known, hint=_HINT)
    return path, manifest


def _remove_unused(path: Path, replaced: set[str]) -> None:
    """Remove the replaced files of arrays, and after an hour what writers that were killed have left behind."""
    named = {entry["file"] for entry in _entries(path, _manifest(path))}
    for file in path.iterdir():
        is_arrays = _ARRAYS.fullmatch(file.name) is not None and file.name not in named
        if not (is_arrays or _TEMPORARY.fullmatch(file.name)):
            continue
        with suppress(OSError):  # another process may read it, or have removed it
            if file.name in replaced or time.time() - file.stat().st_mtime > _LEFT_BEHIND_SECONDS:
                file.unlink()


def _path(folder: Any) -> Path:
    if not isinstance(folder, (str, os.PathLike)) or not str(folder):
        raise ConfigError(f"{shown(folder)} is not a folder", hint="write save('FOLDER')")
    return Path(folder).expanduser()


def _earlier(path: Path) -> list[dict[str, Any]]:
    """The files of arrays that a folder has now.

    Raises:
        ConfigError: it is a file, or has a manifest of something else, which is not overwritten.
    """
    if path.is_file():
        raise ConfigError(f"{str(path)!r} is a file", hint="choose a name for a new folder")
    return _entries(path, _manifest(path)) if (path / MANIFEST).exists() else []


def _manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    if not file.is_file():
        there = ", ".join(sorted(each.name for each in path.iterdir())[:10]) if path.is_dir() else "no such folder"
        raise ConfigError(f"{str(path)!r} has no {MANIFEST}", available=there, hint=_HINT)
    problem = f"{str(file)!r} is not a manifest of {_FORMAT}"
    if file.stat().st_size > _LARGEST_MANIFEST:
        raise ConfigError(f"{problem}: it is too large", hint=_HINT)
    try:
        given = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{problem}: {error}", hint=_HINT) from error
    if not isinstance(given, dict) or given.get("format") != _FORMAT:
        raise ConfigError(problem, available="another format", hint=_HINT)
    version = given.get("schema_version")
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        raise ConfigError(
            f"{str(file)!r} is of schema version {shown(version)}, written by {shown(given.get('written_by'))}",
            available=f"this version of anyaccel reads versions up to {SCHEMA_VERSION}",
            hint="read it with the version of anyaccel that wrote it, or a newer one",
        )
    return given


def _entries(path: Path, manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = manifest.get("arrays")
    entries: list[Any] = given if isinstance(given, list) else [None]
    for entry in entries:
        if not isinstance(entry, dict) or not _is_plain_name(entry.get("file")):
            problem = f"{str(path / MANIFEST)!r} names {shown(entry)}, which is no file of arrays in its folder"
            raise ConfigError(problem, hint=_HINT)
    return entries


def _is_plain_name(name: Any) -> bool:
    """Whether a name is that of a file beside the manifest, and in no other place."""
    return isinstance(name, str) and name.endswith(".safetensors") and not set(name) & set("/\\:\x00")


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.numpy import save

    try:
        contents = save({name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()})
    except (SafetensorError, ValueError, KeyError) as error:
        kinds = ", ".join(sorted({str(array.dtype) for array in arrays.values()}))
        raise StateError(f"the state cannot be written as safetensors: {error}", available=f"it has {kinds}") from error
    digest = hashlib.sha256(contents).hexdigest()
    name = f"state-{digest[:16]}.safetensors"
    _publish(path / name, contents)
    return {"file": name, "bytes": len(contents), "sha256": digest}


def _publish(file: Path, contents: bytes) -> None:
    """A file with these contents, all at once: written beside it, on the disk, and then renamed."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(contents)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the name is on the disk, too
        descriptor = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _read_arrays(path: Path, entry: Mapping[str, Any]) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError

    file = path / entry["file"]
    if file.is_symlink() or not file.is_file():
        raise StateError(f"{str(file)!r} is missing, or not a plain file", hint="copy the whole folder")
    contents = file.read_bytes()
    if len(contents) != entry.get("bytes") or hashlib.sha256(contents).hexdigest() != entry.get("sha256"):
        raise StateError(
            f"{str(file)!r} is not as it was written: it was changed, or is incomplete",
            available=f"{len(contents):,} bytes; written: {shown(entry.get('bytes'))}",
            hint="copy the folder again, or save again",
        )
    try:
        return _decoded(contents)
    except (SafetensorError, ValueError, KeyError) as error:
        raise StateError(f"{str(file)!r} cannot be read: {error}", hint="save again") from error


def _decoded(contents: bytes) -> dict[str, np.ndarray]:
    """The arrays of a file, read-only; safetensors itself writes arrays of bfloat16 and reads none."""
    from safetensors import deserialize

    return {
        name: np.frombuffer(view["data"], _dtype_of(view["dtype"])).reshape(view["shape"])
        for name, view in deserialize(contents)  # type: ignore[no-untyped-call]
    }


def _dtype_of(code: str) -> np.dtype[Any]:
    """NumPy's dtype for the code of safetensors, such as "F32"."""
    if code == "BOOL":
        return np.dtype(bool)
    if code == "BF16":
        return _bfloat16()
    kind, bits = code[:1], code[1:]
    if kind not in _KINDS or not bits.isdigit():
        raise KeyError(code)
    return np.dtype(f"<{_KINDS[kind]}{int(bits) // 8}")


def _bfloat16() -> np.dtype[Any]:
    """NumPy has it from ml_dtypes, which the plugins bring along whose frameworks have it."""
    try:
        import_module("ml_dtypes")
    except ImportError as error:
        problem, hint = "the state has arrays of bfloat16, which NumPy lacks", "python -m pip install ml_dtypes"
        raise StateError(problem, hint=hint) from error
    return np.dtype("bfloat16")
