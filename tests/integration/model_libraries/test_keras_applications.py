"""Applications of Keras as they are, on the backend that Keras has in this process, beside Keras's own `fit`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

from .conftest import ALL

if not ALL:
    pytest.skip("they take minutes: nox -s models", allow_module_level=True)
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

keras = pytest.importorskip("keras")
pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """Double precision: in single, `fit` and a loop with GradientTape differ by two percent after three steps."""
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx(before)


STEPS, BATCH, RATE, SIZE, CLASSES = 3, 4, 0.01, 32, 3
APPLICATIONS: dict[str, dict[str, Any]] = {
    "ConvNeXtTiny": {},
    "DenseNet121": {},
    "EfficientNetB0": {},
    "EfficientNetV2B0": {},
    "MobileNet": {"alpha": 0.25},
    "MobileNetV2": {"alpha": 0.35},
    "MobileNetV3Small": {"alpha": 0.75, "minimalistic": True},
    "ResNet50": {},
    "ResNet50V2": {},
}

WITHOUT_GRADIENTS = {"ConvNeXtTiny"} if keras.config.backend() == "tensorflow" else set()
"""TensorFlow has gradients of grouped convolutions on a CPU only in what XLA compiles, as `fit` does."""


def application(name: str) -> Any:
    """With random weights from one seed, and without dropout, for which both ways have random numbers of their own."""
    keras.utils.set_random_seed(0)
    common = {"weights": None, "input_shape": (SIZE, SIZE, 3), "classes": CLASSES, "classifier_activation": None}
    model = getattr(keras.applications, name)(**common, **APPLICATIONS[name])
    for layer in model.layers:
        for rate in ("rate", "drop_path_rate"):
            if isinstance(getattr(layer, rate, None), float):
                setattr(layer, rate, 0.0)
    return model


def values(model: Any) -> dict[str, np.ndarray]:
    named = {variable.path: keras.ops.convert_to_numpy(variable.value) for variable in model.variables}
    return {path: value for path, value in named.items() if "seed" not in path}


@pytest.mark.parametrize("name", sorted(APPLICATIONS.keys() - WITHOUT_GRADIENTS))
def test_an_application_trains_as_by_fit(name: str) -> None:
    random = np.random.default_rng(0)
    images = random.uniform(0, 255, (STEPS * BATCH, SIZE, SIZE, 3)).astype("float64")
    kinds = random.integers(0, CLASSES, STEPS * BATCH)
    model, own = application(name), application(name)
    compiled: Any = False if keras.config.backend() == "tensorflow" else "auto"  # XLA rounds otherwise than a loop
    loss_by_fit = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    own.compile(keras.optimizers.SGD(RATE), loss_by_fit, jit_compile=compiled)
    (expected,) = own.fit(images, kinds, batch_size=BATCH, shuffle=False, verbose=0).history["loss"]

    data = aa.FeatureSet.from_dict("data", {"images": images, "kinds": kinds}, "images", "kinds")
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference("images"))], aa.Optimizer("sgd", lr=RATE))
    loss, sampler = aa.AppliedLoss("cross_entropy", on="net"), aa.SimpleSampler(BATCH)
    phase = aa.TrainPhase("train", data="all", losses=loss, sampler=sampler, n_epochs=1)
    result = aa.Experiment("model", graph, progress="none").run_phase(phase)
    np.testing.assert_allclose(result.loss[-1], expected, rtol=1e-5)
    for own_value, (path, value) in zip(values(own).values(), values(model).items(), strict=True):
        np.testing.assert_allclose(value, own_value, rtol=1e-5, atol=1e-5, err_msg=path)


def test_there_are_at_least_eight() -> None:
    assert len(APPLICATIONS.keys() - WITHOUT_GRADIENTS) >= 8
