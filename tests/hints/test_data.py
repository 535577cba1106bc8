"""Hints of feature sets, their columns, splits and samplers."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import anyaccel as aa

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
CLASSES = np.tile(["a", "b"], 12)
RAGGED = [np.arange(1 + i % 3) for i in range(24)]


def features(**columns: Any) -> aa.FeatureSet:
    columns = columns or {"y": X[:, :1]}
    data = aa.FeatureSet.from_dict("data", {"x": X, **columns}, ["x"], list(columns))
    data.add_splits({"train": range(16), "val": range(16, 24)})
    return data


DATA = features()


def inputs(*columns: str, **values: Any) -> aa.FeatureSet:
    """Rows of which several columns are features."""
    return aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1], **values}, [*columns, *values], ["y"])


def graph(*nodes: Any) -> aa.ModelGraph:
    return aa.ModelGraph(list(nodes) or [node()], "sgd")


def node(label: str = "net", upstream: Any = None) -> aa.ModelNode:
    return aa.ModelNode(label, aa.SequentialMLP(1), upstream or DATA.reference())


def evaluate(graph: aa.ModelGraph, data: Any = "all") -> Any:
    return graph.run(aa.EvalPhase("eval", data=data), progress="none")


def predicted(*nodes: Any) -> Any:
    graph = aa.ModelGraph(list(nodes))
    graph.run(*[aa.FitPhase(node.label, data="all", nodes=node.label) for node in nodes], progress="none")
    return evaluate(graph).prediction("net").reshape(-1)


def total(label: str, upstream: Any) -> aa.ModelNode:
    return aa.ModelNode(label, Total(), upstream)


class Total:
    """An estimator, which takes integers as they are."""

    def fit(self, features: Any, targets: Any) -> None:
        """Learns nothing."""

    def predict(self, features: Any) -> Any:
        return features.reshape(len(features), -1).sum(1)


class Scaler:
    """In the style of scikit-learn, which need not be installed."""

    def fit(self, x: Any) -> Scaler:
        self.largest = np.abs(np.asarray(x, float)).max()
        return self

    def transform(self, x: Any) -> Any:
        return np.asarray(x, float) / self.largest

    def inverse_transform(self, y: Any) -> Any:
        return y * self.largest


def test_columns_that_are_not_numbers(hint: Any) -> None:
    with hint("convert it to numbers first, or pass it as a tag and read it with column()"):
        inputs(day=np.arange(24).astype("datetime64[D]"))
    days = aa.FeatureSet.from_dict("data", {"x": X, "day": np.arange(24).astype("datetime64[D]")}, ["x"], (), ["day"])
    assert len(days.column("day")) == 24
    with hint(
        "in a FeatureSet, choose a padding value with pad={{}: 0}; or pad or cut the samples to one shape, or keep "
        "the column as a tag"
    ):
        inputs(tokens=RAGGED)
    given = {"x": X, "tokens": RAGGED}
    padded = aa.FeatureSet.from_dict("data", given, ["x", "tokens"], pad={"tokens": 0})
    assert padded.array("tokens").shape == (24, 3)
    assert len(aa.FeatureSet.from_dict("data", given, ["x"], (), ["tokens"]).column("tokens")) == 24


def test_texts_among_features(hint: Any) -> None:
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    with hint("name it in tags, {}; for texts, store token ids; column() reads a tag unchanged"):
        inputs(kind=CLASSES)
    data = aa.FeatureSet.from_dict("data", {"x": X, "kind": CLASSES}, ["x"], tags=["kind"])
    data.add_splits({"train": range(16)})
    assert data.column("kind").to_pylist() == CLASSES.tolist()
    encoder = preprocessing.OneHotEncoder(sparse_output=False)
    assert data.fit_transform(encoder, "kind", fit_on="train", role="feature").array("kind").shape == (24, 2)


def test_references(hint: Any) -> None:
    with hint("leave it out to read the first stream"):
        DATA.reference(stream="a@b")
    assert evaluate(graph(node(upstream=DATA.reference()))).prediction("net").shape == (24, 1)
    with hint("add it to feature_sets"):
        aa.Reference.from_config(DATA.reference().get_config(), {})
    read = aa.Reference.from_config(DATA.reference().get_config(), feature_sets={"data": DATA})
    assert read == DATA.reference()
    with hint("write feature_set.reference(...)"):
        aa.Reference(X)  # type: ignore[arg-type]
    assert DATA.reference("x").features == ("x",)


def test_rows_for_a_loaded_graph(hint: Any, tmp_path: Path) -> None:
    given = graph()
    expected = evaluate(given, "val").prediction("net")
    given.save(tmp_path / "plain")
    loaded = aa.ModelGraph.load(tmp_path / "plain")
    with hint("pass rows: data=new, a FeatureSet or a view"):
        evaluate(loaded, "val")
    new = features()
    found = loaded.run(aa.EvalPhase("eval", data=new["val"]), progress="none").prediction("net")
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_rows_for_a_loaded_graph_of_transformed_data(hint: Any, tmp_path: Path) -> None:
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    scaled = DATA.fit_transform(preprocessing.StandardScaler(), "x", fit_on="train")
    given = graph(node(upstream=scaled.reference()))
    given.save(tmp_path / "scaled")
    graph_again = aa.ModelGraph.load(tmp_path / "scaled")
    with hint("pass rows: data=new.transform_like(graph.feature_sets[{}])"):
        evaluate(graph_again, "val")
    new = features()
    phase = aa.EvalPhase("eval", data=new.transform_like(graph_again.feature_sets["data"]))
    found = graph_again.run(phase, progress="none").prediction("net")
    np.testing.assert_allclose(found, evaluate(given).prediction("net"), rtol=1e-5)


def test_views(hint: Any) -> None:
    with hint("pass the FeatureSet: FeatureSetView(feature_set, 'NAME', [0, 1])"):
        aa.FeatureSetView(X, "some", [0, 1])  # type: ignore[arg-type]
    assert len(aa.FeatureSetView(DATA, "some", [0, 1])) == 2
    with hint("create both from one FeatureSet object; cast(), select() and similar methods return a new one"):
        DATA["train"].intersection(features()["val"])
    assert DATA.cast({"y": "float64"}) is not DATA and DATA.select("x") is not DATA
    assert len(DATA["train"].difference(DATA.take([0, 1]))) == 14


def test_columns_that_cannot_be_joined(hint: Any) -> None:
    ragged = aa.FeatureSet.from_dict("data", {"x": X, "tokens": RAGGED}, ["x", "tokens"], pad={"tokens": 0})
    with hint("use separate references as separate inputs: {}.reference({})"):
        evaluate(graph(node(upstream=ragged.reference())))
    assert aa.ModelGraph([total("first", ragged.reference("x")), total("second", ragged.reference("tokens"))])
    numbers = np.arange(24)
    unsigned = inputs(n=numbers.astype("int64"), big=numbers.astype("uint64"))
    with hint("cast({{}: 'int64'}, keep_splits=True), or use separate references as separate inputs"):
        predicted(total("net", unsigned.reference(["n", "big"])))
    cast = unsigned.cast({"big": "int64"}, keep_splits=True)
    assert np.array_equal(predicted(total("net", cast.reference(["n", "big"]))), 2 * numbers)
    separate = [total("first", unsigned.reference("n")), total("net", unsigned.reference("big"))]
    assert np.array_equal(predicted(*separate), numbers)


def test_integers_too_large_beside_floats(hint: Any) -> None:
    large = inputs("x", n=np.arange(24) + 2**24)
    large.add_splits({"train": range(16)})
    with hint("scale them with fit_transform() and a scaler, or leave {} out of this reference"):
        evaluate(graph(node(upstream=large.reference())))
    small = large.fit_transform(Scaler(), "n", fit_on="train")
    assert np.isfinite(evaluate(graph(node(upstream=small.reference()))).prediction("net")).all()
    assert evaluate(graph(node(upstream=large.reference("x")))).prediction("net").shape == (24, 1)


def test_words_of_others_for_rows(hint: Any) -> None:
    with hint("use split_random({'train': 0.8, 'test': 0.2})"):
        DATA.train_test_split()
    assert len(features().take(range(20)).split_random({"tr": 0.8, "test": 0.2})["test"]) == 4
    with hint("use array('COLUMN')"):
        _ = DATA.X
    assert np.array_equal(DATA.array("x"), X)
    with hint("use take([0, 1, 2])"):
        _ = DATA.iloc
    assert len(DATA.take([0, 1, 2])) == 3
    with hint("use len(...) for rows, and array('COLUMN').shape"):
        _ = DATA.shape
    assert len(DATA) == 24 and DATA.array("x").shape == (24, 3)
    with hint("use filter({'COLUMN': value})"):
        DATA.query("y > 0")
    assert len(features(n=np.arange(24)).filter({"n": 3})) == 1
    with hint("use reference()"):
        _ = DATA.ref
    assert DATA.reference().features == ("x",)
    with hint("use cast({'COLUMN': 'float32'})"):
        DATA.astype("float32")
    assert features(y=X[:, 0].astype("float64")).cast({"y": "float32"}).array("y").dtype == "float32"


def test_words_of_others_for_scaling(hint: Any) -> None:
    StandardScaler = pytest.importorskip("sklearn.preprocessing").StandardScaler
    with hint("use fit_transform(StandardScaler(), 'COLUMN', fit_on='train')"):
        DATA.normalize()
    scaled = DATA.fit_transform(StandardScaler(), "x", fit_on="train")
    np.testing.assert_allclose(scaled["train"].array("x").mean(0), 0, atol=1e-6)


def test_pads(hint: Any) -> None:
    Pad = aa.Pad
    with hint("write Pad(0)"):
        Pad("zero")  # type: ignore[arg-type]
    assert Pad(0).value == 0
    with hint("write Pad(0, {}=8)"):
        Pad(0, multiple_of=0)
    data = {"x": RAGGED}
    rounded = aa.FeatureSet.from_dict("data", data, ["x"], pad={"x": Pad(0, multiple_of=8)})
    assert rounded.array("x").shape == (24, 8)
    with hint("write Pad(0, mask='mask')"):
        Pad(0, mask=1)  # type: ignore[arg-type]
    masked = aa.FeatureSet.from_dict("data", data, ["x"], pad={"x": Pad(0, mask="mask")})
    assert masked.array("mask").sum() == sum(map(len, RAGGED))
    with hint("leave multiple_of out"):
        Pad(0, multiple_of=8, length=12)
    assert Pad(0, length=12).length == 12


def test_pads_of_columns(hint: Any) -> None:
    def padded(pad: Any, **columns: Any) -> aa.FeatureSet:
        data = {"x": RAGGED, **columns}
        return aa.FeatureSet.from_dict("data", data, list(data), pad=pad)

    with hint("write pad={{}: 0}"):
        padded(0)
    assert padded(pad={"x": 0}).is_ragged("x")
    with hint("choose another name for the mask, or leave mask= out and use the column"):
        padded({"x": aa.Pad(mask="mask")}, mask=np.ones(24))
    assert "here" in padded({"x": aa.Pad(mask="here")}, mask=np.ones(24)).columns
    assert padded({"x": aa.Pad()}, mask=np.ones(24)).array("mask").sum() == 24
    with hint("leave it out of pad="):
        padded({"x": 0, "n": 0}, n=np.arange(24))
    assert padded(pad={"x": 0}, n=np.arange(24)).array("n")[3] == 3
    with hint("set a length that holds all rows: pad={{}: Pad(..., length={})}, or cut the rows"):
        padded({"x": aa.Pad(0, length=2)})
    assert padded(pad={"x": aa.Pad(0, length=3)}).array("x").shape == (24, 3)
    with hint("pass each row as a list of numbers or an array [length, *shape]"):
        padded({"x": 0, "n": 0}, n=[[[1], [2, 3]], *[[[0]]] * 23])
    lists = padded({"x": 0, "n": 0}, n=[[1, 2], *[[0]] * 23])
    arrays = padded({"x": 0, "n": 0}, n=[np.ones((2, 5)), *[np.ones((1, 5))] * 23])
    assert lists.array("n").shape == (24, 2) and arrays.array("n").shape == (24, 2, 5)


class Tensor:
    """A tensor that cannot be converted to an array: of a dtype that NumPy lacks, or with a gradient."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __array__(self, *args: Any, **settings: Any) -> Any:
        raise self.error

    def float(self) -> Any:
        return X

    detach = float

    def cpu(self) -> Any:
        raise self.error


def test_values_of_columns(hint: Any) -> None:
    tensor: Any = Tensor(TypeError("Got unsupported ScalarType BFloat16"))
    with hint("cast it first: {}: tensor.float()"):
        inputs(z=tensor)
    assert inputs(z=tensor.float()).array("z").shape == (24, 3)


def test_tensors_with_a_gradient(hint: Any) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.ones(24, 3, requires_grad=True)
    with hint("pass its values: {}: tensor.detach().cpu()"):
        inputs(z=tensor)
    assert inputs(z=tensor.detach().cpu()).array("z").sum() == 72


def test_frames_and_sparse_matrices_as_columns(hint: Any) -> None:
    frame = pytest.importorskip("pandas").DataFrame(X, columns=["a", "b", "c"])
    with hint("pass its values as one column, {}: frame.to_numpy(), or each column by its name"):
        inputs(z=frame)
    assert np.array_equal(inputs(z=frame.to_numpy()).array("z"), X)
    assert inputs(a=frame["a"], b=frame["b"]).array("b").shape == (24,)
    x = pytest.importorskip("scipy.sparse").csr_matrix(X)
    with hint("write {}: x.toarray(), or reduce its columns first (TruncatedSVD)"):
        inputs(z=x)
    assert np.array_equal(inputs(z=x.toarray()).array("z"), X)
    TruncatedSVD = pytest.importorskip("sklearn.decomposition").TruncatedSVD
    assert inputs(z=TruncatedSVD(2).fit_transform(x)).array("z").shape == (24, 2)


def test_names_of_columns(hint: Any) -> None:
    pandas = pytest.importorskip("pandas")
    df = pandas.DataFrame(X[:, :2], columns=pandas.MultiIndex.from_tuples([("a", 1), ("a", 2)]))
    with hint("rename the columns (pandas: df.columns = ['_'.join(map(str, name)) for name in df.columns])"):
        aa.FeatureSet.from_pandas("data", df, ...)
    df.columns = ["_".join(map(str, name)) for name in df.columns]
    assert aa.FeatureSet.from_pandas("data", df, ...).features == ("a_1", "a_2")


def test_files_of_text(hint: Any, tmp_path: Path) -> None:
    file = tmp_path / "FILE.csv"
    file.write_text("a;b\n1;2\n3\n")
    with hint("write 'FILE.csv'"):
        aa.FeatureSet.from_csv("data", 3, ["a"])  # type: ignore[arg-type]
    with hint("check the delimiter and the header, or pass the frame of pandas.read_csv({}, on_bad_lines='warn')"):
        aa.FeatureSet.from_csv("data", str(file), ["a"], delimiter=";")
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(file, delimiter=";", on_bad_lines="warn")
    assert aa.FeatureSet.from_pandas("data", frame, ["a"]).array("a").tolist() == [1, 3]
    file.write_text("a;b\n1;2\n3;4\n")
    with hint("pass the frame of pandas.read_csv({}, sep={})"):
        aa.FeatureSet.from_csv("data", file, ["a"])
    assert aa.FeatureSet.from_pandas("data", pandas.read_csv(file, sep=";"), ["a"]).array("a").tolist() == [1, 3]
    assert aa.FeatureSet.from_csv("data", file, ["a"], delimiter=";").array("a").tolist() == [1, 3]


def test_patterns_of_files(hint: Any, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "y": [0.0, 1.0, 2.0]})
    for part in ("a", "b"):
        frame.to_csv(tmp_path / f"{part}.csv", index=False)
        frame.to_parquet(tmp_path / f"{part}.parquet")
    for suffix, read in (("csv", pandas.read_csv), ("parquet", pandas.read_parquet)):
        pattern = str(tmp_path / f"*.{suffix}")
        with hint("join the files of a pattern: pandas.concat(map(pandas.{}, glob.glob({})))"):
            aa.fit(aa.SequentialMLP(1), pattern, target="y", loss="mse")
        assert len(pandas.concat(map(read, glob.glob(pattern)))) == 6  # noqa: PTH207  # what the hint says


def test_what_is_no_mapping_of_columns(hint: Any, tmp_path: Path) -> None:
    table = pa.table({"x": X[:, 0]})
    with hint("write {'name': array, ...}, or use from_pandas, from_arrow or from_parquet"):
        aa.FeatureSet.from_dict("data", X, ["x"])  # type: ignore[arg-type]
    assert aa.FeatureSet.from_dict("data", {"name": X}, ["name"]).array("name").shape == (24, 3)
    assert len(aa.FeatureSet.from_arrow("data", table, ["x"])) == 24
    pq.write_table(table, tmp_path / "x.parquet")
    assert len(aa.FeatureSet.from_parquet("data", tmp_path / "x.parquet", ["x"])) == 24
    with hint("pass a pyarrow.Table, or use from_dict or from_pandas"):
        aa.FeatureSet.from_arrow("data", X, ["x"])
    assert aa.FeatureSet.from_arrow("data", pa.Table.from_pydict({"x": [1.0]}), ["x"]).array("x").tolist() == [1]
    with hint("use from_dict for arrays by name"):
        aa.FeatureSet.from_pandas("data", {"x": X}, ["x"])
    assert len(aa.FeatureSet.from_dict("data", {"x": X}, ["x"])) == 24


class Foreign:
    """A frame of another library, whose way to others fails."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        raise TypeError("a stream of another version")


class Interchanged:
    """A frame with `__dataframe__`, whose columns cannot be read."""

    def __dataframe__(self, **settings: Any) -> Any:
        return self

    def column_names(self) -> list[str]:
        return ["x"]

    def select_columns_by_name(self, names: list[str]) -> Any:
        raise NotImplementedError("chunks")


def test_frames_of_other_libraries(hint: Any) -> None:
    with hint("update pyarrow, or convert the data to a pyarrow.Table first"):
        aa.FeatureSet.from_arrow("data", Foreign(), ["x"])
    assert len(aa.FeatureSet.from_arrow("data", pa.table({"x": X[:, 0]}), ["x"])) == 24
    pandas = pytest.importorskip("pandas")
    with hint("convert it to a pyarrow.Table or a pandas DataFrame yourself"):
        aa.FeatureSet.from_pandas("data", Interchanged(), ["x"])
    assert len(aa.FeatureSet.from_pandas("data", pa.table({"x": X[:, 0]}), ["x"])) == 24
    assert len(aa.FeatureSet.from_pandas("data", pandas.DataFrame({"x": X[:, 0]}), ["x"])) == 24


def test_frames_of_pandas(hint: Any) -> None:
    pandas = pytest.importorskip("pandas")
    a = pandas.Series(np.arange(3.0), index=[0, 1, 2])
    b = pandas.Series(np.arange(3.0), index=[2, 1, 0])
    with hint("reorder one of them, {}: b.loc[a.index]; or, to use positions, pass {}: b.to_numpy()"):
        aa.FeatureSet.from_dict("data", {"a": a, "b": b}, ["a", "b"])
    ordered = aa.FeatureSet.from_dict("data", {"a": a, "b": b.loc[a.index]}, ["a", "b"])
    assert ordered.array("b").tolist() == [2, 1, 0]
    assert aa.FeatureSet.from_dict("data", {"a": a, "b": b.to_numpy()}, ["a", "b"]).array("b").tolist() == [0, 1, 2]
    df = pandas.DataFrame(X)
    with hint("rename the column (pandas: df.columns = df.columns.astype(str))"):
        aa.FeatureSet.from_pandas("data", df, ...)
    df.columns = df.columns.astype(str)
    assert aa.FeatureSet.from_pandas("data", df, ...).features == ("0", "1", "2")


@pytest.mark.across
def test_data_sets_of_hugging_face(hint: Any) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.DatasetDict({"a": datasets.Dataset.from_dict({"x": [1.0, 2.0], "y": [0.0, 1.0]})})
    with hint("use from_arrow, which keeps its splits"):
        aa.FeatureSet.from_pandas("data", data, ["x"])
    assert len(aa.FeatureSet.from_arrow("data", data, ["x"])["a"]) == 2
    data["b"] = datasets.Dataset.from_dict({"x": [1, 2]})
    with hint("pass only data sets with the same columns, or each one separately: from_arrow({}, data[{}], ...)"):
        aa.FeatureSet.from_arrow("data", data, ["x"])
    assert aa.FeatureSet.from_arrow("data", {"a": data["a"]}, ["x"]).splits
    assert len(aa.FeatureSet.from_arrow("data", data["b"], ["x"])) == 2
    dataset = data["a"].with_transform(lambda rows: {"x": [2 * x for x in rows["x"]], "y": rows["y"]})
    with hint(
        "to apply the function in each epoch, use MapSource({}, dataset, features=[...], target=[...]); to use the "
        "stored values, pass dataset.with_format(None)"
    ):
        aa.FeatureSet.from_arrow("data", dataset, ["x"])
    source = aa.MapSource("data", dataset, features=["x"], target=["y"])
    assert source.gather([0, 1])["x"].tolist() == [2, 4]
    assert aa.FeatureSet.from_arrow("data", dataset.with_format(None), ["x"]).array("x").tolist() == [1, 2]


class Rows:
    """Looks like a data set of Hugging Face, and gives no Arrow table."""

    column_names, features = ("x",), None

    def __len__(self) -> int:
        return 2

    def __getitem__(self, number: int) -> Any:
        return {"x": float(number)}

    def with_format(self, kind: str) -> Any:
        raise RuntimeError("no Arrow")


def test_a_data_set_that_gives_no_table(hint: Any) -> None:
    label, dataset = "data", Rows()
    with hint("pass its data as a pyarrow.Table, or read it row by row: MapSource(label, dataset, features=[...])"):
        aa.FeatureSet.from_arrow(label, dataset, ["x"])
    assert len(aa.FeatureSet.from_arrow(label, pa.Table.from_pylist([dataset[0], dataset[1]]), ["x"])) == 2
    assert aa.MapSource(label, dataset, features=["x"]).gather([0, 1])["x"].tolist() == [0, 1]


def test_files_of_parquet(hint: Any, tmp_path: Path) -> None:
    for name, values in (("a", [1, 2]), ("b", [1.0, 2.0])):
        pq.write_table(pa.table({"x": values}), tmp_path / f"{name}.parquet", row_group_size=1)
    read = aa.FeatureSet.from_parquet
    with hint("pass a list of files: sorted(pathlib.Path({}).glob({})); or a folder"):
        read("data", tmp_path / "a*.parquet", ["x"])
    assert read("data", sorted(Path(tmp_path).glob("a*.parquet")), ["x"]).array("x").tolist() == [1, 2]
    with hint("write the files with one schema, or read them separately and cast()"):
        read("data", tmp_path, ["x"])
    apart = [read("data", tmp_path / f"{name}.parquet", ["x"]).cast({"x": "float64"}) for name in "ab"]
    assert np.array_equal(apart[0].array("x"), apart[1].array("x"))
    with hint("pass one file, or leave row_groups out"):
        read("data", [tmp_path / "a.parquet"] * 2, ["x"], row_groups=[0])
    assert read("data", tmp_path / "a.parquet", ["x"], row_groups=[0]).array("x").tolist() == [1]
    assert len(read("data", [tmp_path / "a.parquet"] * 2, ["x"])) == 4
    with hint("pass numbers of row groups: row_groups=[0, 1]"):
        read("data", tmp_path / "a.parquet", ["x"], row_groups=[2])
    assert len(read("data", tmp_path / "a.parquet", ["x"], row_groups=[0, 1])) == 2
    pq.write_table(pa.table({"x": [1.0, 2.0]}), tmp_path / "a.parquet")
    assert len(read("data", tmp_path, ["x"])) == 4


def test_roles(hint: Any) -> None:
    table = pa.table({"x": X[:, 0], "name": CLASSES.tolist(), "y": X[:, 1]})
    with hint("name them as tags, leave them out of the data, or list the {}s explicitly{}{}"):
        aa.FeatureSet.from_arrow("data", table, ..., ["y"])
    assert aa.FeatureSet.from_arrow("data", table, ..., ["y"], ["name"]).features == ("x",)
    assert aa.FeatureSet.from_arrow("data", table.drop_columns("name"), ..., ["y"]).features == ("x",)
    assert aa.FeatureSet.from_arrow("data", table, ["x"], ["y"]).features == ("x",)
    with hint("name the columns: features=[...], target=[...]"):
        aa.FeatureSet.from_arrow("data", table)
    data = aa.FeatureSet.from_arrow("data", table, features=["x"], target=["y"])
    assert data.targets == ("y",)
    with hint("name at least one in features"):
        aa.FeatureSet.from_arrow("data", table, (), ["y"])
    assert aa.FeatureSet.from_arrow("data", table, features=["x"]).features == ("x",)


def test_rows_that_are_chosen(hint: Any) -> None:
    data = features(n=np.arange(24))
    mask = data.array("n") > 20
    with hint("pass row numbers; np.flatnonzero(mask) converts a mask"):
        data.take(mask)
    assert len(data.take(np.flatnonzero(mask))) == 3
    with hint("write {'column': value, ...}"):
        data.filter("n > 20")  # type: ignore[arg-type]
    assert len(data.filter({"n": 20})) == 1
    with hint("use take(np.flatnonzero(mask)) to choose rows with a mask"):
        data.filter({"n": mask})
    assert data.take(np.flatnonzero(mask)).array("n").tolist() == [21, 22, 23]
    with hint("compare, and reduce the other axes: lambda x: (x > 0).all(axis=1)"):
        data.filter({"x": lambda x: x > 0})
    expected = int((X > 0).all(axis=1).sum())
    assert len(data.filter({"x": lambda x: (x > 0).all(axis=1)})) == expected
    with hint("pass a function that returns a mask: lambda x: (x > 0).all(axis=1)"):
        data.filter({"x": 0})
    assert len(data.filter({"x": lambda x: (x > 0).all(axis=1)})) == expected


def test_names_of_splits(hint: Any) -> None:
    data = aa.FeatureSet.from_dict("data", {"x": X}, ["x"])
    with hint("create splits with split_random({'train': 0.8, ...})"):
        data.split("train")
    data.split_random({"train": 0.8, "test": 0.2})
    assert len(data.split("train")) == 19
    with hint("it is a column: data.array({})"):
        data.split("x")
    assert np.array_equal(data.array("x"), X)
    with hint("write add_splits({'train': [0, 1], 'test': [2]})"):
        data.add_splits([0, 1])  # type: ignore[arg-type]
    assert len(aa.FeatureSet.from_dict("data", {"x": X}, ["x"]).add_splits({"train": [0, 1], "test": [2]})) == 2
    with hint("write add_split('NAME', rows)"):
        data.add_split([0, 1], "some")  # type: ignore[arg-type]
    assert len(data.add_split("some", [0, 1])) == 2


def test_ratios_of_splits(hint: Any) -> None:
    with hint("write {'train': 0.8, 'test': 0.2}"):
        features().split_random(0.8)  # type: ignore[arg-type]
    plain = aa.FeatureSet.from_dict("data", {"x": X}, ["x"])
    assert plain.split_random({"train": 0.8, "test": 0.2}).keys() == {"train", "test"}
    with hint("increase its ratio or leave it out"):
        plain.split_random({"many": 0.99, "few": 0.01})
    assert len(plain.split_random({"many": 0.9, "few": 0.1})["few"]) == 2
    assert len(plain.split_random({"every": 1})["every"]) == 24
    twice = plain.take([0, 0, 1, 2])
    with hint("select each row once: take(np.unique(positions)); draw with repetition inside a split"):
        twice.split_random({"a": 0.5, "b": 0.5})
    once = plain.take(np.unique([0, 0, 1, 2])).split_random({"a": 0.5, "b": 0.5})
    assert len(once["a"].take([0, 0, 1])) == 3
    with hint("write {'train': {'column': value}, 'test': {'column': [value, value]}}"):
        plain.split_by_condition(["n"])  # type: ignore[arg-type]
    numbered = aa.FeatureSet.from_dict("data", {"x": X, "n": np.arange(24)}, ["x", "n"])
    assert len(numbered.split_by_condition({"train": {"n": 0}, "test": {"n": [1, 2]}})["test"]) == 2


def grouped(**columns: Any) -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("data", {"x": X, **columns}, ["x"], tags=list(columns))


def test_groups_and_strata(hint: Any) -> None:
    ratios = {"train": 0.5, "test": 0.5}
    with hint("fill these places, or leave the rows out with filter() first"):
        grouped(g=np.where(np.arange(24) < 2, np.nan, np.arange(24))).split_random(ratios, group_by="g")
    gaps = np.where(np.arange(24) < 2, np.nan, np.arange(24) % 5)
    assert grouped(g=np.nan_to_num(gaps)).split_random(ratios, group_by="g")
    kept = grouped(g=gaps).filter({"g": lambda g: ~np.isnan(g)})
    assert sum(map(len, kept.split_random(ratios, group_by="g").values())) == 22
    groups = grouped(g=np.arange(24) // 4, s=np.arange(24) % 2)
    with hint("put all rows of a group into one split; use split_random(group_by=...)"):
        groups.add_splits({"a": range(6), "b": range(6, 24)}, group_by="g")
    assert groups.add_splits({"a": range(8), "b": range(8, 24)}, group_by="g")
    assert groups.split_random(ratios, group_by="g")
    with hint("stratify by a value that is the same in all rows of a group, or split by groups alone"):
        groups.split_random({"c": 0.5, "d": 0.5}, stratify_by="s", group_by="g")
    assert groups.split_random({"c": 0.5, "d": 0.5}, stratify_by="s")
    assert groups.split_random({"e": 0.5, "f": 0.5}, group_by="g")
    same = grouped(g=np.arange(24) // 2, s=np.arange(24) // 12)
    assert len(same.split_random(ratios, stratify_by="s", group_by="g")["train"]) == 12


def test_strata_that_are_too_small(hint: Any) -> None:
    pandas = pytest.importorskip("pandas")
    ratios = {"train": 0.5, "test": 0.5}
    rare = np.array(["a"] * 11 + ["b"] * 12 + ["c"])
    with hint(
        "leave its rows out, with filter() or pandas: table[table[COLUMN] != VALUE], or join it with another stratum"
    ):
        grouped(s=rare).split_random(ratios, stratify_by="s")
    table, COLUMN, VALUE = pandas.DataFrame({"s": rare}), "s", "c"
    assert set(table[table[COLUMN] != VALUE]["s"]) == {"a", "b"}
    assert len(grouped(s=rare).filter({"s": ["a", "b"]}).split_random(ratios, stratify_by="s")) == 2
    assert len(grouped(s=np.where(rare == "c", "b", rare)).split_random(ratios, stratify_by="s")) == 2
    values = X[:, 0]
    with hint("stratify by bins of the values, such as a tag with pandas.qcut(values, 10, labels=False)"):
        grouped(s=values).split_random(ratios, stratify_by="s")
    binned = grouped(s=pandas.qcut(values, 10, labels=False))
    assert len(binned.split_random(ratios, stratify_by="s")["train"]) == 12


def orders(sampler: aa.Sampler, **columns: Any) -> aa.EpochOrders:
    return sampler.epoch_orders({"data": grouped(**columns)})


def test_conditions_of_pairs(hint: Any) -> None:
    Same, Different, Where, Within = aa.Same, aa.Different, aa.Where, aa.Within
    with hint("write {}('COLUMN')"):
        Same(3)  # type: ignore[arg-type]
    assert orders(aa.PairSampler(8, Same("s")), s=CLASSES).n == 24
    with hint("write {}=Same('COLUMN')"):
        aa.PairSampler(8, "s")  # type: ignore[arg-type]
    assert orders(aa.PairSampler(8, match=Same("s")), s=CLASSES).n == 24
    with hint("use Same({}), Different({}), or Where({}, function)"):
        orders(aa.PairSampler(8, Within("s", 1)), s=CLASSES)
    for condition in (Same("s"), Different("s"), Where("s", lambda anchor, candidates: candidates > anchor)):
        assert orders(aa.PairSampler(8, condition), s=CLASSES).n
    with hint("write Where({}, lambda anchor, candidates: candidates > anchor)"):
        Where("n", 3)  # type: ignore[arg-type]
    later = Where("n", lambda anchor, candidates: candidates > anchor)
    assert orders(aa.PairSampler(8, later), n=np.arange(24)).n == 23
    boxes = [{"a": number} for number in range(24)]
    with hint("convert it to a column of text or numbers, or use Where({}, function)"):
        orders(aa.PairSampler(8, Same("box")), box=boxes)
    close = Where("box", lambda anchor, candidates: [abs(box["a"] - anchor["a"]) == 1 for box in candidates])
    assert orders(aa.PairSampler(8, close), box=boxes).n == 24
    assert orders(aa.PairSampler(8, Different("box")), box=[box["a"] for box in boxes]).n == 24


def test_settings_of_samplers(hint: Any) -> None:
    SimpleSampler = aa.SimpleSampler
    with hint("write {'type': 'pair', ...}"):
        aa.TrainPhase.from_config(phase(batch_size=8).get_config() | {"sampler": {"type": "pairs", "batch_size": 8}})
    sampler = aa.PairSampler(8, aa.Same("s"))
    config = phase(sampler=sampler).get_config()
    assert aa.TrainPhase.from_config(config | {"sampler": {**sampler.get_config(), "type": "pair"}}).sampler == sampler
    with hint("write a whole number, such as {}=32"):
        SimpleSampler(batch_size=32.5)  # type: ignore[arg-type]
    assert SimpleSampler(batch_size=32).batch_size == 32
    with hint("pass batch_size and only keys from this list"):
        SimpleSampler.from_config({"size": 8})
    assert SimpleSampler.from_config({"batch_size": 8}) == SimpleSampler(8)
    rows = {"data": DATA}
    with hint("write {'LABEL': feature_set}"):
        SimpleSampler(8).epoch_orders(DATA)  # type: ignore[arg-type]
    drawn = SimpleSampler(8, shuffle=True).epoch_orders(rows)
    with hint("pass the result of epoch_orders(rows)"):
        SimpleSampler(8).shuffled(rows, 0)  # type: ignore[arg-type]
    assert len(SimpleSampler(8).shuffled(SimpleSampler(8).epoch_orders(rows), 0)[0]) == drawn.n
    with hint("use a batch size of at most {}, or drop_last=False"):
        SimpleSampler(32, drop_last=True).steps(24)
    assert SimpleSampler(24, drop_last=True).steps(24) == SimpleSampler(32, drop_last=False).steps(24) == 1


def phase(**settings: Any) -> aa.TrainPhase:
    return aa.TrainPhase("train", data="train", losses=[aa.AppliedLoss("mse", on="net")], **settings)


def test_casts(hint: Any) -> None:
    with hint("write cast({{}: {}})"):
        DATA.cast("float64")  # type: ignore[arg-type]
    assert DATA.cast({"x": "float64"}).array("x").dtype == "float64"


@pytest.mark.across
def test_tables_that_are_made_otherwise(hint: Any, tmp_path: Path) -> None:
    label, arrays, path = "data", {"x": X}, str(tmp_path / "x.parquet")
    pq.write_table(pa.table({"x": X[:, 0]}), path)
    with hint("write FeatureSet.{}"):
        aa.FeatureSet(label, arrays)  # from_dict(label, arrays, features=[...])
    assert len(aa.FeatureSet.from_dict(label, arrays, features=["x"])) == 24
    with hint("write FeatureSet.{}"):
        aa.FeatureSet(label, path)  # from_parquet(label, path, features=[...])
    assert len(aa.FeatureSet.from_parquet(label, path, features=["x"])) == 24
    df = pytest.importorskip("pandas").DataFrame(X, columns=["a", "b", "c"])
    with hint("write FeatureSet.{}"):
        aa.FeatureSet(label, df)  # from_pandas(label, df, features=[...])
    assert aa.FeatureSet.from_pandas(label, df, features=["a"]).features == ("a",)
    with hint("call {}() on it first, or to_frame().T where it is a row"):
        aa.FeatureSet.from_pandas(label, df["a"], ["a"])
    assert len(aa.FeatureSet.from_pandas(label, df["a"].to_frame(), ["a"])) == 24
    assert len(aa.FeatureSet.from_pandas(label, df.iloc[1].to_frame().T, ["a"])) == 1
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"a": [1.0, 2.0]})
    with hint("use from_arrow, which reads its table"):
        aa.FeatureSet.from_pandas(label, rows, ["a"])
    assert len(aa.FeatureSet.from_arrow(label, rows, ["a"])) == 2


def test_names_of_columns_and_labels(hint: Any) -> None:
    bare = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, 0]}, ["x"])
    with hint("name it in {}_keys when you create the feature set"):
        bare.reference(target=["y"])
    made = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, 0]}, ["x"], target=["y"])
    assert made.reference(target=["y"]).targets == ("y",)
    with hint("write FeatureSet.from_dict('data', {'x': x, 'y': y}, ['x'], ['y'])"):
        aa.FeatureSet.from_dict({"x": X}, ["x"], "data")  # type: ignore[arg-type]
    x, y = X, X[:, 0]
    assert aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ["x"], ["y"]).targets == ("y",)
    with hint("use ... for one role, and name the columns of the others"):
        aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ..., ...)
    assert aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ..., ["y"]).features == ("x",)
    with hint("rename it, for example to {}"):
        aa.FeatureSet.from_dict("data", {"\ud800": x}, ["\ud800"])
    assert aa.FeatureSet.from_dict("data", {"?": x}, ["?"]).features == ("?",)
    with hint("name one, or leave {} out"):
        bare.split_random({"a": 0.5, "b": 0.5}, stratify_by=())
    assert bare.split_random({"a": 0.5, "b": 0.5})
    with hint("use separate references as separate inputs"):
        image = inputs("x", image=np.ones((24, 2, 2), "float32"))
        predicted(total("net", image.reference()))
    separate = [total("net", image.reference("x")), total("second", image.reference("image"))]
    assert predicted(*separate).shape == (24,)


def test_conditions_on_several_feature_sets(hint: Any) -> None:
    others = {"a": grouped(s=CLASSES), "b": grouped(s=CLASSES)}
    with hint("write {}"):
        aa.PairSampler(8, aa.Same("s")).epoch_orders(others)
    assert aa.PairSampler(8, aa.Same("a.s")).epoch_orders(others).n == 24
    with hint("use Same, Different, Within, Beyond"):
        aa.Where("n", lambda anchor, candidates: candidates != anchor).get_config()
    for condition in (aa.Same("n"), aa.Different("n"), aa.Within("n", 1), aa.Beyond("n", 1)):
        sampler = aa.PairSampler(8, condition)
        assert aa.PairSampler.from_config(sampler.get_config()) == sampler


def test_files_in_other_encodings(hint: Any, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes("größe,y\n1,2\n3,4\n".encode("latin-1"))
    pandas = pytest.importorskip("pandas")
    for encoding in ("latin-1", "utf-16"):
        path.write_text("größe,y\n1,2\n3,4\n", encoding=encoding)
        with hint("pass the frame of pandas.read_csv({}, encoding={})"):
            aa.FeatureSet.from_csv("data", path, ["größe"], ["y"])
        frame = pandas.read_csv(path, encoding=encoding)
        assert aa.FeatureSet.from_pandas("data", frame, ["größe"], ["y"]).array("größe").size == 2
