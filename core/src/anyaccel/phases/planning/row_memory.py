"""Memory of rows: what the rows of a phase take on their devices, resident or streamed, and which of them is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from anyaccel.graph import Column, Decision, Plan
from anyaccel.phases.loading.device_columns import stream_of
from anyaccel.phases.loading.epoch_plan import EpochPlan, StepBlock, StepRange
from anyaccel.phases.loading.host_columns import same_array
from anyaccel.phases.loading.loader_factory import ColumnBytes, Place, bytes_of_block, mixed_block_steps, steps_of_block
from anyaccel.phases.loading.residency import MemoryBudget, bytes_of, mixed_words
from anyaccel.phases.loading.streaming import BLOCKS
from anyaccel.phases.prepare import DrawnPart
from anyaccel.phases.settings import PhaseSettings

STREAMED, RESIDENT, MIXED = "streamed", "resident", "mixed"


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
    phase: PhaseSettings,
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
        choice, why, shared = _residency(phase, plan, part, budget)
        decisions.append(Decision(f"residency of {part.part.label}", choice, why))
        blocks = [] if part.epochs is None or choice == RESIDENT else _blocks(plan, part.epochs, free, shared)
        memory.chunk_rows.append(_chunk_rows(plan, part, blocks))
        if part.epochs is None:
            memory.gaps.update(dict.fromkeys(_places(plan.columns), "a source of batches does not say how many rows"))
        elif any(column.ragged for column in plan.columns):
            memory.gaps.update(dict.fromkeys(_places(plan.columns), "each batch is padded to its own length"))
        elif choice != RESIDENT:
            resident = shared.resident if shared is not None else frozenset()
            memory.add(_streamed([c for c in plan.columns if c.name not in resident], blocks))
            if shared is not None:
                memory.add(bytes_of(shared.columns, resident))
                memory.add(_streamed_orders([c for c in plan.columns if c.name in resident], blocks))
        else:
            memory.add(_column_bytes(plan, part))
            memory.add(_order_bytes(plan, part))
    return memory, decisions


def _places(columns: Iterable[Column]) -> list[Place]:
    return sorted({(column.framework, column.device) for column in columns})


@dataclass(frozen=True, slots=True)
class _Shared:
    """Columns of which some are resident, those of these names, and the bytes of a block of the others."""

    columns: Sequence[ColumnBytes]
    resident: frozenset[str]
    block_bytes: float


def _residency(
    phase: PhaseSettings, plan: Plan, part: DrawnPart, budget: MemoryBudget
) -> tuple[str, str, _Shared | None]:
    if part.data.source is not None:
        return STREAMED, "the data are a source", None
    if any(column.ragged for column in plan.columns):
        return STREAMED, "rows differ in length, and each batch is padded to its own longest", None
    if phase.residency != "auto":
        return phase.residency, "the phase asks for it", None
    needs = _column_bytes(plan, part)
    full = budget.exceeded(needs)
    if full is None:
        why = "; ".join(budget.explain(place, needs, fits=True) for place in needs)
        budget.take(needs)
        return RESIDENT, f"rows take {why}" if why else "there are none", None
    figures = budget.explain(full, needs, fits=False)
    columns = _columns(plan, part)
    resident, block_bytes = budget.split(columns)
    if not resident:
        return STREAMED, f"rows take {figures}", None
    budget.take(bytes_of(columns, resident))
    return MIXED, f"{mixed_words(columns, resident)}, as all take {figures}", _Shared(columns, resident, block_bytes)


def _columns(plan: Plan, part: DrawnPart) -> list[ColumnBytes]:
    made = []
    for column in _distinct(plan.columns):
        rows = part.data.rows.get(column.feature_set)
        n_rows = len(rows) if rows is not None else 0
        names = tuple(each.name for each in plan.columns if each is column or same_array(column, each))
        made.append(ColumnBytes.of(column, names, column.spec.nbytes * n_rows, n_rows))
    return made


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


def _blocks(plan: Plan, epochs: EpochPlan, free: Mapping[Place, int], shared: _Shared | None) -> list[StepBlock]:
    """Those in which an epoch is streamed."""
    if shared is not None:
        steps = mixed_block_steps(shared.columns, shared.resident, shared.block_bytes, epochs)
        return list(epochs.epoch(0).blocks(steps))
    row_bytes = sum(column.spec.nbytes for column in _distinct(plan.columns))
    block = bytes_of_block(free[place] for place in _places(plan.columns) if place in free)
    steps = steps_of_block(block, row_bytes * epochs.batch_size, epochs.n_steps)
    return list(epochs.epoch(0).blocks(steps))


def _chunk_rows(plan: Plan, part: DrawnPart, blocks: Sequence[StepBlock]) -> int:
    if part.epochs is None or any(column.ragged for column in plan.columns):
        return 0
    if blocks:
        return max(_rows_of(block.steps) for block in blocks)
    return _rows_of(part.epochs.epoch(0).steps)


def _rows_of(steps: Iterable[StepRange]) -> int:
    return sum(each.n_steps * each.batch_size for each in steps)


def _streamed(columns: Sequence[Column], blocks: Sequence[StepBlock]) -> dict[Place, int]:
    """Blocks on their way, waiting and computed, and one order for each device."""
    distinct = {(stream_of(c), c.columns, c.framework, c.device, c.spec): c for c in columns}.values()
    rows, held = _rows_held(blocks)
    sizes = [((column.framework, column.device), held * rows * column.spec.nbytes) for column in distinct]
    orders = {(column.framework, column.device): rows * _index_bytes(column) for column in columns}
    return _summed([*sizes, *orders.items()])


def _streamed_orders(columns: Sequence[Column], blocks: Sequence[StepBlock]) -> dict[Place, int]:
    """Row numbers of resident columns, which come with the blocks of the others."""
    rows, held = _rows_held(blocks)
    orders = {(stream_of(c), c.framework, c.device): held * rows * _index_bytes(c) for c in columns}
    return _summed(((framework, device), nbytes) for (_, framework, device), nbytes in orders.items())


def _rows_held(blocks: Sequence[StepBlock]) -> tuple[int, int]:
    """Rows of the largest block, and how many blocks there are at once."""
    rows = max((stop - start for each in blocks for start, stop in each.spans.values()), default=0)
    return rows, min(BLOCKS, len(blocks))


def _index_bytes(column: Column) -> int:
    return np.dtype(column.backend.index_dtype).itemsize


def _summed(sizes: Iterable[tuple[Place, int]]) -> dict[Place, int]:
    total: dict[Place, int] = {}
    for place, nbytes in sizes:
        total[place] = total.get(place, 0) + nbytes
    return total
