"""The texts of a run, as Markdown. Everything that users named is shown as it stands: in blocks of code."""

from __future__ import annotations

import json
from typing import Any

from anyaccel.errors import ConfigError


def block(text: str) -> str:
    """A text as a block of code, by indentation, which no text can end."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def settings(run: Any) -> str:
    """Experiment, graph and phase with their settings, as JSON."""
    graph = run.graph
    optimizer = None if graph.optimizer is None else _config(graph.optimizer)
    told = {
        "experiment": run.experiment,
        "graph": {"label": graph.label, "seed": graph.seed, "optimizer": optimizer},
        "phase": _config(run.phase),
    }
    return block(json.dumps(told, indent=2, default=repr, ensure_ascii=False))


def plan(run: Any) -> str:
    """What is computed where, what is loaded, what crosses."""
    return block(str(run.plan))


def graph(run: Any) -> str:
    """A table of the nodes, and the graph in Mermaid."""
    return "\n\n".join([block(run.graph.summary()), "Mermaid:", block(run.graph.visualize(plan=run.plan))])


def fitted(run: Any) -> str:
    """What a FitPhase has fitted."""
    lines = (f"{one.node}: {one.estimator} to {one.rows:,} rows in {one.seconds:.3g} s" for one in run.fitted)
    return block("\n".join(lines))


def error(error: BaseException) -> str:
    """Type, message and notes of what ended a run."""
    return block("\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]))


def _config(thing: Any) -> Any:
    """Settings as plain data; those of a thing that cannot be written down are told as Python shows them."""
    try:
        return thing.get_config()
    except ConfigError:
        names = [name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ())]
        names = names or [name for name in vars(thing) if not name.startswith("_")]
        return {"type": type(thing).__name__, **{name: repr(getattr(thing, name)) for name in names}}
