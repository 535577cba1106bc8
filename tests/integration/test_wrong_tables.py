"""Wrong and odd input of `fit` and of what it returns, as a new user types it: each has a stated behaviour.

A message says what is wrong with the value and the name that were typed, and what to do; a warning says what was done.
What the hints say is followed by the tests of tests/hints.
"""

from __future__ import annotations

import gzip
import io
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import AnyaccelError, NaNWarning, TableWarning

pandas = pytest.importorskip("pandas")
torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
from sklearn.compose import ColumnTransformer  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

N = 120
X = np.random.default_rng(0).random((N, 2)).astype("float32")


def table(**columns: Any) -> Any:
    rng = np.random.default_rng(0)
    numbers = {"age": rng.normal(30, 10, N).round(1), "fare": rng.exponential(30, N)}
    texts = {"sex": rng.choice(["male", "female"], N), "port": rng.choice(["S", "C", "Q"], N)}
    frame = pandas.DataFrame({**numbers, **texts})
    frame["survived"] = ((frame.sex == "female") | (frame.fare > 60)).astype(int)
    return frame.assign(**columns)


def net(width: int = 2, outputs: int = 1) -> Any:
    return torch.nn.Linear(width, outputs)


def fit(data: Any, target: Any = "survived", model: Any = "mlp", **settings: Any) -> Any:
    framework = {"framework": "numpy"} if model == "mlp" else {}
    return aa.fit(model, data, **{"target": target, "epochs": 1, "progress": "none", **framework, **settings})


def holed(column: str, value: Any) -> Any:
    frame = table(late=["yes", "no"] * (N // 2))
    frame.loc[3, column] = value
    return frame


class Named(torch.nn.Module):
    """A model that returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(2, 2)

    def forward(self, x: Any) -> dict[str, Any]:
        return {"logits": self.line(x), "hidden": x}


class Width(torch.nn.Module):
    """A model whose class takes no widths."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(7, 2)


TWO = table()[["age", "fare", "survived"]]
BOTH = pandas.concat([table(), table()[["age"]]], axis=1)
DAYS = pandas.date_range("2020-01-01", periods=N)
NAN = np.where(np.arange(N) == 3, np.nan, X[:, 0])
ROWS = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.arange(N) % 2)
LOADER = torch.utils.data.DataLoader(ROWS, batch_size=8)
ALONE = 3  # a seed with which the only row of a class is validated
SPLIT = make_pipeline(StandardScaler(), LogisticRegression())

# what was typed, the call, and what is said
ASKED: dict[str, tuple[Callable[[], Any], str]] = {
    # tables
    "no row": (lambda: fit(table().iloc[:0]), "'data' has no rows"),
    "one row": (lambda: fit(table().iloc[:1]), "the target 'survived' is . in all 1 row: with one class"),
    "one class": (lambda: fit(table(survived=1)), "is 1 in all 120 rows: with one class there is nothing to learn"),
    "a missing class": (
        lambda: fit(holed("late", None), "late"),
        "the target 'late' has no value in 1 of 120 rows, .* 3",
    ),
    "an empty class": (
        lambda: fit(holed("late", " "), "late"),
        "the target 'late' is an empty text in 1 of 120 rows, .* 3",
    ),
    "a missing number": (lambda: fit(holed("fare", np.nan), "fare"), "the target 'fare' has no value in 1 of 120 rows"),
    "an infinite target": (
        lambda: fit(holed("fare", np.inf), "fare"),
        "the target 'fare' is infinite in 1 of 120 rows",
    ),
    "mixed types": (lambda: fit(table(mixed=[1, "a"] * 60)), "'mixed' has values of several types: number in 60 rows"),
    "numbers with commas": (
        lambda: fit(table(n=[f"{1000 + row:,}" for row in range(N)])),
        r"str\.replace\('\[, \]', ''",
    ),
    "percent": (lambda: fit(table(n=[f"{row}%" for row in range(N)])), r"'n' is text, and 100% .* look like numbers"),
    "dates in text": (lambda: fit(table(day=DAYS.strftime("%d/%m/%Y"))), "format='mixed', dayfirst=True"),
    "infinity": (lambda: fit(holed("age", np.inf)), "'age' is infinite in 1 of 120 rows, the first in row 3"),
    "huge numbers": (lambda: fit(table(big=X[:, 0].astype("f8") * 1e300)), r"'big' has numbers up to .*e\+"),
    "lists": (lambda: fit(table(lists=[[1], [1, 2]] * 60)), "'lists' is list.*, which fit cannot use as features"),
    "two columns of a name": (lambda: fit(BOTH), "the table has 2 columns called 'age'"),
    "no feature varies": (lambda: fit(table(age=1.0)[["age", "survived"]]), "no feature is left"),
    "unlike lengths": (
        lambda: fit({"x": [1.0, 2.0], "y": [1.0]}, "y"),
        "columns of 'data' differ in length; x: 2, y: 1",
    ),
    "a series": (lambda: fit(table().age), "a Series is a single column or row, not a table"),
    "an array": (lambda: fit(X), r"an array of shape \[120, 2\] has no names of columns"),
    "a list of x and y": (lambda: fit([X, X[:, 0]], None), r"a list \[x, y\] is a list of batches.*a tuple: \(x, y\)"),
    "unlike rows": (lambda: fit((X, X[:9, 0]), None, net()), "columns of 'data' differ in length; x: 120, y: 9"),
    "a URL": (lambda: fit("https://example.com/t.csv"), "there is no file 'https://example.com/t.csv'"),
    "a workbook": (
        lambda: fit("t.xlsx"),
        r"'t\.xlsx' is not a table that can be read.*pandas\.read_excel\('t\.xlsx'\)",
    ),
    "the text of a file": (
        lambda: fit(table().to_csv(index=False)),
        r"a text of 121 lines, .*read_csv\(io\.StringIO\(text\)\)",
    ),
    "an open file": (lambda: fit(io.StringIO("a,survived\n1,0\n")), r"a StringIO is an open file.*read_csv\(file\)"),
    "several files": (lambda: fit(["a.csv", "b.csv"]), r"a list of 2 paths .*pandas\.concat\(map\(pandas\.read_csv"),
    # columns
    "no target": (lambda: fit(table(), None), "needs the name of the target.*columns: age, fare, sex"),
    "a typo": (lambda: fit(table(), "Survived"), "no column 'Survived'.*did you mean 'survived'"),
    "the answer as a feature": (
        lambda: fit(table(), features=["age", "survived"]),
        "'survived' is both a feature and the target",
    ),
    "features with a typo": (lambda: fit(table(), features=["age", "fair"]), "no column 'fair'.*did you mean 'fare'"),
    "all dropped": (lambda: fit(TWO, drop=["age", "fare"]), "'data' has no feature"),
    "the target dropped": (
        lambda: fit(table(), drop=["survived"]),
        "'survived' is the target, but is also named in drop=",
    ),
    "a target of names": (
        lambda: fit(table(n=[f"Mr. {i}" for i in range(N)]), "n"),
        "120 different values in 120 rows, too",
    ),
    "a target of numbers in text": (
        lambda: fit(table(n=[f"{i},5" for i in range(N)]), "n"),
        "look like numbers, such as",
    ),
    "a target of dates": (lambda: fit(table(day=DAYS), "day"), "is timestamp.*, which is neither a number nor a class"),
    "no encoding": (
        lambda: fit(table(), preprocess=None, model=net()),
        "'sex', 'port' are not numbers, but preprocess=None",
    ),
    # losses and models
    "mse for text": (lambda: fit(holed("late", "no"), "late", loss="mse"), "compares numbers; row 0 has 'yes'"),
    "classes for numbers": (lambda: fit(table(), "fare", loss="cross_entropy"), "'fare' has .* in row 0, but the loss"),
    "a loss of Keras": (
        lambda: fit(TWO, model=net(), loss="sparse_categorical_crossentropy"),
        "'cross_entropy', which takes",
    ),
    "logloss": (
        lambda: fit(TWO, model=net(), loss="logloss"),
        "no loss is called 'logloss'.*'cross_entropy', which takes",
    ),
    "two outputs for a number": (lambda: fit((X, X[:, 0]), None, net(2, 2), loss="mse"), "give the model 1 output"),
    "three outputs for two": (
        lambda: fit(table()[["age", "fare", "sex"]], "sex", net(2, 3)),
        "has 2 classes, .* has 3 out",
    ),
    "labels from 1": (lambda: fit((X, 1 + np.arange(N) % 2), None, net(2, 2)), "class index 2; .*subtract 1"),
    "labels of -1": (
        lambda: fit((X, np.arange(N) % 2 * 2 - 1), None, net(2, 2)),
        r"class index -1; .*np\.unique\(values",
    ),
    "another width": (lambda: fit(table(), model=net(4, 2)), "change the first layer to 7 inputs"),
    "a class": (
        lambda: fit(table(), model=Width),
        r"the class Width does not accept the widths.*pass a model, Width\(\)",
    ),
    "a name in capitals": (
        lambda: aa.fit("MLP", table(), target="survived"),
        "no model called 'MLP'.*did you mean 'mlp'",
    ),
    "an estimator": (
        lambda: fit(TWO, model=LogisticRegression()),
        "a LogisticRegression is an estimator that learns in one call",
    ),
    "several outputs": (
        lambda: fit(TWO, model=Named()),
        r"AppliedLoss\('cross_entropy', inputs=\['outputs.logits', 'targ",
    ),
    "frozen": (lambda: fit(TWO, model=net(2, 2).requires_grad_(False)), r"trained parameters: 0\)"),
    "channels last": (
        lambda: fit((np.zeros((8, 9, 9, 3), "f4"), np.arange(8) % 2), None, torch.nn.Conv2d(3, 2, 9)),
        "store images channels first",
    ),
    "NaN in an array": (
        lambda: fit((X, NAN), None, net()),
        "'y' is NaN or infinite in 1 of 120 rows; the first is row 3",
    ),
    "classes in a column": (
        lambda: fit((X, (np.arange(N) % 2)[:, None]), None, net(2, 2)),
        r"integers of shape \[n, 1\] are taken as numbers.*if 'y' holds classes, pass y\.ravel\(\)",
    ),
    "complex numbers": (lambda: fit(table(wave=X[:, 0] + 1j)), "'wave' .* complex64.*values.real and values.imag"),
    "a complex target": (lambda: fit((X, X[:, 0] + 1j), None, net()), "'y' .* complex64.*values.real and values.imag"),
    # settings
    "a sampler by column": (
        lambda: fit(TWO, model=net(2, 2), sampler={"age": 4}),
        "sampler for 'age'; its keys are labels of feature sets.*'data'.*write batch_size=32",
    ),
    "validations of nothing": (lambda: fit(table(), validate_every=5), "validate_every=5 but no validation.*=0.2"),
    "scaled losses in 32 bits": (
        lambda: fit(TWO, model=net(2, 2), loss_scale=64.0),
        "loss_scale=64.0, but losses are scaled only in fp16-mixed.*write precision='fp16-mixed'",
    ),
    "the target's position": (
        lambda: fit(table(), -1),
        "target=-1 is a position.*columns: age, fare.*write target='survived'",
    ),
    "half of all": (lambda: fit(table(), validation=1.5), r"validation=1\.5 is not a share of the rows"),
    "other columns": (
        lambda: fit(table(), validation=TWO),
        "2 columns are missing that the model was trained with: 'sex'",
    ),
    "other classes": (
        lambda: fit(table(), "port", validation=table(port="X")),
        "the class 'X' was not among the fitted classes",
    ),
    "epochs in text": (lambda: fit(table(), epochs="10"), "epochs='10' is not an int of at least 0"),
    "lr": (lambda: fit(table(), lr=1e-3), r"no argument 'lr'. Hint: .* optimizer=Optimizer\('adam', lr=1e-3\)"),
    "x and y": (lambda: aa.fit("mlp", X, X[:, 0]), r"pass x and y as a pair: \(x, y\)"),
    "verbose": (lambda: fit(table(), verbose=0), "no argument 'verbose'. Hint: write progress='none'"),
    "an unknown metric": (lambda: fit(table(), validation=0.2, metrics=["acc."]), "no metric is called 'acc.'"),
    "a metric of classes": (
        lambda: fit(TWO, "fare", validation=0.2, metrics="accuracy"),
        "metrics of numbers are 'r2'",
    ),
    "weights of an unknown class": (
        lambda: fit(table(), class_weights={"1": 2.0}),
        "'1', which is not a class of 'survived'",
    ),
    "weights of numbers": (
        lambda: fit(table(), "fare", class_weights="balanced"),
        "the loss 'mse' has no classes",
    ),
    "five weights": (lambda: fit(table(), sample_weight=np.ones(5)), r"shape \[5\] has no weight for each of 120 rows"),
    "negative weights": (lambda: fit(table(w=-1.0), sample_weight="w"), "'w' has 120 weights .* negative"),
    "groups by value": (lambda: fit(table(), group=np.arange(N), validation=0.2), "group= is the name of a column"),
    "a target by value": (lambda: fit(TWO, target=TWO.survived), "target= is the name of a column"),
    "metrics by name": (
        lambda: fit(TWO, validation=0.2, metrics={"f1": "accuracy"}),
        r"metrics must be a list, got a dict.*Metric\('accuracy', label='f1'\)",
    ),
    "a file of validation that is not there": (
        lambda: fit(TWO, validation="nowhere.csv"),
        "there is no file 'nowhere.csv'",
    ),
    "groups of nothing": (lambda: fit(table(), group="port"), "group= and validation=None, but no fraction"),
    "a loader and a size": (
        lambda: fit(LOADER, None, net(2, 2), loss="cross_entropy", batch_size=9),
        "batches of 8 rows",
    ),
    "a classifier at the end": (lambda: fit(TWO, preprocess=SPLIT), r"leave its last step out.*pipeline\[:-1\]"),
    "nothing is left": (lambda: fit(TWO, preprocess=ColumnTransformer([])), r"leaves no column of age, fare"),
    "a scaler as preprocess": (lambda: fit(TWO, preprocess="standard"), "write scaler='standard'"),
    "one fold": (
        lambda: aa.cross_validate("mlp", table(), target="survived", cv=1),
        "cv=1 is not an int of at least 2",
    ),
    "n_splits": (lambda: aa.cross_validate("mlp", table(), target="survived", n_splits=3), "write cv=3"),
    "a model for folds": (
        lambda: aa.cross_validate(net(), TWO, target="survived"),
        "continue learning from fold to fold",
    ),
    # what fit returned
    "a column less": (lambda: fit(table()).predict(table().drop(columns="port")), "1 column is missing .*: 'port'"),
    "a column renamed": (
        lambda: fit(table()).predict(table().rename(columns={"port": "Port"})),
        "rename columns: {'Port': 'port'}",
    ),
    "text for numbers": (lambda: fit(table()).predict(table(age="12")), "'age' held numbers .*, and holds text here"),
    "a row as a dict of a date and a boolean": (
        lambda: fit(table()).predict({"age": 1.0, "day": DAYS[0], "late": np.bool_(True)}),
        r"pass a list of rows: \[row\]",
    ),
    "a row as a dict": (lambda: fit(table()).predict({"age": 1.0, "sex": "male"}), r"pass a list of rows: \[row\]"),
    "a row as a series": (lambda: fit(table()).predict(table().iloc[0]), r"table\.iloc\[\[0\]\] for a row"),
    "an array for a table": (lambda: fit(table()).predict(X), "has no names.*age, fare, sex, port"),
    "a loader for a table": (lambda: fit(table()).predict(LOADER), "the model was trained on a table"),
    "a split with a typo": (lambda: fit(table(), validation=0.2).predict("vaidation"), "did you mean 'validation'"),
    "no target to score": (lambda: fit(table()).score(table().drop(columns="survived")), "missing .*: 'survived'"),
    "score(x, y)": (lambda: fit(table()).score(table(), table().survived), r"pass x and y as a pair: \(x, y\)"),
    "chances of numbers": (lambda: fit(table(), "fare").predict_proba(table()), "needs outputs that are classes"),
    "no folder": (lambda: aa.load("nowhere"), "'nowhere' has no manifest.json; the folder does not exist"),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.filterwarnings("ignore::anyaccel.errors.NaNWarning", "ignore::anyaccel.errors.TableWarning")
def test_what_is_wrong_is_said(asked: str) -> None:
    call, message = ASKED[asked]
    with pytest.raises(AnyaccelError) as caught:
        call()
    assert re.search(message, str(caught.value), re.DOTALL), str(caught.value)
    assert "Hint: " in str(caught.value)


FILES = {
    "another delimiter": ("a;b;survived\n1;x;0\n2;y;1\n", "utf-8", r"';' seems to be there.*sep=';'"),
    "another encoding": (
        "a,survived\nMänner,0\nFrauen,1\n",
        "latin-1",
        "is not UTF-8; column 'a' has .*encoding='latin-1'",
    ),
    "UTF-16": ("a,survived\n1,0\n2,1\n", "utf-16", "is not UTF-8; it begins with the mark of UTF-16"),
    "a row too short": ("a,b,survived\n1,2,0\n1\n", "utf-8", "cannot be read as CSV.*on_bad_lines='warn'"),
    "decimal commas": (
        "a;b;survived\n1,5;2,5;0\n2;3,25;1\n",
        "utf-8",
        r"';' seems to be between .* commas before decimals.*sep=';', decimal=','\)",
    ),
    "a title": (
        "Passengers of 1912\na,b,survived\n1,2,0\n2,3,1\n",
        "utf-8",
        "its first line, 'Passengers of 1912', seems to be above the header.*skiprows=1",
    ),
    "nothing": ("", "utf-8", "cannot be read as CSV: Empty CSV file"),
    "a header": ("a,survived\n", "utf-8", "has no rows"),
}


@pytest.mark.parametrize("name", FILES)
def test_what_is_wrong_with_a_file_is_said(name: str, tmp_path: Path) -> None:
    text, encoding, message = FILES[name]
    (tmp_path / "t.csv").write_text(text, encoding=encoding)
    with pytest.raises(AnyaccelError, match=message):
        fit(str(tmp_path / "t.csv"))


BYTES = {
    "gzip": (gzip.compress(b"a,survived\n1,0\n2,1\n"), r"compressed by gzip.*read_csv\('.*', compression='gzip'\)"),
    "a workbook": (b"PK\x03\x04" + bytes(20), r"an Excel workbook or a zip file.*pandas\.read_excel\("),
    "Parquet": (b"PAR1" + bytes(20), r"a Parquet file, .*pandas\.read_parquet\("),
}


@pytest.mark.parametrize("name", BYTES)
def test_what_is_no_text_is_said(name: str, tmp_path: Path) -> None:
    content, message = BYTES[name]
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(AnyaccelError, match=message):
        fit(str(tmp_path / "t.csv"))


def test_a_folder_of_text_files_is_not_read(tmp_path: Path) -> None:
    table().to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(AnyaccelError, match=r"has no Parquet file, but text files; a\.csv\. .*pandas\.concat"):
        fit(str(tmp_path))


def test_a_mark_at_the_begin_of_a_file_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    table().to_csv(tmp_path / "t.csv", index=False, encoding="utf-8-sig")
    fitted = fit(str(tmp_path / "t.csv"))
    assert fitted.columns[0].name == "age"
    np.testing.assert_array_equal(fitted.predict(table()), fit(table()).predict(table()))


def test_a_path_with_a_typo_names_the_file(tmp_path: Path) -> None:
    table().to_csv(tmp_path / "titanic.csv", index=False)
    with pytest.raises(AnyaccelError, match=r"there is no file .*titanik\.csv'.*did you mean .*titanic\.csv"):
        fit(str(tmp_path / "titanik.csv"))


# what was typed, the call, the kind of the warning, and what it says
WARNED: dict[str, tuple[Callable[[], Any], type[Warning], str]] = {
    "a constant": (lambda: fit(table(one=1.0)), TableWarning, r"left out: 'one' \(1\.0 in all rows\)"),
    "all missing": (lambda: fit(table(none=np.nan)), TableWarning, r"left out: 'none' \(no value in any row\)"),
    "an identifier": (lambda: fit(table(id=[f"P{row}" for row in range(N)])), TableWarning, r"'id' .*drop=\['id'\]"),
    "row numbers": (
        lambda: fit(table(id=range(N))),
        TableWarning,
        r"integers of 'id' differ in all rows.*drop=\['id'\]",
    ),
    "an index": (
        lambda: fit(table(**{"Unnamed: 0": range(N)})),
        TableWarning,
        r"pandas writes them into a CSV file without a name",
    ),
    "classes as floats": (
        lambda: fit(table(survived=table().survived.astype(float))),
        TableWarning,
        "is float and has 2 different values, all whole numbers, and is treated as numbers",
    ),
    "one-hot targets": (
        lambda: fit((X, np.eye(2)[np.arange(N) % 2]), None, net(2, 2)),
        TableWarning,
        "has a single 1 in each row, as one-hot classes have",
    ),
    "several labels": (
        lambda: fit((X, X[:, :2] > 0), None, net(2, 2)),
        TableWarning,
        "has only 0 and 1, as several labels for each row have, and is treated .*write loss='binary_cross_entropy'",
    ),
    "unseen categories and new gaps": (
        lambda: fit(table()).predict(table(port="Z", age=np.nan)),
        TableWarning,
        r"'age' in 120; and categories that were not in training; .*'port' in 120 \('Z'\)",
    ),
    "a class of two rows in five folds": (
        lambda: aa.cross_validate(
            "mlp", table(port=["Z", "Z", *["S", "C"] * 59]), target="port", framework="numpy", epochs=1
        ),
        TableWarning,
        "class 'Z' has 2 rows, and there are 5 folds: 3 of them test none of it",
    ),
    "five outputs for two classes": (
        lambda: fit(TWO, model=net(2, 5)),
        TableWarning,
        "'survived' has the classes 0, 1, but the model has 5 outputs: it can also predict classes that no row has",
    ),
    "four outputs for the classes 1 and 2": (
        lambda: fit(table(survived=table().survived + 1)[["age", "fare", "survived"]], model=net(2, 4)),
        TableWarning,
        "'survived' has the classes 1, 2, but the model has 4 outputs.*to 3 outputs",
    ),
    "a class that is validated alone": (
        lambda: fit(table(port=["Z", *["S", "C"] * 59, "S"]), "port", validation=0.5, seed=ALONE),
        TableWarning,
        "class 'Z' of 'port' is in the validation but in no training row",
    ),
    "the training table as its validation": (
        lambda: fit(TWO, validation=TWO),
        TableWarning,
        "the validation is the training table itself.*validation=0.2",
    ),
    "half precision": (
        lambda: fit(TWO, model=net(2, 2).half()),
        NaNWarning,
        "the parameters of node 'model' are float16, in which updates are lost",
    ),
    "a softmax": (
        lambda: fit(TWO, model=torch.nn.Sequential(net(2, 2), torch.nn.Softmax(-1))).predict(TWO),
        UserWarning,
        "cross_entropy takes logits, .*probabilities",
    ),
}


@pytest.mark.parametrize("asked", WARNED)
def test_what_is_odd_is_warned_of(asked: str) -> None:
    call, kind, message = WARNED[asked]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    texts = [str(warning.message) for warning in caught if issubclass(warning.category, kind)]
    assert any(re.search(message, text) for text in texts), texts


@pytest.mark.parametrize("day", [DAYS, DAYS.tz_localize("America/New_York")], ids=["no zone", "a zone"])
def test_times_with_a_zone_are_not_taken_for_times_without(day: Any) -> None:
    other = day.tz_localize("America/New_York") if day.tz is None else day.tz_localize(None)
    fitted = fit(table(day=day))
    message = "'day' had no time zone .* '(America/New_York|UTC)' here" if day.tz is None else "no time zone here"
    for given in (other, other.strftime("%Y-%m-%dT%H:%M:%S%z")):
        with pytest.raises(AnyaccelError, match=message):
            fitted.predict(table(day=given))
    with pytest.warns(TableWarning, match="missing values"):
        fitted.predict(table(day=None))  # no time is in no zone


def test_times_of_another_zone_are_the_same_instants(tmp_path: Path) -> None:
    day = pandas.date_range("2020-01-01", periods=N, freq="7h", tz="America/New_York")
    fitted = fit(table(day=day))
    expected = fitted.predict_proba(table(day=day))
    np.testing.assert_array_equal(fitted.predict_proba(table(day=day.tz_convert("Asia/Tokyo"))), expected)
    fitted.save(tmp_path / "saved")
    loaded = aa.load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.predict_proba(table(day=day.tz_convert("UTC"))), expected)
    with pytest.raises(AnyaccelError, match="no time zone here"):
        loaded.predict(table(day=day.tz_localize(None)))


def test_a_batch_size_of_a_phase_beside_that_of_a_loader_is_refused() -> None:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": np.arange(N) % 2}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", net(2, 2), data)], "adam", seed=0)
    rows = [{"x": row, "y": number % 2} for number, row in enumerate(torch.from_numpy(X))]
    loader = torch.utils.data.DataLoader(rows, batch_size=8)  # type: ignore[arg-type]
    of_size = {
        size: aa.TrainPhase("t", data=loader, losses=aa.AppliedLoss("cross_entropy"), batch_size=size)
        for size in (8, None, 9)
    }
    for size in (8, None):
        assert len(graph.run(of_size[size], progress="none").epochs) == 1
    with pytest.raises(AnyaccelError, match="batch_size=9, but its data come in batches of 8 rows"):
        graph.run(of_size[9], progress="none")


def test_without_epochs_the_model_is_as_it_was() -> None:
    model = net(2, 2)
    before = model(torch.from_numpy(X)).detach().numpy()
    fitted = fit((X, np.arange(N) % 2), None, model, epochs=0)
    np.testing.assert_array_equal(fitted.predict(X), before.argmax(1))
    assert "0 epochs, not trained" in repr(fitted)


# -- what is odd, and right -----------------------------------------------------------------------------------------


def test_rows_as_dicts_are_a_table() -> None:
    rows, columns = table().to_dict("records"), ["age", "fare", "sex", "port", "survived"]
    as_rows, as_frame = fit(rows, validation=rows[:20]), fit(table(), validation=table().iloc[:20])
    np.testing.assert_array_equal(as_rows.results.loss, as_frame.results.loss)
    np.testing.assert_array_equal(as_rows.predict(rows[:3]), as_frame.predict(table().iloc[:3]))
    assert as_rows.score(rows) == as_frame.score(table()) and list(as_rows.columns[0].name) == list(columns[0])
    with pytest.warns(TableWarning, match="'sex' in 1"):
        as_rows.predict([{"age": 1.0, "fare": 2.0, "port": "S"}, rows[0]])  # the row without it has a gap


def test_rows_as_dicts_are_in_the_code_of_a_fit() -> None:
    rows = TWO.to_dict("records")
    fitted = fit(rows, model=aa.SequentialMLP(2), seed=3)
    names: dict[str, Any] = {"data": rows, "model": aa.SequentialMLP(2)}
    exec(fitted.code(), names)  # noqa: S102  (the code that fit wrote)
    np.testing.assert_array_equal(names["results"].loss, fitted.results.loss)


def test_a_validation_may_be_a_file(tmp_path: Path) -> None:
    table().iloc[:30].to_csv(tmp_path / "v.csv", index=False)
    by_path = fit(table(), validation=str(tmp_path / "v.csv"))
    by_frame = fit(table(), validation=table().iloc[:30])
    np.testing.assert_allclose(by_path.results.figure("val_loss"), by_frame.results.figure("val_loss"), rtol=1e-6)


def test_weights_of_classes_may_be_tensors() -> None:
    expected = fit(TWO, class_weights=[1.0, 2.0]).results.loss
    np.testing.assert_array_equal(fit(TWO, class_weights=torch.tensor([1.0, 2.0])).results.loss, expected)


def test_structured_arrays_are_tables() -> None:
    records = TWO.to_records(index=False)
    np.testing.assert_array_equal(fit(records).results.loss, fit(TWO).results.loss)


def test_floats_that_are_whole_numbers_are_classes_for_a_loss_of_classes() -> None:
    y = np.arange(N) % 3 + 1.0
    fitted = fit((X, y), None, net(2, 3), loss="cross_entropy")
    assert fitted.classes_.tolist() == [1.0, 2.0, 3.0] and set(fitted.predict(X)) <= {1.0, 2.0, 3.0}
    assert 0 <= fitted.score((X, y)) <= 1


def test_lists_of_numbers_are_predicted_for() -> None:
    fitted = fit((X.tolist(), X[:, 0].tolist()), None, net())
    np.testing.assert_array_equal(fitted.predict([[0.5, 0.25]]), fitted.predict(np.array([[0.5, 0.25]], "float32")))


def test_more_and_reordered_columns_make_no_difference() -> None:
    fitted = fit(table())
    np.testing.assert_array_equal(
        fitted.predict(table(more=1)[["more", "sex", "port", "fare", "age"]]), fitted.predict(table())
    )
