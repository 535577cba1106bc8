"""Transforms of scikit-learn, as users bring them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from anyaccel.data import FeatureSet
from anyaccel.errors import TransformError
from anyaccel_sklearn.transforms.fitted_transform import same_state

decomposition = pytest.importorskip("sklearn.decomposition")
pipeline = pytest.importorskip("sklearn.pipeline")
pre = pytest.importorskip("sklearn.preprocessing")

N = 40


def example(seed: int = 0, n: int = N) -> FeatureSet:
    random = np.random.default_rng(seed)
    data = {
        "image": random.normal(3, 5, (n, 2, 3)).astype(np.float32),
        "count": random.integers(0, 9, n),
        "y": random.normal(100, 20, n),
        "w": random.exponential(2, (n, 1)).astype(np.float32),
        "kind": [("wood", "steel", "glass")[i % 3] for i in range(n)],
        "grade": [("low", "high")[i % 2] for i in range(n)],
    }
    fs = FeatureSet.from_dict("parts", data, ["image", "count"], ["y", "w"], ["kind", "grade"])
    fs.split_random({"train": 0.7, "test": 0.3})
    return fs


SCALERS = {
    "StandardScaler": pre.StandardScaler,
    "in place": lambda: pre.StandardScaler(copy=False),
    "MinMaxScaler": pre.MinMaxScaler,
    "RobustScaler": pre.RobustScaler,
    "MaxAbsScaler": pre.MaxAbsScaler,
    "PowerTransformer": pre.PowerTransformer,
    "QuantileTransformer": lambda: pre.QuantileTransformer(n_quantiles=10),
    "FunctionTransformer": lambda: pre.FunctionTransformer(np.arcsinh, np.sinh),
    "Pipeline": lambda: pipeline.make_pipeline(pre.StandardScaler(), "passthrough", pre.MinMaxScaler((-1, 1))),
    "pandas": lambda: pre.StandardScaler().set_output(transform="pandas"),
}


@pytest.mark.parametrize("name", SCALERS)
def test_scalers_go_there_and_back(name: str) -> None:
    if name == "pandas":
        pytest.importorskip("pandas")
    fs = example()
    fit_on = "all" if name == "QuantileTransformer" else "train"  # it clips what it has not seen
    done = fs.fit_transform(SCALERS[name](), ["image", "y", "w"], fit_on=fit_on)
    assert [done.spec(column) for column in ("image", "y", "w")] == [fs.spec(column) for column in ("image", "y", "w")]
    assert not np.allclose(done.array("y"), fs.array("y"))
    for column in ("image", "y", "w"):
        back = done.inverse(done.array(column), column)
        assert np.allclose(back, fs.array(column), rtol=1e-3, atol=1e-3)
        assert back.dtype == fs.array(column).dtype
    assert done.undo_transforms().to_arrow().equals(fs.to_arrow(), check_metadata=True)


def test_a_scaler_knows_its_split_alone() -> None:
    fs = example()
    done = fs.fit_transform(pre.StandardScaler(), "y", fit_on="train")
    assert np.allclose(done.transforms[0].transform.mean_, fs["train"].array("y").mean())
    assert abs(done["train"].array("y").mean()) < 1e-12
    assert np.isclose(done["train"].array("y").std(), 1)


def test_two_transforms_of_one_column_come_back_in_reverse_order() -> None:
    fs = example()
    done = fs.fit_transform(pre.PowerTransformer(), ["w", "y"], fit_on="train")
    done = done.fit_transform(pre.MinMaxScaler(), "w", fit_on="train")
    predictions = done["test"].array("w").reshape(-1)
    assert np.allclose(done.inverse(predictions, "w"), fs.array("w")[done["test"].rows, 0], rtol=1e-3)


@pytest.mark.parametrize("sparse", [True, False])
def test_words_become_one_hot_features_and_come_back(sparse: bool) -> None:
    fs = example()
    encoder = pre.OneHotEncoder(sparse_output=sparse, dtype=np.float32)
    done = fs.fit_transform(encoder, "kind", fit_on="train", role="feature", into="material")
    assert done.spec("material").shape == (3,) and done.spec("material").dtype == "float32"
    assert done.array("material")[:3].tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert "material" in done.features and done.column("kind").equals(fs.column("kind"))
    logits = np.array([[0.1, 3.0, 0.0], [2.0, 1.0, 0.0]])
    assert done.inverse(logits, "material").tolist() == ["steel", "glass"]


def test_words_become_class_indices_as_target() -> None:
    fs = example()
    done = fs.fit_transform(pre.OrdinalEncoder(dtype=np.int64), ["kind", "grade"], fit_on="train", role="target")
    assert done.targets == ("y", "w", "kind", "grade") and done.array("kind")[:3].tolist() == [2, 1, 0]
    assert done.inverse(np.array([[2.0], [0.0]]), "kind").tolist() == [["wood"], ["glass"]]
    assert done.inverse(np.array([1, 0]), "grade").tolist() == ["low", "high"]
    assert done.undo_transform().column("kind").equals(fs.column("kind"))


@pytest.mark.parametrize(
    ("make", "first"),
    [
        (lambda: pre.OneHotEncoder(), "OneHotEncoder"),
        (lambda: pre.OrdinalEncoder(), "OrdinalEncoder"),
        (lambda: pipeline.make_pipeline(pre.OrdinalEncoder(), pre.StandardScaler()), "Pipeline"),
    ],
)
def test_categories_unseen_in_fitting_are_named(make: Any, first: str) -> None:
    data = {"x": np.arange(4.0), "kind": ["a", "b", "c", "d"], "grade": ["u", "u", "u", "u"]}
    fs = FeatureSet.from_dict("parts", data, "x", (), ["grade", "kind"])
    fs.add_splits({"train": [0, 1], "test": [2, 3]})
    with pytest.raises(TransformError) as caught:
        fs.fit_transform(make(), ["grade", "kind"], fit_on="train", role="feature", into="code")
    message = str(caught.value)
    assert message.startswith(f"{first} on grade, kind of 'parts' was not fitted to 'c', 'd' of column 'kind': ")
    assert "; fitted to 'a', 'b'" in message and "set handle_unknown= of the encoder" in message
    assert isinstance(caught.value.__cause__, ValueError)
    done = fs.fit_transform(make(), ["grade", "kind"], fit_on="all", role="feature", into="code")
    other = FeatureSet.from_dict("new", {**data, "kind": ["a", "b", "c", "e"]}, "x", (), ["grade", "kind"])
    with pytest.raises(TransformError, match=r"of 'new' was not fitted to 'e' of column 'kind'"):
        other.transform_like(done)


def test_numbers_unseen_in_fitting_are_named_as_numbers() -> None:
    fs = FeatureSet.from_dict("parts", {"x": np.arange(3.0), "size": [1, 2, 5]}, ["x", "size"])
    fs.add_split("train", [0, 1])
    with pytest.raises(TransformError, match=r"was not fitted to 5 of column 'size': .*; fitted to 1, 2\."):
        fs.fit_transform(pre.OneHotEncoder(), "size", fit_on="train")


def test_an_encoder_that_knows_what_to_do_with_the_unseen() -> None:
    fs = FeatureSet.from_dict("parts", {"x": np.arange(3.0), "kind": ["a", "b", "c"]}, "x", (), "kind")
    fs.add_split("train", [0, 1])
    done = fs.fit_transform(pre.OneHotEncoder(handle_unknown="ignore"), "kind", fit_on="train", role="feature")
    assert done.array("kind").tolist() == [[1, 0], [0, 1], [0, 0]]
    assert done.inverse(done.array("kind"), "kind").tolist() == ["a", "b", None]
    codes = pre.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    with pytest.raises(
        TransformError, match=r"OrdinalEncoder on kind of 'parts' returns NaN or infinity in 1 of 3 rows"
    ):
        fs.fit_transform(codes, "kind", fit_on="train", role="feature")


def test_an_error_that_is_not_about_categories_is_reported_as_it_is() -> None:
    fs = example()
    broken = pre.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=1)
    with pytest.raises(TransformError, match=r"OrdinalEncoder on kind of 'parts' cannot be fitted: ValueError"):
        fs.fit_transform(broken, "kind", fit_on="train")
    with pytest.raises(
        TransformError, match=r"StandardScaler on kind of 'parts' cannot be fitted: ValueError: could not"
    ):
        fs.fit_transform(pre.StandardScaler(), "kind", fit_on="train")


def test_pca_makes_one_column_of_one_or_several() -> None:
    fs = example()
    alone = fs.fit_transform(decomposition.PCA(4), "image", fit_on="train")
    assert alone.spec("image").shape == (4,) and alone.spec("image").dtype == "float32"
    assert alone.inverse(alone.array("image"), "image").shape == (N, 2, 3)
    several = fs.fit_transform(decomposition.PCA(7), ["image", "count"], fit_on="train", into="parts", role="feature")
    assert several.features == ("image", "count", "parts") and several.spec("parts").shape == (7,)
    back = several.inverse(several.array("parts"), "parts")
    assert np.allclose(back[:, 6], fs.array("count"), atol=1e-3)
    with pytest.raises(TransformError, match=r"PCA on image, count of 'parts' returns rows of width 3.*into='NAME'"):
        fs.fit_transform(decomposition.PCA(3), ["image", "count"], fit_on="train")


def test_pca_of_several_columns_cannot_be_inverted_for_one() -> None:
    done = example().fit_transform(decomposition.PCA(2), ["y", "w"], fit_on="train")
    with pytest.raises(TransformError, match=r"PCA on y, w of 'parts' cannot be inverted for y alone.*depends on w"):
        done.inverse(done.array("y"), "y")


@pytest.mark.parametrize("wrap", [lambda step: step, lambda step: pipeline.make_pipeline(pre.StandardScaler(), step)])
def test_a_function_transformer_without_inverse_func_cannot_be_inverted(wrap: Any) -> None:
    """scikit-learn would give the values back as they are."""
    done = example().fit_transform(wrap(pre.FunctionTransformer(np.arcsinh)), "y", fit_on="train")
    with pytest.raises(
        TransformError, match=r"on y of 'parts' cannot be inverted.*FunctionTransformer needs inverse_func="
    ):
        done.inverse(done.array("y"), "y")


def test_a_transform_that_needs_targets_is_reported() -> None:
    with pytest.raises(
        TransformError, match=r"TargetEncoder on kind of 'parts' cannot be fitted: TypeError.*with fit\(X\) alone"
    ):
        example().fit_transform(pre.TargetEncoder(), "kind", fit_on="train", role="feature")


def test_a_log_of_zero_is_reported() -> None:
    log = pre.FunctionTransformer(np.log, np.exp)
    with (
        np.errstate(divide="ignore"),
        pytest.raises(TransformError, match=r"returns NaN or infinity in \d+ of 40 rows"),
    ):
        example().fit_transform(log, "count", fit_on="train")


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["StandardScaler", "MinMaxScaler", "RobustScaler"]), st.integers(2, 12))
def test_scalers_of_whatever_data(seed: int, name: str, n: int) -> None:
    fs = example(seed, n)
    done = fs.fit_transform(SCALERS[name](), ["image", "y"], fit_on="train")
    for column in ("image", "y"):
        assert np.allclose(done.inverse(done.array(column), column), fs.array(column), rtol=1e-3, atol=1e-3)
    fitted_there = example(seed + 1, n).transform_like(done)
    assert np.allclose(fitted_there.inverse(fitted_there.array("y"), "y"), example(seed + 1, n).array("y"))
    assert done.undo_transforms().to_arrow().equals(fs.to_arrow(), check_metadata=True)


def test_transforms_that_were_fitted_alike_are_alike() -> None:
    def fitted(scale: float) -> Any:
        x = np.array([[1.0, 2.0], [3.0, 5.0], [4.0, 4.0]]) * scale
        return pipeline.make_pipeline(pre.StandardScaler(), pre.OneHotEncoder(handle_unknown="ignore")).fit(x)

    assert same_state(fitted(1), fitted(1)) and not same_state(fitted(1), fitted(3))
