"""Models that `fit` sizes from the data: by name, by a function of the widths, with defaults of their own."""

from __future__ import annotations

import functools
from importlib.util import find_spec

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import TabularMLP
from anyaccel.errors import FrameworkError, PhaseError
from anyaccel.fitting.fit_function import batch_size_for
from anyaccel.numpy_backend import Dense
from anyaccel.registry import registry

draw = np.random.default_rng(0)
X = draw.standard_normal((60, 3)).astype("float32")
TABLE = {"a": X[:, 0], "b": X[:, 1], "kind": (X[:, 0] > 0).astype(int) + (X[:, 1] > 1)}
PLAIN = aa.Optimizer("adam", lr=0.001)


def fit(model="mlp", data=TABLE, **settings):
    given = {"target": "kind", "loss": "cross_entropy", "preprocess": None, **settings}
    given = {"progress": "none", "epochs": 1, **given}
    if model == "mlp":
        given.setdefault("framework", "numpy")
    return aa.fit(model, data, **given)


WITH_SKLEARN = pytest.mark.skipif(not find_spec("anyaccel_sklearn"), reason="anyaccel-sklearn is not installed")


def model_of(fitted):
    return fitted.graph.nodes["model"].model


def test_the_name_makes_a_model_as_wide_as_the_data_say():
    config = model_of(fit()).get_config()
    assert (config["n_numbers"], config["cardinalities"], config["n_outputs"]) == (2, [], 3)
    assert (config["hidden"], config["dropout"]) == ([128, 64], 0.1)


@pytest.mark.parametrize(
    ("data", "settings", "widths"),
    [
        (TABLE, {"target": "a", "loss": "mse"}, (2, 1)),
        ({**TABLE, "kind": X[:, 2]}, {"target": ["a", "b"], "loss": "mae"}, (1, 2)),
        ({**TABLE, "kind": X[:, 0] > 0}, {"loss": "binary_cross_entropy"}, (2, 1)),
        pytest.param({**TABLE, "kind": X[:, 0] > 0}, {}, (2, 2), marks=WITH_SKLEARN),  # encodes classes
        ((X, X[:, :2]), {"target": None, "loss": "mse"}, (3, 2)),
        ((X[:, 0], X[:, 1]), {"target": None, "loss": "mse"}, (1, 1)),
        ((X.reshape(60, 3, 1), X[:, 1]), {"target": None, "loss": "mse"}, (3, 1)),
    ],
)
def test_widths_follow_from_features_target_and_loss(data, settings, widths):
    seen = []
    fitted = fit(lambda *given: seen.append(given) or aa.SequentialMLP(given[1]), data, **settings)
    assert seen == [widths]
    assert fitted.results.loss
    assert fit("mlp", data, **settings).results.loss


def test_a_function_is_called_once_and_its_model_trained():
    made = []

    def make(n_features, n_outputs):
        made.append(aa.SequentialMLP(n_outputs, hidden_dim=n_features))
        return made[-1]

    fitted = fit(make)
    assert [model_of(fitted)] == made
    expected = fit(aa.SequentialMLP(3, hidden_dim=2))
    np.testing.assert_array_equal(fitted.results.loss, expected.results.loss)
    part = functools.partial(lambda width, n_features, n_outputs: aa.SequentialMLP(n_outputs, hidden_dim=width), 2)
    np.testing.assert_array_equal(fit(part).results.loss, expected.results.loss)


def test_defaults_of_the_name_and_of_a_model():
    assert len(fit(epochs=None).results.loss) == 100
    assert len(fit(aa.SequentialMLP(3), epochs=None).results.loss) == 10
    graph = fit().graph
    assert (graph.optimizer.name, graph.optimizer.lr) == ("adamw", 1e-3)
    assert fit(aa.SequentialMLP(3)).graph.optimizer.name == "adam"
    assert fit(optimizer=PLAIN).graph.optimizer == PLAIN


@pytest.mark.parametrize(
    ("n_rows", "batch_size"), [(1, 128), (5000, 128), (8000, 256), (12_000, 512), (30_000, 1024), (10**7, 1024)]
)
def test_batches_of_the_name_grow_with_the_table(n_rows, batch_size):
    assert batch_size_for(n_rows) == batch_size


@pytest.mark.parametrize("batch_size", [16, 32, 128])
def test_a_batch_size_beside_a_sampler_or_a_loader_is_refused(batch_size):
    table = {"a": X[:, 0], "b": X[:, 1]}
    named = {"target": "b", "loss": "mse", "epochs": 1}
    assert fit("mlp", table, **named).phase.batch_size == 128
    assert fit("mlp", table, **named, batch_size=batch_size).phase.batch_size == batch_size
    assert fit("mlp", table, **named, sampler=aa.SimpleSampler(4)).phase.batch_size == 4
    for model in ("mlp", aa.SequentialMLP()):
        with pytest.raises(PhaseError, match=r"has both a sampler and a batch_size\. Hint: leave batch_size out"):
            fit(model, table, **named, sampler=aa.SimpleSampler(4), batch_size=batch_size)

    def batches():
        yield {"x": X[:4], "y": X[:4, :1]}

    given = {"target": "y", "features": "x", "loss": "mse"}
    assert fit(aa.SequentialMLP(), batches, **given).results.loss
    with pytest.raises(PhaseError, match=rf"fit has batch_size={batch_size}, but the data come in batches"):
        fit(aa.SequentialMLP(), batches, **given, batch_size=batch_size)


def test_the_name_stops_early_with_a_validation_unless_told_otherwise():
    noise = {"a": X[:, 0], "y": draw.standard_normal(60).astype("float32")}
    settings = {
        "target": "y",
        "loss": "mse",
        "validation": 0.5,
        "epochs": 60,
        "optimizer": aa.Optimizer("adam", lr=0.1),
    }
    assert len(fit("mlp", noise, **settings).results.loss) < 60
    assert len(fit("mlp", noise, **settings, early_stopping=False).results.loss) == 60
    assert len(fit(lambda n, m: TabularMLP(n, (), m), noise, **settings).results.loss) == 60
    assert len(fit("mlp", noise, **{**settings, "epochs": 1, "validation": None}).results.loss) == 1


@pytest.mark.filterwarnings("ignore")
def test_a_loss_that_is_nan_fails_the_fit_although_it_stops_early_by_default():
    numbers = {"a": X[:, 0], "y": X[:, 1]}
    diverging = aa.Optimizer("sgd", lr=1e30)
    with pytest.raises(PhaseError, match=r"the loss is (nan|inf)"), np.errstate(all="ignore"):
        fit("mlp", numbers, target="y", loss="mse", validation=0.5, epochs=5, optimizer=diverging)


def test_equal_seeds_give_equal_models():
    first, second, third = fit(seed=1), fit(seed=1), fit(seed=2)
    assert first.results.loss == second.results.loss != third.results.loss


def test_a_saved_folder_needs_no_models(tmp_path):
    fitted = fit()
    fitted.save(tmp_path / "model")
    loaded = aa.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(TABLE, outputs=True), fitted.predict(TABLE, outputs=True))


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("mpl", {}, "no model called 'mpl'. Available: mlp. Hint: did you mean 'mlp'"),
        ("xgboost", {}, "write 'mlp'"),
        (lambda n: Dense(n), {}, "does not accept the widths of a model.*2 features and 3 outputs"),
        (lambda n, m: None, {}, "returned None instead of a model"),
        (lambda n, m: Dense, {}, "instead of a model"),
        (lambda n, m: Dense(m), {"framework": "numpy"}, "leave framework= out"),
        (aa.SequentialMLP(3), {"framework": "numpy"}, "a model, which already has a framework"),
    ],
)
def test_what_makes_no_model_is_refused(model, settings, message):
    with pytest.raises(PhaseError, match=message):
        fit(model, **settings)


@pytest.mark.parametrize("twice", [{"target": ["y", "y"]}, {"target": "y", "features": ["a", "a"]}])
def test_columns_that_are_named_twice_are_refused(twice):
    numbers = {"a": np.arange(40.0), "b": np.arange(40.0) % 3, "y": np.arange(40.0)}
    with pytest.raises(aa.errors.ColumnError, match=r"column '[ya]' is named twice.*Hint: name it once"):
        aa.fit("mlp", numbers, framework="numpy", **twice)


def test_an_error_inside_the_function_is_the_users_own():
    def make(n_features, n_outputs):
        return n_features + "wide"

    with pytest.raises(TypeError, match="unsupported operand") as error:
        fit(make)
    assert "fit called the function make with 2 and 3, the numbers of features and outputs" in error.value.__notes__[0]


def test_it_says_that_it_trains_with_numpy_where_nothing_else_is_there(monkeypatch):
    monkeypatch.setattr(type(registry()), "frameworks", ("numpy",))
    with pytest.warns(
        UserWarning, match="'mlp' trains with NumPy on the CPU. Hint: .*anyaccel-torch|framework='numpy'"
    ):
        fitted = fit(framework=None)
    assert type(model_of(fitted)) is TabularMLP


def test_an_unknown_framework_is_refused():
    with pytest.raises(FrameworkError, match="'trch'"):
        fit(framework="trch")


def test_a_source_of_batches_has_no_widths():
    batches = [{"x": X, "y": X[:, :1]}]
    with pytest.raises(PhaseError, match="the widths of a table, but these data are a source"):
        fit("mlp", batches, target="y", loss="mse")
