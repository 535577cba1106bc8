"""Pictures of results: what the artists hold is what the results have. matplotlib draws into memory."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from anyaccel import (
    AppliedLoss,
    EvalPhase,
    Experiment,
    FeatureSet,
    ModelGraph,
    ModelNode,
    SequentialMLP,
    TrainPhase,
)
from anyaccel.errors import ResultError
from anyaccel.phases import Epoch
from anyaccel.results import EvalResults, TrainResults

LOSS = AppliedLoss("mse", on="guess")


@pytest.fixture
def pyplot():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


@pytest.fixture
def ax(pyplot):
    """Axes of a figure that pyplot knows nothing of."""
    from matplotlib.figure import Figure

    return Figure().subplots()


@pytest.fixture
def trained(experiment):
    validation = EvalPhase("val", data="last", metrics=["rmse"])
    phase = TrainPhase("t", data="all", losses=[LOSS], batch_size=4, epochs=5, validation=validation, validate_every=2)
    return experiment.run_phase(phase)


def evaluated(predictions, columns, **more):
    """Results over data with these targets."""
    data = FeatureSet.from_dict("fs", {"x": np.zeros(len(next(iter(columns.values())))), **columns}, "x", list(columns))
    arrays = {name: np.asarray(array) for name, array in predictions.items()}
    return EvalResults(label="test", predictions=arrays, rows={"fs": data}, **more)


def texts(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


# -- over epochs -------------------------------------------------------------------------------------------------------


def test_losses_are_drawn_over_epochs(trained, ax):
    assert trained.plot(ax=ax) is ax
    loss, val = ax.get_lines()
    np.testing.assert_array_equal(loss.get_xdata(), [0, 1, 2, 3, 4])
    np.testing.assert_allclose(loss.get_ydata(), trained.loss)
    np.testing.assert_array_equal(val.get_xdata(), [1, 3, 4])  # where there was a validation, joined by lines
    np.testing.assert_allclose(val.get_ydata(), trained.figure("val_loss")[[1, 3, 4]])
    assert texts(ax) == ["loss", "val_loss"]
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == ("epoch", "loss", "t")
    assert all(float(tick).is_integer() for tick in ax.get_xticks())


def test_figures_are_drawn_by_name(trained, ax):
    trained.plot("val_rmse", ax=ax)
    (line,) = ax.get_lines()
    np.testing.assert_allclose(line.get_ydata(), trained.figure("val_rmse")[[1, 3, 4]])
    assert ax.get_ylabel() == "val_rmse"
    trained.plot("loss", "val_rmse", ax=ax)
    assert ax.get_ylabel() == "value" and len(ax.get_lines()) == 3


def test_without_losses_what_there_is_is_drawn(ax):
    epochs = (Epoch(0, float("nan"), {}, 1, 0.1, {"accuracy": 0.5, "a.x": 1.0}),)
    result = TrainResults(label="t", epochs=epochs)
    assert result.figures == ("val_accuracy", "val_a.x")
    result.plot(ax=ax)
    assert texts(ax) == ["val_accuracy"] and len(ax.get_lines()) == 1


def test_a_figure_is_made_only_where_no_axes_are_given(trained, ax, pyplot):
    trained.plot(ax=ax)
    assert pyplot.get_fignums() == []
    made = trained.plot()
    assert pyplot.get_fignums() == [made.figure.number] and pyplot.gca() is made


@pytest.mark.parametrize("label", ["_private", "$x^2$", "a_b", "100 %"])
def test_labels_are_drawn_as_they_stand(label, ax):
    TrainResults(label=label, epochs=(Epoch(0, 1.0, {label: 2.0}, 1, 0.1),)).plot(f"loss.{label}", ax=ax)
    ax.figure.canvas.draw()
    assert label.replace("$", r"\$") in ax.get_title()


def test_what_cannot_be_drawn_over_epochs_is_told(trained, ax):
    with pytest.raises(ResultError, match=r"run 't' has no figure 'val_los'.* Hint: did you mean 'val_loss'\?"):
        trained.plot("val_los", ax=ax)
    with pytest.raises(ResultError, match=r"run 'none' has no figures to plot; no complete epoch\. Hint: run"):
        TrainResults(label="none", epochs=()).plot(ax=ax)


# -- against targets ---------------------------------------------------------------------------------------------------


def test_numbers_are_drawn_against_their_targets(experiment, data, ax):
    result = experiment.run_phase(EvalPhase("e", data="last", outputs=["guess"]))
    assert result.plot(ax=ax) is ax
    (points,) = ax.collections
    expected = np.stack([[5.0, 4.0], result.prediction("guess").ravel()], axis=1)
    np.testing.assert_allclose(points.get_offsets(), expected, rtol=1e-6)
    (equal,) = ax.get_lines()
    np.testing.assert_array_equal(equal.get_xdata(), equal.get_ydata())
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == ("fs.y", "prediction of guess", "e")
    assert ax.get_xlim() == ax.get_ylim() and ax.get_aspect() == 1


def test_each_component_has_its_own_points(ax):
    result = evaluated({"n": np.arange(8.0).reshape(4, 2)}, {"y": np.zeros((4, 2))})
    result.plot("n", ax)
    assert len(ax.collections) == 2 and texts(ax) == ["0", "1", "equal"]
    np.testing.assert_allclose(ax.collections[1].get_offsets()[:, 1], [1, 3, 5, 7])


CLASSES = np.array([0, 1, 2, 2, 1, 2])


@pytest.mark.parametrize(
    "given",
    [
        np.array([0, 1, 2, 1, 1, 2]),
        np.eye(3)[[0, 1, 2, 1, 1, 2]],
        np.array([[0], [1], [2], [1], [1], [2]], "int8"),
    ],
)
def test_classes_are_drawn_as_a_confusion_matrix(given, ax):
    result = evaluated({"n": given}, {"c": CLASSES})
    result.plot(ax=ax)
    (image,) = ax.images
    np.testing.assert_allclose(image.get_array(), [[1, 0, 0], [0, 1, 0], [0, 1 / 3, 2 / 3]])
    assert [text.get_text() for text in ax.texts] == ["1", "0", "0", "0", "2", "0", "0", "1", "2"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("predicted by n", "fs.c")
    assert ax.get_title() == "test: accuracy 0.833"


def test_logits_of_one_class_are_classes_where_targets_are_0_and_1(ax):
    evaluated({"n": np.array([[-1.0], [2.0], [3.0]])}, {"c": np.array([0, 0, 1])}).plot(ax=ax)
    np.testing.assert_allclose(ax.images[0].get_array(), [[0.5, 0.5], [0, 1]])


def test_counts_are_numbers_where_targets_are_no_classes_of_the_outputs(ax):
    evaluated({"n": np.array([1.5, 7.5])}, {"count": np.array([2, 8])}).plot(ax=ax)
    assert not ax.images and len(ax.collections) == 1


def test_indices_beyond_the_scores_are_no_classes_of_them(ax):
    result = evaluated({"n": np.eye(3)[[0, 1, 1]]}, {"c": np.array([0, 1, 5])})
    with pytest.raises(ResultError, match="no target column of the data matches"):
        result.plot(ax=ax)
    evaluated({"n": np.eye(3)[[0, 1, 1]]}, {"c": np.array([0, 1, 2])}).plot(ax=ax)
    assert ax.images


@pytest.mark.parametrize("wrong", [3, "ax", np.zeros(2)])
def test_what_is_no_axes_is_told(wrong):
    message = rf"plot\(\) cannot draw on ax={type(wrong).__name__}\. Available: a matplotlib Axes\. Hint: pass one"
    with pytest.raises(ResultError, match=message):
        evaluated({"n": np.zeros(2)}, {"y": np.zeros(2)}).plot(ax=wrong)


def test_many_classes_have_no_numbers_in_their_cells(ax):
    evaluated({"n": np.arange(30)}, {"c": np.arange(30)}).plot(ax=ax)
    assert not ax.texts and ax.images[0].get_array().shape == (30, 30)


def test_the_targets_to_compare_with_may_be_named(ax):
    result = evaluated({"n": np.zeros(3)}, {"a": np.ones(3), "b": np.arange(3.0)})
    for targets in ("b", "fs.b"):
        result.plot(ax=ax, targets=targets)
        assert ax.get_xlabel() == "fs.b"
    compared = evaluated({"n": np.zeros(3)}, {"a": np.ones(3), "b": np.ones(3)}, compared={"n": ("fs", ("a",))})
    compared.plot(ax=ax)
    assert ax.get_xlabel() == "fs.a"


@pytest.mark.parametrize(
    ("result", "ask", "message"),
    [
        (
            evaluated({"a": np.zeros(2), "b": np.zeros(2)}, {"y": np.zeros(2)}),
            {},
            r"^run 'test' has predictions of 2 nodes\. Available: a, b\. Hint: name one: plot\('NODE'\)\.$",
        ),
        (
            evaluated({}, {"y": np.zeros(2)}),
            {},
            r"^run 'test' has predictions of no nodes\. Hint: name nodes in EvalPhase\(outputs=\[\.\.\.\]\)\.$",
        ),
        (evaluated({"a": np.zeros(2)}, {"y": np.zeros(2)}), {"name": "b"}, r"has no predictions of 'b'\. Available: a"),
        (
            evaluated({"a": np.zeros(2)}, {"y": np.zeros(2), "z": np.zeros(2)}),
            {},
            r"predictions of 'a' could be compared with fs\.y, fs\.z\. Available: fs\.y, fs\.z\. Hint: name a match",
        ),
        (
            evaluated({"a": np.zeros((2, 3))}, {"y": np.zeros(2)}),
            {},
            r"predictions of 'a': no target column of the data matches\. Available: fs\.y\. Hint: name a matching one",
        ),
        (
            evaluated({"a": np.zeros((2, 3))}, {"y": np.zeros(2)}),
            {"targets": "y"},
            r"predictions of 'a' and the target fs\.y have different shapes: \[2, 3\] and \[2\]",
        ),
        (
            evaluated({"a": np.zeros(2)}, {"y": np.zeros(2)}),
            {"targets": "x"},
            r"predictions of 'a': targets='x' matches no target columns\. Available: fs\.y",
        ),
    ],
)
def test_what_cannot_be_drawn_against_targets_is_told(result, ask, message, ax):
    with pytest.raises(ResultError, match=message):
        result.plot(ax=ax, **ask)


def test_without_targets_there_is_nothing_to_compare_with(ax):
    data = FeatureSet.from_dict("fs", {"x": np.zeros(2)}, "x")
    result = EvalResults(label="test", predictions={"a": np.zeros(2)}, rows={"fs": data})
    with pytest.raises(ResultError, match=r"the data have no targets\. Hint: compare with your own arrays"):
        result.plot(ax=ax)


# -- runs of an experiment ---------------------------------------------------------------------------------------------


def test_runs_of_an_experiment_are_drawn_together(experiment, ax):
    phase = TrainPhase("t", data="all", losses=[LOSS], epochs=2)
    first, _, third = experiment.run(phase, EvalPhase("e", data="all"), phase)
    assert experiment.plot(ax=ax) is ax
    assert texts(ax) == ["0 t", "2 t"] and ax.get_title() == "e"
    np.testing.assert_array_equal(ax.get_lines()[1].get_xdata(), [2, 3])  # where the first run ended
    for line, run in zip(ax.get_lines(), (first, third), strict=True):
        np.testing.assert_allclose(line.get_ydata(), run.loss)


def test_runs_without_the_figure_are_left_out_and_none_with_it_is_an_error(experiment, ax):
    plain = TrainPhase("t", data="all", losses=[LOSS])
    judged = TrainPhase("v", data="all", losses=[LOSS], validation="last")
    experiment.run(plain, judged)
    experiment.plot("val_loss", ax=ax)
    assert texts(ax) == ["1 v"]
    with pytest.raises(
        ResultError, match=r"no run of experiment 'e' has a figure 'val_lss'.* did you mean 'val_loss'\?"
    ):
        experiment.plot("val_lss", ax=ax)


def test_an_experiment_that_ran_nothing_has_nothing_to_draw(data, ax):
    empty = Experiment("e", ModelGraph([ModelNode("n", SequentialMLP(), data.reference())]))
    with pytest.raises(
        ResultError, match=r"no run of experiment 'e' has a figure 'loss'\. Hint: run a TrainPhase first"
    ):
        empty.plot(ax=ax)


# -- without matplotlib ------------------------------------------------------------------------------------------------


def test_without_matplotlib_it_says_what_to_install(trained, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        ResultError, match=r"plot\(\) needs matplotlib.* Hint: python -m pip install 'anyaccel\[plot\]'"
    ):
        trained.plot()


def test_results_load_no_matplotlib_and_no_pandas():
    import subprocess

    code = (
        "import sys, anyaccel; anyaccel.Experiment, anyaccel.EvalResults, anyaccel.compare; "
        "print([name for name in ('matplotlib', 'pandas') if name in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"


# -- embeddings --------------------------------------------------------------------------------------------------------


def test_two_outputs_beside_more_classes_are_points_in_the_colours_of_these(ax):
    points = np.random.default_rng(0).normal(size=(30, 2))
    digits = np.arange(30) % 10
    evaluated({"emb": points}, {"digit": digits}).plot(ax=ax)
    assert not ax.images and len(ax.collections) == 10
    assert texts(ax) == [str(digit) for digit in range(10)]
    np.testing.assert_allclose(ax.collections[3].get_offsets(), points[digits == 3])
    assert ax.get_xlabel() == "emb, output 0" and ax.get_legend().get_title().get_text() == "fs.digit"


def test_many_labels_have_colours_of_their_own_and_no_legend(ax):
    evaluated({"emb": np.zeros((30, 2))}, {"person": np.arange(30)}).plot(ax=ax)
    assert ax.get_legend() is None
    assert len({tuple(one.get_facecolor()[0]) for one in ax.collections}) == 30


def test_other_outputs_than_classes_are_no_scores_of_them_unless_a_metric_says_so(ax):
    columns = {"digit": np.arange(30) % 10}
    result = evaluated({"emb": np.ones((30, 16))}, columns)
    with pytest.raises(
        ResultError,
        match=r"predictions of 'emb' have 16 outputs, but fs.digit has 10 classes, so they may not be scores. "
        r"Available: a plot of an embedding with 2 outputs. Hint: .*metrics=\['accuracy'\]",
    ):
        result.plot(ax=ax)
    data = result.rows["fs"]
    EvalResults(label="t", metrics={"emb.accuracy": 0.1}, predictions=result.predictions, rows={"fs": data}).plot(ax=ax)
    assert ax.images


def test_epochs_without_figures_say_what_gives_some():
    epochs = (Epoch(0, float("nan"), {}, 3, 0.1),)
    with pytest.raises(ResultError, match=r"1 epochs without a loss or a validation. Hint: write TrainPhase"):
        TrainResults(label="t", epochs=epochs).plot()
