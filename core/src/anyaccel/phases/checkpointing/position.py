"""Position: where a training phase is, as plain data and arrays; what it needs to go on besides the graph's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from anyaccel.arguments import shown
from anyaccel.errors import StateError
from anyaccel.phases.loading.source_position import SourcePosition
from anyaccel.precision import LossScaleState
from anyaccel.results.records import Epoch

PART = "checkpoint"
"""Name of the plain data in the manifest of a checkpoint."""
_MOST_PROGRAMS = 100_000  # more than any graph has nodes
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
        random: random state of each program, in their order, replica by replica; None at the start of an epoch.
        replicas: how many there were.
        source: where the source of the rows is; None where they are in memory.
        frameworks: of each node.
        callbacks: class and state of each callback.
        best: state of the graph that the run returns to at its end; None without one.
        stop_reason: why the run was asked to stop; `""` if it was not.
        score: of the last completed epoch, the lower the better; None without one.
        loss_scale: where the loss scale stands; None where losses are not scaled.
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
    replicas: int = 1
    source: SourcePosition | None = None
    frameworks: Mapping[str, str] = field(default_factory=dict)
    callbacks: Sequence[tuple[str, Mapping[str, Any]]] = ()
    best: Mapping[str, np.ndarray] | None = None
    stop_reason: str = ""
    score: float | None = None
    loss_scale: LossScaleState | None = None
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
        if self.source is not None:
            arrays.update({f"source/{name}": array for name, array in self.source.to_arrays().items()})
        parts = {
            "phase": self.phase,
            "epoch": self.epoch,
            "number": self.number,
            "step": self.step,
            "history": [_epoch_parts(epoch) for epoch in self.history],
            "losses": {label: [_plain(total), _plain(weight)] for label, (total, weight) in self.losses.items()},
            "random": None if self.random is None else len(self.random),
            "replicas": self.replicas,
            "source_draws": None if self.source is None else self.source.draws,
            "frameworks": dict(self.frameworks),
            "callbacks": callbacks,
            "has_best": self.best is not None,
            "stop_reason": self.stop_reason,
            "score": self.score,
            **({} if self.loss_scale is None else {"loss_scale": self.loss_scale.to_dict()}),
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
            callbacks = [
                (_text(each["class"]), {**_read_all(each["state"]), **_below(arrays, f"callbacks/{i}/")})
                for i, each in enumerate(parts["callbacks"])
            ]
            return cls(
                phase=_text(parts["phase"]),
                epoch=_count(parts["epoch"]),
                number=_count(parts["number"]),
                step=_count(parts["step"]),
                history=_history(parts),
                losses={label: (_float(total), _float(weight)) for label, (total, weight) in parts["losses"].items()},
                random=_random(parts["random"], arrays),
                replicas=max(_count(parts.get("replicas", 1), _MOST_PROGRAMS), 1),
                source=_source(parts.get("source_draws"), arrays),
                frameworks={label: _text(name) for label, name in parts.get("frameworks", {}).items()},
                callbacks=callbacks,
                best=_below(arrays, "best/") if _flag(parts["has_best"]) else None,
                stop_reason=_text(parts["stop_reason"]),
                score=None if parts["score"] is None else _float(parts["score"]),
                loss_scale=LossScaleState.from_dict(parts["loss_scale"]) if "loss_scale" in parts else None,
                settings=dict(parts.get("settings", {}).items()),
                optimizers=dict(parts.get("optimizers", {}).items()),
                data=_below(arrays, "data/"),
            )
        except (TypeError, KeyError, ValueError, AttributeError, IndexError, OverflowError) as error:
            problem = f"the position in a checkpoint is malformed: {type(error).__name__}: {error}"
            raise StateError(problem, hint="take another checkpoint of the folder") from error


def _below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _random(count: Any, arrays: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]] | None:
    if count is None:
        return None
    return [_below(arrays, f"random/{i}/") for i in range(_count(count, _MOST_PROGRAMS))]


def _source(draws: Any, arrays: Mapping[str, np.ndarray]) -> SourcePosition | None:
    return None if draws is None else SourcePosition.from_arrays(_flag(draws), _below(arrays, "source/"))


def _history(parts: Mapping[str, Any]) -> tuple[Epoch, ...]:
    history = tuple(_epoch(each) for each in parts["history"])
    if len(history) != parts["epoch"]:
        raise ValueError(f"{len(history)} epochs are recorded before epoch {parts['epoch']}")
    return history


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is not true or false")
    return value


def _float(value: Any) -> float:
    return float(_number(value))


def _count(value: Any, most: int = 2**63 - 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{shown(value)} is not a count")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not text")
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
    named = ("losses", "validation", "step_figures")
    given = {**parts, **{name: {key: _number(each) for key, each in parts.get(name, {}).items()} for name in named}}
    given.update({name: _count(parts[name]) for name in ("number", "steps")})
    given.update({name: _number(parts[name]) for name in ("loss", "seconds")})
    return Epoch(**given)


def _number(value: Any) -> float:
    """A number as `_plain` gives it; an int stays one, as a metric may count."""
    value = _read(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{shown(value)} is not a number")
    return value
