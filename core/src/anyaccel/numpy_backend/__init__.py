"""The NumPy backend: models in plain NumPy with explicit gradients, on the CPU and on simulated devices.

It offers the layers, `SequentialMLP`, `SequentialCNN`, `TabularMLP`, and `simulate`, which creates devices that have
separate memory. It stands on the kernel, `adapter` and `precision`.
"""

from anyaccel.adapter import VjpResult
from anyaccel.distributions import moved_names
from anyaccel.numpy_backend.array_creation import array, zeros
from anyaccel.numpy_backend.backend import NumpyBackend
from anyaccel.numpy_backend.builtin_models import Sequential, SequentialCNN, SequentialMLP, TabularMLP
from anyaccel.numpy_backend.layers import Activation, BatchNorm, Conv2d, Dense, Dropout, Flatten, MaxPool2d
from anyaccel.numpy_backend.module import Module
from anyaccel.numpy_backend.sim_array import SimArray
from anyaccel.numpy_backend.sim_device import SimDevice, Simulation, simulate

__all__ = [
    "Activation",
    "BatchNorm",
    "Conv2d",
    "Dense",
    "Dropout",
    "Flatten",
    "MaxPool2d",
    "Module",
    "NumpyBackend",
    "Sequential",
    "SequentialCNN",
    "SequentialMLP",
    "SimArray",
    "SimDevice",
    "Simulation",
    "TabularMLP",
    "VjpResult",
    "array",
    "simulate",
    "zeros",
]

__getattr__ = moved_names(__name__, "Estimator")
