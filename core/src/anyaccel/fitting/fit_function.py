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
from anyaccel.fitting.table_models import DEFAULTS, MLP_DEFAULTS, is_sized, sized_model
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
    loss: Any,
    target: Names = None,
    features: Names = None,
    validation: Any = None,
    metrics: Any = (),
    epochs: int | None = None,
    batch_size: int | None = None,
    optimizer: Any = None,
    early_stopping: int | EarlyStopping | bool | None = None,
    scaler: Any = None,
    framework: str | None = None,
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
    spec = loss if isinstance(loss, Loss) else Loss(loss)
    defaults = MLP_DEFAULTS if isinstance(model, str) else DEFAULTS
    epochs = arguments.integer(PhaseError, "fit: ", "epochs", defaults["epochs"] if epochs is None else epochs, 0, 10)
    batch_size = defaults["batch_size"] if batch_size is None else batch_size
    optimizer = defaults["optimizer"] if optimizer is None else optimizer
    names: Any = {"features": features, "target": target}
    prepared = training_data(data, **names, loss=spec, validation=validation, scaler=scaler, seed=seed)
    if is_sized(model):
        sizes: Any = {"framework": framework, "accelerator": accelerator}
        model = sized_model(model, prepared.data, spec, **sizes)
    elif framework is not None:
        problem = f"fit has framework={framework!r} and a model, which has one"
        raise PhaseError(problem, hint="leave framework= out, or write fit('mlp', ...)")
    if early_stopping is None and prepared.validation is not None:
        early_stopping = defaults.get("early_stopping")
    graph = ModelGraph([ModelNode(NODE, model, prepared.data.reference())], optimizer, seed=seed)
    own = [*checked_callbacks("fit", callbacks), *_stopping(early_stopping, prepared)]
    loop: Any = {"sampler": batch_size, "n_epochs": epochs, "callbacks": own, "accelerator": accelerator}
    checks = _validation(prepared, metrics)
    loop |= {"validation": checks, "checkpoint": checkpoint}
    phase = TrainPhase(data=prepared.train, losses=AppliedLoss(spec, on=NODE), **loop)
    experiment = Experiment("fit", graph, progress=progress)
    experiment.run_phase(phase, resume=resume)
    return FittedModel(experiment, spec if spec.own is None else None)


# Beside the function, which a text for each of its arguments would make too long to read.
_ARGUMENTS = """
    Args:
        model: of any framework that has a plugin; it is trained itself, no copy of it. Or `"mlp"`, a `TabularMLP` that
            is as wide as the data say, with defaults of its own. Or a function of (n_features, n_outputs) that makes a
            model for these widths: `lambda n_features, n_outputs: nn.Linear(n_features, n_outputs)`, or a class.
        data: a data frame (pandas, Polars, Arrow), a mapping of arrays, a pair (x, y) of arrays or of a frame and a
            series, the path of a CSV or Parquet file, a data set of Hugging Face, a FeatureSet or a view of it; or a
            loader, a data set or another source of batches, which is streamed.
        loss: a name (`"cross_entropy"`, `"mse"`, ...), or a loss of the model's framework.
        target: name of the target's column, or of several. Targets that are text are encoded as indices of classes,
            and predictions decoded. A FeatureSet and a pair have theirs.
        features: names of the columns that the model gets, joined; by default all others.
        validation: the share of rows to validate on, drawn at random; the name of a split; another table or source; or
            None.
        metrics: of the validation, as of an EvalPhase.
        epochs: at most so many; by default 10, and 100 for `"mlp"`.
        batch_size: rows of a batch, which are shuffled; by default 32, and 128 for `"mlp"`.
        optimizer: as of a ModelGraph; by default `"adam"`, and AdamW with a learning rate of 0.001 for `"mlp"`.
        early_stopping: stop after so many epochs without a lower `val_loss`, with the parameters of the best; or an
            EarlyStopping; or False. By default no, and 10 for `"mlp"` with a validation.
        scaler: a transform in the style of scikit-learn for all features together, or the name of one of its scalers
            (`"standard"`, `"minmax"`, `"maxabs"`, `"robust"`), fitted to the rows to train on; saved with the model and
            applied to what it predicts for.
        framework: of `"mlp"`: `"torch"`, `"jax"`, `"tensorflow"` or `"numpy"`; by default the first of these that is
            installed and has the accelerator.
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


def _validation(prepared: TrainingData, metrics: Any) -> EvalPhase | None:
    if prepared.validation is not None:
        return EvalPhase("validation", data=prepared.validation, metrics=metrics)
    if metrics or not isinstance(metrics, (list, tuple)):
        problem = f"fit has metrics={shown(metrics)} and no validation, on which they are measured"
        raise PhaseError(problem, hint="write validation=0.2")
    return None


def _stopping(given: Any, prepared: TrainingData) -> list[Callback]:
    if given is None or given is False:
        return []
    if isinstance(given, EarlyStopping):
        return [given]
    patience = arguments.integer(PhaseError, "fit: ", "early_stopping", given, 1, 8)
    if prepared.validation is None:
        problem = f"fit has early_stopping={patience} and no validation, whose loss it monitors"
        raise PhaseError(problem, hint="write validation=0.2, or early_stopping=EarlyStopping('loss')")
    return [EarlyStopping("val_loss", patience=patience, restore_best=True)]
