"""Fitted models in MLflow's format: a folder that MLflow's registry, `pyfunc` and `mlflow models serve` read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow
from mlflow import pyfunc
from mlflow.models import Model, infer_signature

import anyaccel as aa
from anyaccel.errors import ConfigError, StateError

_FOLDER = "fit"
FLAVOR = "anyaccel"


def save_model(
    fitted: Any,
    path: str | os.PathLike[str],
    mlflow_model: Model | None = None,
    *,
    input_example: Any = None,
    signature: Any = None,
) -> None:
    """Save a fitted model as a folder in MLflow's format, without pickle.

    Args:
        fitted: A `FittedModel`.
        path: A folder that does not exist yet.
        mlflow_model: MLflow's description of the model, which this function completes; a new one by default.
        input_example: Some rows, as for `fitted.predict`, to infer the signature from.
        signature: An `mlflow.models.ModelSignature`, instead of an inferred one.

    Raises:
        ConfigError: `fitted` is not a `FittedModel`, or the folder exists.
    """
    if not isinstance(fitted, aa.FittedModel):
        raise ConfigError(f"save_model: {type(fitted).__name__} is not a FittedModel", hint="pass the result of aa.fit")
    folder = Path(path)
    if folder.exists():
        raise ConfigError(f"save_model: {str(folder)!r} already exists", hint="name a new folder")
    folder.mkdir(parents=True)
    fitted.save(folder / _FOLDER)
    model = Model() if mlflow_model is None else mlflow_model
    if signature is None and input_example is not None:
        signature = infer_signature(input_example, fitted.predict(input_example))
    if signature is not None:
        model.signature = signature
    model.add_flavor(FLAVOR, folder=_FOLDER, anyaccel_version=aa.__version__)
    pyfunc.add_to_model(model, loader_module=__name__, data=_FOLDER)
    model.save(str(folder / "MLmodel"))


def log_model(fitted: Any, name: str = "model", *, input_example: Any = None, signature: Any = None) -> Any:
    """Log a fitted model as a model of the active run, and return MLflow's `ModelInfo`.

    Args:
        fitted: A `FittedModel`.
        name: Name of the logged model.
        input_example: Some rows, to infer the signature from.
        signature: An `mlflow.models.ModelSignature`, instead of an inferred one.

    Raises:
        ConfigError: `fitted` is not a `FittedModel`.
    """
    import anyaccel_mlflow

    arguments = {"fitted": fitted, "signature": signature}
    if input_example is not None and signature is None:
        arguments["signature"] = infer_signature(input_example, fitted.predict(input_example))
    return Model.log(artifact_path=None, name=name, flavor=anyaccel_mlflow, **arguments)


def load_model(uri: str, models: Mapping[str, Any] | None = None) -> Any:
    """Load a model that `log_model` or `save_model` wrote, as a `FittedModel`.

    Args:
        uri: Location such as `models:/NAME/1`, `runs:/RUN/model`, or a folder.
        models: `{"model": net}` with the module, built as for `fit`; not needed for a model with a registered name.

    Raises:
        ConfigError, StateError: See `aa.load`.
    """
    return aa.load(Path(mlflow.artifacts.download_artifacts(uri), _FOLDER), models=models)


class _Served:
    """The object that MLflow calls to predict."""

    def __init__(self, fitted: Any) -> None:
        self._fitted = fitted

    def predict(self, data: Any, params: Any = None) -> Any:
        """Return predictions for rows; `params` is not used."""
        return self._fitted.predict(data)


def _load_pyfunc(path: str) -> _Served:
    """Load a model for `mlflow.pyfunc` and `mlflow models serve`."""
    try:
        return _Served(aa.load(path))
    except StateError:
        raise
    except ConfigError as error:
        raise ConfigError(
            f"MLflow does not save the code of a custom model: {error.problem}",
            hint="load it with anyaccel_mlflow.load_model(uri, models={'model': net})",
        ) from error
