"""Progress of a phase: who is told of it, and how it is shown on a terminal, in a notebook and in a log."""

from anyaccel.phases.progress.base import Progress
from anyaccel.phases.progress.choosing import progress_for
from anyaccel.phases.progress.log import LineProgress
from anyaccel.phases.progress.notebook import HTMLProgress
from anyaccel.phases.progress.rich import RichProgress
from anyaccel.phases.progress.state import Standing
from anyaccel.phases.progress.throttled import DrawnProgress

__all__ = ["DrawnProgress", "HTMLProgress", "LineProgress", "Progress", "RichProgress", "Standing", "progress_for"]
