"""LayerOptimizerRule: an optimizer class of a library of layers as an update rule, by its own formulas."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from anyaccel.adapter.optimizers import Slots, UpdateRule
from anyaccel.errors import SpecError
from anyaccel.specs import Optimizer

_REFUSED = {
    "use_ema": "give TrainPhase(callbacks=[WeightAveraging(0.999)])",
    "gradient_accumulation_steps": "write TrainPhase(accumulate=...)",
    "loss_scale_factor": "leave it out: losses are not scaled here",
}
_OF_ALL_NODES = "global_clipnorm"


class _Built(NamedTuple):
    """An optimizer made for some parameters: it computes, and keeps nothing.

    Attributes:
        optimizer: the library's object.
        parameters: its variables in place of the parameters, by name.
        slots: its other variables, by parameter and slot; what belongs to all is with the first parameter by name.
    """

    optimizer: Any
    parameters: dict[str, Any]
    slots: dict[str, dict[str, Any]]


class LayerOptimizerRule(UpdateRule):
    """An optimizer class of the library, made with the settings of the spec; it sees the parameters of one node.

    Args:
        optimizer: its `own` is the class.
        module: the library.
        outside: entered where variables are made, so that no function that is being traced holds them.
        put: the value of a variable, copied to the device of a parameter.

    Raises:
        SpecError: a class that cannot be made, or a setting that only the library's own loop heeds.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        module: Any,
        outside: Callable[[], AbstractContextManager[Any]],
        put: Callable[[Any, Any], Any],
    ) -> None:
        super().__init__(optimizer)
        self._module, self._outside, self._put = module, outside, put
        self._built: dict[Any, _Built] = {}
        self._class = _stateless(optimizer.own, module)
        with outside():
            made = self._made()
        if getattr(made, _OF_ALL_NODES, None):
            raise SpecError(
                f"the optimizer {optimizer.name} has {_OF_ALL_NODES}, a norm over all nodes, and it sees those of one",
                hint=f"write Optimizer(..., clip_norm={made.global_clipnorm!r}) in its place",
            )
        setting = next((name for name in _REFUSED if getattr(made, name, None)), None)
        if setting is not None or hasattr(made, "inner_optimizer"):
            what, hint = setting or "inner_optimizer", _REFUSED.get(setting or "", "give the inner one")
            raise SpecError(
                f"the optimizer {optimizer.name} has {what}, which its framework's own loop heeds", hint=hint
            )

    def _made(self) -> Any:
        try:
            return self._class(learning_rate=self.optimizer.lr, **self.optimizer.settings)
        except (TypeError, ValueError) as error:
            problem = f"cannot create the optimizer {self.optimizer.name}: {str(error).splitlines()[0]}"
            raise SpecError(problem, hint="correct its settings") from error

    def _for(self, parameters: Mapping[str, Any]) -> _Built:
        key = tuple((name, tuple(w.shape), self._dtype(w)) for name, w in sorted(parameters.items()))
        if key not in self._built:
            with self._outside():
                self._built[key] = self._build(key)
        return self._built[key]

    def _dtype(self, array: Any) -> str:
        return str(self._module.backend.standardize_dtype(array.dtype))

    def _build(self, key: tuple[tuple[str, tuple[int, ...], str], ...]) -> _Built:
        made, variables = self._made(), {}
        for i, (name, shape, dtype) in enumerate(key):
            variables[name] = self._module.Variable("zeros", shape=shape, dtype=dtype, name=f"p{i}x")
        made.build(list(variables.values()))
        slots: dict[str, dict[str, Any]] = {name: {} for name in variables}
        for number, variable in enumerate(made.variables):
            owned = re.search(r"p(\d+)x(?:_(.+))?", str(variable.name))
            if owned:
                own = slots[key[int(owned[1])][0]]
                own[owned[2] or f"slot{len(own)}"] = variable
            elif variable is not made.learning_rate:
                slots[key[0][0]][f"shared{number}"] = variable
        return _Built(made, variables, slots)

    def coefficients(self, step: int) -> dict[str, float]:
        """The learning rate."""
        return {"rate": self.optimizer.rate(step - 1)}

    def slots(self, xp: Any, kept: Slots, parameters: Mapping[str, Any]) -> Slots:
        """What was kept; at first, what the optimizer begins with."""
        if parameters.keys() <= kept.keys():
            return {name: kept[name] for name in parameters}
        return {
            name: {slot: self._put(variable.value, parameters[name]) for slot, variable in own.items()}
            for name, own in self._for(parameters).slots.items()
        }

    def fits(self, slots: Slots, parameters: Mapping[str, Any]) -> bool:
        """Whether these are the slots that the optimizer has for these parameters."""
        expected = self._for(parameters).slots
        return {n: {slot: tuple(v.shape) for slot, v in own.items()} for n, own in expected.items()} == {
            n: {slot: tuple(v.shape) for slot, v in slots.get(n, {}).items()} for n in expected
        }

    def step(
        self,
        xp: Any,
        parameters: Mapping[str, Any],
        gradients: Mapping[str, Any],
        slots: Slots,
        coefficients: Mapping[str, Any],
    ) -> tuple[dict[str, Any], Slots]:
        """One update of all parameters that have gradients."""
        built = self._for({name: parameters[name] for name in gradients})
        rate = built.optimizer.learning_rate
        given = [(built.parameters[name], parameters[name]) for name in gradients]
        given += [(v, slots[name][slot]) for name, own in built.slots.items() for slot, v in own.items()]
        given.append((rate, self._module.ops.cast(coefficients["rate"], rate.dtype)))
        with self._module.StatelessScope(state_mapping=given) as scope:
            built.optimizer.apply([gradients[name] for name in built.parameters])
            known = {id(variable) for variable, _ in given}
            if not set(scope.state_mapping) <= known:
                raise SpecError(
                    f"the optimizer {self.optimizer.name} changes values that are not among its variables, which would "
                    "be lost",
                    hint="use another optimizer",
                )
            after = {
                name: {slot: scope.get_current_value(variable) for slot, variable in own.items()}
                for name, own in built.slots.items()
            }
            return {name: scope.get_current_value(built.parameters[name]) for name in gradients}, after


def _stateless(own: type, module: Any) -> type:
    """The class over the library's general one: those for a framework write to variables and not to given values."""
    base = next(cls for cls in reversed(module.optimizers.Optimizer.__mro__) if hasattr(cls, "apply_gradients"))
    special = [cls for cls in own.__mro__ if str(cls.__module__).startswith(f"{module.__name__}.src.backend.")]
    names = {name for cls in special for name in vars(cls) if not name.startswith("__") and hasattr(base, name)}
    general: Any = type("General", (*special[:1],), {name: getattr(base, name) for name in names})
    return type(own.__name__, (own, general), {})
