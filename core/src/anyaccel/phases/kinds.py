"""The three kinds of phase: train, evaluate, fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from anyaccel.data import Sampler, SimpleSampler
from anyaccel.errors import PhaseError
from anyaccel.phases.metrics import Metric
from anyaccel.phases.phase import Data, Phase, one_of
from anyaccel.phases.samplers import (
    Samplers,
    check_samplers,
    check_schedule,
    samplers_config,
    samplers_from,
    samplers_of,
)
from anyaccel.specs import AppliedLoss

MICROBATCHING = ("exact", "approximate")


class EvalPhase(Phase):
    """Forward passes over data: losses, metrics and predictions. Nothing is changed.

    Args:
        batch_size: samples computed at once.
        metrics: names, functions or Metric objects, or one of them.
        outputs: labels of nodes whose predictions are kept; by default the tails of the graph.
        sampler: draws what is evaluated, once and not shuffled: a PairSampler, say, or one for each feature set by
            label; figures, predictions and rows are those of its pairs. By default the rows as they are, for every
            stream.
        label, data, losses, accelerator, strict, policy, callbacks, final_device: see Phase.
    """

    kind = "eval"

    def __init__(
        self,
        label: str,
        *,
        data: Data,
        metrics: Any = (),
        outputs: Sequence[str] | str | None = None,
        batch_size: int = 1024,
        sampler: Sampler | Mapping[str, Sampler] | None = None,
        **settings: Any,
    ) -> None:
        several = (metrics,) if isinstance(metrics, (str, Metric)) or callable(metrics) else metrics
        self.metrics = tuple(one if isinstance(one, Metric) else Metric(one) for one in several)
        self.outputs = _labels(outputs)
        self.sampler: Samplers = SimpleSampler(batch_size) if sampler is None else samplers_of(sampler)
        if sampler is not None and batch_size != 1024:
            raise PhaseError(f"phase {label!r} has a sampler and a batch_size", hint="leave batch_size to the sampler")
        super().__init__(label, data=data, **settings)

    @property
    def batch_size(self) -> int:
        """Samples computed at once."""
        if isinstance(self.sampler, Sampler):
            return self.sampler.batch_size
        return max(one.batch_size for one in self.sampler.values())

    def _check(self) -> None:
        super()._check()
        check_samplers(self.label, self.sampler)

    def get_config(self) -> dict[str, Any]:
        """The phase as plain data; see Phase."""
        outputs = None if self.outputs is None else list(self.outputs)
        metrics = [metric.get_config() for metric in self.metrics]
        plain = isinstance(self.sampler, SimpleSampler)
        drawn = {"batch_size": self.batch_size} if plain else {"sampler": samplers_config(self.sampler)}
        return {**super().get_config(), "metrics": metrics, "outputs": outputs, **drawn}

    @classmethod
    def read_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """See Phase."""
        sampler = settings.get("sampler")
        return {
            **settings,
            "metrics": [Metric.from_config(one) for one in settings.get("metrics", ())],
            "sampler": None if sampler is None else samplers_from(sampler),
        }


class TrainPhase(Phase):
    """Epochs of training steps.

    Estimators of the graph that have a `partial_fit` and are not frozen learn, too: after each step, on the host, from
    what feeds them in this step. Where there is one, `losses` may be empty.

    Args:
        sampler: batches and their order: a SimpleSampler, PairSampler, TripletSampler, or a batch size; or a mapping
            from the label of each feature set to one of these, whose numbers of rows may then differ. A batch size
            shuffles: 32 is `SimpleSampler(32, shuffle=True)`, whereas `SimpleSampler(32)` keeps the order of the rows.
        schedule: how several samplers take part. `zip_strict`, the default: every step takes a batch of each, of which
            they must have equally many; `zip_cycle`: those that have fewer begin again until the last one ends.
            `alternate_strict` and `alternate_cycle`: the same, but each step takes a batch of one, in turn.
        n_epochs: how many epochs this phase runs; 0 places and loads all that it needs, and trains nothing.
        validation: an EvalPhase, or the name of a split, evaluated with the nodes and programs where they are, after
            every `validate_every` epochs; its losses are those of the training. A split is evaluated by the pairs or
            triplets of the phase's sampler, if that draws such.
        validate_every: epochs between validations.
        accumulate: batches for one update: their gradients are added up, each weighted by its rows, so that an update
            is that of one batch of all these rows, but for what mixes the rows of a batch. A step is an update. The
            batches that are left at the end of an epoch make one, too.
        microbatching: what to do when memory runs out and rows are streamed already: `"exact"` computes a step in parts
            only where that gives the same numbers, `"approximate"` also where the rows of a batch depend on each other
            (as in batch normalization) or nobody knows (losses of your own).
        label, data, losses, accelerator, strict, policy, callbacks, final_device: see Phase.
    """

    kind = "train"
    elsewhere: ClassVar[Mapping[str, str]] = {
        "batch_size": "write sampler=16 for batches of 16, or sampler=SimpleSampler(16, ...)",
        "metrics": "judge the validation: validation=EvalPhase(..., metrics=[...])",
        "outputs": "keep outputs in an EvalPhase(..., outputs=[...])",
    }

    def __init__(
        self,
        label: str,
        *,
        data: Data,
        losses: AppliedLoss | Iterable[AppliedLoss] = (),
        sampler: Sampler | int | Mapping[str, Sampler | int] = 32,
        schedule: str | None = None,
        n_epochs: int = 1,
        validation: EvalPhase | str | None = None,
        validate_every: int = 1,
        accumulate: int = 1,
        microbatching: str = "exact",
        **settings: Any,
    ) -> None:
        self.sampler: Samplers = samplers_of(sampler)
        self.schedule = schedule
        self.n_epochs = _count(label, "n_epochs", n_epochs, 0)
        self.validation = _validation_of(validation, self.sampler) if isinstance(validation, str) else validation
        self.validate_every = _count(label, "validate_every", validate_every, 1)
        self.accumulate = _count(label, "accumulate", accumulate, 1)
        self.microbatching = one_of(label, "microbatching", microbatching, MICROBATCHING)
        super().__init__(label, data=data, losses=losses, **settings)

    def _check(self) -> None:
        super()._check()
        check_samplers(self.label, self.sampler)
        check_schedule(self.label, self.schedule, self.sampler)
        if self.validation is None:
            return
        if not isinstance(self.validation, EvalPhase):
            raise PhaseError(
                f"phase {self.label!r}: validation={self.validation!r} is no EvalPhase",
                hint="give one, or the name of a split",
            )
        for loss in self.validation.losses:
            if loss not in self.losses:
                raise PhaseError(
                    f"phase {self.label!r} validates with the loss {loss.label!r}, with which it does not train",
                    available=", ".join(one.label for one in self.losses),
                    hint="leave losses out of the validation, or run an EvalPhase of its own after training",
                )
        if self.validation.accelerator not in (None, self.accelerator):
            raise PhaseError(
                f"phase {self.label!r} trains on {self.accelerator or 'cpu:0'}, and validates on "
                f"{self.validation.accelerator}",
                hint="leave accelerator out of the validation: it runs where the nodes are",
            )

    def get_config(self) -> dict[str, Any]:
        """The phase as plain data; see Phase."""
        return {
            **super().get_config(),
            "sampler": samplers_config(self.sampler),
            "schedule": self.schedule,
            "n_epochs": self.n_epochs,
            "validation": self.validation.get_config() if self.validation else None,
            "validate_every": self.validate_every,
            "accumulate": self.accumulate,
            "microbatching": self.microbatching,
        }

    @classmethod
    def read_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """See Phase."""
        validation = settings.get("validation")
        return {
            **settings,
            "sampler": samplers_from(settings.get("sampler", {})),
            "validation": Phase.from_config(validation) if validation else None,
        }


class FitPhase(Phase):
    """Fits estimators (`fit`, `predict`) once to the outputs of what feeds them, and freezes their nodes.

    Args:
        nodes: labels of the nodes to fit; by default every estimator that has not been fitted.
        batch_size: samples computed at once by the nodes before them.
        label, data, accelerator, strict, policy, callbacks, final_device: see Phase.
    """

    kind = "fit"

    def __init__(
        self,
        label: str,
        *,
        data: Data,
        nodes: Sequence[str] | str | None = None,
        batch_size: int = 1024,
        **settings: Any,
    ) -> None:
        self.nodes = _labels(nodes)
        self.sampler = SimpleSampler(batch_size)
        super().__init__(label, data=data, **settings)

    def _check(self) -> None:
        super()._check()
        if self.losses:
            raise PhaseError(f"phase {self.label!r} fits and takes no losses", hint="leave them out")

    def get_config(self) -> dict[str, Any]:
        """The phase as plain data; see Phase."""
        nodes = None if self.nodes is None else list(self.nodes)
        return {**super().get_config(), "nodes": nodes, "batch_size": self.sampler.batch_size}


def _validation_of(split: str, samplers: Samplers) -> EvalPhase:
    """The evaluation of a split as the phase trains: rows as they are, unless its samplers put rows together."""
    found = samplers if isinstance(samplers, Mapping) else {"": samplers}
    together = {name: one for name, one in found.items() if isinstance(one, Sampler) and len(one.streams) > 1}
    if not together:
        return EvalPhase.from_split(split, split=split)
    return EvalPhase.from_split(split, split=split, sampler=together.get("", together))


def _count(label: str, name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise PhaseError(f"phase {label!r}: {name}={value!r} is not an int of at least {least}")
    return value


def _labels(given: Sequence[str] | str | None) -> tuple[str, ...] | None:
    """Labels of nodes; a plain text is one label."""
    if given is None or isinstance(given, str):
        return None if given is None else (given,)
    found = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(label, str) for label in found):
        raise PhaseError(f"{given!r} are not labels of nodes", hint="write the labels as text: ['encoder', 'head']")
    return found
