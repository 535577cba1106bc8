"""Optimizers of Optax, and everything made like them, as update rules of the adapter."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from anyaccel.adapter import UpdateRule
from anyaccel.errors import SpecError
from anyaccel.specs import Optimizer
from anyaccel_jax.transfers import put_like

Arrays = Mapping[str, Any]
Slots = Mapping[str, Mapping[str, Any]]


def optax_rule(optimizer: Optimizer) -> UpdateRule:
    """The rule of a gradient transformation, or of a factory that creates one from a learning rate.

    Raises:
        SpecError: it is neither, or does not take the settings.
    """
    return FactoryRule(optimizer) if callable(optimizer.own) else TransformationRule(optimizer)


class OptaxRule(UpdateRule):
    """A gradient transformation over the parameters of one node, a dict by name.

    The state of the transformation that belongs to a parameter is held with this parameter, named by the path in the
    state that leads to it; what belongs to all of them is held with the first parameter by name.
    """

    def coefficients(self, step: int) -> dict[str, float]:
        """The learning rate, or for a transformation that has its own, a factor on the updates."""
        return {"rate": self.optimizer.rate(step - 1)}

    def _transformation(self, rate: Any) -> Any:
        """The transformation for a learning rate."""
        raise NotImplementedError

    def _initial_state(self, parameters: Arrays) -> Any:
        return self._transformation(self.optimizer.lr).init(dict(parameters))

    def slots(self, xp: Any, kept: Slots, parameters: Arrays) -> Slots:
        """What was kept; for other parameters their part of the initial state, on their devices."""
        known = {name: kept[name] for name in parameters if name in kept}
        if len(known) == len(parameters):
            return known
        # Values of another sharding would have steps compiled twice.
        initial = {
            name: {slot: put_like(value, parameters[name]) for slot, value in slots.items()}
            for name, slots in split_state(self._initial_state(parameters), parameters).items()
        }
        return {**initial, **known}

    def fits(self, slots: Slots, parameters: Arrays) -> bool:
        """Whether slots are what the transformation keeps for these parameters."""
        expected = jax.eval_shape(lambda given: split_state(self._initial_state(given), given), dict(parameters))
        return _shapes({name: slots.get(name, {}) for name in expected}) == _shapes(expected)

    def step(
        self, xp: Any, parameters: Arrays, gradients: Arrays, slots: Slots, coefficients: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Slots]:
        """One update of all parameters."""
        updated = {name: parameters[name] for name in gradients}
        state = join_state(jax.eval_shape(self._initial_state, updated), updated, slots)
        transformation = self._transformation(coefficients["rate"])
        more = {"value": coefficients["value"]} if self.needs_value else {}
        try:
            updates, after = transformation.update(dict(gradients), state, updated, **more)
        except TypeError as error:
            raise SpecError(
                f"the update of the optimizer {self.optimizer.name} needs more than gradients, state, parameters and "
                "the value of the loss",
                cause=str(error),
                hint="use an optimizer that needs nothing else",
            ) from error
        scaled = self._scale(updates, coefficients["rate"])
        return {name: value + scaled[name] for name, value in updated.items()}, split_state(after, updated)

    def _scale(self, updates: Arrays, rate: Any) -> Arrays:
        return updates


class FactoryRule(OptaxRule):
    """A factory such as `optax.adamw`, which gets the learning rate of each step."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        if "learning_rate" not in _parameter_names(optimizer.own):
            raise SpecError(
                f"the optimizer {optimizer.name} has no parameter learning_rate",
                hint=f"pass a transformation, Optimizer({optimizer.name}(...)), or a function of learning_rate",
            )
        transformation = self._transformation(optimizer.lr)
        _check_transformation(transformation, optimizer)
        self.needs_value = _needs_value(transformation)

    def _transformation(self, rate: Any) -> Any:
        try:
            return self.optimizer.own(learning_rate=rate, **self.optimizer.settings)
        except (TypeError, ValueError) as error:
            problem = f"cannot create the optimizer {self.optimizer.name}: {error}"
            raise SpecError(problem, hint="correct its settings") from error


class TransformationRule(OptaxRule):
    """A transformation such as `optax.adam(1e-3)`, which has its own learning rate; that of the spec is a factor."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        _check_transformation(optimizer.own, optimizer)
        self.needs_value = _needs_value(optimizer.own)
        if optimizer.settings:
            raise SpecError(
                f"the optimizer {optimizer.name} is a finished transformation, but got settings: "
                f"{', '.join(optimizer.settings)}",
                hint="pass the settings to the function that creates it",
            )

    def _transformation(self, rate: Any) -> Any:
        return self.optimizer.own

    def _scale(self, updates: Arrays, rate: Any) -> Arrays:
        return {name: update * jnp.asarray(rate, update.dtype) for name, update in updates.items()}


def _parameter_names(function: Any) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def _needs_value(transformation: Any) -> bool:
    """Whether an update needs the value of the loss, and nothing else, as that of `optax.contrib.reduce_on_plateau`."""

    def update(parameters: Any, **more: Any) -> Any:
        return transformation.update(parameters, transformation.init(parameters), parameters, **more)

    struct: Any = jax.ShapeDtypeStruct
    given = {"w": struct((2, 2), jnp.float32)}
    try:
        jax.eval_shape(update, given)
    except TypeError:
        try:
            jax.eval_shape(partial(update, value=jnp.float32(0)), given)
        except Exception:  # the first step has the right error
            return False
        return True
    except Exception:  # it may want other parameters
        return False
    return False


def _check_transformation(value: Any, optimizer: Optimizer) -> None:
    if not (callable(getattr(value, "init", None)) and callable(getattr(value, "update", None))):
        raise SpecError(
            f"the optimizer {optimizer.name} gives a {type(value).__name__}",
            available="gradient transformations with init and update, as Optax creates them",
            hint="use one of these, or a named optimizer",
        )


# -- state by parameter ----------------------------------------------------------------------------------------------


def split_state(state: Any, parameters: Arrays) -> dict[str, dict[str, Any]]:
    """The leaves of a state of Optax over a dict of parameters, by parameter and by name of slot."""
    slots: dict[str, dict[str, Any]] = {name: {} for name in parameters}
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        name, slot = _owner_and_slot(path, parameters)
        slots[name][slot] = leaf
    return slots


def join_state(like: Any, parameters: Arrays, slots: Slots) -> Any:
    """The state with these slots, of the structure of another one."""
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    places = [_owner_and_slot(path, parameters) for path, _ in paths]
    return jax.tree.unflatten(structure, [slots[name][slot] for name, slot in places])


def _owner_and_slot(path: Any, parameters: Arrays) -> tuple[str, str]:
    """The parameter that a leaf of the state belongs to, and the name of the slot: the path without the parameter."""
    at = next((i for i in reversed(range(len(path))) if getattr(path[i], "key", None) in parameters), None)
    rest = path if at is None else (*path[:at], *path[at + 1 :])
    slot = jax.tree_util.keystr(rest, simple=True, separator=".").replace("/", "|")
    return (min(parameters) if at is None else path[at].key), slot


def _shapes(slots: Slots) -> dict[str, dict[str, tuple[int, ...]]]:
    return {name: {slot: tuple(value.shape) for slot, value in own.items()} for name, own in slots.items()}
