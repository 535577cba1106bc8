"""Models that `fit` makes: sized from the data, by a name or by a function of the widths."""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from anyaccel.arguments import shown
from anyaccel.backend import Compute
from anyaccel.data import FeatureSet, Source
from anyaccel.data.roles import listed
from anyaccel.device import Device
from anyaccel.errors import PhaseError, PluginError
from anyaccel.install_hints import install_line
from anyaccel.registry import registry
from anyaccel.specs import Loss, Optimizer, takes_classes
from anyaccel.suggestions import did_you_mean
from anyaccel.user_level import user_level

NAMES = {"mlp": "TabularMLP"}
"""By the name of a model in `fit`: the class of it in `Compute.models()`."""
_PREFERRED = ("torch", "jax", "tensorflow")  # in this order, where nothing says which framework is meant
_BUILT_IN = "numpy"

DEFAULTS: Mapping[str, Any] = {"epochs": 10, "batch_size": 32, "optimizer": "adam"}
"""What `fit` takes where nothing is said, for a model that is given."""
MLP_DEFAULTS: Mapping[str, Any] = {
    "epochs": 100,
    "batch_size": 128,
    "optimizer": Optimizer("adamw", lr=1e-3),
    "early_stopping": 10,
}
"""What it takes for a model that sizes itself; early stopping where there is a validation."""


def is_sized(model: Any) -> bool:
    """Whether `fit` makes the model: for a name, a function or a class; classes of estimators do not take widths."""
    is_function = isinstance(model, functools.partial) or inspect.isroutine(model)
    return isinstance(model, str) or is_function or (isinstance(model, type) and not hasattr(model, "fit"))


def sized_model(
    model: Any,
    data: FeatureSet | Source,
    loss: Loss,
    *,
    cardinalities: Sequence[int] = (),
    framework: str | None = None,
    accelerator: Any = "auto",
) -> Any:
    """A model for the features and the target of some data, from its name or from a function of their widths.

    Args:
        model: a name of `NAMES`, or a function of (n_features, n_outputs).
        data: with numeric features and targets.
        loss: that its outputs are compared by.
        cardinalities: numbers of codes of the last columns of the features, for a model that embeds.
        framework: of a named model; None for the first that is installed and has the accelerator.
        accelerator: as of `fit`.

    Raises:
        PhaseError: no such name, data that do not say how wide they are, or a function that does not make a model.
    """
    if isinstance(model, str) and model not in NAMES:
        raise PhaseError(
            f"fit has no model called {model!r}",
            available=", ".join(NAMES),
            hint=did_you_mean(model, NAMES, "write 'mlp', or give a model of a framework"),
        )
    if isinstance(data, Source):
        raise PhaseError(
            f"fit sizes {shown(model)} from a table, and these data are a source of batches",
            hint="give the model itself, or a table",
        )
    n_features = sum(math.prod(data.spec(name).shape) for name in data.features)
    n_outputs = output_width(data, loss)
    if isinstance(model, str):
        make: Any = _framework_models(framework, accelerator)[NAMES[model]]
        return make(n_features - len(cardinalities), cardinalities, n_outputs)
    if framework is not None:
        problem = f"fit has framework={framework!r} and a function, which makes models of its own framework"
        raise PhaseError(problem, hint="leave framework= out")
    try:
        made = model(n_features, n_outputs)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # it comes from the inside of the function
        raise PhaseError(
            f"{named(model)} does not take the widths of a model: {error}",
            cause=f"fit calls it with {n_features} features and {n_outputs} outputs",
            hint="write lambda n_features, n_outputs: MODEL, or give the model itself",
        ) from error
    if made is None or isinstance(made, type):
        problem = f"{named(model)} gave {shown(made)}, and no model"
        raise PhaseError(problem, hint="return a model: lambda n_features, n_outputs: MODEL")
    return made


def named(function: Any) -> str:
    """A function or a class, for messages."""
    name = getattr(function, "__qualname__", "").rpartition(".")[2]
    return f"the function {name or shown(function)}"


def output_width(data: FeatureSet, loss: Loss) -> int:
    """How many outputs a model needs for each row: classes, or values of the targets."""
    width = sum(math.prod(data.spec(name).shape) for name in data.targets)
    if not _compares_classes(loss) or any("float" in data.spec(name).dtype for name in data.targets):
        return width
    encoded = {fitted.results[0]: fitted.class_labels for fitted in data.transforms if fitted.class_labels}
    return max(len(encoded[name]) if name in encoded else int(data.array(name).max()) + 1 for name in data.targets)


def _compares_classes(loss: Loss) -> bool:
    if loss.own is None:
        return takes_classes(loss)
    owners = registry().owners(loss.own) or [name for name in _PREFERRED if _is_of(loss.own, name)]
    takes = registry().computing(owners[0]).loss_targets(loss) if owners else None
    return takes is not None and takes.kind == "classes"


def _is_of(loss: Any, framework: str) -> bool:
    return str(getattr(loss, "__module__", "")).partition(".")[0] == framework


def _framework_models(framework: str | None, accelerator: Any) -> Any:
    """The models of a framework by name: the one that is asked for, else the first with such a device."""
    if framework is not None:
        backend = registry().computing(framework)
        if "TabularMLP" not in backend.models():
            raise PhaseError(
                f"the backend of {framework} has no TabularMLP",
                available=listed(sorted(backend.models())),
                hint="choose another framework, or give a model of it",
            )
        return backend.models()
    installed = registry().frameworks
    others = [name for name in installed if name not in (*_PREFERRED, _BUILT_IN)]
    kind = None if accelerator == "auto" else _kind_of(accelerator)
    for name in (*_PREFERRED, *others):
        if name in installed and (kind is None or kind in registry().kinds(name)) and (models := _models_of(name)):
            return models
    if kind in (None, "cpu"):
        hint = install_line("anyaccel-torch")
        text = "fit: no framework is installed for which anyaccel has a plugin, so 'mlp' trains with NumPy on the CPU. "
        warnings.warn(f"{text}Hint: {hint}, or write framework={_BUILT_IN!r}", UserWarning, stacklevel=user_level())
    return registry().computing(_BUILT_IN).models()


def _kind_of(accelerator: Any) -> str | None:
    if isinstance(accelerator, Device):
        return accelerator.kind
    return accelerator.partition(":")[0] if isinstance(accelerator, str) else None


def _models_of(framework: str) -> Any:
    """The models of a framework if it has TabularMLP; None where its plugin is there and it is not."""
    backend = registry().find(framework)
    try:
        models = backend.models() if isinstance(backend, Compute) else {}
    except (ImportError, PluginError):
        return None
    return models if "TabularMLP" in models else None
