"""Learning-rate schedulers of torch as schedules of an optimizer."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from anyaccel.call_hints import constructor_hints
from anyaccel.errors import SpecError
from anyaccel.suggestions import did_you_mean
from anyaccel_torch.error_translation import first_line


@constructor_hints
class TorchSchedule:
    """A scheduler of `torch.optim.lr_scheduler` as a schedule: `schedule=TorchSchedule(OneCycleLR, max_lr=0.1, ...)`.

    The factor at a step is the learning rate that the scheduler gives an optimizer of rate 1 after that many calls of
    `scheduler.step()`. With a scheduler whose settings are learning rates (`OneCycleLR(max_lr=...)`), use `lr=1.0`. It
    schedules the learning rate alone, no momentum. `ReduceLROnPlateau` is anyaccel's own.

    Args:
        scheduler: A class, or a function of an optimizer that gives a scheduler.
        settings: Settings of the scheduler.

    Raises:
        SpecError: it does not take the settings, changes a momentum, or steps with a value.
    """

    def __init__(self, scheduler: Any, **settings: Any) -> None:
        self.__name__ = str(getattr(scheduler, "__name__", type(scheduler).__name__))
        self._optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0, momentum=0.5)
        try:
            self._scheduler = scheduler(self._optimizer, **settings)
        except (TypeError, ValueError) as error:
            names = _settings(scheduler)
            unknown = next((name for name in settings if names and name not in names), None)
            if unknown is not None:
                hint = did_you_mean(unknown, names, "use one of these names")
                problem = f"the scheduler {self.__name__} has no setting {unknown!r}"
                raise SpecError(problem, available=", ".join(names), hint=hint) from None
            raise SpecError(
                f"the scheduler {self.__name__} cannot be created: {first_line(error)}",
                hint="pass the settings of the scheduler, without the optimizer",
            ) from error
        if isinstance(self._scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise SpecError(
                f"the scheduler {self.__name__} needs a value in each step",
                hint="write schedule=anyaccel.ReduceLROnPlateau('val_loss')",
            )
        if self._optimizer.param_groups[0]["momentum"] != 0.5:
            raise SpecError(
                f"the scheduler {self.__name__} changes the momentum, which a schedule cannot do",
                hint=f"write TorchSchedule({self.__name__}, cycle_momentum=False, ...)",
            )
        self._rates = [float(self._optimizer.param_groups[0]["lr"])]

    def __call__(self, step: int) -> float:
        """Return the factor at a step; those before it are computed once."""
        while len(self._rates) <= step:
            self._optimizer.step()
            try:
                self._scheduler.step()
            except ValueError as error:
                raise SpecError(
                    f"the scheduler {self.__name__} has no rate for step {step}: {first_line(error)}",
                    hint="set its number of steps to the trained steps: epochs times batches",
                ) from error
            self._rates.append(float(self._optimizer.param_groups[0]["lr"]))
        return self._rates[step]


def _settings(scheduler: Any) -> tuple[str, ...]:
    """Return the arguments of a scheduler after the optimizer; none where they are not known, or it takes all."""
    try:
        parameters = list(inspect.signature(scheduler).parameters.values())[1:]
    except (TypeError, ValueError):
        return ()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return ()
    return tuple(parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL)
