"""Which columns of the data belong to predictions, and what they are called in one table with these."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping

from anyaccel.data import Rows


def belonging(
    rows: Mapping[str, Rows], lengths: Collection[int], taken: Iterable[str], most: int | None = None
) -> Iterator[tuple[str, Rows, str]]:
    """The targets and tags of data with as many rows as some predictions: the title of each, whose it is, its name.

    Args:
        rows: the data of a run, by feature set, with `@STREAM` where a sampler drew them by another stream.
        lengths: how many rows the predictions have; others (of a feature set that a metric alone needed) are left out.
        taken: titles that there are already.
        most: columns of a feature set at most, None for all.
    """
    titles = set(taken)
    for label, its in rows.items():
        if len(its) in lengths:
            for name in [*its.targets, *its.tags][:most]:
                title = _free(f"{name}{stream_of(label, its)}", its.label, titles)
                titles.add(title)
                yield title, its, name


def stream_of(label: str, rows: Rows) -> str:
    """`@STREAM` where the label under which a run has rows says so; data of another label may be given for it."""
    return label.removeprefix(rows.label) if label.startswith(f"{rows.label}@") else ""


def _free(name: str, label: str, taken: Collection[str]) -> str:
    """A title that no other column has: the name, else with the label of its feature set, else with a number."""
    full = f"{label}.{name}"
    counted = (f"{full}#{i}" for i in itertools.count(2))
    return next(one for one in itertools.chain((name, full), counted) if one not in taken)
