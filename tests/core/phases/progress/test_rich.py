"""The live region: what goes on now, events, several runs at once, an interrupt on a real terminal, and its cost."""

from __future__ import annotations

import io
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from anyaccel.phases import HTMLProgress, LineProgress, Progress, RichProgress
from anyaccel.phases.progress import ProgressState, ThrottledProgress, throttled
from anyaccel.phases.progress.throttled import MAX_EVENTS, amount
from anyaccel.results.events import Event

SHORT = Event(1, 2, "memory", "split in two")
DECIDED = Event(-1, -1, "compile", "<b>off</b>\x1b[2J")


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told: `clock.now += 10`."""
    found = SimpleNamespace(now=100.0)
    monkeypatch.setattr(throttled, "time", SimpleNamespace(perf_counter=lambda: found.now))
    return found


@pytest.fixture
def open_terminal(monkeypatch):
    """`open_terminal()` makes standard error a terminal of 200 columns, and gives what reads it without commands."""
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "200", "LINES": "20"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)

    def make(screen=None):
        monkeypatch.setattr(sys, "stderr", screen or Terminal())  # in the test: pytest exchanges it after fixtures
        found = sys.stderr
        return lambda: re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", found.getvalue())

    return make


@pytest.fixture
def notebook(monkeypatch):
    """A kernel of Jupyter, as far as it is asked: the objects that were displayed, the last one last."""
    shown = []

    def display(what, *, display_id):
        handle = SimpleNamespace(update=shown.append)
        shown.append(what)
        return handle

    ipython, inside = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    inside.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", inside)
    return shown


class Counted(ThrottledProgress):
    """Counts its drawings, each of which takes some time of a clock."""

    def __init__(self, clock, cost=0.0):
        super().__init__()
        self.clock, self.cost, self.drawings, self.told = clock, cost, 0, []

    def draw(self):
        self.drawings += 1
        self.clock.now += self.cost

    def draw_event(self, event):
        self.told.append(event)


# -- what goes on now --------------------------------------------------------------------------------------------------


def test_loading_shows_bytes_done_of_all(open_terminal, clock):
    shown, progress = open_terminal(), RichProgress()
    progress = progress.begin("train")
    progress.loading("data.x", 3 * 2**30)
    clock.now += 1
    progress.loaded(2**30)
    clock.now += 1
    progress.loaded(2**29)
    for text in ("loading 0.0/3.0 GiB (data.x)", "loading 1.0/3.0 GiB (data.x)", "loading 1.5/3.0 GiB (data.x)"):
        assert text in shown()
    progress.end()
    behind_the_last_erasure = sys.stderr.getvalue().rpartition("\x1b[2K")[2]
    assert not re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", behind_the_last_erasure).strip(), "nothing of it stays"


def test_small_loadings_open_nothing(open_terminal, clock):
    shown, progress = open_terminal(), RichProgress().begin("train")
    progress.loading("data.x", 2**20)
    progress.loaded(2**20)
    progress.end()
    assert shown() == ""


def test_what_goes_on_is_shown_when_it_begins_and_gone_with_it(open_terminal, clock):
    shown, progress = open_terminal(), RichProgress()
    progress.start("train", 2, 4)
    progress.doing("compiling")
    assert shown().rstrip().endswith("  compiling")
    progress.doing("")
    clock.now += 1
    progress.advance(1)
    assert shown().rstrip().endswith("1/4  1 steps/s")
    progress.stop()


def test_steps_that_nobody_knows_are_counted_and_have_no_end(open_terminal, clock, notebook, capsys):
    shown = open_terminal()
    for progress in (RichProgress(), HTMLProgress(), LineProgress()):
        progress.start("train", 2, None)
        for _ in range(3):
            clock.now += 11
            progress.advance(1000)
        progress.epoch({"loss": 0.25})
        clock.now += 11
        progress.advance(500)
        progress.stop()
    text = shown()
    assert "3,000  91 steps/s" in text and "epoch 2/2" in text and "left" not in text
    assert "train: epoch 2/2, step 500, " in text and "\n" in text
    page = notebook[-2]._repr_html_()
    assert "3,500 steps, 500 of this epoch" in page and ">steps of" not in page and " left<" not in page
    assert re.findall('aria-valuenow="([0-9]+)"', page) == ["50"]


def test_a_notebook_shows_what_goes_on(notebook, clock):
    progress = HTMLProgress().begin("train")
    progress.loading("data.x", 2**30)
    clock.now += 1
    progress.loaded(2**29)
    assert "loading 0.5/1.0 GiB (data.x)" in notebook[-1]._repr_html_()
    progress.start("train", 2, 4)
    progress.doing("<i>validating</i>")
    assert "&lt;i&gt;validating&lt;/i&gt;" in notebook[-1]._repr_html_()
    progress.end()
    assert "validating" not in notebook[-1]._repr_html_()


def test_a_phase_without_a_loop_says_in_a_notebook_how_long_it_took(notebook, clock):
    progress = HTMLProgress().begin("eval")
    progress.loading("data.x", 2**30)
    clock.now += 65
    progress.end()
    assert "took 1:05" in notebook[-1]._repr_html_() and repr(notebook[-1]).startswith("eval: loading 0.0/1.0 GiB")


def test_lines_stay_sparse(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    progress = LineProgress().begin("train")
    progress.loading("data.x", 2**29)
    progress.start("train", 100, 4)
    for _ in range(90):
        progress.doing("validating")
        clock.now += 0.1
        progress.doing("")
        progress.advance(4)
    assert sys.stderr.getvalue() == ""
    progress.doing("compiling")
    clock.now += 2
    progress.epoch({})
    assert sys.stderr.getvalue().endswith(", compiling\n") and sys.stderr.getvalue().count("\n") == 1


def test_the_time_that_is_left_goes_by_the_present_pace():
    at = ProgressState("train", 1, 1_000_000, 0.0, 0.0)
    for second in range(60):
        at.update(float(second), second)  # a step a second
    for second in range(60, 120):
        at.update(float(second), 60 + (second - 59) * 1000)
    assert at.recent_rate == pytest.approx(1000)
    assert at.left == pytest.approx((1_000_000 - at.done) / 1000)
    assert len(at.marks) < 40


def test_steps_can_be_taken_back(open_terminal, clock):
    shown, progress = open_terminal(), RichProgress()
    progress.start("train", 1, 10)
    progress.advance(8)
    progress.advance(-8)
    clock.now += 1
    progress.advance(2)
    assert " 2/10  " in shown()
    progress.stop()


@pytest.mark.parametrize(
    ("done", "total", "shown"),
    [(0, 0, "0/0 B"), (5, 1023, "5/1023 B"), (2**19, 2**20, "0.5/1.0 MiB"), (2**41, 2**51, "2.0/2048.0 TiB")],
)
def test_bytes_are_in_one_unit(done, total, shown):
    assert amount(done, total) == shown


def test_text_is_wrapped_where_there_is_no_room(open_terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    shown, progress = open_terminal(), RichProgress()
    monkeypatch.setenv("COLUMNS", "50")
    progress.start("train", 1, 4)
    progress.epoch({"loss": 0.25, "val_loss": 0.5, "val_accuracy": 0.75})
    progress.draw()
    words = shown().split()
    assert all(word in words for word in ("0.25", "val_loss", "0.5", "0.75")), "nothing is cut off"
    progress.stop()


def test_plain_letters_are_enough(open_terminal):
    class Old(Terminal):
        encoding = "latin-1"

    shown, progress = open_terminal(Old()), RichProgress()
    progress.start("train", 1, 4)
    progress.advance(2)
    progress.draw()
    progress.stop()
    shown().encode("ascii")
    unknown = RichProgress()
    unknown.start("train", 1, None)
    unknown.stop()
    shown().encode("ascii")


def test_what_is_printed_goes_above_the_bars_or_where_it_was_to_go(open_terminal, monkeypatch):
    shown, elsewhere = open_terminal(), io.StringIO()
    for out, where in ((Terminal(), shown), (elsewhere, elsewhere.getvalue)):
        monkeypatch.setattr(sys, "stdout", out)
        progress = RichProgress()
        progress.start("train", 1, 4)
        print("printed to", type(out).__name__)
        progress.stop()
        assert sys.stdout is out
        assert f"printed to {type(out).__name__}\n" in where()
    assert "StringIO" not in shown()


# -- events ------------------------------------------------------------------------------------------------------------


def test_events_are_lines_above_the_bars(open_terminal):
    shown, progress = open_terminal(), RichProgress().begin("train")
    progress.event(DECIDED)
    assert shown() == "train compile: <b>off</b>\ufffd[2J\n"
    progress.start("train", 3, 4)
    progress.event(SHORT)
    assert "train memory: split in two (epoch 2, step 3)\n" in shown()
    progress.end()


def test_a_log_has_lines_of_memory_at_once_and_others_only_beside_others(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    progress = LineProgress()
    progress.begin("train").event(DECIDED)
    progress.end()
    assert sys.stderr.getvalue() == "", "a short run leaves no trace"
    progress.begin("train").event(SHORT)
    progress.start("train", 1, 4)
    progress.event(Event(0, 0, "residency", "streamed"))
    assert sys.stderr.getvalue() == "train: memory: split in two (epoch 2, step 3)\n"
    clock.now += 11
    progress.advance(1)
    assert sys.stderr.getvalue().splitlines()[1:] == [
        "train: residency: streamed (epoch 1, step 1)",
        "train: epoch 1/1, step 1/4, 0 steps/s, 33 s left",
    ]
    progress.end()


def test_a_notebook_has_events_as_text_and_counts_what_is_too_much(notebook):
    progress = HTMLProgress().begin("train")
    progress.event(DECIDED)
    progress.start("train", 1, 4)
    for _ in range(MAX_EVENTS + 4):
        progress.event(SHORT)
    progress.end()
    page = notebook[-1]._repr_html_()
    assert "compile: &lt;b&gt;off&lt;/b&gt;\ufffd[2J" in page and "<b>" not in page
    assert page.count("split in two") == MAX_EVENTS - 1
    assert "and 5 more events: see the results" in page


def test_a_flood_of_events_is_cut(clock):
    progress = Counted(clock)
    progress.start("train", 1, 4)
    for _ in range(1000):
        progress.event(SHORT)
    assert len(progress.told) == MAX_EVENTS + 1
    assert progress.told[-1].message == "see the events of the results for this and all later events"


def test_an_event_that_cannot_be_drawn_does_not_end_the_run(clock):
    class Torn(Counted):
        def draw_event(self, event):
            raise BrokenPipeError

    progress = Torn(clock)
    progress.start("train", 1, 4)
    progress.event(SHORT)
    before = progress.drawings
    clock.now += 10
    progress.advance(1)
    progress.stop()
    assert progress.drawings == before


def test_the_silent_one_says_nothing_of_all_this(capfd):
    progress = Progress()
    assert progress.begin("train") is progress
    progress.loading("x", 2**40)
    progress.loaded(2**39)
    progress.start("train", 1, None)
    progress.doing("compiling")
    progress.event(SHORT)
    progress.stop()
    progress.end()
    assert capfd.readouterr() == ("", "")


# -- several runs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [RichProgress, LineProgress, HTMLProgress])
def test_an_object_at_work_gives_a_second_run_a_copy(cls):
    progress = cls()
    first = progress.begin("first")
    second = progress.begin("second")
    assert first is progress and type(second) is cls and second is not first
    first.end()
    third = progress.begin("third")
    assert third is progress
    assert progress.begin("fourth") is not progress
    for one in (second, third):
        one.end()
    assert progress.begin("fifth") is progress


def test_two_runs_with_one_object_count_their_custom_steps(open_terminal, clock):
    shown, progress = open_terminal(), RichProgress()
    outer = progress.begin("outer")
    outer.start("outer", 1, 10)
    outer.advance(3)
    inner = progress.begin("inner")
    inner.start("inner", 1, 20)
    inner.advance(20)
    inner.epoch({"loss": 2.0})
    inner.stop()
    inner.end()
    clock.now += 1
    outer.advance(4)
    outer.epoch({"loss": 1.0})
    assert (outer.state.done, outer.state.figures, inner.state.done) == (7, {"loss": 1.0}, 20)
    outer.end()
    assert re.search("inner .* epoch 1/1 .* loss 2\n", shown())
    assert re.search("outer .* epoch 1/1 .* loss 1\n", shown())
    assert sys.stderr.getvalue().count("\x1b[?25l") == 1, "one region for both"
    assert sys.stderr.getvalue().rfind("\x1b[?25h") > sys.stderr.getvalue().rfind("\x1b[?25l")


def test_runs_in_threads_share_an_object_and_a_region(open_terminal):
    shown, progress, failed = open_terminal(), RichProgress(), []
    together = threading.Barrier(4)

    def run(number):
        try:
            mine = progress.begin(f"run{number}")
            together.wait(10)
            mine.start(f"run{number}", 1, 100 + number)
            for _ in range(100 + number):
                mine.advance(1)
            mine.draw()
            together.wait(10)
            mine.epoch({"loss": float(number)})
            mine.end()
            assert mine.state.done == 100 + number
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=[number]) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(20)
    assert not failed
    written = sys.stderr.getvalue()
    assert all(f"loss {number}\n" in shown() for number in range(4))
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")


# -- cost --------------------------------------------------------------------------------------------------------------


def test_drawing_is_at_most_a_400th_where_it_is_slow_each_time(clock):
    progress = Counted(clock, cost=0.01)
    progress.start("train", 1, 10**9)
    began = clock.now
    while clock.now - began < 400:
        clock.now += 0.01
        progress.advance(1)
    assert progress.drawings * 0.01 <= 400 / 400 + 0.05
    assert progress.drawings > 80


def test_a_drawing_that_was_slow_once_is_forgiven(clock):
    progress = Counted(clock)
    progress.start("train", 1, 10**9)
    progress.cost = 1.0
    clock.now += 1
    progress.advance(1)
    progress.cost = 0.0
    before = progress.drawings
    clock.now += 2 * progress.interval
    progress.advance(1)
    assert progress.drawings == before + 1


def test_what_begins_again_and_again_is_not_drawn_each_time(clock):
    progress = Counted(clock, cost=0.001)
    progress.start("train", 10**6, 1)
    began, before = clock.now, progress.drawings
    while clock.now - began < 10:
        progress.doing("validating")
        clock.now += 0.0005
        progress.doing("")
        clock.now += 0.0005
        progress.advance(1)
        progress.epoch({})
    assert (progress.drawings - before) * 0.001 <= 10 / 400 * 2 + 0.01


def test_an_advance_looks_at_the_clock_once_and_does_no_more(clock, monkeypatch):
    progress = Counted(clock)
    progress.start("train", 1, 10**9)
    looks = []
    monkeypatch.setattr(throttled.time, "perf_counter", lambda: looks.append(1) or clock.now)
    before = set(vars(progress))
    for _ in range(1000):
        progress.advance(1)
    assert len(looks) == 1000 and progress.drawings == 1 and set(vars(progress)) == before


# -- a real terminal ---------------------------------------------------------------------------------------------------

ENDLESS = """
import sys
import numpy as np
import anyaccel as aa
from anyaccel.numpy_backend import Dense
x = np.ones((64, 3), np.float32)
data = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
graph = aa.ModelGraph([aa.ModelNode("net", Dense(1), data.reference())], aa.Optimizer("adam", lr=1e-3))
experiment = aa.Experiment("endless", graph)
phase = aa.TrainPhase("train", data=data, batch_size=8, losses=[aa.AppliedLoss("mse", on="net")], epochs=10**9)
try:
    experiment.run_phase(phase)
except KeyboardInterrupt:
    streams = [type(one).__name__ for one in (sys.stdout, sys.stderr)]
    print("interrupted after", len(experiment.last_run.epochs) > 0, *streams)
"""


def _read(screen, seconds=60.0):
    """What a terminal shows next, nothing after so many seconds without."""
    ready, _, _ = select.select([screen], [], [], seconds)
    assert ready or seconds < 60, "the child shows nothing"
    return os.read(screen, 65536) if ready else b""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo terminals")
@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_leaves_a_real_terminal_sane(times, tmp_path):
    import pty
    import termios

    screen, own = pty.openpty()
    before = termios.tcgetattr(own)
    script = tmp_path / "endless.py"
    script.write_text(textwrap.dedent(ENDLESS), encoding="utf-8")
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "24", "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen([sys.executable, script], stdin=own, stdout=own, stderr=own, env=environment)
    written = b""
    try:
        while written.count(b"steps/s") < 3:
            written += _read(screen)
        for _ in range(times):
            child.send_signal(signal.SIGINT)
            time.sleep(0.01)
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:
            written += _read(screen, 0.1)
        written += _read(screen, 0.1)
        after = termios.tcgetattr(own)
    finally:
        child.kill()
        child.wait()
        os.close(screen)
        os.close(own)
    assert after == before
    assert written.rfind(b"\x1b[?25h") > written.rfind(b"\x1b[?25l") > -1, "the cursor is there again"
    if times == 1:
        assert b"interrupted after True TextIOWrapper TextIOWrapper" in written and child.returncode == 0


BROKEN_PIPE = """
import os, sys
import numpy as np
read, write = os.pipe()
os.dup2(write, 2)
os.close(write)
os.close(read)
from anyaccel.data import FeatureSet
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.numpy_backend import Dense
from anyaccel.phases import TrainPhase
from anyaccel.graph import AppliedLoss
data = FeatureSet.from_dict("d", {"x": np.ones((8, 1)), "y": np.ones((8, 1))}, ["x"], ["y"])
graph = ModelGraph([ModelNode("net", Dense(1), data.reference(["x"], ["y"]))], "sgd")
phase = TrainPhase("t", data=data, losses=[AppliedLoss("mse", on="net")], batch_size=4, epochs=3)
results = Experiment("e", graph, progress="rich").run_phase(phase)
print(f"{len(results.epochs)} epochs", flush=True)
os._exit(0)  # Python's own end flushes standard error, which fails
"""


@pytest.mark.skipif(sys.platform == "win32", reason="pipes end in another way there")
def test_training_goes_on_when_nobody_reads_standard_error_any_more(tmp_path):
    script = tmp_path / "broken_pipe.py"
    script.write_text(BROKEN_PIPE, encoding="utf-8")
    environment = {**os.environ, "FORCE_COLOR": "1", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, script], env=environment, stdout=subprocess.PIPE, check=False, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, b"3 epochs\n")


NO_PLACE = """
import os, sys, warnings
sys.stdout, numbers = open(sys.argv[3], "w"), sys.stdout
if sys.argv[2] == "closed":
    os.close(2)
elif sys.argv[2] == "full":
    os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
import numpy as np
import anyaccel as aa
from anyaccel.numpy_backend import Dense
from anyaccel.phases.progress.log import LineProgress
from anyaccel.phases.progress.rich import RichProgress
LineProgress.interval = RichProgress.interval = 0.0
told = []
warnings.showwarning = lambda message, *_: told.append(str(message))
data = aa.FeatureSet.from_dict("d", {"x": np.arange(8.0)[:, None], "y": np.ones((8, 1))}, ["x"], ["y"])
graph = aa.ModelGraph([aa.ModelNode("net", Dense(1), data.reference(["x"], ["y"]))], "sgd")
phase = aa.TrainPhase("t", data=data, losses=[aa.AppliedLoss("mse", on="net")], batch_size=4, epochs=3)
results = aa.Experiment("e", graph, progress=sys.argv[1]).run_phase(phase)
numbers.write(f"{results.loss!r}\\n{told}\\n")
numbers.flush()
os._exit(0)  # Python's own end flushes standard error, which fails
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this system")
@pytest.mark.parametrize("name", ["rich", "lines"])
@pytest.mark.parametrize("stdout", ["/dev/null", "/dev/full"])
def test_training_learns_the_same_with_streams_that_are_full_or_closed(name, stdout):
    environment = {**os.environ, "FORCE_COLOR": "1", "OMP_NUM_THREADS": "1"}
    answers = []
    for stream in ("usual", "full", "closed"):
        command = [sys.executable, "-c", NO_PLACE, name, stream, stdout]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert ended.returncode == 0, ended.stderr
        answers.append(ended.stdout.splitlines())
    losses, warned = zip(*answers, strict=True)
    assert len(set(losses)) == 1 and losses[0].count(",") == 2
    assert warned[0] == "[]"
    for text, why in ((warned[1], "No space left on device"), (warned[2], "Bad file descriptor")):
        assert text.count("progress is no longer shown; the run continues: OSError") == 1 and why in text
