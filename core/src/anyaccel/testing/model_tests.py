"""ModelTests: what a backend that computes says of models: shapes, initial weights, state in and out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anyaccel.adapter.model_specs import MLPSpec
from anyaccel.device import Device
from anyaccel.errors import ShapeError, StateError
from anyaccel.segment import TensorSpec
from anyaccel.specs import LOSSES, OPTIMIZERS, Loss, Optimizer
from anyaccel.testing.harness import Array, Batch, Bench, same
from anyaccel.testing.subject import STANDARD_MODEL, Subject

Make = Callable[[], Any]
X = TensorSpec((4,), "float32")
LAYOUTS = ("", "channels_first", "channels_last")


def standard(bench: Bench, **settings: Any) -> Any:
    """The model that every framework has, not built yet; a skip where it is not offered."""
    offered = bench.compute.models()
    if STANDARD_MODEL not in offered:
        pytest.skip(f"no {STANDARD_MODEL} in models()")
    cls: Callable[..., Any] = offered[STANDARD_MODEL]
    return bench.compute.wrap(cls(**settings))


class ShapeTests(Subject):
    """Shapes and initial weights."""

    def test_infer_gives_shape_and_dtype(self, bench: Bench, model: Make) -> None:
        """Per sample, without the batch: [4] goes in and [3] comes out."""
        assert bench.compute.infer(bench.compute.wrap(model()), [X], 0) == (TensorSpec((3,), "float32"),)

    def test_infer_keeps_what_is_built(self, bench: Bench, model: Make) -> None:
        """A model that has its weights keeps them, whatever the seed."""
        ready = bench.ready(model)
        before = bench.compute.state(ready)
        bench.compute.infer(ready, [X], 99)
        same(bench.compute.state(ready), before)

    @pytest.mark.parametrize("shape", [(5,), ()], ids=str)
    def test_infer_refuses_wrong_shapes(self, bench: Bench, model: Make, shape: tuple[int, ...]) -> None:
        """Inputs that the model does not take raise ShapeError with the framework's own words."""
        with pytest.raises(ShapeError) as caught:
            bench.compute.infer(bench.ready(model), [TensorSpec(shape, "float32")], 0)
        assert len(str(caught.value)) > 20

    def test_dtype_of_is_that_of_the_inputs_it_wants(self, bench: Bench, model: Make) -> None:
        """A float32 model wants float32."""
        assert bench.compute.dtype_of(bench.ready(model)) == "float32"

    def test_parameters_are_told_with_whole_shapes(self, bench: Bench, model: Make) -> None:
        """Every parameter has its name, shape and dtype, as in the state."""
        ready = bench.ready(model)
        told = {name: (spec.shape, spec.dtype) for name, spec in bench.compute.parameters(ready).items()}
        assert told
        assert told == {name: (value.shape, value.dtype.name) for name, value in bench.values(ready).items()}

    def test_named_models_are_made_from_their_configuration(self, bench: Bench) -> None:
        """Each model of `models()` takes its own configuration as keywords."""
        for cls in bench.compute.models().values():
            config = cls().get_config()
            assert cls(**config).get_config() == config

    @pytest.mark.parametrize("shape", [(4,), (2, 2)], ids=str)
    def test_the_standard_model_has_the_weights_of_its_recipe(self, bench: Bench, shape: tuple[int, ...]) -> None:
        """For a seed, SequentialMLP starts with the same numbers in every framework, to the bit."""
        settings = {"output_shape": (3,), "n_layers": 3, "hidden_dim": 5}
        model = standard(bench, **settings)
        bench.compute.infer(model, [TensorSpec(shape, "float32")], 1234)
        expected = MLPSpec.from_config(settings).weights([shape], 1234)
        same({name.partition("/")[2]: value for name, value in bench.compute.state(model).items()}, expected)

    def test_the_standard_model_depends_on_its_seed_alone(self, bench: Bench) -> None:
        """Two seeds make two models, one seed makes one."""
        one, two, three = (standard(bench, output_shape=(3,)) for _ in range(3))
        for model, seed in ((one, 5), (two, 5), (three, 6)):
            bench.compute.infer(model, [X], seed)
        same(bench.values(one), bench.values(two))
        assert any((bench.values(one)[name] != value).any() for name, value in bench.values(three).items())

    def test_the_standard_model_takes_any_shapes(self, bench: Bench) -> None:
        """Inputs are flattened and joined, the output has the shape that was asked for."""
        model = standard(bench, output_shape=(2, 3))
        inputs = [TensorSpec((4,), "float32"), TensorSpec((2, 2), "float32")]
        assert bench.compute.infer(model, inputs, 0) == (TensorSpec((2, 3), "float32"),)


class StateTests(Subject):
    """Values of models, out and in again."""

    def test_place_takes_a_model_along(self, bench: Bench, model: Make, second: Device) -> None:
        """A placed model is on the device, and its values are what they were."""
        ready = bench.ready(model)
        before = bench.compute.state(ready)
        placed = bench.backend.place(ready, second)
        assert bench.backend.device_of(placed) == second
        same(bench.compute.state(placed), before)

    def test_place_of_a_placed_model_changes_nothing(self, bench: Bench, model: Make) -> None:
        """A second call keeps device and values."""
        ready = bench.ready(model)
        before = bench.compute.state(ready)
        again = bench.backend.place(ready, bench.device)
        assert bench.backend.device_of(again) == bench.device
        same(bench.compute.state(again), before)

    def test_it_owns_its_models(self, bench: Bench, model: Make) -> None:
        """A model of the framework is its own."""
        assert bench.backend.owns(bench.ready(model))

    def test_state_is_of_arrays_by_name(self, bench: Bench, model: Make) -> None:
        """Values are NumPy arrays, called `parameters/NAME` or `buffers/NAME`."""
        state = bench.compute.state(bench.ready(model))
        assert state
        assert all(isinstance(value, np.ndarray) for value in state.values())
        assert all(name.partition("/")[0] in ("parameters", "buffers") for name in state)

    def test_state_goes_back_in(self, bench: Bench, model: Make) -> None:
        """What was written is read again, to the bit."""
        ready = bench.ready(model)
        wanted = {name: value + 1 for name, value in bench.compute.state(ready).items()}
        bench.compute.load_state(ready, wanted)
        same(bench.compute.state(ready), wanted)

    def test_state_has_buffers(self, bench: Bench, buffered_model: Make) -> None:
        """Values that change without gradients are in the state, and go back in."""
        ready = bench.ready(buffered_model)
        state = bench.compute.state(ready)
        assert any(name.startswith("buffers/") for name in state)
        wanted = {name: value + 1 for name, value in state.items()}
        bench.compute.load_state(ready, wanted)
        same(bench.compute.state(ready), wanted)

    def test_state_is_a_copy(self, bench: Bench, model: Make) -> None:
        """Neither the arrays given out nor those taken in are the model's own memory."""
        ready = bench.ready(model)
        before = {name: value.copy() for name, value in bench.compute.state(ready).items()}
        overwrite(bench.compute.state(ready))
        same(bench.compute.state(ready), before)
        given = {name: value.copy() for name, value in before.items()}
        bench.compute.load_state(ready, given)
        overwrite(given)
        same(bench.compute.state(ready), before)

    def test_state_is_written_where_the_model_is(self, bench: Bench, model: Make, second: Device) -> None:
        """Loading moves nothing."""
        ready = bench.on(second).ready(model)
        bench.compute.load_state(ready, bench.compute.state(ready))
        assert bench.backend.device_of(ready) == second

    @pytest.mark.parametrize("fault", ["missing", "strange", "shape", "dtype"])
    def test_a_state_that_does_not_fit_is_refused_whole(self, bench: Bench, model: Make, fault: str) -> None:
        """Other names, shapes or dtypes raise StateError, and nothing is written."""
        ready = bench.ready(model)
        before = bench.compute.state(ready)
        wrong = {name: value + 1 for name, value in before.items()}
        last = list(wrong)[-1]
        value = wrong.pop(last)
        if fault == "strange":
            wrong.update({last: value, "parameters/of.another.model": value})
        elif fault != "missing":
            wrong[last] = value[..., None] if fault == "shape" else value.astype("float64")
        with pytest.raises(StateError):
            bench.compute.load_state(ready, wrong)
        same(bench.compute.state(ready), before)


class CustomTests(Subject):
    """How models are held, and what is told of their ways."""

    def test_wrap_twice_is_wrap_once(self, bench: Bench, model: Make) -> None:
        """What a node holds for a model is held as it is, before and after it is built and placed."""
        held = bench.compute.wrap(model())
        assert bench.compute.wrap(held) is held
        ready = bench.ready(lambda: held)
        assert bench.compute.wrap(ready) is ready

    def test_it_owns_what_it_wraps(self, bench: Bench, model: Make) -> None:
        """What a node holds for a model belongs to the same framework, built or not."""
        held = bench.compute.wrap(model())
        assert bench.backend.owns(held)
        assert bench.backend.owns(bench.ready(lambda: held))

    def test_a_wrapped_model_holds_its_values(self, bench: Bench, model: Make) -> None:
        """Once it is built, it has parameters, and a state that goes out and in again."""
        held = bench.compute.wrap(model())
        bench.compute.infer(held, [X], 0)
        state = bench.compute.state(held)
        assert bench.compute.parameters(held)
        assert {f"parameters/{name}" for name in bench.compute.parameters(held)} <= set(state)
        wanted = {name: value + 1 for name, value in state.items()}
        bench.compute.load_state(held, wanted)
        same(bench.compute.state(held), wanted)

    @pytest.mark.parametrize("name", ["model", "buffered_model", "random_model", "writing_model"])
    def test_writes_is_told_and_changes_nothing(self, bench: Bench, request: pytest.FixtureRequest, name: str) -> None:
        """Whether a model writes to its inputs is a plain truth value, and to ask leaves its values as they are."""
        ready = bench.ready(request.getfixturevalue(name))
        before = bench.compute.state(ready)
        assert isinstance(bench.compute.mutates_inputs(ready, [X]), bool)
        same(bench.compute.state(ready), before)

    def test_a_model_that_writes_is_known(self, bench: Bench, writing_model: Make) -> None:
        """The plan may then copy what it would share otherwise."""
        assert bench.compute.mutates_inputs(bench.ready(writing_model), [X]) is True

    def test_layout_is_a_pair_of_words(self, bench: Bench, model: Make) -> None:
        """The order of axes of inputs and of outputs, each known or left open; of a built model and of any other."""
        named = [bench.compute.wrap(cls()) for cls in bench.compute.models().values()]
        for each in (bench.ready(model), *named):
            given, gives = bench.compute.data_format(each)
            assert given in LAYOUTS and gives in LAYOUTS

    @pytest.mark.parametrize("name", ["model", "buffered_model"])
    def test_a_model_that_mixes_rows_is_known(self, bench: Bench, request: pytest.FixtureRequest, name: str) -> None:
        """Where the gradient of a batch is not the mean of those of its halves, `mixes` says why; else nothing."""
        ready, batch = bench.ready(request.getfixturevalue(name)), Batch.of(8)
        whole = bench.gradient_of(ready, batch)
        halves = [bench.gradient_of(ready, batch.rows(slice(i, i + 4))) for i in (0, 4)]
        mixed = any(np.abs(whole[key] - (halves[0][key] + halves[1][key]) / 2).max() > 1e-4 for key in whole)
        found = bench.compute.batch_coupling(ready)
        assert isinstance(found, str)
        assert bool(found) == mixed


class RefusalTests(Subject):
    """Recipes that a backend can and cannot build."""

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_every_named_optimizer_is_taken(self, bench: Bench, name: str) -> None:
        """No backend lacks an optimizer that has a name."""
        assert bench.compute.unsupported_reason(Optimizer(name)) == ""

    @pytest.mark.parametrize("name", LOSSES)
    def test_every_named_loss_is_taken(self, bench: Bench, name: str) -> None:
        """No backend lacks a loss that has a name."""
        assert bench.compute.unsupported_reason(Loss(name)) == ""


class ModelTests(ShapeTests, StateTests, CustomTests, RefusalTests):
    """Every promise of `Compute` that needs no program."""


def overwrite(state: dict[str, Array]) -> None:
    """Change arrays in place, those that allow it."""
    for value in state.values():
        if value.flags.writeable:
            value[...] = 123
