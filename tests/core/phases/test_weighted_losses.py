"""Weights, masks and ignored targets in phases: exact in accumulated batches, and what is refused and said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anyaccel import AppliedLoss, Callback, EvalPhase, Loss, SimpleSampler, TrainPhase
from anyaccel.data import FeatureSet
from anyaccel.errors import ColumnError, ShapeError, SpecError
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode, Request, resolve
from anyaccel.numpy_backend import NumpyBackend, SequentialMLP
from anyaccel.specs import Optimizer

RNG = np.random.default_rng(0)
ROWS = 24
LENGTHS = RNG.integers(0, 5, ROWS)
COLUMNS = {
    "x": RNG.normal(size=(ROWS, 3)),
    "tokens": np.where(np.arange(4) < LENGTHS[:, None], RNG.integers(0, 3, (ROWS, 4)), -100),
    "y": RNG.normal(size=(ROWS, 4, 3)),
    "mask": np.arange(4) < LENGTHS[:, None],
    "w": RNG.random(ROWS),
    "owed": -RNG.random(ROWS),
    "wide": RNG.random((ROWS, 2)),
    "none": np.zeros(ROWS, bool),
}
TARGETS, TAGS = ["tokens", "y"], ["mask", "w", "owed", "wide", "none"]
TOKENS = Loss("cross_entropy", ignore_index=-100, class_weights=[1, 2, 3])
LOSSES = [
    AppliedLoss(TOKENS, "net", ["outputs", "data.tokens"], label="tokens", sample_weight="data.w"),
    AppliedLoss("mse", "net", ["outputs", "data.y"], 0.3, "y", mask="data.mask"),
    AppliedLoss("mae", "net", ["outputs", "data.y"], 0.2, "plain"),
]


def graph(seed: int = 0, lr: float = 0.5) -> ModelGraph:
    data = FeatureSet.from_dict("data", COLUMNS, ["x"], TARGETS, TAGS)
    model = SequentialMLP((4, 3), 2, 5, "tanh", dtype="float64")
    return ModelGraph([ModelNode("net", model, data.reference("x"))], Optimizer("sgd", lr=lr), seed=seed)


def trained(size: int, *, lr: float = 0.5, losses: Any = LOSSES, **settings: Any) -> tuple[Any, dict[str, np.ndarray]]:
    made = graph(lr=lr)
    phase = TrainPhase("t", data="all", losses=losses, sampler=SimpleSampler(size), **settings)
    return Experiment("e", made, progress="none").run_phase(phase), made.state()


class Listening(Callback):
    """Makes steps be told one by one."""

    def __init__(self) -> None:
        self.losses: list[dict[str, float]] = []

    def step_end(self, run: Any) -> None:
        self.losses.append(run.step_losses())


def figures(results: Any) -> dict[str, float]:
    return {loss.label: results.figure(f"loss.{loss.label}")[0] for loss in LOSSES}


@pytest.mark.parametrize(
    ("size", "settings"),
    [(3, {"accumulate": 4}), (5, {"accumulate": 3}), (4, {"accumulate": 3, "residency": "streamed"})],
)
def test_accumulated_steps_of_several_weighted_losses_are_those_of_one_batch(size, settings):
    whole, expected = trained(size * settings["accumulate"], epochs=2)
    parts, values = trained(size, epochs=2, **settings)
    for name, array in expected.items():
        np.testing.assert_allclose(values[name], array, rtol=1e-6, atol=1e-9, err_msg=name)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}, {"residency": "streamed"}, {"callbacks": [Listening()]}])
def test_the_loss_of_an_epoch_is_that_of_all_rows(settings):
    trained_losses, _ = trained(5, lr=1e-300, **settings)
    evaluated = Experiment("e", graph(), progress="none").run_phase(EvalPhase("v", data="all", losses=LOSSES))
    assert figures(trained_losses) == pytest.approx(evaluated.losses, rel=1e-7)
    parts = Experiment("e", graph(), progress="none").run_phase(EvalPhase("v", data="all", losses=LOSSES, batch_size=7))
    assert parts.losses == pytest.approx(evaluated.losses, rel=1e-12)


def test_a_listener_is_told_the_losses_of_a_step():
    listener = Listening()
    results, _ = trained(24, callbacks=[listener])
    assert listener.losses[0] == pytest.approx(figures(results))


def test_where_nothing_counts_weights_stay_and_the_epoch_has_no_loss():
    before = graph()
    before.build()
    nothing = AppliedLoss("mse", "net", ["outputs", "data.y"], mask="data.none")
    results, after = trained(5, losses=[nothing], on_nan="ignore")
    assert np.isnan(results.loss[0])
    for name, array in before.state().items():
        np.testing.assert_array_equal(after[name], array)


def test_configurations_keep_settings_and_columns():
    for loss in LOSSES:
        assert AppliedLoss.from_config(loss.get_config()) == loss
    assert "mask" not in LOSSES[0].get_config()
    assert Loss("cross_entropy", class_axis=-1, ignore_index=None) == Loss("cross_entropy")


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ignore_index": 1.5}, r"ignore_index=1.5 is not an integer. Hint: write ignore_index=-1"),
        ({"class_weights": [1.0, -1.0]}, r"class_weights=\[1.0, -1.0\] are not a number of at least 0 for each class"),
        ({"class_weights": 3}, r"class_weights=3 are not .*Hint: write class_weights=\[1.0, 2.5\]"),
        ({"label_smoothing": 1}, r"label_smoothing=1 is not in \[0, 1\)"),
        ({"ignore_indx": 1}, r"no setting ignore_indx. Available: .*ignore_index.*Hint: did you mean 'ignore_index'"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(SpecError, match=message):
        Loss("cross_entropy", **settings)


def test_settings_of_classes_are_for_cross_entropy_alone():
    with pytest.raises(SpecError, match=r"Loss\('mse'\) has no setting ignore_index. Available: loss_kwargs"):
        Loss("mse", ignore_index=0)


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (
            AppliedLoss(Loss("cross_entropy", class_weights=[1, 2]), "net", ["outputs", "data.tokens"]),
            SpecError,
            r"2 class_weights, but its output has 3 classes. Hint: pass one weight per class",
        ),
        (
            AppliedLoss(Loss("cross_entropy", class_axis=3), "net", ["outputs", "data.tokens"]),
            ShapeError,
            r"class_axis=3, but its output is float64\[4, 3\] after the batch; .*Available: 1 to 2.*Hint: write",
        ),
        (
            AppliedLoss(TOKENS, "net", ["outputs", "data.y"]),
            SpecError,
            r"has ignore_index, which is for class indices, but data.y has probabilities. Hint: use mask=",
        ),
        (
            AppliedLoss("mse", "net", ["outputs", "data.y"], sample_weight="data.wide"),
            ShapeError,
            r"weighted by data.wide, float64\[2\] per sample, but its losses have shape \[4, 3\].*Available: one",
        ),
        (
            AppliedLoss("mse", "net", ["outputs", "data.y"], mask="masks"),
            ColumnError,
            r"weighted by 'masks', which is not a column of this graph. Available: data.COLUMN. Hint: write",
        ),
        (
            AppliedLoss(TOKENS, "net", ["outputs", "net"]),
            SpecError,
            r"has ignore_index, but its targets are an output of another node.*Hint: name a column",
        ),
    ],
)
def test_what_does_not_fit_is_refused_when_planned(loss, error, message):
    with pytest.raises(error, match=message):
        resolve(graph(), Request("p", losses=(loss,), training=True))


def test_classes_that_come_first_are_told_how_to_say_so():
    data = FeatureSet.from_dict("data", {"x": COLUMNS["x"], "t": np.zeros((ROWS, 4), "int64")}, ["x"], ["t"])
    first = ModelGraph([ModelNode("net", SequentialMLP((3, 4), 1, 2), data.reference("x"))], "sgd")
    with pytest.raises(
        ShapeError,
        match=r"Hint: if the classes come first, set class_axis: Loss\('cross_entropy', "
        r"class_ax",
    ):
        resolve(first, Request("p", losses=(AppliedLoss("cross_entropy", "net"),), training=True))
    said = AppliedLoss(Loss("cross_entropy", class_axis=1), "net")
    resolve(first, Request("p", losses=(said,), training=True))


def test_a_loss_of_ones_own_takes_its_weights_as_inputs():
    with pytest.raises(SpecError, match=r"is for named losses.*Hint: .*inputs=\['outputs', 'targets', 'data.w'\]"):
        AppliedLoss(lambda outputs, targets: 0.0, "net", sample_weight="data.w")


def test_negative_weights_are_refused():
    owed = AppliedLoss("mse", "net", ["outputs", "data.y"], sample_weight="data.owed")
    with pytest.raises(ColumnError, match=r"data.owed has the weight -0.\d+; loss weights must be at least 0"):
        trained(4, losses=[owed])


@pytest.mark.parametrize(
    ("loss", "columns", "message"),
    [
        ("mse", {"y": [1.0, 2.0, 3.0], "w": [np.nan, -1.0, 1.0]}, r"d\.w has the weight -1\.0"),
        ("binary_cross_entropy", {"y": [np.nan, 5.0, 0.0], "w": [0.0, 1.0, 1.0]}, r"d\.y has the target 5\.0"),
    ],
)
def test_nan_hides_no_value_out_of_range(loss, columns, message):
    data = FeatureSet.from_dict("d", {"x": np.ones((3, 2)), **columns}, ["x", "w"], ["y"])
    graph = ModelGraph([ModelNode("net", SequentialMLP(1), data.reference("x"))], "sgd")
    phase = TrainPhase(data=data, losses=AppliedLoss(loss, "net", sample_weight="d.w"))
    with pytest.raises(ColumnError, match=message):
        Experiment(graph, progress="none").run_phase(phase)


def test_a_target_out_of_range_is_told_of_ignore_index():
    plain = AppliedLoss("cross_entropy", "net", ["outputs", "data.tokens"])
    with pytest.raises(ColumnError, match=r"class index -100.*Loss\('cross_entropy', ignore_index=-100\)"):
        trained(4, losses=[plain])


@pytest.mark.parametrize("loss", [*LOSSES[:2], AppliedLoss("cross_entropy", "net", ["outputs", "data.tokens"])])
def test_a_backend_without_weights_refuses_them_when_planned(loss, monkeypatch):
    monkeypatch.setattr(NumpyBackend, "weighs_losses", False)
    with pytest.raises(SpecError, match=r"numpy does not support '\w+' with .*Hint: use a loss of the framework"):
        resolve(graph(), Request("p", losses=(loss,), training=True))
    resolve(graph(), Request("p", losses=(LOSSES[2],), training=True))
