"""Events: what they are, how they are logged, and how results show them."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest

from anyaccel.phases import Epoch, Progress
from anyaccel.results import EvalResults, TrainResults, eval_results
from anyaccel.results.events import KINDS, Event, log

EPOCH = Epoch(0, 0.5, {"net": 0.5}, 4, 0.1)


def results_of(*events):
    """The kinds of results of a run with these events."""
    return [
        TrainResults(label="t", epochs=(EPOCH,), events=events),
        eval_results("e", None, events=events),
    ]


def test_an_event_is_a_value_that_says_when_it_was():
    event = Event(2, 4, "memory", "split in two")
    assert str(event) == "memory: split in two (epoch 3, step 5)"
    assert str(Event(-1, -1, "compile", "off")) == "compile: off"
    assert Event(-1, -1, "compile", "off").where == "before the loop"
    assert event == Event(2, 4, "memory", "split in two") and hash(event)
    plain = {"epoch": 2, "step": 4, "kind": "memory", "message": "split in two", "verbose": False}
    assert json.loads(json.dumps(event.to_dict())) == plain
    assert Event(2, 4, "compile", "not", verbose=True).to_dict()["verbose"] is True
    with pytest.raises(FrozenInstanceError):
        event.message = "other"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_made(kind):
    assert Event(0, 0, kind, "x").kind == kind


@pytest.mark.parametrize("kind", ["", "Memory", "other", None])
def test_other_kinds_are_refused(kind):
    with pytest.raises(ValueError) as caught:
        Event(0, 0, kind, "x")
    known = "compile, residency, memory, source, transfer, rate, checkpoint, precision, profile, context, metric"
    assert str(caught.value) == f"unknown kind of event {kind!r}; available: {known}"


@pytest.mark.parametrize(("kind", "level"), [(kind, logging.INFO) for kind in KINDS if kind != "memory"])
def test_decisions_are_logged_as_information(kind, level, caplog):
    with caplog.at_level(logging.INFO, "anyaccel"):
        log(Event(-1, -1, kind, "100 % sure"), "train %s")
    assert [(one.name, one.levelno, one.getMessage()) for one in caplog.records] == [
        ("anyaccel", level, f"train %s: {kind}: 100 % sure")
    ]


def test_what_is_routine_is_logged_for_debugging(caplog):
    with caplog.at_level(logging.DEBUG, "anyaccel"):
        log(Event(-1, -1, "residency", "resident", verbose=True), "train")
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == [
        (logging.DEBUG, "train: residency: resident")
    ]


def test_memory_is_logged_as_a_warning(caplog):
    log(Event(0, 0, "memory", "short"), "train")
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == [
        (logging.WARNING, "train: memory: short (epoch 1, step 1)")
    ]


def test_without_a_log_nothing_is_written_to_standard_error():
    code = "from anyaccel.results.events import Event, log; log(Event(0, 0, 'memory', 'short'), 'train')"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (child.returncode, child.stdout, child.stderr) == (0, "", "")


def test_results_without_events_have_none():
    for one in results_of():
        assert one.events == () and one.to_dict()["events"] == []
        assert "memory" not in repr(one)


def test_results_keep_their_events_as_plain_data_too():
    event = Event(0, 3, "residency", "streamed")
    for one in results_of(event):
        assert one.events == (event,)
        assert json.loads(json.dumps(one.to_dict()["events"])) == [event.to_dict()]


def test_a_line_of_text_tells_of_memory_alone():
    decided, short = Event(-1, -1, "compile", "unrolled"), Event(0, 3, "memory", "split")
    assert all("compile" not in repr(one) and "memory" not in repr(one) for one in results_of(decided))
    assert repr(results_of(decided, short)[0]) == "TrainResults('t', 1 epochs, loss 0.5, out of memory once)"
    assert repr(results_of(short)[1]) == "EvalResults('e', out of memory once)"
    ended = TrainResults(label="t", epochs=(EPOCH,), error=ValueError("no"), events=(short,))
    assert repr(ended) == "TrainResults('t', 1 epochs, loss 0.5, out of memory once, ended with ValueError)"


@pytest.mark.parametrize("cls", [TrainResults, EvalResults])
def test_a_notebook_shows_events_as_text(cls):
    (shown,) = [
        one._repr_html_() for one in results_of(Event(0, 3, "source", "<script>x</script>")) if type(one) is cls
    ]
    assert "source: &lt;script&gt;x&lt;/script&gt; (epoch 1, step 4)" in shown
    assert "<script" not in shown and "cannot be shown" not in shown


def test_what_is_routine_is_in_the_data_of_results_and_in_no_picture_of_them():
    usual, other = Event(-1, -1, "residency", "resident;", verbose=True), Event(0, 0, "compile", "compiled;")
    for one in results_of(*[usual] * 20, other):
        assert len(one.events) == 21 and one.to_dict()["events"][0] == usual.to_dict()
        shown = one._repr_html_()
        assert "compiled;" in shown and "resident;" not in shown and "more events" not in shown


def test_progress_is_told_nothing_that_is_routine(line, experiment, train, caplog, at):
    heard = []

    class Hears(Progress):
        def event(self, event):
            heard.append(event)

    def say(run):
        run.log_event("compile", "usual", verbose=True)
        run.log_event("compile", "new")

    with caplog.at_level(logging.INFO, "anyaccel"):
        result = experiment(line(), progress=Hears()).run_phase(train(epochs=1, callbacks=[at("epoch_end", say)]))
    (new,) = heard
    assert (new.message, new.verbose) == ("new", False)
    assert [one.getMessage() for one in caplog.records] == [f"train: {new}"]
    assert [(one.kind, one.verbose) for one in result.events] == [
        ("residency", True),
        ("compile", True),
        ("compile", False),
    ]


def test_a_notebook_shows_the_first_and_the_last_of_many_events():
    events = [Event(0, number, "memory", f"number {number};") for number in range(100)]
    for one in results_of(*events):
        shown = one._repr_html_()
        assert [number for number in range(100) if f"number {number};" in shown] == [0, 1, 2, 3, 4, 97, 98, 99]
        assert "and 92 more events" in shown
