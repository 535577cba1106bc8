"""Reliefs of a phase, and the error that says all when there is none left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from anyaccel.backend import Memory
from anyaccel.display import size
from anyaccel.errors import AnyaccelError, OutOfMemoryError
from anyaccel.phases.estimator_partial_fit import Learners
from anyaccel.phases.events import LogEvent
from anyaccel.phases.executor.pipeline import Chain
from anyaccel.phases.kinds import TrainPhase
from anyaccel.phases.loading import Place, Portion, Provision, Stretch, Supply, slots_of
from anyaccel.phases.loading.epoch_batches import Turn
from anyaccel.phases.phase import Phase
from anyaccel.phases.prepared import Prepared
from anyaccel.phases.relief import Relief
from anyaccel.phases.separable import mixing
from anyaccel.phases.traceback_cleanup import forget
from anyaccel.registry import registry

_TRIALS = 10


def relieved(
    phase: Phase,
    ready: Sequence[Prepared],
    rows: Sequence[Supply],
    chain: Chain,
    learners: Learners,
    tell: LogEvent,
) -> list[Relief]:
    """A relief for the phase, and one for its validation."""
    found = []
    for one, supply in zip(ready, rows, strict=True):
        found.append(
            Relief(
                f"the data of {one.part.label}",
                supply,
                one.provision.batch,
                None if phase.residency == "resident" else one.provision.streamed,
                _training(one.part, chain, learners) if isinstance(one.part, TrainPhase) else _judging(chain),
                tell,
                _Refusal(phase, one.part, one.provision, chain),
            )
        )
    return found


def _training(phase: TrainPhase, chain: Chain, learners: Learners) -> list[str]:
    """What forbids training in smaller parts."""
    if phase.microbatching == "approximate":
        return []
    return mixing(chain.links) + [f"the estimator {label!r}, which learns from each batch" for label in learners.labels]


def _judging(chain: Chain) -> list[str]:
    """What forbids evaluating in smaller batches: an own loss may not be a mean over rows."""
    return [
        f"the loss {term.label!r}, which is your own"
        for link in chain.links
        for term in link.segment.losses
        if term.loss.own is not None
    ]


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Makes the error that says all: what did not fit, what fills the memory, and what would fit.

    Attributes:
        phase: what runs.
        part: the phase, or its validation.
        provision: the rows of the part.
        chain: the programs.
    """

    phase: Phase
    part: Phase
    provision: Provision
    chain: Chain

    def __call__(self, error: OutOfMemoryError, batch: int, mixed: Sequence[str], supply: Supply) -> OutOfMemoryError:
        training = isinstance(self.part, TrainPhase)
        fits = _largest(self.chain, supply, batch, training)
        least = [] if fits is None else ["not even one row fits"] if fits == 0 else [f"{_rows(fits)} would fit"]
        why = f", which are not computed in parts because of {' and '.join(mixed)}" if mixed else ""
        return OutOfMemoryError(
            f"phase {self.part.label!r}: no room {'to train' if training else 'for'} {_rows(batch)} at once{why}: "
            f"{error.problem}",
            available="; ".join([*_figures(self.provision, self.chain, supply.residency), *least]),
            hint=", or ".join(self._remedies(fits, training, bool(mixed))),
        )

    def _remedies(self, fits: int | None, training: bool, mixed: bool) -> Iterator[str]:
        smaller = "a smaller batch" if fits is None else f"batches of at most {fits}"
        yield "a smaller model" if fits == 0 else f"{smaller}, or a smaller model"
        if self.phase.residency == "resident":
            yield "residency='auto', to stream rows that leave no room"
        if training and mixed:
            yield "microbatching='approximate', to compute batches in parts all the same"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _figures(provision: Provision, chain: Chain, residency: str) -> list[str]:
    """What is known to lie on the devices, by category."""
    recipes = {node: group.optimizer for link in chain.links for group in link.segment.groups for node in group.nodes}
    data, told = provision.nbytes(), []
    for place in dict.fromkeys((one.framework, one.device) for one in provision.plan.assignments):
        here = [one for one in provision.plan.assignments if (one.framework, one.device) == place]
        trained = [one for one in here if one.node in recipes]
        kinds = {
            "parameters": sum(one.nbytes for one in here),
            "gradients": sum(one.nbytes for one in trained),
            "optimizer state": sum(one.nbytes * slots_of(recipes[one.node]) for one in trained),
            "data" if residency == "resident" else "data (streamed)": data.get(place, 0),
        }
        known = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in kinds.items() if nbytes)
        told.append(f"{place[1]} ({place[0]}): {known}; activations and the rest: {_measured(place)}")
    return told


def _measured(place: Place) -> str:
    """What the device says of itself."""
    backend = registry().computing(place[0], place[1].kind)
    found = backend.memory(place[1]) if isinstance(backend, Memory) else None
    if found is None or not found.total:
        return "not measured there"
    return f"what is left of {size(found.total)}, of which {size(found.free)} are free now"


def _largest(chain: Chain, supply: Supply, batch: int, training: bool) -> int | None:
    """The most rows that fit at once, found by at most `_TRIALS` trials that change nothing; None if unknown."""
    try:
        snapshot = chain.snapshot()
        with closing(supply.portions(0, 0, chain.order)) as portions:
            portion = next(portions)
            trial = (chain.trier if training else chain.evaluator)(portion.feed, portion.orders)
            found = _search(trial, partial(_turn, portion), batch)
        chain.restore(snapshot)
    except AnyaccelError as error:  # no room for a copy or for rows, or they cannot be had again
        forget(error)
        return None
    return found


def _turn(portion: Portion, rows: int) -> Turn:
    """The first so many rows of the first step of a portion, of each feature set that it takes."""
    work = portion.works[0]
    if isinstance(work, Stretch):
        return {name: (work.start, work.start + rows) for name, _ in portion.feed.lanes.values()}
    return {name: (start, min(start + rows, stop)) for name, (start, stop) in work.items()}


def _search(trial: Callable[[Turn], object], turn: Callable[[int], Turn], batch: int) -> int:
    low, high = 0, batch
    for _ in range(_TRIALS):
        middle = (low + high) // 2
        if middle == low:
            break
        if _fits(trial, turn(middle)):
            low = middle
        else:
            high = middle
    return low


def _fits(trial: Callable[[Turn], object], turn: Turn) -> bool:
    try:
        trial(turn)
    except Exception as error:  # some models take no single row, say: that is no size that fits
        forget(error)
        return False
    return True
