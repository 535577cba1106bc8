"""Samplers: the order of the rows in each epoch, and how it is cut into batches."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import numpy as np

from anyaccel import arguments, rng
from anyaccel.arguments import is_integer, shown
from anyaccel.call_hints import constructor_hints
from anyaccel.data.rows import Rows
from anyaccel.distributions import SAVED, load, saved_names
from anyaccel.errors import ConfigError, SamplerError


@constructor_hints
@dataclass(frozen=True, slots=True)
class EpochOrders:
    """The orders in which a sampler takes some rows, for each epoch.

    Attributes:
        n: rows in an epoch, of each stream; the same in every epoch.
        orders: from an epoch's number (0 is the first) to the row numbers of each stream, int64 [n], in the order of
            the anchors' rows.
        fixed: the orders are those of epoch 0 in every epoch.
    """

    n: int
    orders: Callable[[int], tuple[np.ndarray, ...]]
    fixed: bool = False


class Sampler(ABC):
    """The order of the rows in each epoch, and how it is cut into batches.

    To write one, derive from it, give it the four settings and implement `epoch_orders` and `get_config`.

    A sampler has one stream or several; in a step every stream gives one batch, and their rows belong together. A node
    reads the first stream, or that of `feature_set.reference(stream=...)`.

    Attributes:
        streams: names of the streams.
        batch_size: rows of each stream in a batch.
        shuffle: whether the orders are shuffled anew in every epoch.
        drop_last: whether the last batch is left out if it is not full.
        seed: of all that is random.
    """

    __slots__ = ()

    streams: ClassVar[tuple[str, ...]] = ("anchor",)
    batch_size: int
    shuffle: bool
    drop_last: bool
    seed: int

    @abstractmethod
    def epoch_orders(self, rows: Mapping[str, Rows]) -> EpochOrders:
        """The orders of some rows, given by label of their feature set; all have the same number of rows.

        Raises:
            SamplerError: nothing can be drawn from them.
            ColumnError: they lack a column that is needed.
        """

    @abstractmethod
    def get_config(self) -> dict[str, Any]:
        """A plain dict that `from_config` reads back."""

    def shuffled(self, orders: EpochOrders, epoch: int) -> tuple[np.ndarray, ...]:
        """The orders of an epoch (0 is the first) as they are trained with, shuffled if `shuffle`: int64 [n] each."""
        if not isinstance(orders, EpochOrders):
            raise SamplerError(f"{shown(orders)} is not an EpochOrders", hint="give what epoch_orders(rows) returned")
        streams = orders.orders(integer("epoch", epoch))
        if not self.shuffle:
            return streams
        # NumPy's integers would give another stream.
        order = rng.permutation(rng.key(self.seed, "order", integer("epoch", epoch)), orders.n)
        return tuple(stream[order] for stream in streams)

    def batches(self, n: int) -> tuple[int, int]:
        """Full batches that `n` rows make, and the size of the last partial one (0 if there is none or it is dropped).

        Raises:
            SamplerError: there are no rows, or `drop_last` leaves no batch.
        """
        check_rows(n)
        full, last = divmod(n, self.batch_size)
        if self.drop_last and full == 0:
            raise SamplerError(
                f"drop_last leaves no batch of {self.batch_size}",
                cause=f"{n} rows",
                hint=f"use a batch size of at most {n}, or drop_last=False",
            )
        return full, 0 if self.drop_last else last

    def steps(self, n: int) -> int:
        """Batches per epoch of `n` rows.

        Raises:
            SamplerError: as `batches`.
        """
        full, last = self.batches(n)
        return full + (last > 0)


@constructor_hints
@dataclass(frozen=True, slots=True)
class SimpleSampler(Sampler):
    """Every row once per epoch, in batches of one size.

    Args:
        batch_size: rows per batch, at least 1.
        shuffle: a new order in every epoch; otherwise the order of the rows. A TrainPhase that is given a batch size in
            place of a sampler does shuffle.
        drop_last: leave the last batch out if it is not full.
        seed: of the orders; the same on every machine and backend.

    Raises:
        SamplerError: a setting of the wrong type, or a batch size below 1.
    """

    batch_size: int
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self)

    def epoch_orders(self, rows: Mapping[str, Rows]) -> EpochOrders:
        """Every row once, in its place.

        Raises:
            SamplerError: there are no rows.
        """
        if not isinstance(rows, Mapping) or not rows or not all(isinstance(part, Rows) for part in rows.values()):
            raise SamplerError(f"{shown(rows)} is not a mapping of rows", hint="write {'LABEL': feature_set}")
        n = len(next(iter(rows.values())))
        check_rows(n)
        order = (np.arange(n, dtype=np.int64),)
        return EpochOrders(n, lambda epoch: order, fixed=not self.shuffle)

    def order(self, n: int, epoch: int) -> np.ndarray:
        """The order of `n` rows in an epoch (0 is the first), int64 [n]: each of `range(n)` once.

        Raises:
            SamplerError: there are no rows.
        """
        check_rows(n)
        order = (np.arange(n, dtype=np.int64),)
        return self.shuffled(EpochOrders(n, lambda epoch: order), epoch)[0]

    def get_config(self) -> dict[str, Any]:
        """A plain dict that `from_config` reads back."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> SimpleSampler:
        """Read what `get_config` wrote.

        Raises:
            ConfigError: not such a configuration: an unknown key, or no batch size.
            SamplerError: an invalid setting.
        """
        known = [field.name for field in fields(cls)]
        if not isinstance(config, Mapping) or "batch_size" not in config or set(config) - set(known):
            raise ConfigError(
                f"{shown(config)} is not the configuration of a sampler",
                available=f"keys: {', '.join(known)}",
                hint="give batch_size and no key that is not listed",
            )
        return cls(**config)


def sampler_from_config(config: Mapping[str, Any]) -> Sampler:
    """Read what `get_config` of a SimpleSampler, or of a sampler of an installed distribution, wrote.

    Raises:
        ConfigError: not such a configuration.
        SamplerError: an invalid setting.
        MissingDistributionError: the distribution of such a sampler is not installed.
    """
    kind = config.get("type") if isinstance(config, Mapping) else None
    if kind is None:
        return SimpleSampler.from_config(config)
    cls = load(SAVED, f"sampler.{kind}") if isinstance(kind, str) else None
    if cls is None:
        available = ", ".join(sorted(saved_names("sampler")))
        raise ConfigError(
            f"a sampler has no type {shown(kind)}",
            available=available,
            hint="write {'type': 'pair', ...}",
        )
    sampler: Sampler = cls.from_config(config)
    return sampler


def check_settings(sampler: Sampler, *counts: str) -> None:
    """Check the settings of a sampler that is being made; `counts` names further settings that must be at least 1."""
    for name in ("batch_size", "seed", *counts):
        object.__setattr__(sampler, name, integer(name, getattr(sampler, name)))
    if sampler.batch_size < 1:
        raise SamplerError(f"batch_size={sampler.batch_size} is below 1", hint="give a batch size of 1 or more")
    for name in counts:
        if getattr(sampler, name) < 1:
            raise SamplerError(f"{name}={getattr(sampler, name)} is below 1", hint="give 1 or more")
    for name in ("shuffle", "drop_last"):
        arguments.flag(SamplerError, "", name, getattr(sampler, name))


def integer(name: str, value: Any) -> int:
    """A Python int from any integer."""
    if is_integer(value):
        return operator.index(value)
    raise SamplerError(f"{name}={shown(value)} is not an integer", hint=f"write a whole number, such as {name}=32")


def check_rows(n: int) -> None:
    """Check that there is a row."""
    if arguments.integer(SamplerError, "", "n", n, 0) < 1:
        raise SamplerError(f"{n} rows make no batch", hint="give data with at least one row")
