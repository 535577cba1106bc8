"""SegmentTests: programs of several operations: chains, concatenation, frozen and shared models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anyaccel.errors import SpecError
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel.testing import reference_formulas
from anyaccel.testing.harness import GROUP, LOSS, Batch, Bench, Wiring, close, same, scalar
from anyaccel.testing.subject import Subject

Make = Callable[[], Any]
BATCH = Batch.of(6)
SGD = Optimizer("sgd", lr=0.1)
FOREIGN = type("Foreign", (), {"__module__": "another_framework.parts", "__call__": lambda self, *inputs: None})
SQUARES = {
    "above the limit": (0.5, [4.0]),
    "at the limit": (2.0, [4.0]),
    "below the limit": (2.5, [4.0]),
    "nothing": (0.5, [0.0]),
    "tiny": (1e-7, [1e-12]),
    "of several parts": (0.5, [4.0, 9.0, 0.25]),
    "of several parts, below": (10.0, [4.0, 9.0, 0.25]),
    "infinite": (0.5, [np.inf]),
    "infinite in part": (0.5, [1.0, np.inf]),
    "not a number": (0.5, [np.nan]),
    "not a number in part": (0.5, [1.0, np.nan, np.inf]),
}
SAMPLE = np.random.default_rng(8).normal(size=(6, 2, 3)).astype("float32")


def chain(bench: Bench, first: Any, second: Any, trainable: tuple[bool, bool]) -> Segment:
    """x[4] to `first` to y[3], joined with z[1] and on to `second`; those that are trainable are one group."""
    f32 = [TensorSpec((n,), "float32") for n in (4, 1, 3)]
    nodes = tuple(label for label, wanted in zip(("first", "second"), trainable, strict=True) if wanted)
    return Segment(
        label="chain",
        operations=(
            bench.operation("first", first, ("x",), ("y",), trainable=trainable[0]),
            bench.operation("join", None, ("y", "z"), ("j",), trainable=False),
            bench.operation("second", second, ("j",), ("out",), trainable=trainable[1]),
        ),
        inputs={name: (spec, bench.device) for name, spec in zip("xzt", f32, strict=True)},
        outputs=("out",),
        losses=(bench.term(("out", "t")),),
        groups=(ParameterGroup(GROUP, SGD, nodes),),
    )


def chained(bench: Bench) -> tuple[Any, Any, Any]:
    """What a program of `chain` takes."""
    return bench.put(BATCH.x), bench.put(BATCH.x[:, :1].copy()), bench.put(BATCH.targets["mse"])


def joining(bench: Bench, axis: int, specs: Sequence[tuple[int, ...]]) -> Segment:
    """Inputs a and b joined along an axis of the sample."""
    return Segment(
        label="joining",
        operations=(Operation("join", None, ("a", "b"), ("j",), bench.device, trainable=False, axis=axis),),
        inputs={name: (TensorSpec(s, "float32"), bench.device) for name, s in zip("ab", specs, strict=True)},
        outputs=("j",),
        needs_pullback=("a", "b"),
    )


class SegmentTests(Subject):
    """Every promise of `Compute.build` about how operations work together."""

    def test_a_chain_is_its_parts_one_after_the_other(self, bench: Bench, model: Make) -> None:
        """The output of an operation is the input of those that name it."""
        first, second = bench.ready(model), bench.ready(model, seed=8)
        (y,), _ = bench.build(first).forward(bench.inputs(BATCH))
        joined = np.concatenate([bench.read(y), BATCH.x[:, :1]], axis=1)
        (expected,), _ = bench.build(second).forward(bench.inputs(Batch(joined, BATCH.targets)))
        (found,), _ = bench.compute.build(chain(bench, first, second, (True, True))).forward(chained(bench))
        close(bench.read(found), bench.read(expected))

    @pytest.mark.parametrize("trainable", [(False, True), (True, False)], ids=["first", "second"])
    def test_a_frozen_operation_is_not_changed(self, bench: Bench, model: Make, trainable: tuple[bool, bool]) -> None:
        """It keeps its values to the bit, and what stands before it is trained through it all the same."""
        both = (bench.ready(model), bench.ready(model, seed=8))
        before = [bench.compute.state(each) for each in both]
        program = bench.compute.build(chain(bench, *both, trainable))
        bench.pull(program, chained(bench))
        program.optimizer_step()
        states = program.close()
        after = [bench.compute.state(each) for each in both]
        frozen, trained = (0, 1) if trainable[1] else (1, 0)
        same(after[frozen], before[frozen])
        assert any((after[trained][name] != value).any() for name, value in before[trained].items())
        assert states[("first", "second")[trained]].step == 1

    def test_a_frozen_operation_is_in_evaluation_mode(self, bench: Bench, buffered_model: Make) -> None:
        """Its buffers do not change while others train."""
        frozen, trained = bench.ready(buffered_model), bench.ready(buffered_model)
        before = bench.compute.state(frozen)
        program = bench.compute.build(chain(bench, trained, frozen, (True, False)))
        bench.pull(program, chained(bench))
        program.optimizer_step()
        program.close()
        same(bench.compute.state(frozen), before)

    def test_a_shared_model_gets_the_sum_of_its_gradients(self, bench: Bench, model: Make) -> None:
        """One model in two operations is stepped once, with what both cause."""
        ready, other = bench.ready(model), Batch.of(6, seed=2)
        start = bench.values(ready)
        one, two = (bench.gradient_of(ready, batch) for batch in (BATCH, other))
        program = bench.compute.build(sharing(bench, ready))
        bench.pull(program, (*bench.inputs(BATCH), *bench.inputs(other)))
        program.optimizer_step()
        program.close()
        close(bench.values(ready), {name: w - 0.1 * (one[name] + two[name]) for name, w in start.items()})

    @pytest.mark.parametrize("axis", [0, 1, -1, -2])
    def test_values_are_joined_along_an_axis_of_the_sample(self, bench: Bench, axis: int) -> None:
        """The batch is never joined, and cotangents are cut apart again."""
        program = bench.compute.build(joining(bench, axis, [(2, 3), (2, 3)]))
        (j,), _, pullback = program.forward_pullback((bench.put(SAMPLE), bench.put(-SAMPLE)))
        along = axis + 1 if axis >= 0 else axis
        np.testing.assert_array_equal(bench.read(j), np.concatenate([SAMPLE, -SAMPLE], axis=along))
        cotangents = pullback([bench.put(np.concatenate([2 * SAMPLE, 3 * SAMPLE], axis=along))])
        for found, factor in zip(cotangents, (2, 3), strict=True):
            np.testing.assert_array_equal(bench.read(found), factor * SAMPLE)

    def test_values_of_different_sizes_are_joined(self, bench: Bench) -> None:
        """The axis along which values are joined may differ between them."""
        program = bench.compute.build(joining(bench, -1, [(2, 3), (2, 1)]))
        narrow = np.ascontiguousarray(SAMPLE[..., :1])
        (j,), _ = program.forward((bench.put(SAMPLE), bench.put(narrow)))
        np.testing.assert_array_equal(bench.read(j), np.concatenate([SAMPLE, narrow], axis=-1))

    def test_groups_have_optimizers_of_their_own(self, bench: Bench, model: Make) -> None:
        """Each group is stepped by its recipe and scaled by its scale, and has its own norm."""
        first, second = bench.ready(model), bench.ready(model, seed=8)
        wired = chain(bench, first, second, (True, True))
        slow = Optimizer("sgd", lr=0.01)
        groups = (ParameterGroup("a", SGD, ("first",)), ParameterGroup("b", slow, ("second",)))
        program = bench.compute.build(replace(wired, groups=groups))
        start = [bench.values(each) for each in (first, second)]
        bench.pull(program, chained(bench))
        gradients = bench.gradients(program)
        stats = program.grad_stats()
        program.optimizer_step({"b": 0.5})
        program.close()
        names = [list(values) for values in start]
        parts = gradients[: len(names[0])], gradients[len(names[0]) :]
        for group, part in zip("ab", parts, strict=True):
            close(float(bench.read(stats[group][0])), sum(float(np.square(g.astype("f8")).sum()) for g in part))
        for each, values, part, rate in zip((first, second), start, parts, (0.1, 0.005), strict=True):
            expected = {name: values[name] - rate * g for name, g in zip(values, part, strict=True)}
            close(bench.values(each), expected)

    def test_a_model_that_writes_spoils_no_others(self, bench: Bench, model: Make, writing_model: Make) -> None:
        """A value that it writes to is read by others and handed out as it was made, and gradients are as without."""
        first, second, writer = bench.ready(model), bench.ready(model, seed=8), bench.ready(writing_model)
        plain = replace(chain(bench, first, second, (True, True)), outputs=("out", "j"))
        writing = bench.operation("writer", writer, ("j",), ("w",), trainable=False)
        before, last = plain.operations[:-1], plain.operations[-1]
        found = []
        for operations in (plain.operations, (*before, writing, last)):
            program = bench.compute.build(replace(plain, operations=operations))
            outputs, _, pullback = program.forward_pullback(chained(bench))
            values = [bench.read(value) for value in (*outputs, *program.forward(chained(bench))[0])]
            pullback([None, None])
            found.append([*values, *bench.gradients(program)])
        for one, other in zip(*found, strict=True):
            close(other, one)

    def test_inputs_nobody_uses_have_a_zero_cotangent(self, bench: Bench, model: Make) -> None:
        """A value that reached no output and no loss is answered with zeros or None, not an error."""
        wired = chain(bench, bench.ready(model), bench.ready(model), (True, True))
        program = bench.compute.build(replace(wired, losses=(), needs_pullback=("x",)))
        (found,) = program.forward_pullback(chained(bench))[2]([None])
        assert found is None or not np.asarray(bench.read(found)).any()

    def test_an_optimizer_of_another_framework_is_refused(self, bench: Bench, model: Make) -> None:
        """It is told apart beforehand by `refuses`, or raises SpecError when the program is built."""
        recipe = Optimizer(FOREIGN)
        if not bench.compute.unsupported_reason(recipe):
            with pytest.raises(SpecError):
                bench.build(bench.ready(model), optimizer=recipe)

    def test_a_loss_of_another_framework_is_refused(self, bench: Bench, model: Make) -> None:
        """It is told apart beforehand by `refuses`, or raises SpecError when the program is built or first runs."""
        wired = bench.segment(Wiring(bench.ready(model)))
        term = LossTerm(LOSS, "node", Loss(FOREIGN), ("y", "t"), bench.device)
        if not bench.compute.unsupported_reason(term.loss):
            with pytest.raises(SpecError):
                bench.compute.build(replace(wired, losses=(term,))).forward(bench.inputs(BATCH))


class ClippingTests(Subject):
    """The factor for gradients whose norm lies over several segments."""

    @pytest.mark.parametrize("name", SQUARES)
    def test_a_clip_factor_is_its_formula(self, bench: Bench, model: Make, name: str) -> None:
        """`min(1, limit / (norm + 1e-6))` of all squares together: 0 for an infinite norm, NaN for none."""
        limit, squares = SQUARES[name]
        program = bench.build(bench.ready(model))
        factor = program.clip_factor(limit, [bench.put(np.array(square, "float32")) for square in squares])
        norm = np.sqrt(np.sum(squares))
        close(scalar(bench, factor), norm if np.isnan(norm) else min(1.0, limit / (norm + 1e-6)))

    @pytest.mark.parametrize("limit", [1e-3, 1e3])
    def test_a_clip_factor_is_what_apply_takes(self, bench: Bench, model: Make, limit: float) -> None:
        """Found from the program's own squared norm, it clips the step; a large limit leaves it as it is."""
        ready = bench.ready(model)
        start, program = bench.values(ready), bench.build(ready, optimizer=SGD)
        bench.pull(program, bench.inputs(BATCH))
        gradients = bench.gradients(program)
        program.optimizer_step({GROUP: program.clip_factor(limit, [program.grad_stats()[GROUP][0]])})
        program.close()
        close(
            bench.values(ready),
            reference_formulas.trained(SGD, start, [gradients], reference_formulas.clip_scale(gradients, limit)),
        )


def sharing(bench: Bench, model: Any) -> Segment:
    """One model in two operations, each with inputs, targets and a loss of its own."""
    specs = {name: (TensorSpec((size,), "float32"), bench.device) for name, size in (("x", 4), ("t", 3))}
    return Segment(
        label="sharing",
        operations=tuple(bench.operation(f"node{i}", model, (f"x{i}",), (f"y{i}",)) for i in (1, 2)),
        inputs={f"{name}{i}": spec for i in (1, 2) for name, spec in specs.items()},
        outputs=("y1", "y2"),
        losses=tuple(bench.term((f"y{i}", f"t{i}"), label=f"loss{i}") for i in (1, 2)),
        groups=(ParameterGroup(GROUP, SGD, ("node1", "node2")),),
    )
