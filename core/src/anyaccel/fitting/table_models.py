"""Models that `fit` builds for the data's widths, from a name or a function of the widths."""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Mapping
from typing import Any

from anyaccel.arguments import shown
from anyaccel.backend import Compute
from anyaccel.data import Source
from anyaccel.data.roles import listed
from anyaccel.device import Device
from anyaccel.errors import PhaseError, PluginError
from anyaccel.fitting.tables import TrainingData
from anyaccel.fitting.wiring import FitLosses
from anyaccel.install_hints import PREFERRED_FRAMEWORKS, distribution_for, install_line
from anyaccel.registry import registry
from anyaccel.specs import Optimizer
from anyaccel.suggestions import did_you_mean
from anyaccel.user_level import user_level

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


class TableModel:
    """The model of a fit: one that the user passed, or one that is built for the widths of the data.

    Args:
        model: A model; a name in `NAMES`; or a function or class of (n_features, n_outputs).
        framework: Framework of a named model; None for the first one that is installed and has the accelerator.
        accelerator: Accelerator of `fit`.

    Attributes:
        is_sized: Whether the model is built for the widths.
        embeds: Whether the model takes category codes.

    Raises:
        PhaseError: The name is unknown, or `framework` is set for a model that already has one.
    """

    def __init__(self, model: Any, framework: str | None, accelerator: Any) -> None:
        is_function = isinstance(model, functools.partial) or inspect.isroutine(model)
        is_class = isinstance(model, type) and not hasattr(model, "fit")  # the class of an estimator takes no widths
        self.is_sized, self.embeds = isinstance(model, str) or is_function or is_class, isinstance(model, str)
        self._model, self._framework, self._accelerator = model, framework, accelerator
        if isinstance(model, str) and model not in NAMES:
            raise PhaseError(
                f"fit has no model called {model!r}",
                available=", ".join(NAMES),
                hint=did_you_mean(model, NAMES, "write 'mlp', or pass a model of a framework"),
            )
        is_estimator = all(hasattr(model, name) for name in ("fit", "get_params", "set_params"))
        if is_estimator and not hasattr(model, "partial_fit"):
            kind = model.__name__ if isinstance(model, type) else type(model).__name__
            raise PhaseError(
                f"fit trains a model step by step, but a {kind} is an estimator that learns in one call",
                hint="call its own fit, estimator.fit(x, y); in a graph with networks, use FitPhase(...)",
            )
        if framework is not None and not self.embeds:
            what = (
                "a function that creates models of its own framework"
                if self.is_sized
                else ("a model, which already has a framework")
            )
            problem = f"fit has framework={framework!r} and {what}"
            raise PhaseError(problem, hint="leave framework= out, or write fit('mlp', ...)")

    def made_for(self, prepared: TrainingData, losses: FitLosses) -> Any:
        """Return the model for these data.

        Raises:
            PhaseError: The widths of the data are unknown, or the function does not return a model.
        """
        if not self.is_sized:
            return self._model
        widths, data = prepared.widths, prepared.data
        if widths is None or isinstance(data, Source):
            raise PhaseError(
                f"fit creates {_named(self._model)} for the widths of a table, but these data are a source of batches",
                hint="pass the model itself, or a table",
            )
        n_outputs = sum(losses.n_classes(name, data) or 0 for name in data.targets)
        n_outputs = n_outputs or widths.n_outputs
        if isinstance(self._model, str):
            make: Any = _framework_models(self._framework, self._accelerator)[NAMES[self._model]]
            return make(widths.n_numbers, widths.cardinalities, n_outputs)
        try:
            made = self._model(widths.n_features, n_outputs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # the error comes from inside the function
            is_class = isinstance(self._model, type)
            raise PhaseError(
                f"{_named(self._model)} does not accept the widths of a model: {error}",
                cause=f"fit calls it with {widths.n_features} features and {n_outputs} outputs",
                hint=f"pass a model, {self._model.__name__}(), or lambda n_features, n_outputs: MODEL"
                if is_class
                else "write lambda n_features, n_outputs: MODEL, or pass the model itself",
            ) from error
        if made is None or isinstance(made, type):
            problem = f"{_named(self._model)} returned {shown(made)} instead of a model"
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
    kind = None if accelerator == "auto" else _kind_of(accelerator)
    for name in (*PREFERRED_FRAMEWORKS, *others):
        if name in installed and (kind is None or kind in registry().kinds(name)) and (models := _models_of(name)):
            return models
    if kind in (None, "cpu"):
        hint = install_line(distribution_for(PREFERRED_FRAMEWORKS[0]))
        text = "fit: no framework with an anyaccel plugin is installed, so 'mlp' trains with NumPy on the CPU. "
        warnings.warn(f"{text}Hint: {hint}, or write framework={_BUILT_IN!r}", UserWarning, stacklevel=user_level())
    return registry().computing(_BUILT_IN).models()


def _kind_of(accelerator: Any) -> str | None:
    if isinstance(accelerator, Device):
        return accelerator.kind
    return accelerator.partition(":")[0] if isinstance(accelerator, str) else None


def _models_of(framework: str) -> Any:
    """Return the models of a framework if it has TabularMLP; None if only its plugin is installed."""
    backend = registry().find(framework)
    try:
        models = backend.models() if isinstance(backend, Compute) else {}
    except (ImportError, PluginError):
        return None
    return models if "TabularMLP" in models else None
