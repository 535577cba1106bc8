"""Batching: how a phase passes over its rows, from what samplers draw or from what an evaluation looks at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from anyaccel.errors import PhaseError
from anyaccel.phases.loading.epoch_batches import Drawing
from anyaccel.phases.loading.epoch_plan import Pass, Stretch, Work
from anyaccel.phases.loading.foreseen import Foreseen
from anyaccel.phases.loading.loader import Passes
from anyaccel.phases.loading.sight import Sight


@dataclass(frozen=True, slots=True)
class Batching:
    """How a phase passes over its rows, step by step.

    Attributes:
        passes: what the epoch of a number takes.
        steps: of an epoch; updates, where several batches make one.
        batch: the most rows of one feature set in a step.
        whole: whether steps must be taken as a whole, as those of training.
    """

    passes: Passes
    steps: int
    batch: int
    whole: bool = True


def of_drawing(label: str, drawing: Drawing, accumulate: int) -> Batching:
    """The epochs of a TrainPhase: an update after `accumulate` batches, and one after those that are left.

    Raises:
        PhaseError: batches of several feature sets that differ in size cannot be put together.
    """
    works = _works(label, drawing, accumulate)
    passes = Foreseen(partial(_drawn, drawing, tuple(drawing.labels), works), drawing.changing)
    batch = max(work.size if isinstance(work, Stretch) else _widest(work) for work in works)
    steps = sum(work.count if isinstance(work, Stretch) else 1 for work in works)
    return Batching(passes, steps, batch)


def of_sight(sight: Sight, batch: int) -> Batching:
    """An evaluation in batches."""
    works = tuple(sight.turns(batch))
    sets = tuple(dict.fromkeys(name for turn in works for name in turn))
    return Batching(lambda _: Pass(sets, works, sight.orders), len(works), max(map(_widest, works)), whole=False)


def _works(label: str, drawing: Drawing, accumulate: int) -> tuple[Work, ...]:
    if drawing.uniform is None:
        if accumulate > 1:
            raise PhaseError(
                f"phase {label!r} has accumulate={accumulate}, and samplers whose batches differ from each other",
                hint="draw larger batches instead, or give all samplers one batch size by 'zip_strict'",
            )
        return drawing.turns
    full, size, last = drawing.uniform
    steps, batch = full // accumulate, size * accumulate
    rest = (full % accumulate) * size + last
    piece = size if accumulate > 1 else None
    works = [Stretch(0, steps, batch, piece), Stretch(steps * batch, 1, rest, piece)]
    return tuple(work for work in works if work.count and work.size)


def _drawn(drawing: Drawing, sets: tuple[str, ...], works: tuple[Work, ...], number: int) -> Pass:
    return Pass(sets, works, drawing.orders(number))


def _widest(turn: Work) -> int:
    assert not isinstance(turn, Stretch)
    return max(stop - start for start, stop in turn.values())
