"""Progress of a run: on a terminal (by rich), in a notebook (HTML), in a log (plain lines), or nowhere.

Stands on `results.events` only.
"""

from anyaccel.phases.progress.base import Progress
from anyaccel.phases.progress.log import LineProgress
from anyaccel.phases.progress.notebook import HTMLProgress
from anyaccel.phases.progress.rich import RichProgress
from anyaccel.phases.progress.selection import progress_for
from anyaccel.phases.progress.throttled import ProgressState, ThrottledProgress

__all__ = [
    "HTMLProgress",
    "LineProgress",
    "Progress",
    "ProgressState",
    "RichProgress",
    "ThrottledProgress",
    "progress_for",
]
