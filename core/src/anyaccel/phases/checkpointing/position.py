"""Position: where a training phase is, as plain data and arrays; what it needs to go on besides the graph's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from anyaccel.arguments import shown
from anyaccel.errors import StateError
from anyaccel.phases.run import Epoch

PART = "checkpoint"
"""Name of the plain data in the manifest of a checkpoint."""
_NOT_FINITE = ("nan", "inf", "-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a training phase is.

    Attributes:
        phase: label of the phase.
        epoch: the epoch within the run that is going on or comes next, from 0.
        number: its number over all runs of phases with this label.
        step: its steps that are done.
        history: the completed epochs.
        losses: sums and weights of the steps of this epoch, by label.
        random: random state of each program, in their order; None at the start of an epoch.
        source_draws: whether reading the data has drawn random numbers of a framework.
        frameworks: of each node.
        callbacks: class and state of each callback.
        best: state of the graph that the run returns to at its end; None without one.
        stop_reason: why the run was asked to stop; `""` if it was not.
        score: of the last completed epoch, the lower the better; None without one.
        settings: what the order of the rows and the losses follow from.
        optimizers: configurations of the optimizers.
        data: some values of the rows; like the two before it, to see later whether they changed.
    """

    phase: str
    epoch: int
    number: int
    step: int = 0
    history: tuple[Epoch, ...] = ()
    losses: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    random: Sequence[Mapping[str, np.ndarray]] | None = None
    source_draws: bool = False
    frameworks: Mapping[str, str] = field(default_factory=dict)
    callbacks: Sequence[tuple[str, Mapping[str, Any]]] = ()
    best: Mapping[str, np.ndarray] | None = None
    stop_reason: str = ""
    score: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    optimizers: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the folder of its checkpoint; the order of names is that of positions."""
        return f"epoch-{self.epoch:06d}-step-{self.step:09d}"

    def to_parts(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Plain data, ready for JSON, and arrays by name."""
        arrays: dict[str, np.ndarray] = {}
        for i, state in enumerate(self.random or ()):
            arrays.update({f"random/{i}/{name}": np.asarray(array) for name, array in state.items()})
        callbacks = []
        for i, (kind, state) in enumerate(self.callbacks):
            held = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
            arrays.update({f"callbacks/{i}/{name}": array for name, array in held.items()})
            plain = {name: _plain(value) for name, value in state.items() if name not in held}
            callbacks.append({"class": kind, "state": plain})
        arrays.update({f"best/{name}": array for name, array in (self.best or {}).items()})
        arrays.update({f"data/{name}": array for name, array in self.data.items()})
        parts = {
            "phase": self.phase,
            "epoch": self.epoch,
            "number": self.number,
            "step": self.step,
            "history": [_epoch_parts(epoch) for epoch in self.history],
            "losses": {label: [_plain(total), _plain(weight)] for label, (total, weight) in self.losses.items()},
            "random": None if self.random is None else len(self.random),
            "source_draws": self.source_draws,
            "frameworks": dict(self.frameworks),
            "callbacks": callbacks,
            "has_best": self.best is not None,
            "stop_reason": self.stop_reason,
            "score": self.score,
            "settings": dict(self.settings),
            "optimizers": dict(self.optimizers),
        }
        return parts, arrays

    @classmethod
    def from_parts(cls, parts: Any, arrays: Mapping[str, np.ndarray]) -> Position:
        """What `to_parts` gave.

        Raises:
            StateError: it is malformed.
        """
        try:
            n_random = parts["random"]
            callbacks = [
                (str(each["class"]), {**_read_all(each["state"]), **_below(arrays, f"callbacks/{i}/")})
                for i, each in enumerate(parts["callbacks"])
            ]
            return cls(
                phase=str(parts["phase"]),
                epoch=_count(parts["epoch"]),
                number=_count(parts["number"]),
                step=_count(parts["step"]),
                history=tuple(_epoch(each) for each in parts["history"]),
                losses={label: (float(pair[0]), float(pair[1])) for label, pair in parts["losses"].items()},
                random=None if n_random is None else [_below(arrays, f"random/{i}/") for i in range(_count(n_random))],
                source_draws=bool(parts.get("source_draws", False)),
                frameworks={str(label): str(name) for label, name in parts.get("frameworks", {}).items()},
                callbacks=callbacks,
                best=_below(arrays, "best/") if parts["has_best"] else None,
                stop_reason=str(parts["stop_reason"]),
                score=None if parts["score"] is None else float(parts["score"]),
                settings=dict(parts.get("settings", {})),
                optimizers=dict(parts.get("optimizers", {})),
                data=_below(arrays, "data/"),
            )
        except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
            problem = f"the position in a checkpoint is malformed: {type(error).__name__}: {error}"
            raise StateError(problem, hint="take another checkpoint of the folder") from error


def _below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{shown(value)} is not a count")
    return value


def _plain(value: Any) -> Any:
    """A number as JSON takes it: NaN and infinities as text."""
    value = value.item() if isinstance(value, np.generic) else value
    return str(value) if isinstance(value, float) and str(value) in _NOT_FINITE else value


def _read(value: Any) -> Any:
    return float(value) if isinstance(value, str) and value in _NOT_FINITE else value


def _read_all(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _read(value) for name, value in values.items()}


def _epoch_parts(epoch: Epoch) -> dict[str, Any]:
    given = {each.name: getattr(epoch, each.name) for each in fields(epoch)}
    return {
        name: {key: _plain(number) for key, number in value.items()} if isinstance(value, Mapping) else _plain(value)
        for name, value in given.items()
    }


def _epoch(parts: Mapping[str, Any]) -> Epoch:
    given: dict[str, Any] = {
        name: _read_all(value) if isinstance(value, Mapping) else _read(value) for name, value in parts.items()
    }
    return Epoch(**given)
