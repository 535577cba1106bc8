"""Optimizers as the guides of Keras write them, as objects, beside `model.fit`: the same weights, or a hint that works.

Float32 throughout; weights are of the order of 1, and compared within 1e-6.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import SpecError

keras = pytest.importorskip("keras", reason="Keras is not installed")
from keras import layers, ops, optimizers  # noqa: E402

schedules = optimizers.schedules
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras itself
random = np.random.default_rng(0)
N, EPOCHS = 32, 3
X = random.standard_normal((N, 6)).astype("float32")
Y = X[:, :1] - X[:, 1:2]


@pytest.fixture(autouse=True)
def only_the_framework_of_keras(framework: str) -> Iterator[None]:
    if keras.config.backend() != framework:
        pytest.skip(f"Keras runs on {keras.config.backend()} here")
    if framework == "torch":
        with keras.device("cpu"):
            yield
    else:
        yield


def dense() -> Any:
    return keras.Sequential([keras.Input((6,)), layers.Dense(4, "tanh", name="body"), layers.Dense(1, name="head")])


def embedding() -> Any:
    """Its first layer is one by name, as gradients of embeddings are sparse in TensorFlow: docs/limitations.md."""
    parts = [keras.Input((6,)), layers.Dense(4, name="embedding"), layers.Dense(3), layers.Dense(1)]
    return keras.Sequential(parts)


def alike(make: Callable[[], Any] = dense) -> tuple[Any, Any]:
    """Two models of equal weights, whose layers have the same names."""
    models = []
    for _ in range(2):
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)  # rules that divide by small moments amplify what is rounded
        models.append(make())
    models[1].set_weights(models[0].get_weights())
    return models[0], models[1]


def fit(model: Any, optimizer: Any, epochs: int = EPOCHS, **settings: Any) -> None:
    model.compile(optimizer, "mse")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Keras itself warns of
        model.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, **settings)


def graph_of(model: Any, optimizer: Any) -> aa.ModelGraph:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])
    return aa.ModelGraph([aa.ModelNode("net", model, data.reference())], optimizer)


def train(graph: aa.ModelGraph, epochs: int = EPOCHS, **settings: Any) -> Any:
    settings = {"sampler": aa.SimpleSampler(8, shuffle=False), **settings}
    phase = aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")], epochs=epochs, **settings)
    return graph.run(phase, progress="none")


def check_equal(mine: Any, theirs: Any) -> None:
    for actual, expected in zip(mine.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


class Noam(schedules.LearningRateSchedule):  # type: ignore[name-defined,misc]
    """The schedule of the tutorial on Transformers, without a configuration."""

    def __init__(self, width: int, warmup_steps: int) -> None:
        self.width, self.warmup_steps = width, warmup_steps

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32") + 1.0
        return ops.rsqrt(float(self.width)) * ops.minimum(ops.rsqrt(step), step * self.warmup_steps**-1.5)


class SlowBody(optimizers.SGD):  # type: ignore[misc]
    """A rate for each variable, by its name or path."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        where = variable.path if hasattr(variable, "path") else variable.name  # TensorFlow's own have no path
        super().update_step(gradient, variable, learning_rate * (0.1 if "body" in where else 1.0))


def without_decay_of_biases(model: Any) -> Any:
    optimizer = optimizers.AdamW(0.02, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def without_decay_of_the_head(model: Any) -> Any:
    optimizer = optimizers.AdamW(0.02, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=model.layers[-1].trainable_variables)
    return optimizer


def changed_afterwards(model: Any) -> Any:
    optimizer = optimizers.SGD(0.3)
    optimizer.learning_rate, optimizer.clipnorm, optimizer.weight_decay = 0.1, 0.2, 0.1
    return optimizer


RECIPES: dict[str, Callable[[Any], Any]] = {
    "Adam with its rate": lambda model: optimizers.Adam(0.02),
    "Adam with all settings": lambda model: optimizers.Adam(0.02, beta_1=0.8, beta_2=0.9, epsilon=1e-3, amsgrad=True),
    "SGD with Nesterov's momentum": lambda model: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "ExponentialDecay": lambda model: optimizers.RMSprop(schedules.ExponentialDecay(0.1, 3, 0.5, staircase=True)),
    "CosineDecay after a warm-up": lambda model: optimizers.Adam(
        schedules.CosineDecay(0.0, 8, warmup_target=0.05, warmup_steps=3)
    ),
    "PiecewiseConstantDecay": lambda model: optimizers.SGD(schedules.PiecewiseConstantDecay([3, 6], [0.1, 0.05, 0.01])),
    "PolynomialDecay": lambda model: optimizers.SGD(schedules.PolynomialDecay(0.1, 5, 0.01, power=2.0, cycle=True)),
    "InverseTimeDecay": lambda model: optimizers.SGD(schedules.InverseTimeDecay(0.1, 2, 0.5)),
    "CosineDecayRestarts": lambda model: optimizers.SGD(schedules.CosineDecayRestarts(0.1, 4)),
    "a schedule of one's own": lambda model: optimizers.Adam(Noam(64, 5), beta_1=0.9, beta_2=0.98, epsilon=1e-9),
    "a function as the rate": lambda model: optimizers.SGD(lambda: 0.07),
    "no decay by names": without_decay_of_biases,
    "no decay by variables": without_decay_of_the_head,
    "a rate for each variable": lambda model: SlowBody(0.1),
    "clipnorm": lambda model: optimizers.SGD(0.1, clipnorm=0.1),
    "clipvalue": lambda model: optimizers.SGD(0.1, clipvalue=0.05),
    "global_clipnorm": lambda model: optimizers.SGD(0.1, momentum=0.5, global_clipnorm=0.2),
    "attributes changed afterwards": changed_afterwards,
    "get by name": lambda model: optimizers.get("rmsprop"),
    "get by configuration": lambda model: optimizers.get({"class_name": "adam", "config": {"learning_rate": 0.03}}),
}


@pytest.mark.shared
@pytest.mark.parametrize("name", RECIPES)
def test_an_object_trains_as_fit_does(name: str, framework: str) -> None:
    own, model = alike()
    fit(own, RECIPES[name](own))
    graph = graph_of(model, RECIPES[name](model))
    train(graph, 1, compile="off")
    train(graph, 1)  # goes on with the state and the count of steps
    train(graph, 1, **({} if framework == "torch" else {"compile": "steps"}))
    check_equal(model, own)


@pytest.mark.shared
@pytest.mark.parametrize("given", ["object", "class"])
def test_rules_by_the_paths_of_variables_see_those_of_the_model(given: str) -> None:
    """Muon leaves embeddings, and what its patterns name, to Adam."""
    own, model = alike(embedding)
    fit(own, optimizers.Muon(0.02, exclude_layers=["dense_1"]))
    spec = aa.Optimizer(optimizers.Muon, lr=0.02, exclude_layers=["dense_1"])
    graph = graph_of(model, spec if given == "class" else optimizers.Muon(0.02, exclude_layers=["dense_1"]))
    train(graph, 2)
    train(graph, 1)
    check_equal(model, own)


def test_a_class_of_ones_own_sees_names_and_takes_groups() -> None:
    own, model = alike()
    fit(own, SlowBody(0.1))
    train(graph_of(model, aa.Optimizer(SlowBody, lr=0.1)))
    check_equal(model, own)


def test_nodes_share_an_object_that_clips_by_the_norm_of_all() -> None:
    own, _ = alike()
    body, head = (
        keras.Sequential([keras.Input((6,)), layers.Dense(4, "tanh")]),
        keras.Sequential([keras.Input((4,)), layers.Dense(1)]),
    )
    body.set_weights(own.get_weights()[:2])
    head.set_weights(own.get_weights()[2:])
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])
    nodes = [aa.ModelNode("body", body, data.reference()), aa.ModelNode("net", head, "body")]
    train(aa.ModelGraph(nodes, optimizers.SGD(0.1, global_clipnorm=0.2)))
    fit(own, optimizers.SGD(0.1, global_clipnorm=0.2))
    for actual, expected in zip([*body.get_weights(), *head.get_weights()], own.get_weights(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.shared
@pytest.mark.parametrize("compile_", ["off", "auto", "steps"])
def test_a_rate_that_a_callback_changes_is_the_rate_of_the_next_epoch(compile_: Any, framework: str) -> None:
    if framework == "torch" and compile_ == "steps":
        pytest.skip("torch compiles no steps with Keras")
    rates = [0.1, 0.02, 0.3]
    own, model = alike()
    fit(own, optimizers.SGD(0.1, momentum=0.5), callbacks=[keras.callbacks.LearningRateScheduler(lambda e: rates[e])])
    optimizer = optimizers.SGD(0.1, momentum=0.5)

    class Rates(aa.Callback):
        def epoch_start(self, run: Any) -> None:
            optimizer.learning_rate = rates[run.epoch]

    train(graph_of(model, optimizer), callbacks=[Rates()], compile=compile_)
    check_equal(model, own)


def test_lr_and_schedule_multiply_the_rate_of_an_object() -> None:
    own, model = alike()
    fit(own, optimizers.SGD(schedules.ExponentialDecay(0.1, 2, 0.5)))
    train(
        graph_of(
            model, aa.Optimizer(optimizers.SGD(0.2), lr=0.5, schedule=aa.Schedule("exponential", rate=0.5, every=2))
        )
    )
    check_equal(model, own)


def test_frozen_layers_are_unfrozen_with_a_new_object() -> None:
    """As the guide on fine-tuning does."""
    own, model = alike()
    for each in (own, model):
        each.layers[0].trainable = False
    graph = graph_of(model, optimizers.Adam(0.02))
    fit(own, optimizers.Adam(0.02), epochs=2)
    train(graph, 2)
    for each in (own, model):
        each.layers[0].trainable = True
    graph.optimizer = aa.Optimizer(optimizers.SGD(1e-2))
    fit(own, optimizers.SGD(1e-2), epochs=2)
    train(graph, 2)
    check_equal(model, own)


def gradients(model: Any, rows: slice, framework: str) -> list[Any]:
    """The gradients of the mean squared error, by the framework itself."""
    if framework == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(X[rows], training=True) - Y[rows]) ** 2)
        return list(tape.gradient(loss, model.trainable_variables))
    if framework == "torch":
        model.zero_grad()
        targets = ops.convert_to_tensor(Y[rows])
        ops.mean((model(X[rows], training=True) - targets) ** 2).backward()
        return [variable.value.grad for variable in model.trainable_variables]
    import jax

    def loss_of(trained: Any) -> Any:
        others = [variable.value for variable in model.non_trainable_variables]
        outputs, _ = model.stateless_call(trained, others, X[rows], training=True)
        return ops.mean((outputs - Y[rows]) ** 2)

    return list(jax.grad(loss_of)([variable.value for variable in model.trainable_variables]))


@pytest.mark.shared
@pytest.mark.parametrize(
    ("make", "off", "at_first"),
    [
        (lambda: optimizers.Adam(schedules.ExponentialDecay(0.05, 3, 0.8)), 0, False),
        (lambda: optimizers.SGD(schedules.ExponentialDecay(0.1, 3, 0.8)), 0, False),
        (lambda: optimizers.Nadam(0.02), 1, True),
    ],
    ids=["Adam, body in between", "SGD, body in between", "Nadam, head at first"],
)
def test_an_object_goes_on_after_a_layer_was_switched_off(
    make: Callable[[], Any], off: int, at_first: bool, framework: str
) -> None:
    own, model = alike()
    optimizer, graph = make(), graph_of(model, make())
    optimizer.build(own.trainable_variables)
    for is_on in (not at_first, at_first, True):
        own.layers[off].trainable = model.layers[off].trainable = is_on
        for start in range(0, N, 8):
            found = gradients(own, slice(start, start + 8), framework)
            optimizer.apply_gradients(zip(found, own.trainable_variables, strict=True))
        train(graph, 1)
    check_equal(model, own)


def test_fit_of_a_table_takes_an_object() -> None:
    own, model = alike()
    fit_whole: Any = {"batch_size": N, "epochs": EPOCHS}  # one batch, so that its order does not count
    own.compile(optimizers.Adam(0.02), "mse")
    own.fit(X, Y, verbose=0, **fit_whole)
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])
    aa.fit(model, data, loss="mse", optimizer=optimizers.Adam(0.02), progress="none", **fit_whole)
    check_equal(model, own)


# -- words of Keras ----------------------------------------------------------------------------------------------------


def decay() -> Any:
    return schedules.ExponentialDecay(0.1, 2, 0.5)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("wrong", "message", "right", "expected"),
    [
        (
            lambda: aa.Optimizer(optimizers.SGD, learning_rate=0.05),
            r"optimizer 'SGD': the learning rate is called lr\. Hint: write lr=0\.05, without learning_rate",
            lambda: aa.Optimizer(optimizers.SGD, lr=0.05),
            lambda: optimizers.SGD(0.05),
        ),
        (
            lambda: aa.Optimizer(optimizers.SGD, learning_rate=decay()),
            r"learning_rate is a ExponentialDecay, but lr must be a number\. Hint: write lr=1\.0, schedule=\.\.\. "
            r"with this",
            lambda: aa.Optimizer(optimizers.SGD, lr=1.0, schedule=decay()),
            lambda: optimizers.SGD(decay()),
        ),
        (
            lambda: aa.Optimizer("sgd", lr=decay()),
            r"optimizer 'sgd': lr is a ExponentialDecay, but lr must be a number\. Hint: write lr=1\.0, schedule=",
            lambda: aa.Optimizer("sgd", lr=1.0, schedule=decay()),
            lambda: optimizers.SGD(decay()),
        ),
    ],
)
def test_words_of_keras_for_the_rate(wrong: Any, message: str, right: Any, expected: Any) -> None:
    with pytest.raises(SpecError, match=message):
        wrong()
    own, model = alike()
    fit(own, expected())
    train(graph_of(model, right()))
    check_equal(model, own)


# -- what only fit does ------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[], Any], str, Callable[[], Any], Callable[[], dict[str, Any]]]] = {
    "use_ema": (
        lambda: optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8),
        r"has use_ema.*Hint: pass averaging = WeightAveraging\(0\.8\) to .*call averaging\.apply\(graph\) afterwards",
        lambda: optimizers.SGD(0.1),
        lambda: {"callbacks": [aa.WeightAveraging(0.8)]},
    ),
    "gradient_accumulation_steps": (
        lambda: optimizers.SGD(0.1, gradient_accumulation_steps=2),
        r"has gradient_accumulation_steps.*Hint: write TrainPhase\(accumulate=2\) instead",
        lambda: optimizers.SGD(0.1),
        lambda: {"accumulate": 2},
    ),
    "loss_scale_factor": (
        lambda: optimizers.SGD(0.1, loss_scale_factor=8.0),
        r"has loss_scale_factor.*Hint: leave it out",
        lambda: optimizers.SGD(0.1),
        dict,
    ),
    "LossScaleOptimizer": (
        lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1)),
        r"has inner_optimizer.*Hint: pass the inner optimizer: Optimizer\(optimizer\.inner_optimizer\)",
        lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1)).inner_optimizer,
        dict,
    ),
}


@pytest.mark.shared
@pytest.mark.parametrize("name", REFUSED)
def test_what_only_fit_does_is_refused_with_a_hint_that_gives_the_same(name: str) -> None:
    make, message, right, settings = REFUSED[name]
    own, model = alike()
    graph = graph_of(model, make())
    with pytest.raises(SpecError, match=message):
        train(graph)
    fit(own, make(), epochs=2)
    graph.optimizer = aa.Optimizer(right())
    further = settings()
    train(graph, 2, **further)
    for averaging in further.get("callbacks", ()):
        averaging.apply(graph)
    check_equal(model, own)


def test_several_optimizers_in_one_are_refused_and_groups_give_the_same() -> None:
    if not hasattr(optimizers, "MultiOptimizer"):
        pytest.skip("this Keras has no MultiOptimizer")

    def several() -> Any:
        rates = optimizers.OptimizerMap(optimizers.SGD(0.1))
        rates[".*body/.*"] = optimizers.SGD(0.01)
        return optimizers.MultiOptimizer(rates)

    own, model = alike()
    with pytest.raises(SpecError, match=r"has optimizers, .*Hint: pass .*groups="):
        train(graph_of(model, several()))
    fit(own, several())
    train(graph_of(model, aa.Optimizer(optimizers.SGD, lr=0.1, groups={"layers.0.*": {"lr": 0.01}})))
    check_equal(model, own)


def test_an_object_that_fit_has_used_is_refused() -> None:
    own, model = alike()
    used = optimizers.Adam(0.02)
    fit(own, used, epochs=1)
    with pytest.raises(SpecError, match=r"Adam has been used by its framework's own loop.*Hint: pass a new one"):
        train(graph_of(model, used))
    own.set_weights(model.get_weights())
    fit(own, optimizers.Adam(0.02))
    train(graph_of(model, type(used).from_config(used.get_config())))
    check_equal(model, own)


def test_settings_beside_an_object_are_refused() -> None:
    with pytest.raises(SpecError, match=r"is an object already, but got settings: beta_1.*Hint: pass them to Adam\("):
        train(graph_of(dense(), aa.Optimizer(optimizers.Adam(0.1), beta_1=0.5)))
    with pytest.raises(SpecError, match=r"clips by both its global_clipnorm and clip_norm.*leave one of them out"):
        aa.Optimizer(optimizers.Adam(0.1, global_clipnorm=1.0), clip_norm=1.0)


def test_an_object_that_its_configuration_does_not_make_again_is_refused() -> None:
    class Scaled(optimizers.SGD):  # type: ignore[misc]
        def __init__(self, scale: float = 1.0, **settings: Any) -> None:
            super().__init__(**{"learning_rate": 0.1, **settings})
            self.scale = scale

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            super().update_step(gradient * self.scale, variable, learning_rate)

    class Closed(Scaled):
        def __init__(self, scale: float) -> None:
            super().__init__(scale)

    own, model = alike()
    with pytest.raises(SpecError, match=r"cannot create the optimizer Closed: .*Hint: let its constructor accept"):
        train(graph_of(model, Closed(0.5)))
    fit(own, Scaled(0.5))
    train(graph_of(model, Scaled(0.5)))  # `scale` is no part of its configuration
    check_equal(model, own)
