"""Tests of what `Compute` says of models: shapes, initial weights, state, properties, supported specs."""

from __future__ import annotations

from collections.abc import Callable
from types import new_class
from typing import Any

import numpy as np
import pytest

from anyaccel.adapter.model_specs import MLPSpec
from anyaccel.device import Device
from anyaccel.errors import ShapeError, StateError
from anyaccel.formulas import LOSSES, OPTIMIZERS
from anyaccel.registry import Registry
from anyaccel.segment import TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel_devtools.testing.harness import Array, Batch, Harness, assert_equal
from anyaccel_devtools.testing.subject import STANDARD_MODEL, Subject

Make = Callable[[], Any]
X = TensorSpec((4,), "float32")
DATA_FORMATS = ("", "channels_first", "channels_last")


def standard_model(harness: Harness, **settings: Any) -> Any:
    """Return an unbuilt SequentialMLP of the framework, or a skip where `models()` does not offer it."""
    models = harness.compute.models()
    if STANDARD_MODEL not in models:
        pytest.skip(f"no {STANDARD_MODEL} in models()")
    cls: Callable[..., Any] = models[STANDARD_MODEL]
    return harness.compute.wrap(cls(**settings))


class ShapeTests(Subject):
    """Shapes and initial weights."""

    def test_infer_gives_shape_and_dtype(self, harness: Harness, model: Make) -> None:
        """Shapes are per sample, without the batch: [4] to [3]."""
        assert harness.compute.infer(harness.compute.wrap(model()), [X], 0) == (TensorSpec((3,), "float32"),)

    @pytest.mark.parametrize("name", ["model", "buffered_model"])
    def test_infer_keeps_the_values_of_a_built_model(
        self, harness: Harness, request: pytest.FixtureRequest, name: str
    ) -> None:
        """A built model keeps its weights and buffers for any seed."""
        prepared = harness.prepare_model(request.getfixturevalue(name))
        before = harness.compute.state(prepared)
        harness.compute.infer(prepared, [X], 99)
        assert_equal(harness.compute.state(prepared), before)

    @pytest.mark.parametrize("shape", [(5,), ()], ids=str)
    def test_infer_refuses_wrong_shapes(self, harness: Harness, model: Make, shape: tuple[int, ...]) -> None:
        """Shapes that the model does not take raise ShapeError with the framework's message."""
        with pytest.raises(ShapeError) as caught:
            harness.compute.infer(harness.prepare_model(model), [TensorSpec(shape, "float32")], 0)
        assert len(str(caught.value)) > 20

    def test_dtype_of_is_the_dtype_of_its_inputs(self, harness: Harness, model: Make) -> None:
        """A float32 model takes float32."""
        assert harness.compute.dtype_of(harness.prepare_model(model)) == "float32"

    def test_parameters_are_described_with_their_shapes(self, harness: Harness, model: Make) -> None:
        """`parameters` gives name, shape and dtype of every parameter in the state."""
        prepared = harness.prepare_model(model)
        described = {name: (spec.shape, spec.dtype) for name, spec in harness.compute.parameters(prepared).items()}
        assert described
        assert described == {
            name: (value.shape, value.dtype.name) for name, value in harness.parameter_values(prepared).items()
        }

    def test_named_models_are_made_from_their_configuration(self, harness: Harness) -> None:
        """Each class of `models()` can be made again from its `get_config()`."""
        for cls in harness.compute.models().values():
            config = cls().get_config()
            assert cls(**config).get_config() == config

    @pytest.mark.parametrize("shape", [(4,), (2, 2)], ids=str)
    def test_the_standard_model_has_its_specified_weights(self, harness: Harness, shape: tuple[int, ...]) -> None:
        """For a seed, SequentialMLP has the same initial weights in every framework, bit for bit."""
        settings = {"output_shape": (3,), "n_layers": 3, "hidden_dim": 5}
        model = standard_model(harness, **settings)
        harness.compute.infer(model, [TensorSpec(shape, "float32")], 1234)
        expected = MLPSpec.from_config(settings).weights([shape], 1234)
        assert_equal({name.partition("/")[2]: value for name, value in harness.compute.state(model).items()}, expected)

    def test_the_standard_model_depends_on_its_seed_alone(self, harness: Harness) -> None:
        """Equal seeds give equal weights, different seeds different ones."""
        first, second, third = (standard_model(harness, output_shape=(3,)) for _ in range(3))
        for model, seed in ((first, 5), (second, 5), (third, 6)):
            harness.compute.infer(model, [X], seed)
        assert_equal(harness.parameter_values(first), harness.parameter_values(second))
        assert any(
            (harness.parameter_values(first)[name] != value).any()
            for name, value in harness.parameter_values(third).items()
        )

    def test_the_standard_model_takes_any_shapes(self, harness: Harness) -> None:
        """Inputs are flattened and concatenated; the output has the requested shape."""
        model = standard_model(harness, output_shape=(2, 3))
        inputs = [TensorSpec((4,), "float32"), TensorSpec((2, 2), "float32")]
        assert harness.compute.infer(model, inputs, 0) == (TensorSpec((2, 3), "float32"),)


class StateTests(Subject):
    """State of models, read and loaded."""

    def test_place_moves_a_model(self, harness: Harness, model: Make, second_device: Device) -> None:
        """A placed model is on the device and keeps its values."""
        prepared = harness.prepare_model(model)
        before = harness.compute.state(prepared)
        placed = harness.backend.place(prepared, second_device)
        assert harness.backend.device_of(placed) == second_device
        assert_equal(harness.compute.state(placed), before)

    def test_placing_a_placed_model_changes_nothing(self, harness: Harness, model: Make) -> None:
        """Device and values are kept."""
        prepared = harness.prepare_model(model)
        before = harness.compute.state(prepared)
        again = harness.backend.place(prepared, harness.device)
        assert harness.backend.device_of(again) == harness.device
        assert_equal(harness.compute.state(again), before)

    def test_it_owns_its_models(self, harness: Harness, model: Make) -> None:
        """The backend owns models of its framework."""
        assert harness.backend.owns(harness.prepare_model(model))

    def test_a_registry_finds_it_by_a_model_of_a_users_class(self, harness: Harness, model: Make) -> None:
        """Core finds the backend of a model whose class a user has derived in another module."""
        registry = Registry(lambda: harness.backend, lambda: ())
        if not registry.owners(harness.put(np.zeros(3, "float32"))):
            pytest.skip("its tensors are not found either")
        prepared = harness.prepare_model(model)
        assert registry.owners(prepared) == (harness.backend.framework,)
        body = {"__module__": "a_module_of_the_user", "__slots__": ()}
        try:
            derived = new_class("Derived", (type(prepared),), exec_body=lambda namespace: namespace.update(body))
            object.__setattr__(prepared, "__class__", derived)
        except TypeError:
            pytest.skip("models of this class cannot become those of a derived one")
        assert registry.owners(prepared) == (harness.backend.framework,)

    def test_state_maps_names_to_arrays(self, harness: Harness, model: Make) -> None:
        """Values are NumPy arrays named `parameters/NAME` or `buffers/NAME`."""
        state = harness.compute.state(harness.prepare_model(model))
        assert state
        assert all(isinstance(value, np.ndarray) for value in state.values())
        assert all(name.partition("/")[0] in ("parameters", "buffers") for name in state)

    def test_state_can_be_loaded_back(self, harness: Harness, model: Make) -> None:
        """Loaded values are read back bit for bit."""
        prepared = harness.prepare_model(model)
        expected = {name: value + 1 for name, value in harness.compute.state(prepared).items()}
        harness.compute.load_state(prepared, expected)
        assert_equal(harness.compute.state(prepared), expected)

    def test_state_has_buffers(self, harness: Harness, buffered_model: Make) -> None:
        """Buffers are in the state and can be loaded."""
        prepared = harness.prepare_model(buffered_model)
        state = harness.compute.state(prepared)
        assert any(name.startswith("buffers/") for name in state)
        expected = {name: value + 1 for name, value in state.items()}
        harness.compute.load_state(prepared, expected)
        assert_equal(harness.compute.state(prepared), expected)

    def test_state_is_a_copy(self, harness: Harness, model: Make) -> None:
        """Neither returned nor loaded arrays share memory with the model."""
        prepared = harness.prepare_model(model)
        before = {name: value.copy() for name, value in harness.compute.state(prepared).items()}
        overwrite(harness.compute.state(prepared))
        assert_equal(harness.compute.state(prepared), before)
        loaded = {name: value.copy() for name, value in before.items()}
        harness.compute.load_state(prepared, loaded)
        overwrite(loaded)
        assert_equal(harness.compute.state(prepared), before)

    def test_load_state_keeps_the_model_on_its_device(
        self, harness: Harness, model: Make, second_device: Device
    ) -> None:
        """`load_state` does not move the model."""
        prepared = harness.on_device(second_device).prepare_model(model)
        harness.compute.load_state(prepared, harness.compute.state(prepared))
        assert harness.backend.device_of(prepared) == second_device

    @pytest.mark.parametrize("fault", ["missing name", "unknown name", "shape", "dtype"])
    def test_a_state_that_does_not_fit_is_refused_as_a_whole(self, harness: Harness, model: Make, fault: str) -> None:
        """Wrong names, shapes or dtypes raise StateError, and nothing is written."""
        prepared = harness.prepare_model(model)
        before = harness.compute.state(prepared)
        wrong = {name: value + 1 for name, value in before.items()}
        last = list(wrong)[-1]
        value = wrong.pop(last)
        if fault == "unknown name":
            wrong.update({last: value, "parameters/of.another.model": value})
        elif fault != "missing name":
            wrong[last] = value[..., None] if fault == "shape" else value.astype("float64")
        with pytest.raises(StateError):
            harness.compute.load_state(prepared, wrong)
        assert_equal(harness.compute.state(prepared), before)


class ModelTraitTests(Subject):
    """How models are wrapped, and their known traits."""

    def test_wrap_is_idempotent(self, harness: Harness, model: Make) -> None:
        """Wrapping a wrapped model returns the same object, before and after it is built and placed."""
        wrapped = harness.compute.wrap(model())
        assert harness.compute.wrap(wrapped) is wrapped
        prepared = harness.prepare_model(lambda: wrapped)
        assert harness.compute.wrap(prepared) is prepared

    def test_it_owns_wrapped_models(self, harness: Harness, model: Make) -> None:
        """A wrapped model belongs to the framework, built or not."""
        wrapped = harness.compute.wrap(model())
        assert harness.backend.owns(wrapped)
        assert harness.backend.owns(harness.prepare_model(lambda: wrapped))

    def test_it_owns_its_named_models(self, harness: Harness) -> None:
        """Every class of `models()` is the backend's from the moment it is made, before it is built and wrapped."""
        for name, cls in harness.compute.models().items():
            assert harness.backend.owns(cls()), f"{name} of models(), not built"
            assert harness.backend.owns(harness.compute.wrap(cls())), f"{name} of models(), not built, wrapped"

    def test_a_wrapped_model_holds_its_values(self, harness: Harness, model: Make) -> None:
        """Once built, it has parameters and a state that can be read and loaded."""
        wrapped = harness.compute.wrap(model())
        harness.compute.infer(wrapped, [X], 0)
        state = harness.compute.state(wrapped)
        assert harness.compute.parameters(wrapped)
        assert {f"parameters/{name}" for name in harness.compute.parameters(wrapped)} <= set(state)
        expected = {name: value + 1 for name, value in state.items()}
        harness.compute.load_state(wrapped, expected)
        assert_equal(harness.compute.state(wrapped), expected)

    @pytest.mark.parametrize("name", ["model", "buffered_model", "random_model", "mutating_model"])
    def test_mutates_inputs_is_a_bool_and_changes_nothing(
        self, harness: Harness, request: pytest.FixtureRequest, name: str
    ) -> None:
        """`mutates_inputs` returns a bool and does not change the model's values."""
        prepared = harness.prepare_model(request.getfixturevalue(name))
        before = harness.compute.state(prepared)
        assert isinstance(harness.compute.mutates_inputs(prepared, [X]), bool)
        assert_equal(harness.compute.state(prepared), before)

    def test_mutates_inputs_detects_an_in_place_model(self, harness: Harness, mutating_model: Make) -> None:
        """The plan then copies a value that it would otherwise share."""
        assert harness.compute.mutates_inputs(harness.prepare_model(mutating_model), [X]) is True

    def test_data_format_is_a_pair_of_known_words(self, harness: Harness, model: Make) -> None:
        """`data_format` gives the order of axes of inputs and of outputs, or "", for built and unbuilt models."""
        unbuilt = [harness.compute.wrap(cls()) for cls in harness.compute.models().values()]
        for candidate in (harness.prepare_model(model), *unbuilt):
            of_inputs, of_outputs = harness.compute.data_format(candidate)
            assert of_inputs in DATA_FORMATS and of_outputs in DATA_FORMATS

    @pytest.mark.parametrize("name", ["model", "buffered_model"])
    def test_batch_coupling_detects_models_that_mix_rows(
        self, harness: Harness, request: pytest.FixtureRequest, name: str
    ) -> None:
        """`batch_coupling` gives a reason exactly where a batch's gradient is not the mean of its halves'."""
        prepared, batch = harness.prepare_model(request.getfixturevalue(name)), Batch.of(8)
        whole = harness.gradient_of(prepared, batch)
        halves = [harness.gradient_of(prepared, batch.rows(slice(i, i + 4))) for i in (0, 4)]
        coupled = any(np.abs(whole[key] - (halves[0][key] + halves[1][key]) / 2).max() > 1e-4 for key in whole)
        reason = harness.compute.batch_coupling(prepared)
        assert isinstance(reason, str)
        assert bool(reason) == coupled


class SpecSupportTests(Subject):
    """Optimizers and losses that every backend supports."""

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_every_named_optimizer_is_supported(self, harness: Harness, name: str) -> None:
        """Every backend supports all named optimizers."""
        assert harness.compute.unsupported_reason(Optimizer(name)) == ""

    @pytest.mark.parametrize("name", LOSSES)
    def test_every_named_loss_is_supported(self, harness: Harness, name: str) -> None:
        """Every backend supports all named losses."""
        assert harness.compute.unsupported_reason(Loss(name)) == ""


class ModelTests(ShapeTests, StateTests, ModelTraitTests, SpecSupportTests):
    """Everything that `Compute` promises without a program."""


def overwrite(state: dict[str, Array]) -> None:
    """Change those arrays in place that allow it."""
    for value in state.values():
        if value.flags.writeable:
            value[...] = 123
