"""Specs of optimizers, schedules and losses, from which each backend builds its own by the same formula."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from anyaccel.errors import AnyaccelError, ConfigError, SpecError
from anyaccel.suggestions import did_you_mean

Spec = TypeVar("Spec")

# Settings of each named optimizer with their defaults; docs/reference/formulas.md has the formulas.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0},
    "momentum": {"momentum": 0.9, "nesterov": False, "weight_decay": 0.0},
    "adam": {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0},
    "adamw": {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01},
}
SCHEDULES: dict[str, tuple[str, ...]] = {
    "constant": (),
    "linear": ("steps", "final"),
    "cosine": ("steps", "final"),
    "exponential": ("rate", "every"),
    "step": ("rate", "every"),
}
LOSSES = ("mse", "mae", "cross_entropy", "binary_cross_entropy")
LOSS_ALIASES = {
    "mean_squared_error": "mse",
    "l2": "mse",
    "mean_absolute_error": "mae",
    "l1": "mae",
    "ce": "cross_entropy",
    "bce": "binary_cross_entropy",
}


@dataclass(frozen=True, slots=True, init=False)
class Schedule:
    """A factor on the learning rate at step t, counted from 0 over the life of the optimizer.

    Names: `constant`; `linear(steps, final=0.0)` and `cosine(steps, final=0.0)` fall from 1 to `final` over `steps`
    and stay there; `exponential(rate, every=1)` is `rate ** (t / every)`; `step(rate, every)` is
    `rate ** (t // every)`. With `warmup=n`, the factor first rises linearly from 1/n to 1 in n steps; the schedule
    counts its steps from there.

    Raises:
        SpecError: an unknown name, an unknown or missing setting, or a count that is not positive.
    """

    name: str
    warmup: int
    settings: tuple[tuple[str, float], ...]

    def __init__(self, name: str = "constant", *, warmup: int = 0, **settings: float) -> None:
        if name not in SCHEDULES:
            raise _unknown("schedule", name, SCHEDULES)
        what = f"schedule {name!r}"
        _check_names(what, settings, SCHEDULES[name])
        settings = {**_SCHEDULE_DEFAULTS.get(name, {}), **settings}
        missing = [key for key in SCHEDULES[name] if key not in settings]
        if missing:
            raise SpecError(f"{what} lacks {', '.join(missing)}", hint=f"give {missing[0]}=...")
        for key in ("rate", "final"):
            _check_range(what, key, settings.get(key, 0))
        for key in ("steps", "every"):
            _check_count(what, key, settings.get(key, 1), least=1)
        _check_count(what, "warmup", warmup, least=0)
        _assign(self, name=name, warmup=int(warmup), settings=tuple(sorted(settings.items())))

    def factor(self, step: int) -> float:
        """The factor at `step` (0 is the first), computed in float64."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        return _FACTORS[self.name](step - self.warmup, **dict(self.settings))

    def get_config(self) -> dict[str, Any]:
        """A plain dict for `from_config`."""
        return {"name": self.name, "warmup": self.warmup, **dict(self.settings)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Schedule:
        """The spec of a configuration from `get_config`."""
        return _built(cls, config, "a schedule")


_SCHEDULE_DEFAULTS: dict[str, dict[str, float]] = {
    "linear": {"final": 0.0},
    "cosine": {"final": 0.0},
    "exponential": {"every": 1},
}
_FACTORS: dict[str, Callable[..., float]] = {
    "constant": lambda t: 1.0,
    "linear": lambda t, steps, final: 1.0 + (final - 1.0) * min(t / steps, 1.0),
    "cosine": lambda t, steps, final: final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * min(t / steps, 1.0))),
    "exponential": lambda t, rate, every: rate ** (t / every),
    "step": lambda t, rate, every: rate ** (t // every),
}


def _name_of(own: Any) -> str:
    function = own.func if isinstance(own, functools.partial) else own
    return str(getattr(function, "__name__", type(function).__name__))


def is_own_optimizer(given: Any) -> bool:
    """Whether an object could be a framework's own optimizer: a class, a function, or an object with `update`."""
    return callable(given) or (hasattr(given, "update") and not isinstance(given, Mapping))


@dataclass(frozen=True, slots=True, init=False)
class Optimizer:
    """An optimizer: one by name, available in every framework, or a framework's own.

    Args:
        name: `sgd`, `momentum`, `adam`, `adamw`; or a class, function or object of the node's framework, if its plugin
            supports it (`torch.optim.NAdam`, `optax.lion`).
        lr: learning rate, positive; 1e-3 by default. For an object with a rate of its own (`optax.adam(3e-4)`), a
            factor on its updates; 1 by default.
        opt_kwargs: further settings as a dict; the same as keyword arguments.
        schedule: factor on `lr` over the steps; None is constant.
        clip_norm: the largest global L2 norm of the gradients of this optimizer's parameters; larger ones are scaled.

    Raises:
        SpecError: an unknown name or setting, or a number out of range.
    """

    name: str
    lr: float
    settings: Mapping[str, Any] = field(hash=False)
    schedule: Schedule
    clip_norm: float | None
    own: Any

    def __init__(
        self,
        name: Any = "adam",
        lr: float | None = None,
        *,
        opt_kwargs: Mapping[str, Any] | None = None,
        schedule: Schedule | str | None = None,
        clip_norm: float | None = None,
        **settings: Any,
    ) -> None:
        settings = {**(opt_kwargs or {}), **settings}
        lr = settings.pop("lr", lr)
        own = None if isinstance(name, str) else name
        if own is not None and not is_own_optimizer(own):
            raise SpecError(
                f"an object of type {type(own).__name__} cannot be used as an optimizer",
                available=f"names: {', '.join(OPTIMIZERS)}",
                hint="give a name, or the optimizer's class, so that every node gets an instance of its own",
            )
        if lr is None:
            lr = 1e-3 if own is None or callable(own) else 1.0
        text = name.lower() if isinstance(name, str) else _name_of(name)
        _check_positive(f"optimizer {text!r}: lr", lr)
        if clip_norm is not None:
            _check_positive(f"optimizer {text!r}: clip_norm", clip_norm)
        schedule = Schedule(schedule or "constant") if schedule is None or isinstance(schedule, str) else schedule
        if not isinstance(schedule, Schedule):
            raise SpecError(f"optimizer {text!r}: {schedule!r} is not a Schedule", available=", ".join(SCHEDULES))
        settings = _optimizer_settings(text, settings) if own is None else settings
        _assign(self, name=text, lr=float(lr), settings=settings, schedule=schedule, clip_norm=clip_norm, own=own)

    def rate(self, step: int) -> float:
        """The learning rate at `step` (0 is the first), in float64."""
        return self.lr * self.schedule.factor(step)

    def get_config(self) -> dict[str, Any]:
        """A plain dict for `from_config`.

        Raises:
            ConfigError: the optimizer is a framework's own, which a configuration cannot name.
        """
        _check_named("optimizer", self.name, self.own)
        settings = {key: list(v) if isinstance(v, tuple) else v for key, v in self.settings.items()}
        schedule = self.schedule.get_config()
        return {"name": self.name, "lr": self.lr, "clip_norm": self.clip_norm, "schedule": schedule, **settings}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Optimizer:
        """The spec of a configuration from `get_config`."""
        return _built(cls, config, "an optimizer", schedule=Schedule.from_config)


@dataclass(frozen=True, slots=True, init=False)
class Loss:
    """A loss: one by name, available in every framework, or a framework's own class, object or function.

    Named losses are exact means and never broadcast: `mse` and `mae` over all elements; `cross_entropy` of logits
    [batch, classes] and integer class indices [batch] (or probabilities of the logits' shape), over samples;
    `binary_cross_entropy` of logits and targets in [0, 1], over all elements.

    Args:
        loss: a name, a loss class, an instance of one, or a function of (outputs, targets) that gives a scalar mean
            (on the NumPy backend, which cannot differentiate it: sum, weight and gradients).
        loss_kwargs: arguments for the class, if `loss` is one.

    Raises:
        SpecError: an unknown name, or arguments for a loss that takes none.
    """

    name: str
    own: Any
    kwargs: Mapping[str, Any] = field(hash=False)

    def __init__(self, loss: Any = "mse", *, loss_kwargs: Mapping[str, Any] | None = None) -> None:
        kwargs = dict(loss_kwargs or {})
        if isinstance(loss, str):
            name = LOSS_ALIASES.get(loss.lower(), loss.lower())
            if name not in LOSSES:
                raise _unknown("loss", loss, LOSSES)
            own = None
        else:
            name, own = getattr(loss, "__name__", type(loss).__name__), loss
        if kwargs and not isinstance(own, type):
            raise SpecError(f"loss {name!r} takes no arguments, got {', '.join(kwargs)}")
        if own is not None and not callable(own):
            raise SpecError(f"{own!r} is not a loss", available=f"names: {', '.join(LOSSES)}", hint="give a callable")
        _assign(self, name=name, own=own, kwargs=kwargs)

    def get_config(self) -> dict[str, Any]:
        """A plain dict for `from_config`.

        Raises:
            ConfigError: the loss is not a named one.
        """
        _check_named("loss", self.name, self.own)
        return {"loss": self.name}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Loss:
        """The spec of a configuration from `get_config`."""
        return _built(cls, config, "a loss")


@dataclass(frozen=True, slots=True, init=False)
class AppliedLoss:
    """A loss applied to the output of a node in a graph.

    Args:
        loss: a Loss, or what `Loss(...)` takes.
        on: label of the node whose output it takes; it is computed on this node's device.
        inputs: the arguments of the loss, in order: `"outputs"` (of `on`), `"outputs.NAME"`, `"targets"` (of the data
            that feed `on`), `"FEATURE_SET.COLUMN"`, or `"FEATURE_SET.COLUMN@STREAM"` for another stream of the sampler
            than its first.
        weight: factor in the total loss, finite and not negative.
        label: name in results; `on` by default.

    Raises:
        SpecError: an argument of the wrong type or out of range.
    """

    loss: Loss
    on: str
    inputs: tuple[str, ...]
    weight: float
    label: str

    def __init__(
        self,
        loss: Any,
        on: str,
        inputs: tuple[str, ...] | list[str] = ("outputs", "targets"),
        weight: float = 1.0,
        label: str | None = None,
    ) -> None:
        if not isinstance(on, str):
            raise SpecError(f"AppliedLoss: on={on!r} is not a label", hint="give the label of a node")
        if isinstance(inputs, str) or not inputs or not all(isinstance(name, str) for name in inputs):
            raise SpecError(
                f"loss on {on!r}: inputs={inputs!r} is not a list of names", hint="write ['outputs', 'targets']"
            )
        _check_range(f"loss on {on!r}", "weight", weight)
        loss = loss if isinstance(loss, Loss) else Loss(loss)
        _assign(self, loss=loss, on=on, inputs=tuple(inputs), weight=float(weight), label=label or on)

    def get_config(self) -> dict[str, Any]:
        """A plain dict for `from_config`."""
        values = {"on": self.on, "inputs": list(self.inputs), "weight": self.weight, "label": self.label}
        return {"loss": self.loss.get_config(), **values}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> AppliedLoss:
        """The spec of a configuration from `get_config`."""
        return _built(cls, config, "an applied loss", loss=Loss.from_config)


def _optimizer_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a named optimizer with its defaults, checked."""
    if name not in OPTIMIZERS:
        raise _unknown("optimizer", name, OPTIMIZERS)
    what = f"optimizer {name!r}"
    _check_names(what, given, OPTIMIZERS[name], also=("lr", "schedule", "clip_norm"))
    settings = {**OPTIMIZERS[name], **given}
    if "betas" in settings:
        settings["betas"] = tuple(settings["betas"])
        if len(settings["betas"]) != 2 or not all(0 <= beta < 1 for beta in settings["betas"]):
            raise SpecError(f"{what}: betas={settings['betas']} are not two numbers in [0, 1)")
    if not 0 <= settings.get("momentum", 0) < 1:
        raise SpecError(f"{what}: momentum={settings['momentum']} is not in [0, 1)")
    for key in ("weight_decay", "eps"):
        _check_range(what, key, settings.get(key, 0))
    if not isinstance(settings.get("nesterov", False), bool):
        raise SpecError(f"{what}: nesterov must be True or False, got {settings['nesterov']!r}")
    return settings


def _unknown(what: str, name: object, known: Any) -> SpecError:
    own = "" if what == "schedule" else f", or the node's own framework's {what}"
    hint = did_you_mean(str(name).lower(), known, f"use one of these names{own}")
    return SpecError(f"no {what} is called {name!r}", available=", ".join(known), hint=hint)


def _check_names(what: str, given: Mapping[str, Any], known: Any, also: tuple[str, ...] = ()) -> None:
    unknown, available = [key for key in given if key not in known], [*also, *known]
    if unknown:
        meant = "lr" if unknown[0] in ("learning_rate", "learningrate", "step_size") else unknown[0]
        raise SpecError(
            f"{what} has no setting {', '.join(unknown)}",
            available=", ".join(available) or "none",
            hint=did_you_mean(meant, available, ""),
        )


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _check_positive(what: str, value: Any) -> None:
    if not (_is_finite(value) and value > 0):
        raise SpecError(f"{what}={value!r} is not a positive number")


def _check_range(what: str, key: str, value: Any) -> None:
    if not (_is_finite(value) and value >= 0):
        raise SpecError(f"{what}: {key}={value!r} is not a finite number of at least 0")


def _check_count(what: str, key: str, value: Any, least: int) -> None:
    if not (_is_finite(value) and value == int(value) and value >= least):
        raise SpecError(f"{what}: {key}={value!r} is not a number of steps")


def _assign(spec: Any, **values: Any) -> None:
    """Set the fields of a frozen dataclass in its constructor."""
    for name, value in values.items():
        object.__setattr__(spec, name, value)


def _built(cls: type[Spec], config: Any, what: str, **parts: Callable[[Any], Any]) -> Spec:
    """`cls(**config)`, with each part read by its own function; a wrong type or wrong keys are a ConfigError."""
    if not isinstance(config, Mapping) or not all(isinstance(key, str) for key in config):
        raise ConfigError(f"{config!r} is not the configuration of {what}", hint="give a dict with text keys")
    read = {key: part(config.get(key, {})) for key, part in parts.items() if config.get(key, {}) is not None}
    try:
        return cls(**{**config, **read})
    except TypeError as error:
        if isinstance(error, AnyaccelError):
            raise
        raise ConfigError(f"{dict(config)!r} is not the configuration of {what}: {error}") from None


def _check_named(what: str, name: str, own: object) -> None:
    if own is not None:
        raise ConfigError(
            f"{what} {name!r} is a framework's own and has no configuration",
            hint=f"use a named {what}, or leave it out of the configuration and give it in code",
        )
