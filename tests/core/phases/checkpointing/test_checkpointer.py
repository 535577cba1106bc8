"""A run that was broken off anywhere resumes from its checkpoint, and gives what one gives that never stopped."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from anyaccel import AppliedLoss, ConcatNode, IterableSource, MapSource, ModelGraph, ModelNode
from anyaccel.errors import PhaseError, SourceError, StateError
from anyaccel.numpy_backend import SequentialMLP
from anyaccel.phases import Callback, Checkpoint, EarlyStopping
from anyaccel.phases.checkpointing import checkpointer, run_folder
from anyaccel.phases.checkpointing import checkpointer as termination
from anyaccel.saved_folder.storage import LocalStorage
from anyaccel.specs import Optimizer

from .conftest import Broken


def dropping():
    return SequentialMLP(dropout=0.4)


def names(folder):
    return run_folder.RunFolder(Path(folder)).names()


@pytest.mark.parametrize("residency", ["resident", "streamed"])
@pytest.mark.parametrize(
    "where",
    [
        *(("step_end", step) for step in (1, 2, 3, 4, 5, 7, 8, 12)),
        *(("epoch_start", 2), ("epoch_end", 1), ("epoch_end", 2), ("epoch_end", 3)),
    ],
)
def test_a_run_that_was_broken_off_goes_on_to_the_bit(
    line, experiment, tuned, break_off, like, same, values, tmp_path, where, residency
):
    whole = line(dropping())
    expected = experiment(whole).run_phase(tuned(None, break_off(), residency=residency))
    with pytest.raises(KeyboardInterrupt):
        experiment(line(dropping())).run_phase(tuned(tmp_path, break_off(*where), residency=residency, every=3))
    graph = line(dropping())
    results = experiment(graph).run_phase(tuned(tmp_path, break_off(), residency=residency), resume="auto")
    like(results, expected)
    same(values(graph), values(whole))
    assert [event.kind for event in results.events if event.kind == "checkpoint"] == ["checkpoint"]


def test_a_run_that_fails_before_it_goes_on_within_an_epoch_leaves_what_it_would_have_gone_on_from(
    line, experiment, tuned, break_off, like, same, values, tmp_path
):
    whole = line(dropping())
    expected = experiment(whole).run_phase(tuned(None, break_off()))
    with pytest.raises(KeyboardInterrupt):
        experiment(line(dropping())).run_phase(tuned(tmp_path, break_off("step_end", 6)))
    assert names(tmp_path)[-1] == "epoch-000001-step-000000002"

    def contents():
        return {
            path: path.read_bytes() for path in Path(tmp_path).rglob("*") if path.suffix in (".json", ".safetensors")
        }

    written = contents()

    class Refuses(Callback):
        def epoch_start(self, run):
            raise Broken

    with pytest.raises(Broken):
        experiment(line(dropping()), callbacks=[Refuses()]).run_phase(tuned(tmp_path, break_off()), resume="auto")
    assert contents() == written
    graph = line(dropping())
    results = experiment(graph).run_phase(tuned(tmp_path, break_off()), resume="auto")
    like(results, expected)
    same(values(graph), values(whole))


@pytest.mark.parametrize("every", ["epoch", 1, 3, "0.000001s"])
def test_what_a_killed_process_had_written_last_is_enough(
    line, experiment, tuned, like, same, values, tmp_path, monkeypatch, every
):
    """Nothing is written at the end of a process that is killed."""
    whole = line(dropping())
    expected = experiment(whole).run_phase(tuned())
    monkeypatch.setattr(checkpointer.Checkpointer, "after_error", lambda *args: None)

    class Kill(Callback):
        def step_end(self, run):
            if (run.epoch, run.step) == (1, 2):
                raise Broken

    phase = tuned(tmp_path, every=every)
    with pytest.raises(Broken):
        experiment(line(dropping()), callbacks=[Kill()]).run_phase(phase)
    monkeypatch.undo()
    lost = {"epoch": "epoch-000001-step-000000000", 1: "epoch-000001-step-000000002", 3: "epoch-000001-step-000000002"}
    assert names(tmp_path)[-1] == lost.get(every, names(tmp_path)[-1])

    class Quiet(Kill):
        def step_end(self, run):
            pass

    Quiet.__name__ = "Kill"
    graph = line(dropping())
    results = experiment(graph, callbacks=[Quiet()]).run_phase(tuned(tmp_path), resume="auto")
    like(results, expected)
    same(values(graph), values(whole))


def test_steps_between_checkpoints_are_counted_over_epochs(line, experiment, tuned, break_off, same, values, tmp_path):
    """An epoch may be shorter; and a run that goes on writes at the steps at which the first would have."""
    experiment(line()).run_phase(tuned(tmp_path / "whole", every=6, keep=9))
    expected = [f"epoch-00000{epoch}-step-00000000{step}" for epoch, step in ((1, 2), (2, 4), (3, 0))]
    assert names(tmp_path / "whole") == expected
    with pytest.raises(KeyboardInterrupt):
        experiment(line()).run_phase(tuned(tmp_path / "again", break_off("step_end", 5), every=6, keep=9))
    experiment(line()).run_phase(tuned(tmp_path / "again", break_off(), every=6, keep=9), resume="auto")
    assert names(tmp_path / "again") == [names(tmp_path / "again")[0], *expected]


class Noisy:
    """A data set whose items have noise."""

    def __init__(self, draw):
        self._draw = draw

    def __len__(self):
        return 16

    def __getitem__(self, index):
        x = np.full(3, index / 16, "float32")
        return x + np.float32(self._draw()), x[:1]


class Held:
    def __init__(self, rng):
        self.rng = rng

    def __call__(self):
        return self.rng.random()


def in_closure():
    rng = np.random.RandomState(0)
    return lambda: rng.uniform()


DRAWS = {
    "Python's random": lambda: random.random,
    "NumPy's np.random": lambda: np.random.random,
    "bound to a Generator": lambda: np.random.default_rng(0).random,
    "held by an object": lambda: Held(np.random.default_rng(0)),
    "a random.Random": lambda: Held(random.Random(0)),
    "enclosed by a function": in_closure,
    "none": lambda: lambda: 0.0,
}


@pytest.mark.parametrize(
    ("kind", "draw", "at"),
    [
        *((kind, draw, 6) for kind in ("map", "batches") for draw in DRAWS),
        *(
            (kind, draw, at)
            for kind in ("map", "batches")
            for draw in ("held by an object", "NumPy's np.random")
            for at in (3, 4)
        ),
    ],
)
def test_what_a_source_draws_goes_on(experiment, train, tmp_path, break_off, like, same, values, kind, draw, at):
    """As in a run that nobody interrupts, whatever generator it draws from, and wherever that stands by now."""

    def run(folder, callback, **settings):
        random.seed(1)
        np.random.seed(1)
        data = Noisy(DRAWS[draw]())
        if kind == "map":
            source, settings = MapSource("data", data, features="x", target="y"), {**settings, "batch_size": 4}
        else:
            batches = lambda: (  # noqa: E731
                {"x": np.stack([data[i][0] for i in rows]), "y": np.stack([data[i][1] for i in rows])}
                for rows in np.arange(16).reshape(4, 4)
            )
            source = IterableSource("data", batches, features="x", target="y")
        graph = ModelGraph([ModelNode("net", SequentialMLP(), source.example.reference())], "adam")
        if callback is None and folder is not None:
            random.seed(2)  # another process
            np.random.seed(2)
            data.__getitem__(0)
        checkpoint = None if folder is None else Checkpoint(folder)
        phase = train(
            data={"data": source},
            epochs=3,
            checkpoint=checkpoint,
            callbacks=[callback] if callback else [],
            **settings,
        )
        return graph, experiment(graph).run_phase(phase, resume="auto" if folder else "never")

    whole, expected = run(None, break_off())
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, break_off("step_end", at))
    graph, resumed = run(tmp_path, None)
    like(resumed, expected)
    same(values(graph), values(whole))


def test_a_source_that_gives_other_rows_is_refused_and_the_hint_helps(experiment, train, tmp_path, break_off, like):
    def run(batches, folder, callback=None):
        source = IterableSource("data", batches, features="x", target="y")
        graph = ModelGraph([ModelNode("net", SequentialMLP(), source.example.reference())], "adam")
        phase = train(
            data={"data": source},
            epochs=3,
            checkpoint=None if folder is None else Checkpoint(folder),
            callbacks=[callback] if callback else [],
        )
        return experiment(graph).run_phase(phase, resume="auto" if folder else "never")

    def random_batches(rng):
        return ({"x": rng.normal(size=(4, 3)).astype("float32"), "y": np.ones(4, "float32")} for _ in range(4))

    def of_the_system():
        yield from random_batches(np.random.default_rng())

    folder = tmp_path / "system"
    with pytest.raises(KeyboardInterrupt):
        run(of_the_system, folder, break_off("step_end", 6))
    for _ in range(2):  # what is refused stays refused
        with pytest.raises(
            SourceError, match=r"returns other rows than before the checkpoint: at step 1 of epoch 1.*differ"
        ) as told:
            run(of_the_system, folder)
    assert "a parameter `epoch`" in told.value.hint

    by_epoch = lambda epoch: random_batches(np.random.default_rng(epoch))  # noqa: E731
    expected = run(by_epoch, None)
    with pytest.raises(KeyboardInterrupt):
        run(by_epoch, tmp_path / "epoch", break_off("step_end", 6))
    like(run(by_epoch, tmp_path / "epoch"), expected)


def test_an_iterator_is_told_and_refused_after_its_first_epoch_and_the_hint_helps(
    experiment, train, tmp_path, break_off, like
):
    def batches():
        rng = np.random.default_rng(0)
        while True:
            yield {"x": rng.normal(size=(4, 3)).astype("float32"), "y": np.ones(4, "float32")}

    def run(given, folder, callback=None):
        source = IterableSource("data", given, features="x", target="y", steps=4)
        graph = ModelGraph([ModelNode("net", SequentialMLP(), source.example.reference())], "adam")
        checkpoint = None if folder is None else Checkpoint(folder)
        callbacks = [callback] if callback else []
        phase = train(data={"data": source}, epochs=3, checkpoint=checkpoint, callbacks=callbacks)
        return experiment(graph).run_phase(phase, resume="auto" if folder else "never")

    folders = [tmp_path / name for name in "abc"]
    expected = run(batches(), None)
    with pytest.raises(KeyboardInterrupt):
        run(batches(), folders[0], break_off("step_end", 3))
    with pytest.warns(RuntimeWarning, match=r"'data' is an iterator, so a run cannot resume"):
        like(run(batches(), folders[0]), expected)
    with pytest.raises(KeyboardInterrupt), pytest.warns(RuntimeWarning, match="is an iterator"):
        run(batches(), folders[1], break_off("step_end", 6))
    with pytest.raises(SourceError, match="'data' is an iterator: a run cannot resume at epoch 1") as told:
        run(batches(), folders[1])
    assert "the generator function itself" in told.value.hint
    expected = run(batches, None)
    with pytest.raises(KeyboardInterrupt):
        run(batches, folders[2], break_off("step_end", 6))
    like(run(batches, folders[2]), expected)


def test_a_generator_that_is_gone_is_refused(experiment, train, tmp_path, break_off):
    def run(draw, callback=None):
        source = MapSource("data", Noisy(draw), features="x", target="y")
        graph = ModelGraph([ModelNode("net", SequentialMLP(), source.example.reference())], "adam")
        checkpoint = Checkpoint(tmp_path)
        phase = train(data={"data": source}, checkpoint=checkpoint, callbacks=[callback] if callback else [])
        return experiment(graph).run_phase(phase, resume="auto")

    with pytest.raises(KeyboardInterrupt):
        run(Held(np.random.default_rng(0)), break_off("step_end", 2))
    with pytest.raises(SourceError, match=r"generator '0\._draw\.rng' is no longer in the source"):
        run(lambda: 0.5)
    with pytest.raises(SourceError, match=r"generator '0\._draw\.rng' does not accept its earlier state"):
        run(Held(random.Random(0)))
    run(Held(np.random.default_rng(5)))  # as the hint says


def test_several_interruptions_of_one_run(line, experiment, tuned, break_off, like, same, values, tmp_path):
    whole = line(dropping())
    expected = experiment(whole).run_phase(tuned(None, break_off()))
    for hook, at in (("step_end", 2), ("step_end", 1), ("epoch_end", 1), ("step_end", 3)):
        with pytest.raises(KeyboardInterrupt):
            experiment(line(dropping())).run_phase(tuned(tmp_path, break_off(hook, at)), resume="auto")
    graph = line(dropping())
    like(experiment(graph).run_phase(tuned(tmp_path, break_off()), resume="auto"), expected)
    same(values(graph), values(whole))


def test_accumulated_steps_go_on(line, experiment, tuned, break_off, like, same, values, tmp_path):
    whole = line(dropping())
    expected = experiment(whole).run_phase(tuned(None, break_off(), accumulate=2, batch_size=3))
    with pytest.raises(KeyboardInterrupt):
        experiment(line(dropping())).run_phase(tuned(tmp_path, break_off("step_end", 5), accumulate=2, batch_size=3))
    graph = line(dropping())
    phase = tuned(tmp_path, break_off(), accumulate=2, batch_size=3)
    like(experiment(graph).run_phase(phase, resume="auto"), expected)
    same(values(graph), values(whole))


def test_a_complete_run_is_not_trained_again(line, experiment, tuned, like, same, values, tmp_path):
    graph = line(dropping())
    first = experiment(graph).run_phase(tuned(tmp_path))
    again = line(dropping())
    second = experiment(again).run_phase(tuned(tmp_path), resume="auto")
    like(second, first)
    same(values(again), values(graph))
    longer = experiment(line(dropping())).run_phase(tuned(tmp_path, epochs=5), resume="auto")
    assert [epoch.number for epoch in longer.epochs] == [0, 1, 2, 3, 4]


def test_a_run_that_was_stopped_stays_stopped(line, experiment, train, at, tmp_path):
    def stop(run):
        if run.epoch == 1:
            run.stop("enough")

    phase = train(epochs=5, checkpoint=tmp_path, callbacks=[at("epoch_end", stop)])
    assert len(experiment(line()).run_phase(phase).epochs) == 2
    again = experiment(line()).run_phase(phase, resume="auto")
    assert (len(again.epochs), again.stop_reason) == (2, "enough")
    assert again.events[0].message.endswith("it trains no more epochs, because it was stopped: enough")
    new = line()  # as the page about checkpoints says
    models, feature_sets = {"net": new["net"].model}, new.feature_sets.values()
    loaded = ModelGraph.load(max(tmp_path.glob("epoch-*")), models=models, feature_sets=feature_sets)
    further = experiment(loaded).run_phase(train(epochs=3, checkpoint=tmp_path / "further"))
    assert [epoch.number for epoch in further.epochs] == [2, 3, 4]


@pytest.mark.parametrize("every", ["epoch", 3, "1h"])
def test_a_longer_run_goes_on_from_a_complete_one_to_the_bit(
    line, experiment, tuned, like, same, values, tmp_path, every
):
    """Although the complete one ended with the values of its best epoch."""
    bad = {"optimizer": Optimizer("sgd", lr=0.05, schedule=lambda step: 1.0 if step < 4 else 4.0)}
    whole, again = line(dropping(), **bad), line(dropping(), **bad)
    expected = experiment(whole).run_phase(tuned(epochs=5))
    assert int(np.argmin(expected.figure("val_loss"))) == 2  # neither the last of the first run, nor one after it
    first = line(dropping(), **bad)
    experiment(first).run_phase(tuned(tmp_path, every=every, epochs=4))
    like(experiment(again).run_phase(tuned(tmp_path, every=every, epochs=5), resume="auto"), expected)
    same(values(again), values(whole))


def test_the_models_of_a_checkpoint_are_loaded_by_model_graph(line, experiment, train, same, values, tmp_path):
    graph = line(SequentialMLP())
    experiment(graph).run_phase(train(epochs=3, checkpoint=tmp_path))
    newest = (tmp_path / run_folder.LATEST).read_text().strip()
    assert newest == "epoch-000003-step-000000000"
    same(ModelGraph.load(tmp_path / newest).state(), values(graph))


def test_the_newest_and_the_best_are_kept(line, experiment, tuned, tmp_path):
    results = experiment(line()).run_phase(tuned(tmp_path, every=1, keep=2))
    assert names(tmp_path) == ["epoch-000002-step-000000004", "epoch-000003-step-000000000"]
    assert len(results.epochs) == 3
    other = tmp_path / "other"
    phase = tuned(other, keep=1, keep_best="val_loss", epochs=6)
    worse = line(optimizer="sgd")
    worse.optimizer = type(worse.optimizer)("sgd", lr=2.0)  # each epoch is worse than the one before
    figures = experiment(worse).run_phase(phase).figure("val_loss")
    assert int(np.argmin(figures)) == 0
    assert names(other) == ["epoch-000001-step-000000000", "epoch-000006-step-000000000"]


def test_a_newer_checkpoint_that_cannot_be_read_is_left_out(line, experiment, tuned, break_off, like, tmp_path):
    expected = experiment(line(dropping())).run_phase(tuned(None, break_off()))
    with pytest.raises(KeyboardInterrupt):
        experiment(line(dropping())).run_phase(tuned(tmp_path, break_off("step_end", 7), every=2))
    newest = tmp_path / names(tmp_path)[-1]
    for file in newest.glob("state-*"):
        contents = bytearray(file.read_bytes())
        contents[-3] ^= 1
        file.write_bytes(contents)
    with pytest.warns(RuntimeWarning, match="a newer checkpoint is skipped: .*differs from what was written"):
        results = experiment(line(dropping())).run_phase(tuned(tmp_path, break_off()), resume="auto")
    like(results, expected)
    for path in tmp_path.glob("epoch-*/run-*"):
        path.write_bytes(b"")
    with pytest.raises(StateError, match=r"no checkpoint in '.*' can be read.*start again in another folder"):
        experiment(line(dropping())).run_phase(tuned(tmp_path, break_off()), resume="auto")


def test_a_folder_with_checkpoints_is_not_written_over(line, experiment, tuned, train, tmp_path):
    experiment(line()).run_phase(tuned(tmp_path))
    with pytest.raises(PhaseError, match=r"has checkpoints of an earlier run.*run_phase\(phase, resume='auto'\)"):
        experiment(line()).run_phase(tuned(tmp_path))
    with pytest.raises(PhaseError, match=r"checkpoints of phase 'train', not of 'other'.*a separate folder"):
        experiment(line()).run_phase(train("other", checkpoint=tmp_path), resume="auto")


def test_one_run_at_a_time_writes_into_a_folder(line, experiment, tuned, at, tmp_path):
    def begin_another(run):
        with pytest.raises(PhaseError, match=r"another run writes its checkpoints to .*use a separate folder"):
            experiment(line()).run_phase(tuned(tmp_path), resume="auto")

    experiment(line(), callbacks=[at("epoch_start", begin_another)]).run_phase(tuned(tmp_path))
    with pytest.raises(PhaseError, match="has checkpoints of an earlier run"):  # it is free again
        experiment(line()).run_phase(tuned(tmp_path))


def test_other_callbacks_and_other_graphs_are_refused(line, experiment, tuned, train, tmp_path):
    experiment(line()).run_phase(tuned(tmp_path, epochs=1))
    with pytest.raises(StateError, match=r"a run with other callbacks: EarlyStopping; this run has none"):
        experiment(line()).run_phase(train(checkpoint=tmp_path), resume="auto")
    with pytest.raises(
        StateError, match=r"other callbacks: EarlyStopping; this run has EarlyStopping, EarlyStopping\..*the c"
    ):
        experiment(line(), callbacks=[EarlyStopping("loss")]).run_phase(tuned(tmp_path), resume="auto")
    with pytest.raises(StateError, match="does not fit"):
        experiment(line(SequentialMLP(n_layers=1))).run_phase(tuned(tmp_path), resume="auto")
    assert names(tmp_path) == ["epoch-000001-step-000000000"]  # neither has written anything


def test_callbacks_that_keep_nothing_may_come_and_go(line, experiment, tuned, tmp_path):
    class Printing(Callback):
        pass

    experiment(line(), callbacks=[Printing()]).run_phase(tuned(tmp_path, epochs=1))
    experiment(line()).run_phase(tuned(tmp_path, epochs=2), resume="auto")
    results = experiment(line(), callbacks=[Printing(), Printing()]).run_phase(tuned(tmp_path), resume="auto")
    assert results.loss.tolist() == experiment(line()).run_phase(tuned(tmp_path / "whole")).loss.tolist()


def test_a_callback_that_does_not_take_its_state(line, experiment, train, tmp_path):
    class Counter(Callback):
        def state_dict(self):
            return {"seen": np.arange(3), "text": "a", "nan": float("nan"), "n": 3}

        def load_state_dict(self, state):
            self.loaded = state
            state["missing"]

    phase = train(epochs=1, checkpoint=tmp_path, callbacks=[counter := Counter()])
    experiment(line()).run_phase(phase)
    with pytest.raises(StateError, match="callback Counter does not accept its state: KeyError: 'missing'"):
        experiment(line()).run_phase(phase, resume="auto")
    assert (counter.loaded["text"], counter.loaded["n"]) == ("a", 3)
    np.testing.assert_equal([counter.loaded["nan"], counter.loaded["seen"]], [np.nan, np.arange(3)])


def test_a_run_without_checkpoints_cannot_go_on(line, experiment, train, evaluate):
    for phase in (train(), evaluate()):
        with pytest.raises(PhaseError, match=r"has no checkpoint to resume from.*checkpoint='runs/a'"):
            experiment(line()).run_phase(phase, resume="auto")
    with pytest.raises(PhaseError, match=r"unknown resume='yes'. Available: 'auto', 'never'"):
        experiment(line()).run_phase(train(), resume="yes")


@pytest.mark.parametrize("error", [(28, "No space left on device"), (30, "Read-only file system")])
def test_a_disk_that_takes_nothing_is_told_and_the_training_goes_on(
    line, experiment, tuned, tmp_path, monkeypatch, error
):
    def failing(self, *args, **settings):
        raise OSError(*error)

    monkeypatch.setattr(LocalStorage, "create", failing)
    with pytest.warns(RuntimeWarning, match=rf"could not be written to .*{error[1]}"):
        results = experiment(line()).run_phase(tuned(tmp_path))
    assert len(results.epochs) == 3
    assert any(error[1] in event.message for event in results.events)
    with pytest.raises(OSError, match=error[1]):
        experiment(line()).run_phase(tuned(tmp_path / "b", on_failure="stop"))


def test_a_folder_that_cannot_be_made(line, experiment, tuned, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PhaseError, match=r"checkpoints cannot be written to .*choose a writable folder"):
        experiment(line()).run_phase(tuned(tmp_path / "file"))


def test_a_graph_of_several_segments_goes_on(data, sims, experiment, train, break_off, like, same, values, tmp_path):
    def graph():
        left = ModelNode("left", dropping(), data.reference(["x"], ["y"]), accelerator="sim:0")
        right = ModelNode("right", SequentialMLP(), "left", accelerator="sim:1")
        return ModelGraph([left, right, ConcatNode("both", ["left", "right"])], "adam")

    def phase(callback, folder=None):
        loss = AppliedLoss("mse", on="right")
        return train(epochs=3, losses=[loss], callbacks=[callback], checkpoint=folder and Checkpoint(folder, every=2))

    whole, again = graph(), graph()
    expected = experiment(whole).run_phase(phase(break_off()))
    with pytest.raises(KeyboardInterrupt):
        experiment(graph()).run_phase(phase(break_off("step_end", 6), tmp_path))
    like(experiment(again).run_phase(phase(break_off(), tmp_path), resume="auto"), expected)
    same(values(again), values(whole))


SCRIPT = """
import sys, time
import numpy as np
import anyaccel as aa

class Slow(aa.Callback):
    def step_end(self, run):
        print("step", run.epoch, run.step, flush=True)
        time.sleep(0.02)

x = np.random.default_rng(0).normal(size=(64, 3))
data = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1]}, "x", "y")
graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(dropout=0.3), data.reference())], "adam")
phase = aa.TrainPhase("train", data="all", losses=[aa.AppliedLoss("mse")], batch_size=8, epochs=int(sys.argv[2]),
                      checkpoint=aa.Checkpoint(sys.argv[1], every=5), callbacks=[Slow()])
results = aa.Experiment(graph, progress="none").run_phase(phase, resume="auto")
print("loss", results.loss.tolist())
"""


def run_script(folder, epochs=3, stop_after=None, number=None):
    """The script in a process of its own; it gets a signal after some lines of output."""
    command = [sys.executable, "-c", SCRIPT, str(folder), str(epochs)]
    env = {**os.environ, "ANYACCEL_PLUGINS": ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        lines = []
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            if len(lines) == stop_after:
                process.send_signal(number)
    return process.returncode, lines


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, termination.TERMINATED), (signal.SIGKILL, -9)])
def test_a_process_that_is_asked_to_end_or_killed_goes_on(tmp_path, number, status):
    whole = run_script(tmp_path / "whole")
    ended = run_script(tmp_path / "broken", stop_after=11, number=number)
    assert (whole[0], ended[0]) == (0, status)
    written = names(tmp_path / "broken")[-1]
    if number == signal.SIGTERM:
        assert written >= "epoch-000001-step-000000003"  # that of the step in which it was asked
    again = run_script(tmp_path / "broken")
    assert again[0] == 0
    assert again[1][-1] == whole[1][-1]
    done = int(written[6:12]) * 8 + int(written[-9:])
    assert len(again[1]) == 24 - done + 1  # no step was done again that the checkpoint had


def test_a_programs_own_handler_of_sigterm_is_kept(line, experiment, tuned, at, tmp_path):
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        send = at("epoch_start", lambda run: os.kill(os.getpid(), signal.SIGTERM))
        experiment(line(), callbacks=[send]).run_phase(tuned(tmp_path))
        assert seen == [signal.SIGTERM] * 3
    finally:
        signal.signal(signal.SIGTERM, before)
    with contextlib.suppress(PhaseError):
        experiment(line()).run_phase(tuned(tmp_path))
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_loop_does_not_wait_for_the_disk(line, experiment, train, at, tmp_path, monkeypatch):
    """While one is being written steps go on, and a checkpoint by time that is due meanwhile waits for its turn."""
    write, steps, begun = run_folder.RunFolder.write, [], []

    def slow(self, position, *args):
        begun.append(len(steps))
        time.sleep(0.2)
        return write(self, position, *args)

    monkeypatch.setattr(run_folder.RunFolder, "write", slow)
    phase = train(epochs=2, checkpoint=Checkpoint(tmp_path, every="0.000001s"))
    count = at("step_end", lambda run: steps.append(run.step))
    experiment(line(), callbacks=[count]).run_phase(phase)
    assert begun[0] == 1
    assert len(begun) < 6  # of eight steps


@pytest.mark.parametrize("wait", [True, False])
def test_with_wait_no_step_is_done_before_a_checkpoint_is_written(line, experiment, tuned, tmp_path, monkeypatch, wait):
    done: list[str] = []
    next_step = threading.Event()
    write = run_folder.RunFolder.write

    def slow(self, position, *args):
        if position.step:
            next_step.wait(0.05 if wait else 10.0)
        write(self, position, *args)
        done.append(f"written {position.step}")

    class Steps(Callback):
        def step_end(self, run):
            done.append(f"step {run.step}")
            if run.step == 3:
                next_step.set()

    monkeypatch.setattr(run_folder.RunFolder, "write", slow)
    experiment(line()).run_phase(tuned(tmp_path, Steps(), every=3, epochs=1, wait=wait))
    expected = ["step 0", "step 1", "step 2", "written 3", "step 3", "written 0"]
    if not wait:
        expected[3:5] = ["step 3", "written 3"]
    assert done == expected
