"""Chains of blocks larger than a device: parameters stay in pinned host memory and are copied before they are needed.

JAX calls this memory `pinned_host`; devices must support it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from anyaccel.arguments import check
from anyaccel.call_hints import constructor_hints
from anyaccel.errors import CapabilityError, ConfigError
from anyaccel_jax.host_transfer import check_dtype, copy_on_host
from anyaccel_offload.planner import Block, BlockPlan, DeviceSpec, memory_size, plan_blocks

HOST = "pinned_host"
WHERE = "OffloadedChain: "
Function = Callable[..., Any]


@constructor_hints
class OffloadedChain:
    """A chain of blocks: as many as fit stay on a device; the others are copied there one at a time.

    While a block computes, the next is copied: in addition to the blocks that stay, at most two are on the device. A
    block computes the same as its function with parameters on the device. Several threads may call the chain at the
    same time, except for `update`.

    >>> import jax.numpy as jnp
    >>> from anyaccel_offload.jax import OffloadedChain
    >>> chain = OffloadedChain(lambda parameters, x: x * parameters, [jnp.array(2.0), jnp.array(3.0)])
    >>> float(chain(jnp.array(5.0)))
    30.0

    Args:
        functions: A pure function for each block, or one for all: `function(parameters, x)` returns the next `x`.
        parameters: Parameters of each block, a tree of arrays.
        device: JAX device; None for the first.
        max_memory: Memory of the device for parameters, in bytes or as text such as `"20GiB"`; None if no parameters
            stay there.

    Attributes:
        parameters: Parameters of each block, in their places.
        plan: Plan of the blocks that stay; None without `max_memory`.

    Raises:
        CapabilityError: The device has no pinned host memory.
        ConfigError: An argument is wrong.
        MoveError: JAX lacks the dtype of an array, or would narrow it.
        OutOfMemoryError: Not even one block fits.
    """

    def __init__(
        self,
        functions: Function | Iterable[Function],
        parameters: Iterable[Any],
        *,
        device: Any = None,
        max_memory: Any = None,
    ) -> None:
        trees = _listed("parameters", parameters, "[{'w': w} for w in weights]")
        self._functions = (
            [functions] * len(trees) if callable(functions) else _listed("functions", functions, "[layer]")
        )
        _check_blocks(self._functions, trees)
        fits = lambda it: it is None or isinstance(it, jax.Device)  # noqa: E731
        check(ConfigError, WHERE, "device", device, fits, "a device of JAX", "jax.devices()[0]")
        self.device = jax.devices()[0] if device is None else device
        if HOST not in (kinds := memory_kinds(self.device)):
            raise CapabilityError(
                f"{WHERE}{self.device} has no memory of kind {HOST!r} to offload parameters to",
                available=", ".join(kinds),
                hint="compute the blocks without offload, or place them on several devices as nodes of a graph",
            )
        self._there = SingleDeviceSharding(self.device)
        self._host = SingleDeviceSharding(self.device, memory_kind=HOST)
        sizes = [sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in trees]
        self.plan = None if max_memory is None else _plan(sizes, max_memory)
        away = set(map(str, range(len(trees)))) if self.plan is None else set(self.plan.offloaded)
        self._rests = [str(i) in away for i in range(len(trees))]
        self.parameters = [self._at_rest(i, jax.tree.map(_owned, tree)) for i, tree in enumerate(trees)]

    def __call__(self, x: Any) -> Any:
        """Return the output of the last block for the input of the first."""
        return self._forward(x, keep=False)[0]

    def value_and_gradients(self, loss: Function, x: Any, *args: Any) -> tuple[Any, list[Any]]:
        """Return the value of a loss, and its gradients with respect to the parameters of each block.

        The backward pass computes each block again from its input. Gradients are in the same memory as their
        parameters.

        Args:
            loss: A pure function of the output of the last block and `args` that returns a scalar.
            x: Input of the first block.
            args: Additional arguments of the loss, such as targets.

        Raises:
            ConfigError: A parameter is not floating.
        """
        for i, tree in enumerate(self.parameters):
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
                if not jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact):
                    problem = f"parameter {jax.tree_util.keystr(path)} of block {i} is {leaf.dtype}"
                    raise ConfigError(
                        f"{WHERE}{problem}, which has no gradient",
                        hint="store it in the function of the block, or cast it",
                    )
        output, inputs = self._forward(x, keep=True)
        value, gradient = _value_and_gradient(loss)(output, *jax.device_put(args, self._there))
        made: list[Any] = [None] * len(inputs)
        order = list(range(len(inputs)))[::-1]
        arriving = self._copied(order[0])
        for position, i in enumerate(order):
            here = arriving
            arriving = self._copied(order[position + 1]) if position + 1 < len(order) else None
            weights, gradient = _backward(self._functions[i])(here, inputs.pop(), gradient)
            made[i] = self._at_rest(i, weights)
            _finished(gradient)  # the memory of this block is free before the block after the next is copied
        return value, made

    def map(self, function: Function, *trees: Sequence[Any]) -> list[Any]:
        """Apply a pure function to the parameters of each block, block by block on the device.

        Args:
            function: Function of the parameters of a block, and of its item in each of `trees`.
            trees: Lists with an item for each block, such as gradients.

        Returns:
            The result for each block, in the same memory as its parameters.
        """
        for tree in trees:
            check(
                ConfigError, WHERE, "trees", tree, self._has_all, f"lists of {len(self.parameters)} items", "gradients"
            )
        compiled, made = _compiled(function), []
        for i, weights in enumerate(self.parameters):
            found = compiled(*jax.device_put((weights, *(tree[i] for tree in trees)), self._there))
            made.append(self._at_rest(i, _finished(found)))
        return made

    def update(self, function: Function, *trees: Sequence[Any]) -> list[list[Any]]:
        """Replace the parameters of each block, as an optimizer does.

        Args:
            function: Function as for `map`, which returns the new parameters, or a tuple of them and additional
                results.
            trees: Lists as for `map`.

        Returns:
            For each additional result, a list with an item for each block.

        Raises:
            ConfigError: The new parameters do not match the old ones, which are kept.
        """
        made = [result if isinstance(result, tuple) else (result,) for result in self.map(function, *trees)]
        for i, (made_block, before) in enumerate(zip(made, self.parameters, strict=True)):
            if _likeness(made_block[:1]) != _likeness((before,)):
                raise ConfigError(
                    f"{WHERE}update returns parameters of another tree, shape or dtype for block {i}",
                    hint="return the new parameters from the function, or (PARAMETERS, ...) with additional results",
                )
        self.parameters = [result[0] for result in made]
        return [list(rest) for rest in zip(*(result[1:] for result in made), strict=True)]

    def _forward(self, x: Any, *, keep: bool) -> tuple[Any, list[Any]]:
        x, inputs = jax.device_put(x, self._there), []
        arriving = self._copied(0)
        for i, function in enumerate(self._functions):
            here = arriving
            arriving = self._copied(i + 1) if i + 1 < len(self._functions) else None
            if keep:
                inputs.append(x)
            x = _finished(_compiled(function)(here, x))  # as in the backward pass
        return x, inputs

    def _copied(self, i: int) -> Any:
        """Return the parameters of a block on the device; the copy may still run."""
        return jax.device_put(self.parameters[i], self._there) if self._rests[i] else self.parameters[i]

    def _at_rest(self, i: int, tree: Any) -> Any:
        return jax.device_put(tree, self._host if self._rests[i] else self._there)

    def _has_all(self, value: Any) -> bool:
        return isinstance(value, Sequence) and len(value) == len(self.parameters)


def _finished(value: Any) -> Any:
    """Wait until a value is computed, so that the memory of its inputs is no longer in use, and return it."""
    return jax.block_until_ready(value)  # type: ignore[no-untyped-call]


def memory_kinds(device: Any) -> list[str]:
    """Return the kinds of memory that JAX can address with a device."""
    return sorted(memory.kind for memory in device.addressable_memories())


def _listed(name: str, items: Any, example: str) -> list[Any]:
    fits = lambda it: isinstance(it, Iterable) and not isinstance(it, str | bytes | dict)  # noqa: E731
    made = list(check(ConfigError, WHERE, name, items, fits, "a list with an item for each block", example))
    return list(check(ConfigError, WHERE, name, made, bool, "a list with an item for each block", example))


def _check_blocks(functions: Sequence[Any], trees: Sequence[Any]) -> None:
    check(ConfigError, WHERE, "functions", functions, lambda it: all(map(callable, it)), "a list of functions", "layer")
    if len(functions) != len(trees):
        problem = f"{WHERE}there are {len(functions)} functions and parameters for {len(trees)} blocks"
        raise ConfigError(problem, hint="pass a function and parameters for each block, or one function for all")
    for i, tree in enumerate(trees):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if not isinstance(leaf, np.ndarray | jax.Array):
                problem = f"{WHERE}{jax.tree_util.keystr(path)} of block {i} is a {type(leaf).__name__}, not an array"
                raise ConfigError(problem, hint="store other values in the function of the block")
            if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.extended):
                problem = f"{WHERE}{jax.tree_util.keystr(path)} of block {i} has dtype {leaf.dtype}"
                raise ConfigError(problem, hint="pass keys of jax.random with the input: x = {'h': h, 'key': key}")
            check_dtype(leaf.dtype)


def _likeness(tree: Any) -> Any:
    return jax.tree.structure(tree), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


def _owned(leaf: Any) -> Any:
    """Return an array that the user cannot change: JAX may share the memory of a NumPy array."""
    return copy_on_host(leaf) if isinstance(leaf, np.ndarray) else leaf


def _plan(sizes: Sequence[int], max_memory: Any) -> BlockPlan:
    room = memory_size(ConfigError, WHERE, "max_memory", max_memory)
    blocks = [Block(name=str(i), parameter_bytes=size) for i, size in enumerate(sizes)]
    return plan_blocks(blocks, [DeviceSpec(name="device", memory=room, rounding=1)], offload="cpu")


@lru_cache(maxsize=256)
def _compiled(function: Function) -> Any:
    return jax.jit(function)


@lru_cache(maxsize=256)
def _backward(function: Function) -> Any:
    return jax.jit(lambda weights, x, gradient: jax.vjp(function, weights, x)[1](gradient))


@lru_cache(maxsize=256)
def _value_and_gradient(loss: Function) -> Any:
    return jax.jit(jax.value_and_grad(loss))
