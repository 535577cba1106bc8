"""TracedActs: the acts of a program from compiled functions, or one by one where that is better or the only way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from anyaccel.adapter.array_ops import VjpResult, factor_on_device
from anyaccel.adapter.array_program import ArrayProgram
from anyaccel.adapter.compile_cache import compiled
from anyaccel.adapter.optimizer_step import Acts
from anyaccel.adapter.segment_analysis import Reach, devices_of
from anyaccel.adapter.traced_ops import TracedOps, is_floating
from anyaccel.errors import AnyaccelError
from anyaccel.segment import Operation, Segment

Found = TypeVar("Found")


class TracedActs(ArrayProgram):
    """The same numbers as `ArrayProgram`, from one compiled function for each act instead of many small ones.

    Where a segment uses several devices and compiled functions may not (`TracedOps.multi_device`), nothing is compiled as a
    whole. A parameter of a reached model that its outputs do not depend on has a gradient of zeros.

    Nothing is compiled where `segment.compile` is `"off"`, nor where it has turned out that a model cannot be traced:
    then each operation is done by itself, as in `ArrayProgram`. Where `TracedOps.eager_seconds` is a number, that is also
    how things begin. What is random is the same in every way.

    Attributes:
        untraced: why nothing is compiled any more; `""` while it is.

    Raises:
        SpecError: an optimizer or loss that the framework lacks.
        GraphError: two different models, one of which learns, share a parameter.
    """

    def __init__(self, segment: Segment, ops: TracedOps) -> None:
        super().__init__(segment, ops)
        self._traced = ops
        self._reach = reach = Reach(segment, self._layout)
        self._whole = ops.multi_device or len(devices_of(segment)) == 1
        self._compiled = compiled(self._wired, ops, reach, self._learning.updates, self._whole)
        self._one_by_one = Acts(self._learning.updates, lambda function: function)
        self._numbers = {op.label: number for number, op in enumerate(segment.operations)}
        self._spent = 0.0
        self._key = ops.key(0)
        self.untraced = ""
        ops.eager = segment.compile == "off"
        self._learning.acts = self._one_by_one if ops.eager or ops.eager_seconds else self._compiled.acts

    def seed(self, key: int) -> None:
        """Restart the random streams."""
        super().seed(key)
        self._key = self._traced.key(key)

    def _random(self, op: Operation) -> Any:
        draw = self._traced.fold(self._key, self._traced.scalar(self._draws))
        return self._traced.fold(draw, self._numbers[op.label])

    def _pulled_through(
        self, op: Operation, parameters: Any, buffers: Any, given: tuple[Any, ...], key: Any
    ) -> VjpResult:
        flows = [name in self._layout.wanted for name in op.inputs]
        return self._traced.vjp(op.model, parameters, buffers, given, op.trainable, key, flows)

    # -- two ways --------------------------------------------------------------------------------------------------

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        """Inside, nothing is compiled."""
        before = self._traced.eager, self._learning.acts
        self._traced.eager, self._learning.acts = True, self._one_by_one
        try:
            yield
        finally:
            self._traced.eager, self._learning.acts = before

    def _either(self, act: str, traced: Callable[[], Found], plain: Callable[[], Found]) -> Found:
        """What an act gives; one by one while that has not taken as long as to compile it, or if it must be."""
        if self._traced.eager:
            return plain()
        if act not in self._compiled.proven and self._spent < (self._traced.eager_seconds or 0.0):
            began = time.perf_counter()
            with self._plainly():
                found = plain()
            self._spent += time.perf_counter() - began
            return found
        return self._tried(act, traced, plain)

    def _tried(self, act: str, traced: Callable[[], Found], plain: Callable[[], Found]) -> Found:
        """What a compiled act gives; if it has never worked and does not now, whether it is done one by one tells."""
        draws = self._draws
        try:
            found = traced()
        except AnyaccelError:
            raise
        except Exception as error:
            if act in self._compiled.proven:
                raise
            reason = reason_of(error)
        else:
            self._compiled.proven.add(act)
            self._learning.acts = self._compiled.acts
            return found
        self._draws = draws
        with self._plainly():
            found = plain()
        self._give_up(reason)
        return found

    def _give_up(self, reason: str) -> None:
        self.untraced, self._traced.eager = reason, True
        self._learning.acts = self._one_by_one

    # -- one by one ------------------------------------------------------------------------------------------------

    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]]]:
        """Outputs and losses in evaluation mode."""
        return self._either("forward", partial(self._evaluated, inputs), partial(super().forward, inputs))

    def _evaluated(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]]]:
        outputs, losses = self._compiled.evaluated(self._learning.parameters, self._buffers, self._named(inputs))
        return tuple(outputs.get(name) for name in self.segment.outputs), self._in_order(losses)

    def _named(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """The inputs that there are in this step."""
        found = zip(self.segment.inputs, inputs, strict=True)
        return {name: value for name, value in found if value is not None}

    def _in_order(self, losses: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        return {term.label: tuple(losses[term.label]) for term in self.segment.losses if term.label in losses}

    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]], Callable[[Sequence[Any]], tuple[Any, ...]]]:
        """Outputs and losses in training mode, and the pullback."""
        plain = partial(super().forward_pullback, inputs, scale)
        return self._either("forward_pullback", partial(self._pulled, inputs, scale), plain)

    def _pulled(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None
    ) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]], Callable[[Sequence[Any]], tuple[Any, ...]]]:
        self._draws += 1
        parameters = self._learning.parameters
        named = self._named(inputs)
        primals = {
            "parameters": {owner: parameters[owner] for owner in self._reach.learning},
            "inputs": {name: named[name] for name in self._pulled_back(named)},
        }
        rest = {
            "parameters": {owner: parameters[owner] for owner in self._reach.constant},
            "buffers": self._buffers,
            "inputs": {name: value for name, value in named.items() if name not in primals["inputs"]},
            "key": self._key,
            "draw": self._ops.scalar(self._draws),
            "scale": self._scales(scale),
        }
        live, others, pull = self._compiled.pulled(primals, rest)
        self._buffers = {**self._buffers, **others["buffers"]}
        outputs = tuple(live.get(name, others["outputs"].get(name)) for name in self.segment.outputs)
        losses = self._in_order(others["losses"])
        return outputs, losses, partial(self._pull, pull, others["seeds"], named, tuple(losses))

    def _pulled_back(self, named: Mapping[str, Any]) -> list[str]:
        return [name for name in self.segment.needs_pullback if name in named and is_floating(named[name])]

    def _scales(self, scale: Mapping[str, Any] | None) -> dict[str, Any]:
        if scale is None:
            return {}
        terms = [term for term in self.segment.losses if term.label in scale]
        found = {term.label: factor_on_device(self._ops, scale[term.label], term.device) for term in terms}
        return {label: self._ops.scalar(one) if isinstance(one, float) else one for label, one in found.items()}

    def _pull(
        self,
        pull: Callable[[Any], Any],
        seeds: Mapping[str, Any],
        inputs: Mapping[str, Any],
        losses: Sequence[str],
        cotangents: Sequence[Any],
    ) -> tuple[Any, ...]:
        together = zip(self.segment.outputs, cotangents, strict=True)
        given = {name: one for name, one in together if one is not None and name in seeds}
        active, back = self._reach.active(given, losses), {}
        if active:
            found = pull({name: seed + given[name] if name in given else seed for name, seed in seeds.items()})
            for owner in self._reach.owners(active):
                self._learning.add(owner, found["parameters"][owner])
            back = found["inputs"]
        return tuple(self._cotangent_of(name, back, inputs) for name in self.segment.needs_pullback)

    def _cotangent_of(self, name: str, back: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        if name in back or name not in inputs:
            return back.get(name)
        return self._ops.xp.zeros_like(inputs[name])


def reason_of(error: Exception) -> str:
    """The first line that says something."""
    lines = [line.strip() for line in str(error).splitlines()]
    return f"{type(error).__name__}: {next((line for line in lines if line), '')}"
