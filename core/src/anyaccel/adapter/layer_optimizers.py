"""LayerOptimizerRule: an optimizer of a library of layers as an update rule, by its own formulas."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from copy import copy, deepcopy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from anyaccel.adapter.optimizers import Slots, UpdateRule
from anyaccel.errors import SpecError
from anyaccel.specs import Optimizer

_OF_ALL_NODES = "global_clipnorm"
# What of an object is not copied: the rate, which `_rate_of` reads; the norm of all nodes, which the spec has; what it
# has counted; and the variables that weights do not decay by, which stand-ins take the places of.
_NOT_COPIED = ("_learning_rate", _OF_ALL_NODES, "built")
_EXCLUDED = "_exclude_from_weight_decay"
_SHARED = "shared"  # what belongs to all parameters, and is stored with the first; a number follows


_Key = tuple[tuple[str, tuple[int, ...], str], ...]


class _Built(NamedTuple):
    """An optimizer for some parameters; it computes, and stores nothing.

    Attributes:
        optimizer: Object of the library.
        rate: Variable of its rate, or a factor of it.
        parameters: Its variables for the parameters, by name.
        slots: Its other variables, by parameter and slot; a variable for all parameters is stored with the first by
            name.
    """

    optimizer: Any
    rate: Any
    parameters: dict[str, Any]
    slots: dict[str, dict[str, Any]]


class _Identity(NamedTuple):
    """The attributes of a variable that an optimizer reads, other than its value.

    Attributes:
        name, path: Name and path, as the optimizer sees them when it is built.
        name_in_steps: Name in a step; TensorFlow's own variables have other names than those of the library.
        decays: Whether weight decay is applied to it.
        is_overwritten: Whether its gradient is its new value.
    """

    name: str
    path: str
    name_in_steps: str
    decays: bool
    is_overwritten: bool


class _Tagged(str):
    """A name of a variable that identifies its parameter."""

    number: int


class LayerOptimizerRule(UpdateRule):
    """An optimizer class of the library, created with the settings of the spec, or a copy of an optimizer object.

    It sees the parameters of one node. If the class may read them, the parameters of a model of the library have the
    names and paths of the model's variables.

    Args:
        optimizer: The spec; its `own` is the class or the object.
        module: The library.
        outside: Context to create variables in, so that no traced function holds them.
        put: Function that copies the value of a variable to the device of a parameter.

    Raises:
        SpecError: the optimizer cannot be created, or only the library's own loop applies one of its settings.
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
        self._identities: Mapping[str, _Identity] = {}
        self._given: Any = None if isinstance(optimizer.own, type) else optimizer.own
        self._class = _stateless(optimizer.own if self._given is None else type(self._given), module)
        self._excludes = self._given is not None and any(
            value for name, value in vars(self._given).items() if name.startswith(_EXCLUDED)
        )
        if self._given is not None:
            name, settings = self.optimizer.name, self.optimizer.settings
            if settings:
                raise SpecError(
                    f"the optimizer {name} is an object already, but got settings: {', '.join(settings)}",
                    hint=f"pass them to {name}(...), or pass its class: Optimizer({name}, lr=..., {min(settings)}=...)",
                )
            if self._given.built:
                raise SpecError(
                    f"the optimizer {name} has been used by its framework's own loop, and its state would be lost",
                    hint="pass a new one: Optimizer(type(optimizer).from_config(optimizer.get_config()))",
                )
            self._refuse(self._given)
        with outside():
            made, _ = self._made()
        self._refuse(made)

    def _refuse(self, made: Any) -> None:
        """Refuse settings that only the library's own loop applies."""
        name = self.optimizer.name
        if self._given is None and getattr(made, _OF_ALL_NODES, None):
            raise SpecError(
                f"the optimizer {name} has {_OF_ALL_NODES}, a norm over all nodes, but it sees only one node",
                hint=f"write Optimizer(..., clip_norm={made.global_clipnorm!r}) instead",
            )
        values = vars(made)
        hints = {
            "inner_optimizer": "pass the inner optimizer: Optimizer(optimizer.inner_optimizer)",
            "optimizers": "pass one of the inner optimizers, and set other rates or decays with groups=, or set "
            "optimizers on nodes",
            "ema_overwrite_frequency": "leave it out: averages do not replace trained weights here",
            "use_ema": f"pass averaging = WeightAveraging({values.get('ema_momentum')}) "
            "to TrainPhase(callbacks=[averaging]) instead, and call averaging.apply(graph) afterwards",
            "gradient_accumulation_steps": "write "
            f"TrainPhase(accumulate={values.get('gradient_accumulation_steps')}) instead",
            "loss_scale_factor": "leave it out: losses are not scaled here",
        }
        setting = next((key for key in hints if getattr(made, key, None)), None)
        if setting is not None:
            raise SpecError(
                f"the optimizer {name} has {setting}, which only its framework's own loop applies",
                hint=hints[setting],
            )

    def for_tree(self, tree: Any) -> LayerOptimizerRule:
        """Return the rule with the names of a model's variables, if the class may read them.

        Args:
            tree: The variables by the names of the parameters, or an object that has these as `variables`.
        """
        variables: Mapping[str, Any] = getattr(tree, "variables", tree)
        if not variables or not (self._excludes or reads_names(self.optimizer.own, self._module)):
            return self
        identities = {}
        for name, variable in variables.items():
            # what the library passes to a step: TensorFlow's own variable, which has a name
            value: Any = getattr(variable, "value", None)
            in_steps = value if isinstance(getattr(value, "name", None), str) else variable
            identities[name] = _Identity(
                name=str(variable.name),
                path=str(getattr(variable, "path", variable.name)),
                name_in_steps=str(in_steps.name),
                decays=not self._excludes or bool(self._given._use_weight_decay(in_steps)),  # noqa: SLF001 - of Keras
                is_overwritten=bool(getattr(variable, "overwrite_with_gradient", False)),
            )
        bound = copy(self)
        vars(bound).update(_built={}, _identities=identities, shareable=False)
        return bound

    def _made(self) -> tuple[Any, Any]:
        """Return a new optimizer, and the variable that its rate is, or is multiplied by."""
        try:
            if self._given is None:
                made = self._class(learning_rate=self.optimizer.lr, **self.optimizer.settings)
                return made, made.learning_rate
            return self._copied()
        except (TypeError, ValueError) as error:
            problem = f"cannot create the optimizer {self.optimizer.name}: {str(error).splitlines()[0]}"
            hint = "correct its settings"
            if self._given is not None:
                hint = (
                    "let its constructor accept the keys of get_config(), such as learning_rate and name, or **settings"
                )
            raise SpecError(problem, hint=hint) from error

    def _copied(self) -> tuple[Any, Any]:
        """Return a copy of the given object by its configuration, and by its attributes, which this may lack."""
        user_optimizer: Any = self._given
        # a schedule of the user's own need not have a configuration
        without_rate = object.__new__(type(user_optimizer))
        vars(without_rate).update({**vars(user_optimizer), "_learning_rate": None})
        made = self._class.from_config({**without_rate.get_config(), "learning_rate": 1.0, _OF_ALL_NODES: None})
        usual = vars(made).copy()
        for name, value in vars(user_optimizer).items():
            if name in _NOT_COPIED or name.startswith((_EXCLUDED, "_self_")):
                continue
            if _is_plain(value):
                setattr(made, name, deepcopy(value))
            elif usual.get(name) is None or (callable(value) and callable(usual[name])):
                setattr(made, name, value)
        rate: Any = vars(user_optimizer).get("_learning_rate")
        if not isinstance(rate, self._module.optimizers.schedules.LearningRateSchedule):
            return made, made.learning_rate
        factor = self._module.Variable(1.0, dtype=self._module.backend.floatx(), trainable=False)
        made.learning_rate = lambda: rate(made.iterations) * factor
        return made, factor

    def rate(self, factor: float) -> float:
        """Return the rate for `step`: `factor`, times the current rate of a given object.

        A schedule of the library is not included, because the object computes it by its own count of steps.
        """
        if self._given is None:
            return factor
        rate = vars(self._given).get("_learning_rate")
        if isinstance(rate, self._module.optimizers.schedules.LearningRateSchedule):
            return factor
        is_function = callable(rate) and not isinstance(rate, self._module.Variable)
        return factor * float(self._module.ops.convert_to_tensor(rate() if is_function else rate))

    def _key(self, parameters: Mapping[str, Any]) -> _Key:
        return tuple((name, tuple(w.shape), self._dtype(w)) for name, w in sorted(parameters.items()))

    def _for(self, parameters: Mapping[str, Any]) -> _Built:
        key = self._key(parameters)
        if key not in self._built:
            with self._outside():
                self._built[key] = self._build(key)
        return self._built[key]

    def _dtype(self, array: Any) -> str:
        return str(self._module.backend.standardize_dtype(array.dtype))

    def _build(self, key: _Key, values: Mapping[str, Any] | None = None) -> _Built:
        """Return an optimizer for parameters with these names, shapes and dtypes, initialized with their `values` if
        given.
        """
        if self._excludes and not self._identities:
            raise SpecError(
                f"the optimizer {self.optimizer.name} excludes variables from weight decay, but the model has "
                "no variables of its framework",
                hint=f"pass its class and a pattern of names: Optimizer({self.optimizer.name}, lr=..., groups="
                "{'*bias': {'weight_decay': 0.0}})",
            )
        (made, rate), variables = self._made(), {}
        for i, (name, shape, dtype) in enumerate(key):
            value = "zeros" if values is None else values[name]
            variables[name] = self._stand_in(i, self._identities.get(name), value, shape, dtype)
        if self._excludes:
            kept = [variables[name] for name in variables if not self._identities[name].decays]
            made.exclude_from_weight_decay(var_list=kept)
        made.build(list(variables.values()))
        for name, identity in self._identities.items():
            if name in variables:
                variables[name]._name = identity.name_in_steps  # noqa: SLF001 - it checks names that it is created with
        slots: dict[str, dict[str, Any]] = {name: {} for name in variables}
        for number, variable in enumerate(made.variables):
            owner, slot = made.owner_and_slot(variable)
            if owner is not None:
                owner_slots = slots[key[owner][0]]
                owner_slots[slot or f"slot{len(owner_slots)}"] = variable
            elif variable is not rate:
                slots[key[0][0]][f"{_SHARED}{number}"] = variable
        return _Built(made, rate, variables, slots)

    def _stand_in(self, number: int, identity: _Identity | None, value: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """Return a variable for a parameter, with the name and the path of the model's own."""
        name = _Tagged(f"p{number}x" if identity is None else identity.name.rpartition("/")[2])
        name.number = number
        with ExitStack() as scopes:
            for scope in () if identity is None else identity.path.split("/")[:-1]:
                scopes.enter_context(self._module.name_scope(scope, deduplicate=False))
            variable = self._module.Variable(value, shape=shape, dtype=dtype, name=name)
        if identity is not None and identity.is_overwritten:
            variable.overwrite_with_gradient = True
        return variable

    def coefficients(self, step: int) -> dict[str, float]:
        """Return the learning rate."""
        return {"rate": self.rate(self.optimizer.rate(step - 1))}

    def table(self, step: int, count: int) -> dict[str, np.ndarray]:
        """Return the scalars of several steps; the rate of a given object is read once."""
        rate = self.rate(1.0)
        return {"rate": np.array([rate * self.optimizer.rate(step - 1 + i) for i in range(count)], dtype=np.float64)}

    def slots(self, xp: Any, kept: Slots, parameters: Mapping[str, Any]) -> Slots:
        """Return the kept slots; at first, the initial slots of the optimizer."""
        if parameters.keys() <= kept.keys():
            return {name: kept[name] for name in parameters}
        built = self._for(parameters)
        if self._begins_with_values:
            with self._outside():
                built = self._build(self._key(parameters), parameters)
        return {
            name: {slot: self._put(variable.value, parameters[name]) for slot, variable in variables.items()}
            for name, variables in built.slots.items()
        }

    @cached_property
    def _begins_with_values(self) -> bool:
        """Whether the state of the optimizer begins with the values of the parameters."""
        ops, first = self._module.ops, []
        with self._outside():
            for value in ("zeros", "ones"):
                made, _ = self._made()
                made.build([self._module.Variable(value, shape=(2, 2), name="trial")])
                first.append(made.variables)
            return not all(bool(ops.all(ops.equal(a, b))) for a, b in zip(*first, strict=True))

    def continued(self, slots: Slots, parameters: Mapping[str, Any]) -> Slots:
        """Return the slots for other layers of the same model: new parameters get initial ones, and the first one gets
        what belongs to all, such as the count of steps.
        """
        own = {name: {slot: v for slot, v in kept.items() if not _is_shared(slot)} for name, kept in slots.items()}
        shared = {slot: value for kept in slots.values() for slot, value in kept.items() if _is_shared(slot)}
        expected, first = self._for(parameters).slots, min(parameters)
        places = [slot for slot in expected[first] if _is_shared(slot)]
        has_slots = any(not _is_shared(slot) for kept in expected.values() for slot in kept)
        is_earlier = any(own.get(name) for name in parameters) if has_slots else not any(own.values())
        if not is_earlier or len(shared) != len(places):  # the slots of another optimizer
            return slots
        new = parameters.keys() - own.keys()
        initial = self.slots(None, {}, parameters) if new else {}
        own |= {name: {slot: v for slot, v in initial[name].items() if not _is_shared(slot)} for name in new}
        own[first] |= dict(zip(places, (shared[slot] for slot in sorted(shared, key=_number)), strict=True))
        return own

    def fits(self, slots: Slots, parameters: Mapping[str, Any]) -> bool:
        """Return whether these are the slots that the optimizer has for these parameters."""
        expected = self._for(parameters).slots
        return {n: {slot: tuple(v.shape) for slot, v in variables.items()} for n, variables in expected.items()} == {
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
        """Update all parameters that have gradients."""
        built = self._for({name: parameters[name] for name in gradients})
        states = [(built.parameters[name], parameters[name]) for name in gradients]
        states += [(v, slots[name][slot]) for name, variables in built.slots.items() for slot, v in variables.items()]
        states.append((built.rate, self._module.ops.cast(coefficients["rate"], built.rate.dtype)))
        with self._module.StatelessScope(state_mapping=states) as scope:
            built.optimizer.apply([gradients[name] for name in built.parameters])
            assigned = {id(variable) for variable, _ in states}
            if not set(scope.state_mapping) <= assigned:
                raise SpecError(
                    f"the optimizer {self.optimizer.name} changes values that are not among its variables; "
                    "they would be lost",
                    hint="use another optimizer",
                )
            after = {
                name: {slot: scope.get_current_value(variable) for slot, variable in variables.items()}
                for name, variables in built.slots.items()
            }
            return {name: scope.get_current_value(built.parameters[name]) for name in gradients}, after


def _stateless(own: type, module: Any) -> Any:
    """Return the class over the library's general one: the framework-specific ones write to variables, not to given
    values.

    Its objects know the parameter of each of their variables, and its name there.
    """
    backends = f"{module.__name__}.src.backend."
    own = next(cls for cls in own.__mro__ if not str(cls.__module__).startswith(backends))  # the user wrote this one
    base = next(cls for cls in reversed(module.optimizers.Optimizer.__mro__) if hasattr(cls, "apply_gradients"))
    special = [cls for cls in own.__mro__ if str(cls.__module__).startswith(backends)]
    names = {name for cls in special for name in vars(cls) if not name.startswith("__") and hasattr(base, name)}
    general: Any = type("General", (*special[:1],), {name: getattr(base, name) for name in names})

    def add_variable_from_reference(
        self: Any, reference_variable: Any, name: Any = None, *more: Any, **named: Any
    ) -> Any:
        made = super(stateless, self).add_variable_from_reference(reference_variable, name, *more, **named)
        number = getattr(reference_variable.name, "number", None)
        if number is not None:
            vars(self).setdefault("owners", {})[id(made)] = number, name
        return made

    def owner_and_slot(self: Any, variable: Any) -> tuple[int | None, str | None]:
        """Return the number of the parameter that a variable belongs to, and the name of the slot; None where
        unknown.
        """
        if id(variable) in vars(self).get("owners", {}):
            number, slot = vars(self)["owners"][id(variable)]
            return number, slot
        if isinstance(variable.name, _Tagged):
            return variable.name.number, None
        owned = re.search(r"p(\d+)x(?:_(.+))?", str(variable.name))
        return (int(owned[1]), owned[2]) if owned else (None, None)

    added = {"add_variable_from_reference": add_variable_from_reference, "owner_and_slot": owner_and_slot}
    stateless: Any = type(own.__name__, (own, general), added)
    return stateless


def reads_names(own: Any, module: Any) -> bool:
    """Return whether an optimizer, a class or an object of one, may read names or paths of variables.

    A user's class may; a class of the library does if its code reads them.
    """
    for base in (own if isinstance(own, type) else type(own)).__mro__:
        if not issubclass(base, module.optimizers.Optimizer) or base is module.optimizers.Optimizer:
            continue
        if not str(base.__module__).startswith(f"{module.__name__}."):
            return True
        if any("path" in getattr(getattr(method, "__code__", None), "co_names", ()) for method in vars(base).values()):
            return True
    return False


def _is_shared(slot: str) -> bool:
    return re.fullmatch(rf"{_SHARED}\d+", slot) is not None


def _number(slot: str) -> int:
    return int(slot.removeprefix(_SHARED))


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, text, or a container of such."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(
        value, (bool, int, float, complex, str, bytes, np.number, np.ndarray, re.Pattern)
    )
