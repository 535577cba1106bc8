"""Results of phases: values per epoch, metrics and predictions, as Arrow, pandas, plots, HTML and plain data.

Stands on `metrics`, `graph`, `data` and `saved_folder`.
"""

from anyaccel.distributions import moved_names
from anyaccel.results.base import PhaseResults
from anyaccel.results.comparison import Comparison, Results, compare
from anyaccel.results.evaluation import EvalResults, eval_results
from anyaccel.results.notebook import runs_html
from anyaccel.results.train import TrainResults

__all__ = [
    "Comparison",
    "EvalResults",
    "PhaseResults",
    "Results",
    "TrainResults",
    "compare",
    "eval_results",
    "runs_html",
]

__getattr__ = moved_names(__name__, "FitResults")
