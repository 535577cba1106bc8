"""Hints of the data of phases: rows, sources, columns and batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import (
    AppliedLoss,
    Checkpoint,
    ConcatNode,
    EvalPhase,
    FeatureSet,
    IterableSource,
    Loss,
    MapSource,
    ModelGraph,
    ModelNode,
    Pad,
    SimpleSampler,
    TrainPhase,
)
from anyaccel.numpy_backend import BatchNorm, Dense, Sequential

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
MSE = AppliedLoss("mse", on="net")


def features(label: str = "data", rows: int = 24, **columns: Any) -> FeatureSet:
    columns = columns or {"y": X[:rows, :1]}
    made = FeatureSet.from_dict(label, {"x": X[:rows], **columns}, ["x"], list(columns))
    made.add_splits({"train": range(rows * 2 // 3), "SPLIT": range(rows * 2 // 3, rows)})
    return made


def graph(width: int = 1, data: Any = None) -> ModelGraph:
    return ModelGraph([ModelNode("net", aa.SequentialMLP(width), (data or features()).reference())], "sgd")


def two(first: FeatureSet | None = None, second: FeatureSet | None = None) -> ModelGraph:
    a, b = first or features("a"), second or features("b")
    joined = ConcatNode("joined", [a.reference(), b.reference()])
    return ModelGraph([joined, ModelNode("net", aa.SequentialMLP(1), "joined")], "sgd")


ACROSS = AppliedLoss("mse", on="net", inputs=["outputs", "a.y"])


def run(phase: Any, on: ModelGraph | None = None, **settings: Any) -> Any:
    return (on or graph()).run(phase, progress="none", **settings)


def train(data: Any = "all", **settings: Any) -> TrainPhase:
    return TrainPhase("train", data=data, **{"losses": [MSE], **settings})


def items(rows: int = 24) -> list[dict[str, Any]]:
    return [{"x": row, "y": row[:1]} for row in X[:rows]]


def source(label: str = "data") -> MapSource:
    return MapSource(label, items(), features=["x"], target=["y"])


def batches(size: int = 8) -> Any:
    return [{"x": X[at : at + size], "y": X[at : at + size, :1]} for at in range(0, 24, size)]


def test_labels_of_data(hint: Any) -> None:
    other = features("other")
    with hint("if {} are the right data, pass data={{}: {}}"):
        run(train(other))
    assert run(train(data={"data": other})).loss.size
    given = source("other")
    with hint("if these are the right data, pass data={{}: source}"):
        run(train(given))
    assert run(train(data={"data": given})).loss.size
    both = two()
    with hint("give data={{}}, a split or view for each"):
        run(train({}, losses=[ACROSS]), both)
    assert run(train(data={"a": "train", "b": "train"}, losses=[ACROSS]), both).loss.size
    a, b = features("a"), features("b")
    apart = ModelGraph([ModelNode(f"n{rows.label}", aa.SequentialMLP(1), rows.reference()) for rows in (a, b)], "sgd")
    with hint("{}; or compute only the nodes fed by {}: data={{}: {}['SPLIT']}, outputs=['NODE']"):
        run(EvalPhase("test", data=a), apart)
    shown = run(EvalPhase("test", data={"a": a["SPLIT"]}, outputs=["na"]), apart)
    assert len(shown.prediction("na")) == 8
    with hint("pass data={'LABEL': ..., ...} with rows for each feature set"):
        run(train(source("a"), losses=[ACROSS]), both)
    assert run(train(data={"a": a, "b": b}, losses=[ACROSS]), both).loss.size
    with hint("put all columns into one source, or read it into memory: FeatureSet.from_dict(...)"):
        run(train({"a": source("a"), "b": "all"}, losses=[ACROSS]), both)
    assert run(
        train({"a": FeatureSet.from_dict("a", {"x": X, "y": X[:, :1]}, ["x"], ["y"]), "b": "all"}, losses=[ACROSS]),
        both,
    )
    with hint("leave outputs out to store the outputs of all output nodes, or name some"):
        run(EvalPhase("test", data="all", outputs=[]))
    assert run(EvalPhase("test", data="all")).prediction("net").size  # without outputs


@pytest.mark.across
def test_splits_of_a_dataset(hint: Any) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"x": X.tolist(), "y": X[:, 0].tolist()}
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows)})
    data = FeatureSet.from_arrow("LABEL", splits["train"], ["x"], ["y"])
    with hint("choose a split of the {}: data=splits[{}]; FeatureSet.from_arrow('LABEL', splits) has them all"):
        run(train(splits), graph(1, data))
    assert run(train(data=splits["train"]), graph(1, data)).loss.size
    data = FeatureSet.from_arrow("LABEL", splits, ["x"], ["y"])
    assert run(train("train"), graph(1, data)).loss.size


def test_transforms(hint: Any) -> None:
    class Doubling:
        def fit(self, x: Any) -> Doubling:
            return self

        def transform(self, x: Any) -> Any:
            return 2 * x

    data = features().fit_transform(Doubling(), ["x"], fit_on="all")
    net = graph(1, data)
    with hint(
        "read it into memory, FeatureSet.from_dict(...).transform_like({}), or build the graph on the source: "
        "source.reference()"
    ):
        run(train(source()), net)
    fresh = lambda: FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])  # noqa: E731
    assert run(train(fresh().transform_like(data)), net).loss.size
    rows = source()
    assert run(train(rows), ModelGraph([ModelNode("net", aa.SequentialMLP(1), rows.reference())], "sgd")).loss.size
    with hint("name a split of the graph's feature set, or pass fresh.transform_like(data) for untransformed data"):
        run(train(fresh()), net)
    assert run(train(fresh().transform_like(data)), net).loss.size and run(train("SPLIT"), net).loss.size

    data = FeatureSet.from_dict("data", {"x": X, "y": X[:, 0]}, ["x"], ["y"])
    data = data.fit_transform(Doubling(), "y", fit_on="all", into="z")
    net = ModelGraph([ModelNode("net", aa.SequentialMLP(1), data.reference(["x"], ["z"]))])
    loss = AppliedLoss("mse", on="net", inputs=["outputs", "data.z"])
    with hint("pass fresh.transform_like(data), where fresh has the input columns of the transform"):
        run(EvalPhase("test", data=FeatureSet.from_dict("data", {"x": X}, ["x"]), losses=[loss]), net)
    rows = FeatureSet.from_dict("data", {"x": X, "y": X[:, 0]}, ["x"], ["y"])
    assert run(EvalPhase("test", data=rows.transform_like(data), losses=[loss]), net).loss > 0


def test_padding(hint: Any) -> None:
    def padded(value: float, **settings: Any) -> FeatureSet:
        rows = [np.ones((1 + i % 3, 2), "float32") for i in range(8)]
        pad = {name: Pad(value, **settings) for name in ("x", "COLUMN")}
        return FeatureSet.from_dict("data", {"x": rows, "COLUMN": rows}, ["x"], ["COLUMN"], pad=pad)

    def net(data: FeatureSet) -> ModelGraph:
        return ModelGraph([ModelNode("net", Dense(2), data.reference())], "sgd")

    with hint("create it with pad={{}: {}}"):
        run(EvalPhase("test", data=padded(1)), net(padded(0)))
    rows = [np.ones((1 + i % 3, 2), "float32") for i in range(8)]
    again = FeatureSet.from_dict("data", {"x": rows, "COLUMN": rows}, ["x"], ["COLUMN"], pad={"x": 0, "COLUMN": 0})
    assert run(EvalPhase("test", data=again), net(padded(0))).prediction("net").size
    with hint("leave residency out, or pad all to one length: pad={'COLUMN': Pad(..., length=...)}"):
        run(train(residency="resident", batch_size=2), net(padded(0)))
    assert run(train(batch_size=2), net(padded(0))).loss.size  # without residency
    pad = {"x": Pad(0, length=4), "COLUMN": Pad(0, length=4)}
    whole = FeatureSet.from_dict("data", {"x": rows, "COLUMN": rows}, ["x"], ["COLUMN"], pad=pad)
    assert run(train(residency="resident", batch_size=2), net(whole)).loss.size


def test_outputs_that_differ_in_length(hint: Any) -> None:
    rows = [np.ones(1 + i % 3, "int64") for i in range(8)]

    def net(pad: Any) -> ModelGraph:
        data = FeatureSet.from_dict("data", {"COLUMN": rows}, ["COLUMN"], pad={"COLUMN": pad})
        return ModelGraph([ConcatNode("both", [data.reference(), data.reference()])])

    phase = EvalPhase("test", data="all", sampler=SimpleSampler(2))
    with hint("leave it out with outputs=[...], or pad all to one length: pad={'COLUMN': Pad(..., length=...)}"):
        run(phase, net(0))
    also = FeatureSet.from_dict("data", {"COLUMN": rows, "z": np.ones((8, 1))}, ["COLUMN", "z"], pad={"COLUMN": 0})
    nodes = [ConcatNode("both", [also.reference(["COLUMN"]), also.reference(["COLUMN"])])]
    nodes.append(ConcatNode("ones", [also.reference(["z"]), also.reference(["z"])]))
    named = EvalPhase("test", data="all", sampler=SimpleSampler(2), outputs=["ones"])
    assert run(named, ModelGraph(nodes)).prediction("ones").size
    data = FeatureSet.from_dict("data", {"COLUMN": rows}, ["COLUMN"], pad={"COLUMN": Pad(0, length=4)})
    whole = ModelGraph([ConcatNode("both", [data.reference(), data.reference()])])
    assert run(phase, whole).prediction("both").shape == (8, 8)


def test_sources(hint: Any, tmp_path: Path) -> None:
    rows = source()
    with hint("leave residency out, or read the source into memory: FeatureSet.from_dict(...)"):
        run(train(rows, residency="resident"))
    assert run(train(rows)).loss.size  # without residency
    data = FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    assert run(train(data, residency="resident")).loss.size
    drawn = IterableSource("data", batches, features=["x"], target=["y"])

    class Own(SimpleSampler):
        """A sampler of the user's."""

    with hint("leave the sampler out, use a MapSource, or read the source into memory: FeatureSet.from_dict(...)"):
        run(train(drawn, sampler=Own(8)))
    assert run(train(drawn)).loss.size and run(train(source(), sampler=Own(8))).loss.size
    assert run(train(FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"]), sampler=Own(8))).loss.size
    calls: list[int] = []

    def changing() -> Any:
        calls.append(0)
        return [{name: values + len(calls) for name, values in batch.items()} for batch in batches()]

    def following(epoch: int) -> Any:
        noise = np.random.default_rng(epoch).standard_normal(1).astype("float32")
        return [{name: values + noise for name, values in batch.items()} for batch in batches()]

    def broken_off(made: Any, folder: Path) -> Any:
        class Stop(aa.Callback):
            def step_end(self, run: Any) -> None:
                raise KeyboardInterrupt

        given = lambda: IterableSource("data", made, features=["x"], target=["y"])  # noqa: E731
        checkpoint = Checkpoint(folder, every=1)
        with pytest.raises(KeyboardInterrupt):
            run(train(given(), checkpoint=checkpoint, callbacks=[Stop()], compile="off"))
        return run(train(given(), checkpoint=checkpoint), resume="auto")

    with hint(
        "derive random values from the number of the epoch, in a function with a parameter `epoch` that returns the "
        "batches: np.random.default_rng(epoch); or leave persistent_workers out"
    ):
        broken_off(changing, tmp_path / "changing")
    assert broken_off(following, tmp_path / "following").loss.size  # there are no persistent_workers
    assert np.random.default_rng(0)


class BatchSampler:
    """As that of a loader of torch."""

    def __init__(self, drop_last: bool) -> None:
        self.batch_size, self.drop_last, self.sampler = 10, drop_last, range(24)


class DataLoader:
    """Gives batches as a loader of torch does."""

    def __init__(self, drop_last: bool) -> None:
        self.batch_sampler = BatchSampler(drop_last)

    def __iter__(self) -> Any:
        for at in range(0, 20 if self.batch_sampler.drop_last else 24, 10):
            yield {"x": X[at : at + 10], "y": X[at : at + 10, :1]}


def test_loaders_that_leave_rows_out(hint: Any, recwarn: Any) -> None:
    def tested(drop_last: bool) -> int:
        given = IterableSource("data", DataLoader(drop_last=drop_last), features=["x"], target=["y"])
        return len(run(EvalPhase("test", data=given)).prediction("net"))

    with hint("Hint: use drop_last=False in the loader for an evaluation.") as printed:
        with pytest.warns(UserWarning) as caught:
            assert tested(True) == 20
        printed.text = str(caught[0].message)
    assert tested(drop_last=False) == 24 and not recwarn.list


def test_columns(hint: Any) -> None:
    net = graph()
    with hint("cast the data: feature_set.cast({'COLUMN': 'DTYPE'}); in a source, cast each batch"):
        run(train(FeatureSet.from_dict("data", {"x": X.astype("float64"), "y": X[:, :1]}, ["x"], ["y"])), net)
    wide = FeatureSet.from_dict("data", {"x": X.astype("float64"), "y": X[:, :1]}, ["x"], ["y"])
    assert run(train(wide.cast({"x": "float32"})), net).loss.size
    entropy = {"losses": [AppliedLoss("cross_entropy", on="net")]}
    classes = features(y=np.where(np.arange(24) % 4 == 3, -1, np.arange(24) % 4))
    with hint("number the classes from 0: np.unique(values, return_inverse=True); to ignore these targets: {}"):
        run(train(**entropy), graph(3, classes))
    values = classes.array("y")
    numbered = np.unique(values, return_inverse=True)[1]
    assert run(train(**entropy), graph(4, features(y=numbered))).loss.size
    with hint("use a model with {} outputs, one for each class; or, to ignore targets of {}, {}"):
        run(train(**entropy), graph(3, features(y=np.arange(24) % 4)))
    ignoring = AppliedLoss(Loss("cross_entropy", ignore_index=-1), on="net")
    assert run(train(losses=[ignoring]), graph(3, classes)).loss.size
    assert aa.SequentialMLP(output_shape=4) and run(train(**entropy), graph(4, features(y=np.arange(24) % 4)))
    binary = {"losses": [AppliedLoss("binary_cross_entropy", on="net")]}
    with hint("write 0 for no and 1 for yes, or use 'mse' for numbers of any size"):
        run(train(**binary), graph(1, features(y=2 * X[:, :1])))
    assert run(train(**binary), graph(1, features(y=(X[:, :1] > 0).astype("float32")))).loss.size
    assert run(train(losses=[AppliedLoss("mse", on="net")]), graph(1, features(y=2 * X[:, :1]))).loss.size


def test_numbers_that_are_too_large(hint: Any) -> None:
    def data(x: Any) -> FeatureSet:
        return FeatureSet.from_dict("data", {"x": x, "y": X[:, :1].astype("float64")}, ["x"], ["y"])

    def wide(rows: FeatureSet, dtype: str) -> ModelGraph:
        return ModelGraph([ModelNode("net", aa.SequentialMLP(1, dtype=dtype), rows.reference())], "sgd")

    large = data(X.astype("float64") * 1e300)
    with hint("scale the column, as with fit_transform() and a scaler, or use a model with a wider dtype"):
        run(EvalPhase("test", data="all"), wide(large, "float32"))
    assert run(EvalPhase("test", data="all"), wide(large, "float64")).prediction("net").size

    class Scaler:
        def fit(self, x: Any) -> Scaler:
            self.scale_ = np.abs(x).max(0)
            return self

        def transform(self, x: Any) -> Any:
            return x / self.scale_

    scaled = large.fit_transform(Scaler(), ["x"], fit_on="all")
    assert run(EvalPhase("test", data="all"), wide(scaled, "float32")).prediction("net").size


class Pairs(aa.Sampler):
    """A sampler of the user's."""

    batch_size, shuffle, drop_last, seed = 2, False, False, 0

    def __init__(self, order: Any) -> None:
        self.order = order

    def epoch_orders(self, rows: Any) -> aa.EpochOrders:
        return aa.EpochOrders(4, lambda epoch: (self.order,))

    def get_config(self) -> dict[str, Any]:
        return {}


def test_batches(hint: Any) -> None:
    with hint("let it draw an int64 array [n] of row numbers for each stream"):
        run(train(sampler=Pairs(np.arange(4.0))))
    assert run(train(sampler=Pairs(np.arange(4, dtype="int64")))).loss.size
    a, b = features("a"), features("b", rows=12)
    apart = lambda: ModelGraph(  # noqa: E731
        [ModelNode(f"n{rows.label}", aa.SequentialMLP(1), rows.reference()) for rows in (a, b)], "sgd"
    )
    losses = [AppliedLoss("mse", on="na"), AppliedLoss("mse", on="nb")]
    with hint("change batch sizes, or write schedule={}"):
        run(train(losses=losses, sampler={"a": 4, "b": 4}, schedule="zip_strict"), apart())
    assert run(train(losses=losses, sampler={"a": 8, "b": 4}, schedule="zip_strict"), apart()).loss.size
    assert run(train(losses=losses, sampler={"a": 4, "b": 4}, schedule="zip_cycle"), apart()).loss.size
    with hint("draw larger batches instead, or use one batch size for all samplers and schedule='zip_strict'"):
        run(train(losses=losses, sampler={"a": 4, "b": 3}, schedule="zip_cycle", accumulate=2), apart())
    both = ModelGraph([ModelNode(f"n{name}", aa.SequentialMLP(1), features(name).reference()) for name in "ab"], "sgd")
    assert run(train(losses=losses, sampler={"a": 4, "b": 4}, schedule="zip_strict", accumulate=2), both).loss.size
    with hint("add {} to sampler={...}"):
        run(train(losses=losses, sampler={"a": 4}), apart())
    assert run(train(losses=losses, sampler={"a": 4, "b": 2}), apart()).loss.size
    with hint(
        "use the same batch size (and drop_last=True) for their samplers, and the same number of rows in the data"
    ):
        run(train(losses=[ACROSS], sampler={"a": 4, "b": 2}), two(a, b))
    sampler = {name: SimpleSampler(4, drop_last=True) for name in "ab"}
    assert run(train(losses=[ACROSS], sampler=sampler), two()).loss.size
    with hint("combine them by schedule='zip_strict'"):
        run(train(losses=[ACROSS], sampler=sampler, schedule="alternate_strict"), two())
    assert run(train(losses=[ACROSS], sampler=sampler, schedule="zip_strict"), two()).loss.size


def test_memory(hint: Any) -> None:
    many = np.ones((2000, 15), "float32")
    data = FeatureSet.from_dict("data", {"x": many, "y": many[:, :1]}, ["x"], ["y"])
    with aa.simulate(1, capacity=40_000):
        with hint("write residency='auto', so that rows that do not fit are streamed"):
            run(train(residency="resident", accelerator="sim:0", batch_size=10), graph(1, data))
        assert run(train(residency="auto", accelerator="sim:0", batch_size=10), graph(1, data)).loss.size

    def net(rows: int) -> ModelGraph:
        made = FeatureSet.from_dict("data", {"x": many[:rows], "y": many[:rows, :1]}, ["x"], ["y"])
        return ModelGraph([ModelNode("net", Sequential(Dense(8), BatchNorm(), Dense(1)), made.reference())], "sgd")

    with aa.simulate(1, capacity=20_000):
        with hint("set residency='auto' to stream rows that do not fit"):
            run(train(residency="resident", accelerator="sim:0", batch_size=100), net(100))
        with hint("set microbatching='approximate' to allow micro-batches anyway"):
            run(train(accelerator="sim:0", batch_size=100), net(100))
        phase = train(residency="auto", microbatching="approximate", accelerator="sim:0", batch_size=100)
        assert run(phase, net(100)).loss.size


def test_numbers_that_are_not_finite(hint: Any) -> None:
    x = X.copy()
    x[0, 0] = np.nan

    def warned(phase: Any, net: ModelGraph) -> str:
        with pytest.warns(aa.errors.NaNWarning) as caught:
            run(phase, net)
        return str(caught[0].message)

    class SimpleImputer:
        def fit(self, x: Any) -> SimpleImputer:
            self.mean_ = np.nanmean(x, 0)
            return self

        def transform(self, x: Any) -> Any:
            return np.where(np.isnan(x), self.mean_, x)

    data = FeatureSet.from_dict("data", {"x": x, "y": X[:, :1]}, ["x"], ["y"])
    with hint("build the graph on {}.fit_transform(SimpleImputer(), [{}], fit_on={})") as printed:
        printed.text = warned(train(), graph(1, data))
    assert np.isfinite(run(train(), graph(1, data.fit_transform(SimpleImputer(), ["x"], fit_on="all"))).loss).all()
    data = features(y=x[:, 0])
    with hint("train without these rows: data={}.split({}).filter({{}: {}})") as printed:
        printed.text = warned(train(), graph(1, data))
    assert "filter({'y': np.isfinite})" in str(printed.text)
    assert np.isfinite(run(train(data=data.split("all").filter({"y": np.isfinite})), graph(1, data)).loss).all()
    data = features(y=x[:, :1])
    with hint("train without these rows: data={}.split({}).filter({{}: {}})") as printed:
        printed.text = warned(train(), graph(1, data))
    finite = data.split("all").filter({"y": lambda rows: np.isfinite(rows).all((1,))})
    assert "lambda rows: np.isfinite(rows).all((1,))" in str(printed.text) and len(finite) == 23
    assert np.isfinite(run(train(data=finite), graph(1, data)).loss).all()
    large = ModelGraph([ModelNode("net", aa.SequentialMLP(1), features().reference())], aa.Optimizer("sgd", lr=1e20))
    with (
        hint(
            "lower lr, set clip_norm=1.0 of the Optimizer, or look for NaN in the data and in your own losses"
        ) as printed,
        np.errstate(all="ignore"),
    ):
        printed.text = warned(train(epochs=3), large)
    for optimizer in (aa.Optimizer("sgd", lr=0.01), aa.Optimizer("sgd", lr=0.01, clip_norm=1.0)):
        node = ModelNode("net", aa.SequentialMLP(1), features().reference())
        assert np.isfinite(run(train(epochs=3), ModelGraph([node], optimizer)).loss).all()


def test_weights_of_which_none_counts(hint: Any) -> None:
    columns = {"x": X, "y": X[:, :1], "w": np.zeros(24, "float32"), "v": np.ones(24, "float32")}
    tagged = FeatureSet.from_dict("data", columns, ["x"], ["y"], ["w", "v"])
    with hint("look at sample_weight, mask, class_weights and ignore_index of the loss") as printed:
        with pytest.warns(aa.errors.NaNWarning) as caught:
            run(train(tagged, losses=[AppliedLoss("mse", on="net", sample_weight="data.w")]), graph(1, tagged))
        printed.text = str(caught[0].message)
    loss = AppliedLoss("mse", on="net", sample_weight="data.v")
    assert loss.mask is None and "class_weights" not in loss.loss.kwargs and "ignore_index" not in loss.loss.kwargs
    assert np.isfinite(run(train(tagged, losses=[loss]), graph(1, tagged)).loss).all()
