"""`fit` on text and scaled columns: encoded by the distribution, decoded in predictions."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import PhaseError
from anyaccel_sklearn.transforms.scalers import SCALERS

rng = np.random.default_rng(0)


A, B = rng.normal(2.0, 3.0, 60), rng.normal(-1.0, 0.5, 60)


FAST = aa.Optimizer("adam", lr=0.05)


KIND = np.where(A > 2.0, "large", "small")


def table(**more):
    return {"a": A, "b": B, "kind": KIND, "value": A - B, **more}


def classifier():
    return aa.SequentialMLP(2)


def numbers():
    return {name: column for name, column in table().items() if name != "kind"}


def fit(data=None, model=None, **settings):
    given = {"loss": "mse", "target": "value", "epochs": 2, "progress": "none", **settings}
    return aa.fit(model or aa.SequentialMLP(1), numbers() if data is None else data, **given)


def classify(**settings):
    data = {name: column for name, column in table().items() if name != "value"}
    given = {"loss": "cross_entropy", "target": "kind", "epochs": 2, **settings}
    return fit(data, classifier(), **given)


class Standard:
    """A scaler of the test's own."""

    def fit(self, x):
        self.mean, self.scale = x.mean(axis=0), x.std(axis=0)
        return self

    def transform(self, x):
        return (x - self.mean) / self.scale


def test_text_is_encoded_and_predictions_are_decoded():
    fitted = classify(
        epochs=30, validation=0.2, metrics=["accuracy", "f1_macro"], optimizer=aa.Optimizer("adam", lr=0.05)
    )
    new = {"a": np.array([9.0, -6.0]), "b": np.array([-1.0, -1.0])}
    assert fitted.predict(new).tolist() == ["large", "small"]
    assert fitted.predict(new, outputs=True).shape == (2, 2)
    assert {"val_accuracy", "val_f1_macro"} <= set(fitted.results.figures)
    assert fitted.evaluate(table(), ["accuracy"]).metrics["accuracy"] > 0.9


def test_yes_or_no_and_bools():
    data = {"a": A, "b": B, "kind": A > 2.0}
    for loss, model in (("binary_cross_entropy", aa.SequentialMLP(1)), ("cross_entropy", classifier())):
        fitted = fit(data, model, target="kind", loss=loss, epochs=30, optimizer=FAST)
        predicted = fitted.predict({"a": np.array([9.0, -6.0]), "b": np.array([-1.0, -1.0])})
        assert predicted.tolist() == [1, 0]
    words = fit({**data, "kind": KIND}, target="kind", loss="binary_cross_entropy", epochs=30)
    assert set(words.predict(data)) <= {"large", "small"}
    assert np.isfinite(words.evaluate({**data, "kind": KIND}).loss)


def test_a_scaler_is_fitted_to_the_rows_to_train_on_and_applied_to_new_rows():
    fitted = classify(scaler=Standard(), validation=0.25)
    data = fitted.graph.feature_sets["data"]
    train = data["train"].rows
    np.testing.assert_allclose(data.transforms[-1].transform.mean, [A[train].mean(), B[train].mean()])
    everything = fitted.predict(table(), outputs=True)
    again = aa.Experiment(fitted.graph, progress="none").run_phase(aa.EvalPhase(data="all")).prediction("model")
    np.testing.assert_array_equal(everything, again)
    np.testing.assert_array_equal(fitted.predict("all", outputs=True), again)
    np.testing.assert_array_equal(fitted.predict(data["train"], outputs=True), again[train])


@pytest.mark.parametrize(("name", "own"), list(SCALERS.items()))
def test_a_scaler_by_name_is_that_of_scikit_learn(name, own):
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    by_hand = classify(scaler=getattr(preprocessing, own)())
    assert [list(classify(scaler=each).results.loss) for each in (name, own)] == 2 * [list(by_hand.results.loss)]


def test_a_scaler_that_does_not_exist_is_told(monkeypatch):
    with pytest.raises(
        PhaseError, match=r"no scaler 'standart'\. Available: standard, .*Hint: did you mean 'standard'"
    ):
        classify(scaler="standart")
    monkeypatch.setitem(sys.modules, "sklearn.preprocessing", None)
    with pytest.raises(PhaseError, match=r"cannot be imported .*Hint: python -m pip install scikit-learn"):
        classify(scaler="standard")


def test_it_is_saved_and_predicts_in_a_new_process(tmp_path):
    scaler = pytest.importorskip("sklearn.preprocessing").StandardScaler()
    fitted = classify(scaler=scaler)
    fitted.save(tmp_path / "kinds")
    new = {"a": A[:20].tolist(), "b": B[:20].tolist()}
    code = """
import json, sys
import anyaccel as aa
print(json.dumps(aa.load(sys.argv[1]).predict(json.loads(sys.argv[2])).tolist()))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "kinds"), json.dumps(new)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == fitted.predict(new).tolist()
    again = aa.load(tmp_path / "kinds")
    np.testing.assert_array_equal(again.predict(new, outputs=True), fitted.predict(new, outputs=True))
    assert again.evaluate(table()).loss == fitted.evaluate(table()).loss
    assert again.results == fitted.results


def test_text_of_three_classes_as_the_target_of_yes_or_no():
    data = {"a": A, "kind": np.array(["x", "y", "z"] * 20)}
    message = r"the target 'kind' has 3 classes, but binary_cross_entropy compares two\. Hint: write loss='cross"
    with pytest.raises(PhaseError, match=message):
        fit(data, target="kind", loss="binary_cross_entropy")
    assert fit(data, aa.SequentialMLP(3), target="kind", loss="cross_entropy").results.loss.size == 2  # as hinted


def test_a_table_to_validate_on_is_encoded_and_scaled():
    scaled = classify(scaler=Standard(), validation=table())
    assert np.isfinite(scaled.results.figure("val_loss")).all()


def test_batches_are_not_scaled():
    batches = [{"a": A[i : i + 20, None], "value": (A - B)[i : i + 20, None]} for i in (0, 20, 40)]
    with pytest.raises(PhaseError, match="a source of batches is not scaled"):
        fit(batches, features="a", scaler=Standard())


def test_class_weights_weigh_the_smoothed_loss_of_a_row_or_the_classes_it_is_smoothed_over():
    weights, index = np.array([1.0, 5.0]), (KIND == "small").astype("int64")
    smooth = {"label_smoothing": 0.2}
    still = {"optimizer": aa.Optimizer("sgd", lr=1e-12), "epochs": 1, "batch_size": 60}
    data = {"a": A, "b": B, "kind": index}
    net = classifier()
    rows = fit(data, net, target="kind", loss=aa.Loss("cross_entropy", **smooth), class_weights=weights, **still)
    logits = rows.predict(data, outputs=True)
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    shares = np.eye(2)[index] * 0.8 + 0.1
    of_rows = weights[index] * -(shares * logs).sum(axis=1)
    np.testing.assert_allclose(rows.results.loss[0], of_rows.sum() / weights[index].sum(), rtol=1e-5)
    loss = aa.Loss("cross_entropy", class_weights=weights.tolist(), **smooth)
    of_classes = -(weights * shares * logs).sum(axis=1)
    losses = fit(data, net, target="kind", loss=loss, **still).results.loss
    np.testing.assert_allclose(losses[0], of_classes.sum() / weights[index].sum(), rtol=1e-5)
