"""Values and gradients of a loss for own loops: sums over rows, micro-batches and processes, divided once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anyaccel.arguments import shown
from anyaccel.errors import ConfigError, DataError
from anyaccel_jax.array_trees import comes_from, is_nnx

_RESULTS = "a mean over the rows, one value per row, or a sum and its integer count"


class LossGradients:
    """Compute `jax.value_and_grad(loss)` in micro-batches and in a precision; call it within a step.

    Args:
        loss: Function of the model or parameters, and the other arguments of this call.
        n_micro: Number of micro-batches of the rows.
        n_shards: Number of devices that the rows are sharded over.
        dtype: Dtype for casting the floating-point arguments of the loss; None casts nothing.
        has_aux: Whether the loss returns a pair; the second item is returned unchanged.
        traced: Function called when a step is traced.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        *,
        n_micro: int,
        n_shards: int,
        dtype: Any,
        has_aux: bool,
        traced: Callable[[], object],
    ) -> None:
        self._loss, self._n_micro, self._n_shards = loss, n_micro, n_shards
        self._dtype, self._has_aux, self._traced = dtype, has_aux, traced

    def __call__(self, model: Any, *args: Any, mask: Any = None, **settings: Any) -> tuple[Any, Any]:
        """Return the loss, and its gradients with respect to the first argument.

        Args:
            model: Parameters, an NNX module or an Equinox module.
            args, settings: Arguments of the loss. Arrays with the same number of rows as the first array are split into
                micro-batches; each micro-batch gets its own random key.
            mask: Rows that count, [rows]; the loss then returns a value for each row.
        """
        self._traced()
        part = _part_of(model)
        tree = (args, settings, mask)
        if self._n_micro == 1:

            def objective(trained: Any) -> tuple[Any, Any]:
                total, count, carried, aux = self._terms(part, trained, part.rest, tree)
                return (total if count is None else total / jnp.maximum(count, 1)), (carried, aux)

            (value, (carried, aux)), grads = jax.value_and_grad(objective, has_aux=True)(part.trained)
        else:
            value, grads, carried = self._in_parts(part, tree)
            aux = None
        part.finish(carried)
        return ((value, aux) if self._has_aux else value), grads

    def _terms(self, part: _Part, trained: Any, carried: Any, tree: Any) -> tuple[Any, Any, Any, Any]:
        """Return a mean or a sum, its count, changes of the model, and other results of the loss; a mean has no
        count.
        """
        args, settings, mask = tree
        model = part.rebuilt(self._cast(trained), carried)
        result = self._loss(model, *self._cast(args), **self._cast(settings))
        aux = None
        if self._has_aux:
            if not isinstance(result, tuple) or len(result) != 2:
                raise _wrong(result, "a pair of loss and aux")
            result, aux = result
        return (*_counted(result, mask), part.carried(model), aux)

    def _cast(self, tree: Any) -> Any:
        if self._dtype is None:
            return tree

        def cast(leaf: Any) -> Any:
            dtype = getattr(leaf, "dtype", None)
            is_wide = dtype is not None and dtype in (np.float32, np.float64)
            return leaf.astype(self._dtype) if is_wide else leaf

        return jax.tree.map(cast, tree)

    def _in_parts(self, part: _Part, tree: Any) -> tuple[Any, Any, Any]:
        """Compute micro-batches: number i has the rows i, i + n_micro, ..., so that no row leaves its device; the rest
        follows.
        """
        leaves, structure = jax.tree.flatten(tree)
        n_rows = next((leaf.shape[0] for leaf in leaves if np.ndim(leaf)), None)
        if n_rows is None:
            raise DataError(
                "value_and_grad() cannot split a batch into micro-batches: no argument has rows, "
                "as an array [rows, ...] after the model has",
                hint="leave accumulate out",
            )
        by_rows = [np.ndim(leaf) > 0 and leaf.shape[0] == n_rows for leaf in leaves]
        unit = self._n_micro * self._n_shards
        n_main = n_rows // unit * unit

        def summed(trained: Any, carried: Any, rows: list[Any], number: Any, size: int) -> tuple[Any, Any]:
            row_parts = iter(rows)
            micro = [
                next(row_parts) if is_row else _own_key(leaf, number)
                for leaf, is_row in zip(leaves, by_rows, strict=True)
            ]
            total, count, carried, _ = self._terms(part, trained, carried, jax.tree.unflatten(structure, micro))
            if count is None:
                total, count = total * size, jnp.asarray(size)
            return total, (jnp.asarray(count, _COUNTS), carried)

        def add(sums: Any, rows: list[Any], number: Any, size: int) -> Any:
            grads, total, count, carried = sums
            compute = jax.value_and_grad(summed, has_aux=True)
            (more, (counted, carried)), of_part = compute(part.trained, carried, rows, number, size)
            return jax.tree.map(jnp.add, grads, of_part), total + more, count + counted, carried

        zeros = jax.tree.map(jnp.zeros_like, part.trained)
        sums = zeros, jnp.zeros((), jnp.float32), jnp.zeros((), _COUNTS), part.rest
        rows = [leaf for leaf, is_row in zip(leaves, by_rows, strict=True) if is_row]
        if n_main:
            size = n_main // self._n_micro
            cut = [jnp.swapaxes(leaf[:n_main].reshape(size, self._n_micro, *leaf.shape[1:]), 0, 1) for leaf in rows]
            numbered = jnp.arange(self._n_micro), cut
            sums, _ = jax.lax.scan(lambda sums, micro: (add(sums, micro[1], micro[0], size), None), sums, numbered)
        if n_main < n_rows:
            sums = add(sums, [leaf[n_main:] for leaf in rows], self._n_micro, n_rows - n_main)
        grads, total, count, carried = sums
        count = jnp.maximum(count, 1).astype(jnp.float32)
        return total / count, jax.tree.map(lambda grad: (grad / count).astype(grad.dtype), grads), carried


_COUNTS = jnp.int32


class _Part:
    """The trained part of a model, and the rest.

    Attributes:
        trained, rest: Pytrees.
        rebuilt: The model of both.
        carried: The rest after a call of the model.
        finish: Function called with it at the end.
    """

    def __init__(
        self,
        trained: Any,
        rest: Any = None,
        rebuilt: Callable[[Any, Any], Any] = lambda trained, rest: trained,
        carried: Callable[[Any], Any] = lambda model: None,
        finish: Callable[[Any], object] = lambda rest: None,
    ) -> None:
        self.trained, self.rest, self.rebuilt, self.carried, self.finish = trained, rest, rebuilt, carried, finish


def _part_of(model: Any) -> _Part:
    if is_nnx(model):
        from flax import nnx

        split: Any = nnx.split
        graph, trained, rest = split(model, nnx.Param, ...)
        return _Part(
            trained,
            rest,
            lambda trained, rest: nnx.merge(graph, trained, rest, copy=True),
            lambda model: split(model, nnx.Param, ...)[2],
            lambda rest: nnx.update(model, rest),
        )
    if comes_from(model, "equinox"):
        import equinox as eqx

        trained, static = eqx.partition(model, eqx.is_inexact_array)
        return _Part(trained, None, lambda trained, _: eqx.combine(trained, static))
    return _Part(model)


def _own_key(leaf: Any, number: Any) -> Any:
    """Return a random key of a micro-batch, from that of the batch; anything else unchanged."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) and leaf.ndim == 0
    return jax.random.fold_in(leaf, number) if is_key else leaf


def _counted(result: Any, mask: Any) -> tuple[Any, Any]:
    """Return a sum and its count for the result of a loss; for a mean, the mean and None."""
    if isinstance(result, tuple):
        if len(result) != 2 or any(not hasattr(item, "shape") for item in result):
            raise _wrong(result, _RESULTS)
        total, count = map(jnp.asarray, result)
        if total.shape != count.shape or total.ndim > 1 or not jnp.issubdtype(total.dtype, jnp.floating):
            raise _wrong(result, _RESULTS)
        if not (jnp.issubdtype(count.dtype, jnp.integer) or count.dtype == jnp.bool_):
            raise DataError(
                f"the loss returned a pair with a {count.dtype} as its second value, but a count must be an integer",
                available=_RESULTS,
                hint="count with mask.astype(int).sum(); if it is not a count, use value_and_grad(loss, has_aux=True)",
            )
    elif hasattr(result, "shape") and jnp.issubdtype(result.dtype, jnp.floating) and result.ndim <= 1:
        total, count = result, None
    else:
        raise _wrong(result, _RESULTS)
    total = total.astype(jnp.promote_types(total.dtype, jnp.float32))
    if total.ndim == 0:
        if mask is not None:
            raise DataError(
                "the loss returned one value for a batch with padding rows",
                available="one value per row, or a sum and a count per row",
                hint="return [rows] from the loss, and let value_and_grad() compute the mean",
            )
        return total, count
    count = jnp.ones(total.shape, _COUNTS) if count is None else count.astype(_COUNTS)
    if mask is not None:
        if mask.shape != total.shape:
            raise _wrong(result, f"one value for each of {mask.shape[0]} rows")
        total, count = jnp.where(mask, total, 0), jnp.where(mask, count, 0)
    return total.sum(), count.sum()


def _wrong(result: Any, available: str) -> DataError:
    kinds = [f"{item.dtype}{list(item.shape)}" for item in jax.tree.leaves(result) if hasattr(item, "dtype")]
    what = ", ".join(kinds) or shown(result)
    return DataError(
        f"the loss returned {'a pair of ' if isinstance(result, tuple) and len(result) == 2 else ''}{what}",
        available=available,
        hint="reduce it, for example with jnp.mean(); for additional outputs, use value_and_grad(loss, has_aux=True)",
    )


def checked_micro(accumulate: Any, has_aux: bool) -> int:
    """Return how many micro-batches, of a setting.

    Raises:
        ConfigError: it is not a number of them; or they were to give something else, too.
    """
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise ConfigError(
            f"value_and_grad: accumulate={shown(accumulate)} is not a number of micro-batches",
            hint="write accumulate=4",
        )
    if has_aux and accumulate > 1:
        raise ConfigError(
            f"value_and_grad: has_aux=True, but each of {accumulate} micro-batches would return a separate value",
            hint="leave accumulate out, or compute it separately",
        )
    return accumulate
