"""The live display of a terminal, shared by all runs: one `rich.progress.Progress` for each stream."""

from __future__ import annotations

import sys
import threading

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from anyaccel.phases.progress.base import is_terminal


class _Console(Console):
    """A console that raises where the reader of its stream has gone.

    rich's own raises SystemExit, after it has pointed the standard output of the process to nowhere.
    """

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError("standard error is no longer read")


class SharedDisplay:
    """Bars at the end of standard error, two for each run, below other output."""

    def __init__(self) -> None:
        console = _Console(stderr=True, highlight=False)
        self.stream = console.file
        self.bars = Progress(
            TextColumn("{task.description}", markup=False, style="progress.description"),
            BarColumn(bar_width=30 if console.width >= 100 else 12),
            TextColumn("{task.fields[line]}", markup=False, table_column=Column(overflow="fold")),
            console=console,
            auto_refresh=False,  # drawn by the run itself, which limits how often
            transient=True,
            redirect_stdout=is_terminal(sys.stdout),
        )
        self._runs = 0
        self._lock = threading.RLock()

    @property
    def is_used(self) -> bool:
        """Whether any run has bars here."""
        return self._runs > 0

    def add_bars(self) -> tuple[TaskID, TaskID]:
        """Hidden bars for the phase and the steps of a run."""
        with self._lock:
            self._runs += 1
            self.bars.start()
            return self._hidden_bar(), self._hidden_bar()

    def _hidden_bar(self) -> TaskID:
        return self.bars.add_task("", total=None, visible=False, line="")

    def remove_bars(self, bars: tuple[TaskID, TaskID], last_line: str) -> None:
        """Remove the bars of a run and print a last line, `""` for none."""
        with self._lock:
            if last_line:
                self.print(last_line)
            for bar in bars:
                self.bars.remove_task(bar)
            self._runs -= 1
            if not self._runs:
                self.bars.stop()

    def abandon(self, bars: tuple[TaskID, TaskID] | None) -> None:
        """Remove the bars of a run whose drawing has failed, and show the cursor again if it was the last."""
        with self._lock:
            if bars is not None and bars[0] in self.bars.task_ids:
                for bar in bars:
                    self.bars.remove_task(bar)
                self._runs -= 1
            if not self._runs:
                try:
                    self.bars.stop()
                finally:
                    self.bars.console.show_cursor(True)

    def print(self, line: str, style: str = "") -> None:
        """Print a line above the bars."""
        self.bars.console.print(Text(line, style=style), soft_wrap=True)


_displays: list[SharedDisplay] = []
_LOCK = threading.Lock()


def shared_display() -> SharedDisplay:
    """Return the display of the current standard error."""
    with _LOCK:
        _displays[:] = [display for display in _displays if display.is_used]
        stream = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
        for display in _displays:
            if display.stream is stream:
                return display
        _displays.append(SharedDisplay())
        return _displays[-1]
