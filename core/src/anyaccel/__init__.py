"""anyaccel: one device layer for models of any machine-learning framework, and graphs that train across frameworks.

Importing this package imports no framework, plugin, NumPy or Arrow, and does not look for plugins: each public name is
imported on first use, names of anyaccel's other distributions from these. The modules in this folder are the kernel,
which is all that `place` and `move` need.
"""

from __future__ import annotations

import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

from anyaccel import distributions as _distributions
from anyaccel import install_hints as _install_hints
from anyaccel.lazy_attributes import MissingNames as _MissingNames
from anyaccel.lazy_attributes import lazy_attributes as _lazy_attributes
from anyaccel.version import __version__ as __version__

if TYPE_CHECKING:
    from anyaccel import errors as errors
    from anyaccel.accelerator import Accelerator as Accelerator
    from anyaccel.backend import AsyncCopy as AsyncCopy
    from anyaccel.backend import Backend as Backend
    from anyaccel.backend import CompileEstimate as CompileEstimate
    from anyaccel.backend import Compute as Compute
    from anyaccel.backend import Exchange as Exchange
    from anyaccel.backend import Memory as Memory
    from anyaccel.backend import MultiStepProgram as MultiStepProgram
    from anyaccel.backend import Program as Program
    from anyaccel.data import BatchSource as BatchSource
    from anyaccel.data import EpochOrders as EpochOrders
    from anyaccel.data import FeatureSet as FeatureSet
    from anyaccel.data import FeatureSetView as FeatureSetView
    from anyaccel.data import IterableSource as IterableSource
    from anyaccel.data import MapSource as MapSource
    from anyaccel.data import Pad as Pad
    from anyaccel.data import ParquetStream as ParquetStream
    from anyaccel.data import Reference as Reference
    from anyaccel.data import Sampler as Sampler
    from anyaccel.data import SimpleSampler as SimpleSampler
    from anyaccel.data import Source as Source
    from anyaccel.data import suggested_num_workers as suggested_num_workers
    from anyaccel.device import Device as Device
    from anyaccel.experiment import Experiment as Experiment
    from anyaccel.experiment import ModelGraph as ModelGraph
    from anyaccel.fitting import FittedModel as FittedModel
    from anyaccel.fitting import fit as fit
    from anyaccel.fitting import load as load
    from anyaccel.graph import AppliedLoss as AppliedLoss
    from anyaccel.graph import ConcatNode as ConcatNode
    from anyaccel.graph import ModelNode as ModelNode
    from anyaccel.graph import Plan as Plan
    from anyaccel.graph.weights import copy_weights as copy_weights
    from anyaccel.hookspecs import hookimpl as hookimpl
    from anyaccel.metrics import Metric as Metric
    from anyaccel.numpy_backend import SequentialCNN as SequentialCNN
    from anyaccel.numpy_backend import SequentialMLP as SequentialMLP
    from anyaccel.numpy_backend import TabularMLP as TabularMLP
    from anyaccel.numpy_backend import simulate as simulate
    from anyaccel.phases import Callback as Callback
    from anyaccel.phases import Checkpoint as Checkpoint
    from anyaccel.phases import EarlyStopping as EarlyStopping
    from anyaccel.phases import EvalPhase as EvalPhase
    from anyaccel.phases import Event as Event
    from anyaccel.phases import FrameworkSettings as FrameworkSettings
    from anyaccel.phases import Progress as Progress
    from anyaccel.phases import ReduceLROnPlateau as ReduceLROnPlateau
    from anyaccel.phases import TrainPhase as TrainPhase
    from anyaccel.phases import WeightAveraging as WeightAveraging
    from anyaccel.phases.loading.device_loader import prepare as prepare
    from anyaccel.placement import best_device as best_device
    from anyaccel.placement import device_of as device_of
    from anyaccel.placement import devices as devices
    from anyaccel.placement import devices_or_cpu as devices_or_cpu
    from anyaccel.placement import move as move
    from anyaccel.placement import place as place
    from anyaccel.placement import scope as scope
    from anyaccel.precision import LossScale as LossScale
    from anyaccel.results import Comparison as Comparison
    from anyaccel.results import EvalResults as EvalResults
    from anyaccel.results import TrainResults as TrainResults
    from anyaccel.results import compare as compare
    from anyaccel.specs import Loss as Loss
    from anyaccel.specs import Optimizer as Optimizer
    from anyaccel.specs import Schedule as Schedule
    from anyaccel_devtools.learning_rate_finder import find_learning_rate as find_learning_rate
    from anyaccel_devtools.profiles import Profile as Profile
    from anyaccel_devtools.transfer_ledger import Ledger as Ledger
    from anyaccel_devtools.transfer_ledger import ledger as ledger
    from anyaccel_devtools.transfer_ledger import no_transfers as no_transfers
    from anyaccel_distributed.own_loop import Loop as Loop
    from anyaccel_resources import DeviceRequest as DeviceRequest
    from anyaccel_resources import Inventory as Inventory
    from anyaccel_sklearn.cross_validation import cross_validate as cross_validate
    from anyaccel_sklearn.estimators import Estimator as Estimator
    from anyaccel_sklearn.fit_phase import FitPhase as FitPhase
    from anyaccel_sklearn.fit_results import FitResults as FitResults
    from anyaccel_sklearn.pair_conditions import Beyond as Beyond
    from anyaccel_sklearn.pair_conditions import Different as Different
    from anyaccel_sklearn.pair_conditions import PairCondition as PairCondition
    from anyaccel_sklearn.pair_conditions import Same as Same
    from anyaccel_sklearn.pair_conditions import Where as Where
    from anyaccel_sklearn.pair_conditions import Within as Within
    from anyaccel_sklearn.pair_samplers import PairSampler as PairSampler
    from anyaccel_sklearn.pair_samplers import TripletSampler as TripletSampler

_NAMES = {
    "accelerator": "Accelerator",
    "backend": "AsyncCopy Backend CompileEstimate Compute Exchange Memory MultiStepProgram Program",
    "data": (
        "BatchSource EpochOrders FeatureSet FeatureSetView IterableSource MapSource Pad ParquetStream Reference "
        "Sampler SimpleSampler Source suggested_num_workers"
    ),
    "device": "Device",
    "experiment": "Experiment ModelGraph",
    "fitting": "FittedModel fit load",
    "graph": "AppliedLoss ConcatNode ModelNode Plan",
    "hookspecs": "hookimpl",
    "metrics": "Metric",
    "phases": "Callback Checkpoint EarlyStopping EvalPhase Event FrameworkSettings Progress "
    "ReduceLROnPlateau TrainPhase WeightAveraging",
    "phases.loading.device_loader": "prepare",
    "placement": "best_device device_of devices devices_or_cpu move place scope",
    "specs": "Loss Optimizer Schedule",
    "numpy_backend": "SequentialCNN SequentialMLP TabularMLP simulate",
    "precision": "LossScale",
    "results": "Comparison EvalResults TrainResults compare",
    "graph.weights": "copy_weights",
}
_MODULES = {name: f"anyaccel.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = ["errors", *_MODULES]

_GRAPH = "write ModelGraph([ModelNode('net', model, data.reference())], 'adam')"
_FIT = "write fit(model, (x, y), loss='mse')"
_OTHER_NAMES = {
    **{
        distribution.removeprefix("anyaccel-"): f"{distribution} loads itself when it is needed: import anyaccel only, "
        f"or its public names from {distribution.replace('-', '_')}"
        for distribution in _install_hints.DISTRIBUTIONS
    },
    **dict.fromkeys(("Model", "Graph"), _GRAPH),
    **dict.fromkeys(("Trainer", "train"), _FIT),
    **dict.fromkeys(
        ("evaluate", "predict", "save"), "fit returns a model with evaluate(data), predict(data) and save('FOLDER')"
    ),
    "Sequential": "build the model in its framework, or use SequentialMLP",
    "nn": "build models in their frameworks, or use SequentialMLP and SequentialCNN",
    "Node": "write ModelNode('net', model, data.reference())",
    "Dataset": "write FeatureSet.from_dict('data', {'x': x, 'y': y}, ['x'], ['y'])",
    "DataLoader": "a phase draws batches: TrainPhase(..., batch_size=32)",
    **dict.fromkeys(("lr_find", "find_lr", "LRFinder", "Tuner"), "write find_learning_rate(graph, phase)"),
    **dict.fromkeys(
        ("manual_seed", "seed", "set_seed", "seed_everything"), "write fit(..., seed=0), or ModelGraph(..., seed=0)"
    ),
    **dict.fromkeys(("cuda", "gpu", "is_available", "gpu_available"), "write devices('gpu') to list the GPUs"),
    **dict.fromkeys(("list_devices", "get_devices"), "write devices()"),
    **dict.fromkeys(("default_device", "get_device", "current_device"), "write best_device(), or device_of(tensor)"),
    "device_count": "write len(devices('gpu'))",
    **dict.fromkeys(
        ("to", "to_device", "send_to_device", "device_put"), "write move(tensors, 'gpu:0'), or place(model, 'gpu:0')"
    ),
    **dict.fromkeys(("optim", "optimizers", "Adam", "AdamW", "SGD"), "write Optimizer('adam', lr=1e-3)"),
    **dict.fromkeys(
        ("lr_scheduler", "schedules", "LearningRateScheduler", "LRScheduler", "CosineDecay", "CosineAnnealingLR"),
        "write Optimizer('adam', lr=1e-3, schedule=Schedule('cosine', steps=1000))",
    ),
    **dict.fromkeys(("losses", "MSELoss", "CrossEntropyLoss"), "write Loss('cross_entropy')"),
    "callbacks": "write EarlyStopping('val_loss'); every callback is a name of this package",
    "ModelCheckpoint": "write Checkpoint('runs/a', keep_best='val_loss'), as checkpoint= of fit or TrainPhase",
    **dict.fromkeys(
        ("autocast", "GradScaler"), "write fit(..., precision='bf16-mixed'), or Loop(precision='bf16-mixed')"
    ),
    **dict.fromkeys(("Fabric", "backward"), "write loop = Loop(), and loop.backward(loss)"),
    **dict.fromkeys(
        ("launch", "notebook_launcher", "DistributedDataParallel"),
        "start the script as anyaccel run --replicas 2 SCRIPT",
    ),
}
_attribute, _ = _lazy_attributes(__name__, _MODULES, _OTHER_NAMES)


def __getattr__(name: str) -> _Any:
    if name == "errors":
        return _import_module("anyaccel.errors")
    if name not in _MODULES and name not in _OTHER_NAMES and not name.startswith("_"):
        value = _distributions.load(_distributions.NAMES, name)
        if value is not None:
            globals()[name] = value
            return value
    return _attribute(name)


def __dir__() -> list[str]:
    """Return the names of core and of the other installed distributions."""
    return sorted({*__all__, *(entry.name for entry in _distributions.entry_points(_distributions.NAMES))})


_sys.meta_path.insert(0, _distributions.MovedModules)
_sys.meta_path.append(_MissingNames(__name__, _OTHER_NAMES))
