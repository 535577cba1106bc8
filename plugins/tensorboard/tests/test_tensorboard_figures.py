"""What is logged, read back by TensorBoard's own reader."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.phases import Run, execute
from anyaccel.registry import registry as of_process


def float32(values):
    return [float(np.float32(value)) for value in values]


def from_block(text):
    """What stands in a block of code."""
    lines = text.splitlines()
    assert all(line.startswith("    ") for line in lines)
    return "\n".join(line[4:] for line in lines)


# -- training ----------------------------------------------------------------------------------------------------------


def test_figures_of_epochs_are_those_of_the_results(logged, read, experiment, train, evaluate):
    results = experiment().run_phase(train(validation=evaluate("check"), validate_every=2))
    told = read(logged / "demo/train-1")
    names = {"train/loss": "loss", "train/loss.one": "loss.one", "train/loss.two": "loss.two"}
    assert told.under("train/") == ["loss", "loss.one", "loss.two"]
    assert told.under("validation/") == ["loss", "loss.one", "loss.two", "one.r2", "two.r2"]
    names.update({f"validation/{name}": f"val_{name}" for name in told.under("validation/")})
    assert set(names.values()) == set(results.figures)
    for tag, name in names.items():
        have = [epoch for epoch in results.epochs if name in epoch.figures]
        steps = [0, 1, 2] if tag.startswith("train") else [1, 2]
        assert told.scalars[tag] == (steps, float32(epoch.figures[name] for epoch in have)), tag


def test_speed_is_that_of_the_results(logged, read, experiment, train):
    results = experiment().run_phase(train())
    told = read(logged / "demo/train-1").scalars
    seconds = [epoch.seconds for epoch in results.epochs]
    assert told["speed/epoch_seconds"] == ([0, 1, 2], float32(seconds))
    assert told["speed/steps_per_second"] == ([0, 1, 2], float32(4 / one for one in seconds))


def test_epochs_of_one_label_go_on_where_the_last_run_ended(logged, read, folders, experiment, train):
    ours = experiment()
    first, second = ours.run(train(), train())
    assert folders(logged) == ["demo/train-1", "demo/train-2"]
    for folder, results, steps in (("train-1", first, [0, 1, 2]), ("train-2", second, [3, 4, 5])):
        assert read(logged / "demo" / folder).scalars["train/loss"] == (steps, float32(results.loss))


def test_a_figure_that_is_no_number_is_logged_as_such(logged, read, experiment, train):
    with np.errstate(all="ignore"):
        results = experiment(optimizer=aa.Optimizer("sgd", lr=1e30)).run_phase(train())
    assert not np.isfinite(results.loss[-1])
    _, values = read(logged / "demo/train-1").scalars["train/loss"]
    np.testing.assert_array_equal(values, np.float32(results.loss))


def test_a_rate_with_a_schedule_is_that_of_the_last_step(logged, read, experiment, train):
    recipe = aa.Optimizer("sgd", lr=0.1, schedule=aa.Schedule("linear", steps=20, warmup=2))
    ours = experiment(optimizer=recipe)
    ours.run(train(), train("more"))
    states = ours.graph.state()
    assert states["one/optimizer_step"] == 24
    for folder, before in (("train-1", 0), ("more-1", 12)):
        told = read(logged / "demo" / folder)
        expected = float32(recipe.rate(before + 4 * (epoch + 1) - 1) for epoch in range(3))
        assert told.scalars["train/learning_rate"] == ([0, 1, 2], expected)
    assert len(set(expected)) == 3


def test_a_node_with_a_rate_of_its_own_has_a_tag_of_its_own(logged, read, data, experiment, train):
    ours = experiment()
    own = aa.Optimizer("sgd", lr=0.1, schedule=aa.Schedule("exponential", rate=0.9))
    ours.graph.replace_node("two", aa.ModelNode("two", aa.SequentialMLP(), data.reference(["x"], ["z"]), optimizer=own))
    ours.run_phase(train())
    told = read(logged / "demo/train-1")
    assert [tag for tag in told.scalars if "rate" in tag] == ["train/learning_rate.two"], "a constant rate is no curve"
    assert told.scalars["train/learning_rate.two"][1] == float32(own.rate(step) for step in (3, 7, 11))


def test_rates_of_what_is_not_trained_are_left_out(logged, read, experiment, train, evaluate):
    recipe = aa.Optimizer("sgd", lr=0.1, schedule=aa.Schedule("linear", steps=20))
    ours = experiment(optimizer=recipe)
    ours.run_phase(evaluate())
    ours.graph.freeze("one")
    ours.run_phase(train(losses=[aa.AppliedLoss("mse", on="two")]))
    assert "train/learning_rate" not in read(logged / "demo/eval-1").scalars
    assert "train/learning_rate" in read(logged / "demo/train-1").scalars
    ours.graph.freeze("two")
    with pytest.raises(aa.errors.AnyaccelError):
        ours.run_phase(train("frozen"))
    assert "train/learning_rate" not in read(logged / "demo/frozen-1").scalars


def test_memory_of_every_device_of_the_plan_is_told(logged, read, experiment, train):
    seen = []

    class Look(aa.Callback):
        def epoch_end(self, run):
            seen.append(of_process().find("numpy", "sim").memory(aa.Device("sim", 1)))

    with aa.simulate(2, capacity=2**20):
        experiment().run_phase(train(accelerator="sim:1", callbacks=[Look()]))
    told = read(logged / "demo/train-1")
    assert told.under("memory/") == [f"sim:1/numpy/{name}_bytes" for name in ("used", "peak", "total")]
    assert told.scalars["memory/sim:1/numpy/used_bytes"] == ([0, 1, 2], [one.used for one in seen])
    assert told.scalars["memory/sim:1/numpy/peak_bytes"] == ([0, 1, 2], [one.peak for one in seen])
    assert told.scalars["memory/sim:1/numpy/total_bytes"] == ([0, 1, 2], [2**20] * 3)
    assert seen[0].used > 0


def test_rates_are_left_out_where_steps_alternate(logged, read):
    sets = {name: aa.FeatureSet.from_dict(name, {"x": np.ones((8, 2)), "y": np.ones(8)}, ["x"], ["y"]) for name in "ab"}
    recipe = aa.Optimizer("sgd", lr=0.1, schedule=aa.Schedule("linear", steps=20))
    nodes = [aa.ModelNode(f"n{name}", aa.SequentialMLP(), one.reference()) for name, one in sets.items()]
    ours = aa.Experiment("demo", aa.ModelGraph(nodes, recipe), progress="none")
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
    told = [read(logged / "demo" / f"{schedule}-1") for schedule in ("zip_strict", "alternate_strict")]
    assert ["train/learning_rate" in one.scalars for one in told] == [True, False]


# -- evaluation and fitting --------------------------------------------------------------------------------------------


def test_an_evaluation_is_told_by_how_far_the_graph_was_trained(logged, read, experiment, train, evaluate):
    ours = experiment()
    before, _, _, after = ours.run(evaluate(), train(), train("more", n_epochs=2), evaluate())
    for folder, results, step in (("eval-1", before, 0), ("eval-2", after, 5)):
        told = read(logged / "demo" / folder)
        assert told.under("evaluation/") == ["loss", "loss.one", "loss.two", "one.r2", "two.r2"]
        assert told.scalars["evaluation/loss"] == ([step], float32([results.loss]))
        assert told.scalars["evaluation/loss.one"] == ([step], float32([results.losses["one"]]))
        assert told.scalars["evaluation/two.r2"] == ([step], float32([results.metrics["two.r2"]]))
        assert set(told.texts) == {"settings", "plan", "graph"}


def test_a_fit_is_told_by_its_texts(logged, read, data):
    class Mean:
        def fit(self, x, y):
            self.mean = y.mean()

        def predict(self, x):
            return x[:, :1] * 0 + self.mean

    graph = aa.ModelGraph([aa.ModelNode("mean", Mean(), data.reference(["x"], ["y"]))])
    aa.Experiment("demo", graph, progress="none").run_phase(aa.FitPhase("fit", data="train"))
    told = read(logged / "demo/fit-1")
    assert (told.scalars, set(told.texts)) == ({}, {"settings", "plan", "graph", "fitted"})
    assert re.fullmatch(r"mean: Mean to 16 rows in \S+ s", from_block(told.texts["fitted"]))


def test_a_fit_in_several_rounds_has_several_plans(logged, read, data):
    class Mean:
        def fit(self, x, y):
            self.mean = y.mean()

        def predict(self, x):
            return x[:, :1] * 0 + self.mean

    first = aa.ModelNode("first", Mean(), data.reference(["x"], ["y"]))
    graph = aa.ModelGraph([first, aa.ModelNode("second", Mean(), "first")])
    aa.Experiment("demo", graph, progress="none").run_phase(aa.FitPhase("fit", data="train"))
    told = read(logged / "demo/fit-1")
    assert told.text_steps["plan"] == told.text_steps["graph"] == [0, 1]
    assert [line.split(":")[0] for line in from_block(told.texts["fitted"]).splitlines()] == ["first", "second"]


# -- texts -------------------------------------------------------------------------------------------------------------


def test_the_plan_and_the_graph_are_told(logged, read, experiment, train):
    ours = experiment()
    results = ours.run_phase(train())
    texts = read(logged / "demo/train-1").texts
    assert from_block(texts["plan"]) == str(results.plan)
    table, word, drawing = texts["graph"].split("\n\n")
    assert (from_block(table), word) == (ours.graph.summary(), "Mermaid:")
    assert from_block(drawing) == ours.graph.visualize(plan=results.plan) and "flowchart LR" in drawing


def test_settings_are_told_as_json(logged, read, experiment, train):
    recipe = aa.Optimizer("adam", lr=0.02)
    phase = train(accelerator="cpu")
    experiment(optimizer=recipe).run_phase(phase)
    told = json.loads(read(logged / "demo/train-1").texts["settings"])
    assert told["experiment"] == "demo"
    assert told["graph"] == {"label": "pair", "seed": 0, "optimizer": json.loads(json.dumps(recipe.get_config()))}
    assert told["phase"] == json.loads(json.dumps(phase.get_config()))


def test_settings_that_have_no_name_are_told_as_python_shows_them(logged, read, data, experiment, train):
    def squares(outputs, targets):
        gap = outputs - targets
        return float((gap**2).sum()), float(len(gap)), (2 * gap, None)

    loss = aa.AppliedLoss(squares, on="one")
    experiment().run_phase(train(data=data, losses=[loss], n_epochs=1))
    phase = json.loads(read(logged / "demo/train-1").texts["settings"])["phase"]
    assert phase["type"] == "TrainPhase" and phase["n_epochs"] == "1"
    assert "data" in phase["data"] and "squares" in phase["losses"]


def test_labels_stay_text(logged, read, data, experiment):
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


def test_a_label_that_no_file_can_hold_ends_no_run(logged, read, experiment, train):
    experiment().run_phase(train(losses=[aa.AppliedLoss("mse", on="one", label="a\ud800")]))
    assert len(read(logged / "demo/train-1").scalars["train/loss.a?"][0]) == 3


def test_why_a_run_was_stopped_is_told(logged, read, experiment, train, on):
    stop = on("epoch_end", lambda run: run.stop("good enough\nfor `me`"))
    experiment().run_phase(train(callbacks=[stop]))
    told = read(logged / "demo/train-1")
    assert from_block(told.texts["stopped"]) == "good enough\nfor `me`"
    assert told.scalars["train/loss"][0] == [0]


# -- folders -----------------------------------------------------------------------------------------------------------


def test_runs_stand_side_by_side(logged, folders, experiment, train, evaluate):
    for label in ("first", "second", "second"):
        experiment(label).run(train(), evaluate("test"))
    assert folders(logged) == [
        *("first/test-1", "first/train-1", "second/test-1", "second/test-2", "second/train-1", "second/train-2")
    ]


def test_without_an_experiment_the_graph_gives_the_name(logged, folders, experiment, train):
    execute(Run(train(), experiment().graph))
    assert folders(logged) == ["pair/train-1"]


def test_two_runs_at_once_are_told_apart(logged, read, folders, experiment, train, on):
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
    assert [threads for threads, _ in seen] == [before] * 3 and threading.enumerate() == before
    assert still_open(logged) == []
    assert {count for _, count in seen} == {int(Path("/proc/self/fd").is_dir())}, "the system tells, or does not"


def test_an_epoch_can_be_read_when_it_has_ended(logged, read, experiment, train, on):
    seen = []
    look = on("epoch_end", lambda run: seen.append(read(logged / "demo/train-1").scalars["train/loss"][0]))
    experiment().run_phase(train(callbacks=[look]))
    assert seen == [[0], [0, 1], [0, 1, 2]]
