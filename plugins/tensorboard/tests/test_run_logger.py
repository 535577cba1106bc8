"""What is logged, read back by TensorBoard's own reader."""

from __future__ import annotations

import json
import re
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.backend import Memory
from anyaccel.phases import Run, execute
from anyaccel.registry import registry as process_registry


def float32(values):
    return [float(np.float32(value)) for value in values]


def from_block(text):
    """What stands in a block of code."""
    lines = text.splitlines()
    assert all(line.startswith("    ") for line in lines)
    return "\n".join(line[4:] for line in lines)


# -- training ----------------------------------------------------------------------------------------------------------


def test_figures_of_epochs_match_the_results(logged, read, experiment, train, evaluate):
    results = experiment().run_phase(train(validation=evaluate("check"), validate_every=2))
    written = read(logged / "demo/train-1")
    names = {"train/loss": "loss", "train/loss.one": "loss.one", "train/loss.two": "loss.two"}
    assert written.under("train/") == ["loss", "loss.one", "loss.two"]
    assert written.under("validation/") == ["loss", "loss.one", "loss.two", "one.r2", "two.r2"]
    names.update({f"validation/{name}": f"val_{name}" for name in written.under("validation/")})
    assert set(names.values()) == set(results.figures)
    for tag, name in names.items():
        have = [epoch for epoch in results.epochs if name in epoch.figures]
        steps = [0, 1, 2] if tag.startswith("train") else [1, 2]
        assert written.scalars[tag] == (steps, float32(epoch.figures[name] for epoch in have)), tag


def test_speed_matches_the_results(logged, read, experiment, train):
    results = experiment().run_phase(train())
    written = read(logged / "demo/train-1").scalars
    seconds = [epoch.seconds for epoch in results.epochs]
    assert written["speed/epoch_seconds"] == ([0, 1, 2], float32(seconds))
    assert written["speed/steps_per_second"] == ([0, 1, 2], float32(4 / one for one in seconds))


def test_epochs_of_a_label_continue_after_the_last_run(logged, read, folders, experiment, train):
    ours = experiment()
    first, second = ours.run(train(), train())
    assert folders(logged) == ["demo/train-1", "demo/train-2"]
    for folder, results, steps in (("train-1", first, [0, 1, 2]), ("train-2", second, [3, 4, 5])):
        assert read(logged / "demo" / folder).scalars["train/loss"] == (steps, float32(results.loss))


@pytest.mark.filterwarnings("ignore::anyaccel.errors.NaNWarning")
def test_figures_that_are_not_finite_are_written(logged, read, experiment, train):
    with np.errstate(all="ignore"):
        results = experiment(optimizer=aa.Optimizer("sgd", lr=1e30)).run_phase(train())
    assert not np.isfinite(results.loss[-1])
    _, values = read(logged / "demo/train-1").scalars["train/loss"]
    np.testing.assert_array_equal(values, np.float32(results.loss))


def test_a_scheduled_rate_is_that_of_the_last_step(logged, read, experiment, train):
    optimizer = aa.Optimizer("sgd", lr=0.1, schedule=aa.Schedule("linear", steps=22, warmup=2))
    ours = experiment(optimizer=optimizer)
    ours.run(train(), train("more"))
    states = ours.graph.state()
    assert states["one/optimizer_step"] == 24
    for folder, before in (("train-1", 0), ("more-1", 12)):
        written = read(logged / "demo" / folder)
        expected = float32(optimizer.rate(before + 4 * (epoch + 1) - 1) for epoch in range(3))
        assert written.scalars["train/learning_rate"] == ([0, 1, 2], expected)
    assert len(set(expected)) == 3


def test_a_node_with_its_own_optimizer_has_its_own_tag(logged, read, data, experiment, train):
    ours = experiment()
    own = aa.Optimizer("sgd", lr=0.1, schedule=aa.Schedule("exponential", rate=0.9))
    ours.graph.replace_node("two", aa.ModelNode("two", aa.SequentialMLP(), data.reference(["x"], ["z"]), optimizer=own))
    ours.run_phase(train())
    written = read(logged / "demo/train-1")
    assert [tag for tag in written.scalars if "rate" in tag] == ["train/learning_rate.two"], (
        "a constant rate is no curve"
    )
    assert written.scalars["train/learning_rate.two"][1] == float32(own.rate(step) for step in (3, 7, 11))


def test_rates_of_frozen_nodes_are_left_out(logged, read, experiment, train, evaluate):
    optimizer = aa.Optimizer("sgd", lr=0.1, schedule=aa.Schedule("linear", steps=20))
    ours = experiment(optimizer=optimizer)
    ours.run_phase(evaluate())
    ours.graph.freeze("one")
    ours.run_phase(train(losses=[aa.AppliedLoss("mse", on="two")]))
    assert "train/learning_rate" not in read(logged / "demo/eval-1").scalars
    assert "train/learning_rate" in read(logged / "demo/train-1").scalars
    ours.graph.freeze("two")
    with pytest.raises(aa.errors.AnyaccelError):
        ours.run_phase(train("frozen"))
    assert "train/learning_rate" not in read(logged / "demo/frozen-1").scalars


def test_memory_of_every_device_of_the_plan_is_written(logged, read, experiment, train):
    seen = []

    class Look(aa.Callback):
        def epoch_end(self, run):
            seen.append(process_registry().find("numpy", "sim").required(Memory).memory(aa.Device("sim", 1)))

    with aa.simulate(2, capacity=2**20):
        experiment().run_phase(train(accelerator="sim:1", callbacks=[Look()]))
    written = read(logged / "demo/train-1")
    assert written.under("memory/") == [f"sim:1/numpy/{name}_bytes" for name in ("used", "peak", "total")]
    assert written.scalars["memory/sim:1/numpy/used_bytes"] == ([0, 1, 2], [one.used for one in seen])
    assert written.scalars["memory/sim:1/numpy/peak_bytes"] == ([0, 1, 2], [one.peak for one in seen])
    assert written.scalars["memory/sim:1/numpy/total_bytes"] == ([0, 1, 2], [2**20] * 3)
    assert seen[0].used > 0


def test_rates_are_left_out_where_steps_alternate(logged, read):
    sets = {name: aa.FeatureSet.from_dict(name, {"x": np.ones((8, 2)), "y": np.ones(8)}, ["x"], ["y"]) for name in "ab"}
    optimizer = aa.Optimizer("sgd", lr=0.1, schedule=aa.Schedule("linear", steps=20))
    nodes = [aa.ModelNode(f"n{name}", aa.SequentialMLP(), one.reference()) for name, one in sets.items()]
    ours = aa.Experiment("demo", aa.ModelGraph(nodes, optimizer), progress="none")
    for schedule in ("zip_strict", "alternate_strict"):
        ours.run_phase(
            aa.TrainPhase(
                schedule,
                data=sets,
                losses=[aa.AppliedLoss("mse", on="na"), aa.AppliedLoss("mse", on="nb")],
                sampler={"a": 4, "b": 4},
                schedule=schedule,
            )
        )
    written = [read(logged / "demo" / f"{schedule}-1") for schedule in ("zip_strict", "alternate_strict")]
    assert ["train/learning_rate" in one.scalars for one in written] == [True, False]


# -- evaluation and fitting --------------------------------------------------------------------------------------------


def test_an_evaluation_is_written_at_the_number_of_trained_epochs(logged, read, experiment, train, evaluate):
    ours = experiment()
    before, _, _, after = ours.run(evaluate(), train(), train("more", epochs=2), evaluate())
    for folder, results, step in (("eval-1", before, 0), ("eval-2", after, 5)):
        written = read(logged / "demo" / folder)
        assert written.under("evaluation/") == ["loss", "loss.one", "loss.two", "one.r2", "two.r2"]
        assert written.scalars["evaluation/loss"] == ([step], float32([results.loss]))
        assert written.scalars["evaluation/loss.one"] == ([step], float32([results.losses["one"]]))
        assert written.scalars["evaluation/two.r2"] == ([step], float32([results.metrics["two.r2"]]))
        assert set(written.texts) == {"settings", "plan", "graph"}


def test_a_fit_is_written_as_texts(logged, read, data):
    class Mean:
        def fit(self, x, y):
            self.mean = y.mean()

        def predict(self, x):
            return x[:, :1] * 0 + self.mean

    graph = aa.ModelGraph([aa.ModelNode("mean", Mean(), data.reference(["x"], ["y"]))])
    aa.Experiment("demo", graph, progress="none").run_phase(aa.FitPhase("fit", data="train"))
    written = read(logged / "demo/fit-1")
    assert (written.scalars, set(written.texts)) == ({}, {"settings", "plan", "graph", "fitted"})
    assert re.fullmatch(r"mean: Mean to 16 rows in \S+ s", from_block(written.texts["fitted"]))


def test_a_fit_in_several_rounds_has_several_plans(logged, read, data):
    class Mean:
        def fit(self, x, y):
            self.mean = y.mean()

        def predict(self, x):
            return x[:, :1] * 0 + self.mean

    first = aa.ModelNode("first", Mean(), data.reference(["x"], ["y"]))
    graph = aa.ModelGraph([first, aa.ModelNode("second", Mean(), "first")])
    aa.Experiment("demo", graph, progress="none").run_phase(aa.FitPhase("fit", data="train"))
    written = read(logged / "demo/fit-1")
    assert written.text_steps["plan"] == written.text_steps["graph"] == [0, 1]
    assert [line.split(":")[0] for line in from_block(written.texts["fitted"]).splitlines()] == ["first", "second"]


# -- texts -------------------------------------------------------------------------------------------------------------


def test_the_plan_and_the_graph_are_written(logged, read, experiment, train):
    ours = experiment()
    results = ours.run_phase(train())
    texts = read(logged / "demo/train-1").texts
    assert from_block(texts["plan"]) == str(results.plan)
    table, *drawn = texts["graph"].split("\n\n")
    assert from_block(table) == ours.graph.summary()
    if find_spec("anyaccel_devtools") is None:
        assert drawn == []
        return
    word, drawing = drawn
    assert word == "Mermaid:"
    assert from_block(drawing) == ours.graph.visualize(plan=results.plan) and "flowchart LR" in drawing


def test_settings_are_written_as_json(logged, read, experiment, train):
    optimizer = aa.Optimizer("adam", lr=0.02)
    phase = train(accelerator="cpu")
    experiment(optimizer=optimizer).run_phase(phase)
    written = json.loads(read(logged / "demo/train-1").texts["settings"])
    assert written["experiment"] == "demo"
    assert written["graph"] == {"label": "pair", "seed": 0, "optimizer": json.loads(json.dumps(optimizer.get_config()))}
    assert written["phase"] == json.loads(json.dumps(phase.get_config()))


def test_settings_without_a_configuration_are_written_as_repr(logged, read, data, experiment, train):
    def squares(outputs, targets):
        gap = outputs - targets
        return float((gap**2).sum()), float(len(gap)), (2 * gap, None)

    loss = aa.AppliedLoss(squares, on="one")
    experiment().run_phase(train(data=data, losses=[loss], epochs=1))
    phase = json.loads(read(logged / "demo/train-1").texts["settings"])["phase"]
    assert phase["type"] == "TrainPhase" and phase["epochs"] == "1"
    assert "data" in phase["data"] and "squares" in phase["losses"]


def test_labels_are_never_markup(logged, read, data, experiment):
    label = "<script>alert(1)```"
    node = aa.ModelNode(label, aa.SequentialMLP(), data.reference(["x"], ["y"]))
    ours = aa.Experiment(label, aa.ModelGraph([node], "sgd", label), progress="none")
    ours.run_phase(aa.TrainPhase(label, data="train", losses=[aa.AppliedLoss("mse", on=label, label="l")]))
    (folder,) = [path.parent for path in logged.rglob("*tfevents*")]
    assert re.fullmatch(r"[\w-]+/[\w-]+-1", folder.relative_to(logged).as_posix())
    texts = read(folder).texts
    assert label in texts["plan"] and label in texts["settings"]
    for text in texts.values():
        assert all(line.startswith("    ") or line in ("", "Mermaid:") for line in text.splitlines())


def test_the_reason_of_a_stop_is_written(logged, read, experiment, train, on):
    stop = on("epoch_end", lambda run: run.stop("good enough\nfor `me`"))
    experiment().run_phase(train(callbacks=[stop]))
    written = read(logged / "demo/train-1")
    assert from_block(written.texts["stopped"]) == "good enough\nfor `me`"
    assert written.scalars["train/loss"][0] == [0]


# -- folders -----------------------------------------------------------------------------------------------------------


def test_each_run_has_a_folder(logged, folders, experiment, train, evaluate):
    for label in ("first", "second", "second"):
        experiment(label).run(train(), evaluate("test"))
    assert folders(logged) == [
        *("first/test-1", "first/train-1", "second/test-1", "second/test-2", "second/train-1", "second/train-2")
    ]


def test_without_an_experiment_the_graph_gives_the_name(logged, folders, experiment, train):
    execute(Run(train(), experiment().graph))
    assert folders(logged) == ["pair/train-1"]


def test_concurrent_runs_are_written_separately(logged, read, folders, experiment, train, on):
    together, results = threading.Barrier(2), {}

    def run(seed):
        ours = experiment(f"e{seed}")
        ours.graph.seed = seed
        meet = on("epoch_end", lambda run: together.wait(20))
        results[seed] = ours.run_phase(train(callbacks=[meet]))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders(logged) == ["e1/train-1", "e2/train-1"]
    assert results[1].loss[0] != results[2].loss[0]
    for seed, found in results.items():
        assert read(logged / f"e{seed}/train-1").scalars["train/loss"][1] == float32(found.loss)


def test_no_thread_is_started_and_no_file_stays_open(logged, experiment, train, on, still_open):
    before, seen = threading.enumerate(), []
    look = on("epoch_end", lambda run: seen.append((threading.enumerate(), len(still_open(logged)))))
    experiment().run_phase(train(callbacks=[look]))
    # A thread that an earlier test left may end at any time.
    assert [set(threads) - set(before) for threads, _ in seen] == [set()] * 3
    assert set(threading.enumerate()) <= set(before)
    assert still_open(logged) == []
    assert {count for _, count in seen} == {int(Path("/proc/self/fd").is_dir())}, "the system tells, or does not"


def test_an_epoch_can_be_read_when_it_has_ended(logged, read, experiment, train, on):
    seen = []
    look = on("epoch_end", lambda run: seen.append(read(logged / "demo/train-1").scalars["train/loss"][0]))
    experiment().run_phase(train(callbacks=[look]))
    assert seen == [[0], [0, 1], [0, 1, 2]]
