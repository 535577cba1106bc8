"""fit: one call that trains a model on a table, from the parts that it returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.call_hints import call_hints
from anyaccel.data.roles import Names
from anyaccel.errors import PhaseError
from anyaccel.experiment import Experiment
from anyaccel.fitting.fitted_model import FittedModel
from anyaccel.fitting.fitted_model_loss import FittedModelLoss
from anyaccel.fitting.labelled_data import LabelledData, labelled_data
from anyaccel.fitting.model_loss import model_loss
from anyaccel.fitting.tables import TrainingData, training_data
from anyaccel.graph import AppliedLoss, ModelGraph, ModelNode
from anyaccel.phases import Callback, EarlyStopping, EvalPhase, TrainPhase
from anyaccel.phases.settings import checked_callbacks
from anyaccel.specs import Loss

NODE = "model"


@call_hints
def fit(  # noqa: PLR0913 - keywords, each documented
    model: Any,
    data: Any,
    *,
    loss: Any = None,
    target: Names = None,
    features: Names = None,
    validation: Any = None,
    metrics: Any = (),
    epochs: int = 10,
    batch_size: int = 32,
    optimizer: Any = "adam",
    early_stopping: int | EarlyStopping | None = None,
    scaler: Any = None,
    accelerator: Any = "auto",
    seed: int = 0,
    callbacks: Iterable[Callback] = (),
    progress: Any = "auto",
    checkpoint: Any = None,
    resume: str = "never",
) -> FittedModel:
    """Train a model on a table, and return it with the graph and the experiment that were made for it.

    Everything it does can be written with ModelGraph, TrainPhase and Experiment, which it returns.
    """
    rules = model_loss(model) if loss is None else None
    arguments.integer(PhaseError, "fit: ", "epochs", epochs, 0, 10)
    names: Any = {"features": features, "target": target}
    prepared: TrainingData | LabelledData
    inputs: Any
    if rules is not None:
        if scaler is not None:
            problem = f"fit has scaler={shown(scaler)}, and {rules.name} takes its inputs as they are"
            raise PhaseError(problem, hint="leave scaler out")
        rules.check_metrics(metrics)
        prepared = labelled_data(rules, data, NODE, **names, validation=validation, seed=seed)
        inputs, applied = prepared.inputs, prepared.loss
    else:
        if loss is None:
            raise PhaseError(
                f"fit has no loss, and a {type(model).__name__} computes none itself: its call takes no labels",
                available="cross_entropy for classes, mse for numbers, and more",
                hint="write loss='cross_entropy' or loss='mse'",
            )
        spec = loss if isinstance(loss, Loss) else Loss(loss)
        prepared = training_data(data, **names, loss=spec, validation=validation, scaler=scaler, seed=seed)
        inputs, applied = prepared.data.reference(), AppliedLoss(spec, on=NODE)
    graph = ModelGraph([ModelNode(NODE, model, inputs)], optimizer, seed=seed)
    own = [*checked_callbacks("fit", callbacks), *_stopping(early_stopping, prepared)]
    loop: Any = {"sampler": batch_size, "n_epochs": epochs, "callbacks": own, "accelerator": accelerator}
    checks = _validation(prepared, metrics)
    loop |= {"validation": checks, "checkpoint": checkpoint}
    phase = TrainPhase(data=prepared.train, losses=applied, **loop)
    experiment = Experiment("fit", graph, progress=progress)
    experiment.run_phase(phase, resume=resume)
    if rules is not None and isinstance(prepared, LabelledData):
        return FittedModelLoss(experiment, rules, prepared.wiring)
    return FittedModel(experiment, spec if spec.own is None else None)


# Beside the function, which a text for each of its arguments would make too long to read.
_ARGUMENTS = """
    Args:
        model: of any framework that has a plugin; it is trained itself, no copy of it.
        data: a data frame (pandas, Polars, Arrow), a mapping of arrays, a pair (x, y) of arrays or of a frame and a
            series, the path of a CSV or Parquet file, a data set of Hugging Face, a FeatureSet or a view of it; or a
            loader, a data set or another source of batches, which is streamed.
        loss: a name (`"cross_entropy"`, `"mse"`, ...), or a loss of the model's framework. None, the default, is the
            loss that the model computes itself: columns are then given to its call by their names, labels among them.
        target: name of the target's column, or of several. For a model that computes its own loss the column of its
            labels, by default the one called like its argument (`labels`). Targets that are text are encoded as
            indices of classes, and predictions decoded. A FeatureSet and a pair have theirs.
        features: names of the columns that the model gets, joined; by default all others.
        validation: the share of rows to validate on, drawn at random; the name of a split; another table or source; or
            None.
        metrics: of the validation, as of an EvalPhase.
        epochs: at most so many.
        batch_size: rows of a batch; they are shuffled.
        optimizer: as of a ModelGraph.
        early_stopping: stop after so many epochs without a lower `val_loss`, with the parameters of the best; or an
            EarlyStopping.
        scaler: a transform in the style of scikit-learn for all features together, or the name of one of its scalers
            (`"standard"`, `"minmax"`, `"maxabs"`, `"robust"`), fitted to the rows to train on; saved with the model and
            applied to what it predicts for.
        accelerator: `"auto"` is the best device on which the model's framework runs; else as of a TrainPhase.
        seed: of the random split, the order of rows and all random streams; the model's own parameters are its own.
        callbacks: Callback objects, besides.
        progress: as of an Experiment.
        checkpoint: as of a TrainPhase: a Checkpoint, or the name of a folder.
        resume: `"auto"` goes on from the newest checkpoint in this folder, if there is one; as of `run_phase`.

    Raises:
        PhaseError: settings that do not fit each other, or no target.
        DataError, ColumnError: the data are no table, or columns do not fit.
        AnyaccelError: whatever keeps the phase from running.
    """
fit.__doc__ = f"{fit.__doc__}{_ARGUMENTS}"


def _validation(prepared: TrainingData | LabelledData, metrics: Any) -> EvalPhase | None:
    if prepared.validation is not None:
        return EvalPhase("validation", data=prepared.validation, metrics=metrics)
    if metrics or not isinstance(metrics, (list, tuple)):
        problem = f"fit has metrics={shown(metrics)} and no validation, on which they are measured"
        raise PhaseError(problem, hint="write validation=0.2")
    return None


def _stopping(given: Any, prepared: TrainingData | LabelledData) -> list[Callback]:
    if given is None:
        return []
    if isinstance(given, EarlyStopping):
        return [given]
    patience = arguments.integer(PhaseError, "fit: ", "early_stopping", given, 1, 8)
    if prepared.validation is None:
        problem = f"fit has early_stopping={patience} and no validation, whose loss it monitors"
        raise PhaseError(problem, hint="write validation=0.2, or early_stopping=EarlyStopping('loss')")
    return [EarlyStopping("val_loss", patience=patience, restore_best=True)]
