"""Nodes whose models are not whole on their device: what core asks of a distribution that offers this, and without."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import anyaccel as aa
from anyaccel import distributions
from anyaccel.cli.main import group
from anyaccel.distributions import SETTINGS
from anyaccel.errors import MissingDistributionError
from anyaccel.graph.nodes import LAYOUT_SETTINGS, Layout
from anyaccel.graph.plan_entries import Section
from anyaccel.plugin_testing import entry

X = np.linspace(-1, 1, 24, dtype="float32").reshape(8, 3)
MISSING = "needs anyaccel-offload, which is not installed"


@dataclass(frozen=True)
class Halves:
    """Half of a model is elsewhere."""

    nbytes: int

    device_bytes = property(lambda self: {"cpu:0": self.nbytes})

    def to_dict(self) -> dict[str, int]:
        return {"nbytes": self.nbytes}

    def section(self, node: str) -> Section:
        title, rows = f"halves of {node}", (("first", "here"), ("second", "elsewhere"))
        return Section(
            title=title,
            summary="two <halves>",
            head=("half", "where"),
            rows=rows,
            notes=("a guess",),
            lines=(f"{title}: 2", "  a guess"),
        )


class Halving(Layout):
    """As if a distribution divided models into halves."""

    def __init__(self) -> None:
        self.placed: list[tuple[str, Any]] = []

    def settings(self, where: str, device_map: Any, max_memory: Any, offload: Any) -> tuple[Any, Any, Any]:
        return device_map or "auto", max_memory, offload

    def assign(self, node: Any, assignment: Any, request: Any, registry: Any, shapes: Any) -> Any:
        return replace(assignment, offload=Halves(assignment.nbytes // 2))

    def read(self, plain: Any) -> Halves:
        return Halves(**plain)

    def place(self, node: Any, backend: Any, device: Any, plan: Any) -> Any:
        self.placed.append((node.label, plan))
        return super().place(node, backend, device, plan)


class NotThere:
    """Finds that the distribution is not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "anyaccel_offload":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.fixture
def halving(monkeypatch: pytest.MonkeyPatch) -> Halving:
    """A distribution is installed that divides models into halves."""
    layout = Halving()
    entries = [entry(f"ModelNode.{name}", lambda: layout) for name in LAYOUT_SETTINGS]
    monkeypatch.setattr(distributions, "entry_points", lambda group: entries if group == SETTINGS else ())
    return layout


@pytest.fixture
def remove(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Takes all distributions away."""

    def take_away() -> None:
        monkeypatch.setattr(distributions, "entry_points", lambda group: ())
        for name in [name for name in sys.modules if name.partition(".")[0] == "anyaccel_offload"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.delitem(sys.modules, "anyaccel.planner", raising=False)
        monkeypatch.setattr(sys, "meta_path", [NotThere(), *sys.meta_path])

    return take_away


def data() -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])


def graph(**settings: Any) -> aa.ModelGraph:
    source = data()
    nodes = [
        aa.ModelNode("net", aa.SequentialMLP((1,)), source.reference(), **settings),
        aa.ModelNode("whole", aa.SequentialMLP((1,)), source.reference()),
    ]
    return aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.1), seed=0)


def train(**settings: Any) -> aa.TrainPhase:
    losses = [aa.AppliedLoss("mse", on=name) for name in ("net", "whole")]
    return aa.TrainPhase("train", data="all", losses=losses, batch_size=4, **settings)


@pytest.mark.parametrize("setting", [{"device_map": "auto"}, {"max_memory": {"cpu": 5}}, {"offload": "cpu"}])
def test_a_setting_of_layouts_is_a_distributions(setting: dict[str, Any], halving: Halving) -> None:
    node = graph(**setting)["net"]
    assert node.device_map == "auto"
    assert graph(offload="".join(["n", "o"]))["net"].device_map is None


def test_a_plan_shows_what_the_layout_says_of_a_node(halving: Halving) -> None:
    plan = aa.Experiment("e", graph(device_map="auto"), progress="none").plan(train())
    shown = str(plan)
    assert "halves of net: 2\n  a guess" in shown and "of whole: 2" not in shown
    assert plan["net"].offload == Halves(plan["net"].nbytes // 2)
    assert plan["net"].resident_nbytes == plan["net"].nbytes // 2
    assert plan["whole"].offload is None and plan["whole"].resident_nbytes == plan["whole"].nbytes
    plain = plan.to_dict()
    assert plain["assignments"][0]["offload"] == {"nbytes": plan["net"].nbytes // 2}
    assert "offload" not in plain["assignments"][1]
    assert aa.Plan.from_dict(plain) == plan


def test_the_layout_places_the_model_and_takes_it_back(halving: Halving) -> None:
    experiment = aa.Experiment("e", graph(device_map="auto"), progress="none")
    experiment.run_phase(train(final_device="cpu"))
    (first, plan), (last, none) = halving.placed
    assert (first, type(plan), last, none) == ("net", Halves, "net", None)


def test_a_graph_with_a_layout_goes_through_plain_data(halving: Halving) -> None:
    made = graph(device_map={"a": "cpu"}, max_memory={0: 5})
    config = made.get_config()
    entries = {name: config["nodes"][0].get(name) for name in LAYOUT_SETTINGS}
    assert entries == {"device_map": {"a": "cpu"}, "max_memory": {"0": 5}, "offload": None}
    assert not set(LAYOUT_SETTINGS) & config["nodes"][1].keys()
    assert aa.ModelGraph.from_config(config, feature_sets=[made["net"].upstreams[0].feature_set]).get_config() == config


# -- where the distribution is not installed ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "setting"),
    [("device_map", {"": "cpu"}), ("device_map", "auto"), ("max_memory", {"cpu": "1GB"}), ("offload", "cpu")],
)
def test_each_setting_names_the_distribution_that_is_missing(
    name: str, setting: Any, remove: Callable[[], None]
) -> None:
    remove()
    with pytest.raises(MissingDistributionError, match=rf"^ModelNode\.{name} {MISSING}") as caught:
        graph(**{name: setting})
    assert "anyaccel-offload" in caught.value.hint or "plugins/offload" in caught.value.hint
    assert graph(device_map=None, max_memory=None, offload="no")["net"].offload == "no"


def test_what_was_saved_with_a_layout_names_the_distribution(
    halving: Halving, remove: Callable[[], None], tmp_path: Path
) -> None:
    made = graph(device_map="auto")
    experiment = aa.Experiment("e", made, progress="none")
    plan, config = experiment.plan(train()), made.get_config()
    experiment.run_phase(train(checkpoint=aa.Checkpoint(tmp_path / "checkpoints")))
    made.save(tmp_path / "graph")
    remove()
    with pytest.raises(MissingDistributionError, match=MISSING):
        aa.ModelGraph.from_config(config, feature_sets=[data()])
    with pytest.raises(MissingDistributionError, match=MISSING):
        aa.ModelGraph.load(tmp_path / "graph", feature_sets=[data()])
    with pytest.raises(MissingDistributionError, match=MISSING):
        aa.Plan.from_dict(plan.to_dict())
    with pytest.raises(MissingDistributionError, match=MISSING):
        aa.Plan.from_json(plan.to_json())


def test_the_command_and_the_module_name_the_distribution(remove: Callable[[], None]) -> None:
    remove()
    result = CliRunner().invoke(group, ["device-map", "model.py:build", "--on", "2x 24GB"])
    assert result.exit_code == 2
    assert result.output.startswith(
        "error: the command anyaccel device-map needs anyaccel-offload, which is not installed"
    )
    with pytest.raises(ImportError, match=rf"^anyaccel\.planner {MISSING}"):
        import anyaccel.planner  # noqa: F401


def test_a_plain_fit_imports_nothing_of_it() -> None:
    code = """
import sys
import numpy as np
import anyaccel as aa

x = np.ones((8, 3), "float32")
aa.place(aa.SequentialMLP((1,)), aa.Accelerator("cpu")), aa.move(x, "cpu")
aa.fit(aa.SequentialMLP((1,)), (x, x[:, :1]), loss="mse", epochs=1, progress="none")
assert not [name for name in sys.modules if name.startswith(("anyaccel_offload", "anyaccel.planner"))]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
