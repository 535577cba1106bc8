"""Recipes: optimizer, schedule and loss as values. Each backend builds its own from them, by one stated formula."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from anyaccel.errors import AnyaccelError, ConfigError, SpecError
from anyaccel.suggestions import did_you_mean

# Every setting a named optimizer knows, with its default. The formulas stand in docs/reference/formulas.md.
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
    """A factor on the learning rate as a function of the step, counted from 0 over the life of the optimizer.

    Names: `constant`; `linear(steps, final=0.0)` and `cosine(steps, final=0.0)` fall from 1 to `final` over `steps`
    and stay there; `exponential(rate, every=1)` is `rate ** (t / every)`; `step(rate, every)` is
    `rate ** (t // every)`. Each takes `warmup=n`: the first n steps rise linearly from 1/n to 1, and the rest counts
    from there.

    Raises:
        SpecError: an unknown name, an unknown or missing setting, or a count that is not positive.
    """

    name: str
    warmup: int
    settings: tuple[tuple[str, float], ...]

    def __init__(self, name: str = "constant", *, warmup: int = 0, **settings: float) -> None:
        if name not in SCHEDULES:
            raise _unknown("schedule", name, SCHEDULES)
        _check_settings(f"schedule {name!r}", settings, SCHEDULES[name])
        settings = {**_SCHEDULE_DEFAULTS.get(name, {}), **settings}
        missing = [key for key in SCHEDULES[name] if key not in settings]
        if missing:
            raise SpecError(f"schedule {name!r} lacks {', '.join(missing)}", hint=f"give {missing[0]}=...")
        counts: dict[str, Any] = {key: settings[key] for key in ("steps", "every") if key in settings}
        counts["warmup"] = warmup
        for key in ("rate", "final"):
            if key in settings and not _is_finite(settings[key], least=0):
                raise SpecError(f"schedule {name!r}: {key}={settings[key]!r} is not a finite number of at least 0")
        for key, value in counts.items():
            if not _is_count(value) or value < (0 if key == "warmup" else 1):
                raise SpecError(f"schedule {name!r}: {key}={value!r} is not a count of steps")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "warmup", int(warmup))
        object.__setattr__(self, "settings", tuple(sorted(settings.items())))

    def factor(self, step: int) -> float:
        """The factor at `step` (0 is the first), computed in float64."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        return _FACTORS[self.name](step - self.warmup, **dict(self.settings))

    def get_config(self) -> dict[str, Any]:
        """A plain dict that `from_config` reads back."""
        return {"name": self.name, "warmup": self.warmup, **dict(self.settings)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Schedule:
        """Read what `get_config` wrote."""
        made: Schedule = _built(cls, _plain(config, "a schedule"), "a schedule")
        return made


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
    """Whether something could be a framework's own optimizer: a class, a function, or an object that updates."""
    return callable(given) or (hasattr(given, "update") and not isinstance(given, Mapping))


@dataclass(frozen=True, slots=True, init=False)
class Optimizer:
    """How parameters are to be updated: by name, for every framework, or by something of a framework's own.

    Args:
        name: `sgd`, `momentum`, `adam`, `adamw`; or a class, function or object of the framework that computes the
            node, if its plugin takes one (`torch.optim.NAdam`, `optax.lion`).
        lr: learning rate, positive, 1e-3 if not given. Of an object that has a rate of its own (`optax.adam(3e-4)`) it
            is a factor on what the object changes, 1 if not given.
        opt_kwargs: further settings as a dict; the same as giving them by keyword.
        schedule: factor on `lr` over the steps; None keeps it constant.
        clip_norm: if set, gradients of all parameters of this optimizer are scaled so that their global L2 norm is
            at most this.

    Raises:
        SpecError: unknown name or setting, or a number out of range.
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
        given = {**(opt_kwargs or {}), **settings}
        lr = given.pop("lr", lr)
        own = None if isinstance(name, str) else name
        if own is not None and not is_own_optimizer(own):
            raise SpecError(
                f"an object of {type(own).__name__} is no optimizer that a graph can take",
                available=f"names: {', '.join(OPTIMIZERS)}",
                hint="give a name, or the class itself, so that every node gets one of its own",
            )
        if lr is None:
            lr = 1e-3 if own is None or callable(own) else 1.0
        text = name.lower() if isinstance(name, str) else _name_of(name)
        _positive(f"optimizer {text!r}: lr", lr)
        if clip_norm is not None:
            _positive(f"optimizer {text!r}: clip_norm", clip_norm)
        if isinstance(schedule, str):
            schedule = Schedule(schedule)
        if schedule is not None and not isinstance(schedule, Schedule):
            raise SpecError(f"optimizer {text!r}: {schedule!r} is no Schedule", available=", ".join(SCHEDULES))
        if own is None:
            given = _optimizer_settings(text, given)
        for key, value in (
            ("name", text),
            ("lr", float(lr)),
            ("settings", given),
            ("schedule", schedule or Schedule()),
            ("clip_norm", clip_norm),
            ("own", own),
        ):
            object.__setattr__(self, key, value)

    def rate(self, step: int) -> float:
        """The learning rate at `step` (0 is the first), in float64."""
        return self.lr * self.schedule.factor(step)

    def get_config(self) -> dict[str, Any]:
        """A plain dict that `from_config` reads back.

        Raises:
            ConfigError: the optimizer is a framework's own, which a configuration cannot name.
        """
        _only_named("optimizer", self.name, self.own)
        settings = {key: list(v) if isinstance(v, tuple) else v for key, v in self.settings.items()}
        schedule = self.schedule.get_config()
        return {"name": self.name, "lr": self.lr, "clip_norm": self.clip_norm, "schedule": schedule, **settings}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Optimizer:
        """Read what `get_config` wrote."""
        plain = _plain(config, "an optimizer")
        if plain.get("schedule") is not None:
            plain["schedule"] = Schedule.from_config(plain["schedule"])
        made: Optimizer = _built(cls, plain, "an optimizer")
        return made


@dataclass(frozen=True, slots=True, init=False)
class Loss:
    """What is to be made small: by name, for every framework, or as a framework's own class, object or function.

    Named losses are exact means and never broadcast: `mse` and `mae` over all elements; `cross_entropy` from logits
    [batch, classes] and integer class indices [batch] (or probabilities of the logits' shape), over samples;
    `binary_cross_entropy` from logits and targets in [0, 1], over all elements.

    Args:
        loss: a name, a loss class, an instance of one, or a function of (outputs, targets) that gives a scalar mean
            (the NumPy reference, which cannot differentiate it, takes one that gives sum, weight and gradients).
        loss_kwargs: arguments for the class, if it is one.

    Raises:
        SpecError: an unknown name, or arguments for something that takes none.
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
            raise SpecError(f"loss {name!r} was given {', '.join(kwargs)}, and takes no arguments")
        if own is not None and not callable(own):
            raise SpecError(f"{own!r} is not a loss", available=f"names: {', '.join(LOSSES)}", hint="give a callable")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "own", own)
        object.__setattr__(self, "kwargs", kwargs)

    def get_config(self) -> dict[str, Any]:
        """A plain dict that `from_config` reads back.

        Raises:
            ConfigError: the loss is not a named one.
        """
        _only_named("loss", self.name, self.own)
        return {"loss": self.name}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Loss:
        """Read what `get_config` wrote."""
        made: Loss = _built(cls, _plain(config, "a loss"), "a loss")
        return made


@dataclass(frozen=True, slots=True, init=False)
class AppliedLoss:
    """A loss at its place in a graph.

    Args:
        loss: a Loss, or anything that `Loss(...)` takes.
        on: label of the node whose output it judges; it is placed and computed with this node.
        inputs: what the loss is called with, in order: `"outputs"` (of `on`), `"outputs.NAME"`, `"targets"` (those
            that belong to the data which feeds `on`), `"FEATURE_SET.COLUMN"`, or `"FEATURE_SET.COLUMN@STREAM"` for
            another stream of the sampler than its first.
        weight: factor in the total loss, finite and not negative.
        label: name in results; `on` by default.
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
            raise SpecError(f"a loss is on={on!r}, which is no label", hint="give the label of a node")
        if isinstance(inputs, str) or not inputs or not all(isinstance(name, str) for name in inputs):
            raise SpecError(
                f"loss on {on!r}: inputs={inputs!r} is not a list of names", hint="write ['outputs', 'targets']"
            )
        if not (isinstance(weight, (int, float)) and math.isfinite(weight) and weight >= 0):
            raise SpecError(f"loss on {on!r}: weight={weight!r} is not a finite number of at least 0")
        object.__setattr__(self, "loss", loss if isinstance(loss, Loss) else Loss(loss))
        object.__setattr__(self, "on", on)
        object.__setattr__(self, "inputs", tuple(inputs))
        object.__setattr__(self, "weight", float(weight))
        object.__setattr__(self, "label", label or on)

    def get_config(self) -> dict[str, Any]:
        """A plain dict that `from_config` reads back."""
        return {
            "loss": self.loss.get_config(),
            "on": self.on,
            "inputs": list(self.inputs),
            "weight": self.weight,
            "label": self.label,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> AppliedLoss:
        """Read what `get_config` wrote."""
        plain = _plain(config, "an applied loss")
        plain["loss"] = Loss.from_config(plain.get("loss", {}))
        made: AppliedLoss = _built(cls, plain, "an applied loss")
        return made


def _optimizer_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    if name not in OPTIMIZERS:
        raise _unknown("optimizer", name, OPTIMIZERS)
    _check_settings(f"optimizer {name!r}", given, OPTIMIZERS[name], also=("lr", "schedule", "clip_norm"))
    merged = {**OPTIMIZERS[name], **given}
    if "betas" in merged:
        merged["betas"] = tuple(merged["betas"])
        if len(merged["betas"]) != 2 or not all(0 <= beta < 1 for beta in merged["betas"]):
            raise SpecError(f"optimizer {name!r}: betas={merged['betas']} are not two numbers in [0, 1)")
    if "momentum" in merged and not 0 <= merged["momentum"] < 1:
        raise SpecError(f"optimizer {name!r}: momentum={merged['momentum']} is not in [0, 1)")
    for key in ("weight_decay", "eps"):
        if key in merged and not _is_finite(merged[key], least=0):
            raise SpecError(f"optimizer {name!r}: {key}={merged[key]!r} is not a finite number of at least 0")
    if not isinstance(merged.get("nesterov", False), bool):
        raise SpecError(f"optimizer {name!r}: nesterov={merged['nesterov']!r} is neither True nor False")
    return merged


def _unknown(what: str, name: object, known: Any) -> SpecError:
    own = "" if what == "schedule" else f", or the node's own framework's {what}"
    return SpecError(
        f"no {what} is called {name!r}",
        available=", ".join(known),
        hint=did_you_mean(str(name).lower(), known, f"use one of these names{own}"),
    )


def _check_settings(what: str, given: Mapping[str, Any], known: Any, also: tuple[str, ...] = ()) -> None:
    strange = [key for key in given if key not in known]
    if strange:
        every = [*also, *known]
        short = "lr" if strange[0] in ("learning_rate", "learningrate", "step_size") else strange[0]
        raise SpecError(
            f"{what} has no setting {', '.join(strange)}",
            available=", ".join(every) or "none",
            hint=did_you_mean(short, every, ""),
        )


def _positive(what: str, value: Any) -> None:
    if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
        raise SpecError(f"{what}={value!r} is not a positive number")


def _is_finite(value: Any, least: float) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value >= least


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value == int(value)


def _built(cls: Any, plain: Mapping[str, Any], what: str) -> Any:
    """`cls(**plain)`, with unknown or missing keys told as what they are."""
    try:
        return cls(**plain)
    except TypeError as error:
        if isinstance(error, AnyaccelError):
            raise
        raise ConfigError(f"{dict(plain)!r} is not the configuration of {what}: {error}") from None


def _only_named(what: str, name: str, own: object) -> None:
    if own is not None:
        raise ConfigError(
            f"{what} {name!r} is a framework's own and has no configuration",
            hint=f"use a named {what}, or leave it out of the configuration and give it in code",
        )


def _plain(config: Mapping[str, Any], what: str) -> dict[str, Any]:
    if not isinstance(config, Mapping) or not all(isinstance(key, str) for key in config):
        raise ConfigError(f"{config!r} is not the configuration of {what}", hint="give a dict with text keys")
    return dict(config)
