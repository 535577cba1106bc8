"""The reference backend: models in plain NumPy with written-out gradients, on the CPU and on simulated devices."""

from anyaccel.adapter import Applied
from anyaccel.reference.arrays import SimArray
from anyaccel.reference.backend import ReferenceBackend
from anyaccel.reference.convolution import Conv2d, Flatten, MaxPool2d
from anyaccel.reference.creation import array, zeros
from anyaccel.reference.estimator import Estimator
from anyaccel.reference.layers import Activation, BatchNorm, Dense, Dropout
from anyaccel.reference.module import Module
from anyaccel.reference.sequential import Sequential
from anyaccel.reference.simulation import SimDevice, Simulation, simulate
from anyaccel.reference.standard import SequentialCNN, SequentialMLP

__all__ = [
    "Activation",
    "Applied",
    "BatchNorm",
    "Conv2d",
    "Dense",
    "Dropout",
    "Estimator",
    "Flatten",
    "MaxPool2d",
    "Module",
    "ReferenceBackend",
    "Sequential",
    "SequentialCNN",
    "SequentialMLP",
    "SimArray",
    "SimDevice",
    "Simulation",
    "array",
    "simulate",
    "zeros",
]
