"""Memory of rows: what the rows of a phase take on their devices, resident or streamed, and which of them is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from anyaccel.graph import Column, Decision, Plan
from anyaccel.phases.loading.device_columns import stream_of
from anyaccel.phases.loading.epoch_plan import EpochPlan, StepBlock, StepRange
from anyaccel.phases.loading.host_columns import same_array
from anyaccel.phases.loading.loader_factory import Place, bytes_of_block, steps_of_block
from anyaccel.phases.loading.residency import MemoryBudget
from anyaccel.phases.loading.streaming import BLOCKS
from anyaccel.phases.phase import Phase
from anyaccel.phases.prepare import DrawnPart

STREAMED, RESIDENT = "streamed", "resident"


@dataclass(slots=True)
class RowMemory:
    """Bytes of rows and their orders by framework and device, and why some are not covered.

    Attributes:
        chunk_rows: for each part of the phase, the most rows that are computed in one go; 0 where that is not known.
    """

    nbytes: dict[Place, int] = field(default_factory=dict)
    gaps: dict[Place, str] = field(default_factory=dict)
    chunk_rows: list[int] = field(default_factory=list)

    def add(self, more: Mapping[Place, int]) -> None:
        """More bytes."""
        for place, nbytes in more.items():
            self.nbytes[place] = self.nbytes.get(place, 0) + nbytes


def row_memory(
    phase: Phase,
    plan: Plan,
    parts: Sequence[DrawnPart],
    training_bytes: Mapping[Place, int],
    free: Mapping[Place, int],
) -> tuple[RowMemory, list[Decision]]:
    """What rows take, and for each part of a phase whether they are resident, with the reason.

    Args:
        phase: says what residency it wants.
        plan: which columns go where.
        parts: the phase and its validation.
        training_bytes: bytes that training adds.
        free: bytes that are free once models are placed; places of which it is unknown are left out.
    """
    memory, budget = RowMemory(), MemoryBudget(free, training_bytes)
    decisions = []
    for part in parts:
        choice, why = _residency(phase, plan, part, budget)
        decisions.append(Decision(f"residency of {part.part.label}", choice, why))
        memory.chunk_rows.append(_chunk_rows(plan, part, free, streamed=choice == STREAMED))
        if part.epochs is None:
            memory.gaps.update(dict.fromkeys(_places(plan.columns), "a source of batches does not say how many rows"))
        elif any(column.ragged for column in plan.columns):
            memory.gaps.update(dict.fromkeys(_places(plan.columns), "each batch is padded to its own length"))
        elif choice == STREAMED:
            memory.add(_streamed(plan, part, free))
        else:
            memory.add(_column_bytes(plan, part))
            memory.add(_order_bytes(plan, part))
    return memory, decisions


def _places(columns: Iterable[Column]) -> list[Place]:
    return sorted({(column.framework, column.device) for column in columns})


def _residency(phase: Phase, plan: Plan, part: DrawnPart, budget: MemoryBudget) -> tuple[str, str]:
    if part.data.source is not None:
        return STREAMED, "the data are a source"
    if any(column.ragged for column in plan.columns):
        return STREAMED, "rows differ in length, and each batch is padded to its own longest"
    if phase.residency != "auto":
        return phase.residency, "the phase asks for it"
    needs = _column_bytes(plan, part)
    full = budget.exceeded(needs)
    if full is not None:
        return STREAMED, f"rows take {budget.explain(full, needs, fits=False)}"
    why = "; ".join(budget.explain(place, needs, fits=True) for place in needs)
    budget.take(needs)
    return RESIDENT, f"rows take {why}" if why else "there are none"


def _distinct(columns: Sequence[Column]) -> list[Column]:
    """Columns without those that are the same array in the same place."""
    kept: list[Column] = []
    for column in columns:
        if not any(same_array(column, other) for other in kept):
            kept.append(column)
    return kept


def _column_bytes(plan: Plan, part: DrawnPart) -> dict[Place, int]:
    needs = dict.fromkeys(_places(plan.columns), 0)
    for column in _distinct(plan.columns):
        rows = part.data.rows.get(column.feature_set)
        needs[column.framework, column.device] += column.spec.nbytes * (len(rows) if rows is not None else 0)
    return needs


def _order_bytes(plan: Plan, part: DrawnPart) -> dict[Place, int]:
    """Row orders, each once on a device, however many columns read it."""
    orders = part.epochs.epoch(0).orders if part.epochs is not None else {}
    sizes: dict[tuple[int, str, object], tuple[Place, int]] = {}
    for column in plan.columns:
        order = orders.get(stream_of(column))
        if order is not None:
            place = (column.framework, column.device)
            sizes[id(order), *place] = place, len(order) * np.dtype(column.backend.index_dtype).itemsize
    return _summed(sizes.values())


def _blocks(plan: Plan, epochs: EpochPlan, free: Mapping[Place, int]) -> list[StepBlock]:
    """Those in which an epoch is streamed."""
    row_bytes = sum(column.spec.nbytes for column in _distinct(plan.columns))
    block = bytes_of_block(free[place] for place in _places(plan.columns) if place in free)
    steps = steps_of_block(block, row_bytes * epochs.batch_size, epochs.n_steps)
    return list(epochs.epoch(0).blocks(steps))


def _chunk_rows(plan: Plan, part: DrawnPart, free: Mapping[Place, int], *, streamed: bool) -> int:
    if part.epochs is None or any(column.ragged for column in plan.columns):
        return 0
    if streamed:
        return max((_rows_of(block.steps) for block in _blocks(plan, part.epochs, free)), default=0)
    return _rows_of(part.epochs.epoch(0).steps)


def _rows_of(steps: Iterable[StepRange]) -> int:
    return sum(each.n_steps * each.batch_size for each in steps)


def _streamed(plan: Plan, part: DrawnPart, free: Mapping[Place, int]) -> dict[Place, int]:
    """Blocks on their way, waiting and computed, and one order for each device."""
    assert part.epochs is not None
    columns = list({(stream_of(c), c.columns, c.framework, c.device, c.spec): c for c in plan.columns}.values())
    places, blocks = _places(plan.columns), _blocks(plan, part.epochs, free)
    rows = max((stop - start for each in blocks for start, stop in each.spans.values()), default=0)
    held = min(BLOCKS, len(blocks))
    sizes = [((column.framework, column.device), held * rows * column.spec.nbytes) for column in columns]
    orders = [(place, rows * np.dtype(_index_dtype(plan, place)).itemsize) for place in places]
    return _summed([*sizes, *orders])


def _index_dtype(plan: Plan, place: Place) -> str:
    return next(c.backend.index_dtype for c in plan.columns if (c.framework, c.device) == place)


def _summed(sizes: Iterable[tuple[Place, int]]) -> dict[Place, int]:
    total: dict[Place, int] = {}
    for place, nbytes in sizes:
        total[place] = total.get(place, 0) + nbytes
    return total
