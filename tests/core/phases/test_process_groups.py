"""Phases where nothing is installed that shares them among processes: one error, and never a lone training."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from click.testing import CliRunner

import anyaccel as aa
from anyaccel.cli.main import group
from anyaccel.distributions import EXTENSIONS, MissingDistributionError
from anyaccel.errors import ConfigError, PluginError
from anyaccel.numpy_backend import Dense
from anyaccel.phases.runner import Phase

MISSING = "needs anyaccel-distributed, which is not installed"
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
Make = Callable[..., Any]


class NotThere:
    """Finds no module of the distribution."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "anyaccel_distributed":
            raise ModuleNotFoundError(f"No module named {name!r}", name="anyaccel_distributed")


@pytest.fixture(autouse=True)
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """No distribution is installed."""
    for module in ("anyaccel.distributions", "anyaccel.extensions"):
        monkeypatch.setattr(f"{module}.entry_points", lambda group: ())
    for name in [name for name in sys.modules if name.startswith(("anyaccel_distributed", "anyaccel.replicas"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NotThere(), *sys.meta_path])


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is the second of two processes of torchrun."""
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("replicas", 2),
        ("replicas", "two"),
        ("per_replica", True),
        ("deterministic", True),
        ("sharding", "full"),
        ("sync_batchnorm", True),
    ],
)
def test_a_setting_of_a_training_names_the_distribution(train: Make, setting: str, value: object) -> None:
    with pytest.raises(MissingDistributionError, match=rf"^TrainPhase\.{setting} {MISSING}\. Hint: .*plugins/distri"):
        train(**{setting: value})
    config = {**train().get_config(), setting: value}
    with pytest.raises(MissingDistributionError, match=rf"^TrainPhase\.{setting} {MISSING}"):
        Phase.from_config(json.loads(json.dumps(config)))


def test_what_asks_for_nothing_needs_nothing(train: Make, evaluate: Make, line: Make, experiment: Make) -> None:
    phase = train(replicas=1, per_replica=False, deterministic=False, sharding=None, sync_batchnorm=False)
    assert experiment(line()).run_phase(phase).epochs
    assert Phase.from_config(json.loads(json.dumps(phase.get_config()))).replicas == 1
    assert evaluate(replicas=None).replicas is None
    with pytest.raises(MissingDistributionError, match=rf"^EvalPhase\.replicas {MISSING}"):
        evaluate(replicas=2)


def test_a_node_and_a_saved_graph_with_sharding_name_the_distribution(line: Make, data: aa.FeatureSet) -> None:
    with pytest.raises(MissingDistributionError, match=rf"^ModelNode\.sharding {MISSING}"):
        line(sharding="full")
    config = line().get_config()
    config["nodes"] = [{**node, "sharding": "full"} for node in config["nodes"]]
    with pytest.raises(MissingDistributionError, match=rf"^ModelNode\.sharding {MISSING}"):
        aa.ModelGraph.from_config(config, feature_sets=[data], models={"net": Dense(1)})


@pytest.mark.usefixtures("launched")
def test_a_process_of_a_launcher_never_trains_on_all_rows_in_silence(
    train: Make, line: Make, experiment: Make, values: Make, same: Make
) -> None:
    graph = line()
    graph.build()
    before = values(graph)
    wanted = rf"^sharing phase 'train' among the 2 processes of a launcher {MISSING}"
    with pytest.raises(MissingDistributionError, match=wanted):
        experiment(graph).run_phase(train())
    with pytest.raises(MissingDistributionError, match=wanted):
        experiment(graph).plan(train())
    same(before, values(graph))
    assert experiment(graph).run_phase(train(replicas=1)).epochs  # what says that it is alone


@pytest.mark.usefixtures("launched")
def test_a_process_of_a_launcher_evaluates_all_rows_and_is_quiet_if_it_is_not_the_first(
    evaluate: Make, line: Make, experiment: Make, at: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[bool] = []
    listener = at("phase_end", lambda run: heard.append(run.is_main_process))
    graph = line()
    here = experiment(graph).run_phase(evaluate(callbacks=[listener])).losses
    for name in TORCHRUN:
        monkeypatch.delenv(name)
    assert experiment(graph).run_phase(evaluate(callbacks=[listener])).losses == here
    assert heard == [False, True]
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="not RANK"):
        experiment(graph).run_phase(evaluate())


def test_several_devices_name_the_distribution(train: Make, line: Make, experiment: Make, sims: object) -> None:
    class Request(aa.Accelerator):
        is_request = True

        def requested_devices(self, *frameworks: object, **settings: object) -> tuple[aa.Device, ...]:
            return (aa.Device("sim", 0), aa.Device("sim", 1))

    phase = train(accelerator=Request("sim:0"))
    with pytest.raises(MissingDistributionError, match=rf"^training phase 'train' on 2 devices {MISSING}"):
        experiment(line()).run_phase(phase)


def test_two_distributions_that_share_phases_are_an_error(
    train: Make, line: Make, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase = train()
    phase.deterministic = True  # a setting that nothing here takes is refused before
    two = [EntryPoint("process_groups", f"{name}:GROUPS", EXTENSIONS) for name in ("one", "two")]
    for module in ("anyaccel.distributions", "anyaccel.extensions"):
        monkeypatch.setattr(f"{module}.entry_points", lambda group: two)
    with pytest.raises(PluginError, match=r"^one:GROUPS and two:GROUPS both provide 'process_groups' in"):
        experiment(line()).run_phase(phase)


def test_the_command_and_the_module_name_the_distribution() -> None:
    result = CliRunner().invoke(group, ["run", "--replicas", "2", "train.py"])
    assert result.exit_code == 2
    assert result.output.startswith(f"error: the command anyaccel run {MISSING}. Hint: ")
    with pytest.raises(ImportError, match=rf"^anyaccel\.replicas {MISSING}"):
        importlib.import_module("anyaccel.replicas")


@pytest.mark.usefixtures("launched")
def test_the_demo_of_several_processes_names_the_distribution() -> None:
    result = CliRunner().invoke(group, ["demo", "--framework", "numpy", "--epochs", "1"])
    assert result.exit_code == 2 and MISSING in result.output


def test_a_plain_fit_imports_nothing_of_it() -> None:
    code = """
import sys
import numpy as np
import anyaccel as aa

x = np.ones((8, 3), "float32")
aa.place(aa.SequentialMLP((1,)), aa.Accelerator("cpu")), aa.move(x, "cpu")
aa.fit(aa.SequentialMLP((1,)), (x, x[:, :1]), loss="mse", epochs=1, progress="none")
assert not [name for name in sys.modules if name.startswith(("anyaccel_distributed", "anyaccel.replicas"))]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
