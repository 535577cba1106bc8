"""scikit-learn's side of anyaccel: estimators as models of nodes, fitted in a FitPhase or batch by batch.

Works with any object that has `fit` and `predict`, or `transform`. Importing this package imports no scikit-learn: who
brings an estimator has. Core asks for this package when a graph has an object that no framework owns.
"""

from anyaccel.lazy_attributes import lazy_attributes

_MODULES = {"Estimator": ".estimators", "FitPhase": ".fit_phase", "FitResults": ".fit_results"}
__all__ = ["Estimator", "FitPhase", "FitResults"]

__getattr__, __dir__ = lazy_attributes(__name__, _MODULES)
