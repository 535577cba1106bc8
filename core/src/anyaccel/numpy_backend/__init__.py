"""The reference backend: models in plain NumPy with written-out gradients, on the CPU and on simulated devices."""

from anyaccel.adapter import VjpResult
from anyaccel.numpy_backend.array_creation import array, zeros
from anyaccel.numpy_backend.backend import NumpyBackend
from anyaccel.numpy_backend.builtin_models import SequentialCNN, SequentialMLP
from anyaccel.numpy_backend.convolution_layers import Conv2d, Flatten, MaxPool2d
from anyaccel.numpy_backend.estimator import Estimator
from anyaccel.numpy_backend.layers import Activation, BatchNorm, Dense, Dropout
from anyaccel.numpy_backend.module import Module
from anyaccel.numpy_backend.sequential import Sequential
from anyaccel.numpy_backend.sim_array import SimArray
from anyaccel.numpy_backend.sim_device import SimDevice, Simulation, simulate

__all__ = [
    "Activation",
    "BatchNorm",
    "Conv2d",
    "Dense",
    "Dropout",
    "Estimator",
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
    "VjpResult",
    "array",
    "simulate",
    "zeros",
]
