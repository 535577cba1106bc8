"""What a validation measures besides the trained losses, and what watches it: undefined metrics, NaN, other losses."""

from __future__ import annotations

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import NaNWarning, PhaseError

X = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
WEIGHTED = aa.AppliedLoss(aa.Loss("cross_entropy", class_weights=[1.0, 3.0]), on="net")
PLAIN = aa.AppliedLoss("cross_entropy", on="net")


def graph(width=2):
    targets = {"k": (X[:, 0] > 0).astype("int64"), "one": np.zeros(32, "int64"), "y": X[:, :1]}
    data = aa.FeatureSet.from_dict("d", {"x": X, **targets}, ["x"], list(targets))
    data.add_splits({"train": range(20), "val": range(20, 32)})
    target = "k" if width == 2 else "y"
    return aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(width), data.reference(target=[target]))], "adam")


def train(losses, validation, width=2, epochs=3, **settings):
    phase = aa.TrainPhase("t", data="train", losses=losses, epochs=epochs, validation=validation, **settings)
    trained = graph(width)
    return trained, aa.Experiment("e", trained, progress="none").run_phase(phase)


def scripted(*values):
    """A metric of one's own that gives these values, one after each epoch."""
    left = iter(values)

    def profit(outputs, targets):
        return next(left)

    return profit


# -- what watches a value that is NaN ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "best"), [("max", 2), ("min", 3)])
def test_nan_is_never_the_best_epoch(mode, best, tmp_path):
    validation = aa.EvalPhase("v", data="val", metrics=[scripted(np.nan, 2.0, 5.0, 1.0, np.nan)])
    stopping = aa.EarlyStopping("val_profit", mode=mode, patience=5)
    checkpoint = aa.Checkpoint(tmp_path, keep=1, keep_best="val_profit", mode=mode)
    with pytest.warns(NaNWarning) as told:
        train([PLAIN], validation, epochs=5, callbacks=[stopping], checkpoint=checkpoint)
    assert stopping.best_epoch == best and stopping.best == {"max": 5.0, "min": 1.0}[mode]
    kept = sorted(path.name for path in tmp_path.glob("epoch-*"))
    assert kept == [f"epoch-{best + 1:06d}-step-000000000", "epoch-000005-step-000000000"]
    assert sorted(str(warning.message) for warning in told) == [
        f"phase 't': {who} monitors 'val_profit', which is NaN in epoch 1; an epoch with NaN is never the best"
        for who in ("Checkpoint(keep_best=...)", "EarlyStopping")
    ]


def test_a_plateau_counts_nan_as_no_improvement():
    plateau = aa.ReduceLROnPlateau("val_profit", mode="max", patience=1, factor=0.5)
    graph_ = graph()
    graph_.optimizer = aa.Optimizer("adam", schedule=plateau)
    validation = aa.EvalPhase("v", data="val", metrics=[scripted(1.0, np.nan, np.nan, 2.0)])
    phase = aa.TrainPhase("t", data="train", losses=[PLAIN], epochs=4, validation=validation)
    with pytest.warns(NaNWarning, match="ReduceLROnPlateau monitors 'val_profit', which is NaN in epoch 2") as told:
        graph_.run(phase, progress="none")
    assert len(told) == 1 and (plateau.current, plateau.best) == (0.5, 2.0)


# -- the best checkpoint by a metric of one's own ----------------------------------------------------------------------


def test_the_checkpoint_of_a_metric_of_ones_own_needs_its_mode_and_the_hint_works(tmp_path):
    def phase(**settings):
        validation = aa.EvalPhase("v", data="val", metrics=[scripted(3.0, 9.0, 4.0, 5.0)])
        checkpoint = aa.Checkpoint(tmp_path, keep=1, keep_best="val_profit", **settings)
        return {"validation": validation, "epochs": 4, "checkpoint": checkpoint}

    with pytest.raises(PhaseError) as caught:
        train([PLAIN], **phase())
    assert str(caught.value) == (
        "Checkpoint: cannot tell whether a high or a low 'val_profit' is better. Hint: write mode='max', or mode='min'."
    )
    assert not list(tmp_path.iterdir())  # refused before anything began
    train([PLAIN], **phase(mode="max"))
    kept = sorted(path.name for path in tmp_path.glob("epoch-*"))
    assert kept == ["epoch-000002-step-000000000", "epoch-000004-step-000000000"]


def test_the_mode_of_a_checkpoint_is_part_of_its_configuration():
    assert aa.Checkpoint("a", keep_best="val_f1").get_config()["mode"] == "max"
    assert aa.Checkpoint("a").get_config()["mode"] == "auto"
    own = aa.Checkpoint("a", keep_best="val_profit", mode="min").get_config()
    assert aa.Checkpoint(**own).get_config() == own
    with pytest.raises(PhaseError, match=r"unknown mode='most'\. Available: 'auto', 'min', 'max'\. Hint: write mode="):
        aa.Checkpoint("a", keep_best="val_profit", mode="most")
    with pytest.raises(PhaseError, match=r"keep_best is not set\. Hint: write keep_best='val_accuracy', mode='max'"):
        aa.Checkpoint("a", mode="max")
    assert aa.Checkpoint("a", keep_best="val_accuracy", mode="max").mode == "max"


# -- a validation with another loss than the training ------------------------------------------------------------------


def logits(trained):
    return trained.run(aa.EvalPhase("p", data="val"), progress="none").prediction("net").astype("float64")


def cross_entropy(outputs, classes, weights=(1.0, 1.0)):
    """The mean by hand, weighted by class as PyTorch does it."""
    chances = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    weights = np.asarray(weights)[classes]
    return (weights * -np.log(chances[np.arange(len(classes)), classes])).sum() / weights.sum()


@pytest.mark.parametrize("weights", [None, [2.0, 0.5]])
def test_a_validation_has_other_class_weights_or_none(weights):
    loss = aa.AppliedLoss(aa.Loss("cross_entropy", class_weights=weights), on="net")
    trained, results = train([WEIGHTED], aa.EvalPhase("v", data="val", losses=[loss], metrics=["accuracy"]))
    expected = cross_entropy(logits(trained), (X[20:, 0] > 0).astype(int), weights or (1.0, 1.0))
    assert results.figure("val_loss")[-1] == pytest.approx(expected, rel=1e-5)
    assert results.figure("val_loss.net")[-1] == pytest.approx(expected, rel=1e-5)
    alone = trained.run(aa.EvalPhase("v", data="val", losses=[loss]), progress="none")
    assert results.figure("val_loss")[-1] == pytest.approx(alone.loss, rel=1e-5)
    assert results.figure("val_accuracy")[-1] <= 1.0


def test_a_validation_has_another_weight_and_label_of_a_trained_loss():
    half = aa.AppliedLoss(WEIGHTED.loss, on="net", weight=0.5, label="half")
    trained, results = train([WEIGHTED], aa.EvalPhase("v", data="val", losses=[half]))
    expected = cross_entropy(logits(trained), (X[20:, 0] > 0).astype(int), [1.0, 3.0])
    assert results.figure("val_loss.half")[-1] == pytest.approx(expected, rel=1e-5)
    assert results.figure("val_loss")[-1] == pytest.approx(0.5 * expected, rel=1e-5)


def test_a_validation_has_another_loss_function_besides_the_trained_one():
    mse, mae = aa.AppliedLoss("mse", on="net"), aa.AppliedLoss("mae", on="net", label="mae", weight=2.0)
    trained, results = train([mse], aa.EvalPhase("v", data="val", losses=[mse, mae]), width=1)
    errors = logits(trained) - X[20:, :1]
    assert results.figure("val_loss.net")[-1] == pytest.approx((errors**2).mean(), rel=1e-5)
    assert results.figure("val_loss.mae")[-1] == pytest.approx(np.abs(errors).mean(), rel=1e-5)
    assert results.figure("val_loss")[-1] == pytest.approx((errors**2).mean() + 2 * np.abs(errors).mean(), rel=1e-5)


def test_what_a_validation_cannot_have_is_said_and_the_hint_works():
    masked = aa.AppliedLoss("mse", on="net", mask="d.k")
    with pytest.raises(PhaseError, match=r"differs in mask from that of the training: .*run a separate EvalPhase with"):
        train([aa.AppliedLoss("mse", on="net")], aa.EvalPhase("v", data="val", losses=[masked]), width=1)
    trained, _ = train([aa.AppliedLoss("mse", on="net")], aa.EvalPhase("v", data="val"), width=1)
    alone = trained.run(aa.EvalPhase("v", data="val", losses=[masked]), progress="none")
    counts = X[20:, 0] > 0
    assert alone.loss == pytest.approx(((logits(trained) - X[20:, :1])[counts] ** 2).mean(), rel=1e-5)
