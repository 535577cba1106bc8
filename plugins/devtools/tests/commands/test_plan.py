"""`anyaccel plan`, `explain` and `estimate`: exit statuses, modules that cannot be run, saved plans and reports."""

from __future__ import annotations

import json
import sys

import pytest

from anyaccel import distributions
from anyaccel.numpy_backend import simulate

MODULE = """
import numpy as np
import anyaccel as aa

print("the module ran")
x = np.ones((64, 6), "float32")
data = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
nodes = [
    aa.ModelNode("encoder", aa.SequentialMLP(4), data.reference()),
    aa.ModelNode("<script>alert(1)<script>", aa.SequentialMLP(1), "encoder", accelerator="sim:1"),
]
graph = aa.ModelGraph(nodes, "adam")
losses = [aa.AppliedLoss("mse", on=nodes[1].label)]
train = aa.TrainPhase("train", data="all", losses=losses, accelerator="sim")
nothing = 3
"""
NODE = "<script>alert(1)<script>"


@pytest.fixture(autouse=True)
def _forget():
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        if name.startswith("planned"):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def devices():
    """Two simulated ones, of 1 GB each."""
    with simulate(2, capacity=10**9) as made:
        yield made


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "planned.py"
    path.write_text(MODULE, "utf-8")
    return str(path)


def test_a_plan_that_fits_and_covers_everything_exits_0(call, module):
    done = call("plan", f"{module}:train")
    assert done.exit_code == 0 and "it fits" in done.stdout
    assert f"running {module}" in done.stderr and "the module ran" in done.stderr and "ran" not in done.stdout
    for text in ("numpy sim:0", "who decided", "headroom", "residency of train", "512 B"):
        assert text in done.stdout


def test_what_does_not_fit_exits_1(call, module):
    with simulate(2, capacity=1000):
        done = call("estimate", f"{module}:train")
    assert done.exit_code == 1 and "it does not fit" in done.stdout


def test_explain_names_who_decided(call, module):
    done = call("explain", f"{module}:train", NODE)
    assert done.exit_code == 0 and "because its own accelerator is 'sim:1'" in done.stdout
    assert "The phase's 'sim' was not taken: the node's own accelerator comes first." in done.stdout
    written = json.loads(call("explain", f"{module}:train", NODE, "--json").stdout)
    assert written["reason"] == "node" and written["rejected"][0]["level"] == "phase"
    assert call("explain", f"{module}:train", "encodr").exit_code == 2


def test_advice_has_a_figure_for_each_practice(call, module):
    written = json.loads(call("plan", f"{module}:train", "--advise", "--json").stdout)
    advice = {each["practice"]: each for each in written["advice"]}
    assert len(advice) == 7 and all(each["figure"] for each in advice.values())
    assert advice["gradients set to none"]["figure"] == "1.1 KiB of gradients are freed after each step"
    assert advice["monitoring"]["verdict"] == "do"
    assert "pinned memory" in call("plan", f"{module}:train", "--advise").stdout


def test_a_saved_plan_is_compared_with_another(call, module, tmp_path):
    saved = tmp_path / "plan.json"
    assert call("plan", f"{module}:train", "--save", str(saved)).exit_code == 0
    with simulate(2, capacity=2 * 10**9):
        done = call("plan", f"{module}:train", "--compare", str(saved))
    assert "memory of numpy on sim:0, capacity: 1000000000 -> 2000000000" in done.stdout
    saved.write_text("[" * 10_000, "utf-8")
    done = call("plan", f"{module}:train", "--compare", str(saved))
    assert done.exit_code == 2 and "nested too deep" in done.stderr
    assert call("plan", f"{module}:train", "--compare", str(tmp_path / "none.json")).exit_code == 2


def test_a_report_has_the_figures_of_the_json_and_labels_are_text(call, module, tmp_path):
    report, saved = tmp_path / "plan.html", tmp_path / "plan.json"
    call("plan", f"{module}:train", "--html", str(report), "--save", str(saved))
    page, plain = report.read_text("utf-8"), json.loads(saved.read_text("utf-8"))
    assert "<script" not in page.lower() and "&lt;script&gt;" in page
    assert "src=" not in page and 'href="http' not in page and "url(" not in page  # nothing is loaded
    for memory in plain["memory"]:
        for name in ("parameters", "gradients", "optimizer", "activations", "batches", "total", "headroom", "capacity"):
            assert f'data-category="{name}" data-bytes="{memory[name]}"' in page
    for crossing in plain["crossings"]:
        assert f'data-edge-bytes="{crossing["nbytes"] * plain["batch_size"]}"' in page


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("planned", "is not module:object"),
        (":train", "is not module:object"),
        ("no_such_module_here:train", "set PYTHONPATH, or pass the file"),
        ("no_such_file.py:train", "the file no_such_file.py does not exist"),
        ("{module}:trian", "did you mean 'train'?"),
        ("{module}:nothing", "is a int, not a phase. Available: train"),
        ("{broken}:train", "cannot be run: ZeroDivisionError"),
        ("{ended}:train", "cannot be run: SystemExit"),
        ("{two}:train", "has several graphs. Available: graph, other"),
    ],
)
def test_a_module_that_cannot_be_used_is_told(call, module, tmp_path, reference, told):
    others = {"broken": "1 / 0", "ended": "raise SystemExit(3)", "two": f"{MODULE}\nother = aa.ModelGraph(nodes)"}
    for name, source in others.items():
        (tmp_path / f"planned_{name}.py").write_text(source, "utf-8")
    paths = {name: tmp_path / f"planned_{name}.py" for name in others}
    done = call("plan", reference.format(module=module, **paths))
    assert done.exit_code == 2 and told in done.stderr


def test_a_graph_is_named_where_there_are_several(call, tmp_path):
    path = tmp_path / "planned_two.py"
    path.write_text(f"{MODULE}\nother = aa.ModelGraph(nodes)", "utf-8")
    assert call("plan", f"{path}:train", "--graph", "graph").exit_code == 0
    assert "has no graph or experiment 'x'" in call("plan", f"{path}:train", "--graph", "x").stderr
    assert call("plan", f"{path}:train", "--on", "cpu", "--file", "x.json").exit_code == 2


def test_the_working_directory_is_not_searched(spawn, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "planned_here.py").write_text(MODULE, "utf-8")
    done = spawn("plan", "planned_here:train", cwd=folder)
    assert done.returncode == 2 and "cannot be run: ModuleNotFoundError" in done.stderr


@pytest.mark.parametrize(("option", "named"), [("--on", "plan.inventory"), ("--file", "anyaccel.Inventory")])
def test_a_plan_for_a_machine_that_is_not_here_says_what_is_not_installed(call, module, monkeypatch, option, named):
    installed = distributions.entry_points
    without = lambda group: [entry for entry in installed(group) if "anyaccel_resources" not in entry.value]  # noqa: E731
    monkeypatch.setattr(distributions, "entry_points", without)
    done = call("plan", f"{module}:train", option, "8x H100-80GB")
    assert done.exit_code == 2
    assert f"error: {named} needs anyaccel-resources, which is not installed" in done.stderr
    assert call("plan", f"{module}:train").exit_code == 0
