"""Source position: where a source is within an epoch, as a checkpoint keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from anyaccel.data.streaming.random_states import States, from_arrays, to_arrays

_TOLERANCE = 1e-3
"""Relative, as other libraries and machines compute transforms of the data to other last bits."""
_VALUES = 8
"""Of each row of a column."""
Sample = Mapping[str, np.ndarray]
"""Some values of the rows of a step, float64 [rows, values], by value name."""


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """What a source needs to go on.

    Attributes:
        draws: whether it draws random numbers, so that steps that are left out are read, too.
        states: of the generators that it draws from, at the start of the epoch.
        held: these states before the first batch was read, where that was before the epoch began; None elsewhere.
        sample: of the last step that is done; empty at the start of an epoch.
    """

    draws: bool = False
    states: States = field(default_factory=dict)
    held: States | None = None
    sample: Sample = field(default_factory=dict)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Itself as arrays by name, but for `draws`."""
        return {
            **{f"states/{name}": array for name, array in to_arrays(self.states).items()},
            **{f"held/{name}": array for name, array in to_arrays(self.held or {}).items()},
            **{f"sample/{name}": array for name, array in self.sample.items()},
        }

    @classmethod
    def from_arrays(cls, draws: bool, arrays: Mapping[str, np.ndarray]) -> SourcePosition:
        """What `to_arrays` gave.

        Raises:
            StateError: it is malformed.
        """
        parts: dict[str, dict[str, np.ndarray]] = {"states": {}, "held": {}, "sample": {}}
        for name, array in arrays.items():
            part, _, rest = name.partition("/")
            if part in parts:
                parts[part][rest] = array
        held = from_arrays(parts["held"]) if parts["held"] else None
        return cls(draws, from_arrays(parts["states"]), held, parts["sample"])


def sample_rows(columns: Iterable[tuple[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Some values of each row of arrays [rows, *shape], by name."""
    sample = {}
    for name, array in columns:
        flat = array.reshape(len(array), -1) if array.size else array.reshape(len(array), 0)
        width = flat.shape[1]
        places = np.linspace(0, max(width - 1, 0), min(width, _VALUES)).astype(np.int64)
        sample[name] = flat[:, places].astype(np.float64)
    return sample


def is_close(before: np.ndarray, now: np.ndarray) -> bool:
    """Whether values of data are those of another time, which may have been computed elsewhere."""
    if before.shape != now.shape:
        return False
    if np.array_equal(before, np.rint(before)):  # ids and classes: one that is near is another one
        return bool(np.array_equal(before, now))
    finite = before[np.isfinite(before)]
    scale = float(np.abs(finite).max()) if finite.size else 0.0
    return bool(np.allclose(before, now, rtol=_TOLERANCE, atol=_TOLERANCE * scale * 1e-3, equal_nan=True))
