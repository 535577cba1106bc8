"""Samplers: the order of the rows in each epoch, and its split into batches."""

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
    """The orders of some rows in a sampler, for each epoch.

    Attributes:
        n: Rows in an epoch, in each stream; the same in every epoch.
        orders: Function of an epoch's number (0 is the first) that returns the row numbers of each stream, int64 [n],
            in the order of the anchors' rows.
        fixed: Whether every epoch has the orders of epoch 0.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> orders = aa.EpochOrders(4, lambda epoch: (np.roll(np.arange(4), epoch),))
        >>> orders.orders(1)[0]
        array([3, 0, 1, 2])
    """

    n: int
    orders: Callable[[int], tuple[np.ndarray, ...]]
    fixed: bool = False


class Sampler(ABC):
    """Base class of samplers, which order the rows of each epoch and split them into batches.

    To write one, derive from it, set the four settings and implement `epoch_orders` and `get_config`.

    A sampler has one stream or several. In a step, every stream contributes one batch, and their rows belong together.
    A node reads the first stream, or the stream of `feature_set.reference(stream=...)`.

    Attributes:
        streams: Names of the streams.
        batch_size: Rows of each stream in a batch.
        shuffle: Whether the orders are shuffled again in every epoch.
        drop_last: Whether the last batch is dropped if it is not full.
        seed: Seed of everything random.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> class Reversed(aa.Sampler):
        ...     batch_size, shuffle, drop_last, seed = 4, False, False, 0
        ...     def epoch_orders(self, rows):
        ...         n = len(next(iter(rows.values())))
        ...         return aa.EpochOrders(n, lambda epoch: (np.arange(n)[::-1],), fixed=True)
        ...     def get_config(self):
        ...         return {}
        >>> phase = aa.TrainPhase("train", data="train", sampler=Reversed())
        >>> Reversed().steps(10)
        3
    """

    __slots__ = ()

    streams: ClassVar[tuple[str, ...]] = ("anchor",)
    batch_size: int
    shuffle: bool
    drop_last: bool
    seed: int

    @abstractmethod
    def epoch_orders(self, rows: Mapping[str, Rows]) -> EpochOrders:
        """Return the orders of some rows, given by label of their feature set; all have the same number of rows.

        Raises:
            SamplerError: nothing can be drawn from them.
            ColumnError: they lack a column that is needed.
        """

    @abstractmethod
    def get_config(self) -> dict[str, Any]:
        """Return a plain dict for `from_config`."""

    def shuffled(self, orders: EpochOrders, epoch: int) -> tuple[np.ndarray, ...]:
        """Return the orders of an epoch (0 is the first) for training, shuffled if `shuffle`: int64 [n] each."""
        if not isinstance(orders, EpochOrders):
            raise SamplerError(f"{shown(orders)} is not an EpochOrders", hint="pass the result of epoch_orders(rows)")
        streams = orders.orders(integer("epoch", epoch))
        if not self.shuffle:
            return streams
        # NumPy's integers would give another stream.
        order = rng.permutation(rng.key(self.seed, "order", integer("epoch", epoch)), orders.n)
        return tuple(stream[order] for stream in streams)

    def batches(self, n: int) -> tuple[int, int]:
        """Return the number of full batches in `n` rows, and the size of the last partial one (0 if none or dropped).

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
        """Return the number of batches per epoch of `n` rows.

        Raises:
            SamplerError: see `batches`.
        """
        full, last = self.batches(n)
        return full + (last > 0)


@constructor_hints
@dataclass(frozen=True, slots=True)
class SimpleSampler(Sampler):
    """Draw every row once per epoch, in batches of one size.

    Args:
        batch_size: Rows per batch, at least 1.
        shuffle: Draw a new order in every epoch; otherwise the order of the rows. (A batch size instead of a sampler,
            in a TrainPhase, does shuffle.)
        drop_last: Drop the last batch if it is not full.
        seed: Seed of the orders, which are the same on every machine and backend.

    Raises:
        SamplerError: a setting of the wrong type, or a batch size below 1.

    Example:
        >>> import anyaccel as aa
        >>> sampler = aa.SimpleSampler(4, shuffle=True, drop_last=True, seed=0)
        >>> sampler.steps(10), sorted(sampler.order(3, epoch=0).tolist())
        (2, [0, 1, 2])
    """

    batch_size: int
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self)

    def epoch_orders(self, rows: Mapping[str, Rows]) -> EpochOrders:
        """Return orders with every row once, in the order of the data.

        Raises:
            SamplerError: the number of rows is 0.
        """
        if not isinstance(rows, Mapping) or not rows or not all(isinstance(part, Rows) for part in rows.values()):
            raise SamplerError(f"{shown(rows)} is not a mapping of rows", hint="write {'LABEL': feature_set}")
        n = len(next(iter(rows.values())))
        check_rows(n)
        order = (np.arange(n, dtype=np.int64),)
        return EpochOrders(n, lambda epoch: order, fixed=not self.shuffle)

    def order(self, n: int, epoch: int) -> np.ndarray:
        """Return the order of `n` rows in an epoch (0 is the first), int64 [n]: each of `range(n)` once.

        Raises:
            SamplerError: the number of rows is 0.
        """
        check_rows(n)
        order = (np.arange(n, dtype=np.int64),)
        return self.shuffled(EpochOrders(n, lambda epoch: order), epoch)[0]

    def get_config(self) -> dict[str, Any]:
        """Return a plain dict for `from_config`."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> SimpleSampler:
        """Rebuild a sampler from the output of `get_config`.

        Raises:
            ConfigError: not such a configuration: an unknown key, or no batch size.
            SamplerError: an invalid setting.
        """
        field_names = [field.name for field in fields(cls)]
        if not isinstance(config, Mapping) or "batch_size" not in config or set(config) - set(field_names):
            raise ConfigError(
                f"{shown(config)} is not the configuration of a sampler",
                available=f"keys: {', '.join(field_names)}",
                hint="pass batch_size and only keys from this list",
            )
        return cls(**config)


def sampler_from_config(config: Mapping[str, Any]) -> Sampler:
    """Rebuild a SimpleSampler, or a sampler of an installed distribution, from the output of its `get_config`.

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
    """Check the settings of a new sampler; `counts` names more settings that must be at least 1."""
    for name in ("batch_size", "seed", *counts):
        object.__setattr__(sampler, name, integer(name, getattr(sampler, name)))
    if sampler.batch_size < 1:
        raise SamplerError(f"batch_size={sampler.batch_size} is below 1", hint="use a batch size of 1 or more")
    for name in counts:
        if getattr(sampler, name) < 1:
            raise SamplerError(f"{name}={getattr(sampler, name)} is below 1", hint="use 1 or more")
    for name in ("shuffle", "drop_last"):
        arguments.flag(SamplerError, "", name, getattr(sampler, name))


def integer(name: str, value: Any) -> int:
    """Return a Python int from any integer."""
    if is_integer(value):
        return operator.index(value)
    raise SamplerError(f"{name}={shown(value)} is not an integer", hint=f"write a whole number, such as {name}=32")


def check_rows(n: int) -> None:
    """Check that there is a row."""
    if arguments.integer(SamplerError, "", "n", n, 0) < 1:
        raise SamplerError(f"{n} rows make no batch", hint="pass data with at least one row")
