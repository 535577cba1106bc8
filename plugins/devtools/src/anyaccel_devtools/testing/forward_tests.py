"""Tests of outputs and losses that a program evaluates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anyaccel.errors import ShapeError
from anyaccel.formulas import LOSSES
from anyaccel.segment import Segment, TensorSpec
from anyaccel_devtools.testing import reference_formulas
from anyaccel_devtools.testing.harness import LOSS, Array, Batch, Harness, assert_close, assert_equal
from anyaccel_devtools.testing.subject import Subject

Make = Callable[[], Any]
BATCH = Batch.of(6)


class ForwardTests(Subject):
    """Evaluation and losses."""

    def test_forward_is_deterministic(self, harness: Harness, model: Make) -> None:
        """Two evaluations give the same outputs and losses, bit for bit."""
        program = harness.build(harness.prepare_model(model))
        (first_output,), first = program.forward(harness.inputs(BATCH))
        (second_output,), second = program.forward(harness.inputs(BATCH))
        np.testing.assert_array_equal(harness.to_numpy(first_output), harness.to_numpy(second_output))
        assert harness.mean_loss(first[LOSS]) == harness.mean_loss(second[LOSS])

    def test_forward_is_per_sample(self, harness: Harness, model: Make) -> None:
        """The outputs of a batch equal those of its parts, including a single row."""
        program = harness.build(harness.prepare_model(model))
        whole, head, tail = (
            harness.to_numpy(program.forward(harness.inputs(BATCH.rows(rows)))[0][0])
            for rows in (slice(None), slice(0, 5), slice(5, 6))
        )
        assert_close(whole, np.concatenate([head, tail]))

    def test_outputs_and_losses_stay_on_the_device(self, harness: Harness, model: Make) -> None:
        """Nothing is copied to the host."""
        outputs, losses = harness.build(harness.prepare_model(model)).forward(harness.inputs(BATCH))
        devices = [harness.backend.device_of(value) for value in (*outputs, *losses[LOSS])]
        assert devices == [harness.device] * 3

    @pytest.mark.parametrize("name", ["model", "buffered_model", "random_model"])
    def test_evaluation_changes_nothing(self, harness: Harness, request: pytest.FixtureRequest, name: str) -> None:
        """`forward` changes neither parameters nor buffers."""
        prepared = harness.prepare_model(request.getfixturevalue(name))
        before = harness.compute.state(prepared)
        program = harness.build(prepared)
        program.forward(harness.inputs(BATCH))
        program.close()
        assert_equal(harness.compute.state(prepared), before)

    def test_evaluation_is_not_random(self, harness: Harness, random_model: Make) -> None:
        """Dropout is inactive in evaluation."""
        program = harness.build(harness.prepare_model(random_model))
        (first,), _ = program.forward(harness.inputs(BATCH))
        (second,), _ = program.forward(harness.inputs(BATCH))
        np.testing.assert_array_equal(harness.to_numpy(first), harness.to_numpy(second))

    def test_equal_rows_have_equal_outputs(self, harness: Harness, random_model: Make) -> None:
        """A dropout that stays active in evaluation is seen even if it draws the same numbers every time."""
        program = harness.build(harness.prepare_model(random_model))
        rows = BATCH.rows(np.zeros(6, int))
        outputs = harness.to_numpy(program.forward(harness.inputs(rows))[0][0])
        assert_close(outputs, np.repeat(outputs[:1], 6, axis=0))

    def test_evaluation_equals_that_without_dropout(
        self, harness: Harness, random_model: Make, dropout_free_model: Make
    ) -> None:
        """With the same parameters, a model at a dropout rate of 0 gives the same outputs."""
        prepared, twin = harness.prepare_model(random_model), harness.prepare_model(dropout_free_model)
        state = harness.compute.state(prepared)  # dropout may have a buffer of its own: the state of its generator
        assert list(harness.compute.parameters(twin)) == list(harness.compute.parameters(prepared))
        harness.compute.load_state(twin, {name: state[name] for name in harness.compute.state(twin)})
        (actual,), _ = harness.build(prepared).forward(harness.inputs(BATCH))
        (expected,), _ = harness.build(twin, compile="off").forward(harness.inputs(BATCH))
        assert_close(harness.to_numpy(actual), harness.to_numpy(expected))

    @pytest.mark.parametrize("name", ["random_model", "buffered_model"])
    def test_evaluation_does_not_depend_on_the_users_mode(
        self, harness: Harness, request: pytest.FixtureRequest, name: str
    ) -> None:
        """A model on which the user has called `train()` is evaluated like any other, by old and new programs."""
        prepared = harness.prepare_model(request.getfixturevalue(name))
        set_mode = getattr(prepared, "train", None)
        if not callable(set_mode):
            pytest.skip("models have no mode that users set by train()")
        old = harness.build(prepared)
        expected = harness.to_numpy(old.forward(harness.inputs(BATCH))[0][0])
        set_mode()
        for program in (old, harness.build(prepared, optimizer=None, compile="off")):
            assert_close(harness.to_numpy(program.forward(harness.inputs(BATCH))[0][0]), expected)

    def test_the_users_random_state_is_kept(
        self, harness: Harness, random_model: Make, random_state: Callable[[], Any]
    ) -> None:
        """Neither training nor evaluation draws from, or seeds, the generator that users draw from."""
        prepared = harness.prepare_model(random_model)
        before = random_state()
        program = harness.build(prepared)
        program.seed(5)
        harness.train(program, BATCH, 1)
        program.forward(harness.inputs(BATCH))
        program.close()
        np.testing.assert_equal(random_state(), before)

    @pytest.mark.parametrize("name", ["random_model", "buffered_model"])
    def test_a_trained_program_evaluates_like_a_new_one(
        self, harness: Harness, request: pytest.FixtureRequest, name: str
    ) -> None:
        """Evaluation after training uses no dropout and no batch statistics."""
        prepared = harness.prepare_model(request.getfixturevalue(name))
        program = harness.build(prepared)
        harness.train(program, BATCH, 2)
        (trained,), _ = program.forward(harness.inputs(BATCH))
        program.close()
        (rebuilt,), _ = harness.build(prepared, optimizer=None, compile="off").forward(harness.inputs(BATCH))
        assert_close(harness.to_numpy(trained), harness.to_numpy(rebuilt))

    def test_training_randomness_follows_the_seed(self, harness: Harness, random_model: Make) -> None:
        """A seed determines the outputs of all steps, every step draws new numbers, and evaluation draws none."""
        program = harness.build(harness.prepare_model(random_model))

        def outputs(seed: int, *, evaluate: bool = False) -> Array:
            program.seed(seed)
            steps = []
            for _ in range(2):
                steps.append(harness.to_numpy(program.forward_pullback(harness.inputs(BATCH))[0][0]))
                if evaluate:
                    program.forward(harness.inputs(BATCH))
            return np.stack(steps)

        first = outputs(2**63 + 1)
        np.testing.assert_array_equal(first, outputs(2**63 + 1, evaluate=True))
        assert (first != outputs(2)).any()
        assert (first[0] != first[1]).any()

    def test_random_streams_go_on_within_an_epoch(self, harness: Harness, random_model: Make) -> None:
        """After `seed` with the same key and `load_random_state`, a step draws the same numbers as without them."""
        program = harness.build(harness.prepare_model(random_model))

        def outputs() -> Array:
            return harness.to_numpy(program.forward_pullback(harness.inputs(BATCH))[0][0])

        program.seed(3)
        outputs()
        state = program.random_state()
        if state is None:
            pytest.skip("epochs cannot be continued midway")
        assert all(isinstance(array, np.ndarray) for array in state.values())
        expected = outputs()
        program.seed(3)
        assert (outputs() != expected).any()
        program.seed(3)
        program.load_random_state(state)
        np.testing.assert_array_equal(outputs(), expected)

    @pytest.mark.parametrize("train", [False, True])
    def test_named_losses_follow_their_formulas(self, harness: Harness, model: Make, train: bool) -> None:
        """A loss is (sum, weight) as in docs/reference/formulas.md, in evaluation and training."""
        program = harness.compute.build(all_losses(harness, harness.prepare_model(model)))
        inputs = all_inputs(harness, BATCH)
        (y,), losses = program.forward_pullback(inputs)[:2] if train else program.forward(inputs)
        actual = {name: [float(harness.to_numpy(part)) for part in loss] for name, loss in losses.items()}
        outputs = harness.to_numpy(y)
        assert_close(actual, {name: reference_formulas.loss(name, outputs, BATCH.targets[name]) for name in LOSSES})

    def test_cross_entropy_takes_probabilities_too(self, harness: Harness, model: Make) -> None:
        """Floating-point targets of the logits' shape are probabilities."""
        probabilities = BATCH.targets["binary_cross_entropy"]
        probabilities = probabilities / probabilities.sum(-1, keepdims=True)
        segment = harness.segment(harness.prepare_model(model))
        segment = replace(segment, losses=(harness.loss_term(("y", "t"), "cross_entropy"),))
        (y,), losses = harness.compute.build(segment).forward((harness.put(BATCH.x), harness.put(probabilities)))
        assert_close(
            [float(harness.to_numpy(v)) for v in losses[LOSS]],
            reference_formulas.loss("cross_entropy", harness.to_numpy(y), probabilities),
        )

    @pytest.mark.parametrize("name", LOSSES)
    def test_losses_never_broadcast(self, harness: Harness, model: Make, name: str) -> None:
        """Targets [n, 1] for outputs [n, 3] raise ShapeError at `build` or at the first `forward`."""
        whole = harness.target(BATCH, name)
        narrow = whole[:, None] if whole.ndim == 1 else whole[:, :1]
        with pytest.raises(ShapeError):
            harness.compute.build(narrow_target_segment(harness, harness.prepare_model(model), name)).forward(
                (harness.put(BATCH.x), harness.put(narrow.copy()))
            )

    def test_a_weight_is_not_in_the_loss(self, harness: Harness, model: Make) -> None:
        """The weight of a term scales its gradients, not the returned loss."""
        prepared = harness.prepare_model(model)
        plain, weighted = (harness.eval_loss(harness.build(prepared, weight=weight), BATCH) for weight in (1.0, 5.0))
        assert plain == weighted

    def test_several_losses_are_returned_by_label(self, harness: Harness, model: Make) -> None:
        """Losses are keyed by the label of their term."""
        segment = harness.segment(harness.prepare_model(model))
        terms = (harness.loss_term(("y", "t"), "mse", "square"), harness.loss_term(("y", "t"), "mae", "absolute"))
        (y,), losses = harness.compute.build(replace(segment, losses=terms)).forward(harness.inputs(BATCH))
        assert set(losses) == {"square", "absolute"}
        for label, name in (("square", "mse"), ("absolute", "mae")):
            total, weight = reference_formulas.loss(name, harness.to_numpy(y), BATCH.targets["mse"])
            assert_close(harness.mean_loss(losses[label]), total / weight)


def all_losses(harness: Harness, model: Any) -> Segment:
    """Return a segment of one model with every named loss, labelled by its name, each with separate targets."""
    segment, targets = harness.segment(model), {}
    for name, target in Batch.of(1, harness.input_dtype(model)).targets.items():
        dtype = harness.target(Batch(target, {name: target}), name).dtype.name
        targets[name] = (TensorSpec(target.shape[1:], dtype), harness.device)
    terms = tuple(harness.loss_term(("y", name), name, name) for name in LOSSES)
    return replace(segment, inputs={"x": segment.inputs["x"], **{name: targets[name] for name in LOSSES}}, losses=terms)


def all_inputs(harness: Harness, batch: Batch) -> list[Any]:
    """Return the inputs of a program of `all_losses`."""
    return [harness.put(batch.x), *(harness.put(harness.target(batch, name)) for name in LOSSES)]


def narrow_target_segment(harness: Harness, model: Any, name: str) -> Segment:
    """Return a segment whose targets have a single column."""
    segment = harness.segment(model, loss=name)
    spec, device = segment.inputs["t"]
    return replace(segment, inputs={**segment.inputs, "t": (TensorSpec((1,), spec.dtype), device)})
