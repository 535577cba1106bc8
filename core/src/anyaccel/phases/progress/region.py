"""The live part of a terminal: one region, in which every run that is at work has its lines."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

Piece = tuple[str, str]
"""Text as it is to be seen, and the name of its style, `""` for none."""
Line = Sequence[Piece]


class Shown(Protocol):
    """A run as the region shows it."""

    lines: Sequence[Line]


class Region:
    """What is drawn anew at the end of standard error, below what is printed meanwhile.

    rich honours `NO_COLOR`, `TERM=dumb` and what is no terminal: there only what stays is written. What is printed to
    standard output goes above the region if that is the terminal, too, and else where it was to go.
    """

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self.console = Console(stderr=True, highlight=False)
        self.stream = self.console.file
        self.runs: list[Shown] = []
        self._lock = threading.RLock()
        self._styles: dict[str, Any] = {}
        console, together = self.console, _is_terminal(sys.stdout)
        self._live = Live(self, console=console, auto_refresh=False, transient=True, redirect_stdout=together)

    @property
    def is_plain(self) -> bool:
        """Whether only plain letters can be written."""
        return not self.console.encoding.startswith("utf")

    @property
    def has_colours(self) -> bool:
        """Whether there is more than one colour to tell parts of a bar apart."""
        return self.console.color_system is not None and not self.console.no_color

    def join(self, run: Shown) -> None:
        """Show a run, too."""
        with self._lock:
            self.runs.append(run)
            self._live.start()

    def refresh(self) -> None:
        """Draw all runs as they are."""
        self._live.refresh()

    def leave(self, run: Shown, last: Sequence[Line]) -> None:
        """Show a run no more; these lines of it stay."""
        with self._lock:
            self.write(last)
            if len(self.runs) == 1:
                self._live.stop()
            self.runs.remove(run)

    def write(self, lines: Sequence[Line]) -> None:
        """Write lines above the region; long ones go on in the next row."""
        if lines:
            self.console.print(_Lines(lines, self), soft_wrap=True)

    def give_up(self, run: Shown) -> None:
        """A drawing of a run has failed: the terminal gets its cursor back, if it can be had."""
        with self._lock:
            if run in self.runs:
                self.runs.remove(run)
            if not self.runs:
                try:
                    self._live.stop()
                finally:
                    self.console.show_cursor(True)

    def style(self, name: str) -> Any:
        """A style of the terminal's by its name."""
        if name not in self._styles:
            self._styles[name] = self.console.get_style(name)
        return self._styles[name]

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        return _Lines([line for run in self.runs for line in run.lines], self).__rich_console__(console, options)


class _Lines:
    """Lines as rich takes them with the least work: pieces that are cut at the edge, not measured and not wrapped."""

    def __init__(self, lines: Sequence[Line], region: Region) -> None:
        self._lines = lines
        self._region = region

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.segment import Segment

        for line in self._lines:
            for shown, style in line:
                yield Segment(shown, self._region.style(style) if style else None)
            yield Segment.line()


_OPEN: list[Region] = []
_LOCK = threading.Lock()


def region() -> Region:
    """The region of what standard error is now."""
    with _LOCK:
        _OPEN[:] = [one for one in _OPEN if one.runs]
        stream = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
        found = next((one for one in _OPEN if one.stream is stream), None)
        if found is None:
            _OPEN.append(found := Region())
        return found


def _is_terminal(stream: Any) -> bool:
    try:
        return stream is not None and bool(stream.isatty())
    except (ValueError, AttributeError):
        return False
