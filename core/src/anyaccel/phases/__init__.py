"""Phases train, evaluate or fit a graph; this package holds them and the loops that run them.

Stands on `results`, `metrics`, `graph`, `data`, `saved_folder`, `adapter`, `precision` and the kernel.
"""

from anyaccel.distributions import moved_names
from anyaccel.phases.bound_phase import place
from anyaccel.phases.callbacks import Callback, EarlyStopping
from anyaccel.phases.checkpointing import Checkpoint
from anyaccel.phases.eval_phase import EvalPhase
from anyaccel.phases.framework_settings import FrameworkSettings
from anyaccel.phases.planning import plan_for, plan_of
from anyaccel.phases.plateau import ReduceLROnPlateau
from anyaccel.phases.progress import HTMLProgress, LineProgress, Progress, RichProgress, progress_for
from anyaccel.phases.run import Run, RunStats
from anyaccel.phases.runner import Phase, execute
from anyaccel.phases.tracker_callback import TrackerCallback
from anyaccel.phases.train_phase import TrainPhase
from anyaccel.phases.weight_averaging import WeightAveraging
from anyaccel.results.events import Event
from anyaccel.results.records import Epoch, EvaluationValues, Fitted

__all__ = [
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "Epoch",
    "EvalPhase",
    "EvaluationValues",
    "Event",
    "Fitted",
    "FrameworkSettings",
    "HTMLProgress",
    "LineProgress",
    "Phase",
    "Progress",
    "ReduceLROnPlateau",
    "RichProgress",
    "Run",
    "RunStats",
    "TrackerCallback",
    "TrainPhase",
    "WeightAveraging",
    "execute",
    "place",
    "plan_for",
    "plan_of",
    "progress_for",
]

__getattr__ = moved_names(__name__, "FitPhase Profile")
