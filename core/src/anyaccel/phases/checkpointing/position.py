"""Position: where a training phase is, as plain data and arrays; with the state of the graph, it can be resumed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any
from zlib import crc32

import numpy as np

from anyaccel.arguments import shown
from anyaccel.data import Rows
from anyaccel.errors import ConfigError, StateError
from anyaccel.graph import ModelGraph, serialization, state_dict
from anyaccel.graph.state_loading import StateMapping
from anyaccel.phases.callbacks import Callback
from anyaccel.phases.checkpointing.checkpoint import Checkpoint
from anyaccel.phases.loading.loader import SourcePosition, is_close
from anyaccel.phases.run import Run
from anyaccel.phases.settings import PhaseSettings
from anyaccel.precision import LossScaleState
from anyaccel.results.records import Epoch
from anyaccel.specs import Optimizer

PART = "checkpoint"
"""Name of the plain data in the manifest of a checkpoint."""
_MOST_PROGRAMS = 100_000  # more than any graph has nodes
_NOT_FINITE = ("nan", "inf", "-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position of a training phase.

    Attributes:
        phase: Label of the phase.
        epoch: Current or next epoch within the run, from 0.
        number: Number of the epoch over all runs of phases with this label.
        step: Number of its steps that are done.
        history: The completed epochs.
        losses: Sums and weights of the steps of this epoch, by label.
        random: Random state of each program, in their order, replica by replica; None at the start of an epoch.
        replicas: Number of replicas.
        source: Position of the source of the rows; None if the rows are in memory.
        frameworks: Framework of each node.
        callbacks: Class and state of each callback.
        best: State of the graph that the run returns to at its end, or None.
        stop_reason: Why the run was asked to stop; `""` if it was not.
        score: Score of the last completed epoch, lower is better, or None.
        loss_scale: State of the loss scale; None if losses are not scaled.
        settings: Settings that determine the order of the rows and the losses.
        optimizers: Configurations of the optimizers.
        data: Some values of the rows. Like `settings` and `optimizers`, they show later whether they changed.
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
        """Name of the folder of its checkpoint; names sort in the order of positions."""
        return f"epoch-{self.epoch:06d}-step-{self.step:09d}"

    def to_parts(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return plain data, ready for JSON, and arrays by name."""
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
        """Rebuild the object from the output of `to_parts`.

        Raises:
            StateError: it is malformed.
        """
        try:
            callbacks = [
                (
                    _text(callback["class"]),
                    {name: _read(value) for name, value in callback["state"].items()}
                    | _below(arrays, f"callbacks/{i}/"),
                )
                for i, callback in enumerate(parts["callbacks"])
            ]
            history = tuple(_epoch(epoch) for epoch in parts["history"])
            if len(history) != parts["epoch"]:
                raise ValueError(f"{len(history)} epochs are recorded before epoch {parts['epoch']}")
            n_random, draws = parts["random"], parts.get("source_draws")
            random = source = None
            if n_random is not None:
                random = [_below(arrays, f"random/{i}/") for i in range(_count(n_random, _MOST_PROGRAMS))]
            if draws is not None:
                source = SourcePosition.from_arrays(_flag(draws), _below(arrays, "source/"))
            return cls(
                phase=_text(parts["phase"]),
                epoch=_count(parts["epoch"]),
                number=_count(parts["number"]),
                step=_count(parts["step"]),
                history=history,
                losses={label: (_float(total), _float(weight)) for label, (total, weight) in parts["losses"].items()},
                random=random,
                replicas=max(_count(parts.get("replicas", 1), _MOST_PROGRAMS), 1),
                source=source,
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
            raise StateError(problem, hint="use another checkpoint of the folder") from error


def _below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


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
    """Return a number as JSON takes it: NaN and infinities as text."""
    value = value.item() if isinstance(value, np.generic) else value
    return str(value) if isinstance(value, float) and str(value) in _NOT_FINITE else value


def _read(value: Any) -> Any:
    return float(value) if isinstance(value, str) and value in _NOT_FINITE else value


def _epoch_parts(epoch: Epoch) -> dict[str, Any]:
    values = {attribute.name: getattr(epoch, attribute.name) for attribute in fields(epoch)}
    return {
        name: {key: _plain(number) for key, number in value.items()} if isinstance(value, Mapping) else _plain(value)
        for name, value in values.items()
    }


def _epoch(parts: Mapping[str, Any]) -> Epoch:
    named = ("losses", "validation", "step_figures")
    values = {
        **parts,
        **{name: {key: _number(number) for key, number in parts.get(name, {}).items()} for name in named},
    }
    values.update({name: _count(parts[name]) for name in ("number", "steps")})
    values.update({name: _number(parts[name]) for name in ("loss", "seconds")})
    return Epoch(**values)


def _number(value: Any) -> float:
    """Return a number as `_plain` gives it; an int stays one, as a metric may count."""
    value = _read(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{shown(value)} is not a number")
    return value


# -- Run settings: what the order of the rows and the losses of a run follow from; compared when a run goes on ---------


_SAMPLED_ROWS = 16
_SAMPLED_VALUES = 64
"""Of each row of a column."""


def settings_of(phase: PhaseSettings) -> dict[str, Any]:
    """Return the settings that determine the steps of a phase, apart from its graph and data, as plain data by name."""
    settings = {
        name: setting.compare(getattr(phase, name))
        for name, setting in phase.settings.items()
        if setting.compare is not None and setting.on_resume
    }
    return _as_read(settings)


def sample_of(run: Run) -> dict[str, np.ndarray]:
    """Return some values of the columns that a run loads, in the order of the rows, and the number of rows.

    Args:
        run: A run with a plan and rows. Data that are read on demand are not included.

    Returns:
        `LABEL` of a feature set: its number of rows, int64 []; `LABEL/COLUMN`: float64 [values], for text its CRC.
    """
    assert run.plan is not None
    data, sample = run.phase.data, dict[str, np.ndarray]()
    for label, rows in run.rows.items():  # what a user gave as rows, or by the name of a split; a source may change
        rows_or_name = data.get(label) if isinstance(data, Mapping) else data
        if isinstance(rows_or_name, (str, Rows)) and len(rows):
            sample[label] = np.array(len(rows))
    for column in run.plan.columns:
        if column.feature_set not in sample or column.ragged:
            continue
        rows = run.rows[column.feature_set]
        some = rows.take(np.linspace(0, len(rows) - 1, min(len(rows), _SAMPLED_ROWS)).astype(np.int64))
        for name in column.columns:
            array = some.array(name)
            values = array.reshape(len(array), -1)[:, :_SAMPLED_VALUES].ravel()
            if values.dtype.kind not in "biuf" and values.dtype.name != "bfloat16":
                values = np.array([crc32(repr(value).encode()) for value in values.tolist()])
            sample[f"{column.feature_set}/{name}"] = values.astype(np.float64)
    return sample


def optimizers_of(graph: ModelGraph) -> dict[str, Any]:
    """Return the configurations of the optimizers of a graph, by node, as plain data; that of all others under
    "optimizer".
    """
    optimizers = {
        label: optimizer for label, node in graph.nodes.items() if (optimizer := getattr(node, "optimizer", None))
    }
    by_node = {"optimizer": graph.optimizer, **optimizers}
    return _as_read({name: _optimizer_settings(optimizer) for name, optimizer in by_node.items()})


def different_settings(before: Any, now: Any, name: str = "") -> list[str]:
    """Return the differences between the settings of two runs, as human-readable text; `name` names the settings."""
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return [] if before == now else [f"{name} was {shown(before)} and is now {shown(now)}"]
    return [
        difference
        for key in [*before, *(key for key in now if key not in before)]
        for difference in different_settings(before.get(key), now.get(key), f"{name}.{key}" if name else key)
    ]


def different_data(before: Mapping[str, np.ndarray], now: Mapping[str, np.ndarray]) -> list[str]:
    """Return the differences between the samples of the data of two runs, as human-readable text."""
    differences = []
    for name in sorted({*before} & {*now}):
        if before[name].ndim == 0 and before[name] != now[name]:
            differences.append(f"{name!r} had {int(before[name]):,} rows and now has {int(now[name]):,}")
    resized = {name for name in before if before[name].ndim == 0 and before[name] != now.get(name)}
    for name in sorted({*before} & {*now}):
        if before[name].ndim and name.partition("/")[0] not in resized and not is_close(before[name], now[name]):
            differences.append(f"the values of {name!r} changed")
    return differences


def _as_read(settings: dict[str, Any]) -> dict[str, Any]:
    """Return plain data in the form of a read file."""
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=str))
    return plain


def _optimizer_settings(optimizer: Optimizer | None) -> dict[str, Any] | None:
    try:
        return serialization.optimizer_entry(optimizer)
    except ConfigError:  # a schedule that is a function
        return None if optimizer is None else {"optimizer": optimizer.name, "lr": optimizer.lr}


# -- Framework change: the checkpoint of a run whose nodes had other frameworks, as one of this run --------------------


State = dict[str, np.ndarray]


def changed_frameworks(run: Run, position: Position) -> dict[str, str]:
    """Return the nodes whose framework differs from that of the checkpoint, with both, as text."""
    now, before = frameworks_of(run), position.frameworks
    changed = [label for label in now if label in before and now[label] != before[label]]
    return {label: f"{label!r} was {before[label]} and is now {now[label]}" for label in changed}


def translated(run: Run, checkpoint: Checkpoint, position: Position, state: State) -> tuple[Position, State]:
    """Return position and state with the names and axes of the models of the run.

    Args:
        run: The run, whose graph continues.
        checkpoint: The mapping of names and axes.
        position: Position in the checkpoint that was read.
        state: State of the graph in the checkpoint.

    Raises:
        StateError: names or axes of nodes that had another framework do not fit.
    """
    changed = changed_frameworks(run, position)
    if not changed:
        return position, state
    try:
        mapping = StateMapping(run.graph, list(changed), checkpoint.names, checkpoint.change)
        state = mapping.mapped(state)
        best = None if position.best is None else mapping.mapped(position.best)
        callbacks = [(kind, mapping.mapped(state, is_part=True)) for kind, state in position.callbacks]
        return replace(position, best=best, callbacks=callbacks), state
    except StateError as error:
        problem = f"{', '.join(changed.values())}, and {error.problem}"
        is_argument = "names=" in error.hint or "change=" in error.hint
        where = f"pass it to Checkpoint({str(checkpoint.folder)!r}, ...): " if is_argument else ""
        raise StateError(problem, available=error.available, hint=f"{where}{error.hint}") from error


# -- What callbacks keep in a checkpoint -------------------------------------------------------------------------------


CallbackStates = list[tuple[str, dict[str, Any]]]


def callback_states(callbacks: Iterable[Callback]) -> CallbackStates:
    """Name of the class, and state, of each callback."""
    return [(type(callback).__name__, dict(callback.state_dict())) for callback in callbacks]


def load_callback_states(callbacks: Sequence[Callback], saved: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Restore the states of callbacks from callbacks of the same class, in order. Stateless callbacks may be added or
    removed.

    Raises:
        StateError: a state has no callback of its class, a callback with a state finds none, or one rejects its state.
    """
    held = [(kind, state) for kind, state in saved if state]
    left = list(held)
    pairs = []
    for callback in callbacks:
        if left and type(callback).__name__ == left[0][0]:
            pairs.append((callback, left.pop(0)[1]))
        elif callback.state_dict():
            raise _other_callbacks(callbacks, held)
    if left:
        raise _other_callbacks(callbacks, held)
    for callback, state in pairs:
        try:
            callback.load_state_dict(state)
        except (KeyError, TypeError, ValueError) as error:
            kind = type(callback).__name__
            problem = f"callback {kind} does not accept its state: {type(error).__name__}: {error}"
            raise StateError(problem, hint="make load_state_dict accept the result of state_dict()") from error


def _other_callbacks(callbacks: Sequence[Callback], held: Sequence[tuple[str, Any]]) -> StateError:
    return StateError(
        f"the checkpoint belongs to a run with other callbacks: {', '.join(kind for kind, _ in held) or 'none'}",
        cause=f"this run has {', '.join(type(callback).__name__ for callback in callbacks) or 'none'}",
        hint="use the callbacks that have a state in the checkpoint, in the same order; callbacks without a state can "
        "be added or removed",
    )


# -- Run state: what a checkpoint takes of a run and its graph ---------------------------------------------------------


class BestState:
    """The state of the graph that a run returns to at its end; made once for each snapshot."""

    def __init__(self) -> None:
        self._made: tuple[Any, Mapping[str, np.ndarray]] | None = None

    def of(self, run: Run) -> Mapping[str, np.ndarray] | None:
        """Return arrays by name; None if the run returns to nothing."""
        snapshot = run.final_snapshot
        if snapshot is None:
            return run.final_state
        if self._made is None or self._made[0] is not snapshot:
            now = run.snapshot()
            run.restore(snapshot)
            try:
                self._made = snapshot, run.graph.state()
            finally:
                run.restore(now)
        return self._made[1]


def live_state_of(graph: ModelGraph) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the state of a graph by name, to be read at once: the next step of a running phase may change it."""
    states = state_dict.OptimizerStates()
    states.nodes = graph.nodes
    states.update(graph.optimizer_states)
    states.update(graph.live_values.read())
    return state_dict.entries(graph, states)


def frameworks_of(run: Run) -> dict[str, str]:
    """Return the framework of each node that has one."""
    return {label: backend.framework for label, backend in run.graph.shapes.backends.items()}


def graph_part(run: Run) -> dict[str, Any]:
    """Return the configuration of the graph, for `ModelGraph.load`; nothing if it has no configuration."""
    try:
        return {"graph": run.graph.saved_config()}
    except ConfigError:
        return {}
