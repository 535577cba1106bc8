"""Manifest: the JSON file of a saved folder, with its configuration, and size and hashes of all other files in it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from anyaccel.arguments import shown
from anyaccel.errors import ConfigError
from anyaccel.saved_folder import strict_json
from anyaccel.saved_folder.storage import Storage
from anyaccel.saved_folder.tensor_file import Digests

MANIFEST = "manifest.json"
PREVIOUS = "manifest.previous.json"
"""A copy of the manifest, while another is written in its place into a store that may be left with a part of it."""
SCHEMA_VERSION = 2
ARRAYS_FILE = re.compile(r"(state|run)-[0-9a-f]{16}\.safetensors")
_FORMAT = "anyaccel"
_LARGEST = 256 * 2**20
_OWN = ("format", "schema_version", "written_by", "arrays", "sha256")
_SHA256, _CRC32 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{8}")
HINT = "pass the folder that save() wrote"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraysFile:
    """The entry of a manifest for a file of arrays.

    Attributes:
        file: Name of the file, directly in the folder.
        group: `"state"` or `"run"`.
        size: Size in bytes.
        digests: Digests of its header and tensors; None in schema version 1.
        sha256: Hash of the whole file; `""` from schema version 2 on.
    """

    file: str
    group: str
    size: int
    digests: Digests | None = None
    sha256: str = ""


def encode(name: str, parts: Mapping[str, Any], files: Sequence[ArraysFile], versions: Mapping[str, str]) -> bytes:
    """Return the text of a manifest.

    Args:
        name: Name of the folder, for messages.
        parts: Plain data by name.
        files: Files of arrays, each with `digests`.
        versions: Versions of more software that created the arrays.

    Raises:
        ConfigError: `parts` are not plain data, or have a name that the manifest itself uses.
    """
    taken = [key for key in parts if key in _OWN]
    if taken:
        raise ConfigError(
            f"{', '.join(map(repr, taken))} cannot be saved in {name!r}: the manifest has a part with that name",
            available=f"any name but {', '.join(_OWN)}",
            hint="choose another name",
        )
    entries = []
    for file in files:
        if file.digests is None:
            raise ValueError(f"{file.file} has no hashes")
        entries.append(
            {
                "file": file.file,
                "group": file.group,
                "bytes": file.size,
                "header_sha256": file.digests.header,
                "crc32": dict(file.digests.tensors),
            }
        )
    manifest = {
        "format": _FORMAT,
        "schema_version": SCHEMA_VERSION,
        "written_by": {name: metadata.version(name) for name in ("anyaccel", "numpy")} | dict(versions),
        **parts,
        "arrays": entries,
    }
    try:
        manifest = strict_json.parse(strict_json.canonical(manifest))  # as it is read: keys are text, tuples lists
        manifest["sha256"] = _sha256(manifest)
        return json.dumps(manifest, indent=1, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the data to save in {name!r} are not plain data: {error}") from error


def is_saved(storage: Storage) -> bool:
    """Whether a folder has a manifest, if only the one before."""
    names = storage.names() or ()
    return MANIFEST in names or (PREVIOUS in names and not storage.replaces_at_once)


def load(storage: Storage) -> dict[str, Any]:
    """Return the manifest of a folder, or the previous one if a store has only a part of this one.

    Raises:
        ConfigError: it does not exist, belongs to something else or a newer version, or was changed.
    """
    try:
        return _load(storage, MANIFEST)
    except ConfigError:
        if storage.replaces_at_once or storage.size(PREVIOUS) is None or is_newer(storage):
            raise
        return _load(storage, PREVIOUS)


def is_newer(storage: Storage) -> bool:
    """Whether the manifest of a folder was written by a version that this one cannot read."""
    try:
        version = _parsed(storage, MANIFEST).get("schema_version")
    except ConfigError:
        return False
    return isinstance(version, int) and version > SCHEMA_VERSION


def is_damaged(storage: Storage) -> bool:
    """Whether the manifest of a folder cannot be read, and no newer version of this library would read it either."""
    if not is_saved(storage):
        return False
    try:
        load(storage)
    except ConfigError:
        return not is_newer(storage)
    return False


def keep_previous(storage: Storage) -> None:
    """Keep a copy of the manifest, where a process that ends while it replaces the manifest may leave a part of it.

    Raises:
        OSError: the folder cannot be written to.
    """
    if storage.replaces_at_once or storage.size(MANIFEST) is None:
        return
    with suppress(ConfigError):  # of a part there is no copy: the one that is there is of the manifest before it
        _load(storage, MANIFEST)
        with storage.open(MANIFEST) as stream:
            contents = stream.read()
        storage.publish(PREVIOUS, contents)


def _parsed(storage: Storage, name: str) -> dict[str, Any]:
    """Return the content of a manifest of this library, of any version."""
    size = storage.size(name)
    if size is None:
        names = storage.names()
        cause = (
            "the folder does not exist" if names is None else (f"it has {', '.join(sorted(names)[:10]) or 'no files'}")
        )
        if names is None and os.path.isfile(storage.name):  # noqa: PTH113  (it may be a URL)
            cause = "it is a file, but save() writes a folder"
        raise ConfigError(f"{storage.name!r} has no {name}", cause=cause, hint=HINT)
    problem = f"{storage.file_name(name)!r} is not a manifest of {_FORMAT}"
    if size > _LARGEST:
        raise ConfigError(f"{problem}: it is too large", hint=HINT)
    with storage.open(name) as stream:
        text = stream.read(size)
    try:
        manifest = strict_json.parse(text)
    except ValueError as error:
        raise ConfigError(f"{problem}: {error}", hint=HINT) from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise ConfigError(problem, cause="another format", hint=HINT)
    return manifest


def _load(storage: Storage, name: str) -> dict[str, Any]:
    """Return a manifest that is whole, of a version that can be read."""
    manifest, file = _parsed(storage, name), storage.file_name(name)
    version = manifest.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        raise ConfigError(
            f"{file!r} has schema version {shown(version)}, written by {shown(manifest.get('written_by'))}",
            cause=f"this version of anyaccel reads versions up to {SCHEMA_VERSION}",
            hint="read it with the version of anyaccel that wrote it, or a newer version",
        )
    if manifest["schema_version"] > 1 and manifest.pop("sha256", None) != _sha256(manifest):
        raise ConfigError(
            f"{file!r} differs from what was written: it was changed, or is incomplete",
            hint="copy the folder again, or save again",
        )
    return manifest


def part_of(storage: Storage, manifest: Mapping[str, Any], name: str) -> Any:
    """Return a part of a manifest.

    Raises:
        ConfigError: it has no such part.
    """
    if name in _OWN or name not in manifest:
        parts = ", ".join(sorted(parts_of(manifest)))
        raise ConfigError(f"{storage.name!r} holds no {name}", available=parts, hint=HINT)
    return manifest[name]


def parts_of(manifest: Mapping[str, Any]) -> set[str]:
    """Return the names of the parts of a manifest."""
    return set(manifest) - set(_OWN)


def arrays_files(storage: Storage, manifest: Mapping[str, Any]) -> list[ArraysFile]:
    """Return the files of arrays that a manifest names.

    Raises:
        ConfigError: an entry is malformed, or names a file in another place.
    """
    entries = manifest.get("arrays")
    listed: list[Any] = entries if isinstance(entries, list) else [None]
    files = []
    for entry in listed:
        try:
            file, nbytes = entry["file"], entry["bytes"]
            if not isinstance(nbytes, int) or isinstance(nbytes, bool) or nbytes < 0 or not ARRAYS_FILE.fullmatch(file):
                raise ValueError(file)
            group = file.partition("-")[0]
            if entry.get("group", group) != group:
                raise ValueError(group)
            sha256, digests = "", None
            if "sha256" in entry:
                sha256 = _matching(_SHA256, entry["sha256"])
            elif not isinstance(entry["crc32"], dict):
                raise ValueError("crc32")
            else:
                tensors = {name: _matching(_CRC32, checksum) for name, checksum in entry["crc32"].items()}
                digests = Digests(_matching(_SHA256, entry["header_sha256"]), tensors)
            files.append(ArraysFile(file=file, group=group, size=nbytes, digests=digests, sha256=sha256))
        except (TypeError, KeyError, ValueError) as error:
            problem = (
                f"{storage.file_name(MANIFEST)!r} names {shown(entry)}, which is not a file of arrays in its folder"
            )
            raise ConfigError(problem, hint=HINT) from error
    return files


def _sha256(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(strict_json.canonical(manifest)).hexdigest()


def _matching(pattern: re.Pattern[str], text: Any) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(text)
    return str(text)
