"""What a notebook shows of each object: devices, labels as text, and never an error."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pytest

import anyaccel
from anyaccel import (
    Accelerator,
    AppliedLoss,
    EvalPhase,
    Experiment,
    FeatureSet,
    ModelGraph,
    ModelNode,
    SequentialMLP,
    TrainPhase,
    distributions,
    simulate,
)
from anyaccel import registry as registry_module
from anyaccel.device import Device
from anyaccel.errors import MissingDistributionError
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.plugin_testing import TinyBackend, plugin_module
from anyaccel.registry import Registry

EVIL = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a\nb\x00\x1b[31m\x9b",
    "' onmouseover='alert(1)",
    "&lt;b&gt;",
    "\u202e🎉 שלום",
]
TAGS = {"div", "strong", "span", "table", "thead", "tbody", "tr", "th", "td", "code", "pre"}


class Shown(HTMLParser):
    """The text of a piece of HTML and the devices that it is marked with; anything else than our elements fails."""

    def __init__(self, shown: object) -> None:
        super().__init__()
        self.text, self.devices = "", []
        html = shown._repr_html_()  # type: ignore[attr-defined]
        html.encode()
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        assert tag in TAGS, f"<{tag}> is not ours"
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")]
        self.devices += [value for name, value in attrs if name == "data-anyaccel-device"]

    def handle_data(self, data):
        self.text += f"{data} "


@pytest.fixture(autouse=True)
def numpy_only(monkeypatch):
    monkeypatch.setattr(registry_module, "_registry", [Registry(NumpyBackend, lambda: ())])
    monkeypatch.setattr(distributions, "entry_points", lambda group: ())  # of other distributions


@pytest.fixture
def data():
    draw = np.random.default_rng(0)
    columns = {
        "x": draw.normal(size=(40, 3)).astype("float32"),
        "y": draw.normal(size=(40, 1)).astype("float32"),
        "id": np.arange(40),
        "site": pa.array([f"site {i}" for i in range(40)]),
    }
    found = FeatureSet.from_dict("data", columns, "x", "y", ["id", "site"])
    found.add_splits({"train": np.arange(30), "val": np.arange(30, 40)})
    return found


def graph_of(data, *, label="graph", node="net", where=None):
    nodes = [
        ModelNode("encoder", SequentialMLP((4,)), data.reference(), where),
        ModelNode(node, SequentialMLP(), "encoder"),
    ]
    return ModelGraph(nodes, "adam", label)


@pytest.fixture
def run(data):
    """An experiment with a training and an evaluation, with labels of the test's choice."""

    def make(label="run", epochs=2, metric="mae"):
        net = "net" if any(char in label for char in "./\n\x00") or label != label.strip() else label
        ours = Experiment("e", graph_of(data, node=net), progress="none")
        loss = AppliedLoss("mse", on=net, label=label.replace(".", ""))
        ours.run_phase(TrainPhase("train", data="train", losses=[loss], epochs=epochs, validation="val"))
        ours.run_phase(EvalPhase("eval", data="val", losses=[loss], metrics=[metric]))
        return ours

    return make


# -- devices -----------------------------------------------------------------------------------------------------------


def test_a_device_is_a_badge():
    shown = Shown(Device("gpu", 1))
    assert (shown.text.split(), shown.devices) == (["gpu:1"], ["gpu:1"])


def test_an_accelerator_is_the_device_and_what_was_written():
    shown = Shown(Accelerator("cuda:1", pin_memory=True))
    assert shown.devices == ["gpu:1"] and "written cuda:1, pinned memory" in shown.text
    assert "written" not in Shown(Accelerator("cpu:0")).text


def test_devices_are_a_list_and_a_table():
    with simulate(2):
        found = anyaccel.devices()
        assert found == [Device("cpu"), Device("sim", 0), Device("sim", 1)]
        assert isinstance(found, list) and repr(found) == repr(list(found))
        shown = Shown(found)
    assert set(shown.devices) == {"cpu:0", "sim:0", "sim:1"} and "numpy" in shown.text
    assert Shown(anyaccel.devices_or_cpu("no_such_kind")).devices


def test_showing_a_list_of_devices_asks_no_further_backend(monkeypatch):
    """To ask a backend for its devices may import its framework, and initialise what it finds."""

    class Heavy(TinyBackend):
        def devices(self):
            raise AssertionError("imported and initialised")

    found = registry_module.registry()
    found.register(plugin_module("heavy", backends=lambda: [Heavy("heavy", ("cpu",))]), "heavy")
    shown = Shown(anyaccel.devices("cpu", framework="numpy"))
    assert shown.devices == ["cpu:0"] * 2 and "numpy" in shown.text and "cannot be shown" not in shown.text
    monkeypatch.setattr(Heavy, "devices", lambda self: [Device("cpu")])
    assert "numpy, heavy" in Shown(anyaccel.devices("cpu")).text
    assert "numpy, heavy" in Shown(anyaccel.devices_or_cpu("no_such_kind")).text


# -- data --------------------------------------------------------------------------------------------------------------


def test_a_feature_set_is_its_columns_and_first_values(data):
    text = Shown(data).text
    for told in (
        "FeatureSet",
        "40 rows; ",
        "splits: train 30, val 10",
        "float32[3]",
        "target",
        "site 0, site 1, site 2",
    ):
        assert told in text
    view = Shown(data["val"]).text
    assert "data[val]" in view and "10 rows; of 40" in view and "site 30, site 31, site 32" in view


def test_values_of_any_type_are_shown_short():
    columns = {
        "x": np.ones(2),
        "flag": np.array([True, False]),
        "words": pa.array([["a"] * 10, []]),
        "none": pa.array([None, "x"]),
        "blob": pa.array([b"\x00" * 1000, b""]),
        "long": pa.array(["y" * 5000, ""]),
        "part": pa.array([{"a": 1}, None]),
        "gaps": pa.array([1, None]),
        "pairs": pa.array([[7, None], [8, 9]], pa.list_(pa.int64(), 2)),
        "when": pa.array([0, 1], pa.timestamp("s")),
        "kind": pa.array(["u", "v"]).dictionary_encode(),
        "image": np.zeros((2, 30, 30)),
    }
    text = Shown(FeatureSet.from_dict("odd", columns, "x", (), [name for name in columns if name != "x"])).text
    for told in (
        "[a, a, a, …]",
        "True, False",
        "None, x",
        "[0, 0, 0, …]",
        "1, None",
        "[7, None], [8, 9]",
        "u, v",
        "1970-01-01",
    ):
        assert told in text
    assert "y" * 100 not in text


def test_many_columns_are_cut():
    many = FeatureSet.from_dict("many", {f"c{i}": np.ones(2) for i in range(1000)}, [f"c{i}" for i in range(1000)])
    text = Shown(many).text
    assert "and 980 more features" in text and "c999" not in text


def test_many_features_hide_neither_targets_nor_tags():
    columns = {f"c{i}": np.ones(2) for i in range(50)} | {"y": np.zeros(2), "who": ["a", "b"]}
    whole = FeatureSet.from_dict("many", columns, ..., "y", "who")
    for shown in (Shown(whole).text, Shown(whole.take([1])).text):
        assert "c19" in shown and "c20" not in shown and "and 30 more features" in shown
        assert "target" in shown and "who" in shown and "tag" in shown


def test_ten_million_rows_are_not_read(monkeypatch):
    """A column in many chunks stays in them: to read it would have combined them."""
    chunk = pa.array(np.zeros(10_000, dtype="int8"))
    table = pa.table({"x": pa.chunked_array([chunk] * 1000), "t": pa.chunked_array([chunk] * 1000)})
    big = FeatureSet.from_arrow("big", table, "x", (), "t")
    view = big.take(np.arange(len(big))[::-2])
    assert "10,000,000 rows" in Shown(big).text and "5,000,000 rows; of 10,000,000" in Shown(view).text
    assert big.column("x").num_chunks == 1000


# -- graphs and plans --------------------------------------------------------------------------------------------------


def test_a_graph_is_its_summary_where_nothing_draws_it_and_says_so(data):
    graph = graph_of(data, where="gpu:3")
    wanted = "not drawn: ModelGraph.visualize needs anyaccel-devtools, which is not installed. Hint: "
    shown = Shown(graph).text
    assert wanted in shown and "pip install" in shown and "ModelGraph(encoder, net; 'graph')" in shown
    assert not graph.is_built
    shown = Shown(graph.build()).text
    assert all(line in shown for line in graph.summary().splitlines())
    assert "cpu:0 (asks for gpu:3)" in graph.summary() and "as set by the phase" not in graph.summary()
    for format in ("mermaid", "svg"):
        with pytest.raises(MissingDistributionError, match="anyaccel-devtools"):
            graph.visualize(format)


def test_a_plan_is_its_text_where_nothing_draws_it(data):
    with simulate(2):
        loss = AppliedLoss("mse", on="net")
        plan = Experiment("e", graph_of(data, where="sim:1")).plan(TrainPhase("train", data="train", losses=[loss]))
        shown = Shown(plan).text
    assert "not drawn: " in shown and "of train on graph" in shown
    assert all(line in shown for line in str(plan).splitlines())


# -- results -----------------------------------------------------------------------------------------------------------


def test_a_training_shows_its_figures_by_epoch(run):
    shown = Shown(run(epochs=30).history[0]).text
    for told in ("TrainResults", "train", "30 epochs", "loss.run", "val_loss", "and 10 more"):
        assert told in shown
    assert " 29 " in shown and " 17 " not in shown


def test_an_evaluation_shows_figures_and_the_first_predictions(run):
    shown = Shown(run().last_run).text
    for told in (
        "EvalResults",
        "mae",
        "prediction.run",
        "prediction.run y id site",
        "site 30",
        "site 34",
        "the first of 10 rows",
    ):
        assert told in shown
    assert "site 35" not in shown


def test_an_experiment_shows_its_runs(run, data):
    shown = Shown(run()).text
    for told in ("Experiment", "2 runs over graph", "train, 2 epochs", "eval", "mae "):
        assert told in shown
    assert "0 runs" in Shown(Experiment("new", graph_of(data))).text


@pytest.mark.parametrize("message", EVIL)
def test_an_error_is_shown_as_text(message, data):
    class Fails(anyaccel.Callback):
        def epoch_end(self, run):
            raise ValueError(message)

    ours = Experiment("e", graph_of(data), progress="none", callbacks=[Fails()])
    loss = AppliedLoss("mse", on="net")
    with pytest.raises(ValueError):
        ours.run_phase(TrainPhase("train", data="train", losses=[loss]))
    assert "ended with" in Shown(ours.last_run).text
    assert "ValueError" in Shown(ours).text


# -- what users write --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", EVIL)
def test_labels_columns_and_tags_are_text_everywhere(label, run):
    draw = np.random.default_rng(0).normal(size=(8, 2)).astype("float32")
    name = label.replace(".", "")
    found = FeatureSet.from_dict(name, {label: draw, "tag": pa.array([label] * 8)}, label, (), "tag")
    found.add_split(label, [0, 1])
    clean = "".join(char for char in name if char.isprintable() and char not in "./").strip()
    graph = ModelGraph([ModelNode(f"{clean} node", SequentialMLP(), found.reference())], label=clean)
    ours = Experiment(clean, graph, progress="none")
    plan = ours.plan(EvalPhase(clean, data="all"))
    result = ours.run_phase(EvalPhase(clean, data="all"))
    for shown in (found, found[label], graph, plan, result, ours, run(clean).last_run, run(clean).history[0]):
        Shown(shown)
    assert "script" not in label or "<script>" in Shown(found).text


def test_the_repr_of_every_object_is_unchanged(data):
    assert (
        repr(data).startswith("FeatureSet('data', 40 rows; ")
        and repr(Device("gpu", 1)) == "Device(kind='gpu', index=1)"
    )
    assert repr(Accelerator("cuda:1")) == "Accelerator('cuda:1')"
