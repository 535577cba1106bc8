"""fit: one call that trains a model on a table, from the parts that it returns."""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.backend import Compute
from anyaccel.call_hints import call_hints
from anyaccel.data import BatchSource, FeatureSet, FeatureSetView, Sampler, Source
from anyaccel.data.roles import Names, listed, names_of
from anyaccel.data.rows import values_of
from anyaccel.device import Device
from anyaccel.distributions import SETTINGS, load
from anyaccel.errors import DataError, GraphError, PhaseError, PluginError, ShapeError, TableWarning
from anyaccel.experiment import Experiment
from anyaccel.fitting.fitted_model import FittedModel
from anyaccel.fitting.fitted_model_loss import FittedModelLoss
from anyaccel.fitting.labelled_data import LabelledData, labelled_data
from anyaccel.fitting.model_loss import (
    model_loss,
    refuse_other_loss,
    rules_of_library,
    warn_of_copied_labels,
    with_own_loss,
)
from anyaccel.fitting.tables import (
    LABEL,
    Features,
    Preprocessing,
    TrainingData,
    class_labels,
    column_names,
    is_pair,
    is_table,
    loss_of_target,
    raw_table,
    readable,
    source_columns,
    training_data,
    treatment_of,
    widths_of,
)
from anyaccel.fitting.written_code import recipe_of
from anyaccel.graph import AppliedLoss, ModelGraph, ModelNode
from anyaccel.graph.nodes import Upstream
from anyaccel.install_hints import PREFERRED_FRAMEWORKS, distribution_for, install_line
from anyaccel.phases import Callback, Checkpoint, EarlyStopping, EvalPhase, TrainPhase
from anyaccel.phases.settings import checked_callbacks
from anyaccel.precision import LossScale
from anyaccel.registry import registry
from anyaccel.specs import Loss, Optimizer, takes_classes
from anyaccel.suggestions import did_you_mean
from anyaccel.user_level import user_level

# -- Models that `fit` builds for the data's widths, from a name or a function of the widths --------------------------


NAMES = {"mlp": "TabularMLP"}
"""Class in `Compute.models()` for each model name in `fit`."""
_BUILT_IN = "numpy"

DEFAULTS: Mapping[str, Any] = {"epochs": 10, "optimizer": "adam"}
"""Defaults of `fit` for your own model; others are those of TrainPhase."""
MLP_DEFAULTS: Mapping[str, Any] = {
    "epochs": 100,
    "optimizer": Optimizer("adamw", lr=1e-3),
    "early_stopping": 10,
}
"""Defaults of `fit` for a named model; early stopping applies if there is a validation."""
_STEPS, _LEAST_ROWS, _MOST_ROWS = 32, 128, 1024  # steps of an epoch, and rows of a batch


def batch_size_for(n_rows: int) -> int:
    """Return the default batch size of a named model: the power of 2 that makes about 32 steps an epoch, 128 to 1024.

    On the tables of the benchmarks with more than 8,000 rows, larger batches score higher and train faster.
    """
    return int(min(max(2 ** round(math.log2(max(n_rows, 1) / _STEPS)), _LEAST_ROWS), _MOST_ROWS))


def is_sized(model: Any, framework: str | None = None) -> bool:
    """Return whether `fit` builds the model for the widths of the data: a name in `NAMES`, or a function or class of
    (n_features, n_outputs).

    Raises:
        PhaseError: The name is unknown, or `framework` is set for a model that already has one; or the model is an
            estimator that cannot learn in steps.
    """
    is_function = isinstance(model, functools.partial) or inspect.isroutine(model)
    is_class = isinstance(model, type) and not hasattr(model, "fit")  # the class of an estimator takes no widths
    if isinstance(model, str) and model not in NAMES:
        raise PhaseError(
            f"fit has no model called {model!r}",
            available=", ".join(NAMES),
            hint=did_you_mean(model, NAMES, "write 'mlp', or pass a model of a framework"),
        )
    is_estimator = hasattr(model, "fit") and hasattr(model, "get_params") and hasattr(model, "set_params")
    if is_estimator and not hasattr(model, "partial_fit"):
        kind = model.__name__ if isinstance(model, type) else type(model).__name__
        raise PhaseError(
            f"fit trains a model step by step, but a {kind} is an estimator that learns in one call",
            hint="call its own fit, estimator.fit(x, y); in a graph with networks, use FitPhase(...)",
        )
    if framework is not None and not isinstance(model, str):
        what = "a model, which already has a framework"
        if is_function or is_class:
            what = "a function that creates models of its own framework"
        problem = f"fit has framework={framework!r} and {what}"
        raise PhaseError(problem, hint="leave framework= out, or write fit('mlp', ...)")
    return isinstance(model, str) or is_function or is_class


def sized_model(
    model: Any, framework: str | None, accelerator: Any, data: FeatureSet | Source, losses: FitLosses
) -> Any:
    """Return the model that a name, a function or a class makes for the widths of these data.

    Args:
        model: A model for which `is_sized` is true.
        framework: Framework of a named model; None for the first one that is installed and has the accelerator.
        accelerator: Accelerator of `fit`.
        data: Data of the fit.
        losses: Losses of the fit.

    Raises:
        PhaseError: The widths of the data are unknown, or the function does not return a model.
    """
    if isinstance(data, Source):
        raise PhaseError(
            f"fit creates {_named(model)} for the widths of a table, but these data are a source of batches",
            hint="pass the model itself, or a table",
        )
    widths = widths_of(data, losses.of)
    n_outputs = sum(losses.n_classes(name, data) or 0 for name in data.targets)
    n_outputs = n_outputs or widths.n_outputs
    if isinstance(model, str):
        make: Any = _framework_models(framework, accelerator)[NAMES[model]]
        return make(widths.n_numbers, widths.cardinalities, n_outputs)
    try:
        made = model(widths.n_features, n_outputs)
    except Exception as error:
        if not isinstance(error, TypeError) or (error.__traceback__ and error.__traceback__.tb_next):
            error.add_note(  # of an error inside the function
                f"fit called {_named(model)} with {widths.n_features} and {n_outputs}, the numbers of "
                "features and outputs, to create a model. Hint: if the function computes outputs from rows, pass "
                "it as a model of its framework, with its parameters."
            )
            raise
        raise PhaseError(
            f"{_named(model)} does not accept the widths of a model: {error}",
            cause=f"fit calls it with {widths.n_features} features and {n_outputs} outputs",
            hint=f"pass a model, {model.__name__}(), or lambda n_features, n_outputs: MODEL"
            if isinstance(model, type)
            else "write lambda n_features, n_outputs: MODEL, or pass the model itself",
        ) from error
    if made is None or isinstance(made, type):
        problem = f"{_named(model)} returned {shown(made)} instead of a model"
        raise PhaseError(problem, hint="return a model: lambda n_features, n_outputs: MODEL")
    return made


def _named(model: Any) -> str:
    """Return the name of a model, a function or a class, for messages."""
    if isinstance(model, str):
        return repr(model)
    if isinstance(model, type):
        return f"the class {model.__name__}"
    return f"the function {getattr(model, '__qualname__', '').rpartition('.')[2] or shown(model)}"


def _framework_models(framework: str | None, accelerator: Any) -> Any:
    """Return the models of a framework by name: of the requested one, or of the first that can use the device."""
    if framework is not None:
        backend = registry().computing(framework)
        if "TabularMLP" not in backend.models():
            raise PhaseError(
                f"the backend of {framework} has no TabularMLP",
                available=listed(sorted(backend.models())),
                hint="choose another framework, or pass a model of it",
            )
        return backend.models()
    installed = registry().frameworks
    others = [name for name in installed if name not in (*PREFERRED_FRAMEWORKS, _BUILT_IN)]
    kind = accelerator.kind if isinstance(accelerator, Device) else None
    if isinstance(accelerator, str) and accelerator != "auto":
        kind = accelerator.partition(":")[0]
    for name in (*PREFERRED_FRAMEWORKS, *others):
        if name not in installed or (kind is not None and kind not in registry().kinds(name)):
            continue
        found = registry().find(name)
        try:
            models = found.models() if isinstance(found, Compute) else {}
        except (ImportError, PluginError):  # only its plugin is installed
            continue
        if "TabularMLP" in models:
            return models
    if kind in (None, "cpu"):
        hint = install_line(distribution_for(PREFERRED_FRAMEWORKS[0]))
        text = "fit: no framework with an anyaccel plugin is installed, so 'mlp' trains with NumPy on the CPU. "
        warnings.warn(f"{text}Hint: {hint}, or write framework={_BUILT_IN!r}", UserWarning, stacklevel=user_level())
    return registry().computing(_BUILT_IN).models()


# -- Wiring: which column feeds which argument of the model, and which loss compares which output and target -----------


def several_inputs(model: Any) -> list[str]:
    """Return the names of the arguments that a model requires, if it requires more than one."""
    owners = registry().owners(model)
    signature = registry().computing(owners[0]).signature(model) if owners else None
    needed = []
    for parameter in () if signature is None else signature.parameters.values():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if is_named and parameter.default is parameter.empty:
            needed.append(parameter.name)
    return needed if len(needed) > 1 else []


def inputs_of(model: Any, data: FeatureSet | Source, features: Features) -> Upstream | dict[str, Upstream]:
    """Return the inputs of the node: columns by argument, or one reference that joins all features.

    A model that requires several arguments named like features receives these features by name.

    Raises:
        PhaseError: The model requires several arguments, and they have other names.
    """
    if isinstance(features, Mapping):
        return {name: data.reference(columns) for name, columns in features.items()}
    needed = several_inputs(model)
    if not needed:
        return data.reference()
    missing = [name for name in needed if name not in data.features]
    if missing and treatment_of(data) is not None:
        raise PhaseError(
            f"fit: the model needs the inputs {', '.join(needed)}, but a table with text, dates or gaps becomes one "
            "input of numbers",
            hint="convert its columns to numbers first (pandas: table['COLUMN'].astype('category').cat.codes"
            ".astype('int32')), or pass a function that builds a model of one input: def build(n_features, n_outputs)",
        )
    if missing:
        hint = f"assign the columns: features={{{', '.join(f'{name!r}: COLUMN' for name in needed)}}}"
        if len(data.features) < len(needed):
            arrays = ", ".join(f"{name!r}: ARRAY" for name in needed)
            hint = f"pass a column for each input: fit(model, {{{arrays}, 'y': y}}, target='y')"
        raise PhaseError(
            f"fit: the model needs the inputs {', '.join(needed)}, but no feature is called {missing[0]!r}",
            available=f"features: {listed(data.features)}",
            hint=hint,
        )
    return {name: data.reference(name) for name in needed}


class FitLosses:
    """The losses of a fit: one, one per target, or AppliedLoss objects.

    Args:
        losses: A loss, a mapping from target columns to losses, or one or several AppliedLoss; None for no loss.
        label: Label of the data, for messages.

    Attributes:
        targets: The targets that have separate losses; None if unknown.

    Raises:
        PhaseError, SpecError: An object is not a loss.
    """

    def __init__(self, losses: Any, label: str = LABEL) -> None:
        self._by_target: dict[str, Loss] = {}
        self._applied: tuple[AppliedLoss, ...] = ()
        if isinstance(losses, Mapping):
            wrong = [name for name in losses if not isinstance(name, str)]
            if wrong or not losses:
                raise PhaseError(
                    f"fit: loss={shown(losses)} must have columns of targets as its keys",
                    hint="write loss={'COLUMN': 'mse', 'OTHER': 'cross_entropy'}",
                )
            for name, loss in losses.items():
                if isinstance(loss, (tuple, list, Mapping, AppliedLoss)):
                    output = "outputs" if len(losses) == 1 else f"outputs.{name}"
                    inputs = f"inputs=[{output!r}, '{label}.{name}'], label={name!r}"
                    raise PhaseError(
                        f"fit: loss={shown(losses)} has {shown(loss)} for {name!r} instead of a loss",
                        available="a name, a Loss, or a loss of the framework, each with the weight 1",
                        hint=f"for weights, pass a list: loss=[AppliedLoss('mse', {inputs}, weight=0.1), ...]",
                    )
            self._by_target = {name: loss if isinstance(loss, Loss) else Loss(loss) for name, loss in losses.items()}
        elif isinstance(losses, AppliedLoss):
            self._applied = (losses,)
        elif isinstance(losses, (list, tuple)):
            wrong = [loss for loss in losses if not isinstance(loss, AppliedLoss)]
            if wrong or not losses:
                raise PhaseError(
                    f"fit: loss={shown(losses)} is not a list of AppliedLoss objects",
                    available="a loss, {'COLUMN': loss, ...}, or AppliedLoss objects",
                    hint=f"write loss={losses[0]!r}"
                    if len(losses) == 1 and isinstance(losses[0], str)
                    else "write loss={'COLUMN': 'mse', 'OTHER': 'cross_entropy'}",
                )
            self._applied = tuple(losses)
        elif losses is not None:
            self._applied = (AppliedLoss(losses, on="model", label="model"),)
        self.targets = list(self._by_target) or None

    @property
    def known(self) -> tuple[AppliedLoss, ...]:
        """The losses, before their outputs are known."""
        return self._applied or tuple(AppliedLoss(loss, label=name) for name, loss in self._by_target.items())

    def of(self, column: str) -> Loss | None:
        """Return the named loss that compares a target; None if it is a framework's own, or unknown."""
        for applied in self._applied:
            for name in applied.inputs:
                if name == "targets" or (name.partition(".")[2] == column and not name.startswith("outputs")):
                    return applied.loss if applied.loss.own is None else None
        loss = self._by_target.get(column)
        return None if loss is None or loss.own is not None else loss

    def n_classes(self, column: str, data: FeatureSet) -> int | None:
        """Return the number of classes of a framework's own loss for a target; None for named losses and numbers."""
        losses = [self._by_target.get(column), *(applied.loss for applied in self._applied)]
        loss = next((loss for loss in losses if loss is not None and loss.own is not None), None)
        if loss is None or "int" not in data.spec(column).dtype:
            return None
        backends = (backend for backend in registry().backends_in_use if isinstance(backend, Compute))
        takes_classes = any((takes := backend.loss_targets(loss)) and takes.kind == "classes" for backend in backends)
        return int(data.array(column).max()) + 1 if takes_classes else None

    def applied(self, graph: ModelGraph) -> tuple[AppliedLoss, ...]:
        """Return the losses of the phase over a graph with one node and one feature set.

        Raises:
            PhaseError: There are several, and the model has no outputs with these names.
        """
        if self._applied:
            return self._applied
        (label,), (node,) = graph.feature_sets, graph.nodes
        several = len(self._by_target) > 1
        missing = [name for name in self._by_target if several and f"{node}.{name}" not in graph.shapes.outputs[node]]
        if missing:
            names = [*self._by_target]
            outputs = [output.partition(".")[2] or "one" for output in graph.shapes.outputs[node]]
            raise PhaseError(
                f"fit: loss has {listed(self._by_target)}, but the model has no output {missing[0]!r}",
                available=f"outputs: {listed(outputs)}",
                hint=f"return a dict with these keys from the model, or name its outputs in order: outputs={names}",
            )
        return tuple(
            AppliedLoss(
                loss, on="model", inputs=(f"outputs.{name}" if several else "outputs", f"{label}.{name}"), label=name
            )
            for name, loss in self._by_target.items()
        )


# ----------------------------------------------------------------------------------------------------------------------


NODE = "model"


@call_hints
def fit(  # noqa: PLR0913 - keywords, each documented
    model: Any,
    data: Any,
    *,
    loss: Any = None,
    target: Names = None,
    features: Features = None,
    validation: Any = None,
    metrics: Any = (),
    epochs: int | None = None,
    batch_size: int | None = None,
    optimizer: Any = None,
    early_stopping: int | EarlyStopping | bool | None = None,
    preprocess: Any = "auto",
    drop: Names = (),
    categories: Names = (),
    embed: Any = "auto",
    scaler: Any = None,
    class_weights: Any = None,
    sample_weight: Any = None,
    group: Names = None,
    stratify: Names | bool = None,
    framework: str | None = None,
    accelerator: Any = "auto",
    seed: int = 0,
    callbacks: Iterable[Callback] = (),
    progress: Any = "auto",
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    resume: str = "never",
    outputs: Iterable[str] | None = None,
    sampler: Sampler | None = None,
    validate_every: int = 1,
    accumulate: int = 1,
    microbatching: str = "exact",
    on_nan: str = "warn",
    step: Callable[..., Any] | None = None,
    replicas: int | None = None,
    per_replica: bool = False,
    deterministic: bool = False,
    loss_scale: LossScale | float | None = None,
    sharding: str | None = None,
    sync_batchnorm: bool = False,
    strict: bool = False,
    policy: str | None = None,
    final_device: Any = None,
    compile: str = "auto",
    residency: str = "auto",
    precision: str | None = None,
    matmul_precision: Any = None,
) -> FittedModel:
    """Train a model, and return it with everything needed to predict, evaluate and save.

    `fit` builds a ModelGraph, a TrainPhase and an Experiment, and returns them in a `FittedModel`; `code()` of it shows
    the equivalent code.

    >>> import numpy as np
    >>> from anyaccel import SequentialMLP, fit
    >>> x = np.linspace(-1, 1, 64).reshape(-1, 1).astype("float32")
    >>> table = {"x": x, "y": 3 * x[:, 0]}
    >>> fitted = fit(SequentialMLP(), table, target="y", loss="mse", epochs=3, progress="none")
    >>> fitted.predict({"x": x[:5]}).shape
    (5,)

    Args:
        model: Model of any framework with a plugin; `fit` trains the object itself, not a copy. Or `"mlp"`, a
            `TabularMLP` that is sized from the data. Or a function or class that builds a model:
            `lambda n_features, n_outputs: Net(n_features, n_outputs)`.
        data: Data frame (pandas, Polars, Arrow), mapping of arrays, pair (x, y) of arrays or mappings, path of a CSV or
            Parquet file, Hugging Face data set, FeatureSet or view; or a loader or another source of batches, which is
            streamed.
        loss: Name of a loss (`"cross_entropy"`, `"mse"`, ...) or a loss of the model's framework. For several targets,
            a mapping `{"price": "mse", "kind": "cross_entropy"}` for a model that returns a dict with these keys (or
            see `outputs`), or a list of AppliedLoss objects on `"model"`. With `step`, the loss of validations. None
            uses the loss that the model computes itself, if it takes labels; otherwise cross_entropy for targets
            of text, booleans or up to 20 different integers, and mse for other numbers.
        target: Name of the target column, or several. Text is encoded as class indices, and predictions are decoded.
            FeatureSets and pairs know their targets.
        features: Names of the feature columns; by default all other columns. They are joined into one input. A model
            with several arguments receives the columns with these names, or those of a mapping:
            `{"ids": "input_ids", "numbers": ["age", "fare"]}`.
        validation: Fraction of the rows to validate on, drawn at random; the name of a split; another table, the path
            of one, or a source; an EvalPhase over a split; or None.
        metrics: Metrics to compute in the validation; see `EvalPhase`.
        epochs: Maximum number of epochs; 10 by default, 100 for `"mlp"`. 0 prepares everything and does not train: the
            model predicts with its initial parameters.
        batch_size: Rows per batch; batches are shuffled. 32 by default; for `"mlp"` 128, and up to 1024 in tables with
            more rows, which makes about 32 steps an epoch.
        optimizer: Name, optimizer of the framework, or an Optimizer with settings:
            `Optimizer("adamw", lr=3e-4, weight_decay=0.01, clip_norm=1.0,
            schedule=Schedule("cosine", steps=1000, warmup=100))`. By default `"adam"`; AdamW with a learning rate of
            0.001 for `"mlp"`.
        early_stopping: Number of epochs without a lower `val_loss` after which to stop and restore the best parameters;
            an EarlyStopping; or False. By default 10 for `"mlp"` with a validation, otherwise off.
        preprocess: How to turn table columns into features, fitted on the training rows only. `"auto"` encodes text,
            booleans, categories and dates, fills gaps, and scales numbers and the targets of mse, mae, huber and
            smooth_l1: losses are computed on scaled targets; predictions and metrics are in the target's units. It
            leaves tables of plain numbers and booleans unchanged for a model that you built. Or a scikit-learn
            transformer; or None.
        drop: Names of columns to leave out.
        categories: Names of columns to treat as categories, although they hold numbers or text that looks like numbers.
        embed: Names of category columns to pass as codes 0, 1, ... in the last features, for a model that embeds them;
            True for all, False for none. `"auto"`: those with more than 40 values for `"mlp"`, none for your own model.
        scaler: Scaler for all features together: a scikit-learn transformer, or `"standard"`, `"minmax"`, `"maxabs"` or
            `"robust"`. Fitted on the training rows, saved with the model, applied in predictions.
        class_weights: Weight of each class: `"balanced"` (as in scikit-learn), a mapping by class with 1 for classes
            left out, or a list in the order of the classes. The loss is sum(weight * loss) / sum(weight), in training
            and in `val_loss`; `evaluate` and `score` count each row once. With `label_smoothing`, the smoothed loss of
            a row has the weight of its class, as in Keras; `Loss("cross_entropy", class_weights=...)` also weights the
            classes that it is smoothed over, as torch does. This and the next three settings need anyaccel-sklearn.
        sample_weight: Column with the weight of each row, which is then not a feature, or an array. The loss is the
            mean described for `class_weights`; if you pass both, they are multiplied.
        group: Columns whose equal values stay on the same side of the validation split; not features.
        stratify: Columns whose values are spread evenly over the validation split; True for the target.
        framework: Framework in which `"mlp"` is built, as listed by `aa.devices()`; by default the first in
            `anyaccel.install_hints.PREFERRED_FRAMEWORKS` that is installed and has the accelerator, or NumPy.
        accelerator: Device to train on; `"auto"` is the best one that the model's framework can use. See `TrainPhase`.
        seed: Seed of the random split, of the order of rows and of dropout. To make the initial parameters of your own
            model repeatable, set the seed of its framework.
        callbacks: Additional `Callback` objects.
        progress: How to show progress; see `Experiment`.
        checkpoint: Folder for checkpoints, or a Checkpoint.
        resume: `"auto"` resumes from the newest checkpoint in this folder, if there is one; see `Experiment.run_phase`.
        outputs: Names, in order, of the values that the model returns without names.
        sampler: Sampler of the batches instead of `batch_size`; `SimpleSampler(32)` keeps the order of rows.
        step: Custom training step, a function of (models, batch, optimizers); the model is `models["model"]`.
        validate_every, accumulate, microbatching, on_nan, strict, policy, final_device, compile: See `TrainPhase`.
        replicas, per_replica, deterministic, sharding, sync_batchnorm: See `TrainPhase`.
        residency, precision, matmul_precision, loss_scale: See `TrainPhase`.

    Raises:
        PhaseError: Settings contradict each other, the target is missing, or the loss ends as NaN.
        DataError, ColumnError: The data cannot be read as a table, or columns do not fit.
        AnyaccelError: Any other error of the training phase.
    """
    if validation is data and is_table(data):
        warnings.warn(
            "the validation is the training table itself, so its figures say nothing about new rows; write "
            "validation=0.2, or pass other rows",
            TableWarning,
            stacklevel=user_level(),
        )
    passed, data, validation = data, readable(data), readable(validation)
    for name, value in {"target": target, "features": features, "group": group, "stratify": stratify}.items():
        is_list = isinstance(value, list) and any(isinstance(item, Real) for item in value)
        if is_list or (hasattr(value, "shape") and not hasattr(value, "columns")):
            raise PhaseError(
                f"fit: {name}= is the name of a column, and got the values of one",
                hint=f"add them to the table, table['COLUMN'] = values, and write {name}='COLUMN'",
            )
    there = column_names(data) if isinstance(target, int) and is_table(data) and not is_pair(data) else None
    if there:
        column = there[target] if -len(there) <= target < len(there) else "COLUMN"
        raise PhaseError(
            f"fit: target={target!r} is a position, but target= is the name of a column",
            available=f"columns: {listed(there)}",
            hint=f"write target={column!r}",
        )
    if isinstance(validation, str) and re.fullmatch(r"0?\.\d+", validation):
        problem = f"validation={validation!r} is text, not a share of the rows"
        raise PhaseError(problem, hint=f"write validation={validation}")
    if isinstance(validation, str) and is_table(data) and Path(validation).suffix:
        validation = Path(validation)
    defaults = MLP_DEFAULTS if isinstance(model, str) else DEFAULTS
    epochs = arguments.integer(PhaseError, "fit: ", "epochs", defaults["epochs"] if epochs is None else epochs, 0, 10)
    optimizer = defaults["optimizer"] if optimizer is None else optimizer
    is_named, builds_model = isinstance(model, str), is_sized(model, framework)
    of_rows: dict[str, Any] = {"sample_weight": sample_weight, "class_weights": class_weights, "group": group}
    of_rows["stratify"] = None if stratify is False else stratify
    evaluated = validation
    if isinstance(validation, EvalPhase):
        evaluated = validation.data
        if not isinstance(evaluated, str):
            raise PhaseError(
                f"fit: the validation {validation.label!r} has other data, but fit transforms only the training data",
                available="the name of a split of the data",
                hint="write validation=EvalPhase('LABEL', data='SPLIT'), or validation=TABLE with metrics=[...]",
            )

    # The data, and the model for them. Rules are those of a model that computes its own loss; `library_rules` those of
    # one that is trained with another loss.
    rules, library_rules, rows = None, None, None
    if loss is not None:
        library_rules = rules_of_library(model)
        if library_rules is not None and step is None:
            refuse_other_loss(library_rules, loss, target)
    elif step is None and not builds_model:
        rules = model_loss(model)
    prepared: TrainingData | LabelledData
    inputs: Any
    if rules is not None:
        treatments = {"scaler": scaler, "drop": drop or None, "categories": categories or None}
        for name, value in (("preprocess", preprocess), ("embed", embed)):
            treatments[name] = None if isinstance(value, str) and value == "auto" else value
        for name, value in treatments.items():
            if value is not None:
                problem = f"fit has {name}={shown(value)}, but {rules.name} uses its inputs unchanged"
                raise PhaseError(problem, hint=f"leave {name} out")
        weighted = "derive a class from it, and weight the loss in its forward"
        _refuse_row_settings(of_rows, f"{rules.name} computes its own loss", weighted)
        rules.check_metrics(metrics)
        prepared = labelled_data(rules, data, NODE, features=features, target=target, validation=evaluated, seed=seed)
        inputs = prepared.inputs
    else:
        is_set = isinstance(data, (FeatureSet, FeatureSetView))
        losses = FitLosses(loss, data.label if is_set or isinstance(data, Source) else LABEL)
        target = losses.targets if target is None else target
        if step is not None:
            _refuse_row_settings(of_rows, "a custom step")
        if isinstance(features, Mapping):
            _refuse_row_settings(of_rows, "features by the arguments of the model")
        if not (is_set or is_table(data)):
            weighted = (
                "write it in the loss: AppliedLoss('mse', sample_weight='data.w') with IterableSource('data', ..., "
                "tags=['w']), or Loss('cross_entropy', class_weights=[1.0, 2.0])"
            )
            _refuse_row_settings(of_rows, "data that are read in batches", weighted)
        set_of_rows = {name: value for name, value in of_rows.items() if value is not None}
        if set_of_rows:
            rows = load(SETTINGS, f"fit.{next(iter(set_of_rows))}")(**set_of_rows)
            data, features, target = rows.read(data, features, target)
        names: Names = features if not isinstance(features, Mapping) else ()
        if isinstance(features, Mapping):  # a target that a model takes by name stays a target
            joined = dict.fromkeys(name for columns in features.values() for name in names_of(columns))
            names = [name for name in joined if name not in names_of(target)]
        elif features is None and not (builds_model or is_set or is_table(data) or isinstance(data, Source)):
            names = several_inputs(model) or None  # of each batch; otherwise `x`
        how = Preprocessing(preprocess, names_of(drop), names_of(categories), embed, builds_model, is_named)
        try:
            data = raw_table(data, features, target, how)
            if loss is None and step is None:
                losses = FitLosses(loss_of_target(data, target))
            evaluated = evaluated if rows is None else rows.split(evaluated, seed)
            prepared = training_data(
                data,
                features=names,
                target=target,
                loss_of=losses.of,
                validation=evaluated,
                scaler=scaler,
                seed=seed,
            )
        except (DataError, PhaseError) as error:
            if library_rules is None:
                raise
            raise with_own_loss(error, library_rules) from error.__cause__
        if rows is not None:
            prepared = rows.weighted(prepared, losses.known, validation)
        if builds_model:
            model = sized_model(model, framework, accelerator, prepared.data, losses)
            library_rules = None if loss is None else rules_of_library(model)
        inputs = inputs_of(model, prepared.data, features)
        if is_named and batch_size is None and sampler is None and isinstance(prepared.data, FeatureSet):
            batch_size = batch_size_for(len(prepared.data.split(prepared.train)))

    # Settings that would change nothing, because what they belong to is missing, are refused.
    has_validation = prepared.validation is not None
    if batch_size is not None and isinstance(prepared.train, BatchSource):
        size = getattr(passed, "batch_size", None)
        if size != batch_size:
            has = "that have their own size" if size is None else f"of {size} rows"
            problem = f"fit has batch_size={shown(batch_size)}, but the data come in batches {has}"
            raise PhaseError(problem, hint="leave batch_size out, and set the size where you create the batches")
    if validate_every != 1 and not has_validation:
        problem = f"fit has validate_every={shown(validate_every)} but no validation"
        raise PhaseError(problem, hint="write validation=0.2")
    if loss_scale is not None and precision != "fp16-mixed":
        now = "the dtypes of the model" if precision is None else f"precision={precision!r}"
        problem = f"fit has loss_scale={shown(loss_scale)}, but losses are scaled only in fp16-mixed, and it has {now}"
        raise PhaseError(problem, hint="write precision='fp16-mixed', or leave loss_scale out")
    labels: Iterable[Any] = sampler if isinstance(sampler, Mapping) else ()
    for label in labels:
        if label != prepared.data.label:
            raise PhaseError(
                f"fit: sampler={shown(sampler)} has a sampler for {label!r}; its keys are labels of feature sets, not "
                "columns",
                available=f"the only feature set, {prepared.data.label!r}",
                hint="write batch_size=32, or sampler=SimpleSampler(32, shuffle=True)",
            )
    patience = defaults.get("early_stopping") if early_stopping is None and has_validation else early_stopping
    stopping: list[Callback] = []
    if isinstance(patience, EarlyStopping):
        stopping = [patience]
    elif isinstance(patience, str) and patience.startswith("val_"):
        problem = f"fit: early_stopping={patience!r} is not an int of at least 1, nor an EarlyStopping"
        raise PhaseError(problem, hint=f"write early_stopping=EarlyStopping({patience!r}, patience=8)")
    elif patience is not None and patience is not False:
        patience = arguments.integer(PhaseError, "fit: ", "early_stopping", patience, 1, 8)
        if not has_validation:
            problem = f"fit has early_stopping={patience} but no validation loss to monitor"
            raise PhaseError(problem, hint="write validation=0.2, or early_stopping=EarlyStopping('loss')")
        stopping = [EarlyStopping("val_loss", patience=patience, restore_best=True)]

    graph = ModelGraph([ModelNode(NODE, model, inputs, outputs=outputs)], optimizer, seed=seed)
    applied = (prepared.loss,) if isinstance(prepared, LabelledData) else losses.applied(graph)
    has_metrics = bool(metrics) or not isinstance(metrics, (list, tuple))
    evaluation = validation if isinstance(validation, EvalPhase) else None
    if has_metrics and evaluation is not None:
        problem = f"fit has metrics={shown(metrics)} and a validation {evaluation.label!r} with its own metrics"
        raise PhaseError(problem, hint="write EvalPhase(..., metrics=[...])")
    if has_metrics and not has_validation:
        problem = f"fit has metrics={shown(metrics)} but no validation to measure them on"
        raise PhaseError(problem, hint="write validation=0.2")
    if has_validation and evaluation is None:
        if treatment_of(prepared.data) is not None:
            metrics = load(SETTINGS, "fit.preprocess").metrics_in_units(metrics, prepared.data, applied)
        losses_of_evaluation = () if step is None else applied
        evaluation = EvalPhase("validation", data=prepared.validation, metrics=metrics, losses=losses_of_evaluation)
    phase = TrainPhase(
        data=prepared.train,
        losses=() if step is not None else applied if rows is None else rows.applied(applied),
        batch_size=batch_size,
        sampler=sampler,
        epochs=epochs,
        validation=evaluation,
        validate_every=validate_every,
        accumulate=accumulate,
        microbatching=microbatching,
        on_nan=on_nan,
        step=step,
        replicas=replicas,
        per_replica=per_replica,
        deterministic=deterministic,
        loss_scale=loss_scale,
        sharding=sharding,
        sync_batchnorm=sync_batchnorm,
        checkpoint=checkpoint,
        accelerator=accelerator,
        strict=strict,
        policy=policy,
        callbacks=[*checked_callbacks("fit", callbacks), *stopping],
        final_device=final_device,
        compile=compile,
        residency=residency,
        precision=precision,
        matmul_precision=matmul_precision,
    )
    experiment = Experiment("fit", graph, progress=progress)
    try:
        if isinstance(prepared.data, FeatureSet):
            _check_classes(graph, prepared.data, applied)
            if library_rules is not None:
                warn_of_copied_labels(library_rules, loss, prepared.data)
        results = experiment.run_phase(phase, resume=resume)
    except GraphError as error:
        changed = error if library_rules is None else with_own_loss(error, library_rules)
        changed = _with_columns(changed, prepared) if isinstance(changed, ShapeError) else changed
        if changed is error:
            raise
        raise changed from error.__cause__
    has_epochs = on_nan == "warn" and early_stopping is None and results.epochs
    if has_epochs and not math.isfinite(results.epochs[-1].loss):
        raise _not_finite(results.loss, prepared.data)
    if rules is not None and isinstance(prepared, LabelledData):
        return FittedModelLoss(experiment, rules, prepared.columns, phase=phase)
    read: Any = {"validation": validation, "losses": loss, "scaler": scaler, "seed": seed}
    recipe = recipe_of(prepared, passed, features=features, target=target, is_weighted=rows is not None, **read)
    columns: Any = None
    if isinstance(prepared, TrainingData) and isinstance(prepared.data, FeatureSet) and prepared.booleans:
        columns = source_columns(prepared.data)
        columns |= {name: {**columns[name], "boolean": True} for name in prepared.booleans}
    return FittedModel(experiment, columns=columns, losses=applied, phase=phase, recipe=recipe)


def _refuse_row_settings(settings: Mapping[str, Any], why: str, weighted: str = "") -> None:
    """Raise PhaseError if a setting of rows is used with data or a model that does not support it.

    `weighted` says what to do in place of weights.
    """
    for name, value in settings.items():
        if value is not None:
            is_weight = name in ("sample_weight", "class_weights")
            raise PhaseError(f"fit has {name}=, but {why}", hint=(is_weight and weighted) or f"leave {name}= out")


def _not_finite(losses: Any, data: Any) -> PhaseError:
    """Return the error for a training whose loss is NaN or infinite at its end, with the column that is the cause."""
    problem = f"the loss is {losses[-1]} after {losses.size} {'epoch' if losses.size == 1 else 'epochs'}"
    for name in (*data.features, *data.targets) if isinstance(data, FeatureSet) else ():
        values = values_of(data, name)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            wrong = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
            where = f"column {name!r} is NaN or infinite in {int(wrong.sum()):,} of {len(wrong):,} rows"
            return PhaseError(
                f"{problem}, because {where}; the first is row {int(wrong.argmax())}",
                hint="fill these places, or leave the rows out; on_nan='ignore' returns the model anyway",
            )
    return PhaseError(
        f"{problem}, so the model predicts nothing",
        hint="lower lr, optimizer=Optimizer('adam', lr=1e-4), or scale large numbers, scaler='standard'; "
        "on_nan='ignore' returns the model anyway",
    )


def _check_classes(graph: ModelGraph, data: FeatureSet, losses: Sequence[AppliedLoss]) -> None:
    """Check that a model has an output for each class of text or booleans, and no other, which would have no name.

    Integers may have more outputs, as of a model that was trained on more classes: a warning says so.

    Raises:
        PhaseError: The model has another number of outputs.
    """
    outputs = graph.shapes.outputs[NODE]
    if len(losses) != 1 or not takes_classes(losses[0].loss) or len(outputs) != 1:
        return
    output = graph.shapes.specs[outputs[0]]
    if not output.shape:
        return
    n_outputs = (0, *output.shape)[losses[0].loss.kwargs.get("class_axis", -1)]
    labels = class_labels(data)
    for name in data.targets:
        classes, values = labels.get(name), data.array(name)
        n_classes, is_number = len(classes or ()), True
        if classes is not None:
            is_number = all(isinstance(label, int) for label in classes)
        elif values.ndim == 1 and values.dtype.kind in "iu" and values.min() >= 0:
            classes, n_classes = np.unique(values).tolist(), int(values.max()) + 1
        if not classes:
            continue
        if is_number and n_outputs > n_classes:
            warnings.warn(
                f"the target {name!r} has the classes {listed(map(repr, classes))}, but the model has {n_outputs} "
                "outputs: it can also predict classes that no row has. If these are all classes, change the last "
                f"layer to {n_classes} outputs",
                TableWarning,
                stacklevel=user_level(),
            )
        elif not is_number and n_outputs not in (1, len(classes)):
            raise PhaseError(
                f"the target {name!r} has {len(classes)} classes, {listed(map(repr, classes))}, but the model "
                f"has {n_outputs} outputs",
                hint=f"change the last layer to {len(classes)} outputs, or pass a function that "
                "creates the model: lambda n_features, n_outputs: MODEL",
            )


def _with_columns(error: ShapeError, prepared: TrainingData | LabelledData) -> ShapeError:
    """Return the error for a model that does not match integers of shape [n, 1], which are taken as numbers, or the
    features built from a table; other errors unchanged.
    """
    data: Any = prepared.data
    casts = prepared.casts if isinstance(prepared, TrainingData) else {}
    name = next((name for name in casts if data.spec(name).shape == (1,)), None)
    if name is not None and f"{data.label}.{name}" in error.problem:
        return ShapeError(
            f"{error.problem}; integers of shape [n, 1] are taken as numbers",
            available=error.available,
            hint=f"if {name!r} holds classes, pass {name}.ravel(); else give the model 1 output",
        )
    if treatment_of(data) is None or f"{data.label}.{data.features[0]}" not in error.problem:
        return error
    width = data.spec(data.features[0]).shape[0]
    return ShapeError(
        f"{error.problem}; preprocess= creates {width} numbers from the columns of the table",
        hint=f"change the first layer to {width} inputs, or pass a function that creates "
        "the model: lambda n_features, n_outputs: MODEL",
    )
