"""Distributions: installed packages add names, commands, settings and capabilities to core by entry points.

Each group is a way to extend anyaccel. The object of an entry point is imported at its first use:

- `anyaccel.names`: `NAME = "module:object"` or `"module"` gives `anyaccel.NAME`.
- `anyaccel.commands`: `NAME = "module:command"`, a `click.Command`, gives `anyaccel NAME` in a terminal.
- `anyaccel.settings`: `CLASS.NAME = "module:object"` gives an argument that core's signatures have and a feature uses.
- `anyaccel.capabilities`: `FRAMEWORK.PACKAGE.CLASS = "module:class"` gives a backend a capability that it lacks.
- `anyaccel.named_metrics`: `NAME = "module:object"` gives `Metric(NAME)`, a `NamedMetric`.
- `anyaccel.saved_kinds`: `WHAT.KIND = "module:class"` gives the class that a saved file names, such as `phase.fit`.
- `anyaccel.model_libraries`: `PACKAGE = "module:class"` gives what `fit` knows of the models of a package that compute
  their own loss, a subclass of `anyaccel.fitting.ModelLoss`.
- `anyaccel.extension_points`: `POINT = "module:object"`, see `anyaccel.extensions`.

`OFFERED` lists the names that anyaccel's own distributions offer, for the message if one is not installed.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from anyaccel.errors import MissingDistributionError, PluginError
from anyaccel.install_hints import DISTRIBUTIONS, LIBRARIES, install_line
from anyaccel.version import __version__

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

NAMES, COMMANDS, SETTINGS = "anyaccel.names", "anyaccel.commands", "anyaccel.settings"
CAPABILITIES, EXTENSIONS, SAVED = "anyaccel.capabilities", "anyaccel.extension_points", "anyaccel.saved_kinds"
METRICS, MODEL_LIBRARIES = "anyaccel.named_metrics", "anyaccel.model_libraries"

OFFERED: Mapping[str, Mapping[str, str]] = {
    NAMES: {
        "anyaccel-devtools": "Ledger Profile find_learning_rate ledger no_transfers",
        "anyaccel-distributed": "Loop",
        "anyaccel-resources": "DeviceRequest Inventory",
        "anyaccel-sklearn": (
            "Beyond Different Estimator FitPhase FitResults PairCondition PairSampler Same TripletSampler Where Within "
            "cross_validate"
        ),
    },
    COMMANDS: {
        "anyaccel-devtools": "checkpoint conform doctor env estimate explain new-plugin plan",
        "anyaccel-distributed": "run",
        "anyaccel-offload": "device-map",
        "anyaccel-resources": "resolve",
    },
    SETTINGS: {
        "anyaccel-devtools": "Loop.profile ModelGraph.visualize Plan.to_html",
        "anyaccel-distributed": (
            "EvalPhase.replicas ModelNode.sharding TrainPhase.deterministic TrainPhase.per_replica TrainPhase.replicas "
            "TrainPhase.sharding TrainPhase.sync_batchnorm"
        ),
        "anyaccel-offload": "ModelNode.device_map ModelNode.max_memory ModelNode.offload",
        "anyaccel-resources": "plan.inventory",
        "anyaccel-sklearn": (
            "FeatureSet.fit_transform FeatureSet.group_by FeatureSet.stratify_by FeatureSet.transform_like "
            "fit.class_labels fit.class_weights fit.group fit.preprocess fit.sample_weight fit.scaler fit.stratify"
        ),
    },
    METRICS: {
        "anyaccel-sklearn": (
            "average_precision balanced_accuracy brier_score cohen_kappa explained_variance jaccard jaccard_macro "
            "jaccard_micro jaccard_weighted log_loss matthews_corrcoef max_error mean_absolute_percentage_error "
            "mean_squared_log_error median_absolute_error precision precision_macro precision_micro "
            "precision_weighted recall recall_macro recall_micro recall_weighted roc_auc roc_auc_ovo "
            "roc_auc_ovo_weighted roc_auc_ovr roc_auc_ovr_weighted root_mean_squared_error "
            "root_mean_squared_log_error top_3_accuracy top_5_accuracy top_k_accuracy"
        ),
    },
    SAVED: {
        "anyaccel-devtools": "callback.Profile",
        "anyaccel-sklearn": "data.transforms phase.fit results.fit sampler.pair sampler.triplet",
    },
}
"""By group: each of anyaccel's own distributions, with the names that it offers there."""

MODULES: Mapping[str, str] = {
    "estimators": "anyaccel_sklearn.estimators",
    "doctor": "anyaccel_devtools.doctor",
    "testing": "anyaccel_devtools.testing",
    "transfer_ledger": "anyaccel_devtools.transfer_ledger",
    "own_loop": "anyaccel_distributed.own_loop",
    "planner": "anyaccel_offload.planner",
    "replicas": "anyaccel_distributed",
    "requests": "anyaccel_resources",
    "requests.system_devices": "anyaccel.machine.system_devices",
}
"""Modules of version 0.1 that have moved into another distribution: `testing` of `anyaccel.testing`, and where to."""

_found: dict[Any, Any] = {}  # of one `sys.path`: all entry points, those of each group, and what each has given
_lock = threading.Lock()


def entry_points(group: str) -> Sequence[EntryPoint]:
    """Return the entry points of a group; installed distributions are searched once for each `sys.path`."""
    path = tuple(sys.path)
    with _lock:
        if path not in _found:
            from importlib.metadata import entry_points as installed

            _found.clear()
            _found[path] = installed()
        if group not in _found:
            _found[group] = tuple(_found[path].select(group=group))
        return _found[group]  # type: ignore[no-any-return]


def named(group: str, name: str) -> EntryPoint | None:
    """Return the entry point with this name, or None.

    Raises:
        PluginError: two distributions offer it.
    """
    entries = [entry for entry in entry_points(group) if entry.name == name]
    if len(entries) > 1:
        problem = f"{_source(entries[0])} and {_source(entries[1])} both provide {name!r} in {group}"
        raise PluginError(problem, hint="uninstall one")
    return entries[0] if entries else None


def load(group: str, name: str) -> Any:
    """Return the object that a distribution offers under a name; None if no installed distribution offers it, nor one
    of anyaccel's own.

    Raises:
        MissingDistributionError: one of anyaccel's own distributions offers it, and is not installed.
        PluginError: it has another version than core, is broken, or two distributions offer the name.
    """
    entry = named(group, name)
    if entry is None:
        home = home_of(group, name)
        if home:
            raise missing(home, _DESCRIBED[group].format(name))
        return None
    return loaded(entry)


def loaded(entry: EntryPoint) -> Any:
    """Import and return the object of an entry point.

    Raises:
        PluginError: its distribution is one of anyaccel's own with another version than core, or it cannot be imported.
    """
    if entry in _found:  # reading the version takes a millisecond
        return _found[entry]
    check_version(*_identity(entry))
    try:
        value = _found[entry] = entry.load()
        return value
    except Exception as error:  # one broken distribution must not break commands and names of the others
        what = "" if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: "
        problem = f"{entry.name} of {_source(entry)} cannot be imported: {what}{error}"
        raise PluginError(problem, hint=f"update or uninstall {_identity(entry)[0] or entry.value}") from error


def saved_names(what: str) -> list[str]:
    """Return the kinds of `what` that installed distributions offer."""
    names = (entry.name.partition(".") for entry in entry_points(SAVED))
    return [kind for whose, _, kind in names if whose == what]


def moved_names(package: str, names: str) -> Callable[[str], Any]:
    """Return `__getattr__` for a package of version 0.1 whose names have moved into other distributions."""

    def get(name: str) -> Any:
        value = load(NAMES, name) if name in names.split() else None
        if value is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
        return value

    return get


def home_of(group: str, name: str) -> str:
    """Return which of anyaccel's own distributions offers a name, installed or not; `""` if none does."""
    if group == MODEL_LIBRARIES:
        return LIBRARIES.get(name, "")
    offered = OFFERED.get(group, {})
    return next((home for home, names in offered.items() if name in names.split()), "")


def missing(
    distribution: str, what: str, kind: type[MissingDistributionError] = MissingDistributionError
) -> MissingDistributionError:
    """Create the error for something that is in a distribution which is not installed."""
    return kind(f"{what} needs {distribution}, which is not installed", hint=install_line(distribution))


def check_version(distribution: str, version: str) -> None:
    """Raise PluginError if one of anyaccel's own distributions has another version than core."""
    if distribution in DISTRIBUTIONS and version and _release(version) != _release(__version__):
        problem = f"{distribution} has version {version}, but anyaccel has {__version__}; both must match"
        raise PluginError(problem, hint=f"python -m pip install anyaccel=={version} {distribution}=={version}")


@cache
def check_library(distribution: str, library: str) -> None:
    """Raise PluginError if a library is installed in an older version than a distribution needs, as one of its extras.

    pip compares the version only where the extra is installed by name. `library` is a top-level module; builds of it
    are distributions with a suffix, such as tensorflow-cpu. Metadata are read once, as each class of a model is
    checked.
    """
    from importlib.metadata import PackageNotFoundError, requires, version

    with suppress(PackageNotFoundError):
        for requirement in requires(distribution) or ():
            match = re.match(rf"({library}(?:-\w+)*)(?:\[[^]]*])?\s*>=\s*([\d.]+)", requirement)
            if match is None:
                continue
            name, oldest = match.groups()
            with suppress(PackageNotFoundError):
                if is_older(version(name), oldest):
                    problem = f"{name} {version(name)} is too old: {distribution} needs {oldest} or later"
                    raise PluginError(problem, hint=f'python -m pip install "{name}>={oldest}"')


def is_older(version: str, than: str) -> bool:
    """Return whether a dotted version of numbers comes before another; a part that is not a number ends a version."""
    return _numbers(version) < _numbers(than)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.match(r"(\d+(?:\.\d+)*)?", version).group().split(".") if part]  # type: ignore[union-attr]


class MovedModules:
    """Find modules that have moved by their former names: the same module object, not a second one."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of `anyaccel.NAME` and its submodules; None for every other module."""
        package, _, below = name.partition(".")
        olds = (old for old in sorted(MODULES, reverse=True) if f"{below}.".startswith(f"{old}."))  # the longest first
        old = next(olds, "") if package == "anyaccel" else ""
        if not old:
            return None
        moved = f"{MODULES[old]}{below.removeprefix(old)}"
        try:
            module = import_module(moved)
        except ModuleNotFoundError as error:
            home = moved.partition(".")[0]
            if error.name != home:
                raise
            raise missing(home.replace("_", "-"), name) from None
        return ModuleSpec(name, cls(module), origin=moved)  # type: ignore[arg-type]  # importlib.abc is slow to import

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module, which is imported already."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the spec of the module after the import system has replaced it with the spec of the former name."""
        module.__spec__ = self._spec


_DESCRIBED = {
    NAMES: "anyaccel.{}",
    COMMANDS: "the command anyaccel {}",
    SETTINGS: "{}",
    METRICS: "the metric {}",
    SAVED: "the saved {}",
    MODEL_LIBRARIES: "fit of a model of {}",
}


def _release(version: str) -> str:
    while version.endswith(".0"):
        version = version.removesuffix(".0")
    return version


def _identity(entry: EntryPoint) -> tuple[str, str]:
    try:
        return str(entry.dist.name or ""), str(entry.dist.version or "")  # type: ignore[union-attr]
    except Exception:  # of damaged metadata
        return "", ""


def _source(entry: EntryPoint) -> str:
    return " ".join(filter(None, _identity(entry))) or entry.value
