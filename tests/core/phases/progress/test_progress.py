"""Progress: what is told and when, the bars on a terminal, and how many steps one call takes."""

from __future__ import annotations

import io
import re
import sys

import numpy as np
import pytest

from anyaccel import AppliedLoss
from anyaccel.errors import PhaseError
from anyaccel.metrics import Metric
from anyaccel.phases import LineProgress, Progress, RichProgress, progress_for


class Teller(Progress):
    """Writes down what it hears, and may raise."""

    def __init__(self, **failures):
        self.heard, self.failures = [], failures

    def _hear(self, what, *told):
        self.heard.append((what, *told))
        if what in self.failures:
            raise self.failures[what]

    def start(self, label, epochs, steps):
        self._hear("start", label, epochs, steps)

    def advance(self, steps):
        self._hear("advance", steps)

    def epoch(self, figures):
        self._hear("epoch", dict(figures))

    def stop(self):
        self._hear("stop")

    @property
    def names(self):
        return [name for name, *_ in self.heard]


# -- what is told ------------------------------------------------------------------------------------------------------


def test_a_progress_hears_start_steps_epochs_and_stop(line, experiment, train, at):
    notifier = Teller()
    each = at("step_end", lambda run: None)
    result = experiment(line(), progress=notifier).run_phase(train(epochs=2, validation="val", callbacks=[each]))
    epoch = [*["advance"] * 4, "epoch"]
    assert notifier.names == ["start", *epoch, *epoch, "stop"]
    assert notifier.heard[0] == ("start", "train", 2, 4)
    assert [told for name, *told in notifier.heard if name == "epoch"] == [[one.figures] for one in result.epochs]


@pytest.mark.parametrize("size", [1, 3, 5, 16, 40])
def test_advances_add_up_to_the_steps(size, line, experiment, train):
    notifier = Teller()
    experiment(line(), progress=notifier).run_phase(train(epochs=3, batch_size=size))
    _, _, epochs, steps = notifier.heard[0]
    assert sum(told[0] for name, *told in notifier.heard if name == "advance") == epochs * steps


def test_phases_without_a_loop_tell_nothing(line, experiment, evaluate):
    notifier = Teller()
    experiment(line(), progress=notifier).run_phase(evaluate())
    assert notifier.heard == []


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("moment", ["epoch_start", "step_end", "epoch_end"])
def test_a_progress_is_stopped_after_an_error(moment, error, line, experiment, train, at):
    def fail(run):
        raise error

    notifier = Teller()
    with pytest.raises(type(error)):
        experiment(line(), progress=notifier).run_phase(train(callbacks=[at(moment, fail)]))
    assert (notifier.names[0], notifier.names[-1], notifier.names.count("stop")) == ("start", "stop", 1)


@pytest.mark.parametrize("where", ["start", "advance", "epoch", "stop"])
def test_a_progress_that_raises_ends_the_phase_as_any_error(where, line, experiment, train):
    notifier, graph = Teller(**{where: ValueError(where)}), line()
    ours = experiment(graph, progress=notifier)
    with pytest.raises(ValueError, match=where):
        ours.run_phase(train())
    assert notifier.names[-1] == "stop"
    assert isinstance(ours.last_run.error, ValueError)
    assert np.isfinite(graph.state()["net/parameters/weight"]).all()
    notifier.failures.clear()
    ours.run_phase(train())


def test_what_is_loaded_is_told_before_the_loop(line, experiment, train, evaluate):
    class Loads(Teller):
        def loading(self, what, nbytes):
            self._hear("loading", what, nbytes)

    notifier = Loads()
    ours = experiment(line(), progress=notifier)
    ours.run_phase(train(epochs=0))
    assert notifier.heard[0] == ("loading", "the data of train", 16 * (3 + 1) * 4)
    ours.run_phase(evaluate())
    assert notifier.heard[-1] == ("loading", "the data of eval", 8 * (3 + 1) * 4)
    notifier.failures["loading"] = ValueError("told")
    with pytest.raises(ValueError, match="told"):
        ours.run_phase(train())
    assert notifier.names[-1] == "loading"


def test_a_progress_is_not_started_when_a_phase_fails_before_its_loop(line, experiment, train):
    notifier = Teller()
    with pytest.raises(Exception, match="nope"):
        experiment(line(), progress=notifier).run_phase(train(data="nope"))
    assert notifier.heard == []


# -- choosing ----------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_a_progress_is_chosen_by_name_or_given(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    notifier = Teller()
    assert progress_for(notifier) is notifier
    assert type(progress_for("none")) is Progress
    assert type(progress_for("rich")) is RichProgress
    assert type(progress_for("lines")) is LineProgress
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert type(progress_for("auto")) is RichProgress
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert type(progress_for("auto")) is LineProgress
    monkeypatch.setattr(sys, "stderr", None)
    assert type(progress_for("auto")) is LineProgress


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_that_cannot_redraw_gets_lines(term, monkeypatch):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert type(progress_for("auto")) is LineProgress


def test_a_standard_error_that_is_closed_or_no_stream_gets_lines(monkeypatch, line, experiment, train):
    closed = io.StringIO()
    closed.close()
    for strange in (closed, object()):
        monkeypatch.setattr(sys, "stderr", strange)
        assert type(progress_for("auto")) is LineProgress
        for choice in ("auto", "lines", "rich"):
            assert experiment(line(), progress=choice).run_phase(train()).error is None


@pytest.mark.parametrize("choice", ["bar", True, None, Progress, 3, ["rich"]])
def test_other_choices_are_refused(choice):
    with pytest.raises(PhaseError) as caught:
        progress_for(choice)
    named = "'auto', 'rich', 'html', 'lines', 'none', or a Progress object"
    assert str(caught.value) == f"unknown progress={choice!r}. Available: {named}. Hint: write progress='none'."


# -- the bar -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def open_terminal(monkeypatch):
    """Makes standard error a terminal of 200 columns, and gives it; standard output must stay empty."""
    out = io.StringIO()
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "200", "LINES": "20"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)

    def make(screen=None):
        monkeypatch.setattr(sys, "stderr", screen or Terminal())  # in the test: pytest exchanges it after fixtures
        monkeypatch.setattr(sys, "stdout", out)
        return sys.stderr

    yield make
    assert out.getvalue() == ""


def test_the_bar_shows_epochs_figures_and_the_label(open_terminal, line, experiment, train):
    terminal = open_terminal()
    experiment(line(), progress="rich").run_phase(train("fine tuning", epochs=3, validation="val"))
    shown = terminal.getvalue()
    for text in ("fine tuning", "epoch 3/3", "steps/s", "loss ", "val_loss "):
        assert text in shown
    assert "loss.net" not in shown


ODD = ["[red]x[/red]", "[/]", "[/bold]", "[", "back\\", "[link=file:///]x", "{task}", "日本語", "%s {}"]


@pytest.mark.parametrize("label", ODD)
def test_odd_labels_are_shown_as_they_are(label, open_terminal):
    terminal = open_terminal()
    progress = RichProgress()
    progress.start(label, 1, 4)
    progress.advance(4)
    progress.epoch({"loss": 1.0, f"val_{label}": 2.0})
    progress.stop()
    shown = terminal.getvalue()
    assert label in shown
    assert f"val_{label} 2" in shown


@pytest.mark.parametrize("label", ["\x1b[2Jgone", "a\rb", "a\x9b2Jb", "\u202eltr", "a\nb", "\ud800", "a\x07b"])
def test_labels_give_no_commands_to_the_terminal(label, open_terminal):
    terminal = open_terminal()
    progress = RichProgress()
    progress.start("phase", 1, 1)
    progress.epoch({label: 1.0})
    progress.stop()
    shown = terminal.getvalue()
    assert "\ufffd" in shown
    assert all(char not in shown for char in ("\x1b[2J", "\x9b", "\u202e", "\ud800", "\x07", "a\rb", "a\nb"))


def test_a_metric_with_an_odd_label_does_not_end_the_training(open_terminal, line, experiment, train, evaluate):
    terminal = open_terminal()
    metrics = [Metric("mse", label="[/odd]"), Metric("mae", label="[red]")]
    validation = evaluate("check", losses=[], metrics=metrics)
    result = experiment(line(), progress="rich").run_phase(
        train("[bold]", epochs=2, validation=validation, losses=[AppliedLoss("mse", on="net")])
    )
    assert result.error is None and len(result.epochs) == 2
    assert "val_[/odd] " in terminal.getvalue()


def test_a_bar_of_no_epochs_or_of_an_interrupted_run_ends_well(open_terminal, line, experiment, train, at):
    terminal = open_terminal()
    experiment(line(), progress="rich").run_phase(train(epochs=0))

    def fail(run):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment(line(), progress="rich").run_phase(train(epochs=3, callbacks=[at("step_end", fail)]))
    assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h"), "the cursor is there again"


def test_a_bar_can_be_stopped_before_it_was_started_and_twice(open_terminal):
    open_terminal()
    progress = RichProgress()
    progress.stop()
    progress.start("x", 1, 1)
    progress.stop()
    progress.stop()


def test_phase_epoch_and_steps_are_in_one_region(open_terminal):
    terminal = open_terminal()
    progress = RichProgress()
    progress.start("train", 3, 4)
    for _ in range(6):
        progress.advance(1)
    progress.epoch({"loss": 0.5})
    progress.draw()
    shown = terminal.getvalue()
    assert "train" in shown and "steps" in shown
    progress.stop()
    assert "epoch 1/3" in terminal.getvalue()


def test_colours_are_left_out_where_that_is_asked_for(open_terminal, monkeypatch):
    terminal = open_terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    progress = RichProgress()
    progress.start("train", 1, 2)
    progress.advance(2)
    progress.stop()
    assert "train" in terminal.getvalue()
    assert not re.search(r"\x1b\[[0-9;]*3[0-9][;m]", terminal.getvalue())


def test_a_terminal_has_its_cursor_again_after_a_drawing_that_failed(open_terminal):
    class Failing(RichProgress):
        interval = 0.0

        def draw(self):
            if self.state.done:
                raise OSError
            super().draw()

    terminal = open_terminal()
    progress = Failing()
    progress.start("train", 1, 4)
    assert terminal.getvalue().count("\x1b[?25l") == 1
    progress.advance(1)
    assert terminal.getvalue().rfind("\x1b[?25h") > terminal.getvalue().rfind("\x1b[?25l")
    progress.stop()


@pytest.mark.parametrize("where", ["draw", "close"])
def test_a_terminal_has_its_cursor_again_after_an_interrupt_while_it_was_drawn(where, open_terminal, monkeypatch):
    terminal = open_terminal()
    progress = RichProgress()
    progress.interval = 0.0
    progress.start("train", 1, 4)
    assert terminal.getvalue().rfind("\x1b[?25l") > terminal.getvalue().rfind("\x1b[?25h")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(progress, where, interrupt)
        with pytest.raises(KeyboardInterrupt):
            progress.stop() if where == "close" else progress.advance(1)
    assert terminal.getvalue().rfind("\x1b[?25h") > terminal.getvalue().rfind("\x1b[?25l")


def test_a_long_label_leaves_room_for_the_rest(open_terminal):
    terminal = open_terminal()
    progress = RichProgress()
    progress.start("label " * 1000, 3, 4)
    progress.stop()
    shown = terminal.getvalue()
    assert "epoch 1/3" in shown and "0/4" in shown and "\u2026" in shown and shown.count("label") < 30


def test_a_large_loading_is_told_before_the_bars(open_terminal):
    terminal = open_terminal()
    progress = RichProgress()
    progress.loading("[red]data[/red]", 3 * 2**30)
    assert "loading 0.0/3.0 GiB ([red]data[/red])" in terminal.getvalue()
    progress.stop()


def test_a_bar_can_be_used_for_several_phases(open_terminal, line, experiment, train):
    terminal = open_terminal()
    ours = experiment(line(), progress=RichProgress())
    for label in ("first", "second"):
        ours.run_phase(train(label))
        assert label in terminal.getvalue()


def test_what_is_no_terminal_gets_no_colours_and_no_commands(open_terminal, line, experiment, train):
    plain = open_terminal(io.StringIO())
    experiment(line(), progress="rich").run_phase(train())
    assert "epoch 1/1" in plain.getvalue()
    assert "\x1b" not in plain.getvalue()
