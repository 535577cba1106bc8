"""Optimizers of Optax, and everything made like them, as update rules of the adapter."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from anyaccel.adapter import UpdateRule
from anyaccel.adapter.compile_cache import first_line
from anyaccel.errors import AnyaccelError, SpecError
from anyaccel.specs import Optimizer
from anyaccel_jax.parameter_tree import ParameterTree
from anyaccel_jax.transfers import put_like

Arrays = Mapping[str, Any]
Slots = Mapping[str, Mapping[str, Any]]

_WHILE_TRACING = (jax.errors.JAXTypeError, jax.errors.JAXIndexError)  # values that are not known yet: run eagerly


def optax_rule(optimizer: Optimizer) -> UpdateRule:
    """Return the rule of a gradient transformation, or of a factory that creates one from a learning rate.

    Raises:
        SpecError: it is neither, or does not take the settings.
    """
    return FactoryRule(optimizer) if callable(optimizer.own) else TransformationRule(optimizer)


class OptaxRule(UpdateRule):
    """A gradient transformation over the parameters of one node, in the tree of the model's library.

    State of the transformation that belongs to a parameter is stored with this parameter, named by its path in the
    state; state of all parameters is stored with the first by name.
    """

    def __init__(self, optimizer: Optimizer, tree: ParameterTree | None = None) -> None:
        super().__init__(optimizer)
        self._structures: dict[Any, Any] = {}
        transformation = self._transformation(optimizer.lr)
        if not (callable(getattr(transformation, "init", None)) and callable(getattr(transformation, "update", None))):
            is_own = transformation is optimizer.own
            is_not = "is not a gradient transformation" if is_own else f"returns a {type(transformation).__name__}"
            raise SpecError(
                f"the optimizer {optimizer.name} {is_not}",
                available="gradient transformations with init and update, as Optax creates them",
                hint="pass the transformation itself, optimizer=optax.adam(1e-3), or a named optimizer",
            )
        if tree is not None:
            self._tree = tree
            self.needs_value = self._check_update()

    def for_tree(self, tree: ParameterTree) -> OptaxRule:
        """Return the rule with the parameters in a tree, without which it computes nothing."""
        return type(self)(self.optimizer, tree)

    def coefficients(self, step: int) -> dict[str, float]:
        """Return the learning rate, or for a transformation that has its own, a factor on the updates."""
        return {"rate": self.optimizer.rate(step - 1)}

    def _transformation(self, rate: Any) -> Any:
        """Return the transformation for a learning rate."""
        raise NotImplementedError

    def _initial_state(self, parameters: Arrays) -> Any:
        """Return the state of the transformation before the first step.

        Raises:
            SpecError: it cannot be created, as the transformation expects parameters in another tree.
        """
        transformation = self._transformation(self.optimizer.lr)
        try:
            return self._tree.initial_state(transformation.init, parameters)
        except AnyaccelError:
            raise
        except Exception as error:
            raise self._tree_error(error) from error

    def _tree_error(self, error: Exception) -> SpecError:
        tree = self._tree
        return SpecError(
            f"the optimizer {self.optimizer.name} does not accept the parameters of its model: they are {tree}",
            cause=first_line(error),
            hint=f"pass labels and masks as functions of such a tree, or create them with jax.tree.map "
            f"from {tree.source}; if the labels are in a callable module, such as an Equinox module, pass lambda _: "
            "labels",
        )

    def _check_update(self) -> bool:
        """Whether an update needs the value of the loss, as that of `optax.contrib.reduce_on_plateau`.

        Raises:
            SpecError: it needs anything else, or cannot work with such parameters.
        """
        tree, transformation = self._tree, self._transformation(self.optimizer.lr)

        def update(arrays: Arrays, **more: Any) -> Any:
            updates, _ = transformation.update(
                tree.join(arrays), self._initial_state(arrays), tree.join(arrays), **more
            )
            return tree.split(updates, arrays)

        try:
            jax.eval_shape(update, tree.specs)
        except AnyaccelError:
            raise
        except _WHILE_TRACING:
            return False
        except TypeError:
            try:
                jax.eval_shape(partial(update, value=jnp.float32(0)), tree.specs)
            except _WHILE_TRACING:
                return False
            except TypeError as error:
                raise SpecError(
                    f"the update of the optimizer {self.optimizer.name} needs more than gradients, state, parameters "
                    "and the value of the loss",
                    cause=first_line(error),
                    hint="use an optimizer that needs only these",
                ) from error
            return True
        except AttributeError as error:
            raise SpecError(
                f"the update of the optimizer {self.optimizer.name} needs other parameters than {tree}",
                cause=first_line(error),
                hint="use an optimizer that accepts parameters in the form of their gradients",
            ) from error
        except Exception as error:
            raise self._tree_error(error) from error
        return False

    def slots(self, xp: Any, kept: Slots, parameters: Arrays) -> Slots:
        """Return the kept slots; for other parameters their part of the initial state, on their devices."""
        kept_slots = {name: kept[name] for name in parameters if name in kept}
        if len(kept_slots) == len(parameters):
            return kept_slots
        shared = {id(array) for array in parameters.values()}  # a step may destroy parameters and slots
        # Values of another sharding would have steps compiled twice.
        initial = {
            name: {
                slot: put_like(jnp.copy(value) if id(value) in shared else value, parameters[name])
                for slot, value in slots.items()
            }
            for name, slots in self._tree.split_state(self._initial_state(parameters), parameters).items()
        }
        return {**initial, **kept_slots}

    def fits(self, slots: Slots, parameters: Arrays) -> bool:
        """Return whether slots match the state of the transformation for these parameters."""
        split = self._tree.split_state
        expected = jax.eval_shape(lambda arrays: split(self._initial_state(arrays), arrays), dict(parameters))
        return _shapes({name: slots.get(name, {}) for name in expected}) == _shapes(expected)

    def step(
        self, xp: Any, parameters: Arrays, gradients: Arrays, slots: Slots, coefficients: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Slots]:
        """Update all parameters."""
        tree, rate, before = self._tree, coefficients["rate"], {name: parameters[name] for name in gradients}
        key = tuple((name, array.shape, array.dtype) for name, array in before.items())
        if key not in self._structures:
            self._structures[key] = jax.eval_shape(self._initial_state, dict(before))
        state = self._with_rate(tree.join_state(self._structures[key], before, slots), rate)
        transformation = self._transformation(rate)
        more = {"value": coefficients["value"]} if self.needs_value else {}
        updates, after = transformation.update(tree.join(gradients), state, tree.join(before), **more)
        scaled = self._scale(tree.split(updates, before), rate)
        return {name: value + scaled[name] for name, value in before.items()}, tree.split_state(after, before)

    def _with_rate(self, state: Any, rate: Any) -> Any:
        """Return the state for a step with a learning rate."""
        return state

    def _scale(self, updates: Arrays, rate: Any) -> Arrays:
        return updates


class FactoryRule(OptaxRule):
    """A factory such as `optax.adamw`, which gets the learning rate of each step."""

    def __init__(self, optimizer: Optimizer, tree: ParameterTree | None = None) -> None:
        if "learning_rate" not in _parameter_names(optimizer.own):
            raise SpecError(
                f"the optimizer {optimizer.name} has no parameter learning_rate",
                hint=f"pass a transformation, Optimizer({optimizer.name}(...)), or a function of learning_rate",
            )
        super().__init__(optimizer, tree)

    def _transformation(self, rate: Any) -> Any:
        try:
            return self.optimizer.own(learning_rate=rate, **self.optimizer.settings)
        except (TypeError, ValueError) as error:
            problem = f"cannot create the optimizer {self.optimizer.name}: {error}"
            raise SpecError(problem, hint="correct its settings") from error

    def _with_rate(self, state: Any, rate: Any) -> Any:
        """Return the state with the rate where `optax.inject_hyperparams` stores it, instead of that of its factory."""

        def is_injected(node: Any) -> bool:
            return "learning_rate" in getattr(node, "hyperparams", ()) and hasattr(node, "_replace")

        def replaced(node: Any) -> Any:
            if not is_injected(node):
                return node
            like = node.hyperparams["learning_rate"]
            return node._replace(hyperparams={**node.hyperparams, "learning_rate": jnp.asarray(rate, like.dtype)})

        return jax.tree.map(replaced, state, is_leaf=is_injected)


class TransformationRule(OptaxRule):
    """A transformation such as `optax.adam(1e-3)`, which has its own learning rate; that of the spec is a factor."""

    def __init__(self, optimizer: Optimizer, tree: ParameterTree | None = None) -> None:
        super().__init__(optimizer, tree)
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


def _shapes(slots: Slots) -> dict[str, dict[str, tuple[int, ...]]]:
    return {name: {slot: tuple(value.shape) for slot, value in values.items()} for name, values in slots.items()}
