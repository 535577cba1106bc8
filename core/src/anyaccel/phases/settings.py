"""Phase settings: check, save and compare the settings of a phase, and answer questions while it is planned and run."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, ParamSpec, Self

from anyaccel import arguments
from anyaccel.accelerator import Accelerator
from anyaccel.arguments import is_integer, shown
from anyaccel.attribute_hints import AttributeHints
from anyaccel.call_hints import call_hints, constructor_hints
from anyaccel.data import Rows, Sampler, SimpleSampler, sampler_from_config
from anyaccel.device import Device
from anyaccel.distributions import SAVED, SETTINGS, load, saved_names
from anyaccel.errors import ConfigError, PhaseError
from anyaccel.graph import ModelGraph
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.graph.graph import Runnable
from anyaccel.graph.nodes import check_label
from anyaccel.metrics import Metric
from anyaccel.phases.callbacks import Callback
from anyaccel.phases.checkpointing.checkpoint import Checkpoint
from anyaccel.phases.loading.epoch_plan import SCHEDULES, EpochPlan, EvaluationRows
from anyaccel.phases.row_alignment import Combination
from anyaccel.precision import LossScale, checked_precision
from anyaccel.suggestions import did_you_mean

# -- Setting: how what a phase is told is checked, saved, read and compared. Name, type and default are in signatures


Check = Callable[[Any, str, Any], Any]
"""From the phase so far, with its label, the name of a setting, and what was given for it, to what the phase keeps."""

UNCHANGED, UNSAVED = object(), object()
"""What a check gives where the phase has the value already; and what is given where there is nothing to save."""


def same(value: Any) -> Any:
    """Return the value unchanged."""
    return value


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a kind of phase.

    Attributes:
        check: Return what the phase stores, or UNCHANGED; raise PhaseError.
        save: Convert the phase and its stored value to plain data, or return UNSAVED; raise ConfigError.
        load: Convert plain data to an argument of the phase; raise ConfigError or TypeError.
        compare: Convert the stored value to plain data that must be equal in all replicas of a run; None if it may
            differ.
        on_resume: Whether a run that resumes from a checkpoint must have the same value, too.
        or_none: Whether None is stored without a check.
    """

    check: Check = lambda phase, name, value: value
    save: Callable[[Any, Any], Any] = lambda phase, kept: kept
    load: Callable[[Any], Any] = same
    compare: Callable[[Any], Any] | None = None
    on_resume: bool = True
    or_none: bool = False


def integer(least: int, example: int | None = None) -> Check:
    """Check for an int of at least `least`; the hint shows `example`."""
    return lambda phase, name, value: arguments.integer(
        PhaseError, f"phase {phase.label!r}: ", name, value, least, example
    )


def flag(phase: Any, name: str, value: Any) -> bool:
    """Return the value if it is True or False."""
    return arguments.flag(PhaseError, f"phase {phase.label!r}: ", name, value)


def offered(name: str, *absent: Any) -> Check:
    """Create the check of a setting `CLASS.NAME` that a distribution offers. It is used for values other than `absent`.

    Raises:
        MissingDistributionError: it is not installed.
    """

    kept = [(type(value), value) for value in absent]

    def check(phase: Any, own_name: str, setting: Any) -> Any:
        if (type(setting), setting) in kept:
            return setting
        return load(SETTINGS, name).check(phase, own_name, setting)

    return check


def choice(*choices: str, hints: dict[Any, str] | None = None) -> Check:
    """Check for one of some words; `hints` are for likely other words."""

    def check(phase: Any, name: str, value: Any) -> str:
        if value in choices:
            return str(value)
        hint = (hints or {}).get(value) if isinstance(value, (str, bool)) else None
        hint = hint or did_you_mean(value, choices, "use one of these")
        problem = f"phase {phase.label!r}: unknown {name}={shown(value)}"
        raise PhaseError(problem, available=", ".join(map(repr, choices)), hint=hint)

    return check


def optional(check: Check) -> Check:
    """Accept None in addition to the values that `check` accepts."""
    return lambda phase, name, value: None if value is None else check(phase, name, value)


def unless(default: Any) -> Callable[[Any, Any], Any]:
    """Save values other than the default."""
    return lambda phase, kept: UNSAVED if kept == default else kept


def unsaved(phase: Any, kept: Any) -> Any:
    """Save nothing."""
    return UNSAVED


def config(phase: Any, kept: Any) -> Any:
    """Save an object as its configuration; None is saved as None."""
    return None if kept is None else kept.get_config()


def read(load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Load an object that `config` saved."""
    return lambda saved: None if saved is None else load(saved)


def read_list(name: str, load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Load a list of objects that were saved as their configurations."""

    def read(saved: Any) -> list[Any]:
        if not isinstance(saved, (list, tuple)):
            raise TypeError(f"{name} must be a list, got {shown(saved)}")
        return [load(item) for item in saved]

    return read


# -- The samplers of a phase: one for all feature sets or one for each, and the schedule that combines them ------------


Samplers = Sampler | Mapping[str, Sampler]
"""A sampler for all feature sets, or a mapping with one for each label."""


def batch_size(phase: Any, name: str, value: Any) -> object:
    """Check for a number of rows, which makes the sampler of a phase; None leaves it to the setting `sampler`."""
    if value is not None:
        phase.sampler = SimpleSampler(value, shuffle=phase.trains)
    return UNCHANGED


def samplers(phase: Any, name: str, value: Any) -> Any:
    """Check for samplers; without any, the batches have `batch_size` rows, or as many as the phase has by default.

    In a mapping by feature set integers (NumPy's too) are batch sizes.
    """
    has_batch_size = "sampler" in vars(phase)
    if value is None:
        return UNCHANGED if has_batch_size else SimpleSampler(phase.default_batch_size, shuffle=phase.trains)
    where = f"phase {phase.label!r}"
    if is_integer(value):
        raise PhaseError(
            f"{where}: sampler must be a Sampler, got {shown(value)}", hint=f"write batch_size={shown(value)}"
        )
    if has_batch_size:
        raise PhaseError(
            f"{where} has both a sampler and a batch_size", hint="leave batch_size out: the sampler has one"
        )
    by_label = value.items() if isinstance(value, Mapping) else [("", value)]
    checked = {label: SimpleSampler(it, shuffle=True) if is_integer(it) else it for label, it in by_label}
    wrong = next((it for it in checked.values() if not isinstance(it, Sampler)), None if checked else value)
    if wrong is not None:
        raise PhaseError(
            f"{where}: sampler must be a Sampler, or a mapping with one for each feature set, got {shown(wrong)}",
            hint="write batch_size=32, or sampler=SimpleSampler(32, shuffle=True)",
        )
    return checked if isinstance(value, Mapping) else value


def largest_batch(samplers: Samplers) -> int:
    """Return the rows of a batch; with several samplers, of the largest batch."""
    if isinstance(samplers, Sampler):
        return samplers.batch_size
    return max(sampler.batch_size for sampler in samplers.values())


def samplers_config(samplers: Samplers) -> dict[str, Any]:
    """Return samplers as plain data."""
    if isinstance(samplers, Sampler):
        return samplers.get_config()
    return {name: sampler.get_config() for name, sampler in samplers.items()}


def samplers_from(config: Any) -> Any:
    """Rebuild samplers from the output of `samplers_config`."""
    if isinstance(config, Mapping) and config and all(isinstance(part, Mapping) for part in config.values()):
        return {name: sampler_from_config(part) for name, part in config.items()}
    return sampler_from_config(config)


def check_schedule(phase: Any, name: str, value: Any) -> str:
    """Return how samplers are combined.

    Raises:
        PhaseError: an unknown name, or there is only one sampler.
    """
    if value not in SCHEDULES:
        raise PhaseError(
            f"phase {phase.label!r}: unknown schedule={shown(value)}",
            available=", ".join(SCHEDULES),
            hint=did_you_mean(value, SCHEDULES, "use one of these"),
        )
    if isinstance(phase.sampler, Sampler) or len(phase.sampler) < 2:
        raise PhaseError(
            f"phase {phase.label!r} has schedule={value!r} but only one sampler",
            hint="leave schedule out, or write sampler={'FEATURE_SET': 32, 'OTHER': 32}",
        )
    return str(value)


MODES = ("auto", "off", "steps")
AUTO = "auto"
RESIDENCIES = ("auto", "resident", "streamed")

Data = Any
"""Name of a split, a FeatureSet or view, a source, or a mapping from the label of each feature set to one of these."""
_Settings = ParamSpec("_Settings")


def _unknown(owner: Any, name: str) -> PhaseError:
    """Create the error for a setting that a kind of phase does not have."""
    cls = owner if isinstance(owner, type) else type(owner)
    if name == "data":
        hint = f"write split='train', or {cls.__name__}('LABEL', data=...)"
        return PhaseError(f"{cls.__name__}.from_split has no setting 'data'", hint=hint)
    return _unknown_setting(cls, name)


def takes_settings(init: Callable[_Settings, None]) -> Callable[_Settings, None]:
    """Decorate `__init__` of a kind of phase: check and store the arguments as its `settings` define.

    An unknown setting is an error that suggests the closest name.
    """
    parameters = inspect.signature(init).parameters.values()
    defaults = {parameter.name: parameter.default for parameter in parameters}

    @functools.wraps(init)
    def take(*args: _Settings.args, **keywords: _Settings.kwargs) -> None:
        init(*args, **keywords)  # refuses what is not in its signature, as Python does
        values: dict[str, Any] = {**defaults, **dict(zip(defaults, args, strict=False)), **keywords}
        phase = values.pop("self")
        for name, value in values.items():
            setting = phase.settings.get(name, _PLAIN)
            kept = None if value is None and setting.or_none else setting.check(phase, name, value)
            if kept is not UNCHANGED:
                setattr(phase, name, kept)
        phase.check_settings()

    return call_hints(take, unknown=_unknown)


_PLAIN = Setting()
_RENAMED = {"n_epochs": "epochs"}
"""Names of settings in configurations that 0.1 saved."""
_HINTS_FOR_COMPILE = {False: "write compile='off'", True: "write compile='steps', or leave it out"}
_CALLBACKS = {
    "EarlyStopping": "write anyaccel.EarlyStopping()",
    "early_stopping": "write callbacks=[EarlyStopping()]",
    "Checkpoint": "pass it as checkpoint=Checkpoint('runs/a')",
    "ModelCheckpoint": "write checkpoint=Checkpoint('runs/a')",
    "checkpoint": "write checkpoint=Checkpoint('runs/a')",
    "ReduceLROnPlateau": "pass it to the optimizer: Optimizer('adam', schedule=anyaccel.ReduceLROnPlateau())",
    "LearningRateScheduler": "pass a function of the step to the optimizer: Optimizer('adam', schedule=function)",
    "TerminateOnNaN": "write on_nan='stop'",
    "BackupAndRestore": "write checkpoint='runs/a', and run the phase with resume='auto'",
    "CSVLogger": "the results have all values: results.to_pandas()",
}
"""Hints for callbacks of other libraries, for names of callbacks, and for a Checkpoint, by class name or text."""


def _checked_data(phase: Any, name: str, data: Any) -> Data:
    """Return data, which are checked later with the graph; a mapping must have labels as its keys."""
    if isinstance(data, Mapping) and not all(isinstance(label, str) for label in data):
        problem = f"phase {phase.label!r}: data={shown(data)} must have the labels of feature sets as its keys"
        raise PhaseError(problem, hint="write data={'LABEL': 'train'}")
    return data


def _data_config(phase: Any, data: Data) -> Any:
    if isinstance(data, str):
        return data
    if isinstance(data, Mapping):
        return {label: _data_config(phase, part) for label, part in data.items()}
    name = getattr(data, "name", None)
    registered = getattr(getattr(data, "feature_set", None), "splits", {}).get(name)
    if registered is None or registered is not data:
        raise ConfigError(
            f"phase {phase.label!r} cannot be saved: its data have no name",
            hint="register a split and pass its name as data=",
        )
    return {data.label: name}


def _as_tuple(whose: str, name: str, value: Any, example: str) -> tuple[Any, ...]:
    if not isinstance(value, Iterable) or isinstance(value, (str, Mapping)):
        raise PhaseError(f"{whose}: {name} must be a list, got {shown(value)}", hint=f"write {name}=[{example}]")
    return tuple(value)


def _checked_losses(phase: Any, name: str, applied: Any) -> tuple[AppliedLoss, ...]:
    applied = (applied,) if isinstance(applied, AppliedLoss) else applied
    losses = _as_tuple(f"phase {phase.label!r}", name, applied, "AppliedLoss('mse', on='NODE')")
    for loss in losses:
        if not isinstance(loss, AppliedLoss):
            raise PhaseError(
                f"phase {phase.label!r}: losses must be AppliedLoss objects, got {shown(loss)}",
                hint=f"write losses=[AppliedLoss({loss if isinstance(loss, str) else 'mse'!r}, on='NODE')]",
            )
    labels, duplicates = set[str](), set[str]()
    for loss in losses:
        (duplicates if loss.label in labels else labels).add(loss.label)
    if duplicates:
        raise PhaseError(
            f"phase {phase.label!r} has several losses with the label {', '.join(map(repr, sorted(duplicates)))}",
            hint="give each a unique label: AppliedLoss(..., label='NAME')",
        )
    return losses


def _compared_losses(losses: Iterable[AppliedLoss]) -> dict[str, Any]:
    compared = {}
    for loss in losses:
        try:
            compared[loss.label] = loss.get_config()
        except ConfigError:  # a function has only its name
            inputs = list(loss.inputs)
            compared[loss.label] = {"loss": loss.loss.name, "on": loss.on, "inputs": inputs, "weight": loss.weight}
    return compared


def _accelerator(phase: Any, name: str, accelerator: Any) -> Accelerator | None:
    phase.chooses_device = isinstance(accelerator, str) and accelerator == AUTO
    return None if accelerator is None or phase.chooses_device else Accelerator.of(accelerator)


def _matmul_precision(phase: Any, name: str, setting: Any) -> Any:
    """Return a setting for matrix multiplications, which the frameworks of the graph check."""
    if isinstance(setting, (str, bool)):
        return setting
    where, example = f"phase {phase.label!r}: ", "'high'"
    by_framework = arguments.mapping(PhaseError, where, name, setting, example)
    fits = lambda it: bool(it) and all(isinstance(value, (str, bool)) for value in it.values())  # noqa: E731
    return arguments.check(PhaseError, where, name, by_framework, fits, "a setting, or a dict of settings", example)


def checked_callbacks(whose: str, value: Any) -> tuple[Callback, ...]:
    """Return callbacks from the argument of a phase or experiment.

    Raises:
        PhaseError: not a list of Callback objects.
    """
    callbacks = _as_tuple(whose, "callbacks", (value,) if isinstance(value, Callback) else value, "EarlyStopping()")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            is_class = isinstance(callback, type) and issubclass(callback, Callback)
            hint = f"create an instance: {callback.__name__}()" if is_class else "derive it from anyaccel.Callback"
            named = callback if isinstance(callback, str) else type(callback).__name__.removesuffix("Callback")
            raise PhaseError(f"{whose}: {shown(callback)} is not a Callback", hint=_CALLBACKS.get(named, hint))
    return callbacks


@constructor_hints
class PhaseSettings(AttributeHints, Runnable):
    """The settings that every phase has.

    Args:
        label: Name of the phase. Training phases with the same label count their epochs together.
        data: Name of a split that every feature set has, a FeatureSet or view, or a mapping from the label of each
            feature set to one of these. Also a source, or anything that IterableSource or MapSource takes (a
            DataLoader, a dataset, a generator function): a TrainPhase streams it, other phases read it into memory.
        losses: AppliedLoss objects, or one of them.
        accelerator: Device for nodes without an accelerator: an Accelerator, a Device, or text such as `"gpu:0"`.
            `"auto"` is the best device that all frameworks of the graph support. A node whose framework has no backend
            for this kind of device runs on the CPU; the plan notes it and a FallbackWarning is issued once.
        strict: Raise an error instead of falling back to the CPU.
        policy: Name of a plugin's placement policy for nodes without an accelerator.
        callbacks: Callback objects.
        final_device: Device that receives the nodes when the phase ends. By default they stay where they are.
        compile: `"auto"` compiles training steps if that is faster, and gives the reason in `results.events`. `"off"`
            never compiles and never imports a compiler. `"steps"` compiles whole training steps before the first one.
            All three compute the same numbers within rounding.
        residency: `"resident"` keeps all rows on the devices. `"streamed"` keeps them in host memory and copies them
            before they are needed. `"auto"` decides by free memory and logs the decision in `results.events`. All three
            compute the same numbers.
        precision: Precision of nodes without a precision: `"float32"`, `"bf16-mixed"`, `"fp16-mixed"` (with scaled
            losses in training), `"bf16"` or `"float64"`; None for the dtypes of the models. Parameters and values
            between nodes keep their dtypes.
        matmul_precision: The framework's own setting for matrix multiplication while the phase runs: `"highest"`,
            `"high"` or `"medium"` (torch), the values of `jax.default_matmul_precision`, or True or False for TF32 in
            TensorFlow; a dict by framework if the graph has several.
    """

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[PhaseSettings]]] = {}
    """Class of each kind of phase, by the `type` of its configuration."""
    devices: tuple[Device, ...] = ()
    """What a phase that is bound to a graph has got of its request, or for its replicas; the first has the nodes."""

    label: str
    data: Data
    losses: tuple[AppliedLoss, ...]
    accelerator: Accelerator | None
    chooses_device: bool
    strict: bool
    policy: str | None
    callbacks: tuple[Callback, ...]
    final_device: Accelerator | None
    compile: str
    residency: str
    precision: str | None
    matmul_precision: Any
    # Settings that only some kinds of phases have, with what holds for all others.
    default_batch_size: ClassVar[int]
    trains: ClassVar[bool] = False
    """Whether its steps change parameters."""
    equal_lengths: ClassVar[bool] = False
    """Whether all feature sets must have equally many rows, although nothing samples them."""
    step: Callable[..., Any] | None = None
    accumulate: int = 1
    replicas: int | None = 1
    per_replica: bool = False
    deterministic: bool = False
    sharding: str | None = None
    loss_scale: LossScale = LossScale()
    validation: PhaseSettings | None = None
    metrics: tuple[Metric, ...] = ()
    checkpoint: Checkpoint | None = None
    # Settings that nobody asks other kinds of phases for.
    sampler: Samplers
    schedule: str | None
    epochs: int
    validate_every: int
    microbatching: str
    on_nan: str
    sync_batchnorm: bool
    outputs: tuple[str, ...] | None
    nodes: tuple[str, ...] | None

    settings: ClassVar[Mapping[str, Setting]] = {
        "label": Setting(lambda phase, name, value: check_label(value, "a phase")),
        "data": Setting(_checked_data, _data_config),
        "losses": Setting(
            _checked_losses,
            lambda phase, losses: [loss.get_config() for loss in losses],
            read_list("losses", AppliedLoss.from_config),
            _compared_losses,
        ),
        "accelerator": Setting(
            _accelerator,
            lambda phase, kept: AUTO if phase.chooses_device else config(phase, kept),
            lambda saved: saved if saved in (None, AUTO) else Accelerator.from_config(saved),
        ),
        "strict": Setting(flag),
        "policy": Setting(
            lambda phase, name, value: arguments.text(PhaseError, f"phase {phase.label!r}: ", name, value), or_none=True
        ),
        "callbacks": Setting(
            lambda phase, name, value: checked_callbacks(f"phase {phase.label!r}", value), save=unsaved
        ),
        "final_device": Setting(
            lambda phase, name, value: Accelerator.of(value), config, read(Accelerator.from_config), or_none=True
        ),
        "compile": Setting(choice(*MODES, hints=_HINTS_FOR_COMPILE)),
        "residency": Setting(choice(*RESIDENCIES)),
        "precision": Setting(
            lambda phase, name, value: checked_precision(PhaseError, f"phase {phase.label!r}: ", value),
            save=unless(None),
            or_none=True,
        ),
        "matmul_precision": Setting(_matmul_precision, save=unless(None), or_none=True),
    }
    """How each setting of this kind of phase is checked, saved and compared; names and defaults are in `__init__`."""

    misplaced_settings: ClassVar[Mapping[str, str]] = {
        "device": "write accelerator='gpu:0'",
        "split": "write data='train'",
        "dataset": "write data='train'",
        "name": "the name is the first argument: TrainPhase('train', ...)",
        "progress": "write Experiment(..., progress='none')",
        "verbose": "write Experiment(..., progress='none')",
    }
    """Hints for settings that only other kinds of phase, or other libraries, have, by names with blanks between."""

    attribute_hints: ClassVar[Mapping[str, str]] = {
        "run fit start execute train evaluate": "a graph runs phases: graph.run(phase)",
        "loss results history predictions prediction": "running gives results: results = graph.run(phase)",
        "n_epochs": "it is epochs",
        "device": "it is accelerator",
    }

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in vars(cls):  # a user's subclass keeps the kind of its base
            PhaseSettings.kinds[cls.kind] = cls
            _complete(cls)

    @takes_settings
    def __init__(  # noqa: PLR0913 - keywords, each documented
        self,
        label: str,
        *,
        data: Data,
        losses: AppliedLoss | Iterable[AppliedLoss] = (),
        accelerator: Any = None,
        strict: bool = False,
        policy: str | None = None,
        callbacks: Iterable[Callback] = (),
        final_device: Any = None,
        compile: str = "auto",
        residency: str = "auto",
        precision: str | None = None,
        matmul_precision: Any = None,
    ) -> None:
        """Check and store the settings."""

    @classmethod
    def from_split(cls, label: str | None = None, *, split: str, **settings: Any) -> Self:
        """Create this phase over the split with this name, in every feature set that the graph uses.

        Args:
            label: Name of the phase.
            split: Name of the split.
            settings: The other settings of the phase.
        """
        label = inspect.signature(cls).parameters["label"].default if label is None else label
        name = arguments.text(PhaseError, f"phase {label!r}: ", "split", split, "the name of a split", "'train'")
        return cls(label, data=name, **settings)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label!r})"

    def check_settings(self) -> None:
        """Check settings that depend on each other.

        Raises:
            PhaseError: some of them cannot be combined.
        """

    # -- what a phase answers when it is planned and run; a kind of phase overrides what it does otherwise ------------

    @property
    def parts(self) -> tuple[PhaseSettings, ...]:
        """The parts that are computed over separate data: the phase, and its validation if it has one."""
        return (self,) if self.validation is None else (self, self.validation)

    @property
    def all_losses(self) -> tuple[AppliedLoss, ...]:
        """The losses of the phase; for a custom step, the losses of its validation."""
        return self.losses if self.step is None or self.validation is None else self.validation.losses

    @property
    def sampled_by(self) -> Samplers | None:
        """The samplers that draw rows; None if all rows are taken unchanged."""
        return None

    def learners(self, graph: ModelGraph) -> list[str]:
        """Return the labels of the nodes that learn by `partial_fit` in each step."""
        return []

    def next_to_fit(self, graph: ModelGraph, done: Collection[str]) -> list[str]:
        """Return the labels of the nodes that are fitted at the end of the next round; `done` were fitted in earlier
        rounds.
        """
        return []

    def kept_nodes(self, graph: ModelGraph, done: Collection[str]) -> Sequence[str]:
        """Return the labels of the nodes whose outputs are copied to the host when the phase runs alone."""
        return ()

    def draw(self, rows: Mapping[str, Rows], combinations: Sequence[Combination]) -> tuple[EvaluationRows, EpochPlan]:
        """Return the rows in the order of evaluation, and the steps of each epoch.

        Args:
            rows: Rows by feature set.
            combinations: The nodes that combine several feature sets; these must contribute the same number of rows to
                each step.

        Raises:
            AnyaccelError: the samplers cannot draw from these rows, or the steps do not fit.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define the steps it takes")

    def plan_notes(self, graph: ModelGraph, done: Collection[str]) -> tuple[str, ...]:
        """Return notes for the plan that concern this phase alone."""
        return ()

    def check_monitors(self, callbacks: Iterable[Callback]) -> None:
        """Refuse callbacks that can never work; also called with the callbacks of the experiment.

        Raises:
            PhaseError: such a callback.
        """

    # -- configuration ---------------------------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """Return the phase as plain data, without its callbacks.

        Raises:
            ConfigError: data, a loss or a metric has no name.
        """
        saved = {name: setting.save(self, getattr(self, name, None)) for name, setting in self.settings.items()}
        return {"type": self.kind, **{name: value for name, value in saved.items() if value is not UNSAVED}}

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> PhaseSettings:
        """Rebuild a phase of any kind from its configuration.

        Raises:
            ConfigError: malformed, or an unknown type.
        """
        kind = config.get("type") if isinstance(config, Mapping) else None
        if isinstance(kind, str) and kind not in PhaseSettings.kinds:
            load(SAVED, f"phase.{kind}")  # its class registers itself
        if not isinstance(kind, str) or kind not in PhaseSettings.kinds:
            kinds = sorted({*PhaseSettings.kinds, *saved_names("phase")})
            available, hint = ", ".join(kinds), "pass a dict from get_config() of a phase"
            raise ConfigError(f"unknown type of phase {shown(kind)}", available=available, hint=hint)
        settings = {_RENAMED.get(key, key): value for key, value in config.items() if key != "type"}
        for key in settings:
            if key not in ("label", *_settings_of(PhaseSettings.kinds[kind])):
                error = _unknown_setting(PhaseSettings.kinds[kind], key)
                raise ConfigError(error.problem, available=error.available, hint=error.hint)
        try:
            return PhaseSettings.kinds[kind](**PhaseSettings.kinds[kind].read_settings(settings))
        except TypeError as error:
            problem = f"the configuration of a phase of type {kind!r} does not fit: {getattr(error, 'problem', error)}"
            raise ConfigError(problem, hint="pass a dict from get_config() of a phase") from None

    @classmethod
    def read_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Convert a configuration into keyword arguments."""
        return {name: cls.settings.get(name, _PLAIN).load(value) for name, value in settings.items()}


def _complete(cls: type[PhaseSettings]) -> None:
    """Complete a kind of phase: the texts that PhaseSettings has of settings, and `from_split` with all of them."""
    parameters = inspect.signature(cls.__init__).parameters
    texts = _texts(PhaseSettings) | _texts(cls)
    if "__init__" not in vars(cls) or not texts.keys() >= parameters.keys() - {"self"}:  # documented in another way
        return
    summary = inspect.cleandoc(cls.__doc__ or "").partition("Args:\n")[0]
    cls.__doc__ = f"{summary}Args:\n{''.join(texts[name] for name in parameters if name != 'self')}"
    create = inspect.unwrap(vars(PhaseSettings)["from_split"].__func__)

    def from_split(cls: Any, *args: Any, **settings: Any) -> Any:  # autodoc would read defaults in what it wraps
        return create(cls, *args, **settings)

    texts["data"] = "    split: Name of the split.\n"
    summary = inspect.cleandoc(create.__doc__ or "").partition("Args:\n")[0]
    from_split.__doc__ = f"{summary}Args:\n{''.join(texts[name] for name in parameters if name != 'self')}"
    changes: dict[str, dict[str, Any]] = {"self": {"name": "cls"}, "data": {"name": "split", "annotation": "str"}}
    from_split.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(**changes.get(name, {})) for name, parameter in parameters.items()]
    )
    from_split.__module__, from_split.__qualname__ = cls.__module__, f"{cls.__qualname__}.from_split"
    from_split.__annotations__ = {"return": cls}
    cls.from_split = classmethod(call_hints(from_split, unknown=_unknown))  # type: ignore[method-assign, assignment]


def _texts(cls: type) -> dict[str, str]:
    """Return the text of each setting that the docstring of a class has."""
    texts = inspect.cleandoc(cls.__doc__ or "").partition("Args:\n")[2]
    entries = re.split(r"(?m)^    (?=\w+: )", texts)[1:]
    return {entry.partition(":")[0]: f"    {entry.rstrip()}\n" for entry in entries}


def node_labels(phase: Any, name: str, nodes: Any) -> tuple[str, ...] | None:
    """Return labels of nodes from the argument of a phase; a string is one label.

    Raises:
        PhaseError: a label is not a string.
    """
    if nodes is None or isinstance(nodes, str):
        return None if nodes is None else (nodes,)
    labels = tuple(nodes) if isinstance(nodes, Iterable) else (nodes,)
    if not all(isinstance(label, str) for label in labels):
        raise PhaseError(f"labels of nodes must be strings, got {shown(nodes)}", hint="write ['encoder', 'head']")
    return labels


def save_labels(phase: Any, kept: tuple[str, ...] | None) -> list[str] | None:
    """Return labels as plain data."""
    return None if kept is None else list(kept)


def _settings_of(cls: type) -> list[str]:
    """Return the keyword arguments of a kind of phase, beginning with those that only it has."""
    names = [
        key
        for base in cls.__mro__[:-1]
        if "__init__" in vars(base)
        for key in inspect.signature(vars(base)["__init__"]).parameters
    ]
    return [key for key in dict.fromkeys(names) if key not in ("self", "label", "settings", "unknown")]


def _unknown_setting(cls: type[PhaseSettings], name: str) -> PhaseError:
    setting_names = _settings_of(cls)
    hints = {**PhaseSettings.misplaced_settings, **cls.misplaced_settings}
    misplaced = {word: hint for names, hint in hints.items() for word in names.split()}
    if name in misplaced:
        return PhaseError(f"{cls.__name__} has no setting {name!r}", hint=misplaced[name])
    hint = did_you_mean(name, setting_names, "use one of these", cutoff=0.6)
    return PhaseError(f"{cls.__name__} has no setting {name!r}", available=", ".join(setting_names), hint=hint)
