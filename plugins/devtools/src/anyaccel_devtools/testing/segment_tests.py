"""Tests of programs of several operations: chains, concatenation, frozen and shared models, clipping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anyaccel.errors import GraphError, SpecError
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel_devtools.testing import reference_formulas
from anyaccel_devtools.testing.harness import GROUP, LOSS, Array, Batch, Harness, assert_close, assert_equal
from anyaccel_devtools.testing.subject import Subject

Make = Callable[[], Any]
BATCH = Batch.of(6)
SGD = Optimizer("sgd", lr=0.1)
FOREIGN = type("Foreign", (), {"__module__": "another_framework.parts", "__call__": lambda self, *inputs: None})
SQUARES = {
    "above the limit": (0.5, [4.0]),
    "at the limit": (2.0, [4.0]),
    "below the limit": (2.5, [4.0]),
    "zero": (0.5, [0.0]),
    "tiny": (1e-7, [1e-12]),
    "several parts": (0.5, [4.0, 9.0, 0.25]),
    "several parts below the limit": (10.0, [4.0, 9.0, 0.25]),
    "infinite": (0.5, [np.inf]),
    "partly infinite": (0.5, [1.0, np.inf]),
    "NaN": (0.5, [np.nan]),
    "partly NaN": (0.5, [1.0, np.nan, np.inf]),
}
SAMPLE = np.random.default_rng(8).normal(size=(6, 2, 3)).astype("float32")


def chain(harness: Harness, first: Any, second: Any, trainable: tuple[bool, bool]) -> Segment:
    """Return x[4] to `first` to y[3], concatenated with z[1], to `second`; the trainable ones form one parameter
    group.
    """
    f32 = [TensorSpec((n,), "float32") for n in (4, 1, 3)]
    nodes = tuple(label for label, is_trainable in zip(("first", "second"), trainable, strict=True) if is_trainable)
    return Segment(
        label="chain",
        operations=(
            harness.operation("first", first, ("x",), ("y",), trainable=trainable[0]),
            harness.operation("join", None, ("y", "z"), ("j",), trainable=False),
            harness.operation("second", second, ("j",), ("out",), trainable=trainable[1]),
        ),
        inputs={name: (spec, harness.device) for name, spec in zip("xzt", f32, strict=True)},
        outputs=("out",),
        losses=(harness.loss_term(("out", "t")),),
        groups=(ParameterGroup(GROUP, SGD, nodes),),
    )


def chain_inputs(harness: Harness) -> tuple[Any, Any, Any]:
    """Return the inputs of a program of `chain`."""
    return harness.put(BATCH.x), harness.put(BATCH.x[:, :1].copy()), harness.put(BATCH.targets["mse"])


def concatenation(harness: Harness, axis: int, specs: Sequence[tuple[int, ...]]) -> Segment:
    """Return inputs a and b concatenated along an axis of the sample."""
    return Segment(
        label="concatenation",
        operations=(Operation("join", None, ("a", "b"), ("j",), harness.device, trainable=False, axis=axis),),
        inputs={name: (TensorSpec(s, "float32"), harness.device) for name, s in zip("ab", specs, strict=True)},
        outputs=("j",),
        needs_pullback=("a", "b"),
    )


class SegmentTests(Subject):
    """Everything that `Compute.build` promises about several operations."""

    def test_a_chain_equals_its_parts_in_sequence(self, harness: Harness, model: Make) -> None:
        """An operation gets the outputs that it names as inputs."""
        first, second = harness.prepare_model(model), harness.prepare_model(model, seed=8)
        (y,), _ = harness.build(first, compile="off").forward(harness.inputs(BATCH))
        concatenated = np.concatenate([harness.to_numpy(y), BATCH.x[:, :1]], axis=1)
        (expected,), _ = harness.build(second, compile="off").forward(
            harness.inputs(Batch(concatenated, BATCH.targets))
        )
        (actual,), _ = harness.compute.build(chain(harness, first, second, (True, True))).forward(chain_inputs(harness))
        assert_close(harness.to_numpy(actual), harness.to_numpy(expected))

    @pytest.mark.parametrize("trainable", [(False, True), (True, False)], ids=["first", "second"])
    def test_a_frozen_operation_is_not_changed(
        self, harness: Harness, model: Make, trainable: tuple[bool, bool]
    ) -> None:
        """It keeps its values bit for bit, and operations before it are trained through it."""
        both = (harness.prepare_model(model), harness.prepare_model(model, seed=8))
        before = [harness.compute.state(model) for model in both]
        program = harness.compute.build(chain(harness, *both, trainable))
        harness.forward_backward(program, chain_inputs(harness))
        program.optimizer_step()
        states = program.close()
        after = [harness.compute.state(model) for model in both]
        frozen, trained = (0, 1) if trainable[1] else (1, 0)
        assert_equal(after[frozen], before[frozen])
        assert any((after[trained][name] != value).any() for name, value in before[trained].items())
        assert states[("first", "second")[trained]].step == 1

    @pytest.mark.parametrize("name", ["buffered_model", "random_model"])
    def test_a_frozen_operation_is_in_evaluation_mode(
        self, harness: Harness, request: pytest.FixtureRequest, model: Make, name: str
    ) -> None:
        """While others train, it returns the outputs of evaluation, and its buffers do not change."""
        frozen, trained = harness.prepare_model(request.getfixturevalue(name)), harness.prepare_model(model)
        before = harness.compute.state(frozen)
        segment = chain(harness, trained, frozen, (True, False))
        program = harness.compute.build(segment)
        (expected,), _ = harness.build_reference(segment).forward(chain_inputs(harness))
        (actual,), _, pullback = program.forward_pullback(chain_inputs(harness))
        assert_close(harness.to_numpy(actual), harness.to_numpy(expected))
        pullback([None])
        program.optimizer_step()
        program.close()
        assert_equal(harness.compute.state(frozen), before)

    def test_a_shared_model_gets_the_sum_of_its_gradients(self, harness: Harness, model: Make) -> None:
        """A model in two operations is updated once, with the sum of both gradients, which enters the norm once."""
        prepared, other = harness.prepare_model(model), Batch.of(6, seed=2)
        start = harness.parameter_values(prepared)
        first, second = (harness.gradient_of(prepared, batch) for batch in (BATCH, other))
        total = {name: first[name] + second[name] for name in start}
        program = harness.compute.build(shared_model_segment(harness, prepared))
        harness.forward_backward(program, (*harness.inputs(BATCH), *harness.inputs(other)))
        assert_close(float(harness.to_numpy(program.grad_stats()[GROUP][0])), squared_norm(start, total))
        program.optimizer_step()
        program.close()
        assert_close(harness.parameter_values(prepared), {name: w - 0.1 * total[name] for name, w in start.items()})

    def test_models_that_share_a_parameter_are_refused_or_train_as_one(
        self, harness: Harness, models_that_share: Callable[[], tuple[Any, Any]]
    ) -> None:
        """A parameter in two models never trains separately: an error, or one value in both after a step."""
        pair = [harness.compute.wrap(model) for model in models_that_share()]
        for seed, model in enumerate(pair):
            harness.compute.infer(model, [TensorSpec((4,), "float32")], seed)
        pair = [harness.backend.place(model, harness.device) for model in pair]
        before = [harness.parameter_values(model) for model in pair]
        values = {value.tobytes(): name for name, value in before[0].items() if value.std() > 0}
        shared = {name: values[value.tobytes()] for name, value in before[1].items() if value.tobytes() in values}
        assert shared, "the two models have no equal parameters"
        segment, batches = shared_model_segment(harness, pair[0]), (BATCH, Batch.of(6, seed=2))
        gradients = [harness.gradient_of(model, batch) for model, batch in zip(pair, batches, strict=True)]
        operations = tuple(replace(op, model=model) for op, model in zip(segment.operations, pair, strict=True))
        try:
            program = harness.compute.build(replace(segment, operations=operations))
        except GraphError:
            return
        harness.forward_backward(program, [value for batch in batches for value in harness.inputs(batch)])
        program.optimizer_step()
        program.close()
        for model, names in zip(pair, (shared.values(), shared), strict=True):
            after = harness.parameter_values(model)
            for name, first, second in zip(names, shared.values(), shared, strict=True):
                assert_close(after[name], before[1][second] - 0.1 * (gradients[0][first] + gradients[1][second]))

    def test_a_loss_of_the_user_is_the_mean_over_the_rows(
        self, harness: Harness, model: Make, custom_loss: Callable[[Any, Any], Any]
    ) -> None:
        """The weight of a function that returns a mean is the number of rows; it has the gradient of the named loss."""
        prepared = harness.prepare_model(model)
        segment = replace(harness.segment(prepared), compile="off")
        custom = replace(segment, losses=(replace(segment.losses[0], loss=Loss(custom_loss)),))
        losses, gradients = [], []
        for variant in (segment, custom):
            program = harness.compute.build(variant)
            loss = harness.forward_backward(program, harness.inputs(BATCH))[LOSS]
            losses.append([harness.mean_loss(loss), float(harness.to_numpy(loss[1]))])
            gradients.append(harness.gradients(program))
            program.close()
        assert_close(losses[1], [losses[0][0], len(BATCH.x)])
        for actual, expected in zip(gradients[1], gradients[0], strict=True):
            assert_close(actual, expected)

    def test_a_tied_parameter_is_one_parameter(self, harness: Harness, tied_model: Make) -> None:
        """It learns from all its places, and its gradient enters the norm once, however many names it has."""
        prepared = harness.prepare_model(tied_model)
        start, program = harness.compute.state(prepared), harness.build(prepared, optimizer=Optimizer("sgd", lr=1.0))
        harness.forward_backward(program, harness.inputs(BATCH))
        squared = float(harness.to_numpy(program.grad_stats()[GROUP][0]))
        program.optimizer_step()
        program.close()
        end, losses = harness.compute.state(prepared), []
        gradient = {name: value - end[name] for name, value in start.items()}
        assert_close(squared, squared_norm(start, gradient), rtol=1e-4)
        for sign in (1, -1):
            moved = {name: (value + sign * 1e-2 * gradient[name]).astype(value.dtype) for name, value in start.items()}
            harness.compute.load_state(prepared, moved)
            losses.append(harness.eval_loss(harness.build(prepared, compile="off"), BATCH))
        assert_close((losses[0] - losses[1]) / 2e-2, squared, 2e-2, 2e-2)

    def test_a_tied_parameter_decays_once(self, harness: Harness, tied_model: Make) -> None:
        """A step with gradients of zero multiplies it by `1 - lr * weight_decay` once, under each of its names."""
        prepared = harness.prepare_model(tied_model)
        start = harness.parameter_values(prepared)
        program = harness.build(prepared, optimizer=Optimizer("sgd", lr=0.1, weight_decay=0.5))
        harness.forward_backward(program, harness.inputs(BATCH))
        program.map_gradients(lambda gradient: gradient * 0)
        program.optimizer_step()
        program.close()
        assert_close(harness.parameter_values(prepared), {name: 0.95 * value for name, value in start.items()})

    def test_a_tied_parameter_has_one_value(self, harness: Harness, tied_model: Make) -> None:
        """Names that had equal weights have equal weights after training."""
        prepared = harness.prepare_model(tied_model)
        start = harness.parameter_values(prepared)
        program = harness.build(prepared, optimizer=Optimizer("adamw", lr=0.1, weight_decay=0.5))
        harness.train(program, BATCH, 2)
        program.close()
        end = harness.parameter_values(prepared)
        first = {value.tobytes(): name for name, value in start.items() if value.std() > 0}
        actual = {name: end[name] for name, value in start.items() if value.tobytes() in first}
        assert_equal(actual, {name: end[first[start[name].tobytes()]] for name in actual})

    def test_a_model_without_parameters_is_placed_and_trained_through(
        self, harness: Harness, model: Make, parameter_free_model: Make
    ) -> None:
        """It works on every device like any other model, and the nodes before it learn."""
        for device in [harness.device, *(d for d in harness.backend.devices() if d != harness.device)][:2]:
            on = harness.on_device(device)
            plain = on.compute.wrap(parameter_free_model())
            on.compute.infer(plain, [TensorSpec((3,), "float32")], 0)
            plain, first = on.backend.place(plain, device), on.prepare_model(model)
            assert not on.compute.parameters(plain) and not on.parameter_values(plain)
            assert on.backend.device_of(plain) in (None, device)
            segment = on.segment(first)
            operations = (*segment.operations, on.operation("plain", plain, ("y",), ("z",)))
            groups = (replace(segment.groups[0], nodes=("node", "plain")),)
            program = on.compute.build(replace(segment, operations=operations, outputs=("z",), groups=groups))
            before = on.parameter_values(first)
            (z,), _, pullback = program.forward_pullback(on.inputs(BATCH))
            pullback([on.put(np.ones((6, 3), "float32"))])
            program.optimizer_step()
            program.close()
            assert on.backend.device_of(z) == device
            assert any((on.parameter_values(first)[name] != value).any() for name, value in before.items())

    @pytest.mark.parametrize("axis", [0, 1, -1, -2])
    def test_values_are_concatenated_along_a_sample_axis(self, harness: Harness, axis: int) -> None:
        """Never along the batch; cotangents are split again."""
        program = harness.compute.build(concatenation(harness, axis, [(2, 3), (2, 3)]))
        (j,), _, pullback = program.forward_pullback((harness.put(SAMPLE), harness.put(-SAMPLE)))
        along = axis + 1 if axis >= 0 else axis
        np.testing.assert_array_equal(harness.to_numpy(j), np.concatenate([SAMPLE, -SAMPLE], axis=along))
        cotangents = pullback([harness.put(np.concatenate([2 * SAMPLE, 3 * SAMPLE], axis=along))])
        for actual, factor in zip(cotangents, (2, 3), strict=True):
            np.testing.assert_array_equal(harness.to_numpy(actual), factor * SAMPLE)

    def test_values_of_different_sizes_are_concatenated(self, harness: Harness) -> None:
        """Sizes may differ along the concatenated axis."""
        program = harness.compute.build(concatenation(harness, -1, [(2, 3), (2, 1)]))
        narrow = np.ascontiguousarray(SAMPLE[..., :1])
        (j,), _ = program.forward((harness.put(SAMPLE), harness.put(narrow)))
        np.testing.assert_array_equal(harness.to_numpy(j), np.concatenate([SAMPLE, narrow], axis=-1))

    def test_each_group_has_its_own_optimizer(self, harness: Harness, model: Make) -> None:
        """Each group has its own optimizer, gradient scale and norm."""
        first, second = harness.prepare_model(model), harness.prepare_model(model, seed=8)
        segment = chain(harness, first, second, (True, True))
        slow = Optimizer("sgd", lr=0.01)
        groups = (ParameterGroup("a", SGD, ("first",)), ParameterGroup("b", slow, ("second",)))
        program = harness.compute.build(replace(segment, groups=groups))
        start = [harness.parameter_values(model) for model in (first, second)]
        harness.forward_backward(program, chain_inputs(harness))
        gradients = harness.gradients(program)
        stats = program.grad_stats()
        program.optimizer_step({"b": 0.5})
        program.close()
        names = [list(values) for values in start]
        parts = gradients[: len(names[0])], gradients[len(names[0]) :]
        for group, part in zip("ab", parts, strict=True):
            assert_close(
                float(harness.to_numpy(stats[group][0])), sum(float(np.square(g.astype("f8")).sum()) for g in part)
            )
        for prepared, values, part, rate in zip((first, second), start, parts, (0.1, 0.005), strict=True):
            expected = {name: values[name] - rate * g for name, g in zip(values, part, strict=True)}
            assert_close(harness.parameter_values(prepared), expected)

    def test_an_in_place_model_does_not_affect_others(
        self, harness: Harness, model: Make, mutating_model: Make
    ) -> None:
        """Other consumers and outputs see the value before the write, and gradients are unchanged."""
        first, second, writer = (
            harness.prepare_model(model),
            harness.prepare_model(model, seed=8),
            harness.prepare_model(mutating_model),
        )
        plain = replace(chain(harness, first, second, (True, True)), outputs=("out", "j"))
        in_place = harness.operation("writer", writer, ("j",), ("w",), trainable=False)
        before, last = plain.operations[:-1], plain.operations[-1]
        actual = []
        for operations in (plain.operations, (*before, in_place, last)):
            program = harness.compute.build(replace(plain, operations=operations))
            outputs, _, pullback = program.forward_pullback(chain_inputs(harness))
            values = [harness.to_numpy(value) for value in (*outputs, *program.forward(chain_inputs(harness))[0])]
            pullback([None, None])
            actual.append([*values, *harness.gradients(program)])
        for without_writer, with_writer in zip(*actual, strict=True):
            assert_close(with_writer, without_writer)

    def test_unused_inputs_have_a_zero_cotangent(self, harness: Harness, model: Make) -> None:
        """The cotangent of a value that affects no output and no loss is zero or None."""
        segment = chain(harness, harness.prepare_model(model), harness.prepare_model(model), (True, True))
        program = harness.compute.build(replace(segment, losses=(), needs_pullback=("x",)))
        (actual,) = program.forward_pullback(chain_inputs(harness))[2]([None])
        assert actual is None or not np.asarray(harness.to_numpy(actual)).any()

    def test_an_optimizer_of_another_framework_is_refused(self, harness: Harness, model: Make) -> None:
        """`unsupported_reason` refuses it, or `build` raises SpecError."""
        optimizer = Optimizer(FOREIGN)
        if not harness.compute.unsupported_reason(optimizer):
            with pytest.raises(SpecError):
                harness.build(harness.prepare_model(model), optimizer=optimizer)

    def test_a_loss_of_another_framework_is_refused(self, harness: Harness, model: Make) -> None:
        """`unsupported_reason` refuses it, or `build` or the first `forward` raises SpecError."""
        segment = harness.segment(harness.prepare_model(model))
        term = LossTerm(LOSS, "node", Loss(FOREIGN), ("y", "t"), harness.device)
        if not harness.compute.unsupported_reason(term.loss):
            with pytest.raises(SpecError):
                harness.compute.build(replace(segment, losses=(term,))).forward(harness.inputs(BATCH))


class ClippingTests(Subject):
    """`Program.clip_factor`, for gradients whose norm is taken over several segments."""

    def test_a_clip_factor_follows_its_formula(self, harness: Harness, model: Make) -> None:
        """It is `min(1, limit / (norm + 1e-6))` of all squared norms: 0 for an infinite norm, NaN for NaN."""
        program, actual, expected = harness.build(harness.prepare_model(model)), {}, {}
        for name, (limit, squares) in SQUARES.items():
            factor = program.clip_factor(limit, [harness.put(np.array(square, "float32")) for square in squares])
            norm = np.sqrt(np.sum(squares))
            actual[name] = harness.as_float(factor)
            expected[name] = norm if np.isnan(norm) else min(1.0, limit / (norm + 1e-6))
        assert_close(actual, expected)

    @pytest.mark.parametrize("limit", [1e-3, 1e3])
    def test_a_clip_factor_can_be_given_to_optimizer_step(self, harness: Harness, model: Make, limit: float) -> None:
        """With the program's own squared norm it clips the step; a large limit changes nothing."""
        prepared = harness.prepare_model(model)
        start, program = harness.parameter_values(prepared), harness.build(prepared, optimizer=SGD)
        harness.forward_backward(program, harness.inputs(BATCH))
        gradients = harness.gradients(program)
        program.optimizer_step({GROUP: program.clip_factor(limit, [program.grad_stats()[GROUP][0]])})
        program.close()
        assert_close(
            harness.parameter_values(prepared),
            reference_formulas.train(SGD, start, [gradients], reference_formulas.clip_scale(gradients, limit)),
        )


def squared_norm(start: Mapping[str, Array], gradient: Mapping[str, Array]) -> float:
    """Return the squared norm of gradients by name; arrays of equal values and gradients are one parameter with two
    names.
    """
    distinct = {(start[name].tobytes(), g.tobytes()): g for name, g in gradient.items()}
    return sum(float(np.square(g.astype("float64")).sum()) for g in distinct.values())


def shared_model_segment(harness: Harness, model: Any, optimizer: Optimizer = SGD) -> Segment:
    """Return one model in two operations, each with its own inputs, targets and loss."""
    specs = {name: (TensorSpec((size,), "float32"), harness.device) for name, size in (("x", 4), ("t", 3))}
    return Segment(
        label="shared model",
        operations=tuple(harness.operation(f"node{i}", model, (f"x{i}",), (f"y{i}",)) for i in (1, 2)),
        inputs={f"{name}{i}": spec for i in (1, 2) for name, spec in specs.items()},
        outputs=("y1", "y2"),
        losses=tuple(harness.loss_term((f"y{i}", f"t{i}"), label=f"loss{i}") for i in (1, 2)),
        groups=(ParameterGroup(GROUP, optimizer, ("node1", "node2")),),
    )
