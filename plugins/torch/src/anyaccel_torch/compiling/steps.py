"""Compiled steps at work: chosen, compiled by a call that changes nothing, tried, and then run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anyaccel.errors import CompileError
from anyaccel_torch import keras
from anyaccel_torch.compiling import strategies, toolchain_check
from anyaccel_torch.compiling.cuda_graph import Graph
from anyaccel_torch.compiling.dry_run import Facts, least, probe, unchanged
from anyaccel_torch.compiling.flat_state import Held
from anyaccel_torch.compiling.spec import Work
from anyaccel_torch.compiling.strategies import Way

FLAT_UP_TO = 2**17
"""Parameters (numbers, not tensors) up to which a step is more overhead than arithmetic."""

UNROLLED = 4
"""Steps in a call where there is no scan operator."""

_TRIED = 3
"""Steps that a compilation is made and tried with: no extent of a user's tensors is likely to equal it."""

_TRIALS = 3

_SLOWER = 1.1
"""Compiled steps that take longer than this, plain ones being 1, are not used: clocks are not better than that."""

_MUCH_SLOWER = 1.25
"""The same where what a plain step takes is known but for its update."""

Step = Callable[[Any, list[Tensor]], Any]


class Compiled:
    """Compiled steps of a program for batches of one size.

    `text` says in which way it is done; `seconds` is what the compilation took, `per_step` what a step takes now.
    """

    def __init__(self, work: Work, held: Held, way: Way, function: Step, batch: int) -> None:
        self.text, self._batch = way.text, batch
        self.seconds = self.per_step = 0.0
        self._stale = False
        self._work, self._held, self._way, self._function = work, held, way, function

    def fits(self) -> bool:
        """Whether nothing has happened since that makes these steps differ from what was compiled."""
        return not self._stale and self._held.fits()

    def steps(self, blocks: Iterable[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Train on blocks of rows [steps * batch, ...] of each input, as many whole calls as they hold.

        Returns:
            for each loss the means [steps], one tensor for each call; their lengths say how many steps were done.
        """
        found: list[list[Tensor]] = []
        for block in blocks:
            rows = [column.view(-1, self._batch, *column.shape[1:]) for column in block]
            before = len(found)
            try:
                found.extend(self._calls(rows))
            except strategies.Stale:
                self._stale, self.text = True, f"{self.text}, until a module was changed"
            if self._stale or sum(len(losses[0]) for losses in found[before:]) < len(rows[0]):
                break
        return found

    def _calls(self, rows: list[Tensor]) -> Iterator[list[Tensor]]:
        count, length = len(rows[0]), self._way.length
        numbers = self._held.numbers(count, self._work.device)
        if length == 0:
            if count > 1:
                yield self._looped([*rows, numbers])
            return
        for i in range(0, count - length + 1, length):
            yield self._written([x[i : i + length] for x in (*rows, numbers)])

    def _looped(self, xs: list[Tensor]) -> list[Tensor]:
        with strategies.as_compiled():
            state, losses = self._function(self._held.read(), xs)
        self._held.write(state)
        self._held.advance(len(xs[0]))
        return list(losses)

    def _written(self, xs: list[Tensor]) -> list[Tensor]:
        state = self._held.read()
        with strategies.as_compiled():
            losses = self._function(state, xs)
        self._held.advance(len(xs[0]))
        return list(losses)


def compiled(work: Work, rows: Sequence[Tensor], parts: int) -> Compiled:
    """Steps of a program, compiled by a call that changes nothing, and tried.

    Args:
        work: the program.
        rows: the inputs of one batch.
        parts: in how many parts a step is computed.

    Raises:
        CompileError: it cannot be, or brings nothing; says why.
    """
    _refuse(work, len(rows[0]), parts)
    begun = time.perf_counter()
    try:
        with unchanged(work):
            facts = probe(work, [row[: len(row) // parts] for row in rows])
        with unchanged(work):
            found = _in_some_way(work, facts, list(rows), parts)
    except (CompileError, MemoryError):
        raise
    except Exception as error:
        raise toolchain_check.told(error, work.segment.label) from error
    found.seconds = time.perf_counter() - begun
    if work.device.type == "cpu":  # elsewhere a clock does not tell what was computed
        _weigh(work, found, *_plain(work, rows, parts))
    return found


def _refuse(work: Work, batch: int, parts: int) -> None:
    own = [group.recipe.name for group in work.groups if group.recipe.own is not None]
    if own:
        asked = f"steps with {own[0]} cannot be compiled: only named optimizers can"
        raise CompileError(
            asked, available="sgd, momentum, adam, adamw", hint="name one of these, or set compile='off'"
        )
    if keras.outermost(work.whole) or any(keras.is_loss(term.loss.own) for term in work.segment.losses):
        raise CompileError("steps with layers or losses of Keras on torch cannot be compiled", hint="use torch's own")
    if batch % parts:
        asked = f"steps of {batch} rows in {parts} parts cannot be compiled: the parts are not equal"
        raise CompileError(asked, hint=f"let the batch size be a multiple of {parts}")


def _in_some_way(work: Work, facts: Facts, rows: list[Tensor], parts: int) -> Compiled:
    """By the best way that works."""
    if work.device.type == "cuda":
        return _captured(work, facts, rows, parts)
    toolchain_check.check()
    small = sum(each.numel() for group in work.groups for each in group.parameters) <= FLAT_UP_TO
    loop = toolchain_check.scan() if small else None
    if loop is None:
        return _made(work, facts, rows, parts, strategies.unrolled(UNROLLED if small else 1), None)
    try:
        return _made(work, facts, rows, parts, strategies.looping(), loop)
    except (CompileError, MemoryError):
        raise
    except Exception as error:
        try:
            found = _made(work, facts, rows, parts, strategies.unrolled(UNROLLED), None)
        except CompileError:
            raise
        except Exception as other:
            raise other from error
        found.text += f", as the scan operator failed: {type(error).__name__}"
        return found


def _captured(work: Work, facts: Facts, rows: list[Tensor], parts: int) -> Compiled:
    way = strategies.captured(UNROLLED)
    held = Held(work, facts, parts, flat=way.flat)
    graph = Graph(work.whole, held, way.length, rows)
    return Compiled(work, held, way, graph.replay, len(rows[0]))


def _made(
    work: Work, facts: Facts, rows: list[Tensor], parts: int, way: Way, loop: Callable[..., Any] | None
) -> Compiled:
    held = Held(work, facts, parts, flat=way.flat)
    function = strategies.function_of(way, held.plan, loop)
    with strategies.compiling():
        function(work.whole, held.copies(), _repeated(work, held, rows, way.length or _TRIED, marked=not way.length))
    strategies.keep(way, held.plan, function)
    found = Compiled(work, held, way, partial(function, work.whole), len(rows[0]))
    torch.set_rng_state(facts.random)
    xs = _repeated(work, held, rows, way.length or 4 * _TRIED, marked=False)
    seconds = []
    for attempt in range(_TRIALS):
        state = held.copies()
        begun = time.perf_counter()
        with strategies.as_compiled():
            result = function(work.whole, state, xs)
        seconds.append((time.perf_counter() - begun) / len(xs[0]))
        if attempt == 0 and parts == 1:
            _compare(work, facts, result if way.in_place else result[1])
    found.per_step = min(seconds)
    return found


def _repeated(work: Work, held: Held, rows: list[Tensor], count: int, *, marked: bool) -> list[Tensor]:
    """The same batch many times; `marked` where their number may change from call to call."""
    xs = [*[row.expand(count, *row.shape).contiguous() for row in rows], held.numbers(count, work.device)]
    if marked:
        strategies.any_length(xs)
    return xs


def _compare(work: Work, facts: Facts, losses: Sequence[Tensor]) -> None:
    """The first losses must be those of the plain step: what was compiled may be wrong."""
    for term, plain, found in zip(work.segment.losses, facts.losses, losses, strict=True):
        rough = 0.1 if plain.itemsize < 4 else 0.01
        if not torch.allclose(found[0].double(), plain.double(), rtol=rough, atol=rough, equal_nan=True):
            asked = (
                f"compiled steps of segment {work.segment.label!r} do not give the loss {term.label!r} of plain ones"
            )
            remedy = "set compile='off'; random numbers of a module's own may be the reason"
            raise CompileError(asked, available=f"{float(found[0]):.6g} instead of {float(plain):.6g}", hint=remedy)


def _plain(work: Work, rows: Sequence[Tensor], parts: int) -> tuple[float, float]:
    """Seconds of a plain step (all but its update where none was seen), and how much more a compiled one may take."""
    if work.plain:
        return work.plain, _SLOWER
    with unchanged(work):
        return parts * least(work, [row[: len(row) // parts] for row in rows]), _MUCH_SLOWER


def _weigh(work: Work, found: Compiled, plain: float, most: float) -> None:
    """Compiled steps that are slower than plain ones are not used."""
    if found.per_step > most * plain:
        raise CompileError(
            f"compiled steps of segment {work.segment.label!r} are slower than plain ones",
            available=f"{found.per_step * 1e6:.0f} us a step instead of {plain * 1e6:.0f} us",
            hint="set compile='off' or 'auto'",
        )
