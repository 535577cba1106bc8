"""What is left of a phase that fails, and folders and files that cannot be written."""

from __future__ import annotations

import errno
import gc

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import ConfigError, PhaseError
from anyaccel_tensorboard import TensorBoard, log_to
from anyaccel_tensorboard.event_file import EventFile


def fail_at(epoch, error):
    def fail(run):
        if run.epoch == epoch:
            raise error

    return fail


def error_of(told):
    return "\n".join(line[4:] for line in told.texts["error"].splitlines())


def test_the_error_of_a_phase_is_told_and_its_epochs_are_kept(logged, read, experiment, train, on, oops, still_open):
    error = oops("it broke\nin two lines")
    error.add_note("and has a note")
    with pytest.raises(oops) as caught:
        experiment().run_phase(train(callbacks=[on("epoch_end", fail_at(1, error))]))
    assert caught.value is error and caught.value.__notes__ == ["and has a note"]
    told = read(logged / "demo/train-1")
    assert error_of(told) == "Oops: it broke\nin two lines\nand has a note"
    assert told.scalars["train/loss"][0] == [0, 1]
    assert still_open(logged) == []


def test_an_interrupt_is_told(logged, read, experiment, train, on, still_open):
    with pytest.raises(KeyboardInterrupt):
        experiment().run_phase(train(callbacks=[on("epoch_end", fail_at(0, KeyboardInterrupt()))]))
    told = read(logged / "demo/train-1")
    assert (error_of(told), told.scalars["train/loss"][0]) == ("KeyboardInterrupt: ", [0])
    assert still_open(logged) == []


def test_a_plan_that_cannot_be_made_is_told(logged, read, experiment, train):
    with pytest.raises(aa.errors.AnyaccelError) as caught:
        experiment().run_phase(train(accelerator="gpu:3", strict=True))
    told = read(logged / "demo/train-1")
    assert set(told.texts) == {"settings", "error"}
    assert error_of(told) == f"{type(caught.value).__name__}: {caught.value}"


def test_an_evaluation_that_fails_is_told(logged, read, experiment, evaluate, oops):
    def broken(outputs, targets):
        raise oops("no measure")

    with pytest.raises(oops):
        experiment().run_phase(evaluate(metrics=[broken]))
    told = read(logged / "demo/eval-1")
    assert (error_of(told), told.scalars) == ("Oops: no measure", {})


def test_the_next_phase_is_logged_after_one_that_failed(logged, folders, experiment, train, on, oops):
    ours = experiment()
    with pytest.raises(oops):
        ours.run_phase(train(callbacks=[on("epoch_start", fail_at(0, oops()))]))
    ours.run_phase(train())
    assert folders(logged) == ["demo/train-1", "demo/train-2"]


# -- folders and files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [".", "demo"])
@pytest.mark.parametrize("by", ["plugin", "callback"])
def test_a_folder_that_cannot_be_written_is_told_before_anything_moves(where, by, runs, experiment, train, on):
    in_the_way = runs / where
    in_the_way.parent.mkdir(parents=True, exist_ok=True)
    in_the_way.write_text("a file")
    ours, moments = experiment(), []
    before = ours.graph.state() if ours.graph.build() else {}
    callbacks = [on("before_placement", lambda plan: moments.append(plan))]
    if by == "plugin":
        log_to(runs)
    else:
        callbacks.append(TensorBoard(runs))
    with aa.simulate(1), pytest.raises(PhaseError) as caught:
        ours.run_phase(train(accelerator="sim:0", callbacks=callbacks))
    message = str(caught.value)
    assert message.startswith(f"phase 'train' cannot be logged: TensorBoard's folder {str(runs)!r} cannot be written (")
    assert str(in_the_way) in message and message.endswith("Hint: log to another folder, or to none.")
    assert (moments, ours.last_run.plan) == ([], None)
    after = ours.graph.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert in_the_way.read_text() == "a file"


@pytest.mark.parametrize("fails_from", [1, 2, 3, 4, 5, 6])
def test_a_full_disk_ends_the_phase_and_closes_the_file(
    fails_from, logged, experiment, train, on, monkeypatch, still_open
):
    """Records in order: the version, three texts, the epochs."""
    written = []

    def write(self, data, whole=EventFile.__init__.__globals__["RecordWriter"].write):
        written.append(len(data))
        if len(written) >= fails_from:
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(self, data)

    monkeypatch.setattr("tensorboard.summary.writer.record_writer.RecordWriter.write", write)
    ours = experiment()
    with pytest.raises(PhaseError, match=r"No space left on device") as caught:
        ours.run_phase(train())
    told = str(caught.value)
    assert "tfevents" in told and "cannot be written any more" in told and "make room, or log to another folder" in told
    assert len(ours.last_run.epochs) == max(fails_from - 4, 0)
    assert still_open(logged) == []
    gc.collect()  # a file that was left open would warn, and warnings are errors
    monkeypatch.undo()
    ours.run_phase(train())


def test_a_full_disk_at_the_end_is_raised_when_all_is_closed(runs, experiment, evaluate, monkeypatch, still_open):
    def flush(self):
        raise OSError(errno.ENOSPC, "No space left on device")

    ours = experiment()
    callback = TensorBoard(runs)

    class Fill(aa.Callback):
        def after_loading(self):
            monkeypatch.setattr("tensorboard.summary.writer.record_writer.RecordWriter.flush", flush)

    with pytest.raises(PhaseError, match="No space left on device"):
        ours.run_phase(evaluate(callbacks=[callback, Fill()]))
    assert still_open(runs) == []


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        (3, "3, which is no folder. Hint: name one, such as 'runs'"),
        ("", "'', which is no folder. Hint: name one"),
        (b"runs", "b'runs', which is no folder. Hint: name one"),
        ("gs://bucket/runs", "'gs://bucket/runs', which is no folder of this machine. Hint: name a local folder"),
        ("a\0b", "which is no folder of this machine"),
        ("~no such user/runs", "and there is no such home folder. Hint: write the folder without '~'"),
    ],
)
def test_what_is_no_folder_is_told_at_once(folder, words):
    with pytest.raises(ConfigError) as caught:
        log_to(folder)
    assert str(caught.value).startswith("log_to was given ") and words in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        TensorBoard(folder)
    assert str(caught.value).startswith("TensorBoard was given ") and words in str(caught.value)


def test_a_variable_that_names_no_folder_is_told_when_a_phase_begins(monkeypatch, experiment, train):
    monkeypatch.setenv("ANYACCEL_TENSORBOARD", "s3://bucket")
    ours = experiment()
    with pytest.raises(ConfigError, match=r"ANYACCEL_TENSORBOARD was given 's3://bucket', which is no folder"):
        ours.run_phase(train())
    assert ours.last_run.plan is None


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "2"])
def test_a_number_of_steps_that_is_none_is_told(every, runs):
    with pytest.raises(PhaseError, match=r"TensorBoard: every_n_steps=.* is not an int of at least 1"):
        TensorBoard(runs, every_n_steps=every)


def test_one_callback_given_twice_is_told(runs, folders, experiment, train, still_open):
    callback = TensorBoard(runs)
    with pytest.raises(PhaseError, match=r"phase 'train' has one TensorBoard callback twice\. Hint: give it to the"):
        experiment(callbacks=[callback]).run_phase(train(callbacks=[callback]))
    assert folders(runs) == ["demo/train-1"] and still_open(runs) == []
