"""Which Progress the `progress=` argument of an Experiment means in this process."""

from __future__ import annotations

import os
import sys
from typing import Any

from anyaccel.arguments import shown
from anyaccel.errors import PhaseError
from anyaccel.phases.progress.base import Progress, is_terminal
from anyaccel.phases.progress.log import LineProgress
from anyaccel.phases.progress.notebook import HTMLProgress, in_notebook
from anyaccel.phases.progress.rich import RichProgress

_BY_NAME = {"rich": RichProgress, "html": HTMLProgress, "lines": LineProgress, "none": Progress}


def checked_progress(choice: Any) -> Any:
    """Return `choice` if `progress_for` knows it.

    Raises:
        PhaseError: it is neither one of the words nor a Progress object.
    """
    if not isinstance(choice, Progress) and (not isinstance(choice, str) or choice not in ("auto", *_BY_NAME)):
        available = "'auto', 'rich', 'html', 'lines', 'none', or a Progress object"
        raise PhaseError(f"unknown progress={shown(choice)}", available=available, hint="write progress='none'")
    return choice


def progress_for(choice: Any) -> Progress:
    """Return a Progress from the argument of an Experiment.

    Args:
        choice: `"auto"`: HTML in a notebook, bars if standard error is a terminal, otherwise a line every ten seconds;
            `"rich"`, `"html"`, `"lines"`, `"none"`; or a Progress object.

    Raises:
        PhaseError: something else, or `"html"` outside a notebook.
    """
    if isinstance(checked_progress(choice), Progress):
        return choice  # type: ignore[no-any-return]
    if choice == "auto":
        if in_notebook():
            return HTMLProgress()
        has_bars = is_terminal(sys.stderr) and os.environ.get("TERM") not in ("dumb", "unknown")
        return RichProgress() if has_bars else LineProgress()
    if choice == "html" and not in_notebook():
        raise PhaseError("progress='html' needs a notebook, but no Jupyter kernel is running", hint="progress='auto'")
    return _BY_NAME[choice]()
