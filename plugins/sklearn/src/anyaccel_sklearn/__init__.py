"""scikit-learn for anyaccel: estimators as models of nodes, fitted in a FitPhase or batch by batch.

The package also has transforms of columns, splits by strata and groups, samplers of pairs and triplets, and metrics.
Estimators and transforms are any objects with `fit` and `predict`, or `transform`. Importing this package does not
import scikit-learn: metrics and named scalers import it when they are used. Core loads the parts that it uses.
"""

from anyaccel.lazy_attributes import lazy_attributes

_NAMES = {
    "cross_validation": "CrossValidation cross_validate",
    "estimators": "Estimator",
    "fit_phase": "FitPhase",
    "fit_results": "FitResults",
    "pair_conditions": "Beyond Different PairCondition Same Where Within",
    "pair_samplers": "PairSampler TripletSampler",
}
_MODULES = {name: f".{module}" for module, names in _NAMES.items() for name in names.split()}
__all__ = [*_MODULES]

__getattr__, __dir__ = lazy_attributes(__name__, _MODULES)
