"""Text that others wrote cannot control a terminal: it is escaped in every repr, message, plan and line of progress."""

from __future__ import annotations

import io
import re
import warnings
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import anyaccel as aa
from anyaccel.arguments import shown
from anyaccel.errors import AnyaccelError
from anyaccel.printable import printable

EVIL = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
X = np.arange(12, dtype="float32").reshape(6, 2)


def data() -> aa.FeatureSet:
    columns = {f"x{EVIL}": X, f"y{EVIL}": X[:, 0], f"k{EVIL}": np.arange(6)}
    features = aa.FeatureSet.from_dict(f"d{EVIL}", columns, [f"x{EVIL}"], [f"y{EVIL}"], [f"k{EVIL}"])
    features.add_split(f"s{EVIL}", [0, 1, 2])
    return features


def test_characters_that_control_a_terminal_are_escaped_and_others_are_kept():
    assert printable(EVIL) == "\\x1b]0;owned\\x07\\x1b[2J\\u202e\\x9b31m"
    assert printable("ünïcödé 日本\n\ttab \N{GRINNING FACE}") == "ünïcödé 日本\n\ttab \N{GRINNING FACE}"
    assert printable("\ud800") == "\\ud800"


def test_any_value_can_be_shown_in_a_message():
    class Silent:
        def __repr__(self):
            raise ZeroDivisionError

    assert shown("a" * 500) == f"'{'a' * 198}\N{HORIZONTAL ELLIPSIS}"
    assert shown(10**5000) == "<int, ValueError in repr>"
    assert shown(Silent()) == "<Silent, ZeroDivisionError in repr>"


def test_names_of_columns_and_splits_are_escaped_in_what_is_shown_of_data():
    features = data()
    source = aa.IterableSource("src", list, features=f"x{EVIL}")
    view, reference = features[f"s{EVIL}"], features.reference()
    for value in (features, view, reference, source):
        assert not CONTROL.search(repr(value)), repr(value)
    assert "x\\x1b]0;owned" in repr(features)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: data().array(EVIL),
        lambda: data()["nothing"],
        lambda: data().select([f"y{EVIL}"]),
        lambda: data().cast({f"x{EVIL}": "nonsense"}),
        lambda: aa.FeatureSet.from_dict("d", {EVIL: X, "y": X[:3]}, [EVIL], ["y"]),
        lambda: aa.FeatureSet.from_dict(EVIL + ".", {"x": X}, ["x"]),
        lambda: aa.Optimizer(EVIL),
        lambda: aa.Device.parse(EVIL),
        lambda: aa.ModelNode(EVIL, aa.SequentialMLP(1), "x"),
        lambda: aa.ModelGraph.from_config({EVIL: 1}),
        lambda: aa.TrainPhase("t", data="train", schedule=EVIL),
    ],
)
def test_messages_of_errors_are_escaped(wrong):
    with pytest.raises(AnyaccelError) as caught:
        wrong()
    for part in (str(caught.value), caught.value.problem, caught.value.available, caught.value.hint):
        assert not CONTROL.search(part), repr(part)


def test_names_of_files_are_escaped_in_messages(tmp_path):
    folder = tmp_path / "f\x1b[2J"
    folder.mkdir()
    pq.write_table(pa.table({"x": [1.0]}), folder / "a.txt")
    with pytest.raises(AnyaccelError) as caught:
        aa.FeatureSet.from_parquet("d", folder, "x")
    assert "f\\x1b[2J" in str(caught.value) and not CONTROL.search(str(caught.value))


def test_plans_results_progress_and_warnings_are_escaped():
    features = data()
    nodes = [aa.ModelNode("net", aa.SequentialMLP(1), features.reference())]
    graph = aa.ModelGraph(nodes, "sgd")
    phase = aa.TrainPhase("t", data=f"s{EVIL}", losses=[aa.AppliedLoss("mse", on="net")], batch_size=2)
    test = aa.EvalPhase("v", data=f"s{EVIL}", metrics=["mse"])
    written = io.StringIO()
    with redirect_stdout(written), redirect_stderr(written), warnings.catch_warnings(record=True) as told:
        for progress in ("lines", "rich"):
            experiment = aa.Experiment("e", graph, progress=progress)
            experiment.run(phase, test)
    plan = experiment.plan(phase)
    seen = [str(plan), repr(plan), plan.explain("net"), graph.summary(), written.getvalue()]
    seen += [repr(results) for results in experiment.history] + [repr(experiment.compare()), *map(str, told)]
    seen += [str(event) for results in experiment.history for event in results.events]
    for text in seen:
        assert "\x1b]0;owned" not in text and not re.search("\x07|\x9b|\u202e", text), repr(text)
