"""`anyaccel checkpoint`: what the folders of runs and saved graphs hold, by their manifests and the headers of their
files; only `convert` needs a framework.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from anyaccel.adapter.weight_files import WeightFiles
from anyaccel.cli.console import format_size, print_json, print_line, print_table
from anyaccel.errors import AnyaccelError, ConfigError, StateError
from anyaccel.graph import weight_files
from anyaccel.graph.state_dict import VALUES
from anyaccel.graph.weight_loading import plain_names
from anyaccel.phases.checkpointing.position import PART, Position
from anyaccel.phases.checkpointing.run_folder import LATEST, RunFolder
from anyaccel.registry import registry
from anyaccel.saved_folder import GROUP, INDEX, MANIFEST, Storage, is_saved, shards, storage_of, tensor_file
from anyaccel.saved_folder.manifest import ArraysFile, arrays_files, load

_OWN = ("format", "schema_version", "written_by", "arrays")
_POSITION = ("phase", "epoch", "step", "score", "stop_reason")
_NONE = "-"


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved folder.

    Attributes:
        name: Name of the folder, as messages show it.
        storage: The folder.
        manifest: Its manifest.
        files: Its files of arrays.
    """

    name: str
    storage: Storage
    manifest: Mapping[str, Any]
    files: tuple[ArraysFile, ...]

    @property
    def position(self) -> Mapping[str, Any]:
        """The position of its phase, as plain data; empty if it is not a checkpoint."""
        position = self.manifest.get(PART)
        return position if isinstance(position, Mapping) else {}

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration of its graph; empty if it does not have a graph."""
        config = self.manifest.get("graph")
        return config if isinstance(config, Mapping) else {}

    @property
    def size(self) -> int:
        """Bytes of its files of arrays."""
        return sum(file.size for file in self.files)

    @property
    def written(self) -> datetime | None:
        """When it was written, in local time; None where its store does not tell."""
        return self.storage.modified(MANIFEST)

    def tensors(self) -> dict[str, tuple[str, tensor_file.TensorEntry]]:
        """Group and entry of each of its arrays, by name; those that only a run needs start with `run:`.

        Raises:
            StateError: a file is missing or has no such header.
        """
        entries: dict[str, tuple[str, tensor_file.TensorEntry]] = {}
        for file in self.files:
            prefix = "" if file.group == "state" else f"{file.group}:"
            for name, entry in _contents(self.storage, file).items():
                entries[f"{prefix}{name}"] = file.group, entry
        return entries


def _contents(storage: Storage, file: ArraysFile) -> dict[str, tensor_file.TensorEntry]:
    name = storage.file_name(file.file)
    if storage.size(file.file) is None:
        raise StateError(f"{name!r} is missing or not a regular file", hint="copy the whole folder")
    try:
        with storage.open(file.file) as stream:
            return tensor_file.contents(stream, file.size)
    except StateError as error:
        raise StateError(f"{name!r} cannot be read: {error.problem}", hint="copy the folder again") from error


def run_names(folder: str) -> list[str]:
    """Return the complete checkpoints in the folder of a run, oldest first.

    Raises:
        ConfigError: it has no complete checkpoint.
    """
    names = RunFolder(folder).names()
    if names:
        return names
    storage = storage_of(folder)
    there = storage.names()
    if is_saved(storage):
        hint = f"it is a single saved graph or checkpoint: use anyaccel checkpoint show {folder}"
    else:
        hint = "pass the folder of a Checkpoint(...)"
    if not there:
        cause = "the folder does not exist" if there is None else "the folder is empty"
        cause = "it is a file" if Path(str(folder)).is_file() else cause
        raise ConfigError(f"{storage.name!r} has no checkpoints", cause=cause, hint=hint)
    cause = f"it has {', '.join(sorted(there)[:10])}"
    raise ConfigError(f"{storage.name!r} has no checkpoints", cause=cause, hint=hint)


def read_saved(storage: Storage) -> Saved:
    """Return one saved graph or checkpoint.

    Raises:
        ConfigError: the folder has no manifest of this library, or a damaged one.
    """
    whole = load(storage)
    return Saved(storage.name, storage, whole, tuple(arrays_files(storage, whole)))


def find_saved(folder: str) -> Saved:
    """Return a saved graph or checkpoint; of the folder of a run, the newest checkpoint.

    Raises:
        ConfigError: it is neither.
    """
    storage = storage_of(folder)
    if not is_saved(storage):
        storage = storage.subfolder(run_names(folder)[-1])
    return read_saved(storage)


# -- list: the checkpoints of a run ------------------------------------------------------------------------------------


def list_checkpoints(folder: str, as_json: bool) -> None:
    """Print the checkpoints in the folder of a run, oldest first, and why others cannot be read."""
    storage, names = storage_of(folder), run_names(folder)
    saved: dict[str, Saved] = {}
    failures: dict[str, str] = {}
    for name in names:
        try:
            saved[name] = read_saved(storage.subfolder(name))
        except ConfigError as error:
            failures[name] = str(error)
    scores = {name: score for name, checkpoint in saved.items() if (score := _score(checkpoint)) is not None}
    best = min(scores, key=lambda name: scores[name], default=None)
    entries = [_entry(name, checkpoint, name == names[-1], name == best) for name, checkpoint in saved.items()]
    if as_json:
        print_json({"folder": storage.name, "checkpoints": entries, "unreadable": failures})
        return
    rows = [_row(entry, saved[entry["name"]]) for entry in entries]
    print_table(("checkpoint", "phase", "epochs", "steps", "score", "size", "written", ""), rows)
    for name, problem in failures.items():
        print_line(f"{name} cannot be read: {problem}", style="red")


def _score(saved: Saved) -> float | None:
    score = saved.position.get("score")
    return score if isinstance(score, (int, float)) and not isinstance(score, bool) else None


def _entry(name: str, saved: Saved, is_newest: bool, is_best: bool) -> dict[str, Any]:
    position = saved.position
    return {
        "name": name,
        "phase": position.get("phase"),
        "epochs": position.get("epoch"),
        "steps": position.get("step"),
        "score": _score(saved),
        "bytes": saved.size,
        "written": None if saved.written is None else saved.written.isoformat(timespec="seconds"),
        "newest": is_newest,
        "best": is_best,
    }


def _row(entry: dict[str, Any], saved: Saved) -> tuple[str, ...]:
    score = "" if entry["score"] is None else f"{entry['score']:.6g}"
    marks = ", ".join(mark for mark in ("newest", "best") if entry[mark])
    done = (str(entry["phase"]), str(entry["epochs"]), str(entry["steps"]))
    written = "" if saved.written is None else f"{saved.written:%Y-%m-%d %H:%M:%S}"
    return entry["name"], *done, score, format_size(saved.size), written, marks


# -- show: the content of one checkpoint or saved graph ----------------------------------------------------------------


def show(folder: str, as_json: bool) -> None:
    """Print the content of a folder; for the folder of a run, of its newest checkpoint."""
    saved = find_saved(folder)
    tensors = saved.tensors()
    if as_json:
        arrays = [
            {"name": name, "group": group, "dtype": entry.dtype, "shape": list(entry.shape), "bytes": entry.nbytes}
            for name, (group, entry) in tensors.items()
        ]
        parts = {name: part for name, part in saved.manifest.items() if name not in _OWN}
        print_json(
            {
                "folder": saved.name,
                "written": None if saved.written is None else saved.written.isoformat(timespec="seconds"),
                "written_by": saved.manifest.get("written_by"),
                "schema_version": saved.manifest.get("schema_version"),
                "parts": parts,
                "arrays": arrays,
            }
        )
        return
    position = saved.position
    kind = "checkpoint" if position else "saved graph" if saved.config else "saved folder"
    print_line(f"{kind} {saved.name}")
    if position:
        done = f"{position.get('epoch')} epochs and {position.get('step')} steps of the next"
        score = f"; score {position['score']}" if position.get("score") is not None else ""
        print_line(f"phase {position.get('phase')!r}: {done}{score}")
    writers = saved.manifest.get("written_by")
    versions = ", ".join(f"{name} {version}" for name, version in (writers or {}).items())
    when = "" if saved.written is None else f"{saved.written:%Y-%m-%d %H:%M:%S} "
    print_line(f"written {when}by {versions} (schema {saved.manifest.get('schema_version')})")
    further = sorted(set(saved.manifest) - {*_OWN, "graph", "checkpoint"})
    if further:
        print_line(f"other parts: {', '.join(further)}")
    if saved.config:
        print_line(f"graph {saved.config.get('label')!r}, seed {saved.config.get('seed')}")
        nodes = saved.config.get("nodes")
        rows = [_node_row(node, position) for node in nodes or () if isinstance(node, Mapping)]
        print_table(("node", "model", "framework", "takes"), rows)
    rows = [
        (name, entry.dtype, str(list(entry.shape)), format_size(entry.nbytes)) for name, (_, entry) in tensors.items()
    ]
    print_table(("array", "dtype", "shape", "size"), rows)
    total = sum(entry.nbytes for _, entry in tensors.values())
    print_line(f"{len(tensors)} arrays, {format_size(total) or '0 B'}, in {len(saved.files)} files")


def _node_row(node: Mapping[str, Any], position: Mapping[str, Any]) -> tuple[str, ...]:
    model = node.get("model")
    named: Mapping[str, Any] = model if isinstance(model, Mapping) else {}
    frameworks = position.get("frameworks")
    framework = named.get("framework") or (frameworks if isinstance(frameworks, Mapping) else {}).get(node.get("label"))
    upstreams = node.get("upstreams")
    takes = [upstream if isinstance(upstream, str) else _columns(upstream) for upstream in upstreams or ()]
    kind = named.get("name") or ("custom" if node.get("type") == "model" else node.get("type"))
    return str(node.get("label")), str(kind), str(framework or ""), ", ".join(takes)


def _columns(reference: Any) -> str:
    entries: Mapping[str, Any] = reference if isinstance(reference, Mapping) else {}
    return ", ".join(f"{entries.get('feature_set')}.{name}" for name in entries.get("features") or ())


# -- diff: in what two checkpoints or saved graphs differ --------------------------------------------------------------


def diff(first: str, second: str, as_json: bool) -> int:
    """Print in what two folders differ; returns 1 if they do, otherwise 0."""
    one, other = find_saved(first), find_saved(second)
    plain = list(_plain_differences(_plain(one), _plain(other)))
    arrays = list(_array_differences(_arrays(one), _arrays(other)))
    if as_json:
        named = [{"name": name, "first": a, "second": b} for name, a, b in plain]
        print_json({"first": one.name, "second": other.name, "values": named, "arrays": arrays})
        return int(bool(plain or arrays))
    if not plain and not arrays:
        print_line(f"{one.name} and {other.name} are equal")
        return 0
    if plain:
        print_table(("value", one.name, other.name), [(name, _shown(a), _shown(b)) for name, a, b in plain])
    if arrays:
        header = ("array", "first", "second", "largest difference")
        print_table(
            header,
            [(array["name"], array["first"] or _NONE, array["second"] or _NONE, _largest(array)) for array in arrays],
        )
    return 1


def _plain(saved: Saved) -> dict[str, Any]:
    """Return configuration and position, by path."""
    position = {name: saved.position[name] for name in _POSITION if name in saved.position}
    return {**dict(_flat("graph", saved.config)), **dict(_flat("position", position))}


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flat(f"{path}.{name}", item)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            label = item.get("label", i) if isinstance(item, Mapping) else i
            yield from _flat(f"{path}.{label}", item)
    else:
        yield path, value


def _plain_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in dict.fromkeys([*one, *other]):
        a, b = one.get(name), other.get(name)
        if a != b or (name in one) != (name in other):
            yield name, a, b


def _arrays(saved: Saved) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for file in saved.files:
        prefix = "" if file.group == "state" else f"{file.group}:"
        arrays.update({f"{prefix}{name}": array for name, array in shards.read(saved.storage, file).items()})
    return arrays


def _array_differences(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    for name in dict.fromkeys([*one, *other]):
        a, b = one.get(name), other.get(name)
        if a is None or b is None or a.dtype != b.dtype or a.shape != b.shape:
            yield {"name": name, "first": _spec(a), "second": _spec(b), "largest": None}
        elif a.tobytes() != b.tobytes():
            yield {"name": name, "first": _spec(a), "second": _spec(b), "largest": _largest_difference(a, b)}


def _spec(array: np.ndarray | None) -> str | None:
    return None if array is None else f"{array.dtype}{list(array.shape)}"


def _largest_difference(one: np.ndarray, other: np.ndarray) -> float | int | str:
    """Return the largest absolute difference, exact for integers; text if it is not finite."""
    if one.dtype.kind in "iu":
        unsigned = np.dtype(f"u{one.dtype.itemsize}")
        high, low = np.maximum(one, other), np.minimum(one, other)
        return int((high.astype(unsigned) - low.astype(unsigned)).max())
    kind = np.complex128 if one.dtype.kind == "c" else np.float64
    a, b = one.astype(kind), other.astype(kind)
    with np.errstate(all="ignore"):
        difference = float(np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b)).max())
    return difference if np.isfinite(difference) else str(difference)


def _shown(value: Any) -> str:
    return _NONE if value is None else str(value)


def _largest(difference: Mapping[str, Any]) -> str:
    largest = difference["largest"]
    return f"{largest:.6g}" if isinstance(largest, float) else str(largest or "")


# -- verify: every byte against its hash -------------------------------------------------------------------------------


def verify(folder: str, as_json: bool) -> int:
    """Print which files are intact and which are not; return 1 if something is damaged, otherwise 0."""
    storage = storage_of(folder)
    is_one = is_saved(storage)
    folders = [storage] if is_one else [storage.subfolder(name) for name in run_names(folder)]
    reports = [_verify(folder) for folder in folders]
    if not is_one and (problem := _latest_problem(storage, folders[-1])):
        reports.append({"folder": storage.name, "arrays": 0, "bytes": 0, "problems": [problem]})
    if as_json:
        print_json({"folders": reports})
    else:
        for report in reports:
            if not report["problems"]:
                print_line(
                    f"ok       {report['folder']}: {report['arrays']} arrays, {format_size(report['bytes']) or '0 B'}"
                )
            for problem in report["problems"]:
                print_line(f"damaged  {report['folder']}: {problem}", style="red")
    return int(any(report["problems"] for report in reports))


def _latest_problem(storage: Storage, newest: Storage) -> str:
    """Return why the file that names the newest checkpoint of a run does not; `""` if it does, or is not there."""
    size = storage.size(LATEST)
    if size is None:
        return ""
    with storage.open(LATEST) as stream:
        text = stream.read(size)
    names_newest = storage.file_name(text.decode(errors="replace").removesuffix("\n")) == newest.name
    return "" if names_newest and text.endswith(b"\n") else f"{storage.file_name(LATEST)!r} names another checkpoint"


def _verify(storage: Storage) -> dict[str, Any]:
    """Return size and problems of one folder; each of its files is read, even after a damaged one."""
    problems: list[str] = []
    n_arrays, size = 0, 0
    try:
        saved = read_saved(storage)
        with storage.open(MANIFEST) as stream:
            text = stream.read()
        if text != json.dumps(json.loads(text), indent=1, allow_nan=False).encode():  # blanks have no checksum
            problems.append(f"{storage.file_name(MANIFEST)!r} differs from what was written: its blanks were changed")
        state_arrays: dict[str, np.ndarray] = {}
        run_arrays: dict[str, np.ndarray] = {}
        for file in saved.files:
            size += file.size
            try:
                arrays = shards.read(storage, file, mapped=True)
                n_arrays += len(arrays)
                (run_arrays if file.group == "run" else state_arrays).update(arrays)
            except AnyaccelError as error:
                problems.append(error.problem)
        if not problems and not _has_index(storage, saved.files, state_arrays):
            problems.append(f"{storage.file_name(INDEX)!r}, from which other tools read, differs from what was written")
        if PART in saved.manifest and not problems:
            Position.from_parts(saved.manifest[PART], run_arrays)
    except AnyaccelError as error:
        problems.append(error.problem)
    except OSError as error:
        problems.append(f"{type(error).__name__}: {error}")
    return {"folder": storage.name, "arrays": n_arrays, "bytes": size, "problems": problems}


def _has_index(storage: Storage, files: Sequence[ArraysFile], arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether a folder has the index of its files with a state, to the byte; schema version 1 has no index."""
    state_files = [file for file in files if file.group == GROUP]
    if any(file.digests is None for file in state_files):
        return True
    size = storage.size(INDEX)
    if size is None:
        return False
    with storage.open(INDEX) as stream:
        return stream.read(size) == shards.index_text(state_files, arrays)


# -- convert: the weights as one file for other tools ------------------------------------------------------------------


def convert(folder: str, file: str, node: str | None, as_json: bool) -> None:
    """Write the weights of a folder into a new file.

    Raises:
        ConfigError: no such folder.
        StateError: the file exists already, the folder has no such node, or no plugin writes such files.
    """
    path = weight_files.checked_path(file)
    if weight_files.is_there(path):
        raise StateError(f"{str(path)!r} already exists", hint="choose another name, or remove it first")
    saved = find_saved(folder)
    weights: dict[str, dict[str, np.ndarray]] = {}
    for saved_file in saved.files:
        if saved_file.group != GROUP:
            continue
        for array_name, array in shards.read(saved.storage, saved_file).items():
            node_label, _, key = array_name.partition("/")
            if key.startswith(VALUES):
                weights.setdefault(node_label, {})[key] = array
    if node is not None and node not in weights:
        there = ", ".join(weights) or "no node with weights"
        raise StateError(f"{saved.name!r} has no weights for a node {node!r}", available=there, hint="use one of these")
    if not weights:
        raise StateError(f"{saved.name!r} has no weights", hint="pass a saved graph, or a checkpoint of one")
    chosen = weights if node is None else {node: weights[node]}
    arrays = {
        f"{label}.{name}" if len(chosen) > 1 else name: values[key]
        for label, values in chosen.items()
        for name, key in plain_names(values).items()
    }
    try:
        weight_files.write(path, arrays, _format(saved, chosen))
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be written: {error}", hint="choose another folder") from error
    if as_json:
        print_json({"file": str(path), "folder": saved.name, "names": list(arrays)})
    else:
        print_line(f"{path}: {len(arrays)} arrays of {', '.join(chosen)}, from {saved.name}")


def _format(saved: Saved, labels: Mapping[str, object]) -> str:
    """Return the word for the one framework of these nodes, where it is known and has one."""
    written = saved.position.get("frameworks")
    entries = dict(written) if isinstance(written, Mapping) else {}
    for node in saved.config.get("nodes") or ():
        model = node.get("model") if isinstance(node, Mapping) else None
        if isinstance(model, Mapping):
            entries.setdefault(node.get("label"), model.get("framework"))
    frameworks = {entries.get(label) for label in labels}
    if len(frameworks) > 1:
        return ""
    try:
        files = registry().computing(str(frameworks.pop())).capability(WeightFiles)
        return "" if files is None else files.safetensors_format
    except AnyaccelError:  # its plugin is not here
        return ""
