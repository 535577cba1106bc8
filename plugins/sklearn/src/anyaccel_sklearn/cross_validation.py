"""cross_validate: train a new model for each fold of a table, and predict all rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.call_hints import call_hints, class_hints
from anyaccel.data import FeatureSet, FeatureSetView
from anyaccel.data.readers.dataframes import check_order_of_rows
from anyaccel.data.roles import Names, listed, names_of, no_column
from anyaccel.errors import PhaseError, ResultError, TableWarning
from anyaccel.fitting import FittedModel, fit
from anyaccel.fitting.fit_function import is_sized
from anyaccel.fitting.probabilities import CLASSES, YES_OR_NO
from anyaccel.fitting.tables import (
    LABEL,
    check_target,
    is_table,
    loss_of_target,
    named_pair,
    no_target,
    readable,
    tag_table,
)
from anyaccel.specs import Loss
from anyaccel.user_level import user_level

_SCORE, _LOSS = "score", "loss"


@class_hints
@dataclass(frozen=True, eq=False)
class CrossValidation:
    """The results of `cross_validate`.

    Attributes:
        metrics: Values of each metric by name, [folds]: `"score"` (accuracy for classes, R2 for numbers), `"loss"` and
            the requested metrics, over the test rows of each fold.
        folds: Numbers of the test rows of each fold.
        classes: Names of the classes, in the order of the columns of `probabilities`; None for numbers.
        models: Model of each fold.
    """

    metrics: Mapping[str, np.ndarray]
    folds: Sequence[np.ndarray]
    classes: np.ndarray | None
    models: Sequence[FittedModel]
    _n_rows: int
    _predictions: Sequence[np.ndarray]
    _probabilities: Sequence[np.ndarray]

    def __repr__(self) -> str:
        texts = (f"{name} {values.mean():.4g} +- {values.std():.2g}" for name, values in self.metrics.items())
        return f"CrossValidation({len(self.folds)} folds, {', '.join(texts)})"

    def mean(self, name: str = _SCORE) -> float:
        """Return the mean of a metric over the folds.

        Raises:
            ResultError: No metric has this name.
        """
        return float(self._metric(name).mean())

    def std(self, name: str = _SCORE) -> float:
        """Return the standard deviation of a metric over the folds.

        Raises:
            ResultError: No metric has this name.
        """
        return float(self._metric(name).std())

    @property
    def predictions(self) -> np.ndarray:
        """Prediction for each row by the model that was not trained on it, in the order of the rows.

        Raises:
            ResultError: A row was tested in no fold, or in several.
        """
        return self._in_order(self._predictions)

    @property
    def probabilities(self) -> np.ndarray:
        """Class probabilities for each row by the model that was not trained on it, [n, classes], as in `classes`.

        Raises:
            ResultError: The predictions are not classes; or a row was tested in no fold, or in several.
        """
        if self.classes is None:
            raise ResultError("these models predict numbers, so there are no probabilities", hint="see predictions")
        return self._in_order(self._probabilities)

    def _metric(self, name: str) -> np.ndarray:
        if name not in self.metrics:
            problem = f"no metric {name!r} was measured"
            raise ResultError(problem, available=listed(self.metrics), hint="write cross_validate(..., metrics=[...])")
        return self.metrics[name]

    def _in_order(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        counts = np.bincount(np.concatenate(self.folds), minlength=self._n_rows)
        if (counts != 1).any():
            row = int((counts != 1).argmax())
            raise ResultError(
                f"{int((counts != 1).sum())} of {self._n_rows} rows were not tested in one fold: row {row} in "
                f"{int(counts[row])}",
                hint="use a splitter that tests each row once, such as cv=5, or predict with the models",
            )
        order = np.argsort(np.concatenate(self.folds), kind="stable")
        return np.concatenate(parts)[order]


@call_hints
def cross_validate(
    model: Any,
    data: Any,
    *,
    target: Names = None,
    cv: Any = 5,
    groups: Any = None,
    metrics: Any = (),
    loss: Any = None,
    seed: int = 0,
    progress: Any = "none",
    **fit_arguments: Any,
) -> CrossValidation:
    """Train a model for each fold of a table on the other folds, and evaluate it on the rows of the fold.

    Args:
        model: `"mlp"`, or a function or class of (n_features, n_outputs), which builds a new model for each fold. A
            model object is refused: it would be trained on its test rows.
        data: Table as for `fit`, or a FeatureSet.
        target: Target as for `fit`.
        cv: Number of folds, shuffled by the seed. Folds have equal fractions of the classes, and keep groups together
            if you pass `groups`. Or a scikit-learn splitter, or pairs of row numbers (train, test).
        groups: Column with the group of each row, which is then not a feature, or an array; for splitters that keep
            groups together. With a column, a validation fraction keeps its groups together too.
        metrics: Metrics to compute on each fold; see `EvalPhase`.
        loss: Loss as for `fit`.
        seed: Seed of the folds and of each `fit`.
        progress: Progress display as for `fit`.
        fit_arguments: All other arguments of `fit`, such as `epochs=20` and `validation=0.2`; validation rows are taken
            from the training folds.

    Raises:
        PhaseError: The model was built already, the folds do not match the rows, or `fit` fails.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> x = np.arange(40.0)
        >>> found = aa.cross_validate("mlp", {"x": x, "y": x > 20}, target="y", cv=4, epochs=1, framework="numpy")
        >>> found.predictions.shape, found.probabilities.shape
        ((40,), (40, 2))
    """
    if not is_sized(model, fit_arguments.get("framework")):
        raise PhaseError(
            f"cross_validate got a {type(model).__name__}, which would continue learning from fold to fold "
            "and be tested on known rows",
            hint="pass 'mlp', or a function that creates a model: lambda n_features, n_outputs: MODEL",
        )
    word = next((word for word in ("n_splits", "n_folds", "folds", "kfold") if word in fit_arguments), None)
    if word is not None:
        raise PhaseError(f"cross_validate has no argument {word!r}", hint=f"write cv={shown(fit_arguments[word])}")
    check_order_of_rows(LABEL, {"the table": data, "groups": groups})
    data = readable(data)
    if not (is_table(data) or isinstance(data, (FeatureSet, FeatureSetView))):
        problem = f"cross_validate splits the rows of a table, but {shown(data)} is not a table"
        raise PhaseError(problem, hint="pass a data frame, a mapping of arrays, the path of a file, or a FeatureSet")
    if is_table(data):
        data, _, target = named_pair(data, None, target)
    rows = _Table(data)
    names = names_of(target) if target is not None else rows.names_of_targets
    if not names:
        raise no_target(rows.names)
    for name in (*names, *((groups,) if isinstance(groups, str) else ())):
        if name not in rows.names:
            raise no_column(LABEL, name, rows.names)
    if is_table(rows.data):
        for name in names:
            check_target(name, tag_table(rows.data, [name]).column(name))
    is_classes = len(names) == 1 and _is_of_classes(loss, rows.data, target)
    y: Any = rows.values(names[0]) if len(names) == 1 else None
    group_of_row = rows.values(groups) if isinstance(groups, str) else groups
    if isinstance(groups, str) and is_table(rows.data):
        share = fit_arguments.get("validation")
        if isinstance(share, Real) and not isinstance(share, bool) and "group" not in fit_arguments:
            fit_arguments["group"] = groups
        elif groups not in names_of(fit_arguments.get("group")):
            rows = rows.without(groups)
    classes: np.ndarray | None = None
    splits = _splits(cv, rows, y if is_classes else None, group_of_row, seed)
    if is_classes:
        for number, (train, test) in enumerate(splits):
            unknown = np.setdiff1d(y[test], y[train])
            if len(unknown):
                (name,), count = unknown[:1].tolist(), int((y == unknown[0]).sum())
                raise PhaseError(
                    f"class {name!r} is in {count} of {len(y)} rows, so fold {number} would have no such row to "
                    "train on",
                    hint="leave rare classes out, or use a splitter that distributes them over folds, such as cv=2",
                )
        classes, counts = np.unique(y, return_counts=True)
        if counts.min() < len(splits):
            name, count = classes.tolist()[counts.argmin()], int(counts.min())
            warnings.warn(
                f"class {name!r} has {count} {'row' if count == 1 else 'rows'}, and there are {len(splits)} folds: "
                f"{len(splits) - count} of them test none of it",
                TableWarning,
                stacklevel=user_level(),
            )
    measured: list[dict[str, float]] = []
    models, predictions, probabilities = [], [], []
    for train, test in splits:
        arguments = {"target": target, "loss": loss, "seed": seed, "progress": progress, **fit_arguments}
        fitted = fit(model, rows.take(train), **arguments)
        unseen = rows.take(test)
        results = fitted.evaluate(unseen, metrics)
        measured.append({_SCORE: fitted.score(unseen), **results.metrics})
        if results.losses:
            measured[-1][_LOSS] = float(results.loss)
        predictions.append(fitted.predict(unseen))
        if classes is not None:
            of_fold = fitted.predict_proba(unseen)
            aligned = np.zeros((len(test), len(classes)))
            places = [int(np.flatnonzero(classes == name)[0]) if name in classes else -1 for name in fitted.classes_]
            for column, place in enumerate(places):
                if place >= 0:
                    aligned[:, place] = of_fold[:, column]
            probabilities.append(aligned)
        models.append(fitted)
    figures = {name: np.array([of_fold[name] for of_fold in measured]) for name in measured[0]}
    tests = [test for _, test in splits]
    return CrossValidation(figures, tests, classes, models, rows.count, predictions, probabilities)


class _Table:
    """Rows of a table or of a feature set, selected by their numbers."""

    def __init__(self, data: Any) -> None:
        self.data = data
        if is_table(data) and not isinstance(data, Mapping):
            self.data = tag_table(data, ...)  # read once
        if isinstance(self.data, Mapping):
            self.names, self.count = list(self.data), len(next(iter(self.data.values())))
        elif is_table(data):
            self.names, self.count = list(self.data.column_names), len(self.data)
        else:
            self.names, self.count = list(data.columns), len(data)

    @property
    def names_of_targets(self) -> tuple[str, ...]:
        """The targets of a feature set."""
        return () if is_table(self.data) else tuple(self.data.targets)

    def values(self, name: str) -> np.ndarray:
        """Return a column, [n]."""
        column = self.data[name] if is_table(self.data) else self.data.column(name)
        return np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column)

    def without(self, name: str) -> _Table:
        """Return the table without a column."""
        if isinstance(self.data, Mapping):
            return _Table({key: values for key, values in self.data.items() if key != name})
        return _Table(self.data.drop_columns([name]))

    def take(self, rows: np.ndarray) -> Any:
        """Return some rows for `fit`."""
        if isinstance(self.data, Mapping):
            return {name: _taken(values, rows) for name, values in self.data.items()}
        return self.data.take(rows) if is_table(self.data) else self.data.view().take(rows)


def _taken(values: Any, rows: np.ndarray) -> Any:
    if hasattr(values, "iloc"):
        return values.iloc[rows]
    return values[rows] if hasattr(values, "shape") else [values[row] for row in rows]


def _is_of_classes(loss: Any, data: Any, target: Names) -> bool:
    if loss is None:
        loss = loss_of_target(data, target)
    named = loss if isinstance(loss, Loss) else Loss(loss) if isinstance(loss, str) else None
    return named is not None and named.own is None and named.name in (CLASSES, YES_OR_NO)


def _splits(
    cv: Any, rows: _Table, classes: np.ndarray | None, groups: Any, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the row numbers to train on and to test on, for each fold.

    Raises:
        PhaseError: These rows cannot be split like this.
    """
    from sklearn import model_selection

    if groups is not None and len(groups) != rows.count:
        problem = f"groups= has {len(groups)} values, but the table has {rows.count} rows"
        raise PhaseError(problem, hint="pass the group of each row, or name the column: groups='COLUMN'")
    if isinstance(cv, str) or not (hasattr(cv, "split") or isinstance(cv, Iterable)):
        folds = arguments.integer(PhaseError, "cross_validate: ", "cv", cv, 2, 5)
        if groups is not None:
            cv = model_selection.GroupKFold(folds)
            if classes is not None:
                cv = model_selection.StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
        elif classes is not None:
            cv = model_selection.StratifiedKFold(folds, shuffle=True, random_state=seed)
        else:
            cv = model_selection.KFold(folds, shuffle=True, random_state=seed)
    try:
        with warnings.catch_warnings():  # for classes with few rows, which are checked after that
            warnings.filterwarnings("ignore", "The least populated class", UserWarning)
            made = list(cv.split(np.zeros(rows.count), classes, groups) if hasattr(cv, "split") else cv)
    except (ValueError, TypeError) as error:
        if groups is None and "groups" in str(error):
            problem = f"{type(cv).__name__} keeps groups together, but cross_validate received no groups"
            raise PhaseError(problem, hint="name the column: groups='COLUMN'") from error
        problem = f"cv={shown(cv)} cannot split {rows.count} rows: {error}"
        raise PhaseError(problem, hint="use fewer folds, such as cv=2") from error
    splits = [(np.asarray(train), np.asarray(test)) for train, test in made]
    if not splits or any(not len(part) for pair in splits for part in pair):
        raise PhaseError(f"cv={shown(cv)} makes a fold without rows", hint="use fewer folds, such as cv=2")
    return splits
