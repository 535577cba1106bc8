"""What came out of runs: figures per epoch, metrics and predictions; to Arrow, pandas, pictures and plain data."""

from anyaccel.results.evaluation import EvalResults, eval_results
from anyaccel.results.fit import FitResults
from anyaccel.results.html import runs_html
from anyaccel.results.train import TrainResults

Results = TrainResults | EvalResults | FitResults

__all__ = ["EvalResults", "FitResults", "Results", "TrainResults", "eval_results", "runs_html"]
