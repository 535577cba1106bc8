"""Fitting: `fit`, which makes feature set, graph, phase and experiment of a model and a table, and `load`; and
`prepare`, which places what a training loop of one's own needs; `find_learning_rate`, a range test with a phase.

No machinery of its own: `FittedModel` exposes the graph and the experiment that it made. Stands on `experiment`,
`results`, `phases`, `graph`, `data`, `requests`, `saved_folder` and the kernel.
"""

from anyaccel.fitting.fit_function import fit
from anyaccel.fitting.fitted_model import FittedModel, load
from anyaccel.fitting.learning_rate_finder import RangeTest, find_learning_rate
from anyaccel.fitting.prepare_function import DeviceLoader, prepare

__all__ = ["DeviceLoader", "FittedModel", "RangeTest", "find_learning_rate", "fit", "load", "prepare"]
