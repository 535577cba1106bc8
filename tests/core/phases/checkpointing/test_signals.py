"""Processes that are asked to end while they train, validate, write or run in a thread, and what they leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from anyaccel.phases.checkpointing import checkpointer as termination
from anyaccel.phases.checkpointing import run_folder

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="POSIX signals")]

SCRIPT = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts the tests in the background has it ignored
import numpy as np
import anyaccel as aa
from anyaccel.phases.checkpointing import run_folder

folder, slow = sys.argv[1:]

def pause(what, seconds=0.5):
    os.write(1, (what + "\\n").encode())  # whole lines, whatever another thread writes
    time.sleep(seconds if what == slow else 0.002)

class Steps(aa.Callback):
    def step_end(self, run):
        pause("step", 0.2)
    def epoch_end(self, run):
        pause("epoch ends")


write = run_folder.RunFolder.write
def slowly(self, position, *args):
    pause("writing")
    write(self, position, *args)
    pause("written " + position.name)
run_folder.RunFolder.write = slowly

def metric(outputs, targets):
    pause("validating", 0.1)
    return float(abs(outputs - targets).mean())

x = np.random.default_rng(0).normal(size=(64, 3))
data = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1]}, "x", "y")
graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(dropout=0.3), data.reference())], "adam")
phase = aa.TrainPhase("train", data="all", losses=[aa.AppliedLoss("mse")], batch_size=8, epochs=4,
                      validation=aa.EvalPhase("v", data="all", metrics=[metric], batch_size=4),
                      checkpoint=aa.Checkpoint(folder, every=3), callbacks=[Steps()])

def run():
    results = aa.Experiment(graph, progress="none").run_phase(phase, resume="auto")
    print("loss", results.loss.tolist(), results.figure("val_metric").tolist(), flush=True)

if slow == "in a thread":
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
else:
    run()
"""


def run_script(folder, slow="", mark="", at=0, signals=()):
    """The script in a process of its own; it gets signals, 0.35 s apart, at a line of its output."""
    command = [sys.executable, "-c", SCRIPT, str(folder), slow]
    env = {**os.environ, "ANYACCEL_PLUGINS": ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        lines = []
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            lines.append(line.strip())
            if lines[-1] == mark and lines.count(mark) == at:
                for number in signals:
                    process.send_signal(number)
                    time.sleep(0.35 if len(signals) > 1 else 0.0)
        errors = process.stderr.read()
    return process.returncode, lines, errors


def newest(folder):
    """The place of the newest checkpoint, which must be valid."""
    found = run_folder.RunFolder(folder).newest()
    assert found is not None
    assert found[2] == [] and (folder / run_folder.LATEST).read_text().strip() == found[0].name
    return found[0].epoch, found[0].step


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a run prints at its end that nobody asks to end."""
    status, lines, errors = run_script(tmp_path_factory.mktemp("whole"))
    assert status == 0, errors
    return lines[-1]


@pytest.mark.parametrize(
    ("slow", "mark", "at", "place"),
    [
        ("step", "step", 5, (0, 5)),
        ("validating", "validating", 2, (1, 8)),  # it is validated again
        ("epoch ends", "epoch ends", 1, (0, 8)),
        ("writing", "writing", 2, (0, 6)),
    ],
)
def test_sigterm_writes_a_last_checkpoint_and_exits_with_143(tmp_path, whole, slow, mark, at, place):
    """That of the step which was going on, or of one soon after it on a busy machine."""
    status, lines, errors = run_script(tmp_path, slow, mark, at, [signal.SIGTERM])
    assert status == termination.TERMINATED == 143, errors
    assert errors == ""
    last = newest(tmp_path)
    assert place <= last <= (place[0], 8)
    assert lines[-1].startswith("written")
    again = run_script(tmp_path)
    assert (again[0], again[1][-1]) == (0, whole), again[2]


def test_a_second_sigterm_does_not_break_off_the_last_checkpoint(tmp_path, whole):
    status, lines, _ = run_script(tmp_path, "writing", "writing", 2, [signal.SIGTERM, signal.SIGTERM])
    assert status == 143
    assert lines.count("writing") == sum(line.startswith("written") for line in lines)
    newest(tmp_path)
    assert run_script(tmp_path)[1][-1] == whole


def test_ctrl_c_keeps_what_there_is(tmp_path, whole):
    status, _, errors = run_script(tmp_path, "step", "step", 5, [signal.SIGINT])
    assert status == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert (0, 5) <= newest(tmp_path) <= (0, 8)
    assert run_script(tmp_path)[1][-1] == whole


def test_in_another_thread_the_last_one_that_was_due_is_left(tmp_path, whole):
    """Python handles signals in the main thread alone, which may be the program's own."""
    status, _, _ = run_script(tmp_path, "in a thread", "step", 8, [signal.SIGTERM])
    assert status == -signal.SIGTERM
    assert newest(tmp_path) in ((0, 3), (0, 6), (1, 1))
    assert run_script(tmp_path)[1][-1] == whole
