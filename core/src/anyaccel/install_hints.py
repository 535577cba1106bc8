"""Which distribution to install: anyaccel's own, and the plugin of a known framework that no plugin runs yet.

Apart from the device aliases, this is the only place in core that names frameworks.
"""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

_ROOTS = {"torch": "torch pytorch", "tensorflow": "tensorflow tf keras", "jax": "jax jaxlib flax optax equinox"}
HINTS = {root: (framework, f"anyaccel-{framework}") for framework, roots in _ROOTS.items() for root in roots.split()}
"""By top-level module of a class, or another name of a framework: the framework, and its plugin's distribution."""

PREFERRED_FRAMEWORKS = ("torch", "jax", "tensorflow")
"""The order in which installed frameworks are chosen where nothing says which is meant."""

BACKEND_PLUGINS = {**{framework: framework for framework in _ROOTS}, "mps": "torch"}
"""anyaccel's own plugins of frameworks by name, each with its framework: they are loaded when that is in use."""
_ESTIMATORS = ("sklearn", "xgboost", "lightgbm")
_FEATURES = (
    *("devtools", "distributed", "mlflow", "offload", "optuna", "ray", "resources", "sklearn", "tensorboard"),
    "wandb",
)
LIBRARIES = {"transformers": "anyaccel-transformers"}
"""By the top-level package of models that compute their own loss: what tells `fit` of them."""
DISTRIBUTIONS = frozenset(f"anyaccel-{name}" for name in (*BACKEND_PLUGINS, *_FEATURES)) | {*LIBRARIES.values()}
"""anyaccel's own distributions beside core; all have the same version."""
FREEZING_HINT = (
    "freeze layers before training: layer.requires_grad_(False) in torch, layer.trainable = False in Keras; "
    "graph.freeze('NODE') freezes a whole node"
)
"""How to freeze layers in the frameworks where models do that themselves."""
FUNCTION_HINT = "in JAX, pass the function with its parameters: anyaccel_jax.Function(function, parameters)"
"""How to pass a function as a model."""
VALUES_HINT = "in JAX, with its values: anyaccel_jax.Linen(module, variables), or anyaccel_jax.Equinox(module, state)"
"""How to pass a model whose values are in another object."""


def foreign_module(obj: object, import_roots: Sequence[str]) -> str:
    """Return the module of a known framework that a function, class or object comes from.

    It is `""` for what is of no known framework, and for what is of one with these top-level modules, or derived from
    it.
    """
    obj = obj.func if isinstance(obj, functools.partial) else obj
    kinds = (obj, *(obj if isinstance(obj, type) else type(obj)).__mro__)
    modules = [str(kind.__module__) for kind in kinds if getattr(kind, "__module__", None)]
    roots = [module.partition(".")[0] for module in modules]
    known = [module for module, root in zip(modules, roots, strict=True) if root in HINTS]
    return known[0] if known and not {*roots} & {*import_roots} else ""


def hint_of(cls: type) -> tuple[str, str, str] | None:
    """Return framework, distribution and an explanation (may be empty) for a class of a known framework, or None."""
    roots = (str(base.__module__).partition(".")[0] for base in cls.__mro__)
    root = next((root for root in roots if root in HINTS), None)
    if root != "keras":
        return None if root is None else (*HINTS[root], "")
    config = getattr(sys.modules.get(root), "config", None)
    name = config.backend() if config is not None else ""
    framework = name if name in HINTS else "tensorflow"
    return framework, distribution_for(framework), f"KERAS_BACKEND makes Keras compute with {framework} here"


def scheduler_hint(obj: object) -> str:
    """Return how to pass a scheduler of torch, or its class, as a schedule; `""` for any other object."""
    kind = obj if isinstance(obj, type) else type(obj)
    if kind.__module__ != "torch.optim.lr_scheduler":
        return ""
    return f"write schedule=anyaccel_torch.TorchSchedule({kind.__name__}, ...), with its settings but no optimizer"


def is_like_an_estimator(obj: object) -> bool:
    """Return whether an object belongs to a library of estimators, or has their methods `fit` and `predict`."""
    root = str(type(obj).__module__).partition(".")[0]
    return root in _ESTIMATORS or all(callable(getattr(obj, name, None)) for name in ("fit", "predict"))


def distribution_for(framework: str) -> str:
    """Return the distribution whose plugin runs a framework, `""` if none is known."""
    return HINTS.get(framework, ("", ""))[1]


def install_line(distribution: str) -> str:
    """Return how to install a distribution; those of anyaccel come from its repository until they are on PyPI."""
    if distribution not in DISTRIBUTIONS:
        return f"python -m pip install {distribution}"
    folder = Path("plugins", distribution.removeprefix("anyaccel-"))
    here = Path(__file__).parents[3] / folder  # where core runs from a clone
    if here.is_dir():
        return f"python -m pip install {shlex.quote(str(here))}"
    where = f"{distribution} is not on PyPI yet; in the folder of anyaccel's repository,"
    return f"{where} python -m pip install ./{folder.as_posix()}"
