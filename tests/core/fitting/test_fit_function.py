"""One call: the same numbers as its parts, any table, and predictions in the words of the data."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import anyaccel as aa
from anyaccel.errors import (
    ColumnError,
    ConfigError,
    DataError,
    PhaseError,
    ResultError,
    SourceError,
    SplitError,
    StateError,
)

rng = np.random.default_rng(0)
A, B = rng.normal(2.0, 3.0, 60), rng.normal(-1.0, 0.5, 60)
KIND = (A > 2.0).astype(int)


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


def test_it_is_the_parts_that_it_returns():
    model = aa.SequentialMLP(1)
    fitted = fit(model=model, validation=0.25, seed=3, optimizer=aa.Optimizer("adam", lr=0.01))
    data = aa.FeatureSet.from_dict("data", numbers(), ["a", "b"], ["value"])
    data.split_random({"train": 0.75, "validation": 0.25}, seed=3)
    graph = aa.ModelGraph([aa.ModelNode(aa.SequentialMLP(1), data)], aa.Optimizer("adam", lr=0.01), seed=3)
    phase = aa.TrainPhase(data="train", losses=aa.AppliedLoss("mse"), epochs=2, validation="validation")
    expected = aa.Experiment(graph, progress="none").run_phase(phase)
    np.testing.assert_array_equal(fitted.results.loss, expected.loss)
    np.testing.assert_array_equal(fitted.results.figure("val_loss"), expected.figure("val_loss"))
    assert fitted.graph["model"].model is model and fitted.experiment.history == [fitted.results]
    assert fitted.plan is fitted.results.plan and "model" in str(fitted.plan)


def test_any_table_gives_the_same_numbers(tmp_path):
    expected = fit().results.loss
    arrow = pa.table(numbers())
    pq.write_table(arrow, tmp_path / "table.parquet")
    names, rows = list(numbers()), zip(*(column.tolist() for column in numbers().values()), strict=True)
    lines = [names, *([repr(cell) for cell in row] for row in rows)]
    (tmp_path / "table.csv").write_text("\n".join(",".join(line) for line in lines))
    (tmp_path / "table.tsv").write_text("\n".join("\t".join(line) for line in lines))
    files = [tmp_path / "table.parquet", str(tmp_path / "table.csv"), tmp_path / "table.tsv"]
    feature_set = aa.FeatureSet.from_arrow("data", arrow, ["a", "b"], ["value"])
    for data in (arrow, *files, feature_set, feature_set.view()):
        np.testing.assert_array_equal(fit(data).results.loss, expected)
    np.testing.assert_array_equal(fit(feature_set, target=None).results.loss, expected)
    pair = (np.stack([A, B], axis=1), A - B)
    np.testing.assert_array_equal(fit(pair, target=None).results.loss, expected)
    pandas = pytest.importorskip("pandas")
    np.testing.assert_array_equal(fit(pandas.DataFrame(numbers())).results.loss, expected)


def test_a_loader_is_streamed():
    batches = [{"a": A[i : i + 20, None], "value": (A - B)[i : i + 20, None]} for i in (0, 20, 40)]
    fitted = fit(batches, features="a", validation=batches[:1], epochs=3)
    assert len(fitted.results.epochs) == 3 and np.isfinite(fitted.results.figure("val_loss")).all()
    assert fitted.predict(A[:5, None]).shape == (5, 1)
    with pytest.raises(PhaseError, match=r"of a source of batches, which cannot be split\. Hint: pass the source"):
        fit(batches, features="a", validation=0.2)


class Items:
    """A data set of rows."""

    def __init__(self, *columns: np.ndarray) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, i: int) -> tuple[np.ndarray, ...]:
        return tuple(column[i] for column in self.columns)


@pytest.mark.parametrize("trained_on", ["arrays", "batches"])
def test_sources_without_targets_are_predicted_in_their_order(trained_on):
    x, y = A[:, None], (A - B)[:, None]
    pairs = [(x[i : i + 20], y[i : i + 20]) for i in (0, 20, 40)]
    fitted = fit((x, y) if trained_on == "arrays" else (lambda: iter(pairs)), target=None)
    expected = fitted.predict(x)
    without = {
        "batches": [[x[:32]], [x[32:]]],
        "bare arrays": lambda: iter([x[:32], x[32:]]),
        "by name": [{"x": x[:32]}, {"x": x[32:]}],
        "rows": Items(x),
    }
    with_targets = {"pairs": pairs, "named": [{"x": x, "y": y}], "rows with targets": Items(x, y)}
    for name, source in (without | with_targets).items():
        np.testing.assert_allclose(fitted.predict(source), expected, rtol=1e-6, err_msg=name)
    with pytest.raises(SourceError, match="has 3 parts for 1 columns"):
        fitted.predict(lambda: iter([(x, y, y)]))
    with pytest.raises(SourceError, match="has 1 part for 2 columns"):
        fitted.evaluate(without["bare arrays"])
    with pytest.raises(DataError, match=r"differ in length\. Hint: pass rows with one number for each feature"):
        fitted.predict([[1.0], [2.0, 3.0]])
    assert fitted.predict([[1.0], [2.0]]).shape == (2, 1)
    assert fitted.evaluate(lambda: iter(pairs)).loss == pytest.approx(float(np.mean((expected - y) ** 2)), rel=1e-5)


def test_integers_are_targets_of_losses_of_numbers():
    data = {"a": A.round().astype(int), "b": B, "value": np.arange(60)}
    fitted = fit(data)
    assert fitted.predict({"a": np.arange(3), "b": np.zeros(3)}).shape == (3,)


def test_validation_is_a_share_a_split_or_another_table():
    data = aa.FeatureSet.from_dict("data", numbers(), ["a", "b"], ["value"])
    data.split_random({"train": 0.5, "val": 0.5}, seed=0)
    named = fit(data, target=None, validation="val")
    rows = {name: column[data["val"].rows] for name, column in numbers().items()}
    for validation in (rows, aa.FeatureSet.from_dict("data", rows, ["a", "b"], ["value"])):
        other = fit(data["train"], target=None, validation=validation)
        np.testing.assert_array_equal(other.results.figure("val_loss"), named.results.figure("val_loss"))
    assert set(data.splits) == {"train", "val"}


def test_early_stopping_keeps_the_best():
    fitted = classify(validation=0.3, epochs=300, early_stopping=3, optimizer=aa.Optimizer("adam", lr=0.3))
    assert "val_loss has not improved for 3 epochs" in fitted.results.stop_reason
    best = min(fitted.results.figure("val_loss"))
    assert fitted.evaluate(fitted.graph.feature_sets["data"]["validation"]).loss == pytest.approx(best, rel=1e-6)


def test_another_model_takes_its_weights_by_a_map_of_names(tmp_path):
    from anyaccel.numpy_backend import Dense, Sequential

    fitted = fit(model=aa.SequentialMLP(1, n_layers=1))
    fitted.save(tmp_path)
    own = {"models": {"model": Sequential(Sequential(Dense(1)))}}
    with pytest.raises(StateError, match=r"layers\.0\.weight"):
        aa.load(tmp_path, **own)
    again = aa.load(tmp_path, **own, names=lambda name: name.replace("layers.0", "0.0"), change=lambda name, a: a)
    np.testing.assert_array_equal(again.predict(numbers()), fitted.predict(numbers()))


def test_a_folder_of_a_graph_alone_is_no_fitted_model(tmp_path):
    fit().graph.save(tmp_path)
    with pytest.raises(ConfigError, match=r"holds no fit\. Available: graph\. Hint: pass the folder that save"):
        aa.load(tmp_path)
    fit().graph.save(tmp_path, extra={"fit": 3})
    with pytest.raises(ConfigError, match=r"has 3 instead of the data of FittedModel.save"):
        aa.load(tmp_path)


def test_a_graph_of_several_outputs_is_no_fitted_model():
    data = aa.FeatureSet.from_dict("data", numbers(), ["a", "b"], ["value"])
    graph = aa.ModelGraph([aa.ModelNode(label, aa.SequentialMLP(1), data) for label in "xy"])
    with pytest.raises(ConfigError, match="has 2 output nodes and 1 feature sets, but must have one of each"):
        aa.FittedModel(aa.Experiment(graph))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"target": None},
            PhaseError,
            r"the target\. Available: columns: a, b, value\. Hint: write fit\(model, table, target=",
        ),
        ({"target": "vlaue"}, ColumnError, r"'data' has no column 'vlaue'.*did you mean 'value'"),
        ({"features": ["c"]}, ColumnError, r"'data' has no column 'c'"),
        ({"validation": 1.5}, PhaseError, r"validation=1\.5 is not a share of the rows\. Hint: write validation=0\.2"),
        ({"validation": "test"}, SplitError, "'data' has no split 'test'"),
        ({"validation": 3j}, PhaseError, "validation=3j does not fit a table. Hint: pass a fraction of the rows"),
        ({"early_stopping": 3}, PhaseError, r"early_stopping=3 but no validation.*write validation=0\.2"),
        ({"metrics": ["mse"]}, PhaseError, r"metrics=\['mse'\] but no validation.*write validation=0\.2"),
        ({"epochs": -1}, PhaseError, "fit: epochs=-1 is not an int of at least 0"),
        ({"early_stopping": "yes", "validation": 0.2}, PhaseError, "early_stopping='yes' is not an int of at least 1"),
        (
            {"early_stopping": "val_f1", "validation": 0.2},
            PhaseError,
            r"early_stopping='val_f1' .* write early_stopping=EarlyStopping\('val_f1', patience=8\)",
        ),
        ({"data": "wine.xlsx"}, DataError, r"'wine.xlsx' is not a table that can be read\. Available: \.csv"),
        ({"data": 3}, DataError, r"3 is not data that a model can be fitted to\. Available: a data frame"),
        ({"data": {**numbers(), "kind": [b"bytes"] * 60}}, ColumnError, r"cannot be features: kind"),
    ],
)
def test_what_does_not_fit_is_an_error_with_a_hint(settings, error, message):
    with pytest.raises(error, match=message):
        fit(**settings)


def test_a_share_beside_splits_of_the_same_name_is_an_error():
    data = aa.FeatureSet.from_dict("data", numbers(), ["a", "b"], ["value"])
    data.split_random({"train": 0.5, "val": 0.5}, seed=0)
    with pytest.raises(PhaseError, match=r"'data' has splits.*Available: train, val\. Hint: name the split"):
        fit(data, target=None, validation=0.2)
    with pytest.raises(PhaseError, match=r"there is no split 'train' to train on.*fit\(model, data\['SPLIT'\]"):
        untrained = aa.FeatureSet.from_dict("data", numbers(), ["a", "b"], ["value"])
        untrained.add_split("val", [1, 2])
        fit(untrained, target=None, validation="val")
    with pytest.raises(PhaseError, match=r"'data' has no target\. Hint: set them when .*target=\[\.\.\.\]"):
        fit(aa.FeatureSet.from_dict("data", numbers(), ["a", "b"]), target=None)
    with pytest.raises(ColumnError, match=r"fit: column 'value' of 'data' is not a feature of it\. Available: a, b"):
        fit(aa.FeatureSet.from_dict("data", numbers(), ["a", "b"], ["value"]), features="value", target=None)


def test_predictions_for_rows_without_the_columns_name_them():
    fitted = fit()
    with pytest.raises(ColumnError, match="1 column is missing that the model was trained with: 'b'"):
        fitted.predict({"a": A})
    with pytest.raises(DataError, match=r"an array of shape \[2, 2\] has no names\. Available: a, b"):
        fitted.predict(np.ones((2, 2)))


def test_a_pair_of_frame_and_series_keeps_its_order_of_rows():
    pandas = pytest.importorskip("pandas")
    shuffled = pandas.DataFrame(numbers()).sample(frac=1.0, random_state=0)  # as train_test_split gives it
    x, y = shuffled[["a", "b"]], shuffled["value"]
    expected = fit(shuffled)
    for pair in ((x, y), (x, y.to_frame()), (x, y.to_numpy())):
        fitted = fit(pair)
        np.testing.assert_array_equal(fitted.results.loss, expected.results.loss)
        assert fitted.predict(x[["b", "a"]]).tolist() == expected.predict(x).tolist()
        assert fitted.evaluate(pair).loss == fitted.evaluate(shuffled).loss == expected.evaluate(shuffled).loss


def test_three_arrays_are_no_table():
    with pytest.raises(DataError, match=r"a tuple of 3 arrays is not a table\. Hint: pass \(x, y\), or a dict"):
        fit((A, B, A), target=None)


def test_results_of_a_model_that_was_not_trained_are_an_error():
    with pytest.raises(ResultError, match=r"this model was not trained here\. Hint: run a phase: model\.experiment"):
        aa.FittedModel(aa.Experiment(fit().graph)).plot()


def test_it_goes_on_from_a_checkpoint(tmp_path):
    whole, short = fit(epochs=4), fit(epochs=2, checkpoint=tmp_path)
    longer = fit(epochs=4, checkpoint=tmp_path, resume="auto")
    assert len(short.results.epochs) == 2
    np.testing.assert_array_equal(longer.results.loss, whole.results.loss)
    for name, array in whole.graph.state().items():
        np.testing.assert_array_equal(longer.graph.state()[name], array)
