"""What installed distributions add by entry points, and what is said of those that are not installed."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from click.testing import CliRunner

import anyaccel as aa
from anyaccel import distributions, install_hints
from anyaccel.cli.main import group as command_line
from anyaccel.data import SavedRows, sampler_from_config, saved_rows
from anyaccel.data.transforms import read_transforms
from anyaccel.distributions import COMMANDS, MODULES, NAMES, OFFERED, SETTINGS
from anyaccel.errors import (
    AnyaccelError,
    ColumnError,
    ConfigError,
    DeviceParseError,
    MissingDistributionError,
    PhaseError,
    PluginError,
    SpecError,
    TransformError,
)
from anyaccel.extensions import extensions
from anyaccel.metrics import is_higher_better
from anyaccel.phases.run import measured_work

GAUGE = """
import click

from anyaccel.errors import ConfigError

class Gauge:
    pass

@click.command("gauge", short_help="Measure something.")
@click.option("--fast", is_flag=True)
def command(fast):
    click.echo(f"measured, {fast}")

@click.command("refuse")
def refusing():
    raise ConfigError("there is no gauge", hint="buy one")

Setting = 7
"""
Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Installs a distribution with entry points of groups, and the module `gauges`."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "gauges", raising=False)

    def write_distribution(name: str, groups: dict[str, dict[str, str]], number: str = "0.1.0") -> None:
        info = tmp_path / f"{name.replace('-', '_')}-{number}.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n", "utf-8")
        lines = [
            line for title, entries in groups.items() for line in (f"[{title}]", *map(" = ".join, entries.items()))
        ]
        info.joinpath("entry_points.txt").write_text("\n".join([*lines, ""]), "utf-8")
        tmp_path.joinpath("gauges.py").write_text(GAUGE, "utf-8")
        monkeypatch.setattr(distributions, "_found", {})

    return write_distribution


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if anyaccel had a distribution with gauges."""
    names = {
        NAMES: {"anyaccel-gauges": "Gauge other"},
        COMMANDS: {"anyaccel-gauges": "gauge"},
        SETTINGS: {"anyaccel-gauges": "TrainPhase.gauge"},
    }
    monkeypatch.setattr(distributions, "OFFERED", names)
    monkeypatch.setattr(distributions, "MODULES", {"gauges": "anyaccel_gauges.all"})
    monkeypatch.setattr(distributions, "DISTRIBUTIONS", {"anyaccel-gauges"})
    monkeypatch.setattr(install_hints, "DISTRIBUTIONS", {"anyaccel-gauges"})


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command_line, arguments)
    return result.exit_code, result.output


def test_a_name_comes_from_the_distribution_that_offers_it_and_is_imported_once(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("measures", {NAMES: {"Gauge": "gauges:Gauge"}})
    assert "Gauge" in dir(aa) and "gauges" not in sys.modules
    try:
        assert aa.Gauge is importlib.import_module("gauges").Gauge
        assert vars(aa)["Gauge"] is aa.Gauge
    finally:
        vars(aa).pop("Gauge", None)


def test_a_name_of_core_cannot_be_replaced(write: Write) -> None:
    write("measures", {NAMES: {"Accelerator": "gauges:Gauge"}})
    assert aa.Accelerator.__module__ == "anyaccel.accelerator"


@pytest.mark.usefixtures("offered")
def test_what_is_not_installed_says_where_it_is_and_how_to_install_it() -> None:
    wanted = "anyaccel.Gauge needs anyaccel-gauges, which is not installed"
    with pytest.raises(MissingDistributionError) as caught:
        aa.Gauge  # noqa: B018
    assert caught.value.problem == wanted and isinstance(caught.value, ImportError | AnyaccelError)
    assert caught.value.hint.endswith("python -m pip install ./plugins/gauges")
    with pytest.raises(
        MissingDistributionError, match=r"^TrainPhase\.gauge needs anyaccel-gauges, which is not installed"
    ):
        distributions.load(SETTINGS, "TrainPhase.gauge")
    for name in ("anyaccel.gauges", "anyaccel.gauges.deeper"):
        with pytest.raises(ImportError, match=r"^anyaccel\.gauges needs anyaccel-gauges, which is not installed"):
            importlib.import_module(name)
    status, output = run("gauge", "--fast", "x")
    assert status == 2
    assert output.startswith("error: the command anyaccel gauge needs anyaccel-gauges, which is not installed. Hint: ")
    status, output = run("gauge", "--json")
    assert (status, json.loads(output)["error"]["type"]) == (2, "MissingDistributionError")
    assert "gauge" not in run("--help")[1]


EVERYTHING = [
    (group, home, name) for group, homes in OFFERED.items() for home, names in homes.items() for name in names.split()
]


@pytest.mark.parametrize(("group", "home", "name"), EVERYTHING, ids=lambda value: str(value))
def test_each_thing_that_is_elsewhere_says_where_if_it_is_not_installed(
    group: str, home: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributions, "entry_points", lambda group: ())
    monkeypatch.delitem(vars(aa), name, raising=False)
    with pytest.raises(MissingDistributionError, match=f"{home}, which is not installed") as caught:
        getattr(aa, name) if group == NAMES else distributions.load(group, name)
    assert f"plugins/{home.removeprefix('anyaccel-')}" in caught.value.hint
    if group == COMMANDS:
        status, output = run(name, "--any", "thing")
        assert status == 2 and home in output


@pytest.mark.parametrize("name", [name for name, module in MODULES.items() if not module.startswith("anyaccel.")])
def test_each_module_that_has_moved_says_where_it_is_if_it_is_not_installed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = MODULES[name].partition(".")[0]

    def find_spec(wanted: str, *_: object) -> None:
        if wanted.partition(".")[0] == package:
            raise ModuleNotFoundError(name=package)

    for loaded in [each for each in sys.modules if each.partition(".")[0] == package or each == f"anyaccel.{name}"]:
        monkeypatch.delitem(sys.modules, loaded)
    finder = type("WithoutPackage", (), {"find_spec": staticmethod(find_spec)})
    monkeypatch.setattr(sys, "meta_path", [distributions.MovedModules, finder, *sys.meta_path])
    home = package.replace("_", "-")
    with pytest.raises(MissingDistributionError, match=rf"^anyaccel\.{name} needs {home}, which is not installed"):
        importlib.import_module(f"anyaccel.{name}")


def test_a_name_that_nobody_offers_is_none_of_anyaccel() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Gauge'"):
        aa.Gauge  # noqa: B018
    assert distributions.load(SETTINGS, "TrainPhase.gauge") is None
    assert run("gauge")[0] == 2


def test_a_command_is_listed_and_run(write: Write) -> None:
    write("measures", {COMMANDS: {"gauge": "gauges:command", "broken": "gauges:nothing"}})
    assert run("gauge", "--fast") == (0, "measured, True\n")
    listed = run("--help")[1]
    assert "Measure something." in listed and "Not usable here." in listed
    status, output = run("broken", "--any", "thing")
    assert status == 2 and output.startswith("error: broken of measures 0.1.0 cannot be imported: ")


def test_a_command_whose_module_fails_does_not_break_the_others(write: Write, tmp_path: Path) -> None:
    tmp_path.joinpath("torn.py").write_text("def command(:\n", "utf-8")
    write("measures", {COMMANDS: {"gauge": "gauges:command", "torn": "torn:command"}})
    listed = run("--help")[1]
    assert "Measure something." in listed and "Not usable here." in listed
    status, output = run("torn")
    assert status == 2 and output.startswith("error: torn of measures 0.1.0 cannot be imported: SyntaxError: ")


def test_an_error_of_anyaccel_in_a_plain_command_is_one_line(write: Write) -> None:
    write("measures", {COMMANDS: {"refuse": "gauges:refusing"}})
    assert run("refuse") == (2, "error: there is no gauge. Hint: buy one.\n")


@pytest.mark.usefixtures("offered")
def test_two_versions_do_not_go_together(write: Write) -> None:
    write("anyaccel-gauges", {NAMES: {"Gauge": "gauges:Gauge"}}, "9.1.0")
    with pytest.raises(PluginError) as caught:
        aa.Gauge  # noqa: B018
    core = version("anyaccel")
    assert caught.value.problem == f"anyaccel-gauges has version 9.1.0, but anyaccel has {core}; both must match"
    assert caught.value.hint == "python -m pip install anyaccel==9.1.0 anyaccel-gauges==9.1.0"


def test_two_that_offer_the_same_name_are_an_error(write: Write) -> None:
    for name in ("one", "two"):
        write(name, {SETTINGS: {"TrainPhase.gauge": "gauges:Setting"}})
    with pytest.raises(PluginError, match=r"(one|two) 0\.1\.0 and (one|two) 0\.1\.0 both provide 'TrainPhase\.gauge'"):
        distributions.load(SETTINGS, "TrainPhase.gauge")


def test_extensions_of_distributions_follow_those_of_this_process(write: Write) -> None:
    write("measures", {distributions.EXTENSIONS: {"gauge_point": "gauges:Setting"}})
    assert extensions("gauge_point") == [7]


def test_a_moved_module_is_the_same_under_both_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "anyaccel_gauges/all"
    package.mkdir(parents=True)
    for file in (package.parent / "__init__.py", package / "__init__.py"):
        file.write_text("", "utf-8")
    (package / "deep.py").write_text("class Gauge: ...", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(distributions, "MODULES", {"gauges": "anyaccel_gauges.all"})
    before = set(sys.modules)
    try:
        old = importlib.import_module("anyaccel.gauges.deep")
        new = importlib.import_module("anyaccel_gauges.all.deep")
        assert isinstance(old, ModuleType) and old is new
        assert new.__spec__ is not None and new.__spec__.name == new.__name__ == "anyaccel_gauges.all.deep"
        assert importlib.reload(new) is new
    finally:
        for name in set(sys.modules) - before:
            del sys.modules[name]
        vars(aa).pop("gauges", None)


# -- without anyaccel-resources ----------------------------------------------------------------------------------------


RESOURCES = "needs anyaccel-resources, which is not installed"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No distribution is installed beside core."""
    monkeypatch.setattr(distributions, "entry_points", lambda group: ())
    monkeypatch.setattr("anyaccel.extensions.entry_points", lambda group: ())
    monkeypatch.setattr("anyaccel.cli.main.entry_points", lambda group: ())
    for name in ("DeviceRequest", "Inventory"):
        monkeypatch.delitem(vars(aa), name, raising=False)


def pieces() -> tuple[aa.ModelGraph, aa.TrainPhase]:
    x = np.ones((4, 2), "float32")
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), data.reference())], "sgd")
    return graph, aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")])


REQUESTS = [
    "any",
    "H100:2",
    " a100-80GB",
    "H100, any",
    "{L4, T4}",
    "40GB+",
    "gpu[bf16]",
    "gpu:0+1",
    "gpu:*",
    "RTX-4090",
]
REQUESTS += ["B200+", "H100!", "any mem=64GB", "MI300X:8", "any:x"]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("asked", [*REQUESTS, ["gpu:0", "gpu:1"], {"cpu"}, ("any",)], ids=str)
def test_a_request_for_devices_says_what_is_not_installed(asked: object) -> None:
    config = {"device": asked, "pin_memory": False}
    for call in (lambda: aa.Accelerator(asked), lambda: aa.Accelerator.from_config(config), lambda: aa.move(1, asked)):
        with pytest.raises(DeviceParseError) as caught:
            call()
        assert isinstance(caught.value, MissingDistributionError)
        assert caught.value.problem == f"the request {asked!r} {RESOURCES}"
        assert "plugins/resources" in caught.value.hint


@pytest.mark.usefixtures("alone")
def test_what_is_no_request_is_as_before() -> None:
    for device in ("cpu", "cuda:1", "my_chip:2", "tpu", "gpuu:0", "h900", "npu:3", aa.Device("t4")):
        assert type(aa.Accelerator(device)) is aa.Accelerator
    for wrong in ("gpu:x", "gpu:-1", "cuda 0", "foo:x", "", "gpu-0"):
        with pytest.raises(DeviceParseError, match="does not name a device") as caught:
            aa.Accelerator(wrong)
        assert not isinstance(caught.value, MissingDistributionError)


@pytest.mark.usefixtures("alone")
def test_names_commands_and_settings_of_requests_say_what_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DeviceRequest", "Inventory"):
        with pytest.raises(MissingDistributionError, match=rf"^anyaccel\.{name} {RESOURCES}"):
            getattr(aa, name)
    status, output = run("resolve", "H100, any")
    assert status == 2 and output.startswith(f"error: the command anyaccel resolve {RESOURCES}")
    graph, train = pieces()
    with pytest.raises(MissingDistributionError, match=rf"^plan\.inventory {RESOURCES}"):
        aa.Experiment("e", graph).plan(train, inventory="8x H100-80GB")
    assert aa.Experiment("e", graph).plan(train).device("net") == aa.Device("cpu")
    config = {**train.get_config(), "accelerator": {"device": "H100:2", "pin_memory": False}}
    with pytest.raises(MissingDistributionError, match=f"^the request 'H100:2' {RESOURCES}"):
        aa.TrainPhase.from_config(config)
    monkeypatch.setenv("ANYACCEL_DEVICE", "H100, any")
    with pytest.raises(MissingDistributionError, match=f"ANYACCEL_DEVICE='H100, any': the request .* {RESOURCES}"):
        aa.Experiment("e", graph).plan(train)


@pytest.mark.usefixtures("alone")
def test_a_saved_graph_with_a_request_says_what_is_not_installed() -> None:
    graph, _ = pieces()
    config = graph.get_config()
    config["nodes"][0]["accelerator"] = {"device": "A100-80GB, any", "pin_memory": False}
    with pytest.raises(MissingDistributionError, match=f"the request 'A100-80GB, any' {RESOURCES}"):
        aa.ModelGraph.from_config(config, feature_sets=list(graph.feature_sets.values()))


@pytest.mark.usefixtures("alone")
def test_rates_of_devices_say_what_is_not_installed() -> None:
    graph, train = pieces()
    plan = aa.Experiment("e", graph).plan(train)
    mixed = replace(plan, assignments=tuple(replace(each, precision="bf16-mixed") for each in plan.assignments))
    work = measured_work(mixed, (), 4, custom_step=True)
    assert work.rate is None and f"the table of rates {RESOURCES}" in work.not_covered["model_flops_utilization"]


# -- without anyaccel-sklearn ------------------------------------------------------------------------------------------


SKLEARN = "needs anyaccel-sklearn, which is not installed"


@pytest.mark.usefixtures("alone")
def test_splits_by_strata_and_groups_say_what_is_not_installed() -> None:
    data = aa.FeatureSet.from_dict("d", {"x": np.arange(4.0), "y": [0, 0, 1, 1]}, ["x"], ["y"])
    ratios = {"a": 0.5, "b": 0.5}
    for rows in (data, data.view()):
        with pytest.raises(MissingDistributionError, match=rf"^FeatureSet\.stratify_by {SKLEARN}"):
            rows.split_random(ratios, stratify_by="y", group_by="y")
        with pytest.raises(MissingDistributionError, match=rf"^FeatureSet\.group_by {SKLEARN}"):
            rows.split_random(ratios, group_by="y")
        with pytest.raises(MissingDistributionError, match=rf"^FeatureSet\.group_by {SKLEARN}"):
            rows.split_by_condition({"a": {"y": 0}}, group_by="y")
    with pytest.raises(MissingDistributionError, match=rf"^FeatureSet\.group_by {SKLEARN}"):
        data.add_splits({"a": [0]}, group_by="y")
    assert not data.splits and len(data.split_random(ratios)["a"]) == 2


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", ["pair", "triplet"])
def test_saved_samplers_say_what_is_not_installed(kind: str) -> None:
    saved = {"type": kind, "batch_size": 4, "match": [{"condition": "same", "column": "y"}]}
    needed = rf"^the saved sampler\.{kind} {SKLEARN}"
    with pytest.raises(MissingDistributionError, match=needed):
        sampler_from_config(saved)
    _, train = pieces()
    for sampler in (saved, {"d": saved}):
        with pytest.raises(MissingDistributionError, match=needed):
            aa.TrainPhase.from_config({**train.get_config(), "sampler": sampler})
    with pytest.raises(ConfigError, match=r"a sampler has no type 'quad'\. Hint: write"):
        sampler_from_config({"type": "quad"})
    assert sampler_from_config({"batch_size": 2}) == aa.SimpleSampler(2)


class Halves:
    """A transform in the style of scikit-learn."""

    def fit(self, x: object) -> Halves:
        return self

    def transform(self, x: np.ndarray) -> np.ndarray:
        return x / 2


@pytest.mark.usefixtures("alone")
def test_transforms_say_what_is_not_installed() -> None:
    x = np.ones((4, 2), "float32")
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": ["a", "b"] * 2, "z": x[:, 0]}, ["x"], ["z"], ["y"])
    with pytest.raises(MissingDistributionError, match=rf"^FeatureSet\.fit_transform {SKLEARN}"):
        data.fit_transform(Halves(), "x", fit_on="all")
    assert data.transforms == () and np.array_equal(data.inverse(x, "x"), x)
    with pytest.raises(TransformError, match="it has no transforms"):
        data.transform_like(data)
    for undo in (data.undo_transform, data.undo_transforms):
        with pytest.raises(TransformError, match="'d' has no transform to undo"):
            undo()
    for columns, kind in (("w", ColumnError), ((), TransformError), (("x", "x"), TransformError)):
        with pytest.raises(kind):
            data.inverse(x, columns)


@pytest.mark.usefixtures("alone")
def test_fit_says_what_text_scalers_weights_and_groups_need() -> None:
    x = np.ones((4, 2), "float32")
    for labels in (["a", "b"] * 2, [True, False] * 2):
        with pytest.raises(MissingDistributionError, match=rf"^fit\.class_labels {SKLEARN}"):
            aa.fit(aa.SequentialMLP(2), (x, np.array(labels)), loss="cross_entropy", progress="none")
    for scaler in ("standard", Halves()):
        with pytest.raises(MissingDistributionError, match=rf"^fit\.scaler {SKLEARN}"):
            aa.fit(aa.SequentialMLP(2), (x, x), loss="mse", scaler=scaler, progress="none")
    settings = {"sample_weight": np.ones(4), "class_weights": "balanced", "group": "x", "stratify": True}
    for name, value in settings.items():
        with pytest.raises(MissingDistributionError, match=rf"^fit\.{name} {SKLEARN}"):
            aa.fit(aa.SequentialMLP(2), (x, [0, 1] * 2), progress="none", **{name: value})  # type: ignore[arg-type]
    data = (np.ones((16, 2), "float32"), [0, 1] * 8)
    fitted = aa.fit(aa.SequentialMLP(2), data, loss="cross_entropy", validation=0.5, progress="none")
    assert fitted.predict(x).shape == (4,)


@pytest.mark.usefixtures("alone")
def test_a_saved_graph_on_transformed_data_says_what_is_not_installed(tmp_path: Path) -> None:
    folder = Path(__file__).parent / "saved_0_1/fit"
    with pytest.raises(MissingDistributionError, match=rf"^the saved data\.transforms {SKLEARN}"):
        aa.load(shutil.copytree(folder / "classes-standard", tmp_path / "saved"))
    with pytest.raises(MissingDistributionError, match="data\\.transforms"):
        read_transforms([{"class": "StandardScaler"}], {})
    rows = aa.FeatureSet.from_dict("d", {"x": np.ones(3)}, "x")
    written = saved_rows(rows, rows, ["x"], arrays := {}, "p")
    loaded = SavedRows.read({**written, "transforms": [{"class": "StandardScaler"}]}, arrays)
    assert loaded.array("x").tolist() == [1, 1, 1]
    with pytest.raises(TransformError, match=SKLEARN) as caught:
        loaded.inverse(np.ones(3), "x")
    assert "plugins/sklearn" in caught.value.hint


@pytest.mark.usefixtures("alone")
def test_metrics_say_what_is_not_installed() -> None:
    needed = f"^the metric {{}} {SKLEARN}"
    for name, metric in {"roc_auc": "roc_auc", "roc_auc_score": "roc_auc", "recall": "recall"}.items():
        for call in (lambda n=name: aa.Metric(n), lambda n=name: aa.EvalPhase("e", data="all", metrics=[n])):
            with pytest.raises(MissingDistributionError, match=needed.format(metric)):
                call()
    with pytest.raises(MissingDistributionError, match=needed.format("log_loss")):
        aa.Metric.from_config({"measure": "log_loss", "on": "net", "targets": "targets", "label": "l"})
    with pytest.raises(SpecError, match=r"no metric is called 'auc'\. Available: accuracy, .*did you mean 'roc_auc'"):
        aa.Metric("auc")
    assert aa.Metric("f1_macro").compute(np.array([0, 1]), np.array([0, 1])) == 1.0


@pytest.mark.usefixtures("alone")
def test_the_direction_of_a_metric_that_is_not_installed_is_asked_for() -> None:
    def recall(outputs: object, targets: object) -> float:
        return 1.0

    graph, _ = pieces()
    assert is_higher_better("val_recall") is None
    validation = aa.EvalPhase("v", data="all", metrics=[recall])
    callbacks = [aa.EarlyStopping("val_recall")]
    phase = aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")], validation=validation)
    with pytest.raises(PhaseError, match="cannot tell whether a high or a low 'val_recall' is better"):
        aa.Experiment("e", graph, callbacks=callbacks, progress="none").run_phase(phase)
