"""PairSampler and TripletSampler: rows drawn together, by conditions between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from anyaccel import rng
from anyaccel.data.rows import Rows
from anyaccel.data.sampling.pair_conditions import (
    PairCondition,
    Relations,
    names_of_settings,
    relation_from_config,
    relations_of,
)
from anyaccel.data.sampling.pair_index import Partners, partners_of
from anyaccel.data.sampling.sampler import EpochOrders, Sampler, SimpleSampler, check_settings, integer
from anyaccel.errors import ConfigError, SamplerError


class _Tuples(Sampler):
    """What samplers by conditions share: how they are written down and read.

    The settings named in `conditions` hold relations, and those that are `optional` may hold none.
    """

    __slots__ = ()

    kind: ClassVar[str]
    conditions: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()

    def get_config(self) -> dict[str, Any]:
        """A plain dict that `from_config` reads back.

        Raises:
            ConfigError: a condition is a function.
        """
        settings = {name: getattr(self, name) for name in names_of_settings(self)}
        settings.update({name: [one.get_config() for one in settings[name]] for name in self.conditions})
        return {"type": self.kind, **settings}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read what `get_config` wrote.

        Raises:
            ConfigError: not such a configuration.
            SamplerError: a setting that is wrong.
        """
        known, needed = names_of_settings(cls), {"batch_size", *cls.conditions} - {*cls.optional}
        given = dict(config) if isinstance(config, Mapping) else {}
        if given.pop("type", None) != cls.kind or set(given) - set(known) or not needed <= set(given):
            raise ConfigError(
                f"{config!r} is not the configuration of a {cls.kind} sampler",
                available=f"keys: type, {', '.join(known)}",
            )
        for name in set(cls.conditions) & set(given):
            if not isinstance(given[name], (list, tuple)):
                raise ConfigError(
                    f"{name} of a {cls.kind} sampler is {given[name]!r}", available="a list of conditions"
                )
            given[name] = [relation_from_config(one) for one in given[name]]
        return cls(**{name: value for name, value in given.items() if value or name not in cls.optional})


@dataclass(frozen=True, slots=True, init=False)
class PairSampler(_Tuples):
    """Pairs of an anchor and a partner that fulfil conditions; streams `anchor` and `pair`.

    Each row that has a partner is the anchor of `per_anchor` pairs in an epoch; rows without one are never anchors.
    Partners are drawn uniformly among all that fit, one by one, anew in each epoch. A row is never its own partner; a
    view that holds a row twice has two of it, which may be each other's.

    Args:
        batch_size: pairs in a batch, at least 1.
        match: the condition between the two rows of a pair, or several, all of which must hold: Same, Different,
            Within, Beyond, Where.
        unlike: conditions of pairs of a second kind, for losses that tell matching pairs from others by their columns;
            each row that has such a partner is the anchor of `unlike_per_anchor` of them. None: there are none.
        per_anchor: matching pairs of each anchor.
        unlike_per_anchor: pairs of the second kind of each anchor.
        shuffle: the pairs in a new order in every epoch; else by the row of the anchor, matching ones first.
        drop_last: leave the last batch out where it is not full.
        seed: of partners and orders; the same on every machine and backend.

    Raises:
        SamplerError: a setting of the wrong type or out of range.
    """

    kind: ClassVar[str] = "pair"
    conditions: ClassVar[tuple[str, ...]] = ("match", "unlike")
    optional: ClassVar[tuple[str, ...]] = ("unlike",)
    streams: ClassVar[tuple[str, ...]] = ("anchor", "pair")

    batch_size: int
    match: tuple[PairCondition, ...]
    unlike: tuple[PairCondition, ...]
    per_anchor: int
    unlike_per_anchor: int
    shuffle: bool
    drop_last: bool
    seed: int

    def __init__(
        self,
        batch_size: int,
        match: Relations,
        unlike: Relations | None = None,
        *,
        per_anchor: int = 1,
        unlike_per_anchor: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        _fill(self, batch_size=batch_size, match=relations_of("match", match), per_anchor=per_anchor)
        _fill(self, unlike=() if unlike is None else relations_of("unlike", unlike))
        _fill(self, unlike_per_anchor=unlike_per_anchor, shuffle=shuffle, drop_last=drop_last, seed=seed)
        check_settings(self, "per_anchor", "unlike_per_anchor")

    def epoch_orders(self, rows: Mapping[str, Rows]) -> EpochOrders:
        """Find the partners of every row.

        Raises:
            SamplerError: no row has a partner, or none of the second kind.
            ColumnError: a condition names a column that is not there.
        """
        kinds = [(partners_of(self.match, rows, "partner"), self.per_anchor)]
        if self.unlike:
            kinds.append((partners_of(self.unlike, rows, "partner"), self.unlike_per_anchor))
        anchors = [np.repeat(np.flatnonzero(found.counts), times) for found, times in kinds]
        in_place = np.argsort(np.concatenate(anchors), kind="stable")
        first = np.concatenate(anchors)[in_place]

        def orders(epoch: int) -> tuple[np.ndarray, ...]:
            keys = [rng.key(self.seed, "pairs", i, integer("epoch", epoch)) for i in range(len(kinds))]
            drawn = [kind.drawn(key, own) for (kind, _), key, own in zip(kinds, keys, anchors, strict=True)]
            return first, np.concatenate(drawn)[in_place]

        return EpochOrders(len(first), orders)


@dataclass(frozen=True, slots=True, init=False)
class TripletSampler(_Tuples):
    """An anchor, a row that fits it and one that does not; streams `anchor`, `positive` and `negative`.

    Each row that has both is the anchor of `per_anchor` triplets in an epoch; others are never anchors. Both are drawn
    uniformly among all that fulfil the conditions, anew in each epoch. A row is never its own partner.

    Args:
        batch_size: triplets in a batch, at least 1.
        positive: the condition between anchor and positive, or several, all of which must hold: Same, Different,
            Within, Beyond, Where.
        negative: the same between anchor and negative.
        per_anchor: triplets of each anchor.
        shuffle: the triplets in a new order in every epoch; else by the row of the anchor.
        drop_last: leave the last batch out where it is not full.
        seed: of partners and orders; the same on every machine and backend.

    Raises:
        SamplerError: a setting of the wrong type or out of range.
    """

    kind: ClassVar[str] = "triplet"
    conditions: ClassVar[tuple[str, ...]] = ("positive", "negative")
    streams: ClassVar[tuple[str, ...]] = ("anchor", "positive", "negative")

    batch_size: int
    positive: tuple[PairCondition, ...]
    negative: tuple[PairCondition, ...]
    per_anchor: int
    shuffle: bool
    drop_last: bool
    seed: int

    def __init__(
        self,
        batch_size: int,
        positive: Relations,
        negative: Relations,
        *,
        per_anchor: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        _fill(self, batch_size=batch_size, positive=relations_of("positive", positive), per_anchor=per_anchor)
        _fill(self, negative=relations_of("negative", negative))
        _fill(self, shuffle=shuffle, drop_last=drop_last, seed=seed)
        check_settings(self, "per_anchor")

    def epoch_orders(self, rows: Mapping[str, Rows]) -> EpochOrders:
        """Find the positives and negatives of every row.

        Raises:
            SamplerError: no row has both.
            ColumnError: a condition names a column that is not there.
        """
        positive = partners_of(self.positive, rows, "positive")
        negative = partners_of(self.negative, rows, "negative")
        both = np.flatnonzero((positive.counts > 0) & (negative.counts > 0))
        if not len(both):
            raise _none_of_both(rows, positive, negative)
        anchors = np.repeat(both, self.per_anchor)

        def orders(epoch: int) -> tuple[np.ndarray, ...]:
            keys = (rng.key(self.seed, "triplets", what, integer("epoch", epoch)) for what in self.streams[1:])
            drawn = (kind.drawn(key, anchors) for kind, key in zip((positive, negative), keys, strict=True))
            return anchors, *drawn

        return EpochOrders(len(anchors), orders)


def sampler_from_config(config: Mapping[str, Any]) -> Sampler:
    """Read what `get_config` of a SimpleSampler, PairSampler or TripletSampler wrote.

    Raises:
        ConfigError: none of these.
        SamplerError: a setting that is wrong.
    """
    kind = config.get("type") if isinstance(config, Mapping) else None
    if kind is None:
        return SimpleSampler.from_config(config)
    made = next((one for one in (PairSampler, TripletSampler) if one.kind == kind), None)
    if made is None:
        raise ConfigError(f"a sampler's type is {kind!r}", available="pair, triplet, or no type: a simple one")
    return made.from_config(config)


def _fill(sampler: Sampler, **settings: Any) -> None:
    for name, value in settings.items():
        object.__setattr__(sampler, name, value)


def _none_of_both(rows: Mapping[str, Rows], positive: Partners, negative: Partners) -> SamplerError:
    counts = [int(np.count_nonzero(one.counts)) for one in (positive, negative)]
    return SamplerError(
        f"no row of {', '.join(map(repr, rows))} has both a positive and a negative",
        available=f"{len(positive.counts)} rows; {counts[0]} have a positive, {counts[1]} a negative",
        hint="loosen a condition, or take other rows",
    )
