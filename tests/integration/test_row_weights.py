"""Weights of classes and rows in fit: a loop by hand in torch, scikit-learn's formula, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

import anyaccel as aa
from anyaccel.errors import AnyaccelError
from anyaccel.registry import registry

torch = pytest.importorskip("torch")
draw = np.random.default_rng(0)
N, BATCH, EPOCHS = 120, 20, 3
X = draw.standard_normal((N, 3)).astype("float32")
KIND = np.array(["a", "b", "c"])[np.digitize(X[:, 0] + 0.5 * draw.standard_normal(N), [0.2, 1.4])]
CODES = np.searchsorted(["a", "b", "c"], KIND)
WEIGHTS = draw.uniform(0.0, 3.0, N)
TABLE = {"p": X[:, 0], "q": X[:, 1], "r": X[:, 2], "y": KIND}
BALANCED = compute_class_weight("balanced", classes=np.array(["a", "b", "c"]), y=KIND)


def by_hand(weights, loss="cross_entropy", targets=CODES, width=3):
    """Weights of a linear layer after a loop of torch, in which each batch has the weighted mean of its losses."""
    torch.manual_seed(0)
    net = torch.nn.Linear(3, width)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(EPOCHS):
        for start in range(0, N, BATCH):
            rows = slice(start, start + BATCH)
            outputs, y = net(torch.tensor(X[rows])), torch.tensor(targets[rows])
            if loss == "cross_entropy":
                losses = torch.nn.functional.cross_entropy(outputs, y, reduction="none")
            else:
                losses = torch.nn.functional.binary_cross_entropy_with_logits(
                    outputs[:, 0], y.float(), reduction="none"
                )
            weight = torch.tensor(weights[rows])
            optimizer.zero_grad()
            ((weight * losses).sum() / weight.sum()).backward()
            optimizer.step()
    return net.weight.detach().numpy()


def trained(data=TABLE, loss="cross_entropy", width=3, **settings):
    torch.manual_seed(0)
    net = torch.nn.Linear(3, width)
    given = {"target": "y", "optimizer": aa.Optimizer("sgd", lr=0.1), "epochs": EPOCHS, "accelerator": "cpu"}
    given |= {"sampler": aa.SimpleSampler(BATCH, shuffle=False), "progress": "none", **settings}
    aa.fit(net, data, loss=loss, **given)
    return net.weight.detach().numpy()


@pytest.mark.parametrize(
    ("asked", "weights"),
    [
        ("balanced", BALANCED),
        ({"a": 2.0, "c": 0.5}, [2.0, 1.0, 0.5]),
        ([1, 2, 3], [1, 2, 3]),
        (np.array([1.0, 0.0, 3.0]), [1, 0, 3]),
    ],
)
def test_class_weights_are_those_of_a_loop_by_hand(asked, weights):
    np.testing.assert_allclose(trained(class_weights=asked), by_hand(np.array(weights, float)[CODES]), atol=1e-6)


def test_the_mean_is_that_of_the_cross_entropy_of_torch():
    outputs, y = torch.tensor(X[:BATCH]), torch.tensor(CODES[:BATCH])
    expected = torch.nn.CrossEntropyLoss(weight=torch.tensor([2.0, 1.0, 0.5]))(outputs, y).item()
    settings = {"class_weights": {"a": 2.0, "c": 0.5}, "batch_size": BATCH, "optimizer": aa.Optimizer("sgd", lr=1e-30)}
    few = {name: values[:BATCH] for name, values in TABLE.items()}
    net = torch.nn.Linear(3, 3)
    with torch.no_grad():
        net.weight.copy_(torch.eye(3))
        net.bias.zero_()
    fitted = aa.fit(net, few, target="y", loss="cross_entropy", epochs=1, progress="none", **settings)
    assert fitted.results.loss[0] == pytest.approx(expected, abs=1e-6)


def test_sample_weights_are_those_of_a_loop_by_hand():
    expected = by_hand(WEIGHTS)
    np.testing.assert_allclose(trained({**TABLE, "w": WEIGHTS}, sample_weight="w"), expected, atol=1e-6)
    np.testing.assert_allclose(trained(sample_weight=WEIGHTS), expected, atol=1e-6)
    both = trained({**TABLE, "w": WEIGHTS}, sample_weight="w", class_weights="balanced")
    np.testing.assert_allclose(both, by_hand(WEIGHTS * BALANCED[CODES]), atol=1e-6)


def test_yes_or_no_is_weighted_alike():
    is_c = (KIND == "c").astype(int)
    data = {**TABLE, "y": np.where(is_c, "yes", "no")}
    balanced = compute_class_weight("balanced", classes=np.array([0, 1]), y=is_c)
    expected = by_hand(balanced[is_c], "binary", is_c, 1)
    np.testing.assert_allclose(trained(data, "binary_cross_entropy", 1, class_weights="balanced"), expected, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["torch", *(pytest.param(name, marks=pytest.mark.across) for name in ("jax", "tensorflow"))]
)
def test_every_framework_weighs_alike(name):
    pytest.importorskip(name)
    settings = {"target": "y", "epochs": 2, "sampler": aa.SimpleSampler(BATCH, shuffle=False), "progress": "none"}
    settings |= {"sample_weight": WEIGHTS, "class_weights": "balanced", "accelerator": "cpu"}
    losses = []
    for framework in ("numpy", name):
        model = registry().computing(framework).models()["TabularMLP"](3, (), 3, (8,), 0.0)
        losses.append(aa.fit(model, TABLE, loss="cross_entropy", **settings).results.loss)
    np.testing.assert_allclose(losses[1], losses[0], atol=1e-6)


def test_balanced_counts_the_rows_to_train_on_alone():
    fitted = aa.fit(
        "mlp", TABLE, target="y", class_weights="balanced", validation=0.3, epochs=1, framework="numpy", progress="none"
    )
    data = fitted.graph.feature_sets["data"]
    train = data["train"].rows
    expected = compute_class_weight("balanced", classes=np.array(["a", "b", "c"]), y=KIND[train])
    np.testing.assert_allclose(data.array("sample_weight"), expected[CODES])


def test_the_columns_of_weights_and_groups_are_no_features():
    data = {**TABLE, "w": WEIGHTS, "g": np.arange(N) // 6}
    settings = {"target": "y", "epochs": 1, "framework": "numpy", "progress": "none", "validation": 0.25}
    fitted = aa.fit("mlp", data, sample_weight="w", group="g", **settings)
    assert [column.name for column in fitted.columns] == ["p", "q", "r"]
    splits = fitted.graph.feature_sets["data"].splits
    assert not set(data["g"][splits["train"].rows]) & set(data["g"][splits["validation"].rows])
    np.testing.assert_array_equal(fitted.predict(TABLE), fitted.predict(data))


@pytest.mark.parametrize("stratify", [True, "y", ["y"]])
def test_strata_are_shared_out(stratify):
    settings = {"target": "y", "epochs": 1, "framework": "numpy", "progress": "none"}
    fitted = aa.fit("mlp", TABLE, stratify=stratify, validation=0.25, **settings)
    rows = fitted.graph.feature_sets["data"].splits["validation"].rows
    for name in "abc":
        assert abs((KIND[rows] == name).sum() - 0.25 * (name == KIND).sum()) < 1


def test_a_validation_of_other_rows_is_weighted_by_its_own_column():
    data = {**TABLE, "w": WEIGHTS}
    other = {name: values[:30] for name, values in data.items()}
    settings = {"target": "y", "epochs": 1, "framework": "numpy", "progress": "none", "sample_weight": "w"}
    fitted = aa.fit("mlp", data, validation=other, **settings)
    probabilities = fitted.predict_proba(other)[np.arange(30), CODES[:30]]
    expected = -(np.log(probabilities) * WEIGHTS[:30]).sum() / WEIGHTS[:30].sum()
    assert fitted.results.figure("val_loss")[-1] == pytest.approx(expected, abs=1e-6)
    assert fitted.evaluate(other).loss == pytest.approx(-np.log(probabilities).mean(), abs=1e-6)


def test_a_feature_set_has_its_weights_as_a_tag():
    data = aa.FeatureSet.from_dict("rows", {"x": X, "y": CODES, "w": WEIGHTS}, ["x"], ["y"], ["w"])
    np.testing.assert_allclose(trained(data, target=None, sample_weight="w"), by_hand(WEIGHTS), atol=1e-6)


def nan_in_row_3():
    weights = WEIGHTS.copy()
    weights[3] = np.nan
    return weights


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"class_weights": {"z": 1.0}}, "'z', which is not a class of 'y'. Available: 'a', 'b', 'c'"),
        ({"class_weights": {"a": -1.0}}, "has -1.0, which is not a weight"),
        ({"class_weights": {"a": float("nan")}}, "has nan, which is not a weight"),
        ({"class_weights": {"a": "much"}}, "'much', which is not a weight"),
        ({"class_weights": [1, 2]}, "no weight for each of 3 classes. Available: classes in order: 'a', 'b', 'c'"),
        ({"class_weights": "even"}, "'even' is not a rule for weights"),
        ({"class_weights": 2.0}, "no weight for each of 3 classes"),
        ({"class_weights": "balanced", "loss": "mse", "target": "p"}, "the loss 'mse' has no classes"),
        ({"sample_weight": nan_in_row_3()}, "1 weights of the data that are negative, .* in row 3: nan"),
        ({"sample_weight": -WEIGHTS - 1}, "120 weights of the data that are negative"),
        ({"sample_weight": np.zeros(N)}, "the weights of all training rows are 0"),
        ({"sample_weight": np.ones(3)}, r"shape \[3\] has no weight for each of 120 rows"),
        ({"sample_weight": np.array(["1x"] * N)}, "weights that are not numbers"),
        ({"sample_weight": "ww"}, "has no column 'ww'"),
        ({"sample_weight": "y"}, "is the target, but is also named in sample_weight="),
        ({"sample_weight": WEIGHTS, "validation": {**TABLE}}, "the other validation rows"),
        ({"group": "q"}, "no fraction of the rows to split off"),
        ({"stratify": "y", "validation": {**TABLE}}, "no fraction of the rows to split off"),
        ({"stratify": "nowhere", "validation": 0.2}, "no column 'nowhere'"),
        ({"stratify": "p", "validation": 0.2}, "stratum|strata|rows"),
        ({"sample_weight": WEIGHTS, "loss": "own"}, "sample_weight"),
    ],
)
def test_weights_that_mean_nothing_are_refused(settings, message):
    if settings.get("loss") == "own":
        settings = {**settings, "loss": torch.nn.CrossEntropyLoss()}
    with pytest.raises(AnyaccelError, match=message):
        trained(**settings)
