"""scikit-learn's side of anyaccel: estimators as models of nodes, fitted in a FitPhase or batch by batch.

Works with any object that has `fit` and `predict`, or `transform`. Importing this package imports no scikit-learn: who
brings an estimator has. Core asks for this package when a graph has an object that no framework owns.
"""

from anyaccel.lazy_attributes import lazy_attributes

_NAMES = {
    "estimators": "Estimator",
    "fit_phase": "FitPhase",
    "fit_results": "FitResults",
    "pair_conditions": "Beyond Different PairCondition Same Where Within",
    "pair_samplers": "PairSampler TripletSampler",
}
_MODULES = {name: f".{module}" for module, names in _NAMES.items() for name in names.split()}
__all__ = [*_MODULES]

__getattr__, __dir__ = lazy_attributes(__name__, _MODULES)
