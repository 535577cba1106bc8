"""Areas of the repository, and the mutants that are drawn from each."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

from mutations import Mutant, SourceFile


class Area:
    """Sources below `root`, and the tests that are to notice changes in them."""

    def __init__(self, name: str, settings: dict[str, Any], root: Path) -> None:
        self.name = name
        self.root = root
        self.tests: list[str] = settings["tests"]
        self.size: int = settings["mutants"]
        without = {path for pattern in settings["without"] for path in root.glob(pattern)}
        self.sources = sorted({path for pattern in settings["sources"] for path in root.glob(pattern)} - without)

    def sample(self, size: int, seed: int) -> list[Mutant]:
        """One mutant of each of `size` lines, drawn by lot.

        The lot of a line depends on the seed, its file and its text only, so that a change elsewhere draws no others.
        """
        files = [SourceFile(str(path.relative_to(self.root)), path.read_text("utf-8")) for path in self.sources]
        lots = sorted(
            (lot, file.file, line, file) for file in files for line, lot in _lots_of_lines(file, f"{self.name} {seed}")
        )
        chosen: list[Mutant] = []
        for lot, _, line, file in lots:
            if len(chosen) == size:
                break
            if mutants := file.mutants(line):
                family = min({mutant.family for mutant in mutants}, key=lambda name: _lot(lot, name))
                of_family = [mutant for mutant in mutants if mutant.family == family]
                chosen.append(min(of_family, key=lambda mutant: _lot(lot, mutant.operator, mutant.after)))
        return chosen


def _lots_of_lines(file: SourceFile, seed: str) -> list[tuple[int, str]]:
    texts = file.code.splitlines()
    seen: Counter[str] = Counter()
    lots = []
    for line in file.lines():
        text = texts[line - 1].strip()
        seen[text] += 1
        lots.append((line, _lot(seed, file.file, text, str(seen[text]))))
    return lots


def _lot(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
