"""Specs of optimizers, schedules and losses; each backend builds them with the same formulas."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from anyaccel.call_hints import constructor_hints, meant_argument
from anyaccel.errors import ConfigError, SpecError
from anyaccel.formulas import AT_LEAST_0, LOSSES, OPTIMIZERS, REQUIRED, SCHEDULES, STEPS, Hyperparameter, between
from anyaccel.install_hints import FREEZING_HINT, scheduler_hint
from anyaccel.suggestions import did_you_mean

_CLIPPING = ("clip_norm", "clip_value")
FROM_OUTPUT = "from_output"  # the name of a loss that a model computes itself
LOSS_ALIASES = {"mean_squared_error": "mse", "l2": "mse", "mean_absolute_error": "mae", "l1": "mae"}
LOSS_ALIASES |= {"ce": "cross_entropy", "bce": "binary_cross_entropy"}
_LOGITS = "write 'cross_entropy', which takes logits"
_MEANT = {f"{kind}categorical_crossentropy": _LOGITS for kind in ("", "sparse_")}
_MEANT |= dict.fromkeys(("logloss", "log_loss", "nll", "nll_loss", "nllloss", "softmax", "crossentropyloss"), _LOGITS)
_MEANT |= dict.fromkeys(("rmse", "root_mean_squared_error", "squared_error"), "write 'mse'")


@constructor_hints
class Spec:
    """Base class of specs, which read their own configuration."""

    __slots__ = ()
    _called: ClassVar[str]
    _parts: ClassVar[Mapping[str, type[Spec]]] = {}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Rebuild a spec from the output of `get_config`; raise ConfigError or SpecError for anything else."""
        hint = f"pass the dict from get_config() of {cls._called}"
        if not isinstance(config, Mapping) or not config or not all(isinstance(key, str) for key in config):
            raise ConfigError(f"{config!r} is not the configuration of {cls._called}", hint=hint)
        parts = {key: part.from_config(config[key]) for key, part in cls._parts.items() if config.get(key) is not None}
        try:
            return cls(**{**config, **parts})
        except TypeError as error:  # wrong names of settings
            raise ConfigError(f"{config!r} is not a configuration of {cls._called}: {error}", hint=hint) from None


@constructor_hints
@dataclass(frozen=True, slots=True, init=False)
class Schedule(Spec):
    """A factor on the learning rate at step t, counted from 0 over the life of the optimizer.

    Names: `constant`; `linear(steps, final=0.0)` and `cosine(steps, final=0.0)` fall from 1 to `final` over `steps` and
    stay there; `exponential(rate, every=1)` is `rate ** (t / every)`; `step(rate, every)` is `rate ** (t // every)`.
    With `warmup=n`, the factor first rises linearly from 1/n to 1 in n steps; the schedule counts its steps from there.
    Instead of a name you can pass a function of t that returns the factor.

    Raises:
        SpecError: an unknown name, an unknown or missing setting, a count that is not positive, or a negative factor.

    Example:
        >>> import anyaccel as aa
        >>> schedule = aa.Schedule("cosine", steps=100, warmup=10)
        >>> schedule.factor(0), schedule.factor(60)
        (0.1, 0.5)
    """

    _called = "a schedule"
    name: str
    warmup: int
    settings: tuple[tuple[str, float], ...]
    own: Callable[[int], float] | None

    def __init__(self, name: Any = "constant", *, warmup: int = 0, **settings: float) -> None:
        function, name = (name, _name_of(name)) if callable(name) and not isinstance(name, type) else (None, name)
        if function is None and (not isinstance(name, str) or name not in SCHEDULES):
            raise _unknown("schedule", name, SCHEDULES)
        what, takes = f"schedule {name!r}", {} if function else SCHEDULES[name].settings
        _check_names(what, settings, takes, also=("warmup",))
        missing, values = [], {}
        for key, setting in takes.items():
            values[key] = settings.get(key, setting.default)
            missing += [key] if values[key] is REQUIRED else []
        if missing:
            raise SpecError(
                f"{what} lacks {', '.join(missing)}",
                hint=f"write Schedule({name!r}, {missing[0]}={takes[missing[0]].example})",
            )
        for key in settings:
            values[key] = _checked(f"{what}: ", key, values[key], takes[key])
        warmup = int(_checked(f"{what}: ", "warmup", warmup))
        assign_fields(self, name=name, warmup=warmup, settings=tuple(sorted(values.items())), own=function)
        if function:
            self.factor(warmup)

    def factor(self, step: int) -> float:
        """Return the factor at `step` (0 is the first), computed in float64."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.own is None:
            return SCHEDULES[self.name].factor(step - self.warmup, **dict(self.settings))
        return float(_checked(f"schedule {self.name!r}: ", "factor", self.own(step - self.warmup)))

    @property
    def end(self) -> int | None:
        """The step from which the factor stays 0; None if it does not, or if the schedule is a function."""
        settings = dict(self.settings)
        return self.warmup + int(settings["steps"]) if settings.get("final") == 0 else None

    def get_config(self) -> dict[str, Any]:
        """Return a plain dict for `from_config`; raise ConfigError if the schedule is a function."""
        _check_named("schedule", self.name, self.own)
        return {"name": self.name, "warmup": self.warmup, **dict(self.settings)}


_LEFT_OUT = dict.fromkeys(("backend", "factory"), "the framework of each node builds it") | {
    "reduction": "losses are means"
}


def _name_of(own: Any) -> str:
    function = own.func if isinstance(own, functools.partial) else own
    return str(getattr(function, "__name__", type(function).__name__))


def is_own_optimizer(candidate: Any) -> bool:
    """Return whether an object could be a framework's own optimizer: a class, a function, or an object that updates."""
    updates = any(hasattr(candidate, name) for name in ("update", "apply_gradients", "param_groups"))
    return callable(candidate) or (updates and not isinstance(candidate, Mapping))


@constructor_hints
@dataclass(frozen=True, slots=True, init=False)
class Optimizer(Spec):
    """An optimizer: one by name, available in every framework, or an optimizer of a framework.

    Args:
        name: `sgd`, `momentum`, `adam` or `adamw`; or a class, function or object of the node's framework, if its
            plugin supports it (`torch.optim.NAdam`, `optax.lion`, `keras.optimizers.Adam(1e-2)`).
        lr: Learning rate, positive; 1e-3 by default. For an object that has a learning rate (`optax.adam(3e-4)`), it is
            a factor: on that rate for Keras and torch optimizers, otherwise on the updates; 1 by default.
        opt_kwargs: More settings as a dict; the same as keyword arguments.
        schedule: Factor on `lr` over the steps, or on the rates that a class sets for its groups; None is constant.
        clip_norm: Maximum global L2 norm of the gradients of this optimizer's parameters; larger gradients are scaled
            down. By default the `global_clipnorm` of an object that has one.
        clip_value: Maximum absolute value of each element of these gradients. Set at most one of the two.
        groups: Settings by pattern of names, or by function of (name, parameter): `{"*bias": {"weight_decay": 0.0}}`.

    Raises:
        SpecError: an unknown name or setting, or a number out of range.

    Example:
        >>> import anyaccel as aa
        >>> adamw = aa.Optimizer("adamw", lr=1e-2, weight_decay=0.1, schedule=aa.Schedule("linear", steps=100))
        >>> adamw.rate(50)
        0.005
    """

    _called = "an optimizer"
    _parts: ClassVar = {"schedule": Schedule}
    name: str
    lr: float
    settings: Mapping[str, Any] = field(hash=False)
    schedule: Schedule
    clip_norm: float | None
    clip_value: float | None
    own: Any
    groups: tuple[tuple[str | Callable[[str, Any], bool], Optimizer], ...]

    def __init__(
        self,
        name: Any = "adam",
        lr: float | None = None,
        *,
        opt_kwargs: Mapping[str, Any] | None = None,
        schedule: Schedule | str | Callable[[int], float] | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        groups: Mapping[Any, Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> None:
        if opt_kwargs is not None:
            settings = {**_checked("", "opt_kwargs", opt_kwargs), **settings}
        lr = settings.pop("lr", lr)
        custom = None if isinstance(name, str) else name
        finished = None if callable(custom) else custom
        if custom is not None and not is_own_optimizer(custom):
            problem = f"an object of type {type(custom).__name__} cannot be used as an optimizer"
            hint = "pass a name, or the optimizer's class, so that every node gets a separate instance"
            raise SpecError(problem, available=f"names: {', '.join(OPTIMIZERS)}", hint=hint)
        text = name.lower() if isinstance(name, str) else _name_of(name)
        where = f"optimizer {text!r}: "
        for key, rate in (("lr", lr), ("learning_rate", settings.get("learning_rate"))):
            if callable(rate):
                raise SpecError(
                    f"{where}{key} is a {type(rate).__name__}, but lr must be a number",
                    hint=f"write lr=1.0, schedule=... with this value of {key}, a function of the step",
                )
        if custom is not None and "learning_rate" in settings:
            rate = settings["learning_rate"]
            raise SpecError(f"{where}the learning rate is called lr", hint=f"write lr={rate!r}, without learning_rate")
        if clip_norm is None and clip_value is None:
            clip_norm = getattr(finished, "global_clipnorm", None) or None
        elif getattr(finished, "global_clipnorm", None):
            raise SpecError(
                f"{where}it clips by both its global_clipnorm and {'clip_norm' if clip_norm else 'clip_value'}",
                hint="leave one of them out",
            )
        if isinstance(lr, (int, float)) and lr == 0:
            raise SpecError(f"{where}lr={lr!r} is not a positive number", hint=f"write lr=0.001, or {FREEZING_HINT}")
        usual_lr = 1e-3 if custom is None or callable(custom) else 1.0
        lr = usual_lr if lr is None else _checked(where, "lr", lr)
        clip_norm = None if clip_norm is None else _checked(where, "clip_norm", clip_norm)
        clip_value = None if clip_value is None else _checked(where, "clip_value", clip_value)
        if clip_norm is not None and clip_value is not None:
            raise SpecError(f"{where}clip_norm and clip_value are both set", hint="leave one of them out")
        named = "constant" if schedule is None else schedule
        schedule = named if isinstance(named, Schedule) else Schedule(named)
        if custom is None:
            if text not in OPTIMIZERS:
                raise _unknown("optimizer", text, OPTIMIZERS)
            takes = OPTIMIZERS[text].settings
            _check_names(f"optimizer {text!r}", settings, takes, also=("lr", "schedule", *_CLIPPING))
            chosen, settings = settings, {}
            for key, setting in takes.items():
                is_usual = key not in chosen and setting.default is not REQUIRED
                value = chosen.get(key, setting.default)
                settings[key] = value if is_usual else _checked(where, key, value, setting)
        made = []
        if groups is not None:
            usual = {"lr": lr, "schedule": schedule, **settings}
            for pattern, group in _checked(where, "groups", groups).items():
                made.append((pattern, Optimizer(name, **{**usual, **group})))
        assign_fields(
            self,
            name=text,
            lr=float(lr),
            settings=settings,
            schedule=schedule,
            clip_norm=clip_norm,
            clip_value=clip_value,
            own=custom,
            groups=tuple(made),
        )

    def rate(self, step: int) -> float:
        """Return the learning rate at `step` (0 is the first), in float64."""
        return self.lr * self.schedule.factor(step)

    def get_config(self) -> dict[str, Any]:
        """Return a plain dict for `from_config`; raise ConfigError for an optimizer of a framework."""
        _check_named("optimizer", self.name, self.own)
        plain = {key: getattr(self, key) for key in ("name", "lr", *_CLIPPING)} | {**self.settings}
        for key, _ in self.groups:
            _check_named("the predicate of an optimizer's group", _name_of(key), None if isinstance(key, str) else key)
        plain = {key: list(v) if isinstance(v, tuple) else v for key, v in plain.items()}
        groups = {key: {"lr": group.lr, **group.settings} for key, group in self.groups}
        return {**plain, "schedule": self.schedule.get_config(), "groups": groups}


@constructor_hints
@dataclass(frozen=True, slots=True, init=False)
class Loss(Spec):
    """A loss: one by name, available in every framework, or a class, object or function of a framework.

    Named losses are exact means over the elements or positions that count, and they never broadcast. `mse` and `mae`
    average over elements. `cross_entropy` takes logits [batch, ..., classes] and integer class indices [batch, ...] (or
    probabilities in the shape of the logits) and averages over positions. `binary_cross_entropy` takes logits and
    targets in [0, 1] and averages over elements.

    Args:
        loss: A name, a loss class, an instance of one, or a function of (outputs, targets) that returns a scalar mean.
            A function whose parameters are named as in Keras (`y_true`, then `y_pred`; `labels`, then `logits`; `y`,
            then `y_hat`) receives the targets first.
            On the NumPy backend, which cannot differentiate, the function returns sum, weight and gradients.
        loss_kwargs: Arguments for the class, if `loss` is one.
        settings: For `cross_entropy`: `ignore_index`, a target that is ignored; `class_weights`, one weight per class
            for the mean; `class_axis`, the axis of the classes with the batch as 0, such as 1 in [batch, classes, ...];
            `label_smoothing`, the fraction of a target that is spread over all classes.

    Raises:
        SpecError: an unknown name or setting, or a value out of range.

    Example:
        >>> import anyaccel as aa
        >>> aa.Loss("cross_entropy", label_smoothing=0.1).get_config()
        {'loss': 'cross_entropy', 'label_smoothing': 0.1}
    """

    _called = "a loss"
    name: str
    own: Any
    kwargs: Mapping[str, Any] = field(hash=False)

    def __init__(self, loss: Any = "mse", *, loss_kwargs: Mapping[str, Any] | None = None, **settings: Any) -> None:
        custom, name = (None, loss.lower()) if isinstance(loss, str) else (loss, _name_of(loss))
        name = LOSS_ALIASES.get(name, name) if custom is None else name
        if custom is None and name not in (*LOSSES, FROM_OUTPUT):
            raise _unknown("loss", loss, LOSSES)
        takes = LOSSES[name].settings if custom is None and name in LOSSES else {}
        _check_names(f"Loss({loss!r})", settings, takes, also=("loss_kwargs",))
        kwargs = {} if loss_kwargs is None else dict(_checked("", "loss_kwargs", loss_kwargs))
        if kwargs and not isinstance(custom, type):
            raise SpecError(f"loss {name!r} takes no arguments, got {', '.join(kwargs)}", hint="leave loss_kwargs out")
        if custom is not None and not callable(custom):
            raise SpecError(f"{custom!r} is not a loss", available=", ".join(LOSSES), hint="pass a name or a callable")
        for key, value in settings.items():
            checked = None if value is None else _checked(f"loss {name!r}: ", key, value, takes[key])
            if value is not None and checked != takes[key].default:
                kwargs[key] = checked
        assign_fields(self, name=name, own=custom, kwargs=kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return a plain dict for `from_config`; raise ConfigError if this is not a named loss."""
        _check_named("loss", self.name, self.own)
        return {"loss": self.name, **{key: list(v) if isinstance(v, tuple) else v for key, v in self.kwargs.items()}}


def takes_classes(loss: Loss) -> bool:
    """Return whether this is a named loss whose outputs have an axis of classes."""
    return loss.own is None and loss.name in LOSSES and LOSSES[loss.name].takes_classes


_TARGETS = (
    *("y_true", "ytrue", "y_actual", "target", "label", "actual", "truth", "true", "ground_truth", "reference"),
    *("expected", "observed"),
)
_OUTPUTS = ("y_pred", "ypred", "y_hat", "yhat", "y_score", "y_prob", "pred", "output", "logit", "score", "prob")
_ONLY_TARGETS, _ONLY_OUTPUTS = ("y", "gt"), ("p", "out")  # which begin other words, too


def takes_targets_first(function: Any) -> bool:
    """Return whether the parameters of a function are named as in scikit-learn and Keras: `y_true`, then `y_pred`; or
    `labels`, then `logits`; or `y`, then `y_hat`.

    Example:
        >>> from anyaccel.specs import takes_targets_first
        >>> takes_targets_first(lambda y_true, y_pred: 0), takes_targets_first(lambda outputs, targets: 0)
        (True, False)
    """
    try:
        first, second = [*inspect.signature(function).parameters, "", ""][:2]
    except (TypeError, ValueError):  # a builtin
        return False
    is_target = first.startswith(_TARGETS) or first in _ONLY_TARGETS
    return is_target and (second.startswith(_OUTPUTS) or second in _ONLY_OUTPUTS)


@dataclass(frozen=True, slots=True)
class InGivenOrder:
    """A function that is called with its inputs in the order in which the user listed them, whatever their names."""

    function: Callable[..., Any]

    @property
    def __name__(self) -> str:
        return _name_of(self.function)

    def __call__(self, *inputs: Any) -> Any:
        """Call the function."""
        return self.function(*inputs)


@dataclass(frozen=True, slots=True)
class LossTargets:
    """The targets that a framework's loss accepts; see `Compute.loss_targets`.

    Attributes:
        kind: `"probabilities"` (each from 0 to 1), `"classes"` (indices, or floats that are probabilities of the
            classes), `"signs"` (-1 or 1), `"non_negative"` or `"numbers"` (any). Except for classes, columns are loaded
            as floats.
        class_axis: Axis of the classes in the outputs, where 0 is the batch.
        ignored: A class index that is ignored and may be out of range; None for no such index.
        form: How classes are given, if the loss takes them in one form only: `"indices"` or `"probabilities"`.

    Example:
        `LossTargets("classes", class_axis=1, ignored=-100)` describes `torch.nn.CrossEntropyLoss()`.
    """

    kind: str
    class_axis: int = -1
    ignored: int | None = None
    form: str = ""


_IS_POSITIVE = between(5e-324)
_POSITIVE = Hyperparameter(None, lambda it: it is None or _IS_POSITIVE(it), "is not a positive number", 0.001)
_KWARGS = Hyperparameter(None, lambda it: all(map(str.isidentifier, {**it})), "is not a dict of settings", {"lr": 0.1})
# What specs have besides the settings of a formula.
_ARGUMENTS: Mapping[str, Hyperparameter] = {
    **dict.fromkeys(("lr", *_CLIPPING), _POSITIVE),
    **dict.fromkeys(("opt_kwargs", "loss_kwargs"), _KWARGS),
    "warmup": STEPS._replace(fits=between(0, whole=True)),
    "factor": AT_LEAST_0._replace(fits=lambda it: between(0)(float(it))),
    "groups": Hyperparameter(
        None,
        lambda it: all(
            isinstance(pattern, str | Callable) and {**group}.keys().isdisjoint(("schedule", "groups", *_CLIPPING))
            for pattern, group in {**it}.items()
        ),
        "has no settings by pattern",
        {"*bias": {"lr": 0.1}},
    ),
}


def _checked(where: str, name: str, value: Any, setting: Hyperparameter | None = None) -> Any:
    """Return a value that fits, a list as a tuple, and a number of NumPy as one of Python."""
    setting = setting or _ARGUMENTS[name]
    value = value.tolist() if hasattr(value, "tolist") else value
    with suppress(TypeError, ValueError, OverflowError):
        if setting.fits(value):
            return tuple(value) if isinstance(value, list) else value
    raise SpecError(f"{where}{name}={value!r} {setting.complaint}", hint=f"write {name}={setting.example}")


def _unknown(what: str, name: object, known: Any) -> SpecError:
    alternative = "" if what == "schedule" else f", or the node's own framework's {what}"
    hint = scheduler_hint(name) if what == "schedule" else ""
    hint = hint or _MEANT.get(str(name).lower(), "")
    hint = hint or did_you_mean(str(name).lower(), known, f"use one of these names{alternative}")
    return SpecError(f"no {what} is called {name!r}", available=", ".join(known), hint=hint)


def _check_names(what: str, settings: Mapping[str, Any], known: Any, also: tuple[str, ...] = ()) -> None:
    if not settings.keys() <= known.keys():
        unknown, available = [key for key in settings if key not in known], [*also, *known]
        left = _LEFT_OUT.get(unknown[0])
        hint = f"leave it out: {left}" if left else meant_argument(unknown[0], available, otherwise="leave it out")
        problem = f"{what} has no setting {', '.join(unknown)}"
        raise SpecError(problem, available=", ".join(available), hint=hint)


def assign_fields(spec: Any, /, **values: Any) -> None:
    """Set the fields of a frozen dataclass in its constructor."""
    for name, value in values.items():
        object.__setattr__(spec, name, value)


def _check_named(what: str, name: str, own: object) -> None:
    if own is not None:
        hint = f"use a named {what}, or leave it out of the configuration and pass it in code"
        raise ConfigError(f"{what} {name!r} belongs to a framework and has no configuration", hint=hint)
