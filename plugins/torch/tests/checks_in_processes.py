"""Run named checks in this process of several, and write what became of each."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any


def run(checks: Mapping[str, Callable[[], Any]], names: Iterable[str], folder: Path, rank: int) -> None:
    """Write the traceback of each check into `RANK.json`, `""` for one that holds."""
    results = {}
    for name in names:
        try:
            checks[name]()
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc()
    (folder / f"{rank}.json").write_text(json.dumps(results))
