"""ModelLoss: what `fit` knows of a model that computes its own loss: its labels, what fills shorter rows, what counts.

A library of models says more of its own than a signature does: a distribution names a subclass of ModelLoss by an entry
point of the group `anyaccel.model_libraries`, called like the top-level package of its models.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.arguments import shown
from anyaccel.data.roles import listed
from anyaccel.distributions import MODEL_LIBRARIES, load
from anyaccel.errors import ColumnError, DataError, PhaseError
from anyaccel.registry import registry
from anyaccel.results import EvalResults

LABELS = ("labels", "label", "targets", "target")
"""Arguments that hold what a model compares its outputs with, in a model of which no library says more."""


class ModelLoss:
    """How a model that computes its own loss is trained and asked, as far as its call tells.

    Args:
        model: the model.

    Attributes:
        model: as given.
        arguments: names of the arguments of its call.
        required: those that have no default.
        labels: those that hold what it compares its outputs with.
        output: name of the loss among what it returns: a scalar, the mean over all that counts in a batch.
        integers: the dtype that columns of integers get; None for that which they have.
        pads: what fills the places behind shorter rows, by argument.
        mask: the argument that is 1 where a row has values and 0 behind it; `""` if the model has none.
        masked: the argument whose rows it is the mask of.
    """

    output = "loss"
    integers: str | None = None
    pads: Mapping[str, float] = {}
    mask = masked = ""

    def __init__(self, model: Any) -> None:
        self.model = model
        parameters = _parameters(model)
        self.arguments = tuple(parameters)
        self.required = tuple(name for name, each in parameters.items() if each.default is each.empty)
        self.labels = tuple(name for name in self.label_names() if name in parameters)

    @property
    def name(self) -> str:
        """The model's class, for messages."""
        return type(self.model).__name__

    def label_names(self) -> Sequence[str]:
        """Names that arguments for labels may have."""
        return LABELS

    def other_label_names(self, argument: str) -> Sequence[str]:
        """Further names of a column that is given as this argument."""
        return ()

    def no_labels(self, columns: Sequence[str]) -> ColumnError:
        """The error for data without labels."""
        column = next((name for name in columns if name not in self.arguments), "COLUMN")
        return ColumnError(
            f"{self.name} computes its own loss with {listed(map(repr, self.labels))}, and no column is called so",
            available=listed(columns),
            hint=f"name the column: target={column!r}",
        )

    def no_inputs(self, columns: Sequence[str]) -> ColumnError:
        """The error for data without a column that has the name of an input."""
        inputs = [name for name in self.arguments if name not in self.labels]
        return ColumnError(
            f"no column has the name of an input of {self.name}",
            available=f"its inputs: {listed(inputs)}; columns: {listed(columns)}",
            hint="rename columns to the names of the model's inputs",
        )

    def no_numbers(self, argument: str, column: str, values: Any) -> DataError:
        """The error for a column that holds no numbers."""
        kind = getattr(values, "type", type(values).__name__)
        if _are_mappings(values):
            return ColumnError(
                f"column {column!r}, the input {argument!r} of {self.name}, has a dict for each row",
                cause="a model that takes lists of these, such as a detector, is no function of arrays",
                hint="train it by a step of your own: fit(model, data, step=step, target=[...])",
            )
        return ColumnError(
            f"column {column!r}, the input {argument!r} of {self.name}, holds no numbers but {kind}",
            hint="convert it to numbers before",
        )

    def nothing_counts(self, column: str, rows: np.ndarray | None, where: Any) -> DataError:
        """The error for labels none of which counts: in some rows, [m], of so many; or in a batch or row, as text."""
        place = where if rows is None else f"row {rows[0]}, one of {len(rows)} such rows of {where},"
        return DataError(
            f"no label in {column!r} counts in {place}: the mean over nothing is 0/0",
            hint="leave these rows out",
        )

    def check(self, columns: Mapping[str, Any]) -> None:
        """Check the values of columns in memory, by argument: arrays [n, *shape], or RaggedColumn.

        Raises:
            DataError: values that the model cannot compute with.
        """

    def counted(self, labels: np.ndarray, lengths: np.ndarray | None) -> np.ndarray | None:
        """Which labels the mean loss of a batch is over; None where each row counts the same.

        Args:
            labels: [n, *shape], or the values of all rows one behind the other, [total].
            lengths: of the rows, [n], if `labels` are such values.

        Returns:
            an array of bool of the shape of `labels`.
        """
        return None

    def labels_from_input(self, values: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """Labels for a model that learns to give its own input.

        Args:
            values: of the input.
            mask: of the same shape, 0 where the input has no value; None for values everywhere.
        """
        return values

    def check_metrics(self, metrics: Any) -> None:
        """Refuse metrics that would compare outputs with other labels than the loss does.

        Raises:
            PhaseError: such a metric.
        """

    def check_prediction(self) -> None:
        """Refuse predictions that the model does not make from its inputs alone.

        Raises:
            PhaseError: as said.
        """

    def outputs(self, results: EvalResults, names: Sequence[str]) -> Any:
        """What the model gives: an array, or one for each output by name."""
        short = {name.partition(".")[2] or name: results.prediction(name) for name in names}
        return next(iter(short.values())) if len(short) == 1 else short

    def decoded(self, outputs: Any) -> Any:
        """Predictions from outputs, such as names of classes; outputs where nothing says what they mean."""
        return outputs

    def classes(self) -> np.ndarray:
        """The classes of a classifier, in the order of its outputs.

        Raises:
            PhaseError: nothing says that it is one.
        """
        raise PhaseError(
            f"nothing says that the outputs of {self.name} are scores of classes",
            hint="see predict(data, outputs=True) for what it gives",
        )

    def get_config(self) -> dict[str, Any]:
        """Plain data, of which `built` makes the model; {} where the model has to be given."""
        return {}

    @classmethod
    def built(cls, config: Mapping[str, Any]) -> Any:
        """The model of `get_config`.

        Raises:
            ConfigError: it cannot be made.
        """
        raise NotImplementedError


def _are_mappings(values: Any) -> bool:
    """Whether each row of a column is a dict, in Python or in Arrow."""
    is_struct = getattr(getattr(values, "type", None), "num_fields", 0) and str(values.type).startswith("struct")
    first = values[0] if isinstance(values, (list, tuple)) and values else values
    return bool(is_struct) or isinstance(first, Mapping)


def library_of(model: Any) -> tuple[str, Any]:
    """The package of a library that says how its models are fitted, with the subclass of ModelLoss; else `""`, None.

    Raises:
        MissingDistributionError: one of anyaccel's own distributions says it, and is not installed.
    """
    for package in dict.fromkeys(str(base.__module__).partition(".")[0] for base in type(model).__mro__):
        library = load(MODEL_LIBRARIES, package)
        if library is not None:
            return package, library
    return "", None


def model_loss(model: Any) -> ModelLoss | None:
    """How a model that computes its own loss is fitted; None for one that does not take labels.

    Raises:
        MissingDistributionError: as `library_of`.
        PhaseError: a model of a library of models with losses, which has none.
    """
    _, library = library_of(model)
    if library is None:
        rules = ModelLoss(model)
        return rules if rules.labels else None
    rules = library(model)
    if not rules.labels:
        raise PhaseError(
            f"{rules.name} computes no loss: its call takes no labels",
            available=listed(rules.arguments),
            hint="take one of its library with a head for the task, or write loss=",
        )
    return rules  # type: ignore[no-any-return]


def refuse_table_settings(rules: ModelLoss, *, scaler: Any, preprocess: Any, drop: Any, categories: Any) -> None:
    """Refuse settings that treat the columns of a table: such a model takes its inputs as they are.

    Raises:
        PhaseError: one is set.
    """
    settings = {"scaler": scaler, "drop": drop or None, "categories": categories or None}
    settings["preprocess"] = None if isinstance(preprocess, str) and preprocess == "auto" else preprocess
    for name, value in settings.items():
        if value is not None:
            problem = f"fit has {name}={shown(value)}, and {rules.name} takes its inputs as they are"
            raise PhaseError(problem, hint=f"leave {name} out")


def _parameters(model: Any) -> dict[str, inspect.Parameter]:
    """The arguments of a model's call by name; none where they are not known."""
    if isinstance(model, (str, type)) or inspect.isroutine(model):
        return {}
    owners = registry().owners(model)
    if not owners:
        return {}
    backend = registry().computing(owners[0])
    signature = backend.signature(model) if backend.calls_by_keyword else None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = {} if signature is None else signature.parameters
    return {name: each for name, each in parameters.items() if each.kind in named}
