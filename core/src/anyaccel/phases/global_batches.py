"""Whole rows: whether all replicas give one program all rows of each step, of which they compute a part each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from anyaccel.errors import PhaseError
from anyaccel.phases.loading.epoch_plan import EpochPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalBatches:
    """Whether they do.

    Attributes:
        given: they do.
        allowed: backend and phase allow it, with whole parameters.
        needed: some layer mixes the rows of a batch.
    """

    given: bool = False
    allowed: bool = False
    needed: bool = False

    def chosen(self, label: str, epochs: EpochPlan | None, size: int) -> GlobalBatches:
        """The same once the steps are known: given where it is allowed, and all batches can be divided evenly.

        The last batch of an epoch need not: then each replica computes all of it.

        Args:
            label: of the phase.
            epochs: of rows that each process has in memory; None where they are read as they are needed, of which each
                replica reads its own share.
            size: how many replicas there are.

        Raises:
            PhaseError: it is needed, and not given.
        """
        if self.given or not self.allowed:
            return self
        equal = [] if epochs is None else _without_last(_batch_sizes(epochs))
        given = bool(equal) and all(n % size == 0 for n in equal)
        if self.needed and not given:
            raise PhaseError(
                f"phase {label!r} normalizes by the rows of all replicas, which these compute only where each has all "
                "rows of a batch",
                available=f"rows in memory, in batches of a multiple of {size} rows",
                hint=f"draw batches of a multiple of {size} rows from a FeatureSet, or write replicas=1 to train the "
                "whole of it in each process on its own",
            )
        return replace(self, given=given)


def _batch_sizes(epochs: EpochPlan) -> list[int]:
    """One number for each range of equal steps; two where a range has several, so that its last is none by itself."""
    steps = epochs.epoch(0).steps
    return [each.microbatch_size or each.batch_size for each in steps for _ in range(min(each.n_steps, 2))]


def _without_last(sizes: Sequence[int]) -> Sequence[int]:
    return sizes[: max(1, len(sizes) - 1)]
