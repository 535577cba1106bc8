"""Logs of phases that fail, and folders and files that cannot be written."""

from __future__ import annotations

import errno
import gc

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import ConfigError, PhaseError
from anyaccel_tensorboard import TensorBoard, log_to
from anyaccel_tensorboard.run_logger import EventFile


def fail_at(epoch, error):
    def fail(run):
        if run.epoch == epoch:
            raise error

    return fail


def error_text(written):
    return "\n".join(line[4:] for line in written.texts["error"].splitlines())


def test_the_error_of_a_phase_is_written_and_its_epochs_are_kept(logged, read, experiment, train, on, oops, still_open):
    error = oops("it broke\nin two lines")
    error.add_note("and has a note")
    with pytest.raises(oops) as caught:
        experiment().run_phase(train(callbacks=[on("epoch_end", fail_at(1, error))]))
    assert caught.value is error and caught.value.__notes__ == ["and has a note"]
    written = read(logged / "demo/train-1")
    assert error_text(written) == "Oops: it broke\nin two lines\nand has a note"
    assert written.scalars["train/loss"][0] == [0, 1]
    assert still_open(logged) == []


def test_an_interrupt_is_written(logged, read, experiment, train, on, still_open):
    with pytest.raises(KeyboardInterrupt):
        experiment().run_phase(train(callbacks=[on("epoch_end", fail_at(0, KeyboardInterrupt()))]))
    written = read(logged / "demo/train-1")
    assert (error_text(written), written.scalars["train/loss"][0]) == ("KeyboardInterrupt: ", [0])
    assert still_open(logged) == []


def test_a_plan_that_cannot_be_made_is_written(logged, read, experiment, train):
    with pytest.raises(aa.errors.AnyaccelError) as caught:
        experiment().run_phase(train(accelerator="gpu:3", strict=True))
    written = read(logged / "demo/train-1")
    assert set(written.texts) == {"settings", "error"}
    assert error_text(written) == f"{type(caught.value).__name__}: {caught.value}"


def test_an_evaluation_that_fails_is_written(logged, read, experiment, evaluate, oops):
    def broken(outputs, targets):
        raise oops("no measure")

    with pytest.raises(aa.errors.SpecError):
        experiment().run_phase(evaluate(metrics=[broken]))
    written = read(logged / "demo/eval-1")
    assert "metric 'broken' on node 'one' raised Oops: no measure" in error_text(written)
    assert written.scalars == {}


def test_the_next_phase_is_logged_after_one_that_failed(logged, folders, experiment, train, on, oops):
    ours = experiment()
    with pytest.raises(oops):
        ours.run_phase(train(callbacks=[on("epoch_start", fail_at(0, oops()))]))
    ours.run_phase(train())
    assert folders(logged) == ["demo/train-1", "demo/train-2"]


# -- folders and files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [".", "demo"])
@pytest.mark.parametrize("by", ["plugin", "callback"])
def test_a_folder_that_cannot_be_written_is_an_error_before_anything_moves(where, by, runs, experiment, train, on):
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
    assert str(in_the_way) in message and message.endswith("Hint: log to another folder, or turn logging off.")
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
    written = str(caught.value)
    assert (
        "tfevents" in written
        and "can no longer be written" in written
        and "free disk space, or log to another folder" in written
    )
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
        (3, "3 is not a folder. Hint: name a local folder, such as 'runs'"),
        ("", "'' is not a folder. Hint: name a local folder"),
        (b"runs", "b'runs' is not a folder. Hint: name a local folder"),
        ("gs://bucket/runs", "'gs://bucket/runs' is not a local folder. Hint: name a local folder"),
        ("a\0b", "is not a local folder"),
        ("~no such user/runs", "starts with an unknown home folder. Hint: write the folder without '~'"),
    ],
)
def test_what_is_not_a_folder_is_an_error_at_once(folder, words):
    with pytest.raises(ConfigError) as caught:
        log_to(folder)
    assert str(caught.value).startswith("log_to: ") and words in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        TensorBoard(folder)
    assert str(caught.value).startswith("TensorBoard: ") and words in str(caught.value)


def test_a_variable_that_is_not_a_folder_is_an_error_when_a_phase_begins(monkeypatch, experiment, train):
    monkeypatch.setenv("ANYACCEL_TENSORBOARD", "s3://bucket")
    ours = experiment()
    with pytest.raises(ConfigError, match=r"ANYACCEL_TENSORBOARD: 's3://bucket' is not a local folder"):
        ours.run_phase(train())
    assert ours.last_run.plan is None


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "2"])
def test_a_wrong_number_of_steps_is_an_error(every, runs):
    with pytest.raises(PhaseError, match=r"TensorBoard: every_n_steps=.* is not an int of at least 1"):
        TensorBoard(runs, every_n_steps=every)


def test_the_same_callback_given_twice_is_an_error(runs, folders, experiment, train, still_open):
    callback = TensorBoard(runs)
    with pytest.raises(PhaseError, match=r"'train' has the same TensorBoard callback twice\. Hint: pass it to the"):
        experiment(callbacks=[callback]).run_phase(train(callbacks=[callback]))
    assert folders(runs) == ["demo/train-1"] and still_open(runs) == []
