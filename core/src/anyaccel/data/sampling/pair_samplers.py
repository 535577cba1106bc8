"""PairSampler and TripletSampler: rows drawn together, by conditions between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from anyaccel import rng
from anyaccel.arguments import shown
from anyaccel.call_hints import constructor_hints
from anyaccel.data.rows import Rows
from anyaccel.data.sampling.pair_conditions import (
    Conditions,
    PairCondition,
    condition_from_config,
    conditions_of,
    field_names,
)
from anyaccel.data.sampling.pair_index import PairIndex, pair_index
from anyaccel.data.sampling.sampler import EpochOrders, Sampler, SimpleSampler, check_settings, integer
from anyaccel.errors import ConfigError, SamplerError


@constructor_hints
class _ConditionSampler(Sampler):
    """Samplers by conditions: how they are written as configurations and read.

    The settings named in `conditions` hold conditions; those in `optional` may hold none.
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
        settings = {name: getattr(self, name) for name in field_names(self)}
        settings.update({name: [each.get_config() for each in settings[name]] for name in self.conditions})
        return {"type": self.kind, **settings}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read what `get_config` wrote.

        Raises:
            ConfigError: not such a configuration.
            SamplerError: an invalid setting.
        """
        known, needed = field_names(cls), {"batch_size", *cls.conditions} - {*cls.optional}
        given = dict(config) if isinstance(config, Mapping) else {}
        if given.pop("type", None) != cls.kind or set(given) - set(known) or not needed <= set(given):
            raise ConfigError(
                f"{shown(config)} is not the configuration of a {cls.kind} sampler",
                available=f"keys: type, {', '.join(known)}",
                hint="give the dict that get_config() made",
            )
        for name in set(cls.conditions) & set(given):
            if not isinstance(given[name], (list, tuple)):
                problem = f"{name} of a {cls.kind} sampler must be a list of conditions, got {shown(given[name])}"
                raise ConfigError(problem, hint="give the dict that get_config() made")
            given[name] = [condition_from_config(each) for each in given[name]]
        return cls(**{name: value for name, value in given.items() if value or name not in cls.optional})


@constructor_hints
@dataclass(frozen=True, slots=True, init=False)
class PairSampler(_ConditionSampler):
    """Pairs of an anchor and a partner that meet conditions; streams `anchor` and `pair`.

    Each row that has a partner is the anchor of `per_anchor` pairs in an epoch; rows without partners are never
    anchors. Partners are drawn uniformly and independently among all that fit, anew in each epoch. A row is never its
    own partner; in a view that holds a row twice, the two may be each other's.

    Args:
        batch_size: pairs in a batch, at least 1.
        match: the condition between the two rows of a pair, or several, all of which must hold: Same, Different,
            Within, Beyond, Where.
        unlike: conditions of pairs of a second kind, for losses that tell matching pairs from others by their columns;
            each row that has such a partner is the anchor of `unlike_per_anchor` of them. None: no such pairs.
        per_anchor: matching pairs of each anchor.
        unlike_per_anchor: pairs of the second kind of each anchor.
        shuffle: shuffle the pairs in every epoch; otherwise they are in the order of their anchors' rows, matching ones
            first.
        drop_last: leave the last batch out if it is not full.
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
        match: Conditions,
        unlike: Conditions | None = None,
        *,
        per_anchor: int = 1,
        unlike_per_anchor: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        _set(self, batch_size=batch_size, match=conditions_of("match", match), per_anchor=per_anchor)
        _set(self, unlike=() if unlike is None else conditions_of("unlike", unlike))
        _set(self, unlike_per_anchor=unlike_per_anchor, shuffle=shuffle, drop_last=drop_last, seed=seed)
        check_settings(self, "per_anchor", "unlike_per_anchor")

    def epoch_orders(self, rows: Mapping[str, Rows]) -> EpochOrders:
        """Find the partners of every row.

        Raises:
            SamplerError: no row has a partner, or none of the second kind.
            ColumnError: a condition names a column that is not there.
        """
        kinds = [(pair_index(self.match, rows, "partner"), self.per_anchor)]
        if self.unlike:
            kinds.append((pair_index(self.unlike, rows, "partner"), self.unlike_per_anchor))
        anchors = [np.repeat(np.flatnonzero(index.counts), times) for index, times in kinds]
        in_place = np.argsort(np.concatenate(anchors), kind="stable")
        first = np.concatenate(anchors)[in_place]

        def orders(epoch: int) -> tuple[np.ndarray, ...]:
            keys = [rng.key(self.seed, "pairs", i, integer("epoch", epoch)) for i in range(len(kinds))]
            partners = [index.draw(key, own) for (index, _), key, own in zip(kinds, keys, anchors, strict=True)]
            return first, np.concatenate(partners)[in_place]

        return EpochOrders(len(first), orders)


@constructor_hints
@dataclass(frozen=True, slots=True, init=False)
class TripletSampler(_ConditionSampler):
    """An anchor, a row that fits it and one that does not; streams `anchor`, `positive` and `negative`.

    Each row that has both is the anchor of `per_anchor` triplets in an epoch; others are never anchors. Both are drawn
    uniformly among all that meet the conditions, anew in each epoch. A row is never its own partner.

    Args:
        batch_size: triplets in a batch, at least 1.
        positive: the condition between anchor and positive, or several, all of which must hold: Same, Different,
            Within, Beyond, Where.
        negative: the same between anchor and negative.
        per_anchor: triplets of each anchor.
        shuffle: shuffle the triplets in every epoch; otherwise they are in the order of their anchors' rows.
        drop_last: leave the last batch out if it is not full.
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
        positive: Conditions,
        negative: Conditions,
        *,
        per_anchor: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        _set(self, batch_size=batch_size, positive=conditions_of("positive", positive), per_anchor=per_anchor)
        _set(self, negative=conditions_of("negative", negative))
        _set(self, shuffle=shuffle, drop_last=drop_last, seed=seed)
        check_settings(self, "per_anchor")

    def epoch_orders(self, rows: Mapping[str, Rows]) -> EpochOrders:
        """Find the positives and negatives of every row.

        Raises:
            SamplerError: no row has both.
            ColumnError: a condition names a column that is not there.
        """
        positive = pair_index(self.positive, rows, "positive")
        negative = pair_index(self.negative, rows, "negative")
        both = np.flatnonzero((positive.counts > 0) & (negative.counts > 0))
        if not len(both):
            raise _without_both(rows, positive, negative)
        anchors = np.repeat(both, self.per_anchor)

        def orders(epoch: int) -> tuple[np.ndarray, ...]:
            keys = (rng.key(self.seed, "triplets", stream, integer("epoch", epoch)) for stream in self.streams[1:])
            partners = (index.draw(key, anchors) for index, key in zip((positive, negative), keys, strict=True))
            return anchors, *partners

        return EpochOrders(len(anchors), orders)


def sampler_from_config(config: Mapping[str, Any]) -> Sampler:
    """Read what `get_config` of a SimpleSampler, PairSampler or TripletSampler wrote.

    Raises:
        ConfigError: not such a configuration.
        SamplerError: an invalid setting.
    """
    kind = config.get("type") if isinstance(config, Mapping) else None
    if kind is None:
        return SimpleSampler.from_config(config)
    for cls in (PairSampler, TripletSampler):
        if cls.kind == kind:
            return cls.from_config(config)
    available = "pair, triplet, or no type for a SimpleSampler"
    raise ConfigError(f"a sampler has no type {shown(kind)}", available=available, hint="write {'type': 'pair', ...}")


def _set(sampler: Sampler, **settings: Any) -> None:
    for name, value in settings.items():
        object.__setattr__(sampler, name, value)


def _without_both(rows: Mapping[str, Rows], positive: PairIndex, negative: PairIndex) -> SamplerError:
    counts = [int(np.count_nonzero(index.counts)) for index in (positive, negative)]
    return SamplerError(
        f"no row of {', '.join(map(repr, rows))} has both a positive and a negative",
        cause=f"{len(positive.counts)} rows; {counts[0]} have a positive, {counts[1]} a negative",
        hint="loosen a condition, or take other rows",
    )
