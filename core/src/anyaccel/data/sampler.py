"""Samplers: the order of the rows in each epoch, and how it is cut into batches."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from anyaccel import rng
from anyaccel.errors import ConfigError, SamplerError


@dataclass(frozen=True, slots=True)
class SimpleSampler:
    """Every row once per epoch, in batches of one size.

    Args:
        batch_size: rows per batch, at least 1.
        shuffle: a new order in every epoch; else the order of the rows.
        drop_last: leave the last batch out where it is not full.
        seed: of the orders; the same on every machine and backend.

    Raises:
        SamplerError: a setting of the wrong type, or a batch size below 1.
    """

    batch_size: int
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", _integer("batch_size", self.batch_size))
        object.__setattr__(self, "seed", _integer("seed", self.seed))
        if self.batch_size < 1:
            raise SamplerError(f"batch_size={self.batch_size} holds no row", remedy="give a batch size of 1 or more")
        for name in ("shuffle", "drop_last"):
            if not isinstance(getattr(self, name), bool):
                raise SamplerError(f"{name}={getattr(self, name)!r} is not True or False", remedy=f"write {name}=True")

    def order(self, n: int, epoch: int) -> np.ndarray:
        """The order of `n` rows in an epoch (0 is the first), int64 [n]: each of `range(n)` once.

        Raises:
            SamplerError: there are no rows.
        """
        _check_rows(n)
        if not self.shuffle:
            return np.arange(n, dtype=np.int64)
        # NumPy's integers would name another stream.
        return rng.permutation(rng.key(self.seed, "order", _integer("epoch", epoch)), n)

    def batches(self, n: int) -> tuple[int, int]:
        """Full batches that `n` rows make, and the size of the last partial one (0: there is none, or it is dropped).

        Raises:
            SamplerError: there are no rows, or `drop_last` leaves no batch.
        """
        _check_rows(n)
        full, last = divmod(n, self.batch_size)
        if self.drop_last and full == 0:
            raise SamplerError(
                f"drop_last leaves no batch of {self.batch_size}",
                there=f"{n} rows",
                remedy=f"use a batch size of at most {n}, or drop_last=False",
            )
        return full, 0 if self.drop_last else last

    def steps(self, n: int) -> int:
        """Batches per epoch of `n` rows.

        Raises:
            SamplerError: as `batches`.
        """
        full, last = self.batches(n)
        return full + (last > 0)

    def get_config(self) -> dict[str, Any]:
        """A plain dict that `from_config` reads back."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> SimpleSampler:
        """Read what `get_config` wrote.

        Raises:
            ConfigError: not such a configuration: an unknown key, or no batch size.
            SamplerError: a setting that is wrong.
        """
        known = [field.name for field in fields(cls)]
        if not isinstance(config, Mapping) or "batch_size" not in config or set(config) - set(known):
            raise ConfigError(
                f"{config!r} is not the configuration of a sampler",
                there=f"keys: {', '.join(known)}",
                remedy="give batch_size and no key that is not listed",
            )
        return cls(**config)


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise SamplerError(f"{name}={value!r} is not an integer", remedy=f"write a whole number, such as {name}=32")
    return operator.index(value)


def _check_rows(n: int) -> None:
    if n < 1:
        raise SamplerError(f"{n} rows make no batch", remedy="give data with at least one row")
