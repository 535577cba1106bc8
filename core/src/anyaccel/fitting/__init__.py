"""Fitting: `fit` builds feature set, graph, phase and experiment from a model and a table.

The package also has `load`; and `prepare`, of `phases`.

`FittedModel` exposes the graph and the experiment that `fit` built. Stands on `experiment`, `results`,
`phases`, `metrics`, `graph`, `precision`, `data`, `saved_folder` and the kernel.
"""

from anyaccel.distributions import moved_names
from anyaccel.fitting.fit_function import fit
from anyaccel.fitting.fitted_model import FittedModel, load
from anyaccel.fitting.fitted_model_loss import FittedModelLoss
from anyaccel.fitting.model_loss import ModelLoss
from anyaccel.phases.loading.device_loader import DeviceLoader, prepare

__all__ = [
    "DeviceLoader",
    "FittedModel",
    "FittedModelLoss",
    "ModelLoss",
    "fit",
    "load",
    "prepare",
]

__getattr__ = moved_names(__name__, "find_learning_rate")
