"""ModelLoss: rules for a model that computes its own loss: its labels, padding, and which labels count.

A library of models has conventions that no signature shows. A distribution registers a subclass of ModelLoss for them
by an entry point of the group `anyaccel.model_libraries`, named like the top-level package of the models.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from anyaccel.arguments import shown
from anyaccel.data import FeatureSet
from anyaccel.data.roles import Names, listed, names_of
from anyaccel.data.rows import values_of
from anyaccel.distributions import MODEL_LIBRARIES, entry_points, load
from anyaccel.errors import AnyaccelError, ColumnError, DataError, PhaseError
from anyaccel.install_hints import LIBRARIES
from anyaccel.printable import printable
from anyaccel.registry import registry
from anyaccel.results import EvalResults
from anyaccel.user_level import user_level

Error = TypeVar("Error", bound=AnyaccelError)

LABELS = ("labels", "label", "targets", "target")
"""Usual label arguments of models whose library has no rules."""


class ModelLoss:
    """How to train and evaluate a model that computes its own loss, as derived from its call.

    Args:
        model: The model.

    Attributes:
        model: The model.
        arguments: Names of the arguments of its call.
        required: Arguments without a default.
        labels: Arguments that take the labels.
        output: Name of the loss in its result: a scalar, the mean over all labels that count in a batch.
        integers: Dtype of integer columns; None leaves it unchanged.
        pads: Padding value of shorter rows, by argument.
        mask: Argument that is 1 where a row has values and 0 in its padding; `""` if the model has no such argument.
        masked: Argument whose rows the mask describes.
    """

    output = "loss"
    integers: str | None = None
    pads: Mapping[str, float] = {}
    mask = masked = ""

    def __init__(self, model: Any) -> None:
        self.model = model
        owners = () if isinstance(model, (str, type)) or inspect.isroutine(model) else registry().owners(model)
        backend = registry().computing(owners[0]) if owners else None
        signature = backend.signature(model) if backend is not None and backend.calls_by_keyword else None
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = {} if signature is None else dict(signature.parameters)
        parameters = {name: parameter for name, parameter in parameters.items() if parameter.kind in named}
        self.arguments = tuple(parameters)
        self.required = tuple(name for name, parameter in parameters.items() if parameter.default is parameter.empty)
        self.labels = tuple(name for name in self.label_names() if name in parameters)

    @property
    def name(self) -> str:
        """Class name of the model, for messages."""
        return type(self.model).__name__

    def label_names(self) -> Sequence[str]:
        """Return the names that arguments for labels may have."""
        return LABELS

    def other_label_names(self, argument: str) -> Sequence[str]:
        """Return other names for the column of this argument."""
        return ()

    def no_labels(self, columns: Sequence[str]) -> ColumnError:
        """Return the error for data without labels."""
        column = next((name for name in columns if name not in self.arguments), "COLUMN")
        return ColumnError(
            f"{self.name} computes its own loss with {listed(map(repr, self.labels))}, but no column has this name",
            available=listed(columns),
            hint=f"name the column: target={column!r}",
        )

    def no_inputs(self, columns: Sequence[str]) -> ColumnError:
        """Return the error for data without a column named like an input."""
        inputs = [name for name in self.arguments if name not in self.labels]
        return ColumnError(
            f"no column is named like an input of {self.name}",
            available=f"its inputs: {listed(inputs)}; columns: {listed(columns)}",
            hint="rename columns to the names of the model's inputs",
        )

    def no_numbers(self, argument: str, column: str, values: Any) -> DataError:
        """Return the error for a column that does not hold numbers."""
        kind = getattr(values, "type", type(values).__name__)
        if are_dicts(values):
            return dicts_for_rows(f"column {column!r}, the input {argument!r} of {self.name},")
        return ColumnError(
            f"column {column!r}, the input {argument!r} of {self.name}, contains {kind} instead of numbers",
            hint="convert it to numbers first",
        )

    def nothing_counts(self, column: str, rows: np.ndarray | None, where: Any) -> DataError:
        """Return the error for labels that are all ignored: in rows [m] of `where` rows, or in `where`, as text."""
        place = where if rows is None else f"row {rows[0]}, one of {len(rows)} such rows of {where},"
        return DataError(
            f"all labels in {column!r} are ignored in {place} and their mean would be 0/0",
            hint="leave these rows out",
        )

    def check(self, columns: Mapping[str, Any]) -> None:
        """Check the values of columns in memory, by argument: arrays [n, *shape], or RaggedColumn.

        Raises:
            DataError: The model cannot compute with these values.
        """

    def counted(self, labels: np.ndarray, lengths: np.ndarray | None) -> np.ndarray | None:
        """Return which labels the mean loss of a batch includes; None if each row counts the same.

        Args:
            labels: Labels [n, *shape], or the concatenated values of all rows, [total].
            lengths: Lengths of the rows, [n], for concatenated values.

        Returns:
            An array of bool in the shape of `labels`.
        """
        return None

    def labels_from_input(self, values: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """Return labels for a model that learns to reconstruct its input.

        Args:
            values: Values of the input.
            mask: Mask in the same shape, 0 in the padding; None for an input without padding.
        """
        return values

    def check_metrics(self, metrics: Any) -> None:
        """Refuse metrics that would compare outputs with other labels than the loss does.

        Raises:
            PhaseError: There is such a metric.
        """

    def check_prediction(self) -> None:
        """Refuse to predict if the model cannot do so from its inputs alone.

        Raises:
            PhaseError: The model needs more than its inputs.
        """

    def outputs(self, results: EvalResults, names: Sequence[str]) -> Any:
        """Return the outputs of the model: an array, or a dict of arrays by name."""
        short = {name.partition(".")[2] or name: results.prediction(name) for name in names}
        return next(iter(short.values())) if len(short) == 1 else short

    def decoded(self, outputs: Any) -> Any:
        """Return predictions from outputs, such as class names; outputs without a known meaning stay unchanged."""
        return outputs

    def classes(self) -> np.ndarray:
        """Return the classes of a classifier, in the order of its outputs.

        Raises:
            PhaseError: The model does not declare itself a classifier.
        """
        raise PhaseError(
            f"the outputs of {self.name} are not known to be scores of classes",
            hint="use predict(data, outputs=True) for its outputs",
        )

    def get_config(self) -> dict[str, Any]:
        """Return plain data that `built` rebuilds the model from; {} if the user must pass the model."""
        return {}

    @classmethod
    def built(cls, config: Mapping[str, Any]) -> Any:
        """Rebuild the model from the output of `get_config`.

        Raises:
            ConfigError: The model cannot be built.
        """
        raise NotImplementedError


def are_dicts(values: Any) -> bool:
    """Return whether the rows of a column are dicts, in Python, pandas or Arrow."""
    is_struct = getattr(getattr(values, "type", None), "num_fields", 0) and str(values.type).startswith("struct")
    rows = getattr(values, "iloc", values)
    first = rows[0] if (isinstance(rows, (list, tuple)) or rows is not values) and len(values) else values
    return bool(is_struct) or isinstance(first, Mapping)


def dicts_for_rows(what: str) -> ColumnError:
    """Return the error for data with a dict for each row, as detectors take them."""
    return ColumnError(
        f"{what} has a dict for each row",
        cause="a model that takes lists of dicts, such as a detector, is not a function of arrays",
        hint="train it by a step, in a module that returns a tensor: fit(InGraph(model), data, step=step)",
    )


def library_of(model: Any) -> tuple[str, Any]:
    """Return the package of a library with fitting rules, and the subclass of ModelLoss that holds them; or `""`, None.

    Raises:
        MissingDistributionError: The rules are in one of anyaccel's own distributions, which is not installed.
    """
    packages = [*LIBRARIES, *(entry.name for entry in entry_points(MODEL_LIBRARIES))]
    for base in type(model).__mro__:
        package = str(base.__module__).partition(".")[0]
        if package in packages:
            return package, load(MODEL_LIBRARIES, package)
    return "", None


def model_loss(model: Any) -> ModelLoss | None:
    """Return the rules for fitting a model that computes its own loss; None for a model that takes no labels.

    Raises:
        MissingDistributionError: The rules are in a distribution that is not installed.
        PhaseError: The library's models compute losses, but this model does not.
    """
    _, library = library_of(model)
    if library is None:
        rules = ModelLoss(model)
        return rules if rules.labels else None
    rules = library(model)
    if not rules.labels:
        raise PhaseError(
            f"{rules.name} does not compute a loss: its call takes no labels",
            available=listed(rules.arguments),
            hint="use a model of its library with a head for the task, or set loss=",
        )
    return rules  # type: ignore[no-any-return]


def rules_of_library(model: Any) -> ModelLoss | None:
    """Return the rules of a model that computes its own loss, if its library has any."""
    _, library = library_of(model)
    rules: ModelLoss | None = None if library is None else library(model)
    return rules if rules is not None and rules.labels else None


def refuse_other_loss(rules: ModelLoss, loss: Any, target: Names) -> None:
    """Refuse a named loss over an input of a model that computes its own loss, as language models do.

    Raises:
        PhaseError: The target is an input of the model.
    """
    inputs = {*rules.arguments} - {*rules.labels}
    wrong = next((name for name in names_of(target) if name in inputs), None)
    if wrong is not None:
        problem = f"{rules.name} computes its own loss, also over its input {wrong!r}, and fit has loss={shown(loss)}"
        raise PhaseError(problem, hint="leave loss= out")


def warn_of_copied_labels(rules: ModelLoss, loss: Any, data: FeatureSet) -> None:
    """Warn of a named loss whose targets are a copy of an input of a model that computes its own loss."""
    for target in data.targets:
        labels = values_of(data, target)
        for name in data.features:
            values = values_of(data, name)
            if values.shape == labels.shape and np.array_equal(values, labels):
                problem = (
                    f"the target {target!r} equals the input {name!r}, so with loss={shown(loss)} the model learns to "
                    f"repeat its input; {rules.name} computes its own loss, in which language models shift the labels."
                )
                hint = "leave loss= out"
                warnings.warn(printable(f"{problem} Hint: {hint}"), UserWarning, stacklevel=user_level())


def with_own_loss(error: Error, rules: ModelLoss) -> Error:
    """Return an error of a fit with another loss, with the hint that the model computes its own loss."""
    hint = f"{error.hint}; or leave loss= out: {rules.name} computes its own loss".removeprefix("; or ")
    return type(error)(error.problem, available=error.available, hint=hint)
