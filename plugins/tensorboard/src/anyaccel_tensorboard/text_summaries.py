"""Texts about a run, as Markdown. All names of users are in code blocks, so that they are shown verbatim."""

from __future__ import annotations

import json
from typing import Any

from anyaccel.errors import ConfigError


def code_block(text: str) -> str:
    """A text as an indented code block, which no text can end."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def settings(run: Any) -> str:
    """Experiment, graph and phase with their settings, as JSON."""
    graph = run.graph
    optimizer = None if graph.optimizer is None else _config(graph.optimizer)
    settings = {
        "experiment": run.experiment,
        "graph": {"label": graph.label, "seed": graph.seed, "optimizer": optimizer},
        "phase": _config(run.phase),
    }
    return code_block(json.dumps(settings, indent=2, default=repr, ensure_ascii=False))


def plan(run: Any) -> str:
    """The plan as text."""
    return code_block(str(run.plan))


def graph(run: Any) -> str:
    """A table of the nodes, and the graph in Mermaid."""
    return "\n\n".join([code_block(run.graph.summary()), "Mermaid:", code_block(run.graph.visualize(plan=run.plan))])


def fitted(run: Any) -> str:
    """The estimators that a FitPhase has fitted."""
    lines = (f"{fit.node}: {fit.estimator} to {fit.rows:,} rows in {fit.seconds:.3g} s" for fit in run.fitted)
    return code_block("\n".join(lines))


def error(error: BaseException) -> str:
    """Type, message and notes of an exception."""
    return code_block("\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]))


def _config(obj: Any) -> Any:
    """Settings as plain data; where an object has no configuration, the `repr` of its attributes."""
    try:
        return obj.get_config()
    except ConfigError:
        names = [name for cls in type(obj).__mro__ for name in getattr(cls, "__slots__", ())]
        names = names or [name for name in vars(obj) if not name.startswith("_")]
        return {"type": type(obj).__name__, **{name: repr(getattr(obj, name)) for name in names}}
