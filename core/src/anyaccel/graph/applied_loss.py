"""AppliedLoss: a loss with its inputs, an output of a graph and the targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.call_hints import constructor_hints
from anyaccel.errors import SpecError
from anyaccel.specs import FROM_OUTPUT, Loss, Spec, assign_fields


@constructor_hints
@dataclass(frozen=True, slots=True, init=False)
class AppliedLoss(Spec):
    """Apply a loss to the output of a node.

    Args:
        loss: A Loss, or the arguments of `Loss(...)`, such as `"mse"`.
        on: Label of the node whose output it takes. The loss is computed on this node's device. You can leave it out if
            the graph has one output node.
        inputs: Arguments of the loss, in order: `"outputs"` (of `on`), `"outputs.NAME"`, `"targets"` (of the data that
            feed `on`), `"FEATURE_SET.COLUMN"`, or `"FEATURE_SET.COLUMN@STREAM"` for a stream of the sampler other than
            the first.
        weight: Factor in the total loss, finite and not negative.
        label: Name in results; `on` by default.
        sample_weight: Column, `"FEATURE_SET.COLUMN"`, with the weight of each sample or position, at least 0, for a
            named loss. The loss is the weighted mean: the sum of weight times loss over the sum of weights.
        mask: Column of the samples or positions to include: True or 1, and False or 0. If both are set, they are
            multiplied.

    Raises:
        SpecError: an argument of the wrong type or out of range.

    Example:
        >>> import anyaccel as aa
        >>> loss = aa.AppliedLoss("cross_entropy", on="head", weight=0.5)
        >>> phase = aa.TrainPhase("train", data="train", losses=[loss, aa.AppliedLoss("mse", on="decoder")])
    """

    _called = "an applied loss"
    _parts: ClassVar = {"loss": Loss}
    loss: Loss
    on: str
    inputs: tuple[str, ...]
    weight: float
    label: str
    sample_weight: str | None
    mask: str | None

    def __init__(
        self,
        loss: Any,
        on: str | None = None,
        inputs: tuple[str, ...] | list[str] = ("outputs", "targets"),
        weight: float = 1.0,
        label: str | None = None,
        *,
        sample_weight: str | None = None,
        mask: str | None = None,
    ) -> None:
        on = "" if on is None else arguments.text(SpecError, "AppliedLoss: ", "on", on, "the label of a node", "'NODE'")
        label = on if label is None else arguments.text(SpecError, "AppliedLoss: ", "label", label)
        where = f"loss on {on!r}: "
        if not isinstance(inputs, (list, tuple)) or not inputs or not all(isinstance(name, str) for name in inputs):
            raise SpecError(
                f"{where}inputs={shown(inputs)} is not a list of names", hint="write inputs=['outputs', 'targets']"
            )
        at_least_0 = "a finite number of at least 0"
        weight = arguments.number(SpecError, where, "weight", weight, lambda it: it >= 0, at_least_0, 1.0)
        loss = loss if isinstance(loss, Loss) else Loss(loss)
        if (
            loss.own is None
            and loss.name == FROM_OUTPUT
            and not (len(inputs) == 1 and inputs[0].startswith("outputs."))
        ):
            problem, hint = (
                f"{where}inputs={shown(inputs)} must be exactly one output",
                f"write AppliedLoss.from_output({on!r}, 'loss')",
            )
            raise SpecError(f"{problem}, which {FROM_OUTPUT!r} takes", hint=hint)
        columns = {"sample_weight": sample_weight, "mask": mask}
        for name, column in columns.items():
            if column is None:
                continue
            example = f"'FEATURE_SET.{name.upper()}'"
            columns[name] = arguments.text(SpecError, where, name, column, "a column", example)
            if loss.own is not None:
                raise SpecError(
                    f"{where}{name}={column!r} is for named losses, but {loss.name!r} is custom",
                    available="named losses, and from_output",
                    hint=f"pass it as an input of the loss: inputs=['outputs', 'targets', {column!r}]",
                )
        assign_fields(self, loss=loss, on=on, inputs=tuple(inputs), weight=float(weight), label=label, **columns)

    @property
    def weights(self) -> tuple[str, ...]:
        """The columns that weight the loss: `sample_weight` and `mask`, if they are set."""
        return tuple(column for column in (self.sample_weight, self.mask) if column is not None)

    @classmethod
    def from_output(
        cls,
        on: str,
        output: str = "loss",
        *,
        weight: float = 1.0,
        label: str | None = None,
        sample_weight: str | None = None,
        mask: str | None = None,
    ) -> Self:
        """Use a loss that a model computes itself and returns among its outputs.

        Args:
            on: Label of the node.
            output: Name of the output: a scalar (the mean over the batch), or one value for each sample. A scalar is
                weighted by the number of samples in the batch.
            weight, label: See `AppliedLoss`.
            sample_weight, mask: Columns whose sum weights a scalar instead, such as the number of tokens that count in
                a model that ignores some.

        Raises:
            SpecError: an argument of the wrong type or out of range.
        """
        on = arguments.text(SpecError, "AppliedLoss.from_output: ", "on", on, "the label of a node", "'NODE'")
        output = arguments.text(SpecError, "AppliedLoss.from_output: ", "output", output, "an output", "'loss'")
        columns = {"sample_weight": sample_weight, "mask": mask}
        return cls(Loss(FROM_OUTPUT), on, (f"outputs.{output}",), weight, label, **columns)

    def get_config(self) -> dict[str, Any]:
        """Return a plain dict for `from_config`."""
        values = {
            "on": self.on or None,
            "inputs": list(self.inputs),
            "weight": self.weight,
            "label": self.label or None,
        }
        columns = {"sample_weight": self.sample_weight, "mask": self.mask}
        named = {name: column for name, column in columns.items() if column is not None}
        return {"loss": self.loss.get_config(), **values, **named}
