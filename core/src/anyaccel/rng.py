"""Random numbers that are equal for a seed on every machine, backend and NumPy version.

splitmix64 over a counter (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): element i of
a stream is a pure function of (key, i), so any framework can compute it and there is no state.
"""

from __future__ import annotations

import hashlib

import numpy as np

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def key(*parts: int | str) -> int:
    """Return the 64-bit key of a named stream, such as `key(seed, "order", epoch)`."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def bits(stream: int, n: int) -> np.ndarray:
    """Return the first `n` words of a stream, uint64 [n]."""
    with np.errstate(over="ignore"):
        z = np.uint64(stream) + _GAMMA * np.arange(1, n + 1, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * _MIX_1
        z = (z ^ (z >> np.uint64(27))) * _MIX_2
        return np.asarray(z ^ (z >> np.uint64(31)))


def permutation(stream: int, n: int) -> np.ndarray:
    """Return a uniformly random permutation of `range(n)`, int64 [n]: the argsort of the stream's first n words.

    The words are distinct, because every step of `bits` is invertible, so every sorting algorithm gives this order.
    """
    return np.argsort(bits(stream, n)).astype(np.int64, copy=False)


def uniform(stream: int, shape: tuple[int, ...], low: float, high: float) -> np.ndarray:
    """Return uniform numbers in [low, high), float64 of `shape`, 53 random bits each."""
    n = int(np.prod(shape, dtype=np.int64))
    unit = (bits(stream, n) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (low + (high - low) * unit).reshape(shape)
