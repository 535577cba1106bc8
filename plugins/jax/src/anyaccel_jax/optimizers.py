"""Optimizers of Optax, and everything made like them, as rules of the adapter."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from anyaccel.adapter import UpdateRule
from anyaccel.errors import SpecError
from anyaccel.specs import Optimizer

Arrays = Mapping[str, Any]
Slots = Mapping[str, Mapping[str, Any]]


def rule(recipe: Optimizer) -> UpdateRule:
    """The rule of a function that makes a gradient transformation from a learning rate, or of a transformation.

    Raises:
        SpecError: it is neither, or does not take the settings.
    """
    return Made(recipe) if callable(recipe.own) else Given(recipe)


class OptaxRule(UpdateRule):
    """A gradient transformation over the parameters of one node, a dict by name.

    What it keeps for a parameter is kept with this parameter, by the path in the state that leads to it; what it keeps
    for all of them stands with the first by name.
    """

    def _transformation(self, rate: Any) -> Any:
        """The transformation for a learning rate."""
        raise NotImplementedError

    def _state(self, parameters: Arrays) -> Any:
        """The state that the transformation begins with."""
        return self._transformation(self.optimizer.lr).init(dict(parameters))

    def slots(self, xp: Any, kept: Slots, parameters: Arrays) -> Slots:
        """What was kept; else the state that the transformation begins with, by parameter, and where this is."""
        there = {name: kept[name] for name in parameters if name in kept}
        if len(there) == len(parameters):
            return there
        begun = _split(self._state(parameters), parameters)
        home = {name: parameters[name].sharding for name in parameters}  # or else steps are compiled twice
        sent = {name: {s: jax.device_put(one, home[name]) for s, one in begun[name].items()} for name in begun}
        return {**sent, **there}

    def fits(self, slots: Slots, parameters: Arrays) -> bool:
        """Whether slots are what the transformation keeps for these parameters."""
        wanted = jax.eval_shape(lambda given: _split(self._state(given), given), dict(parameters))
        return _shapes({name: slots.get(name, {}) for name in wanted}) == _shapes(wanted)

    def step(
        self, xp: Any, parameters: Arrays, gradients: Arrays, slots: Slots, coefficients: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Slots]:
        """One update of all parameters."""
        own = {name: parameters[name] for name in gradients}
        state = _joined(jax.eval_shape(self._state, own), own, slots)
        try:
            changes, after = self._transformation(coefficients["rate"]).update(dict(gradients), state, own)
        except TypeError as error:
            asked = f"the optimizer {self.optimizer.name} wants more than gradients, state and parameters"
            raise SpecError(asked, available=str(error), hint="use one that wants nothing else") from error
        scaled = self._scaled(changes, coefficients["rate"])
        return {name: own[name] + scaled[name] for name in own}, _split(after, own)

    def _scaled(self, changes: Arrays, rate: Any) -> Arrays:
        return changes


class Made(OptaxRule):
    """By a function such as `optax.adamw`, which is given the learning rate of each step."""

    def __init__(self, recipe: Optimizer) -> None:
        super().__init__(recipe)
        if "learning_rate" not in _parameters(recipe.own):
            raise SpecError(
                f"the optimizer {recipe.name} takes no learning_rate",
                hint=f"give what it makes, Optimizer({recipe.name}(...)), or a function of learning_rate",
            )
        _checked(self._transformation(recipe.lr), recipe)

    def coefficients(self, step: int) -> dict[str, float]:
        """The learning rate."""
        return {"rate": self.optimizer.rate(step - 1)}

    def _transformation(self, rate: Any) -> Any:
        try:
            return self.optimizer.own(learning_rate=rate, **self.optimizer.settings)
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"the optimizer {self.optimizer.name} cannot be made: {error}", hint="correct its settings"
            ) from error


class Given(OptaxRule):
    """A transformation such as `optax.adam(1e-3)`, which has a learning rate of its own; the recipe's is a factor."""

    def __init__(self, recipe: Optimizer) -> None:
        super().__init__(recipe)
        _checked(recipe.own, recipe)
        if recipe.settings:
            raise SpecError(
                f"the optimizer {recipe.name} is made already, and was given {', '.join(recipe.settings)}",
                hint="give the settings to the function that makes it",
            )

    def coefficients(self, step: int) -> dict[str, float]:
        """The factor on what changes."""
        return {"rate": self.optimizer.rate(step - 1)}

    def _transformation(self, rate: Any) -> Any:
        return self.optimizer.own

    def _scaled(self, changes: Arrays, rate: Any) -> Arrays:
        return {name: one * jnp.asarray(rate, one.dtype) for name, one in changes.items()}


def _parameters(function: Any) -> Mapping[str, Any]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _checked(made: Any, recipe: Optimizer) -> None:
    if not (callable(getattr(made, "init", None)) and callable(getattr(made, "update", None))):
        raise SpecError(
            f"the optimizer {recipe.name} gives a {type(made).__name__}",
            available="JAX takes gradient transformations, which have init and update, as Optax makes them",
            hint="use one of these, or a named optimizer",
        )


# -- state by parameter ----------------------------------------------------------------------------------------------


def _split(state: Any, parameters: Arrays) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {name: {} for name in parameters}
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        name, slot = _place(path, parameters)
        found[name][slot] = leaf
    return found


def _joined(like: Any, parameters: Arrays, slots: Slots) -> Any:
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    places = [_place(path, parameters) for path, _ in paths]
    return jax.tree.unflatten(structure, [slots[name][slot] for name, slot in places])


def _place(path: Any, parameters: Arrays) -> tuple[str, str]:
    """The parameter that a leaf of the state belongs to, and the name of the slot: the path without the parameter."""
    at = next((i for i in reversed(range(len(path))) if getattr(path[i], "key", None) in parameters), None)
    rest = path if at is None else (*path[:at], *path[at + 1 :])
    slot = jax.tree_util.keystr(rest, simple=True, separator=".").replace("/", "|")
    return (min(parameters) if at is None else path[at].key), slot


def _shapes(slots: Slots) -> dict[str, dict[str, tuple[int, ...]]]:
    return {name: {slot: tuple(one.shape) for slot, one in there.items()} for name, there in slots.items()}
