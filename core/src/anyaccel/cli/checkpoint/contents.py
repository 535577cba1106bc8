"""`anyaccel checkpoint show`: the content of one checkpoint or saved graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyaccel.cli.checkpoint.saved import Saved, find_saved
from anyaccel.cli.console import format_size, print_json, print_line, print_table

_OWN = ("format", "schema_version", "written_by", "arrays")


def run(folder: str, as_json: bool) -> None:
    """Print the content of a folder; for the folder of a run, of its newest checkpoint."""
    saved = find_saved(folder)
    tensors = saved.tensors()
    if as_json:
        arrays = [
            {"name": name, "group": group, "dtype": entry.dtype, "shape": list(entry.shape), "bytes": entry.nbytes}
            for name, (group, entry) in tensors.items()
        ]
        parts = {name: part for name, part in saved.manifest.items() if name not in _OWN}
        print_json({**_header(saved), "parts": parts, "arrays": arrays})
        return
    _print_header(saved)
    rows = [
        (name, entry.dtype, str(list(entry.shape)), format_size(entry.nbytes)) for name, (_, entry) in tensors.items()
    ]
    print_table(("array", "dtype", "shape", "size"), rows)
    total = sum(entry.nbytes for _, entry in tensors.values())
    print_line(f"{len(tensors)} arrays, {format_size(total) or '0 B'}, in {len(saved.files)} files")


def _header(saved: Saved) -> dict[str, Any]:
    return {
        "folder": saved.name,
        "written": None if saved.written is None else saved.written.isoformat(timespec="seconds"),
        "written_by": saved.manifest.get("written_by"),
        "schema_version": saved.manifest.get("schema_version"),
    }


def _print_header(saved: Saved) -> None:
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
