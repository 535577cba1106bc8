"""Transforms of a feature set, with own transforms; those of scikit-learn are in test_sklearn_calls."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from anyaccel.data import FeatureSet
from anyaccel.errors import ColumnError, DataError, SplitError, TransformError

TRAIN, TEST = [0, 2, 4, 5], [1, 3]


class Shift:
    """Subtracts the mean of what it was fitted to."""

    def fit(self, x: np.ndarray) -> Shift:
        self.mean_ = x.mean(axis=0)
        return self

    def transform(self, x: np.ndarray) -> Any:
        return x - self.mean_

    def inverse_transform(self, x: np.ndarray) -> Any:
        return x + self.mean_


class Times(Shift):
    """Multiplies by a number, and notes what it is called with."""

    def __init__(self, factor: float = 2.0) -> None:
        self.factor = factor
        self.seen: list[np.ndarray] = []

    def fit(self, x: np.ndarray) -> Times:
        self.seen.append(x.copy())
        return self

    def transform(self, x: np.ndarray) -> Any:
        return x * self.factor

    def inverse_transform(self, x: np.ndarray) -> Any:
        return x / self.factor


class Turned(Times):
    """Turns pairs of numbers by 45 degrees, so that no number comes back without the other."""

    turn = np.array([[1.0, 1.0], [1.0, -1.0]])

    def transform(self, x: np.ndarray) -> Any:
        return x @ self.turn

    def inverse_transform(self, x: np.ndarray) -> Any:
        return x @ self.turn / 2


class Total(Times):
    """One number instead of all; it has no inverse."""

    inverse_transform = None  # type: ignore[assignment]

    def transform(self, x: np.ndarray) -> Any:
        return x.sum(axis=1, keepdims=True)


class Codes(Times):
    """Numbers for words."""

    def fit(self, x: np.ndarray) -> Codes:
        self.words = sorted({word for word in x[:, 0].tolist() if word is not None})
        return self

    def transform(self, x: np.ndarray) -> Any:
        assert x.dtype == object and x.ndim == 2
        return np.array([[self.words.index(word) for word in row] for row in x.tolist()], dtype=np.float32)

    def inverse_transform(self, x: np.ndarray) -> Any:
        return np.array([[self.words[int(np.rint(number))] for number in row] for row in x.tolist()], dtype=object)


class Giving(Times):
    """Gives a fixed result for any input."""

    def __init__(self, function: Any, back: Any = None) -> None:
        super().__init__()
        self.function, self.back = function, back or function

    def transform(self, x: np.ndarray) -> Any:
        return self.function(x)

    def inverse_transform(self, x: np.ndarray) -> Any:
        return self.back(x)


def example() -> FeatureSet:
    data = {
        "x": np.arange(12, dtype=np.float32).reshape(6, 2),
        "z": np.array([3, 1, 4, 1, 5, 9], dtype=np.int64),
        "y": np.linspace(10, 20, 6),
        "w": np.linspace(-1, 1, 6),
        "kind": ["a", "b", "a", "b", "a", "b"],
        "row": np.arange(6),
    }
    fs = FeatureSet.from_dict("fs", data, ["x", "z"], ["y", "w"], ["kind", "row"])
    fs.add_splits({"train": TRAIN, "test": TEST})
    return fs


def same(first: FeatureSet, other: FeatureSet) -> bool:
    rows = {name: view.rows.tolist() for name, view in first.splits.items()}
    other_rows = {name: view.rows.tolist() for name, view in other.splits.items()}
    return rows == other_rows and first.to_arrow().equals(other.to_arrow(), check_metadata=True)


def refusal(do: Any) -> str:
    with pytest.raises(TransformError) as caught:
        do()
    assert isinstance(caught.value, DataError)
    return str(caught.value)


# -- fitting and applying ----------------------------------------------------------------------------------------------


def test_a_column_is_fitted_on_one_split_and_transformed_in_all_rows() -> None:
    fs = example()
    done = fs.fit_transform(Shift(), "y", fit_on="train")
    assert np.allclose(done.array("y"), fs.array("y") - fs["train"].array("y").mean())
    assert abs(done["train"].array("y").mean()) < 1e-12 < abs(done["test"].array("y").mean())


def test_fit_transform_leaves_the_original_unchanged() -> None:
    fs = example()
    before = fs.to_arrow()
    done = fs.fit_transform(Shift(), ["x", "y"], fit_on="train")
    assert fs.to_arrow().equals(before) and fs.transforms == ()
    assert done.label == "fs" and done.columns == fs.columns
    assert [done.role(name) for name in done.columns] == [fs.role(name) for name in fs.columns]
    assert {name: view.rows.tolist() for name, view in done.splits.items()} == {"train": TRAIN, "test": TEST}
    assert done["train"].feature_set is done
    assert done.column("z") is fs.column("z") or done.column("z").equals(fs.column("z"))
    assert done.column("z").chunk(0).buffers()[1].address == fs.column("z").chunk(0).buffers()[1].address


@pytest.mark.parametrize("fit_on", ["train", "all", "view"])
def test_fitting_sees_the_rows_of_fit_on_alone(fit_on: str) -> None:
    fs = example()
    rows: Any = {"train": TRAIN, "all": range(6), "view": [5, 5, 1]}[fit_on]
    chosen = fs.add_split("mine", rows) if fit_on == "view" else fit_on
    done = fs.fit_transform(Times(), ["x", "z"], fit_on=chosen)
    (fitted,) = done.transforms
    (seen,) = fitted.transform.seen
    assert np.array_equal(seen, np.column_stack([fs.array("x"), fs.array("z")])[list(rows)])
    assert fitted.fit_on == {"train": "train", "all": "all", "view": "mine"}[fit_on]


def test_the_transform_given_is_copied() -> None:
    scaler = Times()
    fs = example()
    done = fs.fit_transform(scaler, "x", fit_on="train").fit_transform(scaler, "y", fit_on="test")
    assert scaler.seen == [] and [len(fitted.transform.seen) for fitted in done.transforms] == [1, 1]
    assert done.transforms[0].transform is not done.transforms[1].transform


def test_a_transform_may_write_into_what_it_gets_and_keep_it() -> None:
    class InPlace(Times):
        def transform(self, x: np.ndarray) -> Any:
            x *= 2
            self.kept = x
            return x

    fs = example()
    done = fs.fit_transform(InPlace(), "x", fit_on="train")
    done.transforms[0].transform.kept[:] = 77
    assert np.array_equal(done.array("x"), fs.array("x") * 2) and fs.array("x")[1, 0] == 2
    assert not done.array("x").flags.writeable


def test_fitted_transforms_describe_themselves() -> None:
    done = example().fit_transform(Shift(), ["x", "y"], fit_on="train").fit_transform(Total(), "x", fit_on="all")
    first, second = done.transforms
    assert (first.columns, first.results, first.fit_on, first.role) == (("x", "y"), ("x", "y"), "train", None)
    assert (first.shapes, first.result_shapes, first.width) == (((2,), ()), ((2,), ()), 3)
    assert (second.shapes, second.result_shapes) == (((2,),), ((1,),))
    assert repr(first) == "FittedTransform(Shift on x, y, fitted on 'train')"
    with pytest.raises(AttributeError):
        first.fit_on = "all"  # type: ignore[misc]


def test_columns_are_joined_and_cut_to_their_shapes_again() -> None:
    fs = example()
    done = fs.fit_transform(Giving(lambda x: x[:, ::-1] + 0.5), ["x", "z"], fit_on="all")
    assert np.array_equal(done.array("x")[:, 0], fs.array("z") + 0.5)
    assert np.array_equal(done.array("z"), fs.array("x")[:, 0] + 0.5)


@pytest.mark.parametrize(("column", "dtype"), [("x", "float32"), ("z", "float64"), ("y", "float64")])
def test_floats_stay_as_narrow_as_they_were(column: str, dtype: str) -> None:
    done = example().fit_transform(Giving(lambda x: x.astype(np.float64) / 3), column, fit_on="all")
    assert done.spec(column).dtype == dtype
    together = example().fit_transform(Giving(lambda x: x / 3), ["x", "z"], fit_on="all")
    assert (together.spec("x").dtype, together.spec("z").dtype) == ("float32", "float64")


def test_floats_become_wider_where_their_values_need_it() -> None:
    done = example().fit_transform(Giving(lambda x: x.astype(np.float64) * 1e300), "x", fit_on="all")
    assert done.spec("x").dtype == "float64" and np.isfinite(done.array("x")).all()


def test_one_column_may_get_another_width() -> None:
    fs = example()
    wider = fs.fit_transform(Giving(lambda x: np.hstack([x, x, x])), "y", fit_on="all")
    assert wider.spec("y").shape == (3,) and wider.role("y") == "target"
    assert fs.fit_transform(Total(), "x", fit_on="all").spec("x").shape == (1,)
    assert fs.fit_transform(Giving(lambda x: x[:, 0]), "y", fit_on="all").spec("y").shape == ()


def test_several_columns_of_another_width_need_a_name() -> None:
    fs = example()
    message = refusal(lambda: fs.fit_transform(Total(), ["x", "y"], fit_on="all"))
    assert message == (
        "Total on x, y of 'fs' returns rows of width 1, which do not match these 2 columns; "
        "their total width is 3. "
        "Hint: name the one new column with into='NAME', or transform the columns one by one."
    )
    done = fs.fit_transform(Total(), ["x", "z"], fit_on="all", into="sum")
    assert done.features == ("x", "z", "sum") and done.spec("sum").shape == (1,)
    assert np.array_equal(done.array("sum")[:, 0], fs.array("x").sum(axis=1) + fs.array("z"))
    assert done.array("x") is not None and np.array_equal(done.array("x"), fs.array("x"))


def test_into_puts_one_column_beside_its_source_in_its_shape() -> None:
    fs = example()
    done = fs.fit_transform(Times(), "y", fit_on="train", into="double")
    assert done.targets == ("y", "w", "double") and done.spec("double") == fs.spec("y")
    assert np.array_equal(done.array("y"), fs.array("y"))
    assert np.array_equal(done.inverse(done.array("double"), "double"), fs.array("y"))


def test_words_become_features_in_their_place_or_beside() -> None:
    fs = example()
    done = fs.fit_transform(Codes(), "kind", fit_on="all", role="feature")
    assert done.features == ("x", "z", "kind") and done.tags == ("row",)
    assert done.array("kind").tolist() == [0, 1, 0, 1, 0, 1] and done.spec("kind").dtype == "float32"
    beside = fs.fit_transform(Codes(), "kind", fit_on="all", role="feature", into="code")
    assert beside.tags == ("kind", "row") and beside.features == ("x", "z", "code")
    assert done.inverse([1.2, 0.1], "kind").tolist() == ["b", "a"]
    assert fs.fit_transform(Codes(), "kind", fit_on="all", role="tag").role("kind") == "tag"


@pytest.mark.parametrize("into", [None, "code"])
def test_numbers_made_of_a_text_tag_need_a_role(into: str | None) -> None:
    message = refusal(lambda: example().fit_transform(Codes(), "kind", fit_on="all", into=into))
    assert "Codes on kind of 'fs' converts the tag 'kind' to numbers, but models cannot" in message
    assert message.endswith("Hint: write role='feature', or role='tag' to keep it a tag.")


def test_a_transform_may_give_words_for_a_tag_alone() -> None:
    fs = example()
    words = Giving(lambda x: np.array([[f"r{int(v)}"] for v in x[:, 0]]))
    assert fs.fit_transform(words, "row", fit_on="all").column("row").to_pylist()[:2] == ["r0", "r1"]
    message = refusal(lambda: fs.fit_transform(words, "row", fit_on="all", role="feature"))
    assert "Giving on row of 'fs' does not return numbers for 'row'" in message and "use role='tag'" in message


def test_words_beside_numbers_are_objects() -> None:
    def check(x: np.ndarray) -> Any:
        assert x.dtype == object and x[0].tolist() == ["a", 0, 0.0, 1.0]
        return np.ones((len(x), 1))

    done = example().fit_transform(Giving(check), ["kind", "row", "x"], fit_on="all", into="one", role="feature")
    assert done.array("one").shape == (6, 1)


def test_frames_and_sparse_arrays_are_made_dense() -> None:
    class Sparse:
        def toarray(self) -> Any:
            return np.eye(6)

    class Frame:
        def to_numpy(self) -> Any:
            return np.eye(6) * 2

    fs = example()
    assert np.array_equal(fs.fit_transform(Giving(lambda x: Sparse()), "y", fit_on="all").array("y"), np.eye(6))
    assert np.array_equal(fs.fit_transform(Giving(lambda x: Frame()), "y", fit_on="all").array("y"), np.eye(6) * 2)


def test_columns_of_several_chunks_and_of_bool_are_read_too() -> None:
    chunks = pa.chunked_array([[1.0, 2.0], [3.0]])
    flags = pa.chunked_array([[True, False], [True]])
    fs = FeatureSet.from_arrow("fs", pa.table({"x": chunks, "b": flags}), ["x", "b"])
    done = fs.fit_transform(Times(), ["x", "b"], fit_on="all")
    assert done.array("x").tolist() == [2, 4, 6] and done.array("b").tolist() == [2, 0, 2]
    assert done.undo_transform().column("b").type == pa.bool_()


# -- what cannot be fitted ---------------------------------------------------------------------------------------------


def test_a_missing_fit_on_lists_the_splits() -> None:
    message = refusal(lambda: example().fit_transform(Shift(), ["x", "y"]))
    assert message == (
        "Shift on x, y of 'fs' needs fit_on=, the rows to fit it to. Available: splits: train, test, all. "
        "Hint: write fit_on='train'; 'all' would include the rows that you evaluate on."
    )


def test_fit_on_something_else() -> None:
    fs = example()
    other = fs.fit_transform(Shift(), "y", fit_on="train")
    with pytest.raises(SplitError, match=r"'fs' has no split 'trian'.*did you mean 'train'"):
        fs.fit_transform(Shift(), "x", fit_on="trian")
    message = refusal(lambda: other.fit_transform(Shift(), "x", fit_on=fs["train"]))
    assert "Shift on x of 'fs' cannot be fitted on a view of another feature set" in message
    assert "write fit_on='train'" in message
    assert "cannot be fitted on 3" in refusal(lambda: fs.fit_transform(Shift(), "x", fit_on=3))  # type: ignore[arg-type]


def test_objects_that_are_not_transforms() -> None:
    fs = example()
    assert refusal(lambda: fs.fit_transform(Shift, "x", fit_on="all")) == (
        "Shift is a class, not a transform. Hint: create an object: Shift()."
    )
    message = refusal(lambda: fs.fit_transform(np.log, "x", fit_on="all"))
    assert "a ufunc is not a transform: it has no fit(X) and no transform(X)" in message
    assert "; a transform has fit(X), transform(X)" in message


def test_columns_that_are_not_there_or_named_wrongly() -> None:
    fs = example()
    with pytest.raises(ColumnError, match=r"'fs' has no column 'knid'.*did you mean 'kind'"):
        fs.fit_transform(Shift(), "knid", fit_on="all")
    assert "names no column. Available: x, z, y, w, kind, row" in refusal(
        lambda: fs.fit_transform(Shift(), [], fit_on="all")
    )
    assert "names a column twice" in refusal(lambda: fs.fit_transform(Shift(), ["x", "x"], fit_on="all"))


def test_invalid_roles_and_new_names() -> None:
    fs = example()

    def message_of(**settings: Any) -> str:
        return refusal(lambda: fs.fit_transform(Shift(), ["x", "y"], fit_on="all", **settings))

    assert "role='label' is not a role. Available: feature, target, tag" in message_of(role="label")
    for name in ("z", "", 3):
        assert f"into={name!r} is not a name for a new column. Available: columns: x, z, y" in message_of(into=name)
    message = message_of(into="all")
    assert "the role of 'all' is ambiguous. Available: feature, target. Hint: write role='feature'" in message


def test_errors_of_a_transform_name_it_and_its_columns() -> None:
    def fail(x: np.ndarray) -> Any:
        raise ValueError("no room")

    class Unfit(Times):
        def fit(self, x: np.ndarray) -> Times:
            raise RuntimeError("too few")

    class Uncopied(Times):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("a lock")

    fs = example()
    for transform, start in [
        (Giving(fail), "Giving on x, z of 'fs' cannot be applied: ValueError: no room; X [6, 3] of float64"),
        (
            Unfit(),
            "Unfit on x, z of 'fs' cannot be fitted: RuntimeError: too few; it was called with fit(X)",
        ),
        (Uncopied(), "Uncopied on x, z of 'fs' cannot be copied: TypeError: a lock"),
    ]:
        with pytest.raises(TransformError) as caught:
            fs.fit_transform(transform, ["x", "z"], fit_on="all")
        assert str(caught.value).startswith(start)
        assert caught.value.__cause__ is not None


def test_an_encoder_that_fails_for_another_reason_gives_no_hint_on_categories() -> None:
    class Encoder(Codes):
        categories_ = (["a", "b"],)

        def transform(self, x: np.ndarray) -> Any:
            raise ValueError("no room")

    message = refusal(lambda: example().fit_transform(Encoder(), "kind", fit_on="all"))
    assert "Encoder on kind of 'fs' cannot be applied: ValueError: no room" in message


@pytest.mark.parametrize(
    "function",
    [lambda x: x[:4], lambda x: x[:, :0], lambda x: x[None], lambda x: 3.0, lambda x: None],
    ids=["rows lost", "no numbers", "three axes", "a number", "nothing"],
)
def test_a_transform_gives_one_row_for_each(function: Any) -> None:
    message = refusal(lambda: example().fit_transform(Giving(function), "x", fit_on="all"))
    assert "Giving on x of 'fs': transform returns an array of shape [" in message
    assert "for 6 rows; it must return [6, numbers], one row for each row of its input" in message


def test_nan_of_complete_rows_is_an_error() -> None:
    def holes(x: np.ndarray) -> Any:
        return np.where(x == 4, np.nan, x)

    message = refusal(lambda: example().fit_transform(Giving(holes), "z", fit_on="all"))
    assert message.startswith(
        "Giving on z of 'fs' returns NaN or infinity in 1 of 6 rows, the first in row 2; its input"
    )
    assert "its input rows are complete and finite" in message
    words = Giving(lambda x: np.full((len(x), 1), np.inf))
    assert "infinity in 6 of 6 rows" in refusal(lambda: example().fit_transform(words, "kind", fit_on="all"))


def test_nan_that_was_there_goes_through() -> None:
    fs = FeatureSet.from_dict("fs", {"x": [1.0, np.nan, 3.0], "t": ["a", None, "b"]}, "x", (), "t")
    assert np.isnan(fs.fit_transform(Times(), "x", fit_on="all").array("x")).tolist() == [False, True, False]
    codes = Giving(lambda x: np.array([[1.0 if isinstance(word, str) else np.nan] for word in x[:, 0]]))
    assert np.isnan(fs.fit_transform(codes, "t", fit_on="all", role="feature").array("t")).tolist() == [
        False,
        True,
        False,
    ]


def test_integers_with_nulls_that_no_float_holds_are_refused() -> None:
    for values in (pa.array([2**53 + 1, None]), pa.array([[1, 2], None], pa.list_(pa.int64(), 2))):
        fs = FeatureSet.from_dict("fs", {"x": [1.0, 2.0], "t": values}, "x", (), "t")
        with pytest.raises(ColumnError, match=r"column 't' has nulls in 1 of 2 rows"):
            fs.fit_transform(Times(), "t", fit_on="all")


DAYS = [datetime.date(2020, 1, 1), None, datetime.date(2021, 1, 1)] * 2
MISSING: dict[str, tuple[Any, list[Any]]] = {
    "text": (["a", None, "b", "a", None, "a"], ["a", np.nan, "b", "a", np.nan, "a"]),
    "bool": (pa.array([True, None, False, True, True, None]), [True, np.nan, False, True, True, np.nan]),
    "integers": (pa.array([1, None, 3, 3, 5, None]), [1.0, np.nan, 3, 3, 5, np.nan]),
    "floats": (pa.array([1.5, None, 3, 3, 5, None]), [1.5, np.nan, 3, 3, 5, np.nan]),
    "categories": (pa.array(["u", None, "v", "u", "u", "v"]).dictionary_encode(), ["u", np.nan, "v", "u", "u", "v"]),
    "dates": (pa.array(DAYS), [np.nan if day is None else day for day in DAYS]),
}


@pytest.mark.parametrize("kind", MISSING)
def test_what_is_missing_is_missing_for_scikit_learn(kind: str) -> None:
    """The numbers of scikit-learn on an object column of pandas, where NaN is missing; issue 26."""
    impute, preprocessing = pytest.importorskip("sklearn.impute"), pytest.importorskip("sklearn.preprocessing")
    pipeline = pytest.importorskip("sklearn.pipeline")
    values, frame = MISSING[kind]
    fs = FeatureSet.from_dict("fs", {"x": np.arange(6.0), "t": values}, "x", (), "t")
    x = np.array(frame, float if kind in ("integers", "floats") else object).reshape(-1, 1)
    impute_most = impute.SimpleImputer(strategy="most_frequent")
    filled = fs.fit_transform(impute_most, "t", fit_on="all", role="tag").column("t").to_pylist()
    assert filled == impute_most.fit_transform(x)[:, 0].tolist() and None not in filled
    encode = preprocessing.OneHotEncoder(sparse_output=False)
    for transform in (encode, preprocessing.OrdinalEncoder(), pipeline.make_pipeline(impute_most, encode)):
        made = fs.fit_transform(transform, "t", fit_on="all", role="feature")
        expected = transform.fit_transform(x)
        np.testing.assert_array_equal(made.array("t").reshape(expected.shape), expected)
        again = fs.transform_like(made)  # new rows are given in the same way
        np.testing.assert_array_equal(again.array("t"), made.array("t"))


def test_a_transform_that_asks_for_none_gets_none() -> None:
    impute, pipeline = pytest.importorskip("sklearn.impute"), pytest.importorskip("sklearn.pipeline")
    fs = FeatureSet.from_dict("fs", {"x": [1.0, 2.0, 3.0], "t": ["a", None, "b"]}, "x", (), "t")
    constant = impute.SimpleImputer(missing_values=None, strategy="constant", fill_value="?")
    for transform in (constant, pipeline.make_pipeline(constant)):
        made = fs.fit_transform(transform, "t", fit_on="all", role="tag")
        assert made.column("t").to_pylist() == ["a", "?", "b"]


# -- undoing the data --------------------------------------------------------------------------------------------------


def test_undone_step_by_step_everything_is_as_it_was() -> None:
    fs = example()
    steps = [fs]
    steps.append(steps[-1].fit_transform(Shift(), ["x", "y"], fit_on="train"))
    steps.append(steps[-1].fit_transform(Codes(), "kind", fit_on="all", role="feature"))
    steps.append(steps[-1].fit_transform(Total(), ["x", "z", "kind"], fit_on="train", into="sum"))
    steps.append(steps[-1].fit_transform(Total(), "y", fit_on="test"))
    at = steps[-1]
    for before in reversed(steps[:-1]):
        at = at.undo_transform()
        assert same(at, before) and at.transforms == before.transforms
    assert same(steps[-1].undo_transforms(), fs)
    assert (
        at.column("x").chunk(0).storage.buffers()[-1].address == fs.column("x").chunk(0).storage.buffers()[-1].address
    )


def test_undone_twice_is_an_error() -> None:
    fs = example()
    undone = fs.fit_transform(Shift(), "y", fit_on="train").undo_transform()
    for again in (undone.undo_transform, undone.undo_transforms, fs.undo_transforms):
        message = refusal(again)
        assert message.startswith("'fs' has no transform to undo; its columns are unchanged. Hint: undo")


def test_splits_made_after_a_transform_stay_when_it_is_undone() -> None:
    done = example().fit_transform(Shift(), "y", fit_on="train")
    done.add_split("late", [1])
    assert list(done.undo_transforms().splits) == ["train", "test", "late"]


def test_a_cast_of_a_transformed_column_is_undone_with_it() -> None:
    fs = example()
    done = fs.fit_transform(Times(4.0), "y", fit_on="train")
    cast = done.cast({"y": "float32", "z": "int32"}, keep_splits=True)
    assert cast.transforms == done.transforms and list(cast.splits) == ["train", "test"]
    undone = cast.undo_transform()
    assert undone.spec("y").dtype == "float64" and undone.spec("z").dtype == "int32"
    assert np.array_equal(undone.array("y"), fs.array("y"))
    assert np.allclose(cast.inverse(cast.array("y"), "y"), fs.array("y"))


def test_columns_that_were_left_out_stay_out_when_a_transform_is_undone() -> None:
    fs = example()
    done = fs.fit_transform(Shift(), ["x", "y"], fit_on="train").select(target="w")
    assert len(done.transforms) == 1 and list(done.splits) == ["train", "test"]
    undone = done.undo_transform()
    assert undone.targets == ("w",) and np.array_equal(undone.array("x"), fs.array("x"))
    gone = fs.fit_transform(Total(), ["x", "z"], fit_on="train", into="sum").select(features=["x", "z"])
    assert same(gone.undo_transform(), fs)


def test_undoing_into_brings_its_source_back() -> None:
    fs = example()
    done = fs.fit_transform(Shift(), "x", fit_on="train").fit_transform(Total(), ["x", "z"], fit_on="train", into="sum")
    alone = done.select(features="sum")
    assert alone.features == ("sum",)
    once = alone.undo_transform()
    assert once.features == ("x", "z") and np.array_equal(once.array("x"), done.array("x"))
    assert np.array_equal(once.undo_transform().array("x"), fs.array("x"))
    assert np.array_equal(alone.undo_transforms().array("x"), fs.array("x"))


def test_a_filtered_view_is_fitted_on_too() -> None:
    fs = example()
    done = fs.fit_transform(Shift(), "y", fit_on=fs.filter({"kind": "a"}))
    assert np.isclose(done.array("y")[[0, 2, 4]].mean(), 0)


def test_transforms_do_not_travel_in_arrow_tables() -> None:
    done = example().fit_transform(Shift(), "y", fit_on="train")
    again = FeatureSet.from_arrow("fs", done.to_arrow())
    assert again.transforms == () and np.array_equal(again.array("y"), done.array("y"))


# -- bringing values back ----------------------------------------------------------------------------------------------


def test_values_come_back_through_all_transforms_in_reverse() -> None:
    fs = example()
    done = fs.fit_transform(Shift(), "y", fit_on="train").fit_transform(Times(4), "y", fit_on="test")
    assert np.allclose(done.inverse(done.array("y"), "y"), fs.array("y"))
    mean = fs["train"].array("y").mean()
    assert done.inverse(np.array([4.0, 8.0]), "y").tolist() == [mean + 1, mean + 2]


@pytest.mark.parametrize("shape", [(2,), (2, 1), (2, 1, 1)])
def test_values_keep_the_shape_in_which_they_come(shape: tuple[int, ...]) -> None:
    done = example().fit_transform(Times(), "y", fit_on="train")
    back = done.inverse(np.array([4.0, 8.0], dtype=np.float32).reshape(shape), "y")
    assert back.shape == shape and back.dtype == np.float32 and back.ravel().tolist() == [2, 4]


def test_values_of_no_transformed_column_are_as_they_were() -> None:
    done = example().fit_transform(Times(), "y", fit_on="train")
    values = np.ones((3, 7))
    assert done.inverse(values, "w") is values
    assert done.inverse(values, ["w", "x"]) is values


def test_values_of_one_column_of_several_that_were_fitted_together() -> None:
    fs = example()
    done = fs.fit_transform(Shift(), ["x", "y", "w"], fit_on="train")
    assert np.allclose(done.inverse(done.array("y")[:, None], "y")[:, 0], fs.array("y"))
    assert np.allclose(done.inverse(done.array("x")[:2], ["x"]), fs.array("x")[:2])
    both = np.column_stack([done.array("w"), done.array("y")])
    assert np.allclose(done.inverse(both, ["w", "y"]), np.column_stack([fs.array("w"), fs.array("y")]))


def test_columns_that_cannot_be_inverted_alone() -> None:
    fs = example()
    done = fs.fit_transform(Turned(), ["y", "w"], fit_on="train")
    message = refusal(lambda: done.inverse(done.array("y"), "y"))
    assert message == (
        "Turned on y, w of 'fs' cannot be inverted for y alone: the result depends on w. "
        "Hint: pass all of y, w together, or fit a transform to each column."
    )
    both = np.column_stack([done.array("w"), done.array("y")])
    assert np.allclose(done.inverse(both, ["w", "y"]), np.column_stack([fs.array("w"), fs.array("y")]))


def test_columns_joined_beside_an_untouched_one() -> None:
    done = example().fit_transform(Times(), "y", fit_on="train")
    assert done.inverse(np.array([[4.0, 4.0]]), ["y", "w"]).tolist() == [[2, 4]]


def test_values_of_a_column_made_of_several() -> None:
    fs = example()
    flat = Giving(lambda x: np.hstack([x, x[:, :1]]), lambda x: x[:, :3])
    done = fs.fit_transform(Times(), "z", fit_on="all").fit_transform(flat, ["x", "z"], fit_on="all", into="all_of")
    back = done.inverse(done.array("all_of"), "all_of")
    assert back.shape == (6, 3) and np.allclose(back, np.column_stack([fs.array("x"), fs.array("z")]))
    message = refusal(lambda: done.inverse(np.ones((6, 5)), ["all_of", "z"]))
    assert "undoing Giving on x, z of 'fs' returns z, which is also among the given columns" in message
    assert "one at a time" in message


def test_columns_of_several_axes_come_back_joined_where_they_can_be() -> None:
    data = {"a": np.ones((4, 2, 3)), "b": np.ones((4, 2, 1)), "c": np.ones((4, 3))}
    fs = FeatureSet.from_dict("fs", data, ["a"], ["b", "c"])
    done = fs.fit_transform(Times(), ["a", "b"], fit_on="all")
    assert np.array_equal(done.inverse(np.full((5, 2, 4), 2.0), ["a", "b"]), np.ones((5, 2, 4)))
    assert done.inverse(np.full((5, 2), 2.0), "b").shape == (5, 2)
    whole = fs.fit_transform(
        Giving(lambda x: x[:, :5], lambda x: np.ones((len(x), 9))), ["a", "c"], fit_on="all", into="five", role="tag"
    )
    assert whole.inverse(np.ones((2, 5)), "five").shape == (2, 9)
    message = refusal(lambda: done.inverse(np.ones((5, 7)), ["a", "c"]))
    assert "values of shape ['n', 7] do not match a, c; shapes per sample: [2, 3], [3]" in message


def test_values_of_another_shape_are_refused() -> None:
    done = example().fit_transform(Times(), "y", fit_on="train")
    for values, shape in [(np.ones((3, 2)), "['n', 2]"), (np.float64(1), "[]")]:
        message = refusal(lambda values=values: done.inverse(values, "y"))
        assert message.startswith(f"values of shape {shape} do not match y; shapes per sample: []")


def test_a_transform_without_an_inverse() -> None:
    fs = example()
    done = fs.fit_transform(Total(), "x", fit_on="train")
    message = refusal(lambda: done.inverse(done.array("x"), "x"))
    assert message.startswith("Total on x of 'fs' cannot be inverted: it has no inverse_transform")
    assert "undo_transform() restores the columns of the data without one" in message
    assert same(done.undo_transform(), fs)


def test_an_inverse_that_fails_or_gives_another_shape() -> None:
    def fail(x: np.ndarray) -> Any:
        raise KeyError("lost")

    def message_of(back: Any) -> str:
        done = example().fit_transform(Giving(lambda x: x, back), "y", fit_on="all")
        return refusal(lambda: done.inverse(np.ones(3), "y"))

    assert "Giving on y of 'fs' cannot be inverted for these values: KeyError: 'lost'" in message_of(fail)
    assert "inverse_transform returns rows of width 2; it was fitted to rows of 1" in message_of(
        lambda x: np.ones((3, 2))
    )
    assert "inverse_transform returns an array of shape [2] for 3 rows" in message_of(lambda x: np.ones(2))


def test_words_that_were_transformed_together_come_back_alone() -> None:
    data = {"x": [1.0, 2.0, 3.0], "a": ["u", "v", "u"], "b": ["p", "p", "q"]}
    fs = FeatureSet.from_dict("fs", data, "x", (), ["a", "b"])
    upper = Giving(
        lambda x: np.array([[word.upper() for word in row] for row in x]),
        lambda x: np.array([[word.lower() for word in row] for row in x]),
    )
    done = fs.fit_transform(upper, ["a", "b"], fit_on="all")
    assert done.column("b").to_pylist() == ["P", "P", "Q"]
    assert done.inverse(np.array(["U"], dtype=object), "a").tolist() == ["u"]


# -- other data --------------------------------------------------------------------------------------------------------


def fresh(**more: Any) -> FeatureSet:
    data = {"x": np.ones((2, 2), np.float32), "z": np.array([1, 2]), "kind": ["b", "a"], **more}
    return FeatureSet.from_dict("fresh", data, ["x", "z"], [name for name in more if name in "yw"], "kind")


def fitted() -> FeatureSet:
    done = example().fit_transform(Shift(), ["x", "z"], fit_on="train").fit_transform(Shift(), "y", fit_on="train")
    done = done.fit_transform(Codes(), "kind", fit_on="all", role="feature")
    return done.fit_transform(Times(), "y", fit_on="train").fit_transform(Total(), ["x", "z"], fit_on="all", into="sum")


def test_fresh_data_are_transformed_as_they_were_fitted_elsewhere() -> None:
    fitted_there = fitted()
    done = fresh(y=np.array([1.0, 2.0])).transform_like(fitted_there["train"])
    means = fitted_there.transforms[0].transform.mean_
    assert np.allclose(done.array("x"), 1 - means[:2]) and np.allclose(done.array("z"), [1, 2] - means[2])
    assert np.allclose(done.array("y"), ([1, 2] - fitted_there.transforms[1].transform.mean_) * 2)
    assert done.array("kind").tolist() == [1, 0] and done.features == ("x", "z", "kind", "sum")
    assert np.allclose(done.inverse(done.array("y"), "y"), [1, 2])
    assert same(done.undo_transforms(), fresh(y=np.array([1.0, 2.0])))
    assert done.transforms == fitted_there.transforms


def test_fresh_data_without_targets_can_still_invert_them() -> None:
    fitted_there = fitted()
    done = fresh().transform_like(fitted_there)
    assert done.targets == () and len(done.transforms) == 5
    assert np.allclose(done.inverse(fitted_there.array("y"), "y"), fitted_there.undo_transforms().array("y"))
    assert same(done.undo_transforms(), fresh())


def test_fresh_data_that_lack_a_feature_or_half_of_what_was_fitted_together() -> None:
    here = FeatureSet.from_dict("fresh", {"x": np.ones((2, 2)), "z": [1, 2]}, ["x", "z"])
    message = refusal(lambda: here.transform_like(fitted()))
    assert "Codes on kind of 'fresh' cannot be applied without kind. Available: columns: x, z" in message
    together = example().fit_transform(Shift(), ["y", "w"], fit_on="all")
    message = refusal(lambda: fresh(y=[1.0, 2.0]).transform_like(together))
    assert "Shift on y, w of 'fresh' cannot be applied without w" in message
    assert "fit a separate transform" in message


def test_fresh_data_of_another_shape_or_width() -> None:
    here = FeatureSet.from_dict("fresh", {"y": np.ones((2, 3))}, "y")
    message = refusal(lambda: here.transform_like(example().fit_transform(Shift(), "y", fit_on="all")))
    assert "Shift on y of 'fresh': column 'y' has samples of shape [3]; in fitting they had []" in message
    growing = example().fit_transform(Giving(lambda x: np.ones((len(x), len(x)))), "y", fit_on="all")
    message = refusal(lambda: fresh(y=[1.0, 2.0]).transform_like(growing))
    assert message == "Giving on y of 'fresh' returns rows of width 2; in fitting: 6."


def test_fresh_data_that_have_the_new_column_already() -> None:
    fitted_there = example().fit_transform(Times(), "y", fit_on="all", into="w2")
    here = FeatureSet.from_dict("fresh", {"y": [1.0], "w2": [2.0]}, "y", "w2")
    message = refusal(lambda: here.transform_like(fitted_there))
    assert "Times on y of 'fresh' creates the column 'w2', which already exists. Available: columns: y, w2" in message


def test_transforms_are_taken_from_what_has_them_and_once() -> None:
    message = refusal(lambda: fresh().transform_like(example()))
    assert "'fresh' cannot be transformed like FeatureSet('fs'" in message
    assert "it has no transforms. Hint: pass the feature set that fit_transform returned" in message
    assert "cannot be transformed like 3" in refusal(lambda: fresh().transform_like(3))  # type: ignore[arg-type]
    fitted_there = fitted()
    done = fresh().transform_like(fitted_there)
    for again in (lambda: done.transform_like(fitted_there), lambda: fitted_there.transform_like(fitted_there)):
        assert "already has these transforms; FittedTransform(Shift on x, z" in refusal(again)


def test_roles_of_fresh_data_stay_unless_the_transform_changes_them() -> None:
    fitted_there = example().fit_transform(Shift(), "y", fit_on="train")
    here = FeatureSet.from_dict("fresh", {"x": [1.0, 2.0], "y": [1.0, 2.0]}, "x", (), "y")
    assert here.transform_like(fitted_there).role("y") == "tag"


# -- whatever comes ----------------------------------------------------------------------------------------------------

FLOATS = st.sampled_from(["float32", "float64"]).flatmap(
    lambda dtype: hnp.arrays(
        dtype,
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4),
        elements=st.floats(-1000, 1000, width=32),
    )
)


@given(FLOATS, st.data())
def test_there_and_back(values: np.ndarray, data: st.DataObject) -> None:
    n = len(values)
    fs = FeatureSet.from_dict("fs", {"x": values, "y": values * 2, "n": np.arange(n)}, ["x", "n"], "y")
    rows = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=6))
    fs.add_split("fit", rows)
    columns = data.draw(st.permutations(["x", "y", "n"]))[: data.draw(st.integers(1, 3))]
    done = fs.fit_transform(Times(0.25), columns, fit_on="fit").fit_transform(Shift(), columns[0], fit_on="all")
    (seen,) = done.transforms[0].transform.seen
    assert np.array_equal(seen, np.concatenate([fs.array(name)[rows].reshape(len(rows), -1) for name in columns], 1))
    for name in columns:
        back = done.inverse(done.array(name), name)
        assert back.shape == fs.array(name).shape
        assert np.allclose(back, fs.array(name), rtol=1e-5, atol=1e-2 if values.dtype == np.float32 else 1e-9)
    undone = done.undo_transforms()
    assert same(undone, fs) and undone.array("x").tobytes() == values.tobytes()


def test_columns_whose_rows_differ_in_length_are_not_transformed() -> None:
    class Transform:
        def fit(self, x: Any) -> Any: ...

        def transform(self, x: Any) -> Any: ...

    data = FeatureSet.from_dict("d", {"x": [np.ones(1), np.ones(2)]}, ["x"], pad={"x": 0})
    with pytest.raises(TransformError, match=r"the rows of 'x' differ in length, which transforms do not support"):
        data.fit_transform(Transform(), "x", fit_on="all")


def test_a_failure_of_the_system_in_a_transform_keeps_its_type(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    class Transform:
        def fit(self, x: Any) -> Any:
            (tmp_path / "file/folder").mkdir()

        def transform(self, x: Any) -> Any:
            return x

    with pytest.raises(NotADirectoryError) as caught:
        FeatureSet.from_dict("data", {"x": np.ones(3)}, ["x"]).fit_transform(Transform(), "x", fit_on="all")
    assert "Transform on x of 'data'" in caught.value.__notes__[-1]


def test_what_controls_a_terminal_is_escaped_in_what_is_shown_of_a_transform() -> None:
    class Halves:
        def fit(self, x: Any) -> Any: ...

        def transform(self, x: Any) -> Any:
            return x / 2

    name = "x\x1b]0;owned"
    scaled = FeatureSet.from_dict("data", {name: np.ones(3)}, [name]).fit_transform(Halves(), name, fit_on="all")
    assert "\x1b" not in repr(scaled.transforms[0])
