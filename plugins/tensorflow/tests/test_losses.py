"""Custom losses and losses of Keras; optimizers that are not named ones."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa
from anyaccel.device import Device
from anyaccel.errors import ShapeError, SpecError
from anyaccel_tensorflow import SequentialMLP
from anyaccel_tensorflow.backend import TensorFlowBackend
from anyaccel_tensorflow.ops import scalar_loss

CPU = Device("cpu")


def source() -> aa.FeatureSet:
    x = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
    columns = {"x": x, "y": x[:, :1] * 2, "kind": (x[:, 0] > 0).astype("int64")}
    return aa.FeatureSet.from_dict("data", columns, ["x"], ["y", "kind"])


def losses(loss: Any, width: int = 1, target: str = "y", batch: int = 8) -> np.ndarray:
    given = source()
    graph = aa.ModelGraph(
        [aa.ModelNode("net", SequentialMLP((width,), 2, 8), given.reference(target=[target]))],
        aa.Optimizer("adam", lr=0.02),
    )
    phase = aa.TrainPhase(
        "train", data="all", losses=[aa.AppliedLoss(loss, on="net")], sampler=aa.SimpleSampler(batch), epochs=5
    )
    return np.asarray(aa.Experiment("e", graph, progress="none").run_phase(phase).loss)


def squares(outputs: Any, targets: Any) -> Any:
    return tf.reduce_mean((outputs - targets) ** 2)


FROM_LOGITS = aa.Loss(keras.losses.SparseCategoricalCrossentropy, loss_kwargs={"from_logits": True})


@pytest.mark.parametrize(
    ("own", "named", "width", "target"),
    [
        (squares, "mse", 1, "y"),
        (keras.losses.MeanSquaredError(), "mse", 1, "y"),
        (keras.losses.MeanSquaredError, "mse", 1, "y"),
        (keras.losses.mean_squared_error, "mse", 1, "y"),
        (keras.losses.MeanSquaredError(reduction=None), "mse", 1, "y"),
        (keras.losses.mean_absolute_error, "mae", 1, "y"),
        (FROM_LOGITS, "cross_entropy", 2, "kind"),
    ],
    ids=["function", "object", "class", "keras function", "not reduced", "another", "with settings"],
)
def test_custom_losses_train_as_the_named_one_of_the_same_formula(
    own: Any, named: str, width: int, target: str
) -> None:
    np.testing.assert_allclose(losses(own, width, target), losses(named, width, target), rtol=1e-4)


def test_a_loss_that_is_not_a_scalar_raises() -> None:
    with pytest.raises(SpecError, match=r"the loss 'each' returns shape \[8\].*a loss must return a scalar.*mean over"):

        def each(outputs: Any, targets: Any) -> Any:
            return tf.reduce_mean((outputs - targets) ** 2, -1)

        losses(each)


def test_settings_that_a_loss_does_not_have_raise() -> None:
    wrong = aa.Loss(keras.losses.MeanSquaredError, loss_kwargs={"no_such": 1})
    with pytest.raises(SpecError, match=r"cannot create the loss 'MeanSquaredError'.*no_such.*correct loss_kwargs"):
        losses(wrong)


def test_integer_targets_have_no_gradient_and_are_no_obstacle() -> None:
    def loss(outputs: Any, targets: Any) -> Any:
        return tf.reduce_mean((outputs - tf.cast(targets, tf.float32)) ** 2)

    result = losses(loss, 1, "kind")
    assert result[-1] < result[0]


class Foreign:
    """An optimizer of nobody's."""


def test_optimizers_of_others_are_refused_and_alternatives_are_named(backend: TensorFlowBackend) -> None:
    message = backend.unsupported_reason(aa.Optimizer(Foreign))
    assert "Foreign" in message and "sgd, momentum, adam, adamw, and classes of keras.optimizers" in message
    assert backend.unsupported_reason(aa.Optimizer(keras.optimizers.Adam)) == ""
    given = source()
    graph = aa.ModelGraph([aa.ModelNode("net", SequentialMLP(), given.reference(target=["y"]))], aa.Optimizer(Foreign))
    phase = aa.TrainPhase("train", data="all", losses=[aa.AppliedLoss("mse", on="net")])
    with pytest.raises(SpecError, match=r"Foreign.*sgd, momentum, adam, adamw"):
        aa.Experiment("e", graph, progress="none").run_phase(phase)


def test_losses_of_another_framework_are_refused(backend: TensorFlowBackend) -> None:
    torch = pytest.importorskip("torch")
    assert "torch" in backend.unsupported_reason(aa.Loss(torch.nn.MSELoss))
    assert backend.unsupported_reason(aa.Loss(keras.losses.MeanSquaredError)) == ""
    assert backend.unsupported_reason(aa.Loss(squares)) == ""
    function = torch.nn.functional.cross_entropy
    assert backend.unsupported_reason(aa.Loss(function)) == "cross_entropy comes from torch.nn.functional"
    optax = pytest.importorskip("optax")
    with pytest.raises(SpecError, match=r"tensorflow does not support the loss 'l2_loss': l2_loss comes from optax\."):
        losses(optax.l2_loss)


def test_losses_of_keras_on_tensorflow_are_refused_for_models_of_torch() -> None:
    nn = pytest.importorskip("torch").nn
    pytest.importorskip("anyaccel_torch")
    x = np.ones((8, 3), "float32")
    for own in (keras.losses.Huber(), keras.losses.huber):
        with pytest.raises(SpecError, match=r"torch does not support the loss '\w+': \w+ comes from keras\."):
            aa.fit(nn.Linear(3, 1), (x, x[:, 0]), loss=own, accelerator="cpu", progress="none")


def test_classes_of_losses_of_keras_have_the_shape_that_they_take() -> None:
    x = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
    kinds = (x > 0).astype("int64")

    def fit(name: str, y: np.ndarray) -> Any:
        settings: Any = {"loss": getattr(keras.losses, name)(from_logits=True), "epochs": 1, "accelerator": "cpu"}
        return aa.fit(keras.Sequential([keras.layers.Dense(3)]), (x, y), progress="none", **settings).results.loss.size

    sparse, by_class = "SparseCategoricalCrossentropy", "CategoricalCrossentropy"
    for name, y, takes in [
        (sparse, kinds[:, :2], r"int64\[2\]\. Available: class indices of shape \[\]"),
        (sparse, np.eye(3, dtype="float32")[kinds[:, 0]], r"float32\[3\]\. Available: class indices of shape \[\]"),
        (by_class, kinds[:, 0], r"int64\[\]\. Available: probabilities of shape \[3\]"),
        (by_class, kinds[:, :2].astype("float32"), r"float32\[2\]\. Available: probabilities of shape \[3\]"),
    ]:
        message = (
            rf"^{name} on node 'model' cannot compare its output float32\[3\] with data\.y, {takes} per row\. Hint"
        )
        with pytest.raises(ShapeError, match=message):
            fit(name, y)
    assert fit(sparse, kinds[:, 0]) and fit(sparse, kinds[:, :1]) and fit(by_class, np.eye(3)[kinds[:, 0]])
    assert fit(by_class, np.eye(3, dtype="int64")[kinds[:, 0]])


@pytest.mark.parametrize("name", ["MeanSquaredError", "Huber", "mean_absolute_error"])
def test_elementwise_losses_of_keras_do_not_broadcast_either(name: str) -> None:
    with pytest.raises(
        ShapeError, match=r"outputs of shape \[8, 3\] and targets of shape \[8, 1\].*both must have the same shape"
    ):
        losses(getattr(keras.losses, name), 3)


def test_a_last_axis_of_one_may_be_missing_as_in_keras() -> None:
    outputs, targets = tf.constant([[1.0], [2.0], [4.0]]), tf.constant([1.0, 0.0, 0.0])
    for first, second in ((outputs, targets), (outputs[:, 0], targets[:, None])):
        assert float(scalar_loss(aa.Loss(keras.losses.MeanSquaredError())).own(first, second)) == pytest.approx(20 / 3)
