"""Data sets of Hugging Face: what they say of their rows is obeyed; compared with what they give themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import FeatureSet, IterableSource, MapSource
from anyaccel.errors import ColumnError, DataError, SourceError
from anyaccel.numpy_backend import SequentialMLP


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    columns = {"x": [1.0, 2.0, 3.0, 4.0], "z": [5.0, 6.0, 7.0, 8.0], "k": [0.0, 1.0, 0.0, 1.0]}
    return datasets.Dataset.from_dict(columns)


def hundredfold(batch: dict[str, list[float]]) -> dict[str, list[float]]:
    return {"x": [100 * value for value in batch["x"]], "k": batch["k"]}


@pytest.mark.parametrize(
    "choose", [lambda it: it, lambda it: it.select([2, 0]), lambda it: it.filter(lambda r: r["z"] > 6)]
)
def test_a_table_without_the_results_of_a_function_is_refused_and_the_hint_holds(stored: Any, choose: Any) -> None:
    dataset = choose(stored).with_transform(hundredfold)
    with pytest.raises(
        DataError, match=r"calls a function when rows are read \(set_transform\).*MapSource\('d', dataset"
    ):
        FeatureSet.from_arrow("d", dataset, ["x"], ["k"])
    with pytest.raises(DataError, match=r"set_transform"):
        FeatureSet.from_arrow("d", {"train": dataset}, ["x"], ["k"])
    with pytest.raises(DataError, match=r"set_transform"):
        aa.fit(SequentialMLP([1]), dataset, target="k", loss="mse")
    with pytest.raises(SourceError, match=r"MapSource\(label, dataset"):
        IterableSource("d", dataset, features="x")
    expected = dataset[:]["x"]
    rows = MapSource("d", dataset, features=["x"], target=["k"])
    assert rows.gather(range(len(dataset)))["x"].tolist() == expected
    before = FeatureSet.from_arrow("d", dataset.with_format(None), ["x"], ["k"])
    assert (100 * before.array("x")).tolist() == expected


def test_a_phase_reads_rows_through_their_function(stored: Any) -> None:
    stored.set_transform(hundredfold)
    x = np.array(stored[:]["x"])
    known = FeatureSet.from_dict("d", {"x": x, "k": np.array(stored[:]["k"])}, ["x"], ["k"])
    graph = aa.ModelGraph([aa.ModelNode("net", SequentialMLP([1]), known.reference())], "sgd", seed=1)
    losses = [aa.AppliedLoss("mse", on="net")]
    experiment = aa.Experiment("e", graph, progress="none")
    expected = experiment.run_phase(aa.EvalPhase("known", data=known, losses=losses)).losses
    assert experiment.run_phase(aa.EvalPhase("read", data=stored, losses=losses)).losses == expected
    fitted = aa.fit(
        SequentialMLP([1]), MapSource("data", stored, features="x", target="k"), loss="mse", progress="none"
    )
    with pytest.raises(DataError, match="set_transform"):
        fitted.predict(stored)
    assert len(fitted.predict(MapSource("data", stored, features="x", target="k"))) == 4


def test_columns_that_a_format_leaves_out_are_left_out(stored: Any) -> None:
    chosen = stored.with_format("numpy", columns=["x", "k"])
    assert list(chosen[0]) == ["x", "k"]
    assert FeatureSet.from_arrow("d", chosen, ..., ["k"]).features == ("x",)
    with pytest.raises(ColumnError, match="'d' has no column 'z'"):
        FeatureSet.from_arrow("d", chosen, ["z"])
    all_columns = stored.with_format("numpy", columns=["x"], output_all_columns=True)
    assert FeatureSet.from_arrow("d", all_columns, ..., ["k"]).features == tuple(n for n in all_columns[0] if n != "k")
