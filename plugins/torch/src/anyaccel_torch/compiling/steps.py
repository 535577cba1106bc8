"""Compiled steps: a strategy is chosen, compiled by a call that changes nothing, compared, timed, and then run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import optimizer as hook_registry

from anyaccel import interrupts
from anyaccel.errors import CompileError
from anyaccel.formulas import OPTIMIZERS
from anyaccel.specs import Optimizer
from anyaccel_torch import array_functions, keras
from anyaccel_torch.compiling import strategies, toolchain_check
from anyaccel_torch.compiling.device_loss_scale import device_loss_scale
from anyaccel_torch.compiling.dry_run import StepEffects, observe_step, time_step, undone
from anyaccel_torch.compiling.functional_step import State
from anyaccel_torch.compiling.spec import Block, CompileRequest, SegmentModule, StepSpec, UpdateRule
from anyaccel_torch.compiling.strategies import Strategy
from anyaccel_torch.replaced_tensors import tensor_names

_WARMUP_CALLS = 3  # before a capture, in which libraries choose their algorithms


class CapturedSteps:
    """`length` steps, captured over separate memory: a replay copies the state there, and back.

    Args:
        module: Modules of the segment.
        flat_state: State that the steps read and change.
        length: Steps in a replay.
        rows: Inputs of one batch.
    """

    def __init__(self, module: SegmentModule, flat_state: FlatState, length: int, rows: list[Tensor]) -> None:
        device = rows[0].device
        repeated = [row.expand(length, *row.shape).contiguous() for row in rows]
        self._xs = [*repeated, flat_state.scalars(length, device)]
        self._state = flat_state.copies()
        steps = strategies.in_place_function(flat_state.spec)
        side_stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side_stream), torch.no_grad():
            for _ in range(_WARMUP_CALLS):
                steps(module, self._state, self._xs)
        torch.cuda.current_stream(device).wait_stream(side_stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph), torch.no_grad():
            self._losses: list[Tensor] = steps(module, self._state, self._xs)

    def replay(self, state: Any, xs: list[Tensor]) -> list[Tensor]:
        """Return the losses [steps] each; `state` is changed in place."""
        state_tensors, captured = strategies.tensors_of(state), strategies.tensors_of(self._state)
        with torch.no_grad():
            torch._foreach_copy_([*captured, *self._xs], [*state_tensors, *xs])
            self._graph.replay()
            torch._foreach_copy_(state_tensors, captured)
            return [loss.clone() for loss in self._losses]


FLAT_UP_TO = 2**17
"""Number of parameters (elements) up to which a step is more overhead than arithmetic."""

UNROLLED = 4
"""Steps in a call without a scan operator."""

_TRIAL_STEPS = 3
"""Steps of the call that compiles: unlikely to equal an extent of a user's tensors."""

_TRIALS = 3

_MORE_TRIALS = 5
"""How often steps that seem too slow are timed again: other work on the machine may have disturbed them."""

_SLOWER = 1.1
"""Compiled steps that take more than this many times an uncompiled one are not used; clocks are no better than that."""

_MUCH_SLOWER = 1.25
"""The same if the uncompiled step was timed without its update."""


class CompiledSteps:
    """Compiled steps of a program for batches of one size.

    Attributes:
        description: A description of their execution.
        compile_seconds: Time of the compilation.
        step_seconds: Time of a compiled step.
    """

    def __init__(
        self,
        request: CompileRequest,
        state: FlatState,
        strategy: Strategy,
        function: Callable[[Any, list[Tensor]], Any],
        batch: int,
    ) -> None:
        self.description, self._batch = strategy.description, batch
        self.compile_seconds = self.step_seconds = 0.0
        self._stale = False
        self._request, self._state, self._strategy, self._function = request, state, strategy, function

    def fits(self) -> bool:
        """Return whether the program is unchanged since the compilation."""
        return not self._stale and self._state.fits()

    def time_again(self, rows: list[Tensor]) -> None:
        """Time a call on the rows of one batch, changing nothing; `step_seconds` stays the least."""
        xs = _repeated(self._request, self._state, rows, self._strategy.length or 4 * _TRIAL_STEPS)
        with undone(self._request):
            seconds, _ = _timed(self._function, self._state, xs)
        self.step_seconds = min(self.step_seconds, seconds)

    def run(self, blocks: Iterable[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Train on blocks of rows [steps * batch, ...] of each input, as many whole calls as they hold.

        Returns:
            Per call, the mean losses [steps] of each loss; their lengths are the numbers of completed steps.
        """
        calls: list[list[Tensor]] = []
        for block in blocks:
            rows = [column.view(-1, self._batch, *column.shape[1:]) for column in block]
            before = len(calls)
            try:
                calls.extend(self._calls(rows))
            except strategies.StaleError:
                self._stale, self.description = True, f"{self.description}, until a module was changed"
            if self._stale or sum(len(losses[0]) for losses in calls[before:]) < len(rows[0]):
                break
        return calls

    def _calls(self, rows: list[Tensor]) -> Iterator[list[Tensor]]:
        count, length = len(rows[0]), self._strategy.length
        scalars = self._state.scalars(count, self._request.device)
        try:
            if length == 0 and count > 1:
                yield self._call([*rows, scalars])
            for i in range(0, count - length + 1, length) if length else ():
                yield self._call([*[x[i : i + length] for x in rows], self._state.scalars_of_call(scalars, i, length)])
        finally:
            self._state.settle()

    def _call(self, xs: list[Tensor]) -> list[Tensor]:
        state = self._state.read()
        with strategies.no_recompilation():
            result = self._function(state, xs)
        if not self._strategy.in_place:
            state, result = result
            self._state.write(state)
        self._state.count_steps(state, len(xs[0]))
        return list(result)


def compile_steps(request: CompileRequest, rows: Sequence[Tensor], n_microbatches: int) -> CompiledSteps:
    """Compile the steps of a program by a call that changes nothing, and test the result.

    Args:
        request: The program.
        rows: Inputs of one batch.
        n_microbatches: Number of micro-batches of a batch.

    Raises:
        CompileError: Compilation fails, or does not pay off; the message has the reason.
    """
    batch = len(rows[0])
    check_optimizers(request)
    if keras.outermost(request.module) or any(
        keras.library().is_loss(term.loss.own) for term in request.segment.losses
    ):
        raise CompileError(
            "steps with Keras layers or losses on torch cannot be compiled",
            hint="use layers and losses of torch, or compile='off'",
        )
    if request.recomputes and (n_microbatches > 1 or not strategies.recomputes_in_graphs()):
        why = "in micro-batches" if n_microbatches > 1 else f"with torch {torch.__version__}"
        raise CompileError(
            f"steps {why} with recomputed values (remat) cannot be compiled",
            hint="set compile='off', or leave remat out",
        )
    if n_microbatches > 1 and any(loss.total_weight is not None for loss in request.losses):
        raise CompileError(
            "steps in micro-batches with a loss that weights rows or positions cannot be compiled",
            hint="use a smaller batch_size instead, or set compile='off'",
        )
    if batch % n_microbatches:
        raise CompileError(
            f"steps of {batch} rows in {n_microbatches} micro-batches cannot be compiled: they are not equal",
            hint=f"use a batch_size that is a multiple of {n_microbatches}",
        )
    started = time.perf_counter()
    try:
        with undone(request):
            effects = observe_step(request, [row[: len(row) // n_microbatches] for row in rows])
        with undone(request), interrupts.allowed(may_catch=False):  # it lasts, and nothing is kept of it
            compiled = _compile(request, effects, list(rows), n_microbatches)
    except (CompileError, MemoryError):
        raise
    except Exception as error:
        raise toolchain_check.compile_error(error, request.segment.label) from error
    compiled.compile_seconds = time.perf_counter() - started
    if request.device.type == "cpu":  # elsewhere a clock does not say what was computed
        _check_pays(request, compiled, rows, n_microbatches)
    return compiled


def check_optimizers(request: CompileRequest) -> None:
    """Refuse what compiled steps would train by another formula than it has, or without a part of it.

    Raises:
        CompileError: an optimizer that has no formula for compiled steps, or hooks of all optimizers' steps.
    """
    others = [group.spec.name for group in request.groups if group.spec.own is not None]
    if others:
        raise CompileError(
            f"steps with the optimizer {others[0]} cannot be compiled: it has no formula for them",
            available=", ".join(OPTIMIZERS),
            hint="use an available name, or set compile='off'",
        )
    hooks = (getattr(hook_registry, f"_global_optimizer_{when}_hooks", None) for when in ("pre", "post"))  # private
    if any(hooks):
        raise CompileError(
            "compiled steps do not call hooks from register_optimizer_step_pre_hook or "
            "register_optimizer_step_post_hook",
            hint="remove these hooks with their handles, or set compile='off'",
        )


def _compile(request: CompileRequest, effects: StepEffects, rows: list[Tensor], n_microbatches: int) -> CompiledSteps:
    """Compile by the best strategy that works."""
    if request.device.type == "cuda":
        strategy = strategies.unrolled(UNROLLED, f"{UNROLLED} steps in a CUDA graph")
        state = FlatState(request, effects, n_microbatches, flat=strategy.flat)
        captured = CapturedSteps(request.module, state, strategy.length, rows)
        return CompiledSteps(request, state, strategy, captured.replay, len(rows[0]))
    toolchain_check.check()
    small = sum(parameter.numel() for parameter in request.trained) <= FLAT_UP_TO
    scan = toolchain_check.scan() if small else None
    attempt = partial(_compile_by, request, effects, rows, n_microbatches)
    if request.recomputes:  # torch computes again in the backward pass of one step alone
        return attempt(strategies.unrolled(1), None)
    if scan is None:
        return attempt(strategies.unrolled(UNROLLED if small else 1), None)
    try:
        return attempt(strategies.SCAN, scan)
    except (CompileError, MemoryError):
        raise
    except Exception as error:
        try:
            compiled = attempt(strategies.unrolled(UNROLLED), None)
        except CompileError:
            raise
        except Exception as second_error:
            raise second_error from error
        compiled.description += f", because the scan operator failed: {type(error).__name__}"
        return compiled


def _compile_by(
    request: CompileRequest,
    effects: StepEffects,
    rows: list[Tensor],
    n_microbatches: int,
    strategy: Strategy,
    scan: Callable[..., Any] | None,
) -> CompiledSteps:
    state = FlatState(request, effects, n_microbatches, flat=strategy.flat)
    own = strategies.step_function(strategy, state.spec, scan)
    function = strategies.recomputing(own, request.forwards)
    xs = _repeated(request, state, rows, strategy.length or _TRIAL_STEPS)
    if strategy.length == 0:
        strategies.mark_any_length(xs)
    with strategies.compilation(recomputes=request.recomputes):
        function(request.module, state.copies(), xs)
    strategies.cache(strategy, state.spec, own)
    compiled = CompiledSteps(request, state, strategy, partial(function, request.module), len(rows[0]))
    xs = _repeated(request, state, rows, strategy.length or 4 * _TRIAL_STEPS)
    torch.set_rng_state(effects.random)
    compiled.step_seconds, result = _timed(partial(function, request.module), state, xs)
    if n_microbatches == 1:
        # The first losses must be those of the uncompiled step: what was compiled may be wrong.
        losses = result if strategy.in_place else result[1]
        for term, expected, actual in zip(request.segment.losses, effects.losses, losses, strict=False):
            tolerance = 0.1 if expected.itemsize < 4 else 0.01
            if not torch.allclose(
                actual[0].double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True
            ):
                raise CompileError(
                    f"compiled steps of segment {request.segment.label!r} return another loss {term.label!r} "
                    f"than uncompiled steps: {float(actual[0]):.6g} instead of {float(expected):.6g}",
                    hint="set compile='off'; random numbers generated by a module may be the cause",
                )
    return compiled


def _timed(function: Callable[[Any, list[Tensor]], Any], state: FlatState, xs: list[Tensor]) -> tuple[float, Any]:
    """Return the seconds of a compiled step at best, and the first result."""
    seconds, results = [], []
    for _ in range(_TRIALS):
        copies = state.copies()
        started = time.perf_counter()
        with strategies.no_recompilation():
            results.append(function(copies, xs))
        seconds.append((time.perf_counter() - started) / len(xs[0]))
    return min(seconds), results[0]


def _repeated(request: CompileRequest, state: FlatState, rows: list[Tensor], count: int) -> list[Tensor]:
    """Return the inputs of `count` steps on the same batch."""
    return [*[row.expand(count, *row.shape).contiguous() for row in rows], state.scalars(count, request.device)]


def _check_pays(request: CompileRequest, compiled: CompiledSteps, rows: Sequence[Tensor], n_microbatches: int) -> None:
    """Refuse compiled steps that are slower than uncompiled ones."""
    eager, factor = request.eager_seconds, _SLOWER
    if not eager:  # time one without its update
        with undone(request):
            eager = n_microbatches * time_step(request, [row[: len(row) // n_microbatches] for row in rows])
        factor = _MUCH_SLOWER
    for _ in range(_MORE_TRIALS):
        if compiled.step_seconds <= factor * eager:
            return
        compiled.time_again(list(rows))
    if compiled.step_seconds > factor * eager:
        raise CompileError(
            f"compiled steps of segment {request.segment.label!r} are slower than uncompiled "
            f"steps: {compiled.step_seconds * 1e6:.0f} us per step instead of {eager * 1e6:.0f} us",
            hint="set compile='off' or 'auto'",
        )


# -- The state that a compiled step needs: read from a program into tensors, written back, and counted on --------------


RuleKey = tuple[int, int, int, Optimizer]
"""Group, steps that the node has done, steps that the parameter has, and settings; equal keys share a rule."""


class FlatState:
    """The trained parameters that a step reaches, their slots, and the buffers that it changes.

    Args:
        request: The program.
        effects: The effects of a step of it.
        n_microbatches: Number of parts of each batch.
        flat: Whether parameters of one rule and dtype are concatenated, so that they are updated together.
    """

    def __init__(self, request: CompileRequest, effects: StepEffects, n_microbatches: int, *, flat: bool) -> None:
        self._groups = request.groups
        self._scale = device_loss_scale(request.scaling, request.device)
        self._reached = [
            [parameter for parameter in group.parameters if id(parameter) in effects.reached]
            for group in request.groups
        ]
        self._group_of = {
            parameter: group
            for group, reached in zip(request.groups, self._reached, strict=True)
            for parameter in reached
        }
        keys = self._keys()
        rules = list(dict.fromkeys(keys.values()))
        self._partition, self._representatives = _partition(keys), _representatives(keys)
        named_buffers = dict(request.module.named_buffers())
        self._buffers = [named_buffers[name] for name in effects.buffers]
        self._blocks = _blocks(keys) if flat else [[parameter] for parameter in keys]
        self._revision = self._current_revision()
        names = {id(parameter): name for name, parameter in request.module.named_parameters()}
        self.spec = StepSpec(
            rules=tuple(self._rule(key) for key in rules),
            blocks=tuple(
                Block(
                    rules.index(keys[block[0]]),
                    tuple(names[id(parameter)] for parameter in block),
                    tuple(tuple(parameter.shape) for parameter in block),
                    tuple(parameter.numel() for parameter in block),
                )
                for block in self._blocks
            ),
            buffers=effects.buffers,
            places=tuple(tensor_names(request.module).items()),
            weights=tuple(request.losses[i].weight if i in effects.roots else 0.0 for i in range(len(effects.losses))),
            mutated=effects.mutated,
            n_computed=request.n_computed,
            n_microbatches=n_microbatches,
            loss_scale=request.scaling.spec,
            recomputes=request.recomputes,
        )

    # -- grouping --------------------------------------------------------------------------------------------------

    def _keys(self) -> dict[nn.Parameter, RuleKey]:
        return {
            parameter: (i, group.steps(parameter), group.custom_steps(parameter), group.settings_of(parameter))
            for i, (group, reached) in enumerate(zip(self._groups, self._reached, strict=True))
            for parameter in reached
        }

    def _rule(self, key: RuleKey) -> UpdateRule:
        spec, own = self._groups[key[0]].spec, key[3]
        rule = OPTIMIZERS[own.name]
        return UpdateRule(
            optimizer=rule,
            settings=tuple(sorted(own.settings.items())),
            coefficients=tuple(rule.coefficients(own.settings, np, own.lr, 1)),
            slots=rule.slots(own.settings),
            clip_norm=spec.clip_norm,
            clip_value=spec.clip_value,
            group=key[0],
        )

    def _current_revision(self) -> int:
        return sum(group.revision for group in self._groups)

    def fits(self) -> bool:
        """Whether parameters still share rules as they did; single steps in between may have changed that."""
        revision = self._current_revision()
        if revision != self._revision:
            keys = self._keys()
            if _partition(keys) != self._partition:
                return False
            self._representatives, self._revision = _representatives(keys), revision
        return True

    # -- values ----------------------------------------------------------------------------------------------------

    def read(self) -> State:
        """Return the current state. A block of one parameter is that very memory; several are copied end to end."""
        with torch.no_grad():
            slots = [[_flattened(slot) for slot in self._slots(block)] for block in self._blocks]
            return [_flattened(block) for block in self._blocks], slots, list(self._buffers), self._scale.arrays()

    def _slots(self, block: Sequence[nn.Parameter]) -> list[tuple[Tensor, ...]]:
        """Return the slots of a block: for each slot, one tensor per parameter."""
        group = self._group_of[block[0]]
        return list(zip(*[group.slot_tensors(parameter) for parameter in block], strict=True))

    @torch.no_grad()
    def write(self, state: State) -> None:
        """Write a state into the parameters, slots and buffers."""
        blocks, slots, buffers, _ = state
        for block, value, new_slots in zip(self._blocks, blocks, slots, strict=True):
            _unflatten(value, block)
            for new, held in zip(new_slots, self._slots(block), strict=True):
                _unflatten(new, held)
        for buffer, new in zip(self._buffers, buffers, strict=True):
            if new is not buffer:
                buffer.copy_(new)

    def copies(self) -> State:
        """Return a copy of the current state."""
        blocks, slots, buffers, scale = self.read()
        copied_slots = [[slot.clone() for slot in held] for held in slots]
        return [block.clone() for block in blocks], copied_slots, [buffer.clone() for buffer in buffers], scale

    # -- step counts -----------------------------------------------------------------------------------------------

    def scalars(self, count: int, device: torch.device) -> Tensor:
        """Return the coefficients of all rules in a row for each step: float64 [count, ...] on `device`, with no
        transfer.
        """
        columns = []
        for rule, (i, parameter, behind) in zip(self.spec.rules, self._representatives, strict=True):
            group = self._groups[i]
            first = group.steps(parameter) - behind + 1
            steps = torch.arange(first, first + count, dtype=torch.float64, device=device)
            rate = group.rates(parameter, count)  # one for all steps, or one for each
            if len(rate) == 1:
                rates = torch.full((count,), rate[0], dtype=torch.float64, device=device)
            elif device.type == "cpu":
                rates = torch.tensor(rate, dtype=torch.float64)
            else:  # no transfer
                rates = torch.stack([torch.full((), r, dtype=torch.float64, device=device) for r in rate])
            numbers = rule.optimizer.coefficients(dict(rule.settings), array_functions, rates, steps)
            columns += [n if isinstance(n, Tensor) else torch.full_like(rates, n) for n in numbers.values()]
        return torch.stack(columns, 1)

    def scalars_of_call(self, scalars: Tensor, start: int, count: int) -> Tensor:
        """Return those of `count` steps from step `start` of `scalars` on, less the steps that were skipped since
        `settle`.
        """
        return self._scale.rows(scalars, start, count)

    def settle(self) -> None:
        """Subtract the steps that some calls skipped from the count; waits for them if losses are scaled."""
        skipped = self._scale.settle()
        if skipped:
            self._count(-skipped)

    def count_steps(self, state: State, count: int) -> None:
        """Count steps that were done, which have left this state."""
        self._scale.leave(state[3])
        self._count(count)

    def _count(self, count: int) -> None:
        for group, reached in zip(self._groups, self._reached, strict=True):
            group.count_steps(reached, count)


def _partition(keys: dict[nn.Parameter, RuleKey]) -> list[int]:
    """Return the index of each parameter's rule: equal lists mean equal sharing of rules, ignoring the step counts."""
    rules = list(dict.fromkeys(keys.values()))
    return [rules.index(key) for key in keys.values()]


def _representatives(keys: dict[nn.Parameter, RuleKey]) -> list[tuple[int, nn.Parameter, int]]:
    """Return for each rule its group, one of its parameters, and the number of steps that it is behind its node."""
    first: dict[RuleKey, nn.Parameter] = {}
    for parameter, key in keys.items():
        first.setdefault(key, parameter)
    return [(group, parameter, steps - done) for (group, steps, done, _), parameter in first.items()]


def _blocks(keys: dict[nn.Parameter, RuleKey]) -> list[list[nn.Parameter]]:
    blocks: dict[Any, list[nn.Parameter]] = {}
    for parameter, key in keys.items():
        alone = None if OPTIMIZERS[key[3].name].elementwise else parameter
        blocks.setdefault((key, parameter.dtype, alone), []).append(parameter)
    return list(blocks.values())


def _flattened(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors]) if len(tensors) > 1 else tensors[0].detach()


def _unflatten(value: Tensor, into: Sequence[Tensor]) -> None:
    if len(into) == 1:
        if value.data_ptr() != into[0].data_ptr():
            into[0].copy_(value.view(into[0].shape))
        return
    parts = torch.split(value, [tensor.numel() for tensor in into])
    torch._foreach_copy_(list(into), [part.view(tensor.shape) for part, tensor in zip(parts, into, strict=True)])
