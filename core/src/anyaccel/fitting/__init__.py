"""Fitting: `fit`, which makes feature set, graph, phase and experiment of a model and a table, and `load`.

No machinery of its own: `FittedModel` exposes the graph and the experiment that it made. Stands on `experiment`,
`results`, `phases`, `graph`, `data` and the kernel.
"""

from anyaccel.fitting.fit_function import fit
from anyaccel.fitting.fitted_model import FittedModel, load

__all__ = ["FittedModel", "fit", "load"]
