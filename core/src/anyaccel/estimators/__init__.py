"""Estimators: objects in the scikit-learn style as models of a graph.

Offers `Estimator`, the model that wraps such an object, and what tells them from other objects. The NumPy backend runs
them as it runs any `Module`. Stands on `adapter` and the kernel.
"""

from anyaccel.estimators.estimator import Estimator, flat, is_estimator, is_fittable, no_predict_error

__all__ = ["Estimator", "flat", "is_estimator", "is_fittable", "no_predict_error"]
