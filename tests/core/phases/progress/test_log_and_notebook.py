"""Progress that is drawn now and then: lines in a log, HTML in a notebook, and what a drawing may not do to a run."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys
import textwrap
from html.parser import HTMLParser
from types import ModuleType, SimpleNamespace

import pytest

from anyaccel.errors import PhaseError
from anyaccel.phases import HTMLProgress, LineProgress, progress_for
from anyaccel.phases.progress import ProgressState, ThrottledProgress, throttled
from anyaccel.phases.progress.throttled import duration

ODD = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\x1b[2Jgone",
    "a\nb",
    "\ud800",
    "\u202eltr",
    "🎉 שלום",
]


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told: `clock.now += 10`."""
    found = SimpleNamespace(now=100.0)
    monkeypatch.setattr(throttled, "time", SimpleNamespace(perf_counter=lambda: found.now))
    return found


@pytest.fixture
def log(monkeypatch):
    """Standard error that is no terminal."""

    def make():
        monkeypatch.setattr(sys, "stderr", io.StringIO())  # in the test: pytest exchanges it after fixtures
        return lambda: sys.stderr.getvalue().splitlines()

    return make


# -- lines -------------------------------------------------------------------------------------------------------------


def test_a_short_run_writes_no_line(log, line, experiment, train):
    lines = log()
    experiment(line(), progress="auto").run_phase(train(epochs=3))
    assert lines() == []


def test_a_long_run_writes_a_line_every_ten_seconds_and_one_at_the_end(log, clock):
    lines, progress = log(), LineProgress()
    progress.start("train", 4, 30)
    for second in range(25):
        clock.now += 1
        progress.advance(2)
        if second == 14:
            progress.epoch({"loss": 0.25, "loss.net": 0.25, "val_mae": 1.5})
    progress.stop()
    assert lines() == [
        "train: epoch 1/4, step 20/30, 2 steps/s, 50 s left",
        "train: epoch 2/4, step 10/30, 2 steps/s, loss 0.25, val_mae 1.5, 40 s left",
        "train: 1/4 epochs, 2 steps/s, loss 0.25, val_mae 1.5, 25 s in all",
    ]


def test_a_second_phase_begins_anew(log, clock):
    lines, progress = log(), LineProgress()
    for _ in range(2):
        progress.start("train", 1, 4)
        progress.stop()
    assert lines() == []


@pytest.mark.parametrize("label", ODD)
def test_a_line_stays_a_line(label, log, clock):
    lines, progress = log(), LineProgress()
    progress.start(label, 1, 4)
    clock.now += 11
    progress.advance(1)
    (written,) = lines()
    assert written.endswith(": epoch 1/1, step 1/4, 0 steps/s, 33 s left")
    assert written.isprintable()


def test_a_large_loading_is_a_line_and_a_small_one_is_not(log):
    lines, progress = log(), LineProgress()
    progress.loading("data", 2**20)
    progress.loading("data", 5 * 2**30)
    assert lines() == ["loading 0.0/5.0 GiB (data)"]
    progress.stop()
    assert len(lines()) == 1


def test_no_standard_error_is_no_error(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", None)
    progress = LineProgress()
    progress.start("train", 1, 4)
    clock.now += 11
    progress.advance(1)
    progress.stop()


# -- HTML --------------------------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    """The tags of a piece of HTML, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def notebook(monkeypatch):
    """A kernel of Jupyter, as far as it is asked: what was displayed, as (display id, object)."""
    shown = []

    class Handle:
        def __init__(self, number):
            self.number = number

        def update(self, what):
            shown.append((self.number, what))

    def display(what, *, display_id):
        assert display_id is True
        handle = Handle(len({number for number, _ in shown}))
        handle.update(what)
        return handle

    ipython, inside = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    inside.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", inside)
    return shown


def test_a_notebook_gets_html_and_a_shell_without_a_kernel_does_not(notebook, monkeypatch):
    assert type(progress_for("auto")) is HTMLProgress
    assert type(progress_for("html")) is HTMLProgress
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace(kernel=None))
    assert type(progress_for("auto")) is LineProgress
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)
    assert type(progress_for("auto")) is LineProgress


def test_html_where_there_is_no_notebook_is_refused(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    with pytest.raises(PhaseError) as caught:
        progress_for("html")
    assert str(caught.value) == (
        "progress='html' needs a notebook, but no Jupyter kernel is running. Hint: progress='auto'."
    )


def test_each_phase_has_one_output_that_is_drawn_anew(notebook, line, experiment, train):
    ours = experiment(line(), progress="auto")
    ours.run_phase(train("first", epochs=2, validation="val"))
    ours.run_phase(train("second"))
    assert [number for number, _ in notebook] == sorted(number for number, _ in notebook)
    last = dict(notebook)
    assert list(last) == [0, 1]
    text = Tags(last[0]._repr_html_()).text
    for told in ("first", "epoch 2 of 2", "8 of 8 steps", "steps/s", "val_loss"):
        assert told in text
    assert repr(last[1]).startswith("second: 1/1 epochs, ")


def test_a_notebook_is_drawn_at_most_five_times_a_second(notebook, clock):
    progress = HTMLProgress()
    progress.start("train", 1, 1000)
    for _ in range(1000):
        clock.now += 0.001
        progress.advance(1)
    assert len(notebook) == pytest.approx(5, abs=1)
    progress.stop()
    assert len({number for number, _ in notebook}) == 1


def test_loading_and_training_share_an_output(notebook):
    progress = HTMLProgress()
    progress.loading("data", 2 * 2**30)
    assert "loading 0.0/2.0 GiB (data)" in Tags(notebook[-1][1]._repr_html_()).text
    progress.start("train", 1, 4)
    progress.stop()
    assert {number for number, _ in notebook} == {0}


@pytest.mark.parametrize("label", ODD)
def test_labels_and_figures_are_text(label, notebook):
    progress = HTMLProgress()
    progress.start(label, 1, 4)
    progress.epoch({label.replace(".", ""): 1.0})
    progress.stop()
    found = Tags(notebook[-1][1]._repr_html_())
    assert set(found.tags) <= {"div", "strong", "span", "table", "thead", "tbody", "tr", "th", "td"}
    found.text.encode()


@pytest.mark.skipif(importlib.util.find_spec("ipykernel") is None, reason="there is no ipykernel")
def test_a_real_kernel_shows_it(tmp_path):
    """In a process of its own: a kernel's shell, with what it would send caught."""
    code = """
    import sys
    from unittest import mock
    from ipykernel.zmqshell import ZMQInteractiveShell
    sent = []
    shell = ZMQInteractiveShell.instance()
    shell.kernel = object()
    shell.display_pub = mock.Mock(publish=lambda data=None, metadata=None, **more: sent.append((data, more)))
    from anyaccel.phases import progress_for
    progress = progress_for("auto")
    progress.start("train", 1, 4)
    progress.stop()
    assert type(progress).__name__ == "HTMLProgress"
    assert len(sent) == 2 and sent[1][1]["update"], sent
    assert "progressbar" in sent[0][0]["text/html"] and sent[1][0]["text/plain"].startswith("train: 0/1")
    """
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert child.returncode == 0, child.stderr


# -- drawing -----------------------------------------------------------------------------------------------------------


class Torn(ThrottledProgress):
    """Fails at one of its drawings, and counts them."""

    interval = 0.0

    def __init__(self, where: str, error: BaseException) -> None:
        super().__init__()
        self.where, self.error, self.asked = where, error, []

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if what == self.where:
            raise self.error

    def open(self) -> None:
        self._ask("open")

    def draw(self) -> None:
        self._ask("draw")

    def close(self) -> None:
        self._ask("close")

    def give_up(self) -> None:
        self._ask("give_up")
        raise ValueError


@pytest.mark.parametrize("where", ["open", "draw", "close"])
def test_a_drawing_that_fails_does_not_end_the_run_and_is_not_tried_again(where, line, experiment, train):
    torn = Torn(where, BrokenPipeError())
    result = experiment(line(), progress=torn).run_phase(train(epochs=2))
    assert result.error is None and len(result.epochs) == 2
    assert torn.asked[torn.asked.index(where) :] == [where, "give_up"]


def test_a_drawing_can_be_interrupted(line, experiment, train):
    with pytest.raises(KeyboardInterrupt):
        experiment(line(), progress=Torn("draw", KeyboardInterrupt())).run_phase(train())


def test_between_two_drawings_nothing_is_drawn(clock):
    quiet = Torn("", ValueError())
    type(quiet).interval, before = 1.0, Torn.interval
    try:
        quiet.start("train", 1, 100)
        for _ in range(100):
            quiet.advance(1)
        quiet.epoch({})
        assert quiet.asked == ["open", "draw"]
        clock.now += 2
        quiet.advance(1)
        assert quiet.asked == ["open", "draw", "draw"]
        assert quiet.state.done == 101
    finally:
        type(quiet).interval = before


@pytest.mark.parametrize(
    ("done", "epochs_done", "epoch", "in_epoch"),
    [(0, 0, 1, 0), (3, 0, 1, 3), (4, 0, 1, 4), (4, 1, 2, 0), (9, 2, 3, 1), (12, 3, 3, 4)],
)
def test_where_a_phase_stands(done, epochs_done, epoch, in_epoch):
    at = ProgressState("train", 3, 4, 0.0, 2.0, done, epochs_done)
    assert (at.epoch, at.in_epoch) == (epoch, in_epoch)
    assert at.rate == done / 2


def test_a_phase_without_epochs_stands_at_its_end():
    at = ProgressState("train", 0, 0, 0.0, 0.0)
    assert (at.epoch, at.in_epoch, at.total, at.shown_left) == (0, 0, 0, "")


@pytest.mark.parametrize(("seconds", "shown"), [(0.2, "0 s"), (59.4, "59 s"), (185, "3:05"), (7385, "2:03:05")])
def test_times_are_for_people(seconds, shown):
    assert duration(seconds) == shown
