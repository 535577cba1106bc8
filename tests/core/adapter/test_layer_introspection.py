"""Introspection of layers, over a small library made for this test."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

from anyaccel.adapter.call_layout import CallLayout
from anyaccel.adapter.layer_introspection import LayerLibrary, seeded_host_generators, unique_names
from anyaccel.errors import ShapeError, SpecError
from anyaccel.specs import Loss


class Variable:
    pass


class SeedGenerator:
    def __init__(self):
        self.state = Variable()


class Initializer:
    def __init__(self, seed=None):
        self.seed = seed

    def get_config(self):
        return {"seed": self.seed}


class OwnInitializer(Initializer):
    def get_config(self):
        raise NotImplementedError


class Layer:
    built = False
    variable_dtype = "float32"

    def __init__(self):
        self._losses = []


class Functional(Layer):
    def __init__(self, layers, structure):
        super().__init__()
        self.layers, self.input = layers, structure


class Sequential(Layer):
    def __init__(self, *layers):
        super().__init__()
        self.layers = list(layers)


class BaseLoss:
    pass


class MeanSquaredError(BaseLoss):
    def __init__(self, scale=1.0):
        self.scale = scale

    def __call__(self, targets, outputs):
        return self.scale * np.abs(targets - 2 * outputs)


class Asymmetric(MeanSquaredError):
    """Compares elements as what it derives from does."""


class Ranking(BaseLoss):
    def __call__(self, targets, outputs):
        return np.zeros(1)


class Dense(Layer):
    def __init__(self, **attributes):
        super().__init__()
        self._hidden = Variable()
        self.kernel = Variable()
        vars(self).update(attributes)


class Conv2D(Layer):
    data_format = "channels_first"


class GlobalPooling(Conv2D):
    pass


class Dropout(Layer):
    __module__ = "library.layers.regularization.dropout"


@pytest.fixture
def library():
    tree = SimpleNamespace(pack_sequence_as=lambda structure, inputs: dict(zip(structure, inputs, strict=True)))
    module = SimpleNamespace(
        __name__="library",
        Layer=Layer,
        Variable=Variable,
        Sequential=Sequential,
        Initializer=Initializer,
        random=SimpleNamespace(SeedGenerator=SeedGenerator),
        losses=SimpleNamespace(Loss=BaseLoss),
        tree=tree,
    )
    return LayerLibrary(module)


def test_without_a_library_nothing_belongs_to_it():
    library = LayerLibrary(None)
    assert not any(ask(Layer()) for ask in (library.is_layer, library.is_variable, library.is_random, library.is_loss))
    assert not library.is_sequential(Sequential()) and not library.is_functional(Functional([], None))


def test_variables_are_named_by_the_attributes_that_lead_to_them(library):
    inner, shared = Dense(), Variable()
    model = Sequential(inner, Dense(seeds=SeedGenerator(), table={"a": [shared]}, again=shared))
    named = library.named(
        model, [inner.kernel, vars(inner)["_hidden"], model.layers[1].seeds.state, shared, Variable()]
    )
    assert list(named) == [
        *("layers.0.kernel", "layers.0.hidden", "layers.1.seeds.state", "layers.1.table.a.0", "variables.4")
    ]


def test_public_attributes_come_before_private_ones_and_bookkeeping_last(library):
    layer = Dense(z=Variable())
    assert [path for path, _ in library.walk(layer)] == ["", "kernel", "z", "hidden", "losses"]


def test_a_cycle_is_walked_once(library):
    layer = Dense()
    layer.me = layer
    assert sum(found is layer for _, found in library.walk(layer)) == 1


def test_taken_names_get_a_number():
    assert unique_names([("a", 1), ("a", 2), ("b", 3), ("a", 4)]) == {"a": 1, "a_2": 2, "b": 3, "a_3": 4}


def test_initializers_of_unbuilt_layers_are_seeded_but_for_those_that_have_a_seed(library):
    def seeds(seed):
        layer = Dense(first=Initializer(), second=Initializer(), fixed=Initializer(7), own=OwnInitializer())
        built = Dense(first=Initializer())
        built.built = True
        library.seed_initializers(Sequential(layer, built), seed)
        return [layer.first.seed, layer.second.seed, layer.fixed.seed, layer.own.seed, built.first.seed]

    first, second, *rest = seeds(1)
    assert first != second and rest == [7, None, None] and seeds(1) == [first, second, *rest] != seeds(2)


def test_the_host_generators_follow_the_seed_inside_and_go_on_afterwards():
    random.seed(5), np.random.seed(5)
    expected = random.random(), np.random.random()
    random.seed(5), np.random.seed(5)
    drawn = []
    for seed in (1, 1, 2**63):
        with seeded_host_generators(seed):
            drawn.append((random.random(), np.random.random()))
    assert drawn[0] == drawn[1] != drawn[2] and (random.random(), np.random.random()) == expected


def test_inputs_are_packed_as_the_layer_takes_them(library):
    class Pair(Layer):
        def call(self, x, y, training=False):
            pass

    class Listed(Layer):
        def call(self, inputs, mask=None):
            pass

    class Any(Layer):
        def call(self, *inputs):
            pass

    assert library.packing(Pair(), 2)([1, 2]) == library.packing(Any(), 2)([1, 2]) == ([1, 2], {})
    assert library.packing(Listed(), 2)([1, 2]) == ([[1, 2]], {}) and library.packing(Listed(), 1)([1]) == ([1], {})
    assert library.packing(Functional([], ["a", "b"]), 2)([1, 2]) == ([{"a": 1, "b": 2}], {})
    named = CallLayout([("y",), ("x",)])
    assert library.packing(Pair(), 2, named)([1, 2]) == ((), {"y": 1, "x": 2})


def test_the_data_format_is_that_of_the_first_and_last_layer_that_is_not_elementwise(library):
    conv, both = Conv2D(), ("channels_first", "channels_first")
    assert library.data_format(conv) == library.data_format(Sequential(Dropout(), Sequential(conv), Dropout())) == both
    assert library.data_format(Sequential(conv, GlobalPooling())) == ("channels_first", "")
    assert library.data_format(Sequential(conv, Dense())) == ("channels_first", "")
    assert library.data_format(Dense()) == ("", "")


def test_the_dtype_of_an_unbuilt_model_is_that_of_its_first_layer(library):
    half = Dense(variable_dtype="float16")
    assert library.unbuilt_dtype(Sequential(half, Dense())) == "float16"
    assert library.unbuilt_dtype(Dense(variable_dtype="int32")) is None is library.unbuilt_dtype(object())


def mean_squared_error(targets, outputs):
    return np.mean((targets - outputs) ** 2)


@pytest.mark.parametrize("own", [MeanSquaredError, MeanSquaredError(), Asymmetric(), mean_squared_error])
def test_losses_of_the_library_do_not_broadcast(library, own):
    loss = Loss(own)
    compute = library.loss_function(loss, np.mean)
    assert compute.__name__ == loss.name and compute(np.ones((4, 1)), np.zeros(4)) >= 1.0  # a last axis of 1 may lack
    with pytest.raises(ShapeError, match=r"outputs of shape \[4, 3\] and targets of shape \[4, 1\].*do not broadcast"):
        compute(np.ones((4, 3)), np.zeros((4, 1)))


def test_a_loss_gets_targets_first_and_its_mean_is_taken(library):
    loss = Loss(MeanSquaredError, loss_kwargs={"scale": 3.0})
    assert library.loss_function(loss, np.mean)(np.full(2, 1.0), np.full(2, 5.0)) == 9.0
    assert library.loss_function(Loss(Ranking()), np.mean)(np.ones((2, 3)), np.ones(2)) == 0.0
    with pytest.raises(SpecError, match=r"cannot create the loss 'MeanSquaredError'.*nothing.*correct loss_kwargs"):
        library.loss_function(Loss(MeanSquaredError, loss_kwargs={"nothing": 1}), np.mean)


def test_losses_of_the_library_are_its_classes_their_instances_and_its_functions(library):
    def function(targets, outputs):
        return 0.0

    assert not library.is_loss(function)
    function.__module__ = "library.losses"
    assert library.is_loss(function)
    assert library.is_loss(Ranking) and library.is_loss(Ranking()) and not library.is_loss(Layer)
