"""Separable batches: whether a step computed in parts ends as it does with all rows at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from anyaccel.phases.executor.links import Link


def mixing(links: Sequence[Link]) -> list[str]:
    """What makes the rows of a batch depend on each other, or may do so; empty if nothing does.

    Models say so themselves (batch normalization in training does); of a loss that is a function or class of the
    user's own nobody knows whether it is a mean over independent rows.
    """
    return list(dict.fromkeys(_found(links)))


def _found(links: Sequence[Link]) -> Iterator[str]:
    for link in links:
        for operation in link.segment.operations:
            why = (
                link.backend.batch_coupling(operation.model)
                if operation.trainable and operation.model is not None
                else ""
            )
            if why:
                yield f"{why} in node {operation.label!r}"
        for term in link.segment.losses:
            if term.loss.own is not None:
                yield f"the loss {term.label!r}, which is your own"
