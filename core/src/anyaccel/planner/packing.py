"""Any assignment that fits, whatever the order of the blocks: a search with going back, for where no split fits."""

from __future__ import annotations

import numpy as np

from anyaccel.planner.problem import Ints, Problem

MOST_VISITS = 50_000  # of partial packings


def pack(problem: Problem) -> Ints | None:
    """An assignment that fits; None if there is none, or none was found in `MOST_VISITS` steps."""
    room = float(problem.capacity[problem.device_class].sum())
    return None if float(problem.resident.min(axis=0).sum()) > room else _Packing(problem).run()


class _Packing:
    """Gives units to devices one by one, largest first, and takes the last back where the next fits nowhere."""

    def __init__(self, problem: Problem) -> None:
        self.resident: list[list[float]] = problem.resident.tolist()
        self.transient: list[list[float]] = problem.transient.tolist()
        self.possible: list[list[bool]] = np.isfinite(problem.seconds).tolist()
        self.capacity: list[float] = problem.capacity.tolist()
        self.tied_nbytes: list[float] = problem.ties.nbytes.tolist()
        self.order: list[int] = np.argsort(-problem.resident.max(axis=0), kind="stable").tolist()
        self.classes: list[int] = problem.device_class.tolist()
        self.used = [0.0] * len(self.classes)
        self.most = [0.0] * len(self.classes)  # the largest transient need
        self.count = [0] * len(self.classes)
        self.holds = [[0] * len(problem.ties.nbytes) for _ in self.classes]
        self.tied: list[list[int]] = [[] for _ in problem.units]
        for thing, unit in problem.ties.units.tolist():
            self.tied[unit].append(thing)
        self.stack: list[tuple[int, float, float]] = []  # device, bytes, and the transient need before

    def run(self) -> Ints | None:
        first = 0
        for _ in range(MOST_VISITS):
            if len(self.stack) == len(self.order):
                assignment = np.empty(len(self.order), dtype=np.int64)
                assignment[self.order] = [d for d, _, _ in self.stack]
                return assignment
            unit = self.order[len(self.stack)]
            d = next((d for d in range(first, len(self.classes)) if self._fits(unit, d)), None)
            if d is not None:
                self._push(unit, d)
                first = 0
            elif self.stack:
                first = self._pop() + 1
            else:
                return None
        return None

    def _bytes(self, unit: int, d: int) -> float:
        tied = sum(self.tied_nbytes[t] for t in self.tied[unit] if not self.holds[d][t])
        return self.resident[self.classes[d]][unit] + tied

    def _fits(self, unit: int, d: int) -> bool:
        """Whether a device can take a unit; of empty devices of one class only the first."""
        c = self.classes[d]
        if not self.count[d] and any(self.classes[e] == c and not self.count[e] for e in range(d)):
            return False
        need = self.used[d] + self._bytes(unit, d) + max(self.most[d], self.transient[c][unit])
        return need <= self.capacity[c] and self.possible[c][unit]

    def _push(self, unit: int, d: int) -> None:
        more = self._bytes(unit, d)
        self.stack.append((d, more, self.most[d]))
        self.used[d] += more
        self.most[d] = max(self.most[d], self.transient[self.classes[d]][unit])
        self.count[d] += 1
        for t in self.tied[unit]:
            self.holds[d][t] += 1

    def _pop(self) -> int:
        d, more, before = self.stack.pop()
        self.used[d] -= more
        self.most[d] = before
        self.count[d] -= 1
        for t in self.tied[self.order[len(self.stack)]]:
            self.holds[d][t] -= 1
        return d
