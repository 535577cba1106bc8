"""The section of a plan about models that are larger than a device: blocks, places of weights, and cost of a step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from anyaccel.graph.plan_entries import Section
from anyaccel.printable import size
from anyaccel_offload.planner import OffloadPlan

TIERS = {"": "stays", "cpu": "host memory", "disk": "disk"}
"""Place of weights, as text."""


def section_of(node: str, plan: OffloadPlan) -> Section:
    """Return the section about the blocks of a node."""
    counts = {tier: sum(block.tier == tier for block in plan.blocks) for tier in TIERS}
    rests = [f"{counts[tier]} in {name}" for tier, name in TIERS.items() if tier and counts[tier]]
    where = f"{counts['']} of {len(plan.blocks)} blocks stay on devices" + (f", {', '.join(rests)}" if rests else "")
    copied = f"{size(plan.step_bytes)} copied per step" if plan.step_bytes else "nothing copied per step"
    times = f"copies {plan.copy_seconds:.3g} s while computing {plan.compute_seconds:.3g} s"
    summary = f"{where}; {copied}; at least {plan.seconds:.3g} s a step ({times})"
    title, rows = f"blocks of {node}", tuple(_rows(plan))
    return Section(
        title=title,
        summary=summary,
        head=("blocks", "device", "weights", "bytes", "a step"),
        rows=rows,
        notes=plan.notes,
        lines=(f"{title}: {summary}", *(f"  {line}" for line in (*map(_line, rows), *plan.notes))),
    )


def _rows(plan: OffloadPlan) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield rows for adjacent blocks in the same place: names, device, place of weights, bytes, a step."""
    for _, group in groupby(plan.blocks, key=lambda block: (block.device, block.tier)):
        run = list(group)
        first, last = (block.name or "all" for block in (run[0], run[-1]))
        yield (
            first if len(run) == 1 else f"{first} to {last} ({len(run)})",
            str(run[0].device),
            TIERS[run[0].tier],
            size(sum(block.nbytes for block in run)),
            size(sum(block.step_bytes for block in run)),
        )


def _line(row: tuple[str, str, str, str, str]) -> str:
    names, device, rests, nbytes, step = row
    where = f"{rests} there" if rests == "stays" else f"stays in {rests} and is copied in each step ({step})"
    return f"{names} on {device}: {nbytes}, {where}"
