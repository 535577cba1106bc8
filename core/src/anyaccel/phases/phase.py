"""Phases as values: what is to be done with a graph. They do not know how they are carried out."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

from anyaccel.accelerator import Accelerator
from anyaccel.errors import ConfigError, PhaseError
from anyaccel.graph.nodes import check_label
from anyaccel.phases.callbacks import Callback
from anyaccel.specs import AppliedLoss
from anyaccel.suggestions import did_you_mean

MODES = ("auto", "off", "steps")
RESIDENCIES = ("auto", "resident", "streamed")

Data = Any
"""The name of a split, a feature set or a view of one, a source or what can be one, or a mapping from each feature
set's label to one of these."""


class Phase:
    """What every phase has.

    Args:
        label: its name; training phases of one label count their epochs together.
        data: the name of a split that every feature set has, a FeatureSet or view, or a mapping from the label of
            each feature set to one of these. Also a source, or what `anyaccel.IterableSource` or `anyaccel.MapSource` takes (a
            DataLoader, a data set, a generator function): a TrainPhase streams it, other phases read it into memory.
        losses: AppliedLoss objects, or one of them.
        accelerator: where nodes without an accelerator of their own are computed: an Accelerator, a Device or its
            spelling. A wish: a node whose framework is not served there runs on the CPU, is noted in the plan, and
            warned of once.
        strict: makes that an error.
        policy: name of a placement policy of a plugin, for nodes without an accelerator of their own.
        callbacks: objects of Callback; their methods are the moments of the phase.
        final_device: device to which the nodes are moved when the phase has ended; by default they stay where they are.
        compile: `"auto"` compiles what pays, and says why or why not in `run.events`; `"off"` compiles nothing, and
            imports no compiler; `"steps"` compiles whole training steps before the first of them. All give the same
            numbers but for rounding.
        residency: `"resident"` keeps all rows on the devices; `"streamed"` keeps them in host memory and sends them
            ahead of the compute; `"auto"` decides from free memory, and says so in `run.events`. All give the same
            numbers.
    """

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Phase]]] = {}
    """Every kind of phase by its word."""
    elsewhere: ClassVar[Mapping[str, str]] = {}
    """What to write instead of settings that other kinds of phase, or other libraries, have."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in vars(cls):  # what a user derives from one of them is of its kind
            Phase.kinds[cls.kind] = cls

    def __init__(
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
        **unknown: Any,
    ) -> None:
        self.label = check_label(label, "a phase")
        if unknown:
            raise _unknown_setting(type(self), next(iter(unknown)))
        self.data = data
        self.losses = (losses,) if isinstance(losses, AppliedLoss) else _several(label, "losses", losses)
        self.accelerator = None if accelerator is None else Accelerator.of(accelerator)
        self.strict = strict
        self.policy = policy
        self.callbacks = _several(label, "callbacks", callbacks)
        self.final_device = None if final_device is None else Accelerator.of(final_device)
        self.compile = one_of(label, "compile", compile, MODES)
        self.residency = one_of(label, "residency", residency, RESIDENCIES)
        self._check()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label!r})"

    def _check(self) -> None:
        for loss in self.losses:
            if not isinstance(loss, AppliedLoss):
                raise PhaseError(
                    f"phase {self.label!r}: {loss!r} is no AppliedLoss", hint="write AppliedLoss('mse', on='NODE')"
                )
        labels = [loss.label for loss in self.losses]
        twice = {label for label in labels if labels.count(label) > 1}
        if twice:
            raise PhaseError(
                f"phase {self.label!r} has two losses called {', '.join(sorted(twice))}", hint="give each a label="
            )
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                made = isinstance(callback, type) and issubclass(callback, Callback)
                remedy = f"make one: {callback.__name__}()" if made else "derive it from anyaccel.Callback"
                raise PhaseError(f"phase {self.label!r}: {callback!r} is no Callback", hint=remedy)

    @classmethod
    def from_split(cls, label: str, *, split: str, **settings: Any) -> Self:
        """A phase over the split of this name, of every feature set that the graph refers to."""
        return cls(label, data=split, **settings)

    def get_config(self) -> dict[str, Any]:
        """The phase as plain data. Callbacks are code and are left out.

        Raises:
            ConfigError: data, a loss or a metric that has no name.
        """
        return {
            "type": self.kind,
            "label": self.label,
            "data": _data_config(self.label, self.data),
            "losses": [loss.get_config() for loss in self.losses],
            "accelerator": self.accelerator.get_config() if self.accelerator else None,
            "strict": self.strict,
            "policy": self.policy,
            "final_device": self.final_device.get_config() if self.final_device else None,
            "compile": self.compile,
            "residency": self.residency,
        }

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Phase:
        """Read what `get_config` of any phase wrote.

        Raises:
            ConfigError: malformed, or of an unknown type.
        """
        kind = config.get("type") if isinstance(config, Mapping) else None
        if not isinstance(kind, str) or kind not in Phase.kinds:
            raise ConfigError(f"a phase's type is {kind!r}", available=", ".join(Phase.kinds))
        settings = {key: value for key, value in config.items() if key != "type"}
        for key in settings:
            if key not in ("label", *_settings_of(Phase.kinds[kind])):
                error = _unknown_setting(Phase.kinds[kind], key)
                raise ConfigError(error.problem, available=error.available, hint=error.hint)
        try:
            settings["losses"] = [AppliedLoss.from_config(one) for one in settings.get("losses", ())]
            for key in ("accelerator", "final_device"):
                if settings.get(key) is not None:
                    settings[key] = Accelerator.from_config(settings[key])
            return Phase.kinds[kind](**Phase.kinds[kind].read_settings(settings))
        except TypeError as error:
            raise ConfigError(f"the configuration of a phase of type {kind!r} does not fit: {error}") from None

    @classmethod
    def read_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """The keywords of this kind of phase from what a configuration holds; the common ones are read already."""
        return settings


def one_of(label: str, name: str, given: Any, words: tuple[str, ...]) -> str:
    """A setting that is one of some words.

    Raises:
        PhaseError: it is none of them.
    """
    if given in words:
        return str(given)
    raise PhaseError(
        f"phase {label!r}: {name}={given!r}",
        available=", ".join(map(repr, words)),
        hint=did_you_mean(given, words, "use one of these"),
    )


def _several(label: str, name: str, given: Any) -> tuple[Any, ...]:
    if not isinstance(given, Iterable) or isinstance(given, (str, Mapping)):
        raise PhaseError(
            f"phase {label!r}: {name}={given!r} is one thing, not several", hint=f"write {name}=[...] with brackets"
        )
    return tuple(given)


def _settings_of(cls: type) -> list[str]:
    """The keywords of a kind of phase, its own first."""
    known = [key for one in cls.__mro__[:-1] for key in inspect.signature(one.__dict__["__init__"]).parameters]
    return [key for key in dict.fromkeys(known) if key not in ("self", "label", "settings", "unknown")]


def _unknown_setting(cls: type[Phase], name: str) -> PhaseError:
    """The error for a keyword that a kind of phase does not have, with the closest."""
    there = _settings_of(cls)
    if name in cls.elsewhere:
        return PhaseError(f"{cls.__name__} has no setting {name!r}", hint=cls.elsewhere[name])
    remedy = did_you_mean(name, there, "use one of these", cutoff=0.4)
    return PhaseError(f"{cls.__name__} has no setting {name!r}", available=", ".join(there), hint=remedy)


def _data_config(label: str, data: Data) -> Any:
    if isinstance(data, str):
        return data
    if isinstance(data, Mapping):
        return {name: _data_config(label, one) for name, one in data.items()}
    name = getattr(data, "name", None)
    registered = getattr(getattr(data, "feature_set", None), "splits", {}).get(name)
    if registered is None or registered is not data:
        raise ConfigError(
            f"phase {label!r} runs over data that have no name", hint="register a split and give its name"
        )
    return {data.label: name}
