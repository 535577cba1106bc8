"""fit: one call that trains a model on a table, from the parts that it returns."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.call_hints import call_hints
from anyaccel.data import Sampler
from anyaccel.data.roles import Names, names_of
from anyaccel.errors import PhaseError, ShapeError
from anyaccel.experiment import Experiment
from anyaccel.fitting.fitted_model import FittedModel
from anyaccel.fitting.fitted_model_loss import FittedModelLoss
from anyaccel.fitting.labelled_data import LabelledData, labelled_data
from anyaccel.fitting.model_loss import model_loss, refuse_table_settings
from anyaccel.fitting.row_weights import RowColumns
from anyaccel.fitting.scaled_targets import metrics_in_units
from anyaccel.fitting.table_models import DEFAULTS, MLP_DEFAULTS, TableModel
from anyaccel.fitting.tables import Preprocessing, TrainingData, loss_of_target, raw_table, training_data, treatment_in
from anyaccel.fitting.wiring import Features, FitLosses, feature_names, inputs_of
from anyaccel.fitting.written_code import recipe_of
from anyaccel.graph import AppliedLoss, ModelGraph, ModelNode
from anyaccel.phases import Callback, Checkpoint, EarlyStopping, EvalPhase, TrainPhase
from anyaccel.phases.settings import checked_callbacks
from anyaccel.precision import LossScale

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
    """Train a model on a table, and return it with the graph and the experiment that were made for it.

    Everything it does can be written with ModelGraph, TrainPhase and Experiment, which it returns.
    """
    given = data
    defaults = MLP_DEFAULTS if isinstance(model, str) else DEFAULTS
    epochs = arguments.integer(PhaseError, "fit: ", "epochs", defaults["epochs"] if epochs is None else epochs, 0, 10)
    if batch_size is None:  # a sampler has its own
        batch_size = defaults["batch_size"] if sampler is None else DEFAULTS["batch_size"]
    optimizer = defaults["optimizer"] if optimizer is None else optimizer
    table_model = TableModel(model, framework, accelerator)
    rows = RowColumns(sample_weight, class_weights, group, stratify)
    has_rules = loss is None and step is None and not table_model.is_sized
    rules = model_loss(model) if has_rules else None
    prepared: TrainingData | LabelledData
    inputs: Any
    if rules is not None:
        refuse_table_settings(rules, scaler=scaler, preprocess=preprocess, drop=drop, categories=categories)
        rows.refuse(f"{rules.name} computes its own loss")
        rules.check_metrics(metrics)
        evaluated = _split_of(validation) if isinstance(validation, EvalPhase) else validation
        prepared = labelled_data(rules, data, NODE, features=features, target=target, validation=evaluated, seed=seed)
        inputs = prepared.inputs
    else:
        losses = FitLosses(loss)
        target = losses.targets if target is None else target
        if rows.is_asked:
            if step is not None or isinstance(features, Mapping):
                rows.refuse("a step of its own" if step is not None else "features by the arguments of the model")
            data, features, target = rows.read(data, features, target)
        names: Any = {"features": feature_names(features, target), "target": target}
        how = Preprocessing(
            preprocess, names_of(drop), names_of(categories), embed, table_model.is_sized, table_model.embeds
        )
        data = raw_table(data, features, target, how)
        if loss is None and step is None:
            losses = FitLosses(loss_of_target(data, target))
        evaluated = _split_of(validation) if isinstance(validation, EvalPhase) else rows.split(validation, seed)
        prepared = training_data(data, **names, loss_of=losses.of, validation=evaluated, scaler=scaler, seed=seed)
        if rows.is_asked:
            prepared = rows.weighted(prepared, losses.known, validation)
        model = table_model.made_for(prepared, losses)
        inputs = inputs_of(model, prepared.data, features)
        metrics = metrics if prepared.validation is None else metrics_in_units(metrics, prepared.data)
    patience = defaults.get("early_stopping") if prepared.validation is not None else None
    stopping = _stopping(patience if early_stopping is None else early_stopping, prepared)
    graph = ModelGraph([ModelNode(NODE, model, inputs, outputs=outputs)], optimizer, seed=seed)
    applied = (prepared.loss,) if isinstance(prepared, LabelledData) else losses.applied(graph)
    phase = TrainPhase(
        data=prepared.train,
        losses=rows.applied(applied) if step is None else (),
        batch_size=batch_size,
        sampler=sampler,
        epochs=epochs,
        validation=_validation(validation, prepared, metrics, () if step is None else applied),
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
        results = experiment.run_phase(phase, resume=resume)
    except ShapeError as error:
        raise _of_other_width(error, prepared.data) from error.__cause__
    if on_nan == "warn" and early_stopping is None and results.loss.size and not math.isfinite(results.loss[-1]):
        raise PhaseError(
            f"the loss is {results.loss[-1]} after {results.loss.size} epochs, so the model predicts nothing",
            hint="lower lr, optimizer=Optimizer('adam', lr=1e-4), or look for NaN in the data; on_nan='ignore' returns "
            "the model as it is",
        )
    if rules is not None and isinstance(prepared, LabelledData):
        return FittedModelLoss(experiment, rules, prepared.columns, phase=phase)
    read: Any = {"validation": validation, "losses": loss, "scaler": scaler, "seed": seed}
    recipe = recipe_of(prepared, given, features=features, target=target, is_weighted=rows.is_asked, **read)
    return FittedModel(experiment, losses=applied, phase=phase, recipe=recipe)


# Beside the function, which a text for each of its arguments would make too long to read.
_ARGUMENTS = """
    Args:
        model: of any framework that has a plugin; it is trained itself, no copy of it. Or `"mlp"`, a `TabularMLP` that
            is as wide as the data say, with defaults of its own. Or a function or a class that makes a model of these
            widths: `lambda n_features, n_outputs: Net(n_features, n_outputs)`.
        data: a data frame (pandas, Polars, Arrow), a mapping of arrays, a pair (x, y) of arrays or of a frame and a
            series, the path of a CSV or Parquet file, a data set of Hugging Face, a FeatureSet or a view of it; or a
            loader, a data set or another source of batches, which is streamed.
        loss: a name (`"cross_entropy"`, `"mse"`, ...), or a loss of the model's framework. Several by the column of
            their target, `{"price": "mse", "kind": "cross_entropy"}`, for a model that gives a dict with these keys (or
            see `outputs`); or a list of AppliedLoss objects on `"model"`, which may have weights. With `step`, what a
            validation measures and predictions mean; it may be left out then. None: the loss that the model computes
            itself, if its call takes labels, which are found by their name; else cross_entropy for a target of text,
            booleans or at most 20 different integers, mse for other numbers.
        target: name of the target's column, or of several. Targets that are text are encoded as indices of classes,
            and predictions decoded. A FeatureSet and a pair have theirs.
        features: names of the columns that the model gets, joined; by default all others. A model with several
            arguments gets the columns that are named like them, or those that a mapping says:
            `{"ids": "input_ids", "numbers": ["age", "fare"]}`.
        validation: the share of rows to validate on, drawn at random; the name of a split; another table or source; an
            EvalPhase over a split; or None.
        metrics: of the validation, as of an EvalPhase.
        epochs: at most so many; by default 10, and 100 for `"mlp"`.
        batch_size: rows of a batch, which are shuffled; by default 32, and 128 for `"mlp"`.
        optimizer: by default `"adam"`, and AdamW with a learning rate of 0.001 for `"mlp"`. A name, a framework's own
            optimizer, or an Optimizer with its settings, which include schedules of the learning rate and clipped
            gradients: `Optimizer("adamw", lr=3e-4, weight_decay=0.01, clip_norm=1.0,
            schedule=Schedule("cosine", steps=1000, warmup=100))`.
        early_stopping: stop after so many epochs without a lower `val_loss`, with the parameters of the best; or an
            EarlyStopping; or False for none. By default none, and 10 for `"mlp"` with a validation.
        preprocess: how features are made of the columns of a table, from the rows to train on. `"auto"` takes text,
            booleans, categories, dates and gaps as well as numbers, and joins all into one matrix (see
            `FittedModel.columns`), and scales targets of mse, mae, huber and smooth_l1: losses are then those of scaled
            targets, predictions and metrics in the units of the target. A table of plain numbers and booleans for a
            model that you made stays as it is. Or a transformer of scikit-learn; or None, for numbers as they are.
        drop: names of columns to leave out.
        categories: names of columns that are categories although they are numbers, or text that looks like them.
        embed: names of columns whose categories become codes 0, 1, ... for a model that embeds them, as the last
            features; True for all, False for none. `"auto"`: those with more than 40 values for `"mlp"`, and none for
            a model that you made.
        scaler: a transform in the style of scikit-learn for all features together, or the name of one of its scalers
            (`"standard"`, `"minmax"`, `"maxabs"`, `"robust"`), fitted to the rows to train on; saved with the model and
            applied to what it predicts for.
        class_weights: how much rows of a class count: `"balanced"` for the number of rows over the number of classes
            times the rows of the class, all of those to train on; a weight by class, 1 for one that is left out; or one
            for each class in their order. The loss is then the sum of weight times loss over the sum of weights, as
            that of `torch.nn.CrossEntropyLoss(weight=...)`, for training and for `val_loss`; `evaluate` and `score`
            count each row once.
        sample_weight: the column with how much a row counts, which is no feature then, or an array; the same mean. Both
            together are multiplied.
        group: columns whose equal values stay together, to train or to validate on; they are no features.
        stratify: columns whose values are shared out evenly to train and to validate on; True for the target.
        framework: Name of the framework in which `"mlp"` is built, one that `aa.devices()` lists; by default the first
            in `anyaccel.install_hints.PREFERRED_FRAMEWORKS` that is installed and has the accelerator, else NumPy.
        accelerator: `"auto"` is the best device on which the model's framework runs; else as of a TrainPhase.
        seed: of the random split, the order of rows and all random streams; the model's own parameters are its own.
        callbacks: Callback objects, besides.
        progress: as of an Experiment.
        checkpoint: as of a TrainPhase: a Checkpoint, or the name of a folder.
        resume: `"auto"` goes on from the newest checkpoint in this folder, if there is one; as of `run_phase`.
        outputs: names of what a model gives that returns several values without names, in their order.
        sampler: draws the batches in place of `batch_size`, such as `SimpleSampler(32)`, which keeps the order of rows.
        step: a training step of your own, a function of (models, batch, optimizers), in which the model is
            `models["model"]`.
        validate_every, accumulate, microbatching, on_nan, strict, policy, final_device, compile: see `TrainPhase`.
        replicas, per_replica, deterministic, sharding, sync_batchnorm: see `TrainPhase`.
        residency, precision, matmul_precision, loss_scale: see `TrainPhase`.

    Raises:
        PhaseError: settings that do not fit each other, or no target.
        DataError, ColumnError: the data are no table, or columns do not fit.
        AnyaccelError: whatever keeps the phase from running.
    """
fit.__doc__ = f"{fit.__doc__}{_ARGUMENTS}"


def _of_other_width(error: ShapeError, data: Any) -> ShapeError:
    """The error for a model that does not take the features that were made of a table; another as it is."""
    if not any(treatment_in(fitted) for fitted in getattr(data, "transforms", ())):
        return error
    (feature,) = data.features
    if f"{data.label}.{feature}" not in error.problem:
        return error
    width = data.spec(feature).shape[0]
    return ShapeError(
        f"{error.problem}; preprocess= makes {width} numbers of the columns of the table",
        hint=f"give the first layer {width} inputs; or give a function that makes the model: "
        "lambda n_features, n_outputs: MODEL",
    )


def _split_of(validation: EvalPhase) -> str:
    if isinstance(validation.data, str):
        return validation.data
    raise PhaseError(
        f"fit: the validation {validation.label!r} has other data, which fit does not transform as those to train on",
        available="the name of a split of the data",
        hint="write validation=EvalPhase('LABEL', data='SPLIT'), or validation=TABLE with metrics=[...]",
    )


def _validation(
    given: Any, prepared: TrainingData | LabelledData, metrics: Any, losses: Sequence[AppliedLoss]
) -> EvalPhase | None:
    has_metrics = bool(metrics) or not isinstance(metrics, (list, tuple))
    if isinstance(given, EvalPhase):
        if has_metrics:
            problem = f"fit has metrics={shown(metrics)} and a validation {given.label!r} with metrics of its own"
            raise PhaseError(problem, hint="write EvalPhase(..., metrics=[...])")
        return given
    if prepared.validation is not None:
        return EvalPhase("validation", data=prepared.validation, metrics=metrics, losses=losses)
    if has_metrics:
        problem = f"fit has metrics={shown(metrics)} and no validation, on which they are measured"
        raise PhaseError(problem, hint="write validation=0.2")
    return None


def _stopping(given: Any, prepared: TrainingData | LabelledData) -> list[Callback]:
    if given is None or given is False:
        return []
    if isinstance(given, EarlyStopping):
        return [given]
    patience = arguments.integer(PhaseError, "fit: ", "early_stopping", given, 1, 8)
    if prepared.validation is None:
        problem = f"fit has early_stopping={patience} and no validation, whose loss it monitors"
        raise PhaseError(problem, hint="write validation=0.2, or early_stopping=EarlyStopping('loss')")
    return [EarlyStopping("val_loss", patience=patience, restore_best=True)]
