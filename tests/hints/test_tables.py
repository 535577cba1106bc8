"""Hints of tables whose features fit makes: columns, targets, and rows to predict for."""

from __future__ import annotations

import functools
import io
import pathlib
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pyarrow.dataset
import pytest
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.datasets import load_wine
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import anyaccel as aa
from anyaccel.errors import TableWarning
from anyaccel.fitting import FittedModel

pytestmark = pytest.mark.filterwarnings("ignore::anyaccel.errors.TableWarning")
N = 40


def frame(**columns: Any) -> pandas.DataFrame:
    numbers = np.random.default_rng(0).standard_normal(N)
    usual = {"age": numbers, "sex": np.where(numbers > 0, "male", "female"), "y": np.where(numbers > 1, "yes", "no")}
    return pandas.DataFrame({**usual, **columns})


def net(n_features: int, n_outputs: int) -> aa.SequentialMLP:
    return aa.SequentialMLP(n_outputs, hidden_dim=4)


def fitted(table: Any, target: Any = "y", model: Any = net, **settings: Any) -> FittedModel:
    return aa.fit(model, table, target=target, epochs=1, progress="none", **settings)


def read_as_told(data: Any) -> Any:
    """The frame that the hint of an error reads; the code of it stands after `frame of`."""
    with pytest.raises(aa.errors.AnyaccelError) as error:
        fitted(data)
    code = str(error.value.hint).partition("frame of ")[2].partition(", with columns")[0]
    return eval(code)  # noqa: S307  (the code of the hint is what is tested)


def test_columns_that_tell_nothing(hint: Any) -> None:
    table = frame(name=[f"name {row}" for row in range(N)])
    with hint("take them as categories: categories={}"):
        fitted(table[["name", "y"]])
    assert fitted(table[["name", "y"]], categories=["name"]).columns["name"].n_categories == N
    table = frame(lists=[[1, 2], [3]] * (N // 2))
    with hint("leave it out, drop=[{}], or convert it to such columns first"):
        fitted(table)
    assert fitted(table, drop=["lists"]).columns


def test_text_that_is_something_else(hint: Any) -> None:
    table = frame(size=["12", "13", "7", "unknown"] * (N // 4), day=["3/4/2020", "5/12/2021"] * (N // 2))
    for name in ("size", "day"):
        with hint("{}; or take it as categories, categories=[{}]"):
            fitted(table[["age", name, "y"]])
    assert fitted(table, categories=["size", "day"]).columns["size"].n_categories == 4


# What a column holds, the numbers or dates in it, and what the hint must not make of it
TEXTS = {
    "plain": (["12", "7", "unknown"], [12, 7, None]),
    "thousands": (["1,234", "2,345.5", "17"], [1234, 2345.5, 17]),
    "decimal commas": (["31,3", "7,25", "1.234,5"], [31.3, 7.25, 1234.5]),
    "percent": (["12%", "7.5 %", "-3%"], [12, 7.5, -3]),
    "money": (["$1,200", "$7", "$8.50"], [1200, 7, 8.5]),
    "day first": (["31/12/2020", "1/2/2021", "3/2/2021"], ["2020-12-31", "2021-02-01", "2021-02-03"]),
    "month first": (["12/31/2020", "1/2/2021", "3/2/2021"], ["2020-12-31", "2021-01-02", "2021-03-02"]),
    "names of months": (["Jan 01, 2020", "2020-01-02", "3 Feb 2020"], ["2020-01-01", "2020-01-02", "2020-02-03"]),
    "two orders": (["2020-01-02", "13.1.2020", "later"], ["2020-01-02", "2020-01-13", None]),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_of_numbers_and_dates_is_read_by_the_code_of_the_hint(hint: Any, name: str) -> None:
    texts, expected = TEXTS[name]
    table = frame(a=np.resize(np.array(texts, object), N))
    with hint("read it as {}, table[{}] = {}"):
        fitted(table)
    with pytest.raises(aa.errors.ColumnError) as error:
        fitted(table)
    code = str(error.value.hint).partition(" = ")[2].partition("; or take it as categories")[0]
    values = eval(code, {"pandas": pandas, "table": table.iloc[:3]})  # noqa: S307  (the text of our own hint)
    wanted = pandas.to_datetime(pandas.Series(expected)) if isinstance(expected[0], str) else pandas.Series(expected)
    assert values.tolist()[:2] == wanted.tolist()[:2] and values.isna().tolist() == wanted.isna().tolist()
    table["a"] = eval(code, {"pandas": pandas, "table": table})  # noqa: S307
    assert fitted(table).columns["a"].kind == ("date" if isinstance(expected[0], str) else "number")


def test_dates_whose_order_is_not_known_say_so() -> None:
    with pytest.raises(aa.errors.ColumnError, match=r"dayfirst=False.*, with dayfirst=True if the day comes first"):
        fitted(frame(day=["3/4/2020", "5/6/2021"] * (N // 2)))
    days = pandas.Series(["3/4/2020"])
    assert pandas.to_datetime(days, format="mixed", dayfirst=True)[0].month == 4


def test_numbers_that_are_too_large(hint: Any) -> None:
    table = frame(big=np.linspace(1.0, 2.0, N) * 1e300)
    with hint("take their logarithm, or leave the column out: drop=[{}]"):
        fitted(table)
    assert fitted(table, drop=["big"]).columns and fitted(table.assign(big=np.log(table["big"]))).columns["big"]


def test_groups_by_their_values(hint: Any) -> None:
    table, values = frame(), np.arange(N) % 4
    with hint("add them to the table, table['COLUMN'] = values, and write {}='COLUMN'"):
        fitted(table, group=values, validation=0.25)
    table["COLUMN"] = values
    assert fitted(table, group="COLUMN", validation=0.25).columns["age"]


def test_rows_that_are_no_table(hint: Any) -> None:
    table = frame()[["age", "sex", "y"]]
    model = fitted(table)
    row = {"age": 22.0, "sex": "male"}
    with hint("pass a list of rows: [row]"):
        model.predict(row)
    expected = model.predict(table.assign(age=22.0, sex="male"))[:1]
    np.testing.assert_array_equal(model.predict([row]), expected)
    series = table["age"]
    with hint("write table.iloc[[0]] for a row, series.to_frame() for a column"):
        model.predict(table.iloc[0])
    np.testing.assert_array_equal(model.predict(table.iloc[[0]]), model.predict(table)[:1])
    assert len(fitted(table[["age"]].assign(y=table["y"])).predict(series.to_frame())) == N
    polars = pytest.importorskip("polars")
    frame_of_polars = polars.from_pandas(table).lazy()
    with hint("pass its result: frame.collect()"):
        fitted(frame_of_polars)
    assert fitted(frame_of_polars.collect()).columns["sex"]
    with hint("pass (x, y), or a frame: pandas.DataFrame(array, columns=[...])"):
        fitted(table[["age"]].to_numpy())
    assert fitted(pandas.DataFrame(np.eye(N)[:, :2], columns=["age", "y"]), loss="mse").columns["age"]
    x, y = table[["age"]].to_numpy(), np.arange(N)
    with hint("pass a tuple: (x, y)"):
        fitted([x, y], None)
    assert fitted((x, y), None).results.loss.size


def test_targets_of_text(hint: Any) -> None:
    table = frame(price=[f"{1000 + row:,}" for row in range(N)], name=[f"Mr. {row}" for row in range(N)])
    table = table.drop(columns="y")
    with hint("read it as numbers, table[{}] = {}; or write loss='cross_entropy', if each value is a class"):
        fitted(table, "price", drop=["name"])
    assert fitted(table, "price", drop=["name"], loss="cross_entropy").classes_.size == N
    with hint("name another target; or write loss='cross_entropy', if each value is a class"):
        fitted(table, "name", drop=["price"])
    assert fitted(table, "name", drop=["price"], loss="cross_entropy").classes_.size == N
    with hint("write loss='mse' for a number"):
        fitted(frame(), "age", loss="cross_entropy")
    assert fitted(frame(), "age", loss="mse").loss == aa.Loss("mse")
    table = frame()
    table.loc[3, "y"] = " "
    with hint("leave these rows out (pandas: {})"):
        fitted(table)
    assert fitted(table[table["y"].str.strip() != ""]).classes_.tolist() == ["no", "yes"]
    table.loc[3, "age"] = np.inf
    with hint("leave these rows out (pandas: {})"):
        fitted(table, "age")
    assert fitted(table[table["age"].abs() < float("inf")], "age").columns


def test_data_sets_of_scikit_learn(hint: Any) -> None:
    for bunch in (load_wine(), load_wine(as_frame=True)):
        with hint("pass its arrays as a pair: (bunch.data, bunch.target)"):
            fitted(bunch, "target")
        assert fitted((bunch.data, bunch.target), None).results.loss.size


def test_infinity(hint: Any) -> None:
    table = frame(ratio=[1.0, float("inf")] * (N // 2))
    with hint("replace them with missing values (pandas: table.replace([float('inf'), float('-inf')], float('nan')))"):
        fitted(table)
    finite = table.replace([float("inf"), float("-inf")], float("nan"))
    assert fitted(finite).columns["ratio"].n_missing == N // 2


def test_targets_of_tables(hint: Any) -> None:
    table = frame(price=[1.5, None] * (N // 2))
    with hint("leave these rows out (pandas: {})"):
        fitted(table, "price")
    assert fitted(table.dropna(subset=["price"]), "price").results.loss.size
    table = frame(when=pandas.date_range("2020-01-01", periods=N))
    with hint("convert it to numbers first (pandas: pandas.to_numeric(table[{}]))"):
        fitted(table, "when")
    assert fitted(table.assign(when=pandas.to_numeric(table["when"]).astype("float64")), "when").columns
    prices = pandas.arrays.ArrowExtensionArray(pyarrow.array([Decimal("1.5"), Decimal("2.25")] * (N // 2)))
    table = frame(price=prices)
    with hint("convert it to floats first (pandas: table[{}].astype(float); polars: pl.col({}).cast(float))"):
        fitted(table, "price")
    assert fitted(table.assign(price=table["price"].astype(float)), "price").columns
    polars = pytest.importorskip("polars")
    of_polars = polars.DataFrame({"age": np.arange(N), "price": [Decimal("1.5"), Decimal("2.25")] * (N // 2)})
    assert fitted(of_polars.with_columns(polars.col("price").cast(float)), "price").results.loss.size
    with hint("leave it out of features=, or predict another column than target={}"):
        fitted(table, features=["age", "y"])
    assert fitted(table, features=["age"], target="y").columns
    assert fitted(frame(one=np.arange(N) / 2, two=np.arange(N)), ["one", "two"], loss="mse").columns
    torch = pytest.importorskip("torch")

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(1, 3)

        def forward(self, x: Any) -> dict[str, Any]:
            values = self.line(x)
            return {"one": values[:, 0], "y": values[:, 1:]}

    with hint("write loss={}, for a model that returns a dict of these names"):
        fitted(frame(one=1.5), ["one", "y"], Both(), features=["age"])
    losses = {"one": "mse", "y": "cross_entropy"}
    table = frame(one=np.arange(N) / 2)
    assert fitted(table, ["one", "y"], Both(), features=["age"], loss=losses).predict(table)["y"].shape == (N,)


def test_rows_to_predict_for(hint: Any, tmp_path: Path) -> None:
    table = frame(alone=[True, False] * (N // 2), day=pandas.date_range("2020-01-01", periods=N))
    model = fitted(table)
    with hint("convert them to numbers first (pandas: {})"):
        model.predict(table.assign(age="old"))
    aged = table.assign(age="12")
    assert len(model.predict(aged.assign(age=pandas.to_numeric(aged["age"], errors="coerce")))) == N
    answered = table.assign(alone=np.where(table["alone"], "Y", "N"))
    with hint("convert them to booleans first (pandas: table[{}].map({}))"):
        model.predict(answered)
    read = answered.assign(alone=answered["alone"].map({"Y": True, "N": False}))
    np.testing.assert_array_equal(model.predict(read), model.predict(table))
    with hint("convert them to text as in training (pandas: table[{}].astype(str), or read_csv with dtype={{}: str})"):
        model.predict(table.assign(sex=1))
    coded = table.assign(sex=1)
    assert len(model.predict(coded.assign(sex=coded["sex"].astype(str)))) == N
    coded.to_csv(tmp_path / "coded.csv", index=False)
    assert len(model.predict(pandas.read_csv(tmp_path / "coded.csv", dtype={"sex": str}, parse_dates=["day"]))) == N
    with hint("convert them to dates first (pandas: {})"):
        model.predict(table.assign(day="Monday"))
    written = table.assign(day="2020-01-05 10:00")
    assert len(model.predict(written.assign(day=pandas.to_datetime(written["day"])))) == N


def test_arguments_of_tables(hint: Any) -> None:
    table = frame()[["age", "y"]]
    with hint("leave preprocess= out"):
        fitted(table, preprocess=None, drop=["age"])
    assert fitted(frame(), drop=["sex"]).columns["age"]
    untreated = fitted(table, model=net(1, 2))
    with hint("see graph for the data, and fit(..., preprocess=) for treatments"):
        _ = untreated.columns
    assert untreated.graph.feature_sets
    assert aa.fit(net, table, target="y", preprocess="auto", epochs=1, progress="none").columns["age"]
    with hint("write embed=[{}]"):
        fitted(frame(), embed="sex")
    assert fitted(frame(), embed=["sex"]).columns["sex"].treatment.startswith("code")
    with hint("write preprocess='auto'"):
        fitted(frame(), preprocess="encode")
    assert fitted(frame(), preprocess="auto").columns["sex"]
    with hint("write scaler={}, which scales all features together"):
        fitted(frame(), preprocess="standard")
    assert fitted(frame(), scaler="standard").columns["sex"]
    with hint("leave preprocess= out to encode them, or name the other columns: features={}"):
        fitted(frame(), preprocess=None)
    assert fitted(frame()).columns["sex"] and fitted(frame(), preprocess=None, features=["age"]).predict(frame()).size
    scaler = StandardScaler()
    with hint("leave categories= and embed= out, or write preprocess='auto'"):
        fitted(table, preprocess=scaler, categories=["age"])
    assert fitted(table, preprocess=scaler) and fitted(frame(), preprocess="auto", categories=["age"], embed=True)
    data = aa.FeatureSet.from_dict("data", {"age": table["age"], "y": np.arange(N) % 2}, ["age"], ["y"])
    with hint("pass a data frame, a mapping of arrays, or the path of a file"):
        fitted(data, None, net(1, 2), categories=["age"])
    with hint("name the features in a list, or transform the columns first"):
        fitted(table, features={"x": ["age"]}, drop=["age"])
    assert fitted(table, features=["age"]).columns["age"]


def test_models_and_losses_of_tables(hint: Any) -> None:
    torch = pytest.importorskip("torch")
    table = frame()
    with hint(
        "change the first layer to {} inputs, or pass a function that creates the model: lambda n_features, "
        "n_outputs: MODEL"
    ):
        fitted(table, model=torch.nn.Linear(7, 2))
    assert fitted(table, model=torch.nn.Linear(3, 2)).columns
    assert fitted(table, model=lambda n_features, n_outputs: torch.nn.Linear(n_features, n_outputs)).columns
    with hint("pass rows of all classes"):
        fitted(table.assign(y="yes"))
    with hint("convert it to one type (pandas: table[{}].astype(str)), or leave it out, drop=[{}]"):
        fitted(table.assign(mixed=[1, "a"] * (N // 2)))
    mixed = table.assign(mixed=[1, "a"] * (N // 2))
    assert fitted(mixed.assign(mixed=mixed["mixed"].astype(str)), categories=["mixed"]) and fitted(
        mixed, drop=["mixed"]
    )
    holed = {"age": np.where(np.arange(N) % 9, table["age"], np.nan), "price": table["age"]}
    with (
        hint("fill these places, or leave the rows out; on_nan='ignore' returns the model anyway"),
        pytest.warns(aa.errors.NaNWarning),
    ):
        fitted(holed, "price", net(1, 1), preprocess=None)
    kept = fitted(holed, "price", net(1, 1), preprocess=None, on_nan="ignore")
    assert np.isnan(kept.results.loss).all()
    far = {"age": np.linspace(1, 2, N) * 1e15, "price": np.linspace(1, 2, N)}
    diverging = {"model": torch.nn.Linear(1, 1), "loss": "mse", "optimizer": aa.Optimizer("sgd", lr=1.0)}
    with (
        hint(
            "lower lr, optimizer=Optimizer('adam', lr=1e-4), or scale large numbers, scaler='standard'; "
            "on_nan='ignore' returns the model anyway"
        ),
        pytest.warns(aa.errors.NaNWarning),
    ):
        fitted(far, "price", **diverging)
    model = torch.nn.Linear(1, 1)
    scaled = fitted(far, "price", model, loss="mse", scaler="standard", optimizer=aa.Optimizer("adam", lr=1e-4))
    assert np.isfinite(scaled.results.loss).all()
    assert fitted(far, "price", **diverging, on_nan="ignore").results.loss.size
    with hint(
        "change the last layer to {} outputs, or pass a function that creates the model: lambda n_features, "
        "n_outputs: MODEL"
    ):
        fitted(table, model=torch.nn.Linear(3, 5))
    assert fitted(table, model=torch.nn.Linear(3, 2)).classes_.tolist() == ["no", "yes"]
    assert fitted(table, model=lambda n_features, n_outputs: torch.nn.Linear(n_features, n_outputs)).classes_.size == 2
    rows = torch.utils.data.TensorDataset(torch.rand(8, 3), torch.arange(8) % 2)
    loader = torch.utils.data.DataLoader(rows, batch_size=4)
    streamed = {"model": torch.nn.Linear(3, 2), "loss": "cross_entropy"}
    with hint("leave batch_size out, and set the size where you create the batches"):
        fitted(loader, None, **streamed, batch_size=2)
    assert fitted(loader, None, **streamed).results.loss.size
    assert fitted(loader, None, **streamed, batch_size=4).results.loss.size


def test_transformers_of_tables(hint: Any, tmp_path: Path) -> None:
    table = frame(size=[1.0, None] * (N // 2))
    with hint("name its columns: make_column_transformer((StandardScaler(), ['COLUMN']), ...)"):
        fitted(table, preprocess=StandardScaler())
    texts = table[["sex", "y"]].assign(sex=[None, *table["sex"][1:]])
    for listed in (CountVectorizer(), make_column_transformer((make_pipeline(CountVectorizer()), ["sex"]))):
        with hint("give it one column, by its name without a list: make_column_transformer(({}(), 'COLUMN'))"):
            fitted(texts.fillna({"sex": ""}), preprocess=listed)
        assert fitted(
            texts.fillna({"sex": ""}), preprocess=make_column_transformer((CountVectorizer(), "sex"))
        ).columns["sex"]
    words = make_column_transformer((CountVectorizer(), "sex"))
    with hint("fill in missing values first: table.fillna({'COLUMN': ''})"):
        fitted(texts, preprocess=words)
    counted = fitted(texts.fillna({"sex": ""}), preprocess=words)
    with hint("fill in missing values first: table.fillna({'COLUMN': ''})"):
        counted.predict(texts)
    assert len(counted.predict(texts.fillna({"sex": ""}))) == N
    scaled = make_column_transformer((StandardScaler(), ["age"]), ("drop", ["sex", "size"]))
    assert fitted(table, preprocess=scaled).columns["age"]
    with hint("put SimpleImputer() last: make_pipeline(TRANSFORMER, SimpleImputer())"):
        fitted(table[["age", "size", "y"]], preprocess=StandardScaler())
    imputed = make_pipeline(StandardScaler(), SimpleImputer())
    assert fitted(table[["age", "size", "y"]], preprocess=imputed).columns["size"]
    with hint("encode text and dates in it, for example with OneHotEncoder() in a ColumnTransformer"):
        fitted(table[["sex", "y"]], preprocess=FunctionTransformer())
    one_hot = fitted(table[["sex", "y"]], preprocess=ColumnTransformer([("sex", OneHotEncoder(), ["sex"])]))
    with hint("fit it to accept such values, for example OneHotEncoder(handle_unknown='ignore')"):
        one_hot.predict(table.assign(sex="other"))
    tolerant = fitted(table[["sex", "y"]], preprocess=OneHotEncoder(handle_unknown="ignore"))
    assert len(tolerant.predict(table.assign(sex="other"))) == N
    with hint("write preprocess='auto', or use such transformers: FunctionTransformer(numpy.log1p)"):
        fitted(table[["age", "y"]], preprocess=FunctionTransformer(lambda age: age / 9)).save(tmp_path / "functions")
    fitted(table[["age", "y"]], preprocess="auto").save(tmp_path / "auto")
    positive = table.assign(age=table["age"].abs())[["age", "y"]]
    logs = fitted(positive, preprocess=make_pipeline(SimpleImputer(), FunctionTransformer(np.log1p)))
    logs.save(tmp_path / "logs")
    assert np.array_equal(aa.load(tmp_path / "logs").predict(positive), logs.predict(positive))
    best = fitted(table[["age", "y"]], preprocess=make_pipeline(SimpleImputer(), SelectKBest(k=1)))
    best.save(tmp_path / "best")
    assert np.array_equal(aa.load(tmp_path / "best").predict(table), best.predict(table))
    fitted(table, preprocess=scaled).save(tmp_path / "scaled")
    assert len(aa.load(tmp_path / "scaled").predict(table)) == N


class DropsRows:
    """A transformer that leaves rows out."""

    def fit(self, frame: Any, y: Any = None) -> DropsRows:
        return self

    def transform(self, frame: Any) -> Any:
        return frame.to_numpy()[1:]


def test_transformers_that_drop_rows(hint: Any) -> None:
    with hint("name columns in it, or keep the others: ColumnTransformer(..., remainder='passthrough')"):
        fitted(frame()[["age", "y"]], preprocess=ColumnTransformer([], remainder="drop"))
    assert fitted(frame()[["age", "y"]], preprocess=ColumnTransformer([], remainder="passthrough"))
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    with hint("leave its last step out, which is no transform: pipeline[:-1]"):
        fitted(frame()[["age", "y"]], preprocess=pipeline)
    assert fitted(frame()[["age", "y"]], preprocess=pipeline[:-1])
    with hint("use a transformer that keeps all rows"):
        fitted(frame()[["age", "y"]], preprocess=DropsRows())
    assert fitted(frame()[["age", "y"]], preprocess=StandardScaler())


def test_times_with_and_without_a_zone(hint: Any) -> None:
    days = pandas.date_range("2020-01-01", periods=N, freq="7h")
    aware = frame(day=days.tz_localize("Europe/Berlin"))
    model = fitted(aware)
    with hint("name their zone (pandas: {}.dt.tz_localize({}))"):
        model.predict(frame(day=days))
    named = frame(day=pandas.to_datetime(frame(day=days)["day"]).dt.tz_localize("Europe/Berlin"))
    np.testing.assert_array_equal(model.predict_proba(named), model.predict_proba(aware))
    model = fitted(frame(day=days))
    with hint(
        "leave the zone out (pandas: {}.dt.tz_localize(None) keeps the hours of the clock, dt.tz_convert(None) takes "
        "those of UTC)"
    ):
        model.predict(aware)
    without = frame(day=pandas.to_datetime(aware["day"]).dt.tz_localize(None))
    np.testing.assert_array_equal(model.predict_proba(without), model.predict_proba(frame(day=days)))
    of_utc = frame(day=pandas.to_datetime(aware["day"]).dt.tz_convert(None))
    assert not np.array_equal(model.predict_proba(of_utc), model.predict_proba(without))


def test_times_of_which_some_have_a_zone(hint: Any) -> None:
    times = [pandas.Timestamp("2020-01-02 12:00"), pandas.Timestamp("2020-01-03 12:00", tz="Europe/Berlin")]
    table = frame(when=pandas.Series(times * (N // 2), dtype=object))
    with hint("convert it to one type (pandas: pandas.to_datetime(table[{}], utc=True))"):
        fitted(table)
    table["when"] = pandas.to_datetime(table["when"], utc=True)
    assert fitted(table).columns["when"].kind == "date"


def test_columns_of_pandas_alone(hint: Any) -> None:
    months = pandas.period_range("2020", periods=N, freq="M")
    table = frame(month=months, bin=pandas.arrays.IntervalArray(pandas.cut(frame()["age"], 3)))
    for name in ("month", "bin"):
        with hint("convert it first (pandas: table[{}]{}), or leave it out, drop=[{}]"):
            fitted(table[["age", name, "y"]])
    table = table.assign(month=table["month"].dt.to_timestamp(), bin=table["bin"].astype("category"))
    columns = fitted(table).columns
    assert columns["month"].kind == "date" and columns["bin"].n_categories == 3
    assert fitted(frame(month=months), drop=["month"])


def test_columns_that_are_the_index(hint: Any) -> None:
    table = frame(group=np.arange(N) % 5)
    for name, settings in (("y", {}), ("group", {"group": "group", "validation": 0.2})):
        with hint("make it a column (pandas: table.reset_index())"):
            fitted(table.set_index(name), **settings)
        assert fitted(table.set_index(name).reset_index(), **settings)


def test_several_tables_by_name(hint: Any) -> None:
    data = {"train": frame(), "test": frame()}
    with hint("pass one: fit(model, data[{}], validation=data[{}], ...)"):
        fitted(data)
    fit = functools.partial(aa.fit, target="y", epochs=1, progress="none")
    assert fit(net, data["train"], validation=data["test"]).results.figure("val_loss").size
    dataset = pyarrow.dataset.dataset(pyarrow.Table.from_pandas(frame()))
    with hint("pass its table: dataset.to_table()"):
        fitted(dataset)
    assert fitted(dataset.to_table()).columns


def test_numbers_that_stand_for_missing_values(hint: Any) -> None:
    numbers = frame()["age"].where(np.arange(N) % 9 > 0, -999)
    with pytest.warns(
        TableWarning, match=r"'age' \(-999 in 5 rows\).*table\.replace\({'age': {-999: float\('nan'\)}}\)"
    ):
        fitted(frame(age=numbers))
    table = frame(age=numbers).replace({"age": {-999: float("nan")}})
    assert fitted(table).columns["age"].n_missing == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(frame(age=np.arange(N) % 30 * 4 - 20, size=np.where(np.arange(N) % 2, 99.0, frame()["age"] * 50)))


def test_arrays_of_objects(hint: Any) -> None:
    x, y = frame()[["age", "sex"]].to_numpy(), frame()[["y"]].to_numpy()
    for array in (x, x.astype(str), np.where(x == x[0, 0], None, 1.0)):
        with hint("pass a frame: pandas.DataFrame({}).add_prefix('COLUMN')"):
            fitted((array, y.ravel()), None)
    with hint("pass {}.ravel()"):
        fitted((frame()[["age"]], y), None)
    named = fitted((pandas.DataFrame(x).add_prefix("COLUMN"), y.ravel()), None)
    assert named.columns["COLUMN0"].kind == "number" and named.columns["COLUMN1"].kind == "category"


def test_numbers_of_two_parts(hint: Any) -> None:
    values = np.exp(1j * np.arange(N))
    with hint("make a column of each part, values.real and values.imag"):
        fitted(frame(wave=values))
    assert len(fitted(frame(real=values.real, imag=values.imag)).columns) == 4


def test_files_that_pandas_reads(hint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = frame().assign(sex=lambda rows: rows.sex == "male")
    expected = fitted(table).predict(table)
    monkeypatch.chdir(tmp_path)
    table.to_csv("t.csv", index=False, sep=";", decimal=",")
    with hint("pass the frame of pandas.read_csv({}, sep={}{})"):
        fitted("t.csv")
    np.testing.assert_array_equal(fitted(pandas.read_csv("t.csv", sep=";", decimal=",")).predict(table), expected)
    Path("t.csv").write_text("People\n" + table.to_csv(index=False), encoding="utf-8")
    with hint("pass the frame of pandas.read_csv({}, skiprows={})"):
        fitted("t.csv")
    np.testing.assert_array_equal(fitted(pandas.read_csv("t.csv", skiprows=1)).predict(table), expected)
    table.to_csv("t.csv", index=False, compression="gzip")
    with hint("pass the frame of pandas.{}"):
        fitted("t.csv")
    np.testing.assert_array_equal(fitted(pandas.read_csv("t.csv", compression="gzip")).predict(table), expected)


def test_files_of_spaces_and_without_a_header(hint: Any, tmp_path: Path) -> None:
    table = frame()
    expected = fitted(table).predict(table)
    for name in ("t.txt", "t.tsv"):
        table.to_csv(tmp_path / name, index=False, sep=" ")
        with hint("pass the frame of pandas.read_csv({}, sep={})"):
            fitted(tmp_path / name)
        np.testing.assert_array_equal(fitted(pandas.read_csv(tmp_path / name, sep=r"\s+")).predict(table), expected)
        np.testing.assert_array_equal(fitted(read_as_told(tmp_path / name)).predict(table), expected)
    for name, separator in (("h.csv", ","), ("h.tsv", "\t")):
        table.to_csv(tmp_path / name, index=False, header=False, sep=separator)
        with hint(
            "pass the frame of pandas.read_csv({}{}, header=None).add_prefix('column'), with columns column0 to "
            "column{}; or of pandas.read_csv({}{}), if it is a header"
        ):
            fitted(tmp_path / name)
        read = pandas.read_csv(tmp_path / name, sep=separator, header=None).add_prefix("column")
        pandas.testing.assert_frame_equal(read_as_told(tmp_path / name), read)
        np.testing.assert_array_equal(fitted(read, "column2").predict("all"), expected)
    with pytest.warns(TableWarning, match=r"are like the rows: if the file has no header, .*header=None"):
        fitted(pandas.read_csv(tmp_path / "h.csv"), table["y"][0])


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("t.tsv.gz", lambda table, path: table.to_csv(path, index=False, sep="\t")),
        ("t.csv.bz2", lambda table, path: table.to_csv(path, index=False)),
        ("t.JSONL", lambda table, path: table.to_json(path, orient="records", lines=True)),
        ("t.json.gz", lambda table, path: table.to_json(path)),
        ("t.v2.data", lambda table, path: table.to_csv(path, index=False)),
    ],
)
def test_the_call_that_reads_another_kind_of_file(name: str, write: Any, tmp_path: Path) -> None:
    table = frame()
    write(table, tmp_path / name)
    read = read_as_told(tmp_path / name)
    np.testing.assert_array_equal(fitted(read).predict(table), fitted(table).predict(table))


def test_tables_that_are_no_path(hint: Any, tmp_path: Path) -> None:
    table = frame()
    text = table.to_csv(index=False)
    expected = fitted(table).predict(table)
    with hint("write the text to a file, or pass the frame of pandas.read_csv(io.StringIO(text))"):
        fitted(text)
    np.testing.assert_array_equal(fitted(pandas.read_csv(io.StringIO(text))).predict(table), expected)
    file = io.StringIO(text)
    with hint("pass its path, or the frame of pandas.read_csv(file)"):
        fitted(file)
    np.testing.assert_array_equal(fitted(pandas.read_csv(file)).predict(table), expected)
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path, rows in zip(paths, (table[:20], table[20:]), strict=True):
        rows.to_csv(path, index=False)
    with hint("pass the frame of pandas.concat(map(pandas.read_csv, paths), ignore_index=True)"):
        fitted(paths)
    joined = pandas.concat(map(pandas.read_csv, paths), ignore_index=True)
    np.testing.assert_array_equal(fitted(joined).predict(table), expected)
    with hint(
        "pass the frame of pandas.concat([pandas.read_csv(path{}) for path in sorted(pathlib.Path({}).rglob({}))], "
        "ignore_index=True)"
    ):
        fitted(tmp_path)
    np.testing.assert_array_equal(fitted(read_as_told(tmp_path)).predict(table), expected)
    for path in paths:
        path.write_text(path.read_text("utf-8").replace(",", "\t"), "utf-8")
        path.rename(path.with_suffix(".tsv"))
    joined = pandas.concat(
        [pandas.read_csv(path, sep="\t") for path in sorted(pathlib.Path(tmp_path).rglob("*.tsv"))], ignore_index=True
    )
    np.testing.assert_array_equal(fitted(joined).predict(table), expected)
    np.testing.assert_array_equal(fitted(read_as_told(tmp_path)).predict(table), expected)


def test_targets_by_position_and_as_columns(hint: Any) -> None:
    table = frame()
    with hint("write target={}"):
        fitted(table, 2)
    assert fitted(table, target="y").classes_.tolist() == ["no", "yes"]
    x, y = table[["age"]].to_numpy(), (table[["age"]].to_numpy() > 0).astype(int)
    with hint("if {} holds classes, pass {}.ravel(); else give the model 1 output"):
        aa.fit(aa.SequentialMLP(2), (x, y), epochs=1, progress="none")
    assert aa.fit(aa.SequentialMLP(2), (x, y.ravel()), epochs=1, progress="none").classes_.tolist() == [0, 1]
    assert aa.fit(aa.SequentialMLP(1), (x, y), epochs=1, progress="none").predict(x).shape[0] == N


def test_losses_that_are_not_scaled(hint: Any) -> None:
    with hint("write precision='fp16-mixed', or leave loss_scale out"):
        fitted(frame(), loss_scale=64.0)
    assert fitted(frame()).phase is not None
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(1, 2)
    table = frame()[["age", "y"]]
    scaled = aa.fit(model, table, target="y", epochs=1, progress="none", precision="fp16-mixed", loss_scale=64.0)
    assert scaled.phase is not None and scaled.phase.loss_scale.initial == 64
