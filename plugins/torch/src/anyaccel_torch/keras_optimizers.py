"""KerasOptimizer: an optimizer of Keras, by its own formulas, as an optimizer of torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.adapter.layer_optimizers import LayerOptimizerRule
from anyaccel.specs import Optimizer
from anyaccel_torch import keras

_Names = Mapping[str, Mapping[str, str]]
_SHARED = "shared"  # what the rule calls the values that belong to all parameters, and keeps with the first
_STEPS = f"{_SHARED}0"  # the first variable of every optimizer of Keras: its `iterations`


class KerasOptimizer(torch.optim.Optimizer):
    """Update parameters like the Keras class or object, and store its state as tensors of each parameter.

    State of all parameters (a count of steps, a product of momenta) is stored with each of them, so that a state can be
    continued by any of them.

    Args:
        parameters: Parameters in any form that torch's optimizers accept, including groups with settings.
        spec: The spec; its `own` is the class or the object.
        variables: The Keras variables of the parameters.
        lr: Learning rate, which a schedule changes in the groups.
        settings: Settings of the class.

    Raises:
        SpecError: the optimizer cannot be created, or only Keras's own loop applies one of its settings.
    """

    def __init__(
        self,
        parameters: Any,
        spec: Optimizer,
        variables: Mapping[nn.Parameter, Any] | None = None,
        *,
        lr: float,
        **settings: Any,
    ) -> None:
        super().__init__(parameters, {"lr": lr, **settings})
        self._kept_as = _KeptAs()
        variables, self._rules = variables or {}, list[LayerOptimizerRule]()
        for group in self.param_groups:
            own = Optimizer(spec.own, lr=group["lr"], **{name: group[name] for name in settings})
            rule = LayerOptimizerRule(own, keras.library().module, nullcontext, _put)
            named = {_name(i): variables[p] for i, p in enumerate(group["params"]) if p in variables}
            self._rules.append(rule.for_tree(named))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, rule in zip(self.param_groups, self._rules, strict=True):
            with_gradient = {_name(i): p for i, p in enumerate(group["params"]) if p.grad is not None}
            if with_gradient:
                with keras.library().module.device(str(next(iter(with_gradient.values())).device)):
                    shared = self._update(rule, with_gradient, rule.rate(group["lr"]))
                if len(with_gradient) < len(group["params"]):  # one without a gradient may be the first in a later step
                    for parameter in group["params"]:
                        if parameter.grad is None and self.state.get(parameter):
                            self.state[parameter].update({slot: value.clone() for slot, value in shared.items()})
        return loss

    def _update(
        self, rule: LayerOptimizerRule, parameters: Mapping[str, nn.Parameter], rate: float
    ) -> dict[str, Tensor]:
        """Update parameters that have gradients; return the state that all parameters share afterwards."""
        values = {name: parameter.detach() for name, parameter in parameters.items()}
        key = id(rule), tuple(parameters)
        known = self._kept_as.names.get(key, {})
        if not known or not all(set(known[n].values()) <= self.state.get(p, {}).keys() for n, p in parameters.items()):
            fresh = rule.slots(None, {}, values)
            self._kept_as.names[key] = {name: _kept_as(own) for name, own in fresh.items()}
            slots = self._slots(parameters, fresh, self._kept_as.names[key])
        else:
            slots = {
                name: {slot: self.state[parameters[name]][kept] for slot, kept in names.items()}
                for name, names in self._kept_as.names[key].items()
            }
        kept_as = self._kept_as.names[key]
        gradients: dict[str, Any] = {}
        for name, parameter in parameters.items():
            gradient: Any = parameter.grad
            gradients[name] = gradient.to_dense() if gradient.layout is not torch.strided else gradient
        after, slots_after = rule.step(None, values, gradients, slots, {"rate": rate})
        shared: dict[str, Tensor] = {}
        for name, parameter in parameters.items():  # the first has what is shared
            parameter.copy_(after[name])
            own = {kept_as[name][slot]: value.detach() for slot, value in slots_after[name].items()}
            shared = shared or {slot: value for slot, value in own.items() if slot.startswith(_SHARED)}
            self.state[parameter].update({**own, **{slot: value.clone() for slot, value in shared.items()}})
        return shared

    def _slots(
        self, parameters: Mapping[str, nn.Parameter], fresh: Mapping[str, Mapping[str, Any]], kept_as: _Names
    ) -> dict[str, dict[str, Any]]:
        """Return the slots of each parameter; for a new one the initial ones of the class. What they share is that of
        the one with the most steps: others were switched off.
        """
        states = [self.state[p] for p in parameters.values() if self.state.get(p)]
        known: Mapping[str, Any] = max(states, key=lambda state: float(state.get(_STEPS, 0)), default={})
        shared = {slot: value for slot, value in known.items() if slot.startswith(_SHARED)}
        slots: dict[str, dict[str, Any]] = {}
        for name, own in fresh.items():
            kept = {**self.state.get(parameters[name], {}), **shared}
            slots[name] = {slot: kept.get(kept_as[name][slot], value) for slot, value in own.items()}
        return slots


class _KeptAs:
    """Names under which slots are stored; an object, because an optimizer's containers are treated as its state.

    Attributes:
        names: By slot and parameter, for each rule and the parameters that have gradients.
    """

    def __init__(self) -> None:
        self.names: dict[Any, dict[str, dict[str, str]]] = {}


def _name(number: int) -> str:
    """Return the name of a parameter of a group for its rule; parameters are sorted by it."""
    return f"{number:06}"


def _kept_as(slots: Iterable[str]) -> dict[str, str]:
    """Return names of the slots of a parameter that do not depend on the other parameters and their number."""
    names: dict[str, str] = {}
    for kind in (_SHARED, "slot", ""):  # those that have a number, and the others
        own = [slot for slot in slots if slot not in names and re.fullmatch(rf"{kind}\d+" if kind else ".*", slot)]
        names |= {slot: f"{kind}{i}" if kind else slot for i, slot in enumerate(own)}
    return names


def _put(value: Any, like: Tensor) -> Tensor:
    return torch.as_tensor(value).detach().to(like.device, copy=True)
