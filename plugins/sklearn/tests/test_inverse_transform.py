"""Predictions and their data, brought back to the units before the transforms of the data."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anyaccel import (
    AppliedLoss,
    EvalPhase,
    Experiment,
    FeatureSet,
    Metric,
    ModelGraph,
    ModelNode,
    Optimizer,
    SequentialMLP,
    TrainPhase,
)
from anyaccel.errors import ResultError, TransformError
from anyaccel.numpy_backend import Activation


class Scale:
    """Mean 0 and spread 1 for what it was fitted to."""

    def fit(self, x: np.ndarray) -> Scale:
        self.mean_, self.std_ = x.mean(axis=0), x.std(axis=0)
        return self

    def transform(self, x: np.ndarray) -> Any:
        return (x - self.mean_) / self.std_

    def inverse_transform(self, x: np.ndarray) -> Any:
        return x * self.std_ + self.mean_


class OneHot:
    """Words as rows of the unit matrix."""

    def fit(self, x: np.ndarray) -> OneHot:
        self.words = sorted(set(x[:, 0]))
        return self

    def transform(self, x: np.ndarray) -> Any:
        return np.array([[float(word == one) for one in self.words] for word in x[:, 0]], np.float32)

    def inverse_transform(self, x: np.ndarray) -> Any:
        return np.array(self.words, dtype=object)[x.argmax(axis=1)][:, None]


class Square(Scale):
    inverse_transform = None  # type: ignore[assignment]


@pytest.fixture
def raw():
    """Six rows: x [2], targets y and w, a tag of words; train has four rows."""
    data = {
        "x": np.arange(12, dtype="float32").reshape(6, 2),
        "y": np.array([100, 120, 90, 300, 110, 80], dtype="float32"),
        "w": np.arange(6, dtype="float32"),
        "kind": ["a", "b", "c", "a", "b", "c"],
    }
    fs = FeatureSet.from_dict("fs", data, "x", ["y", "w"], "kind")
    fs.add_splits({"train": [0, 1, 2, 4], "test": [5, 3]})
    return fs


@pytest.fixture
def scaled(raw):
    return raw.fit_transform(Scale(), "x", fit_on="train").fit_transform(Scale(), ["y", "w"], fit_on="train")


def evaluated(feature_set, targets="y", shape=(1,), **settings):
    nodes = [ModelNode("head", SequentialMLP(shape, n_layers=1), feature_set.reference(target=targets))]
    phase = EvalPhase("v", **{"data": "test", **settings})
    return Experiment("e", ModelGraph(nodes), progress="none").run_phase(phase)


def test_predictions_come_back_in_the_units_of_their_target(scaled, raw):
    result = evaluated(scaled)
    back = result.prediction("head", undo=True)
    train = raw["train"].array("y")
    assert np.allclose(back, result.prediction("head") * train.std() + train.mean(), rtol=1e-5)
    assert back.shape == (2, 1) and back.dtype == np.float32


def test_asking_twice_gives_the_same(scaled):
    result = evaluated(scaled)
    before = result.prediction("head").copy()
    assert np.array_equal(result.prediction("head", undo=True), result.prediction("head", undo=True))
    assert np.array_equal(result.prediction("head"), before)


def test_without_transforms_nothing_changes(raw):
    result = evaluated(raw)
    assert result.prediction("head", undo=True) is result.prediction("head")
    assert result.to_arrow(undo=True).equals(result.to_arrow())
    unscaled = evaluated(raw.fit_transform(Scale(), "x", fit_on="train"))
    assert unscaled.prediction("head", undo=True) is unscaled.prediction("head")


def test_two_transforms_of_the_target_are_undone_in_reverse(scaled, raw):
    class Tenfold(Scale):
        def transform(self, x: np.ndarray) -> Any:
            return x * 10 + 1

        def inverse_transform(self, x: np.ndarray) -> Any:
            return (x - 1) / 10

    result = evaluated(scaled.fit_transform(Tenfold(), "y", fit_on="all"))
    train = raw["train"].array("y")
    expected = (result.prediction("head") - 1) / 10 * train.std() + train.mean()
    assert np.allclose(result.prediction("head", undo=True), expected, rtol=1e-5)


def test_a_loss_says_which_columns_they_are(scaled, raw):
    losses = [AppliedLoss("mse", on="head", inputs=["outputs", "fs.w"])]
    train = raw["train"].array("w")
    for settings in ({"losses": losses}, {"metrics": [Metric("mae", on="head", targets="fs.w")]}):
        result = evaluated(scaled, targets=["y", "w"], **settings)
        assert result.compared == {"head": ("fs", ("w",))}
        expected = result.prediction("head") * train.std() + train.mean()
        assert np.allclose(result.prediction("head", undo=True), expected, rtol=1e-5)


def test_several_targets_come_back_side_by_side(scaled, raw):
    result = evaluated(scaled, targets=["w", "y"], shape=(2,))
    train = np.column_stack([raw["train"].array("w"), raw["train"].array("y")])
    back = result.prediction("head", undo=True)
    assert np.allclose(back, result.prediction("head") * train.std(axis=0) + train.mean(axis=0), rtol=1e-5)


def test_metrics_and_losses_stay_in_transformed_units(scaled):
    result = evaluated(scaled, losses=[AppliedLoss("mse", on="head")], metrics=["mse"])
    there = scaled["test"].array("y")
    assert np.isclose(result.metrics["mse"], ((result.prediction("head")[:, 0] - there) ** 2).mean(), rtol=1e-5)


def test_a_table_brings_targets_and_tags_back_too(raw):
    data = raw.fit_transform(Scale(), ["x", "y", "w"], fit_on="train")
    data = data.fit_transform(OneHot(), "kind", fit_on="all", role="feature")
    nodes = [ModelNode("head", SequentialMLP((1,), n_layers=1), data.reference(features="x", target="y"))]
    result = Experiment("e", ModelGraph(nodes), progress="none").run_phase(EvalPhase("v", data="test"))
    table = result.to_arrow(undo=True)
    assert table.column_names == ["prediction.head", "y", "w", "kind"]
    assert table.column("y").to_pylist() == [80, 300] and table.column("w").to_pylist() == [5, 3]
    assert table.column("kind").to_pylist() == ["c", "a"]
    assert np.array_equal(table.column("prediction.head").to_numpy(), result.prediction("head", undo=True)[:, 0])
    plain = result.to_arrow()
    assert plain.column_names == ["prediction.head", "y", "w"]
    assert np.allclose(plain.column("y").to_numpy(), data["test"].array("y"))


def test_classes_come_back_as_words(raw):
    data = raw.fit_transform(OneHot(), "kind", fit_on="all", role="target", into="class")
    result = evaluated(data, targets="class", shape=(3,), data="all")
    words = np.array(["a", "b", "c"])[result.prediction("head").argmax(axis=1)]
    assert result.prediction("head", undo=True).tolist() == words.tolist()
    table = result.to_arrow(undo=True)
    assert table.column_names == ["prediction.head", "y", "w", "kind"]
    assert table.schema.field("prediction.head").type == pa.string()
    assert table.column("prediction.head").to_pylist() == words.tolist()


def test_words_and_numbers_of_several_nodes_share_a_table(raw):
    data = raw.fit_transform(OneHot(), "kind", fit_on="all", role="target").fit_transform(Scale(), "y", fit_on="train")
    nodes = [
        ModelNode("sort", SequentialMLP((3,), n_layers=1), data.reference(target="kind")),
        ModelNode("size", SequentialMLP((1,), n_layers=1), data.reference(target="y")),
    ]
    result = Experiment("e", ModelGraph(nodes), progress="none").run_phase(EvalPhase("v", data="all"))
    table = result.to_arrow(undo=True)
    assert table.column_names == ["prediction.sort", "prediction.size", "y", "w", "kind"]
    assert set(table.column("prediction.sort").to_pylist()) <= {"a", "b", "c"}
    assert table.column("y").to_pylist() == raw.array("y").tolist()


def test_all_rows_come_back_as_well_as_a_view(scaled, raw):
    whole = evaluated(scaled, data=scaled)
    assert whole.to_arrow(undo=True).column("y").to_pylist() == raw.array("y").tolist()
    some = scaled.view()
    assert evaluated(scaled, data=some).to_arrow(undo=True).column("w").to_pylist() == raw.array("w").tolist()


def test_a_view_of_some_columns_gives_these_alone(scaled, raw):
    data = scaled.fit_transform(OneHot(), "kind", fit_on="all", role="feature")
    nodes = [ModelNode("head", SequentialMLP((1,), n_layers=1), data.reference(features="x", target="y"))]
    some = data["test"].select(target="y")
    result = Experiment("e", ModelGraph(nodes), progress="none").run_phase(EvalPhase("v", data=some))
    table = result.to_arrow(undo=True)
    assert table.column_names == ["prediction.head", "y", "kind"]
    assert table.column("y").to_pylist() == [80, 300]


def test_fresh_data_without_targets_know_the_units(scaled, raw):
    fresh = FeatureSet.from_dict("fs", {"x": raw.array("x")[[5, 3]]}, "x").transform_like(scaled)
    nodes = [ModelNode("head", SequentialMLP((1,), n_layers=1), scaled.reference(target="y"))]
    experiment = Experiment("e", ModelGraph(nodes), progress="none")
    known, new = (experiment.run_phase(EvalPhase("v", data=data)) for data in ("test", fresh))
    assert np.allclose(known.prediction("head", undo=True), new.prediction("head", undo=True), rtol=1e-5)
    assert new.to_arrow(undo=True).column_names == ["prediction.head"]


def test_each_output_of_a_node_has_its_own_target(scaled, raw):
    class Both(Activation):
        def apply(self, values, inputs, *, train, key):
            applied = super().apply(values, inputs, train=train, key=key)
            return type(applied)((inputs[0][:, :1], inputs[0][:, 1:]), None)

    node = ModelNode("n", Both("tanh"), scaled.reference(target=["y", "w"]), outputs=["first", "second"])
    losses = [
        AppliedLoss("mse", on="n", inputs=["outputs.first", "fs.y"], label="l1"),
        AppliedLoss("mse", on="n", inputs=["fs.w", "outputs.second"], label="l2"),
    ]
    experiment = Experiment("e", ModelGraph([node]), progress="none")
    result = experiment.run_phase(EvalPhase("v", data="test", losses=losses))
    assert result.compared == {"n.first": ("fs", ("y",)), "n.second": ("fs", ("w",))}
    train = raw["train"].array("w")
    expected = scaled["test"].array("x")[:, 1:] * train.std() + train.mean()
    assert np.allclose(result.prediction("n.second", undo=True), expected, rtol=1e-5)


def test_a_node_that_is_compared_with_nothing_is_told(scaled):
    nodes = [ModelNode("code", SequentialMLP((2,), n_layers=1), scaled.reference(target=[]))]
    result = Experiment("e", ModelGraph(nodes), progress="none").run_phase(EvalPhase("v", data="test"))
    with pytest.raises(TransformError) as caught:
        result.prediction("code", undo=True)
    message = str(caught.value)
    assert "no loss, metric or target shows which columns they belong to" in message
    assert "feature_set.inverse(results.prediction('code'), columns=[...])" in message
    with pytest.raises(TransformError, match=r"cannot be undone for predictions of 'code'"):
        result.to_arrow(undo=True)


def test_a_node_that_is_compared_with_nothing_in_data_without_transforms(raw):
    nodes = [ModelNode("code", SequentialMLP((2,), n_layers=1), raw.reference(target=[]))]
    result = Experiment("e", ModelGraph(nodes), progress="none").run_phase(EvalPhase("v", data="test"))
    assert result.prediction("code", undo=True) is result.prediction("code")


def test_targets_that_are_not_clear_are_told(scaled, raw):
    other = FeatureSet.from_dict("other", {"x": raw.array("x"), "y": raw.array("y")}, "x", "y")
    other.add_splits({"test": [5, 3]})
    nodes = [ModelNode("head", SequentialMLP((1,), n_layers=1), [scaled.reference(), other.reference()])]
    result = Experiment("e", ModelGraph(nodes), progress="none").run_phase(EvalPhase("v", data="test"))
    with pytest.raises(TransformError, match=r"no loss, metric or target shows which columns they belong to"):
        result.prediction("head", undo=True)


def test_predictions_that_are_not_of_the_targets_shape_are_told(scaled):
    result = evaluated(scaled, targets=["y"], shape=(4,))
    with pytest.raises(TransformError) as caught:
        result.prediction("head", undo=True)
    assert "values of shape ['n', 4] do not match y; shapes per sample: []" in str(caught.value)


def test_a_target_whose_transform_has_no_way_back_is_told(raw):
    result = evaluated(raw.fit_transform(Square(), "y", fit_on="train"))
    with pytest.raises(TransformError, match=r"Square on y of 'fs' cannot be inverted: it has no inverse_transform"):
        result.prediction("head", undo=True)


def test_training_on_transformed_data_and_reading_it_in_their_own_units(raw):
    """The way of a user: scale on train alone, train, predict, read in the units of the data."""
    y = raw.array("x") @ np.array([3, 5], "float32") + 200
    raw = FeatureSet.from_dict("fs", {"x": raw.array("x"), "y": y}, "x", "y")
    raw.add_splits({"train": [0, 1, 3, 5], "test": [2, 4]})
    data = raw.fit_transform(Scale(), "x", fit_on="train").fit_transform(Scale(), "y", fit_on="train")
    graph = ModelGraph([ModelNode("head", SequentialMLP((1,), n_layers=1), data.reference())], Optimizer("sgd", lr=0.1))
    experiment = Experiment("e", graph, progress="none")
    experiment.run_phase(
        TrainPhase("t", data="train", losses=[AppliedLoss("mse", on="head")], batch_size=4, epochs=600)
    )
    table = experiment.run_phase(EvalPhase("v", data="test")).to_arrow(undo=True)
    predicted = table.column("prediction.head").to_numpy()
    assert np.array_equal(table.column("y").to_numpy(), raw["test"].array("y"))
    assert np.allclose(predicted, raw["test"].array("y"), atol=1)


# -- pictures in the data's own units ----------------------------------------------------------------------------------


@pytest.fixture
def ax():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    return Figure().subplots()


def fixed(result, name, values):
    """The same results with these predictions."""
    return dataclasses.replace(result, predictions={name: np.asarray(values)})


class Codes(OneHot):
    """Words as whole numbers."""

    def transform(self, x: np.ndarray) -> Any:
        return np.array([[self.words.index(word)] for word in x[:, 0]])

    def inverse_transform(self, x: np.ndarray) -> Any:
        return np.array(self.words, dtype=object)[x[:, 0].round().astype(int)][:, None]


def test_words_that_were_made_numbers_are_drawn_by_their_names(raw, ax):
    data = raw.fit_transform(OneHot(), "kind", fit_on="all", role="target", into="class")
    result = fixed(evaluated(data, "class", (3,), data="all"), "head", np.eye(3, dtype="float32")[[0, 1, 1, 0, 1, 1]])
    result.plot(ax=ax, undo=True)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["a", "b", "c"]
    assert [text.get_text() for text in ax.texts] == ["2", "0", "0", "0", "2", "0", "0", "2", "0"]
    assert ax.get_title() == "v: accuracy 0.667" and ax.get_ylabel() == "fs.class"


@pytest.mark.parametrize("into", [None, "code"])
def test_codes_of_words_in_place_or_beside_them_are_drawn_by_name(into, raw, ax):
    data = raw.fit_transform(Codes(), "kind", fit_on="train", role="target", into=into)
    result = fixed(evaluated(data, into or "kind"), "head", np.array([[2.0], [1.0]]))  # the rows are of c and a
    result.plot(ax=ax, undo=True)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["a", "b", "c"]
    assert [text.get_text() for text in ax.texts] == ["0", "1", "0", "0", "0", "0", "0", "0", "1"]


def test_targets_are_drawn_as_the_data_keep_them_and_not_turned_round(raw, ax):
    class Rounded(Scale):
        def transform(self, x: np.ndarray) -> Any:
            return super().transform(x).round()

    result = evaluated(raw.fit_transform(Rounded(), "y", fit_on="train"))
    result.plot(ax=ax, undo=True)
    points = ax.collections[0].get_offsets()
    assert points[:, 0].tolist() == raw["test"].array("y").tolist()
    assert np.allclose(points[:, 1], result.prediction("head", undo=True)[:, 0])


def test_a_target_of_another_name_is_drawn_in_the_units_of_its_source(raw, ax):
    result = evaluated(raw.fit_transform(Scale(), "y", fit_on="train", into="small"), "small")
    result.plot(ax=ax, undo=True)
    assert np.allclose(ax.collections[0].get_offsets()[:, 0], raw["test"].array("y"))
    assert ax.get_xlabel() == "fs.small"


def test_scaled_numbers_of_0_and_1_are_no_logits_after_undo(raw, ax):
    data = FeatureSet.from_dict("fs", {"x": raw.array("x"), "y": [0, 1, 0, 1, 1, 0]}, "x", "y")
    data.add_splits({"train": [0, 1, 2, 3], "test": [4, 5]})
    evaluated(data.fit_transform(Scale(), "y", fit_on="train")).plot(ax=ax, undo=True)
    assert not ax.images and sorted(ax.collections[0].get_offsets()[:, 0]) == [0, 1]


def test_words_against_numbers_cannot_be_drawn(raw, ax):
    columns = {"x": raw.array("x"), "n": [0, 1, 2, 0, 1, 2], "kind": ["a", "b", "c"] * 2}
    data = FeatureSet.from_dict("fs", columns, "x", "n", "kind")
    data = data.fit_transform(OneHot(), "kind", fit_on="all", role="target", into="class")
    result = evaluated(data, "class", (3,), data="all")
    result.plot(ax=ax, targets="n")
    assert ax.images
    with pytest.raises(ResultError, match="'head' and their targets cannot be plotted in original units") as caught:
        result.plot(ax=ax, undo=True, targets="n")
    assert "object [6] and int64 [6]. Hint: leave undo out, or name a target" in str(caught.value)
