"""Plots of arrays on matplotlib Axes. matplotlib is imported when something is plotted."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from anyaccel.errors import ResultError

_MAX_CLASSES_SHOWN = 20
"""Number of classes up to which a confusion matrix shows counts and a legend shows labels."""


class Curve(NamedTuple):
    """x and y, float [points] each; points that are not finite are left out."""

    x: np.ndarray
    y: np.ndarray


def axes(ax: Any = None) -> Any:
    """Return `ax`, or the Axes of a new pyplot figure.

    Raises:
        ResultError: matplotlib is not installed.
    """
    if ax is not None:
        if callable(getattr(ax, "scatter", None)) and callable(getattr(ax, "set_aspect", None)):
            return ax
        raise ResultError(
            f"plot() cannot draw on ax={type(ax).__name__}",
            available="a matplotlib Axes",
            hint="pass one Axes: figure, ax = pyplot.subplots(), or axes[0] of several",
        )
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ResultError(
            f"plot() needs matplotlib, which cannot be imported ({error})",
            hint="python -m pip install 'anyaccel[plot]'",
        ) from error
    return pyplot.subplots(layout="constrained")[1]


def line_plot(curves: Mapping[str, Curve], ax: Any, *, title: str, xlabel: str, ylabel: str) -> Any:
    """Plot a line per curve, with a legend and integer ticks along x."""
    ax = axes(ax)
    from matplotlib.ticker import MaxNLocator

    for name, curve in curves.items():
        finite = np.isfinite(curve.y)
        marker = "o" if int(finite.sum()) <= 30 else None
        ax.plot(curve.x[finite], curve.y[finite], marker=marker, markersize=4, label=_escaped(name))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(title=_escaped(title), xlabel=_escaped(xlabel), ylabel=_escaped(ylabel))
    ax.grid(alpha=0.3)
    ax.legend()
    return ax


def scatter(targets: np.ndarray, predictions: np.ndarray, ax: Any, *, title: str, xlabel: str, ylabel: str) -> Any:
    """Plot predictions over targets, each [n, components], with the diagonal."""
    ax = axes(ax)
    single = predictions.shape[1] == 1
    for i, (x, y) in enumerate(zip(targets.T, predictions.T, strict=True)):
        ax.scatter(x, y, s=14, alpha=_alpha(len(x)), linewidths=0, label=None if single else str(i))
    finite = np.concatenate([array[np.isfinite(array)].reshape(-1) for array in (targets, predictions)])
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    margin = 0.05 * (high - low) or 0.5
    limits = low - margin, high + margin
    ax.plot(limits, limits, color="0.5", linestyle="--", linewidth=1, zorder=0, label="equal")
    ax.set(title=_escaped(title), xlabel=_escaped(xlabel), ylabel=_escaped(ylabel), xlim=limits, ylim=limits)
    ax.set_aspect("equal")
    ax.grid(alpha=0.3)
    ax.legend(title=None if single else "component")
    return ax


def confusion(targets: np.ndarray, predictions: np.ndarray, ax: Any, *, title: str, xlabel: str, ylabel: str) -> Any:
    """Plot a confusion matrix of classes [n] each: rows are targets, columns predictions, colors the fraction of a
    row.
    """
    ax = axes(ax)
    classes = np.union1d(targets, predictions)
    counts = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(counts, (np.searchsorted(classes, targets), np.searchsorted(classes, predictions)), 1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    ax.figure.colorbar(image, ax=ax, label="share of the target's rows", shrink=0.85)
    if len(classes) <= _MAX_CLASSES_SHOWN:
        size = 10 if len(counts) <= 12 else 7
        for (row, column), count in np.ndenumerate(counts):
            colour = "white" if shares[row, column] > 0.5 else "black"
            ax.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=size)
        ax.set_xticks(range(len(classes)), [str(name) for name in classes.tolist()])
        ax.set_yticks(range(len(classes)), [str(name) for name in classes.tolist()])
    ax.set(title=_escaped(title), xlabel=_escaped(xlabel), ylabel=_escaped(ylabel))
    return ax


def labelled_points(points: np.ndarray, labels: np.ndarray, ax: Any, *, title: str, name: str, legend: str) -> Any:
    """Plot points [n, 2], colored by label [n]."""
    ax = axes(ax)
    classes = np.unique(labels)
    for i, label in enumerate(classes.tolist()):
        members = points[labels == label]
        colour = f"C{i}" if len(classes) <= 10 else colorsys.hsv_to_rgb(i / len(classes), 0.8, 0.8)
        style = {"s": 14, "alpha": _alpha(len(points)), "linewidths": 0}
        ax.scatter(members[:, 0], members[:, 1], color=colour, label=str(label), **style)
    ax.set(title=_escaped(title), xlabel=_escaped(f"{name}, output 0"), ylabel=_escaped(f"{name}, output 1"))
    ax.grid(alpha=0.3)
    if len(classes) <= _MAX_CLASSES_SHOWN:
        ax.legend(title=_escaped(legend))
    return ax


def _alpha(points: int) -> float:
    return 0.7 if points <= 500 else 0.4 if points <= 5000 else 0.15


def _escaped(text: str) -> str:
    """Return a name as plain text: matplotlib reads formulas between dollars and hides labels that begin with `_`."""
    shown = text.replace("$", r"\$")
    return f"\N{ZERO WIDTH SPACE}{shown}" if shown.startswith("_") else shown


def as_classes(targets: np.ndarray, predictions: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return target and predicted class indices [n] each; None if the targets are not class indices.

    Predictions are classes [n], scores [n, classes], or logits [n] of class 1 for targets of 0 and 1.
    """
    n = len(targets)
    if targets.size != n or targets.dtype.kind not in "biu":
        return None
    indices, scores = targets.reshape(n).astype(np.int64), predictions.reshape(len(predictions), -1)
    if scores.shape[1] > 1:
        return indices, scores.argmax(axis=1)
    if scores.dtype.kind in "biu":
        return indices, scores[:, 0].astype(np.int64)
    return (indices, (scores[:, 0] > 0).astype(np.int64)) if np.isin(indices, (0, 1)).all() else None


def as_labels(targets: np.ndarray, predictions: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return target and predicted classes [n] each, as text or integers; None unless both are text or both integers."""
    n = len(targets)
    if targets.size != n or predictions.size != n:
        return None
    targets, predictions = targets.reshape(n), predictions.reshape(n)
    if targets.dtype.kind in "biu" and predictions.dtype.kind in "biu":
        return targets.astype(np.int64), predictions.astype(np.int64)
    if targets.dtype.kind not in "OUS" or predictions.dtype.kind not in "OUS":
        return None
    return np.array([str(name) for name in targets.tolist()]), np.array([str(name) for name in predictions.tolist()])


def figures_to_plot(names: Sequence[str], known: Sequence[str], run: str, epochs: int) -> list[str]:
    """Return the values to plot: those named, otherwise `loss` and `val_loss`, otherwise every total, otherwise all.

    Raises:
        ResultError: there is nothing to plot.
    """
    if names:
        return list(names)
    if not known:
        raise ResultError(
            f"run {run!r} has no figures to plot",
            cause=f"{epochs} epochs without a loss or a validation" if epochs else "no complete epoch",
            hint="write TrainPhase(..., losses=[...]) or validation=EvalPhase(..., metrics=[...])"
            if epochs
            else "run an epoch first",
        )
    losses = [name for name in ("loss", "val_loss") if name in known]
    return losses or [name for name in known if "." not in name] or list(known)


def y_label(names: Sequence[str]) -> str:
    """Label of the y axis for some values."""
    if len(names) == 1:
        return names[0]
    return "loss" if all("loss" in name for name in names) else "value"
