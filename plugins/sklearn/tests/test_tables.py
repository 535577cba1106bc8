"""Tables with text, categories, dates and gaps in `fit`: the matrix that is made of them, and rows to predict for."""

from __future__ import annotations

import datetime
import decimal
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
import sklearn
from sklearn.compose import ColumnTransformer, make_column_selector, make_column_transformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import (
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
    TargetEncoder,
)

import anyaccel as aa
from anyaccel.errors import ColumnError, ConfigError, TableWarning

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
N = 240
rng = np.random.default_rng(0)
SEX = rng.choice(["female", "male"], N)
FARE = rng.gamma(2.0, 20.0, N)
AGE = np.where(np.arange(N) % 5, rng.normal(30, 10, N).round(1), np.nan)


def frame(**more):
    table = pd.DataFrame(
        {
            "age": AGE,
            "fare": FARE,
            "sex": SEX,
            "deck": np.array(["A", "B", "C", None], dtype=object)[np.arange(N) % 4],
            "alone": np.arange(N) % 3 == 0,
            "cabin": [f"C{number}" for number in np.arange(N) % 60],
            "when": pd.date_range("2020-01-30", periods=N, freq="31h"),
            "survived": np.where((SEX == "female") | (FARE > 70), "yes", "no"),
        }
    )
    return table.assign(**more)


TABLE = frame()
RAW = TABLE.drop(columns="survived")


def net(n_features, n_outputs):
    return aa.SequentialMLP(n_outputs, hidden_dim=8)


def folds(count, seed):
    if sklearn.__version__ < "1.9":  # which takes the folds as their number and a seed
        return {"cv": count, "random_state": seed}
    return {"cv": StratifiedKFold(count, shuffle=True, random_state=seed)}


def fit(data=TABLE, target="survived", model=net, **settings):
    return aa.fit(model, data, target=target, **{"epochs": 2, "progress": "none", **settings})


def matrix(fitted):
    (data,) = fitted.graph.feature_sets.values()
    return data.array(data.features[0])


def quiet(call):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return call()


# -- the matrix, compared with pipelines that are written by hand ------------------------------------------------------


def test_numbers_and_categories_are_those_of_a_pipeline():
    made = matrix(fit(TABLE[["age", "fare", "sex", "deck", "alone", "survived"]]))
    scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler()).fit_transform(TABLE[["age", "fare"]])
    one_hot = OneHotEncoder(sparse_output=False).fit_transform(TABLE[["sex", "deck", "alone"]])
    by_hand = np.hstack([np.clip(scaled, -5, 5), TABLE[["age"]].isna(), one_hot])
    np.testing.assert_allclose(made, by_hand, rtol=1e-6, atol=1e-7)
    assert made.dtype == np.float32


def test_many_categories_are_cross_fitted_means_of_the_target():
    fitted = fit(TABLE[["cabin", "fare", "survived"]], seed=3)
    target = (TABLE["survived"] == "yes").astype(int)
    encoder = TargetEncoder(target_type="binary", **folds(5, 3))
    crossed = encoder.fit_transform(TABLE[["cabin"]], target)
    by_hand = StandardScaler().fit(np.hstack([TABLE[["fare"]], crossed]))
    expected = by_hand.transform(np.hstack([TABLE[["fare"]], crossed]))
    np.testing.assert_allclose(matrix(fitted), np.clip(expected, -5, 5), rtol=1e-5, atol=1e-6)
    transform = fitted.graph.feature_sets["data"].transforms[-1].transform
    whole = by_hand.transform(np.hstack([TABLE[["fare"]], encoder.transform(TABLE[["cabin"]])]))
    again = transform.transform_table(pa.Table.from_pandas(TABLE))
    np.testing.assert_allclose(again, np.clip(whole, -5, 5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", ["number", "classes"])
def test_means_of_numbers_and_of_several_classes(target):
    table = TABLE[["cabin"]].assign(number=FARE, classes=np.arange(N) % 3)[["cabin", target]]
    fitted = fit(table, target)
    kind = {"number": "continuous", "classes": "multiclass"}[target]
    encoder = TargetEncoder(target_type=kind).fit(table[["cabin"]], table[target])
    new = pd.DataFrame({"cabin": ["C1", "C7", "never"]})
    transform = next(made for made in fitted.graph.feature_sets["data"].transforms if "cabin" in made.columns).transform
    with pytest.warns(TableWarning):
        made = transform.transform_table(pa.Table.from_pandas(new))
    means = transform.scaler.mean_, transform.scaler.scale_
    np.testing.assert_allclose(made, np.clip((encoder.transform(new) - means[0]) / means[1], -5, 5), rtol=1e-5)
    assert fitted.columns["cabin"].n_features == (3 if target == "classes" else 1)


def test_codes_are_those_of_an_ordinal_encoder():
    fitted = fit(TABLE[["fare", "cabin", "deck", "survived"]], embed=True)
    made = matrix(fitted)
    codes = OrdinalEncoder(encoded_missing_value=-1).fit_transform(TABLE[["cabin", "deck"]]) + 1
    np.testing.assert_array_equal(made[:, 1:], codes)
    transform = fitted.graph.feature_sets["data"].transforms[-1].transform
    assert transform.cardinalities == (61, 4)
    with pytest.warns(TableWarning, match=r"'cabin' in 1 \('new'\)"):
        new = transform.transform_table(pa.table({"fare": [1.0, 2.0], "cabin": ["new", "C1"], "deck": [None, "A"]}))
    np.testing.assert_array_equal(new[:, 1:], [[0, 0], [2, 1]])


def test_some_categories_are_codes():
    columns = fit(embed=["sex"]).columns
    assert columns["sex"].treatment.startswith("code") and columns["cabin"].treatment.startswith("mean")


def test_dates_are_parts_and_seconds():
    fitted = fit(TABLE[["when", "survived"]])
    assert fitted.columns["when"].treatment == "month, day, weekday, hour, seconds"
    when, seconds = TABLE["when"].dt, (TABLE["when"] - pd.Timestamp("1970-01-01")).dt.total_seconds()
    parts = np.stack([when.month, when.day, when.day_of_week, when.hour, seconds], axis=1)
    np.testing.assert_allclose(matrix(fitted), StandardScaler().fit_transform(parts), rtol=1e-4, atol=1e-5)


def test_days_of_a_file_are_dates(tmp_path):
    days = TABLE[["survived"]].assign(day=TABLE["when"].dt.date, none=[None, *TABLE["when"].dt.date[1:]])
    days.to_csv(tmp_path / "days.csv", index=False)
    fitted = fit(tmp_path / "days.csv")
    assert fitted.columns["day"].treatment == "month, day, weekday, seconds"
    assert fitted.columns["none"].treatment == "month, day, weekday, seconds, median where missing, indicator"
    np.testing.assert_array_equal(matrix(fitted), matrix(fit(days)))
    np.testing.assert_array_equal(
        fitted.predict(days, outputs=True), fitted.predict(tmp_path / "days.csv", outputs=True)
    )


def test_dates_in_text_are_dates():
    texts = frame(when=TABLE["when"].dt.strftime("%Y-%m-%d %H:%M"))
    np.testing.assert_array_equal(matrix(fit(texts)), matrix(fit(frame(when=TABLE["when"].dt.floor("min")))))


def test_only_the_rows_to_train_on_are_learnt_from():
    fitted = fit(validation=0.25, seed=1)
    (data,) = fitted.graph.feature_sets.values()
    train = TABLE.iloc[data["train"].rows]
    transform = next(made for made in data.transforms if "age" in made.columns).transform
    np.testing.assert_allclose(transform.imputer.statistics_[:2], train[["age", "fare"]].median())
    np.testing.assert_allclose(transform.scaler.mean_[1], train["fare"].mean())
    assert fitted.columns["age"].n_missing == train["age"].isna().sum() != TABLE["age"].isna().sum()


@pytest.mark.parametrize("kind", ["arrow", "polars", "dictionary", "duckdb", "category", "parquet", "tsv"])
def test_frames_of_all_kinds_are_the_same(kind, tmp_path):
    if kind == "polars":
        given = pytest.importorskip("polars").from_pandas(TABLE)
    elif kind == "duckdb":
        given = pytest.importorskip("duckdb").from_df(TABLE)
    elif kind == "parquet":
        given = tmp_path / "t.parquet"
        TABLE.to_parquet(given)
    elif kind == "tsv":
        given = tmp_path / "t.tsv"
        TABLE.to_csv(given, sep="\t", index=False)
    elif kind == "category":
        given = frame(sex=TABLE["sex"].astype("category"), deck=TABLE["deck"].astype("category"))
        given["alone"] = given["alone"].astype("boolean")
    else:
        given = pa.Table.from_pandas(TABLE)
        given = {name: given[name] for name in given.column_names} if kind == "dictionary" else given
    fitted, expected = fit(given), fit()
    np.testing.assert_array_equal(matrix(fitted), matrix(expected))
    np.testing.assert_array_equal(fitted.predict(given), expected.predict(TABLE))


def test_types_of_arrow_that_are_numbers():
    table = pa.table(
        {
            "price": pa.array([decimal.Decimal(f"{number}.5") for number in range(N)]),
            "took": pa.array([datetime.timedelta(hours=number) for number in range(N)]),
            "at": pa.array([datetime.time(number % 24) for number in range(N)]),
            "nothing": pa.nulls(N),
            "y": np.arange(N) % 2,
        }
    )
    with pytest.warns(TableWarning, match=r"'nothing' \(no value in any row\)"):
        fitted = fit(table, "y")
    values = np.stack([np.arange(N) + 0.5, np.arange(N) * 3600.0, np.arange(N) % 24 * 3600.0], axis=1)
    np.testing.assert_allclose(matrix(fitted), StandardScaler().fit_transform(values), rtol=1e-5, atol=1e-6)
    assert [column.kind for column in fitted.columns] == ["number", "number", "number", "dropped"]


def test_a_matrix_of_numbers_is_one_column():
    x = rng.normal(size=(N, 5))
    x[3, 2] = np.nan
    fitted = fit((x, TABLE["survived"]), None)
    scaled = make_pipeline(SimpleImputer(strategy="median", add_indicator=False), StandardScaler()).fit_transform(x)
    np.testing.assert_allclose(matrix(fitted), np.hstack([scaled, np.isnan(x[:, 2:3])]), rtol=1e-5, atol=1e-6)
    assert len(fitted.predict(x[:3])) == 3


# -- plain numbers, undoing, saving ------------------------------------------------------------------------------------


def test_plain_numbers_for_a_model_of_ones_own_stay_as_they_are():
    table = TABLE[["fare"]].assign(number=np.arange(N), flag=TABLE["alone"], y=np.arange(N) % 2)
    settings = {"model": aa.SequentialMLP(2), "loss": "cross_entropy"}
    fitted, plain = (
        fit(table, "y", **settings),
        fit(table, "y", **settings | {"preprocess": None, "model": aa.SequentialMLP(2)}),
    )
    np.testing.assert_array_equal(fitted.results.loss, plain.results.loss)
    assert not fitted.graph.feature_sets["data"].transforms
    treated = fit(table, "y", model=aa.SequentialMLP(2), drop=["number"])
    assert [column.name for column in treated.columns] == ["fare", "flag"]


def test_undoing_gives_the_columns_as_they_were():
    data = fit().graph.feature_sets["data"].undo_transforms()
    for name in RAW.columns:
        assert data.column(name).to_pylist() == pa.Table.from_pandas(TABLE)[name].to_pylist() or name == "age"
    np.testing.assert_array_equal(data.column("age").to_numpy(), TABLE["age"])


def test_a_saved_model_predicts_in_a_new_process_to_the_last_bit(tmp_path):
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    fitted = aa.fit(net, tmp_path / "t.csv", target="survived", epochs=2, progress="none", validation=0.2)
    fitted.save(tmp_path / "saved")
    RAW.to_csv(tmp_path / "new.csv", index=False)
    np.save(tmp_path / "outputs.npy", fitted.predict(tmp_path / "new.csv", outputs=True))
    code = (
        "import sys, numpy, anyaccel as aa; folder = sys.argv[1]\n"
        "fitted = aa.load(folder + '/saved')\n"
        "made = fitted.predict(folder + '/new.csv', outputs=True)\n"
        "assert numpy.array_equal(made, numpy.load(folder + '/outputs.npy'))\n"
        "print(fitted.columns)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{fitted.columns!r}\n"
    assert sum(file.stat().st_size for file in (tmp_path / "saved").rglob("*")) < 200_000
    assert b"pickle" not in b"".join(file.read_bytes() for file in (tmp_path / "saved").rglob("*") if file.is_file())


def passengers():
    """A table of the size and the columns of the Titanic's: a name in each row, and gaps in 40 % of the ages."""
    n, draw = 1313, np.random.default_rng(1)
    age = np.where(draw.random(n) < 0.42, np.nan, draw.integers(1, 70, n))
    table = pd.DataFrame({"name": [f"Passenger {row}, Miss {row * 7919:x}" for row in range(n)]})
    table = table.assign(**{"class": draw.choice(["1st", "2nd", "3rd"], n), "age": age})
    table = table.assign(sex=draw.choice(["male", "female"], n))
    return table.assign(survived=((table["sex"] == "female") | (draw.random(n) < 0.2)).astype(int))


def trips():
    """A table of 12,000 rows, whose numbers have quantile intervals, and whose stations have embeddings."""
    n, draw = 12_000, np.random.default_rng(2)
    start = pd.date_range("2024-01-01", periods=n, freq="17min")
    table = pd.DataFrame({"station": [f"s{place}" for place in draw.integers(0, 90, n)], "start": start})
    table = table.assign(rider=[f"r{place}" for place in draw.integers(0, 900, n)], km=draw.gamma(2.0, 3.0, n))
    return table.assign(survived=np.where(draw.random(n) < 0.3, "late", "on time"))


@pytest.mark.parametrize(("table", "largest"), [(passengers, 200_000), (trips, 2_000_000)])
def test_mlp_of_a_file_predicts_in_a_new_process_to_the_last_bit(table, largest, tmp_path):
    rows = table()
    rows.to_csv(tmp_path / "rows.csv", index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)
        settings = {"target": "survived", "validation": 0.2, "epochs": 2, "framework": "numpy", "progress": "none"}
        fitted = aa.fit("mlp", tmp_path / "rows.csv", **settings)
    fitted.save(tmp_path / "saved")
    rows.drop(columns="survived").to_csv(tmp_path / "new.csv", index=False)
    np.save(tmp_path / "outputs.npy", fitted.predict(tmp_path / "new.csv", outputs=True))
    np.save(tmp_path / "probabilities.npy", fitted.predict_proba(tmp_path / "new.csv"))
    code = (
        "import sys, numpy, anyaccel as aa; folder = sys.argv[1]\n"
        "fitted = aa.load(folder + '/saved')\n"
        "made = fitted.predict(folder + '/new.csv', outputs=True)\n"
        "assert numpy.array_equal(made, numpy.load(folder + '/outputs.npy'))\n"
        "made = fitted.predict_proba(folder + '/new.csv')\n"
        "assert numpy.array_equal(made, numpy.load(folder + '/probabilities.npy'))\n"
        "print(fitted.columns)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{fitted.columns!r}\n"
    assert sum(file.stat().st_size for file in (tmp_path / "saved").rglob("*")) < largest
    assert b"pickle" not in b"".join(file.read_bytes() for file in (tmp_path / "saved").rglob("*") if file.is_file())


def test_training_goes_on_from_a_checkpoint(tmp_path):
    settings = {"checkpoint": str(tmp_path / "run"), "resume": "auto", "validation": 0.2}
    fit(epochs=2, **settings)
    resumed, whole = fit(epochs=4, **settings), fit(epochs=4, validation=0.2)
    np.testing.assert_array_equal(resumed.results.loss[-1], whole.results.loss[-1])


# -- rows to predict for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preprocess", ["auto", "selectors"])
def test_rows_without_any_value_of_a_column_are_predicted_as_among_others(preprocess):
    given = TRANSFORMERS[preprocess] if preprocess != "auto" else preprocess
    fitted = fit(frame(when=TABLE["when"].where(np.arange(N) % 7 != 0)), preprocess=given)
    several = RAW.copy()
    several.loc[:2, ["deck", "when"]] = None
    expected = fitted.predict(several, outputs=True)[:3]
    alone = RAW.iloc[:3].assign(deck=np.nan, when=np.nan)  # float64, as read_csv reads empty cells
    assert {str(dtype) for dtype in alone[["deck", "when"]].dtypes} == {"float64"}
    # products of few rows and of many differ in the last bits
    np.testing.assert_allclose(fitted.predict(alone, outputs=True), expected, rtol=1e-5)


def test_rows_alone_reordered_and_with_more_columns_are_predicted_alike():
    fitted = fit()
    outputs = quiet(lambda: fitted.predict(RAW, outputs=True))
    shuffled = RAW[RAW.columns[::-1]].assign(more="column")
    np.testing.assert_array_equal(quiet(lambda: fitted.predict(shuffled, outputs=True)), outputs)
    transform = next(made for made in fitted.graph.feature_sets["data"].transforms if "age" in made.columns).transform
    whole = transform.transform_table(pa.Table.from_pandas(RAW))
    for row in range(0, N, 31):
        one = quiet(lambda row=row: transform.transform_table(pa.Table.from_pandas(RAW.iloc[[row]])))
        np.testing.assert_array_equal(one[0], whole[row])


def test_what_was_not_in_training_is_counted_in_one_warning():
    fitted = fit()
    new = RAW.head(4).copy()
    new["sex"] = ["female", "other", None, "male"]
    new["cabin"] = ["C1", "never", "C3", "never"]
    new.loc[[0, 2], "fare"] = np.nan
    new.loc[1, "when"] = pd.NaT
    with pytest.warns(TableWarning) as caught:
        fitted.predict(new)
    (message,) = [str(warning.message) for warning in caught]
    assert "of 4 rows" in message and "get the median: 'fare' in 2, 'when' in 1" in message
    assert "'sex' in 2 ('other', None)" in message and "'cabin' in 2 ('never')" in message
    transform = next(made for made in fitted.graph.feature_sets["data"].transforms if "age" in made.columns).transform
    with pytest.warns(TableWarning):
        made = transform.transform_table(pa.Table.from_pandas(new))
    sexes = list(made[:, -(2 + 4 + 2) : -(4 + 2)])
    np.testing.assert_array_equal(sexes, [[1, 0], [0, 0], [0, 0], [0, 1]])
    place = len(transform.numbers) - 1
    median = (np.median(FARE) - transform.scaler.mean_[place]) / transform.scaler.scale_[place]
    np.testing.assert_allclose(made[[0, 2], place], median, rtol=1e-5)


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (
            {"age": "old"},
            r"column 'age' held numbers where the model was trained, and holds text here; row 0 has 'old'",
        ),
        (
            {"age": ["old", *[3.0] * (N - 1)]},
            r"column 'age' has values of several types: number in 239 rows, text in 1",
        ),
        ({"sex": 1}, r"column 'sex' held text where the model was trained, and holds numbers here"),
        ({"when": 1}, r"column 'when' held dates where the model was trained, and holds numbers here"),
        ({"when": "soon"}, r"column 'when' held dates where the model was trained, and holds text here"),
        ({"alone": "yes"}, r"column 'alone' held booleans where the model was trained"),
        ({"fare": np.inf}, r"column 'fare' is infinite in 240 of 240 rows, the first in row 0"),
    ],
)
def test_columns_of_other_values_are_errors(new, message):
    with pytest.raises(ColumnError, match=message):
        fit().predict(RAW.assign(**new))


def test_missing_columns_are_named():
    with pytest.raises(ColumnError, match=r"2 columns are missing that the model was trained with: 'age', 'sex'"):
        fit().predict(RAW.drop(columns=["age", "sex"]))


def test_a_column_that_was_left_out_is_not_needed():
    with pytest.warns(TableWarning, match=r"'same' \(3 in all rows\), 'empty' \(no value in any row\)"):
        fitted = fit(frame(same=3, empty=np.nan))
    assert len(fitted.predict(RAW)) == N
    assert fitted.columns["same"].kind == fitted.columns["empty"].kind == "dropped"


def test_another_table_validates():
    fitted = fit(TABLE.head(180), validation=TABLE.tail(60), metrics=["accuracy"])
    assert fitted.results.figure("val_accuracy").size == 2
    np.testing.assert_allclose(
        fitted.results.figure("val_accuracy")[-1], np.mean(fitted.predict(TABLE.tail(60)) == TABLE["survived"].tail(60))
    )


# -- targets and losses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "loss", "classes"),
    [
        (TABLE["survived"], "cross_entropy", {"yes", "no"}),
        (TABLE["alone"], "cross_entropy", {True, False}),
        (np.arange(N) % 3 + 5, "cross_entropy", {5, 6, 7}),
        (np.arange(N) % 3, "cross_entropy", {0, 1, 2}),
        (np.arange(N), "mse", None),
        (FARE, "mse", None),
    ],
)
def test_the_target_says_the_loss(target, loss, classes):
    widths = []
    fitted = fit(TABLE[["age", "sex"]].assign(y=target), "y", lambda *given: widths.append(given) or net(*given))
    assert fitted.loss.name == loss
    assert widths == [(4, 1 if classes is None else len(classes))]
    predicted = set(fitted.predict(TABLE).tolist())
    assert classes is None or predicted <= classes


def test_scaled_targets_come_back_in_their_units():
    table = TABLE[["age", "sex"]].assign(price=1000 + 50 * (SEX == "male") + rng.normal(size=N))
    fitted = fit(
        table, "price", epochs=60, validation=0.2, metrics=["rmse", "r2", "mse", lambda y_true, y_pred: y_true.mean()]
    )
    predicted = fitted.predict(table)
    assert abs(predicted.mean() - 1025) < 10 and np.abs(predicted - table["price"]).mean() < 10
    (data,) = fitted.graph.feature_sets.values()
    held = table.iloc[data["val"].rows if "val" in data else data["validation"].rows]
    rmse = np.sqrt(np.mean((fitted.predict(held) - held["price"]) ** 2))
    np.testing.assert_allclose(fitted.results.figure("val_rmse")[-1], rmse, rtol=1e-4)
    np.testing.assert_allclose(fitted.results.figure("val_mse")[-1], rmse**2, rtol=1e-4)
    evaluated = fitted.evaluate(held, metrics=["mae", "r2"])
    np.testing.assert_allclose(evaluated.metrics["mae"], np.abs(fitted.predict(held) - held["price"]).mean(), rtol=1e-4)
    np.testing.assert_allclose(evaluated.metrics["r2"], fitted.results.figure("val_r2")[-1], rtol=1e-4)


def test_metrics_of_several_scaled_targets_are_in_their_units():
    table = TABLE[["age", "sex"]].assign(price=5000 + 900 * (SEX == "male"), size=FARE)
    fitted = fit(table, ["price", "size"], loss="mse", validation=0.2, metrics=["mae", "r2"])
    (data,) = fitted.graph.feature_sets.values()
    held = table.iloc[data["validation"].rows]
    errors = np.abs(fitted.predict(held) - held[["price", "size"]].to_numpy())
    np.testing.assert_allclose(fitted.results.figure("val_mae")[-1], errors.mean(), rtol=1e-5)
    one = fit(table[["age", "price"]], "price", loss="mse")
    named = one.evaluate(table, metrics=[aa.Metric("mae", targets="data.price")]).metrics["mae"]
    np.testing.assert_allclose(named, np.abs(one.predict(table) - table["price"]).mean(), rtol=1e-5)


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["1.03.2023", "27.03.2023"], [datetime.date(2023, 3, 1), datetime.date(2023, 3, 27)]),  # not numbers
        (["2023-02-28", "2023-02-30"], [datetime.date(2023, 2, 28), None]),
        (["28/02/2023", "31/02/2023"], [datetime.date(2023, 2, 28), None]),
        (["1.234.567", "2.000.001"], [1234567, 2000001]),
        (["1.234.567", "2.25"], [None, 2.25]),  # dots that mean two things
        (["1.234,5", "12,25"], [1234.5, 12.25]),
        (["1,00,000", "2,50,000.5"], [100000, 250000.5]),
        (["1,234.5", "$2,000"], [1234.5, 2000]),
        (["0x1F", "0XA0"], [31, 160]),
        (["0x1F", "17"], [31, 17]),
        (["0x1F", None], [31, None]),
        (["0x1F", "1,234"], [31, 1234]),
        (["0x1F", "$17"], [31, 17]),
        (["0xFFFFFFFFFFFFFFFF", "0x1"], [2**64 - 1, 1]),
    ],
)
def test_the_code_of_a_hint_reads_what_texts_look_like(texts, values):
    table = frame(text=texts * 120)
    with pytest.raises(ColumnError, match="'text' is text, and 100% of its values look like") as error:
        fit(table)
    code = re.search(r"= ((?:pandas\.|table\[).*?); or take it", error.value.hint)[1].removesuffix(
        ", with dayfirst=True"
    )
    read = eval(code, {"pandas": pd, "table": table}).iloc[:2].tolist()  # noqa: S307  # what the hint says
    found = [None if pd.isna(value) else value.date() if hasattr(value, "date") else value for value in read]
    assert found == values


def test_hexadecimal_text_of_a_file_and_of_pandas_is_alike(tmp_path):
    """Arrow's reader takes 0xFFFFFFFFFFFFFFFF for -1, pandas for text."""
    path = tmp_path / "codes.csv"
    codes = [f"0x{number:016X}" for number in np.random.default_rng(0).integers(2**63, 2**64, 5, dtype="uint64")]
    path.write_text("code,y\n" + "".join(f"{codes[row % 5]},{row % 2}\n" for row in range(240)))
    for data in (path, pd.read_csv(path)):
        with pytest.raises(ColumnError, match="'code' is text, and 100% of its values look like numbers"):
            fit(data, "y")
        fitted = fit(data, "y", categories=["code"])
        assert fitted.columns["code"].n_categories == 5


def test_integers_that_floats_do_not_hold_are_warned_of():
    ids = 2**53 + 5 * np.arange(240)
    message = r"integers beyond 2\*\*53 .*: 'id' \(in 120 of 240 rows\); .* drop=\['id'\]"
    for data in (frame(id=ids), frame(id=ids.astype("uint64") + np.uint64(2**63))):
        n_inexact = sum(float(value) != value for value in data["id"].tolist())
        with pytest.warns(TableWarning, match=message.replace("120", str(n_inexact))):
            fit(data)
    times = np.datetime64("2024-01-01", "ns").astype("int64") + np.arange(240) * 86_400 * 10**9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(frame(time=times))  # floats hold whole seconds of nanoseconds
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(frame(same=np.full(240, 2**53 + 1)))
    assert not any("beyond 2**53" in str(warning.message) for warning in caught)  # it is left out
    largest = np.array([2**63 - 1, -(2**63), 2**53 + 1, 3] * 60)
    with pytest.warns(TableWarning, match=r"'id' \(in 120 of 240 rows\)"):
        fit(frame(id=largest))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(frame(id=ids), drop=["id"])


# -- columns of which nothing can be made ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"zip": [str(row % 90) for row in range(N)]}, r"'zip' is text, and 100% of its values look like numbers"),
        (
            {"n": ["n/a" if row % 4 else "1" for row in range(N)], "zip": ["1", "2", "x"] * 80},
            r"'zip'.* 67% .*row 2 has 'x'",
        ),
        ({"day": ["3/4/2020", "5/6/2021"] * 120}, r"'day' is text, and 100% of its values look like dates"),
        ({"mixed": [1, "a"] * 120}, r"'mixed' has values of several types: number in 120 rows, text in 120 rows"),
        ({"lists": [[1], [1, 2]] * 120}, r"'lists' is list<.*which fit cannot use as features"),
    ],
)
def test_columns_of_no_use_are_refused(more, message):
    with pytest.raises(ColumnError, match=message):
        fit(frame(**more))
    assert fit(frame(**more), drop=list(more)).columns["sex"]


@pytest.mark.parametrize("model", [net, "mlp"])
def test_text_with_another_value_in_each_row_is_left_out_with_a_warning(model, tmp_path):
    framework = {"framework": "numpy"} if model == "mlp" else {}
    data = frame(name=[f"p{row}" for row in range(N)])
    with pytest.warns(TableWarning, match=r"are left out: 'name' \(such as 'p0'\)\. Hint: .*categories=\['name'\]"):
        fitted = fit(data, model=model, **framework)
    assert fitted.columns["name"].treatment == "identifies rows: 240 values in 240 rows"
    without = fit(model=model, **framework)
    np.testing.assert_array_equal(matrix(fitted), matrix(without))
    np.testing.assert_array_equal(fitted.predict(data, outputs=True), without.predict(RAW, outputs=True))
    kept = fit(data, model=model, categories=["name"], **framework)
    assert kept.columns["name"].treatment == "mean of the target, cross-fitted, scaled"
    assert fit(data, model=model, embed=["name"], **framework).columns["name"].n_categories == N
    with pytest.raises(ColumnError, match=r"no feature is left.*identifies rows.*Hint: .*categories=\['name'\]"):
        fit(data[["name", "survived"]], model=model, **framework)


def test_numbers_for_mlp_become_places_between_quantiles(tmp_path):
    rows = 5000
    size, when = rng.gamma(2.0, 20.0, rows), pd.date_range("2020-01-30", periods=rows, freq="31h")
    size[::7] = np.nan
    table = pd.DataFrame({"size": size, "flag": np.arange(rows) % 2, "when": when, "y": rng.normal(size=rows)})
    fitted = fit(table, "y", model="mlp", framework="numpy", epochs=0)
    made = matrix(fitted)
    assert fitted.columns["size"].treatment == "median where missing, indicator, scaled, 10 quantile intervals"
    assert fitted.columns["flag"].treatment == "scaled"
    assert fitted.columns["size"].n_features == 12 and made.shape[1] == sum(it.n_features for it in fitted.columns)
    edges = np.nanquantile(size, np.linspace(0, 1, 11))
    start = 2 + len(fitted.columns["when"].treatment.split(", ")) - 1  # after scaled numbers and parts of dates
    places = made[:, start : start + 10]
    assert ((places >= 0) & (places <= 1)).all() and (np.diff(places, axis=1) <= 0).all()
    expected = np.interp(np.where(np.isnan(size), np.nanmedian(size), size), edges, np.arange(11))
    np.testing.assert_allclose(places.sum(axis=1), expected, atol=1e-4)
    fitted.save(tmp_path / "saved")
    np.testing.assert_array_equal(aa.load(tmp_path / "saved").predict(table), fitted.predict(table))
    assert not fit(table, "y", model=net, epochs=0).columns["size"].treatment.endswith("intervals")


@pytest.mark.parametrize(
    ("rows", "width", "n_intervals"),
    [(16_000, 1, 32), (20_000, 1, 32), (2000, 1, 4), (1999, 1, 0), (5000, 103, 9), (5000, 256, 4), (5000, 257, 0)],
)
def test_short_and_wide_tables_have_fewer_intervals(rows, width, n_intervals):
    data = {"x": rng.normal(size=(rows, width)), "y": np.arange(rows) % 2 == 0}
    fitted = fit(data, "y", model="mlp", framework="numpy", epochs=0)
    assert matrix(fitted).shape == (rows, width * (1 + n_intervals))


@pytest.mark.parametrize(
    ("n_categories", "treatment"),
    [(48, "code for an embedding; 0 if missing"), (60, "mean of the target, cross-fitted, scaled")],
)
def test_mlp_embeds_categories_that_have_many_rows(n_categories, treatment):
    rows = 1000
    data = {"c": [f"v{row % n_categories}" for row in range(rows)], "y": np.arange(rows) % 2 == 0}
    fitted = fit(data, "y", model="mlp", framework="numpy", epochs=0)
    assert fitted.columns["c"].treatment == treatment
    assert (
        fit(data, "y", model="mlp", framework="numpy", embed=["c"], epochs=0).columns["c"].treatment.startswith("code")
    )


def test_a_hundred_thousand_categories():
    rows = 200_000
    table = {
        "c": [f"v{row % 100_000}" for row in range(rows)],
        "n": np.arange(rows) % 7.0,
        "y": np.arange(rows) % 2 == 0,
    }
    assert fit(table, "y", epochs=0).columns["c"].n_categories == 100_000


def test_columns_print_as_a_table():
    columns = fit().columns
    assert repr(columns).splitlines()[0].split() == ["name", "kind", "treatment", "missing", "categories", "features"]
    assert len(repr(columns).splitlines()) == 8 and "<table" in columns._repr_html_()
    assert sum(column.n_features for column in columns) == matrix(fit()).shape[1]
    assert columns["deck"].n_missing == 60 and columns[0].name == "age" and [*columns][1].kind == "number"


# -- transformers of the user's own ------------------------------------------------------------------------------------


NUMBERS = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
OTHERS = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore", min_frequency=3))
TRANSFORMERS = {
    "selectors": ColumnTransformer(
        [("n", NUMBERS, make_column_selector(dtype_include=np.number)), ("c", OTHERS, ["sex", "deck", "cabin"])]
    ),
    "remainder": ColumnTransformer(
        [("c", OneHotEncoder(handle_unknown="ignore"), ["sex", "deck", "cabin"]), ("d", "drop", ["when"])],
        remainder=make_pipeline(SimpleImputer(), MinMaxScaler()),
    ),
    "text": make_column_transformer((TfidfVectorizer(), "cabin"), (NUMBERS, ["age", "fare"])),
    "pipeline": make_pipeline(
        make_column_transformer((KNNImputer(), ["age", "fare"]), ("passthrough", ["alone"])), PolynomialFeatures()
    ),
    "union": make_column_transformer((make_union(SimpleImputer(), NUMBERS), ["age", "fare"])),
    "slice": make_column_transformer((NUMBERS, slice(0, 2)), (OneHotEncoder(sparse_output=True), [2])),
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_transformer_is_taken_as_it_is_and_saved(name, tmp_path):
    fitted = fit(preprocess=TRANSFORMERS[name])
    expected = TRANSFORMERS[name].fit_transform(RAW)
    expected = expected.toarray() if hasattr(expected, "toarray") else expected
    np.testing.assert_allclose(matrix(fitted), expected.astype(float), rtol=1e-5, atol=1e-6)
    fitted.save(tmp_path / name)
    loaded = aa.load(tmp_path / name)
    np.testing.assert_array_equal(loaded.predict(RAW, outputs=True), fitted.predict(RAW, outputs=True))
    assert repr(loaded.columns) == repr(fitted.columns)


def test_a_transformer_that_learns_from_the_target_is_cross_fitted(tmp_path):
    encoder = TargetEncoder(target_type="binary", **folds(3, 1))
    fitted = fit(TABLE[["cabin", "survived"]], preprocess=encoder)
    target = (TABLE["survived"] == "yes").astype(int)
    np.testing.assert_allclose(matrix(fitted), encoder.fit_transform(TABLE[["cabin"]], target), rtol=1e-6)
    fitted.save(tmp_path / "saved")
    np.testing.assert_array_equal(aa.load(tmp_path / "saved").predict(TABLE), fitted.predict(TABLE))


def test_missing_text_is_imputed():
    table = TABLE[["deck", "survived"]].assign(deck=np.array(["A", "B", None, "B"], dtype=object)[np.arange(N) % 4])
    imputed = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(sparse_output=False))
    np.testing.assert_array_equal(matrix(fit(table, preprocess=imputed)), [[1, 0], [0, 1], [0, 1], [0, 1]] * (N // 4))


def test_text_for_numbers_is_refused_by_a_transformer_too():
    fitted = fit(preprocess=TRANSFORMERS["selectors"])
    with pytest.raises(ColumnError, match=r"column 'age' held numbers where the model was trained"):
        fitted.predict(RAW.assign(age="old"))


class Doubled:
    """A transformer of the user's own."""

    def fit(self, x, y=None):
        return self

    def transform(self, x):
        return x.to_numpy() * 2


def test_a_transformer_that_no_folder_holds_is_refused_when_it_is_saved(tmp_path):
    fitted = fit(TABLE[["fare", "survived"]], preprocess=Doubled())
    np.testing.assert_allclose(matrix(fitted)[:, 0], 2 * FARE, rtol=1e-6)
    with pytest.raises(ConfigError, match=r"the result of preprocess= for the columns fare cannot be saved: .*Doubled"):
        fitted.save(tmp_path / "saved")


class OfKinds(Doubled):
    """A transformer that says what it takes each column for, as skrub's TableVectorizer does."""

    transformers_: dict = {}

    def fit(self, x, y=None):
        self.kind_to_columns_ = {"numeric": list(x.columns)}
        return self


def test_kinds_of_columns_that_a_transformer_names_are_reported():
    columns = fit(TABLE[["fare", "survived"]], preprocess=OfKinds()).columns
    assert columns["fare"].treatment == "OfKinds: numeric"


def test_large_numbers_of_a_transformer_are_warned_of():
    table = TABLE[["fare", "survived"]].assign(fare=FARE * 1e6)
    with pytest.warns(TableWarning, match=r"preprocess=Doubled\(...\) returns numbers up to .*e\+08, but networks"):
        fit(table, preprocess=Doubled())
    assert quiet(lambda: fit(table, preprocess=make_pipeline(Doubled(), StandardScaler()))).columns["fare"]


def test_numbers_of_a_category_dtype_are_categories(tmp_path):
    codes = np.array([10, 20, 30])[np.arange(N) % 3]
    fitted = fit(frame(zone=pd.Categorical(codes))[["age", "zone", "survived"]])
    assert fitted.columns["zone"].kind == "category"
    np.testing.assert_array_equal(matrix(fitted)[:, -3:], codes[:, None] == [10, 20, 30])
    plain = frame(zone=codes.astype(float))
    np.testing.assert_array_equal(fitted.predict(plain, outputs=True), fitted.predict("all", outputs=True))
    fitted.save(tmp_path / "m")
    np.testing.assert_array_equal(aa.load(tmp_path / "m").predict(plain), fitted.predict(plain))


@pytest.mark.parametrize(
    ("values", "alike"),
    [
        (pd.to_datetime(["2020-01-01", "2021-05-01"]), lambda day: day.astype("datetime64[ns]")),
        (pd.to_datetime(["2020-01-01", "2021-05-01"]).tz_localize("UTC"), lambda day: day.dt.tz_convert("Asia/Tokyo")),
        (pd.to_timedelta([1, 2], "h"), lambda time: time.astype("timedelta64[ns]")),
        ([decimal.Decimal("1.10"), decimal.Decimal(2)], lambda price: price.astype(float)),
        ([datetime.time(1, 30), datetime.time(2)], lambda time: time),
    ],
)
def test_categories_of_any_type_are_saved_and_known_again(values, alike, tmp_path):
    table = frame(key=pd.Series(values).take(np.arange(N) % 2).reset_index(drop=True))
    fitted = fit(table[["age", "key", "survived"]], categories=["key"])
    fitted.save(tmp_path / "m")
    new = table.assign(key=alike(table["key"]))
    made = quiet(lambda: aa.load(tmp_path / "m").predict(new, outputs=True))
    np.testing.assert_array_equal(made, fitted.predict("all", outputs=True))


def test_missing_values_of_pandas_among_objects_are_gaps():
    age = pd.Series(AGE, dtype="Float64").where(pd.notna(AGE))
    made = matrix(fit(frame(age=age.astype(object))[["age", "fare", "survived"]]))
    np.testing.assert_array_equal(made, matrix(fit(TABLE[["age", "fare", "survived"]])))
    text = pd.Series(np.where(np.arange(N) % 4, "A", "B"), dtype=object).where(np.arange(N) % 3 > 0, pd.NA)
    assert fit(frame(deck=text)).columns["deck"].n_missing == N // 3


@pytest.mark.parametrize("kind", ["bool", "int64", "float64"])
def test_a_target_with_the_category_dtype_of_numbers_is_decoded(kind):
    labels = (FARE > 30).astype(kind)
    fitted = fit(frame(survived=pd.Categorical(labels)))
    assert fitted.classes_.tolist() == np.unique(labels).tolist() and fitted.predict(TABLE).dtype == labels.dtype


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((AGE[:15], np.arange(15) * 7 + 100), "has 15 different integers in 15 rows, and they are treated as classes"),
        ((FARE, (FARE > 30).reshape(-1, 1)), r"has shape \[n, 1\] and 2 different values, .* pass y\.ravel\(\)"),
    ],
)
def test_targets_that_may_be_meant_otherwise_are_warned_of(data, message):
    with pytest.warns(TableWarning, match=f"the target 'y' {message}"):
        fit(data, None)


def test_weights_and_groups_in_another_order_than_the_rows_are_refused():
    weights, table = pd.Series(FARE), TABLE[["age", "fare", "survived"]]
    message = "the columns 'the table' and '{}' of 'data' have the same index in another order"
    with pytest.raises(ColumnError, match=message.format("sample_weight")):
        fit(table, sample_weight=weights[::-1])
    with pytest.raises(ColumnError, match=message.format("sample_weight").replace("the table", "age")):
        fit((table[["age", "fare"]], table["survived"]), None, sample_weight=weights[::-1])
    with pytest.raises(ColumnError, match=message.format("groups")):
        aa.cross_validate(net, table, target="survived", groups=(weights // 10)[::-1])
    by_position = fit(table, sample_weight=weights.to_numpy()).predict("all", outputs=True)
    np.testing.assert_array_equal(fit(table, sample_weight=weights).predict("all", outputs=True), by_position)


def test_a_target_with_gaps_is_not_cross_validated():
    with pytest.raises(ColumnError, match="the target 'survived' has no value in 1 of 240 rows, the first in row 3"):
        aa.cross_validate(net, frame(survived=TABLE["survived"].where(np.arange(N) != 3)), target="survived")


def test_times_of_day_in_text_are_those_of_a_file(tmp_path):
    clock = [f"{row % 24:02}:{row % 60:02}" for row in range(N)]
    table = frame(clock=np.where(np.arange(N) % 7, clock, None))[["age", "clock", "survived"]]
    table.to_csv(tmp_path / "t.csv", index=False)
    of_file, of_frame = fit(str(tmp_path / "t.csv")), fit(table)
    np.testing.assert_array_equal(matrix(of_file), matrix(of_frame))
    np.testing.assert_array_equal(of_file.predict(table, outputs=True), of_frame.predict("all", outputs=True))
    seconds = pd.to_timedelta(pd.Series(clock) + ":00").dt.total_seconds().to_numpy()[:, None]
    gaps = np.arange(N) % 7 == 0
    filled = np.where(gaps, np.median(seconds[~gaps]), seconds.T).T
    np.testing.assert_allclose(matrix(of_frame)[:, 1], StandardScaler().fit_transform(filled)[:, 0], rtol=1e-5)
    with pytest.raises(ColumnError, match="'clock' held numbers where the model was trained, and holds text here"):
        of_frame.predict(table.assign(clock="25:00"))


def test_days_and_hours_of_numpy_in_any_unit():
    hours = np.arange(N).astype("timedelta64[h]")
    units = {"m": "datetime64[m]", "ns": "datetime64[ns]"}
    made = [
        matrix(fit({"t": (np.datetime64("2020-01-01") + hours).astype(kind), "y": SEX}, "y")) for kind in units.values()
    ]
    np.testing.assert_allclose(*made)
    months = fit({"t": np.arange("2000-01", "2020-01", dtype="datetime64[M]"), "y": SEX}, "y")
    assert months.columns["t"].kind == "date" and fit({"t": hours, "y": SEX}, "y").columns["t"].kind == "number"


@pytest.mark.parametrize("words", [("True", "False"), ("Y", "N")])
def test_the_hint_for_booleans_in_text_has_their_words(words):
    table = frame(alone=np.where(TABLE["alone"], *words))
    with pytest.raises(ColumnError, match=rf"\.map\({{'{words[0]}': True, '{words[1]}': False}}\)"):
        fit().predict(table)


def test_columns_between_two_names_are_reported():
    chosen = fit(preprocess=ColumnTransformer([("scaled", SimpleImputer(), slice("age", "fare"))])).columns
    assert [column.treatment for column in chosen][:3] == ["scaled: SimpleImputer", "scaled: SimpleImputer", "left out"]


def test_columns_without_text_names_and_twice_at_prediction():
    table = TABLE[["age", "fare", "survived"]].set_axis(
        pd.MultiIndex.from_product([["a"], ["age", "fare", "y"]]), axis=1
    )
    with pytest.raises(ColumnError, match=r"'_'\.join\(map\(str, name\)\)"):
        aa.fit(aa.SequentialMLP(2), table, target=("a", "y"), epochs=1)
    fitted = fit(TABLE[["age", "fare", "survived"]])
    with pytest.raises(ColumnError, match="the table has 2 columns called 'age'"):
        fitted.predict(pd.concat([TABLE, TABLE[["age"]]], axis=1))


def test_intervals_are_categories():
    cut = pd.cut(TABLE["fare"], 4)
    fitted = fit(TABLE[["survived"]].assign(fare=cut))
    assert fitted.columns["fare"].n_categories == 4
    np.testing.assert_array_equal(sorted(matrix(fitted).sum(axis=0)), sorted(cut.value_counts()))


def test_the_plan_tells_of_the_columns():
    notes = fit().plan.notes
    assert "column 'age': number, median where missing, indicator, scaled" in notes
    assert len([note for note in notes if note.startswith("column ")]) == 7


def test_columns_of_one_name_are_refused():
    with pytest.raises(ColumnError, match=r"the table has 2 columns called 'fare'"):
        fit(pd.concat([TABLE, TABLE[["fare"]]], axis=1))


@pytest.mark.parametrize("model", [net, "mlp"])
def test_a_feature_set_is_treated_for_a_model_that_is_made_for_it(model, tmp_path):
    x = rng.normal(size=(N, 3)).astype("float32")
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": np.arange(N) % 2}, ["x"], ["y"])
    data.split_random({"train": 0.8, "val": 0.2}, seed=0)
    framework = {"framework": "numpy"} if model == "mlp" else {}
    fitted = fit(data, None, model, validation="val", **framework)
    train = data["train"].array("x")
    scaled = np.clip(StandardScaler().fit(train).transform(x), -5, 5)
    np.testing.assert_allclose(matrix(fitted), scaled, rtol=1e-4, atol=1e-6)
    fitted.save(tmp_path / "saved")
    loaded = aa.load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.predict({"x": x}, outputs=True), fitted.predict({"x": x}, outputs=True))
    assert data.features == ("x",) and not data.transforms


def test_columns_of_tags_alone_become_features():
    data = aa.FeatureSet.from_pandas("d", TABLE[["sex", "survived"]], tags=...)
    assert data.features == () and data.tags == ("sex", "survived")
    made = data.fit_transform(OneHotEncoder(sparse_output=False), "sex", fit_on="all", role="feature", into="x")
    assert made.features == ("x",) and made.undo_transforms().features == ()


def test_mlp_embeds_many_categories_and_predicts_what_a_new_process_does(tmp_path):
    fitted = fit(model="mlp", framework="numpy", validation=0.2, embed=["cabin"])
    assert fitted.columns["cabin"].treatment == "code for an embedding; 0 if missing"
    fitted.save(tmp_path / "saved")
    np.testing.assert_array_equal(aa.load(tmp_path / "saved").predict(RAW), fitted.predict(RAW))
    with pytest.warns(TableWarning, match=r"'cabin' in 240 \('new'\)"):
        fitted.predict(RAW.assign(cabin="new"))


def test_row_numbers_are_warned_of():
    with pytest.warns(TableWarning, match=r"the integers of 'id' differ in all rows, as row numbers.*drop=\['id'\]"):
        fitted = fit(frame(id=np.arange(N) + 1000), validation=0.2)
    assert fitted.columns["id"].kind == "number"
    quiet(lambda: fit(frame(size=rng.permutation(N) * 7)))


def test_text_for_a_model_of_ones_own_is_treated():
    fitted = fit(model=aa.SequentialMLP(2), loss="cross_entropy")
    np.testing.assert_array_equal(matrix(fitted), matrix(fit()))
    with pytest.raises(ColumnError, match=r"'sex', 'deck', 'cabin', 'when' are not numbers, but preprocess=None"):
        fit(model=aa.SequentialMLP(2), loss="cross_entropy", preprocess=None)


def test_a_warning_of_a_plugin_points_at_the_line_of_the_user() -> None:
    rows = 40
    table = {
        "name": [f"person {i}" for i in range(rows)],
        "x": [float(i % 7) for i in range(rows)],
        "y": [float(i % 3) for i in range(rows)],
    }
    with pytest.warns(TableWarning, match="a different value in nearly every row") as caught:
        aa.fit("mlp", table, target="y", loss="mse", epochs=1, framework="numpy", progress="none")
    assert {warning.filename for warning in caught if warning.category is TableWarning} == {__file__}
