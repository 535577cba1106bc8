"""Drawings of arrays on matplotlib's Axes. matplotlib is imported when something is drawn, and only then."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from anyaccel.errors import ResultError

_COUNTED = 20
"""Classes up to which each cell of a confusion matrix shows its count."""


class Curve(NamedTuple):
    """Numbers over numbers, float [points] each; points that are not finite are left out."""

    x: np.ndarray
    y: np.ndarray


def axes(ax: Any = None) -> Any:
    """The Axes given, or those of a new figure of pyplot's, which a notebook shows and `pyplot.show()` finds.

    Raises:
        ResultError: matplotlib is not installed.
    """
    if ax is not None:
        return _checked(ax)
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ResultError(
            f"plot() draws with matplotlib, which cannot be imported ({error})",
            hint="python -m pip install 'anyaccel[plot]'",
        ) from error
    return pyplot.subplots(layout="constrained")[1]


def _checked(ax: Any) -> Any:
    if callable(getattr(ax, "scatter", None)) and callable(getattr(ax, "set_aspect", None)):
        return ax
    raise ResultError(
        f"plot() cannot draw on ax={type(ax).__name__}",
        available="ax is matplotlib's Axes",
        hint="give one Axes: figure, ax = pyplot.subplots(); of several, axes[0]",
    )


def curves(found: Mapping[str, Curve], ax: Any, *, title: str, xlabel: str, ylabel: str) -> Any:
    """One line for each curve, with a legend; whole numbers along x."""
    ax = axes(ax)
    from matplotlib.ticker import MaxNLocator

    for name, curve in found.items():
        there = np.isfinite(curve.y)
        short = int(there.sum()) <= 30
        ax.plot(curve.x[there], curve.y[there], marker="o" if short else None, markersize=4, label=_plain(name))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(title=_plain(title), xlabel=_plain(xlabel), ylabel=_plain(ylabel))
    ax.grid(alpha=0.3)
    ax.legend()
    return ax


def against(targets: np.ndarray, predictions: np.ndarray, ax: Any, *, title: str, xlabel: str, ylabel: str) -> Any:
    """Predictions over targets, each [n, components], with the line on which they would be equal."""
    ax = axes(ax)
    single = predictions.shape[1] == 1
    for i, (wanted, given) in enumerate(zip(targets.T, predictions.T, strict=True)):
        ax.scatter(wanted, given, s=14, alpha=_alpha(len(wanted)), linewidths=0, label=None if single else str(i))
    ends = _ends(targets, predictions)
    ax.plot(ends, ends, color="0.5", linestyle="--", linewidth=1, zorder=0, label="equal")
    ax.set(title=_plain(title), xlabel=_plain(xlabel), ylabel=_plain(ylabel), xlim=ends, ylim=ends)
    ax.set_aspect("equal")
    ax.grid(alpha=0.3)
    ax.legend(title=None if single else "component")
    return ax


def confusion(targets: np.ndarray, predictions: np.ndarray, ax: Any, *, title: str, xlabel: str, ylabel: str) -> Any:
    """How often each class [n] was predicted for each class [n]: rows are targets, columns are predictions.

    The colour is the share of a row, the number the count.
    """
    ax = axes(ax)
    classes = np.union1d(targets, predictions)
    counts = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(counts, (np.searchsorted(classes, targets), np.searchsorted(classes, predictions)), 1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    ax.figure.colorbar(image, ax=ax, label="share of the target's rows", shrink=0.85)
    if len(classes) <= _COUNTED:
        _count_cells(counts, shares, ax)
        ax.set_xticks(range(len(classes)), [str(one) for one in classes.tolist()])
        ax.set_yticks(range(len(classes)), [str(one) for one in classes.tolist()])
    ax.set(title=_plain(title), xlabel=_plain(xlabel), ylabel=_plain(ylabel))
    return ax


def labelled(points: np.ndarray, labels: np.ndarray, ax: Any, *, title: str, name: str, legend: str) -> Any:
    """Points [n, 2], each in the colour of its label [n]."""
    ax = axes(ax)
    there = np.unique(labels)
    for i, label in enumerate(there.tolist()):
        mine = points[labels == label]
        colour = f"C{i}" if len(there) <= 10 else _colour(i, len(there))
        style = {"s": 14, "alpha": _alpha(len(points)), "linewidths": 0}
        ax.scatter(mine[:, 0], mine[:, 1], color=colour, label=str(label), **style)
    ax.set(title=_plain(title), xlabel=_plain(f"{name}, output 0"), ylabel=_plain(f"{name}, output 1"))
    ax.grid(alpha=0.3)
    if len(there) <= _COUNTED:
        ax.legend(title=_plain(legend))
    return ax


def _colour(i: int, count: int) -> tuple[float, float, float]:
    """One of many colours."""
    return colorsys.hsv_to_rgb(i / count, 0.8, 0.8)


def _count_cells(counts: np.ndarray, shares: np.ndarray, ax: Any) -> None:
    size = 10 if len(counts) <= 12 else 7
    for (row, column), count in np.ndenumerate(counts):
        colour = "white" if shares[row, column] > 0.5 else "black"
        ax.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=size)


def _ends(*arrays: np.ndarray) -> tuple[float, float]:
    """Where both axes begin and end: all finite numbers, and a little room."""
    finite = np.concatenate([array[np.isfinite(array)].reshape(-1) for array in arrays])
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    room = 0.05 * (high - low) or 0.5
    return low - room, high + room


def _alpha(points: int) -> float:
    return 0.7 if points <= 500 else 0.4 if points <= 5000 else 0.15


def _plain(text: str) -> str:
    """A name as it stands: matplotlib would read formulas between dollars, and hide labels that begin with `_`."""
    shown = text.replace("$", r"\$")
    return f"\N{ZERO WIDTH SPACE}{shown}" if shown.startswith("_") else shown


def as_classes(targets: np.ndarray, predictions: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Target and predicted classes [n] each; None where the targets [n] are no class indices or do not fit.

    Predictions are classes [n], scores [n, classes], or logits [n] of class 1 where the targets are 0 and 1.
    """
    wanted = targets.reshape(len(targets)) if targets.size == len(targets) else None
    if wanted is None or wanted.dtype.kind not in "biu":
        return None
    given = predictions.reshape(len(predictions), -1)
    wanted = wanted.astype(np.int64)
    if given.shape[1] > 1:
        return wanted, given.argmax(axis=1)
    if given.dtype.kind in "biu":
        return wanted, given[:, 0].astype(np.int64)
    return (wanted, (given[:, 0] > 0).astype(np.int64)) if np.isin(wanted, (0, 1)).all() else None


def as_labels(targets: np.ndarray, predictions: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Target and predicted classes [n] each, by name or number; None where they are not both words or both whole.

    Words are those of the same text; what is missing is `None`.
    """
    n = len(targets)
    if targets.size != n or predictions.size != n:
        return None
    wanted, given = targets.reshape(n), predictions.reshape(n)
    if wanted.dtype.kind in "biu" and given.dtype.kind in "biu":
        return wanted.astype(np.int64), given.astype(np.int64)
    if wanted.dtype.kind not in "OUS" or given.dtype.kind not in "OUS":
        return None
    return np.array([str(one) for one in wanted.tolist()]), np.array([str(one) for one in given.tolist()])


def chosen(names: Sequence[str], there: Sequence[str], run: str, epochs: int) -> list[str]:
    """Figures to draw of a run of some epochs: those named, else losses, else all that sum up, else all.

    Raises:
        ResultError: there is nothing to draw.
    """
    if names:
        return list(names)
    found = [name for name in ("loss", "val_loss") if name in there] or [name for name in there if "." not in name]
    if not there and epochs:
        raise ResultError(
            f"run {run!r} has no figures to draw",
            available=f"{epochs} epochs without a loss or a validation",
            hint="give TrainPhase(..., losses=[...]) or validation=EvalPhase(..., metrics=[...])",
        )
    if not there:
        raise ResultError(
            f"run {run!r} has no figures to draw", available="no complete epoch", hint="run an epoch first"
        )
    return found or list(there)


def measure_of(names: Sequence[str]) -> str:
    """What the y axis of some figures is called."""
    if len(names) == 1:
        return names[0]
    return "loss" if all("loss" in name for name in names) else "value"
