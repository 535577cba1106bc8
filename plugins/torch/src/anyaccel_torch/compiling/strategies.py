"""How many steps become one call: torch's scan operator, or a few written down one after the other."""

from __future__ import annotations

import gc
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyaccel_torch.compiling.functional_step import repeated, step
from anyaccel_torch.compiling.spec import Plan, Whole

Function = Callable[[Whole, Any, list[Tensor]], Any]
"""Of the whole, the state and [values of many steps.., numbers], each with a first axis of steps: see the ways."""

# Values of random numbers are torch's own, so that dropout is that of plain steps; the user's settings stay.
_OPTIONS: Mapping[str, Any] = {"cpp_wrapper": True, "fallback_random": True, "compile_threads": 1}

_LIMITS = {"recompile_limit": 1 << 10, "accumulated_recompile_limit": 1 << 14}

# Compiled functions hold plans, never modules: what they may be used for again is for torch's guards to say.
_KEPT: OrderedDict[tuple[str, Plan, int], Function] = OrderedDict()
_MOST_KEPT = 32


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run many steps in one call.

    `text` says it; `length` is the number of steps in a call, 0 for any from 2; `flat` whether parameters are laid end
    to end; `in_place` whether the function changes the state itself and gives the losses alone.
    """

    text: str
    length: int
    flat: bool
    in_place: bool
    threads: int


def looping() -> Way:
    """Torch's scan operator, on one thread: threads do not pay in steps that take microseconds."""
    return Way("all steps of a call in one compiled loop", 0, flat=True, in_place=False, threads=1)


def unrolled(length: int) -> Way:
    """`length` steps in a call."""
    text = f"{length} compiled steps a call" if length > 1 else "one compiled step a call"
    return Way(text, length, flat=False, in_place=True, threads=-1)


def captured(length: int) -> Way:
    """`length` steps in a CUDA graph."""
    return Way(f"{length} steps in a CUDA graph", length, flat=False, in_place=True, threads=-1)


def function_of(way: Way, plan: Plan, loop: Callable[..., Any] | None) -> Function:
    """The function of a way and a plan, not yet compiled; the same one for an equal plan as long as it is kept."""
    key = (way.text, plan, way.length)
    if key not in _KEPT:
        made = writing(plan) if loop is None or way.in_place else _scanning(plan, loop)
        options = {**_OPTIONS, "cpp.threads": way.threads} if way.threads > 0 else dict(_OPTIONS)
        return compiler(_alone(made), options)
    _KEPT.move_to_end(key)
    return _KEPT[key]


def keep(way: Way, plan: Plan, function: Function) -> None:
    """Remember a function that has been compiled."""
    _KEPT[way.text, plan, way.length] = function
    while len(_KEPT) > _MOST_KEPT:
        _KEPT.popitem(last=False)


def compiler(function: Function, options: dict[str, Any]) -> Function:
    """As torch compiles it, all in one piece or not at all."""
    found: Function = torch.compile(function, fullgraph=True, dynamic=False, options=options)
    return found


def _alone(function: Function) -> Function:
    """The function with a code object of its own, by which torch keeps what it has compiled."""
    assert isinstance(function, types.FunctionType)
    code = function.__code__.replace()
    return types.FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)


def _scanning(plan: Plan, loop: Callable[..., Any]) -> Function:
    def steps(whole: Whole, state: Any, xs: list[Tensor]) -> Any:
        """The state after the steps, and the losses [steps] each."""

        def one(carry: Any, x: list[Tensor]) -> Any:
            return step(whole, plan, carry, x[:-1], x[-1], loop)

        return loop(one, state, xs)

    return steps


def writing(plan: Plan) -> Function:
    """Steps written down one after the other, which change the state in place."""

    def steps(whole: Whole, state: Any, xs: list[Tensor]) -> Any:
        """The losses [steps] each; the state is changed in place."""

        def one(carry: Any, x: list[Tensor]) -> Any:
            return step(whole, plan, carry, x[:-1], x[-1], repeated)

        after, losses = repeated(one, state, xs)
        for old, new in zip(tensors_of(state), tensors_of(after), strict=True):
            old.copy_(new)
        return losses

    return steps


def any_length(xs: list[Tensor]) -> None:
    """Let what is compiled for these tensors take others with another first extent."""
    from torch import _dynamo

    for x in xs:
        _dynamo.mark_dynamic(x, 0)


def tensors_of(state: Any) -> list[Tensor]:
    """The tensors of a state in one list."""
    pieces, slots, buffers = state
    return [*pieces, *[slot for held in slots for slot in held], *buffers]


@contextmanager
def compiling() -> Iterator[None]:
    """Inside, torch may compile as often as it takes, and Python's collector, which takes a fifth of it, rests.

    What torch warns of is its own: it uses what it has deprecated itself.
    """
    from torch import _dynamo

    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings(), _dynamo.config.patch(_LIMITS), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        if collecting:
            gc.enable()


class Stale(Exception):
    """What was compiled does not fit any more: a module was changed meanwhile."""


@contextmanager
def as_compiled() -> Iterator[None]:
    """Inside, nothing is compiled.

    Raises:
        Stale: something would have to be; nothing was run then.
    """
    try:
        with torch.no_grad(), torch.compiler.set_stance("fail_on_recompile"):
            yield
    except RuntimeError as error:
        if "fail_on_recompile" not in str(error):
            raise
        raise Stale from error
