"""Instants: when a phase is interrupted, and at which stage of its life the main thread then is."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import wraps
from pkgutil import resolve_name
from types import FrameType
from typing import Any
from unittest import mock

ENTRIES = {
    "planning": "anyaccel.phases.runner.resolve_phase",
    "preparing": "anyaccel.phases.runner.prepare",
    "placing": "anyaccel.phases.runner.place",
    "loading": "anyaccel.phases.runner.make_loaders",
    "building": "anyaccel.phases.process_group.SingleProcess.build",
    "compiling": "anyaccel.phases.executor.pipeline.ChunkRunner.compile",
    "training": "anyaccel.phases.train_loop.TrainLoop._chunk",
    "validating": "anyaccel.phases.evaluation.Evaluation.run",
    "between epochs": "anyaccel.phases.evaluation.Validation.epoch_ends",
    "ending": "anyaccel.phases.runner.PhaseExecution.end",
}
"""The function that each stage of a phase begins with."""


SHORT = 0.02
"""Seconds below which an instant within a stage is a number of lines, as a thread would come too late."""


class Stages:
    """Follows a phase through the functions in `ENTRIES`, and does something at an instant within one of them."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        """The stages that the main thread is in, the innermost last."""
        self.seconds: dict[str, float] = {}
        """How long a call lasts, by stage: the latest that came to its end; before there is one, the longest."""
        self._lines: dict[str, int] = {}
        """The most lines of a call, by stage, of the phases that were traced."""
        self._calls: dict[str, int] = {}
        self._aim: tuple[str, int] | None = None
        self._share = 0.0
        self._later: Callable[[float], Any] = lambda seconds: None
        self._now: Callable[[], Any] = lambda: None
        for stage, name in ENTRIES.items():
            mock.patch(name, self._followed(stage, resolve_name(name))).start()

    def aim(self, stage: str, call: int, share: float, later: Callable[[float], Any], now: Callable[[], Any]) -> None:
        """Wait for the `call`-th call of a stage, and for a share of its length.

        Args:
            stage: a stage; another text for none.
            call: which of its calls in the phase, from 1 on.
            share: from 0 to 1.
            later: called at the beginning of a long stage, with the seconds to wait.
            now: called in a short stage, at the instant itself.
        """
        self._calls, self._aim, self._share, self._later, self._now = {}, (stage, call), share, later, now

    def _followed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def entered(*args: Any, **kwargs: Any) -> Any:
            self._calls[stage] = self._calls.get(stage, 0) + 1
            before, began, trace = self.inside, time.perf_counter(), sys.gettrace()
            self.inside = [*before, stage]
            counts, ended = self._aim is None, False
            try:
                if counts:
                    sys.settrace(self._counting(stage))
                elif self._aim == (stage, self._calls[stage]):
                    self._start(stage)
                result = function(*args, **kwargs)
                ended = True
                return result
            finally:
                if counts:
                    sys.settrace(trace)
                else:
                    self._note_seconds(stage, time.perf_counter() - began, ended)
                self.inside = before

        return entered

    def _note_seconds(self, stage: str, seconds: float, ended: bool) -> None:
        # Not the longest of all: the call that compiled first lasts a thousand times as long as those after it.
        self.seconds[stage] = seconds if ended else max(seconds, self.seconds.get(stage, 0.0))

    def _start(self, stage: str) -> None:
        if stage not in self._lines or self.seconds.get(stage, 0.0) > SHORT:
            self._later(self._share * self.seconds.get(stage, 0.0))
        else:
            sys.settrace(self._counting(stage, int(self._share * self._lines[stage])))

    def _counting(self, stage: str, last: int | None = None) -> Callable[..., Any]:
        """A function for `sys.settrace` that counts lines of anyaccel, and calls of others, up to the last."""
        n_lines = 0

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal n_lines
            n_lines += 1
            if last is None:
                self._lines[stage] = max(self._lines.get(stage, 0), n_lines)
            elif n_lines >= last:
                sys.settrace(None)
                self._now()
                return None
            return trace if str(frame.f_globals.get("__name__", "")).startswith("anyaccel") else None

        return trace


class Sender(threading.Thread):
    """Sends this process signals, each once; where the first raises nothing, it ends the process.

    Args:
        stages: of which the stage is noted that the first signal comes in.
        limit: seconds after which it sends by itself.
        signals: what is sent.
        gaps: seconds between these.
        patience: seconds that an exception may take to come.
        why_lost: what is said beside that.
    """

    def __init__(
        self,
        stages: Stages,
        *,
        limit: float,
        signals: Sequence[int],
        gaps: Sequence[float],
        patience: float,
        why_lost: Callable[[], str],
    ) -> None:
        super().__init__(daemon=True, name="sender")
        self.sent, self.raised = threading.Event(), threading.Event()
        self.stage = ""
        self._stages, self._limit, self._patience = stages, limit, patience
        self._signals, self._gaps = signals, gaps
        self._why_lost = why_lost
        self._begin, self._seconds, self._first = threading.Event(), 0.0, True

    def later(self, seconds: float) -> None:
        """Send when some seconds have passed."""
        self._seconds = seconds
        self._begin.set()

    def now(self) -> None:
        """Send the first signal at once, from this thread."""
        if not self._begin.is_set():
            self._note()
            self._first = False
            self._begin.set()
            os.kill(os.getpid(), self._signals[0])

    def run(self) -> None:
        """Called by the thread."""
        self._begin.wait(self._limit)
        self._begin.set()
        time.sleep(self._seconds)
        if self._first:
            self._note()
            os.kill(os.getpid(), self._signals[0])
        for number, gap in zip(self._signals[1:], self._gaps, strict=True):
            time.sleep(gap)
            os.kill(os.getpid(), number)
        self.sent.set()
        if not self.raised.wait(self._patience):
            self._end()

    def _note(self) -> None:
        self.stage = (self._stages.inside or ["between stages"])[-1]

    def _end(self) -> None:
        print(f"the signal sent while {self.stage} was lost. {self._why_lost()}", file=sys.stderr)
        faulthandler.dump_traceback(all_threads=True)
        sys.stderr.flush()
        os._exit(3)
