"""Progress of a phase: who is told of it, and how it is shown on a terminal, in a notebook and in a log."""

from anyaccel.phases.progress.choosing import progress_for
from anyaccel.phases.progress.drawn import DrawnProgress
from anyaccel.phases.progress.heard import Progress
from anyaccel.phases.progress.lines import LineProgress
from anyaccel.phases.progress.notebook import HTMLProgress
from anyaccel.phases.progress.standing import Standing
from anyaccel.phases.progress.terminal import RichProgress

__all__ = ["DrawnProgress", "HTMLProgress", "LineProgress", "Progress", "RichProgress", "Standing", "progress_for"]
