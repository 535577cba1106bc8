"""Profiles beside other programs: instructions of the same names, and programs of a cache on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("profile_script.py")
GRAPHS = ("one-two", "two-three", "three-one")
"""JAX sorts parameters by node, by which the last two are the same computation."""


def profiled(graphs: tuple[str, ...], folder: Path, cache: Path | None, parameters: str = "whole") -> list[list[str]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_COMPILATION", "JAX_PERS"))}
    if cache is not None:
        kept |= {
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    kept["JAX_NUM_CPU_DEVICES"] = "2"
    command = [sys.executable, str(SCRIPT), parameters, str(folder), *graphs]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env=kept)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_programs_of_the_same_computations_have_their_own_nodes(tmp_path: Path) -> None:
    expected = [sorted(graph.split("-")) for graph in GRAPHS]
    assert profiled(GRAPHS, tmp_path, None) == expected


def test_programs_of_a_cache_on_disk_have_the_nodes_of_their_graph(tmp_path: Path) -> None:
    """They keep numbers, and scopes, of the process that compiled them."""
    cache = tmp_path / "cache"
    assert profiled(GRAPHS[:1], tmp_path, cache) == [["one", "two"]]
    n_compiled = len(list(cache.iterdir()))
    assert profiled(GRAPHS[:1], tmp_path, cache) == [["one", "two"]]
    assert len(list(cache.iterdir())) == n_compiled  # read from there
    assert profiled(GRAPHS[::-1], tmp_path, cache) == [sorted(graph.split("-")) for graph in GRAPHS[::-1]]


def test_divided_programs_of_a_cache_on_disk_have_the_nodes_of_their_graph(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert profiled(GRAPHS[1:], tmp_path, cache, "divided") == [["three", "two"], ["one", "three"]]
