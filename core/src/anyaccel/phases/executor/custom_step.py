"""Own step: single training steps that are a custom function, over the only segment of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from anyaccel.arguments import shown
from anyaccel.errors import PhaseError
from anyaccel.phases.executor.cross_segment import Losses, PipelineStage
from anyaccel.phases.loading.epoch_plan import StepRows, StepSize
from anyaccel.phases.loading.loader import DeviceColumn, DeviceColumns

BatchColumns = Mapping[str, DeviceColumn]
"""Columns by the names that the step finds them under."""


class CustomStep:
    """Run a custom function as the training step; its figures count as losses do.

    Args:
        stage: Stage with the models and optimizers.
        function: See `TrainPhase.step`.
        names: Names of columns by the names that the function finds them under.
        phase: Label of the phase, for messages.
    """

    def __init__(
        self, stage: PipelineStage, function: Callable[..., Any], names: Mapping[str, str], phase: str
    ) -> None:
        self._stage, self._function, self._names, self._phase = stage, function, names, phase
        self.is_updating = False
        """Whether a step has begun and has not ended, as after an error in it."""
        self.n_done = 0
        """Steps so far."""

    def bind(self, columns: DeviceColumns) -> BatchColumns:
        """Return the columns of a chunk as the step finds them."""
        return {key: columns[name] for key, name in self._names.items()}

    def train_steps(self, columns: BatchColumns, start: int, n_steps: int, size: StepSize) -> list[Losses]:
        """Run steps one by one, each with the same rows of every order."""
        sets = {column.feature_set for column in columns.values()}
        losses: list[Losses] = []
        for first in range(start, start + n_steps * size.rows, size.rows):
            losses += self.train_step(columns, dict.fromkeys(sets, (first, first + size.rows)), size)
        return losses

    def train_step(self, columns: BatchColumns, step: StepRows, size: StepSize) -> list[Losses]:
        """One step with some rows of each feature set in it; it is never split."""
        gathered: dict[int, Any] = {}
        for column in columns.values():
            span = step.get(column.feature_set)
            if id(column) not in gathered:
                rows = None if span is None else self._stage.backend.gather_rows(column.rows, *span, order=column.order)
                gathered[id(column)] = rows
        self.is_updating = True
        batch = {name: gathered[id(column)] for name, column in columns.items()}
        result = self._stage.program.custom_step(self._function, batch)
        self.is_updating = False
        self.n_done += 1
        n_rows = max(stop - start for start, stop in step.values())
        figures = {name: (value * n_rows, n_rows) for name, value in self._figures(result).items()}
        return [Losses(self._stage.backend, 0, tuple(figures), pairs=figures)]

    def try_step(self, columns: BatchColumns, step: StepRows, size: StepSize) -> None:
        """Run `train_step`; the caller restores a snapshot afterwards."""
        self.train_step(columns, step, size)
        self._stage.program.zero_grad()

    def snapshot(self) -> int:
        """Return the number of steps."""
        return self.n_done

    def restore(self, n_done: int) -> None:
        """Go back to a number of steps, none of them begun."""
        self.n_done, self.is_updating = n_done, False

    def _figures(self, result: Any) -> Mapping[str, Any]:
        """Return the result of a step by name; a single number is the loss.

        Raises:
            PhaseError: it is neither a number nor a dict of numbers.
        """
        if result is None:
            return {}
        figures = result if isinstance(result, Mapping) else {"loss": result}
        for name, value in figures.items():
            if isinstance(name, str) and name.startswith("val_"):
                raise PhaseError(
                    f"the step of phase {self._phase!r} returned the figure {name!r}, but the prefix `val_` is "
                    "reserved for validations",
                    hint=f"name it {name.removeprefix('val_')!r}, and validate with TrainPhase(validation=...)",
                )
            shape = getattr(value, "shape", None)
            is_scalar = isinstance(value, (int, float)) or (shape is not None and tuple(shape) == ())
            if not isinstance(name, str) or not is_scalar:
                what = shown(value) if shape is None else f"a {type(value).__name__} of shape {list(shape)}"
                raise PhaseError(
                    f"the step of phase {self._phase!r} returned {what} as the figure {shown(name)}",
                    available="a dict of names and scalars; one scalar, the loss; or None",
                    hint="return a mean over the batch, as in {'loss': loss}",
                )
        of_numpy = (np.generic, np.ndarray)  # no backend would copy these from a device
        return {name: value.item() if isinstance(value, of_numpy) else value for name, value in figures.items()}
