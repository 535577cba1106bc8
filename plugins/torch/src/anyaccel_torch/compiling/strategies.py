"""Ways to run many steps in one call: torch's scan operator, or a few steps unrolled."""

from __future__ import annotations

import gc
import logging
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyaccel_torch.compiling.functional_step import bound_step, unrolled_loop
from anyaccel_torch.compiling.spec import SegmentModule, StepSpec
from anyaccel_torch.recomputation import ReplacedForwards

StepFunction = Callable[[SegmentModule, Any, list[Tensor]], Any]
"""Takes the module, the state and [inputs of many steps.., scalars], each with a first axis of steps.

One that updates in place gives the losses [steps] each, another the state after the steps and the losses.
"""

# Random numbers are torch's own, so that dropout is that of uncompiled steps; the user's own settings stay.
_OPTIONS: Mapping[str, Any] = {"cpp_wrapper": True, "fallback_random": True, "compile_threads": 1}

_LIMITS = {"recompile_limit": 1 << 10, "accumulated_recompile_limit": 1 << 14}

# Compiled functions hold step specs, never modules: torch's guards decide what they can be used for again.
_CACHE: OrderedDict[tuple[str, StepSpec, int], StepFunction] = OrderedDict()
_CACHE_SIZE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A way to run many steps in one call.

    Attributes:
        description: Description in words.
        length: Steps in a call, 0 for any number from 2.
        flat: Whether parameters are flattened end to end.
        in_place: Whether the function updates the state itself and returns the losses alone.
        threads: Number of threads of the compiled code; 0 for torch's setting.
    """

    description: str
    length: int
    flat: bool
    in_place: bool
    threads: int = 0


SCAN = Strategy(description="all steps of a call in one compiled loop", length=0, flat=True, in_place=False, threads=1)
"""Torch's scan operator, on one thread: threads do not pay in steps that take microseconds."""


def unrolled(length: int, description: str = "") -> Strategy:
    """`length` steps in a call, updated in place."""
    default = f"{length} compiled steps per call" if length > 1 else "one compiled step per call"
    return Strategy(description=description or default, length=length, flat=False, in_place=True)


def step_function(strategy: Strategy, spec: StepSpec, scan: Callable[..., Any] | None) -> StepFunction:
    """The function of a strategy and a step spec, compiled at its first call; a cached one for an equal spec."""
    key = (strategy.description, spec, strategy.length)
    if key not in _CACHE:

        def scanned(module: SegmentModule, state: Any, xs: list[Tensor]) -> Any:
            """Return the state after the steps, and the losses [steps] each."""
            assert scan is not None
            body, xs = bound_step(module, spec, xs, scan)
            return scan(body, state, xs)

        function: Any = in_place_function(spec) if scan is None or strategy.in_place else scanned
        options = {**_OPTIONS, "cpp.threads": strategy.threads} if strategy.threads else dict(_OPTIONS)
        # with its own code object, as torch caches compilations by code object
        code, closure = function.__code__.replace(), function.__closure__
        own = types.FunctionType(code, function.__globals__, function.__name__, None, closure)
        return torch_compile(own, options)
    _CACHE.move_to_end(key)
    return _CACHE[key]


def cache(strategy: Strategy, spec: StepSpec, function: StepFunction) -> None:
    """Remember a function that has been compiled."""
    _CACHE[strategy.description, spec, strategy.length] = function
    while len(_CACHE) > _CACHE_SIZE:
        _CACHE.popitem(last=False)


def torch_compile(function: StepFunction, options: dict[str, Any]) -> StepFunction:
    """Return the function compiled by torch as a whole, or not at all."""
    compiled: StepFunction = torch.compile(function, fullgraph=True, dynamic=False, options=options)
    return compiled


def in_place_function(spec: StepSpec) -> StepFunction:
    """Return unrolled steps that update the state in place."""

    def steps(module: SegmentModule, state: Any, xs: list[Tensor]) -> Any:
        """Return the losses [steps] each; the state is changed in place."""

        body, xs = bound_step(module, spec, xs, unrolled_loop)
        after, losses = unrolled_loop(body, state, xs)
        for old, new in zip(tensors_of(state), tensors_of(after), strict=True):
            old.copy_(new)
        return losses

    return steps


def mark_any_length(xs: list[Tensor]) -> None:
    """Compile for any number of steps, the first axis of these tensors."""
    from torch import _dynamo

    for x in xs:
        _dynamo.mark_dynamic(x, 0)


def tensors_of(state: Any) -> list[Tensor]:
    """The tensors of a state in one list."""
    blocks, slots, buffers, scale = state
    return [*blocks, *[slot for held in slots for slot in held], *buffers, *scale]


def recomputing(function: StepFunction, forwards: Sequence[ReplacedForwards]) -> StepFunction:
    """Return a compiled function, in whose calls modules have these forwards; it was compiled so, and its guards see
    them.
    """

    def steps(module: SegmentModule, state: Any, xs: list[Tensor]) -> Any:
        with ExitStack() as stack:
            for forward in forwards:
                stack.enter_context(forward.active())
            return function(module, state, xs)

    return steps if forwards else function


def recomputes_in_graphs() -> bool:
    """Whether this torch computes again in graphs that have forward and backward pass."""
    from torch import _dynamo
    from torch._functorch import config

    return hasattr(_dynamo.config, "trace_autograd_ops") and bool(
        getattr(config, "remat_using_tags_for_fwd_loss_bwd_graph", False)
    )


@contextmanager
def compilation(*, recomputes: bool = False) -> Iterator[None]:
    """Let torch compile without limit inside this context, with Python's garbage collector off and warnings silent.

    The collector takes a fifth of a compilation's time. Warnings are about torch's own use of deprecated functions. If
    tracing `torch.func.grad` fails or is interrupted, torch leaves hooks on saved tensors disabled in the whole
    process, which `torch.utils.checkpoint` needs; they are enabled again.
    """
    from torch import _dynamo

    patches = {**_LIMITS, **({"trace_autograd_ops": True} if recomputes else {})}
    checkpoints = logging.getLogger("torch._higher_order_ops.wrap")
    level = checkpoints.level

    autograd: Any = torch._C._autograd  # noqa: SLF001
    collecting, hooks_enabled = gc.isenabled(), autograd._saved_tensors_hooks_is_enabled()  # noqa: SLF001
    gc.disable()
    checkpoints.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), _dynamo.config.patch(patches), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        checkpoints.setLevel(level)
        if collecting:
            gc.enable()
        if hooks_enabled:
            autograd._saved_tensors_hooks_enable()  # noqa: SLF001


class StaleError(Exception):
    """A compiled function no longer matches: a module was changed after the compilation."""


@contextmanager
def no_recompilation() -> Iterator[None]:
    """Inside, nothing is compiled.

    Raises:
        StaleError: something would have to be; nothing was run then.
    """
    try:
        with torch.no_grad(), torch.compiler.set_stance("fail_on_recompile"):
            yield
    except RuntimeError as error:
        if "fail_on_recompile" not in str(error):
            raise
        raise StaleError from error
