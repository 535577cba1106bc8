"""Wrong arguments of everything public: each is an AnyaccelError with a hint before anything moves, or valid.

`CALLS` has a valid call of every public callable; each of its arguments is replaced by each of `VALUES` in turn. The
configurations of a graph and its phases are walked in the same way. A sample is tried, and everything with
ANYACCEL_TEST_FULL=1.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from wrong_calls import replaced, wrongly_read, wrongly_taken

import anyaccel as aa
from anyaccel import numpy_backend
from anyaccel.data import sampler_from_config
from anyaccel.errors import AnyaccelError

PADDED = {"pad": None, "collate": None}

X = np.random.default_rng(0).standard_normal((12, 3)).astype("float32")
TABLE = pa.table({"x": X[:, 0], "y": X[:, 1]})
LOSS = aa.AppliedLoss("mse", on="net")
PHASE = {"accelerator": "cpu", "strict": False, "policy": None, "callbacks": (), "final_device": "cpu"}
MODES = {"compile": "auto", "residency": "auto", "precision": None, "matmul_precision": None}


@functools.cache
def data() -> aa.FeatureSet:
    columns = {"x": X, "y": X[:, 0], "k": np.arange(12) % 3}
    features = aa.FeatureSet.from_dict("data", columns, ["x"], ["y"], ["k"])
    features.add_splits({"train": range(6), "val": range(6, 12)})
    return features


class Rowwise:
    """A map-style data set."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": X[i], "y": X[i, 0]}


def batches() -> list[dict[str, Any]]:
    return [{"x": X, "y": X[:, 0]}]


def source() -> aa.IterableSource:
    return aa.IterableSource("src", batches, features="x", target="y")


def copied() -> aa.FeatureSet:
    """One that may be changed."""
    return data().select()


def node(label: str = "net", upstream: Any = None) -> aa.ModelNode:
    return aa.ModelNode(label, aa.SequentialMLP(1), upstream or data().reference())


def graph() -> aa.ModelGraph:
    return aa.ModelGraph([node()], "adam")


def removed_at_exit() -> str:
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return folder.name


@functools.cache
def saved() -> str:
    """A folder with a graph."""
    graph().save(folder := removed_at_exit())
    return folder


@functools.cache
def weights() -> str:
    """A file of weights."""
    graph().save_weights(file := f"{removed_at_exit()}/w.safetensors")
    return file


@functools.cache
def csv() -> str:
    """A table in a file."""
    file = Path(removed_at_exit(), "table.csv")
    file.write_text("x,y\n" + "".join(f"{row}.5,{row % 2}.0\n" for row in range(8)))
    return str(file)


def fitted() -> aa.FittedModel:
    return aa.fit(aa.SequentialMLP(1), csv(), loss="mse", target="y", epochs=1, progress="none")


@functools.cache
def classifier() -> aa.FittedModel:
    net = aa.SequentialMLP(1)
    return aa.fit(net, csv(), loss="binary_cross_entropy", target="y", epochs=0, progress="none")


@functools.cache
def saved_fit() -> str:
    """A folder with a fitted model."""
    fitted().save(folder := removed_at_exit())
    return folder


@functools.cache
def saved_experiment() -> str:
    """A folder with an experiment."""
    experiment().save(folder := removed_at_exit())
    return folder


@functools.cache
def saved_results(number: int) -> str:
    """A folder with the results of a training (0) or an evaluation (1)."""
    history()[number].save(folder := removed_at_exit())
    return folder


def train(**settings: Any) -> aa.TrainPhase:
    return aa.TrainPhase("t", data="train", losses=[LOSS], batch_size=4, **settings)


def experiment() -> aa.Experiment:
    return aa.Experiment("e", graph(), progress="none")


@functools.cache
def history() -> list[Any]:
    done = experiment()
    done.run(train(), aa.EvalPhase("v", data="val", losses=[LOSS]))
    return done.history


def planned(cls: type) -> Callable[..., Any]:
    """Makes a phase and plans it: what a phase cannot know by itself is checked with its graph."""

    def make(label: Any, **settings: Any) -> Any:
        return aa.Experiment("e", aa.ModelGraph([node()], "adam"), progress="none").plan(cls(label, **settings))

    make.__signature__ = inspect.signature(cls)  # type: ignore[attr-defined]
    return make


def built(label: Any, model: Any, upstream_ref: Any, **settings: Any) -> Any:
    return aa.ModelGraph([aa.ModelNode(label, model, upstream_ref, **settings)]).build()


def one(function: Callable[..., Any]) -> Callable[..., Any]:
    """Takes the first of positional arguments as `given`."""
    return lambda given, **others: function(given, **others)


def simulated(**settings: Any) -> None:
    with aa.simulate(**settings):
        pass


@pytest.fixture(autouse=True, scope="module")
def _parquet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder, before = tmp_path_factory.mktemp("files"), Path.cwd()
    pq.write_table(TABLE, folder / "d.parquet")
    os.chdir(folder)
    yield
    os.chdir(before)


Call = tuple[Callable[..., Any], dict[str, Any]]
OPTIMIZER = {"lr": 1e-3, "opt_kwargs": None, "schedule": None, "clip_norm": 1.0, "clip_value": None}
MLP = {"output_shape": 1, "activation": "relu", "dropout": 0.0, "dtype": "float32"}
SPLIT = {"ratios": {"a": 0.5, "b": 0.5}, "seed": 0, "stratify_by": None, "group_by": None}
COLUMNS = {"features": "x", "target": "y", "tags": ()}
KEYS = {"features": "x", "target": "y", "tags": ()}

CALLS: dict[str, Callable[[], Call]] = {
    "Accelerator": lambda: (aa.Accelerator, {"device": "cpu", "pin_memory": False}),
    "Accelerator.of": lambda: (aa.Accelerator.of, {"value": "cpu"}),
    "Accelerator.check": lambda: (aa.Accelerator().check, {"framework": "numpy"}),
    "Accelerator.cuda": lambda: (aa.Accelerator.cuda, {"index": 0, "pin_memory": False}),
    "Accelerator.gpu": lambda: (aa.Accelerator.gpu, {"index": 0, "pin_memory": False}),
    "Accelerator.device_string": lambda: (aa.Accelerator().device_string, {"framework": "numpy"}),
    "Accelerator.from_config": lambda: (aa.Accelerator.from_config, {"config": {"device": "cpu"}}),
    "Accelerator.is_available": lambda: (aa.Accelerator().is_available, {"framework": "numpy"}),
    "Accelerator.move": lambda: (aa.Accelerator().move, {"obj": X, "framework": "numpy"}),
    "Accelerator.place": lambda: (aa.Accelerator().place, {"obj": aa.SequentialMLP(1)}),
    "Accelerator.scope": lambda: (aa.Accelerator().scope, {"framework": "numpy"}),
    "AppliedLoss": lambda: (
        aa.AppliedLoss,
        {"loss": "mse", "on": "net", "inputs": ["outputs", "targets"], "weight": 1.0, "label": "l"},
    ),
    "AppliedLoss.from_output": lambda: (
        aa.AppliedLoss.from_output,
        {"on": "net", "output": "loss", "weight": 1.0, "label": "own"},
    ),
    "AppliedLoss.from_config": lambda: (aa.AppliedLoss.from_config, {"config": LOSS.get_config()}),
    "Comparison.column": lambda: (aa.compare(history()).column, {"name": "loss"}),
    "ConcatNode": lambda: (aa.ConcatNode, {"label": "c", "upstream_refs": ["a", "b"], "concat_axis": -1}),
    "Device": lambda: (aa.Device, {"kind": "cpu", "index": 0}),
    "Device.parse": lambda: (aa.Device.parse, {"value": "cpu"}),
    "EarlyStopping": lambda: (
        aa.EarlyStopping,
        {"monitor": "loss", "patience": 5, "min_delta": 0.0, "mode": "min", "restore_best": False},
    ),
    **{
        f"{kind}.load_state_dict": lambda kind=kind: (
            getattr(aa, kind)().load_state_dict,
            {"state": getattr(aa, kind)().state_dict()},
        )
        for kind in ("EarlyStopping", "ReduceLROnPlateau", "WeightAveraging")
    },
    "Checkpoint": lambda: (
        aa.Checkpoint,
        {"folder": "runs", "every": 5, "keep": 2, "keep_best": "val_loss", "on_failure": "warn", "wait": True}
        | {"names": None, "change": None, "mode": "auto"},
    ),
    "WeightAveraging": lambda: (aa.WeightAveraging, {"decay": 0.9, "every_n_steps": 2, "start_epoch": 1}),
    "WeightAveraging.applied": lambda: (aa.WeightAveraging().applied, {"graph": graph()}),
    "FrameworkSettings": lambda: (aa.FrameworkSettings, {"values": {"torch.backends.cudnn.benchmark": True}}),
    "ReduceLROnPlateau": lambda: (
        aa.ReduceLROnPlateau,
        {"monitor": "loss", "factor": 0.5, "patience": 5, "threshold": 0.0, "threshold_mode": "abs", "cooldown": 1}
        | {"min_factor": 0.1, "mode": "max"},
    ),
    "EvalPhase": lambda: (
        planned(aa.EvalPhase),
        {"label": "v", "data": "val", "metrics": ["mse"], "outputs": ["net"], "batch_size": 8, "sampler": None}
        | {"losses": [LOSS], "replicas": 1, **PHASE, **MODES},
    ),
    "EvalPhase.from_split": lambda: (aa.EvalPhase.from_split, {"label": "v", "split": "val"}),
    "EvalResults.load": lambda: (aa.EvalResults.load, {"folder": saved_results(1), "allow": ()}),
    "EvalResults.plot": lambda: (history()[1].plot, {"name": "net", "ax": None, "targets": None, "undo": False}),
    "EvalResults.prediction": lambda: (history()[1].prediction, {"name": "net", "undo": False}),
    "EvalResults.to_arrow": lambda: (history()[1].to_arrow, {"undo": False}),
    "EvalResults.to_pandas": lambda: (history()[1].to_pandas, {"undo": False}),
    "Experiment": lambda: (
        aa.Experiment,
        {"label": "e", "graph": graph(), "phases": [train()], "callbacks": [aa.EarlyStopping()], "progress": "none"},
    ),
    "Experiment.compare": lambda: (one(done().compare), {"given": "loss"}),
    "Experiment.from_config": lambda: (
        aa.Experiment.from_config,
        {"config": experiment().get_config(), "feature_sets": [data()], "models": {}, "allow": ()},
    ),
    "TrainPhase.plan": lambda: (train().plan, {"graph": experiment().graph, "inventory": None}),
    "Experiment.plan": lambda: (experiment().plan, {"phase": train(), "inventory": None}),
    "Experiment.plot": lambda: (done().plot, {"figure": "loss", "ax": None}),
    "Experiment.load": lambda: (
        aa.Experiment.load,
        {"folder": saved_experiment(), "models": {}, "feature_sets": [data()], "optimizer": "adam", "phases": [train()]}
        | {"callbacks": [aa.EarlyStopping()], "allow": (), "progress": "none", "strict": True}
        | {"names": None, "change": None},
    ),
    "Experiment.run": lambda: (one(experiment().run), {"given": train(), "resume": "never"}),
    "Experiment.save": lambda: (experiment().save, {"folder": saved_experiment()}),
    "Experiment.run_phase": lambda: (experiment().run_phase, {"phase": train(), "resume": "never"}),
    "FeatureSet": lambda: (aa.FeatureSet, {"label": "d", "table": data().to_arrow()}),
    "FeatureSet.add_split": lambda: (copied().add_split, {"name": "n", "rows": [0]}),
    "FeatureSet.add_splits": lambda: (copied().add_splits, {"rows": {"n": [0]}, "group_by": None}),
    "FeatureSet.array": lambda: (data().array, {"name": "x"}),
    "FeatureSet.cast": lambda: (data().cast, {"dtypes": {"x": "float64"}, "keep_splits": True}),
    "FeatureSet.column": lambda: (data().column, {"name": "x"}),
    "FeatureSet.filter": lambda: (data().filter, {"conditions": {"k": 1}, "name": "n"}),
    "FeatureSet.from_arrow": lambda: (aa.FeatureSet.from_arrow, {"label": "d", "table": TABLE, **KEYS, "pad": None}),
    "FeatureSet.from_dict": lambda: (aa.FeatureSet.from_dict, {"label": "d", "data": {"x": X, "y": X}, **KEYS}),
    "FeatureSet.from_pandas": lambda: (
        aa.FeatureSet.from_pandas,
        {"label": "d", "df": TABLE.to_pandas(), "features": "x", "target": "y", "tags": ()},
    ),
    "FeatureSet.from_parquet": lambda: (
        aa.FeatureSet.from_parquet,
        {"label": "d", "path": "d.parquet", **KEYS, "row_groups": None},
    ),
    "FeatureSet.is_ragged": lambda: (data().is_ragged, {"name": "x"}),
    "FeatureSet.ragged_column": lambda: (data().ragged_column, {"name": "x"}),
    "FeatureSet.reference": lambda: (data().reference, {**COLUMNS, "stream": None}),
    "FeatureSet.role": lambda: (data().role, {"name": "x"}),
    "FeatureSet.select": lambda: (data().select, COLUMNS),
    "FeatureSet.spec": lambda: (data().spec, {"name": "x"}),
    "FeatureSet.split": lambda: (data().split, {"name": "train"}),
    "FeatureSet.split_by_condition": lambda: (
        copied().split_by_condition,
        {"conditions": {"n": {"k": 1}}, "group_by": None},
    ),
    "FeatureSet.split_random": lambda: (copied().split_random, SPLIT),
    "FeatureSet.take": lambda: (data().take, {"positions": [0], "name": "n"}),
    "FeatureSet.with_tags": lambda: (data().with_tags, {"columns": {"w": [1.0] * len(data())}}),
    "FeatureSetView": lambda: (
        aa.FeatureSetView,
        {"feature_set": data(), "name": "n", "rows": [0], "columns": ["x"]},
    ),
    "FeatureSetView.array": lambda: (data()["train"].array, {"name": "x"}),
    "FeatureSetView.column": lambda: (data()["train"].column, {"name": "x"}),
    "FeatureSetView.difference": lambda: (data()["all"].difference, {"other": data()["val"]}),
    "FeatureSetView.filter": lambda: (data()["train"].filter, {"conditions": {"k": 1}, "name": "n"}),
    "FeatureSetView.is_ragged": lambda: (data()["train"].is_ragged, {"name": "x"}),
    "FeatureSetView.ragged_column": lambda: (data()["train"].ragged_column, {"name": "x"}),
    "FeatureSetView.intersection": lambda: (data()["all"].intersection, {"other": data()["val"]}),
    "FeatureSetView.role": lambda: (data()["train"].role, {"name": "x"}),
    "FeatureSetView.select": lambda: (data()["train"].select, COLUMNS),
    "FeatureSetView.spec": lambda: (data()["train"].spec, {"name": "x"}),
    "FeatureSetView.split_by_condition": lambda: (
        copied()["train"].split_by_condition,
        {"conditions": {"n": {"k": 1}}, "group_by": None},
    ),
    "FeatureSetView.split_random": lambda: (copied()["train"].split_random, SPLIT),
    "FeatureSetView.take": lambda: (data()["train"].take, {"positions": [0], "name": "n"}),
    "IterableSource": lambda: (
        aa.IterableSource,
        {"label": "s", "source": batches, **COLUMNS, "steps": 1, "read_ahead": 0, "pad": None},
    ),
    "IterableSource.batches": lambda: (lambda epoch: list(source().batches(epoch)), {"epoch": 0}),
    "IterableSource.reference": lambda: (source().reference, {**COLUMNS, "stream": "anchor"}),
    "IterableSource.spec": lambda: (source().spec, {"name": "x"}),
    "Loss": lambda: (aa.Loss, {"loss": "mse", "loss_kwargs": None}),
    "LossScale": lambda: (aa.LossScale, {"initial": 8.0, "growth": 2.0, "backoff": 0.5, "growth_interval": 10}),
    "LossScale.from_config": lambda: (aa.LossScale.from_config, {"config": aa.LossScale().get_config()}),
    "Loss.from_config": lambda: (aa.Loss.from_config, {"config": {"loss": "mse"}}),
    "MapSource": lambda: (aa.MapSource, {"label": "s", "dataset": Rowwise(), **COLUMNS, "workers": 0, **PADDED}),
    "MapSource.gather": lambda: (aa.MapSource("s", Rowwise(), features="x").gather, {"indices": [0]}),
    "Metric": lambda: (
        aa.Metric,
        {"measure": "mse", "on": "net", "targets": "targets", "label": "m", "from_logits": None}
        | {"ignore_index": None, "mask": None, "class_axis": -1},
    ),
    "Metric.from_config": lambda: (aa.Metric.from_config, {"config": {"measure": "mse"}}),
    "ModelGraph": lambda: (aa.ModelGraph, {"nodes": [node()], "optimizer": "adam", "label": "g", "seed": 0}),
    "ModelGraph.add_node": lambda: (graph().add_node, {"node": node("b", "net")}),
    "ModelGraph.build": lambda: (graph().build, {"force": False}),
    "ModelGraph.freeze": lambda: (one(graph().freeze), {"given": "net", "mode": "eval"}),
    "ModelGraph.from_config": lambda: (
        aa.ModelGraph.from_config,
        {"given": graph().get_config(), "feature_sets": [data()], "models": {}, "allow": ()},
    ),
    "FeatureSet.from_csv": lambda: (
        aa.FeatureSet.from_csv,
        {"label": "d", "path": csv(), "features": ["x"], "target": "y", "tags": (), "delimiter": ","},
    ),
    "FittedModel": lambda: (aa.FittedModel, {"experiment": experiment(), "loss": aa.Loss("mse"), "columns": None}),
    "FittedModel.evaluate": lambda: (fitted().evaluate, {"data": csv(), "metrics": ["mse"]}),
    "FittedModel.plot": lambda: (one(fitted().plot), {"given": "loss"}),
    "FittedModel.predict": lambda: (fitted().predict, {"data": csv(), "outputs": False}),
    "FittedModel.predict_proba": lambda: (classifier().predict_proba, {"data": csv()}),
    "FittedModel.score": lambda: (fitted().score, {"data": csv()}),
    "FittedModel.save": lambda: (fitted().save, {"folder": saved_fit()}),
    "fit": lambda: (
        aa.fit,
        {"model": aa.SequentialMLP(1), "data": csv(), "loss": "mse", "target": "y", "features": ["x"]}
        | {"validation": 0.5, "metrics": ["mse"], "epochs": 1, "batch_size": 2, "optimizer": "adam"}
        | {"early_stopping": 1, "scaler": None, "accelerator": "cpu", "seed": 0, "callbacks": (), "progress": "none"}
        | {"checkpoint": None, "resume": "never"},
    ),
    "prepare": lambda: (
        lambda objects, accelerator: aa.prepare(objects, accelerator=accelerator),
        {"objects": aa.SequentialMLP(1), "accelerator": "auto"},
    ),
    "load": lambda: (
        aa.load,
        {"folder": saved_fit(), "models": {}, "optimizer": "adam", "allow": (), "strict": True}
        | {"names": None, "change": None},
    ),
    "ModelGraph.load": lambda: (
        aa.ModelGraph.load,
        {"folder": saved(), "models": {}, "feature_sets": [data()], "optimizer": "adam", "allow": ()}
        | {"names": None, "change": None, "strict": True},
    ),
    "ModelGraph.run": lambda: (
        one(graph().run),
        {"given": train(), "callbacks": (), "progress": "none", "resume": "never"},
    ),
    "ModelGraph.load_weights": lambda: (
        graph().load_weights,
        {"path": weights(), "node": "net", "names": None, "change": None, "strict": True},
    ),
    "ModelGraph.save_weights": lambda: (graph().save_weights, {"path": weights(), "node": None}),
    "ModelGraph.save": lambda: (graph().save, {"folder": saved(), "extra": {}}),
    "ModelGraph.state": lambda: (graph().build().state, {"copy": True}),
    "ModelGraph.load_state": lambda: (
        graph().build().load_state,
        {"given": graph().build().state(), "names": None, "change": None, "strict": True},
    ),
    "ModelGraph.remove_node": lambda: (aa.ModelGraph([node(), node("b", "net")]).remove_node, {"label": "b"}),
    "ModelGraph.replace_node": lambda: (graph().replace_node, {"label": "net", "node": node()}),
    "ModelGraph.unfreeze": lambda: (one(graph().unfreeze), {"given": "net"}),
    "ModelNode": lambda: (
        built,
        {"label": "net", "model": aa.SequentialMLP(1), "upstream_ref": data().reference(), "accelerator": "cpu"}
        | {"optimizer": "adam", "framework": "numpy", "outputs": ["a"], "modes": "train", "batch_axis": 0}
        | {
            "precision": "float32",
            "remat": None,
            "sharding": None,
            "device_map": None,
            "max_memory": None,
            "offload": "no",
        },
    ),
    "ModelNode.reference": lambda: (node().reference, {"output": None}),
    "Optimizer": lambda: (
        aa.Optimizer,
        {"name": "adam", **OPTIMIZER, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0}
        | {"groups": {"*bias": {"weight_decay": 0.0}}},
    ),
    "Optimizer sgd": lambda: (aa.Optimizer, {"name": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.0}),
    "Optimizer.from_config": lambda: (aa.Optimizer.from_config, {"config": aa.Optimizer().get_config()}),
    "Pad": lambda: (aa.Pad, {"value": 0, "multiple_of": 1, "length": None, "mask": None}),
    "ParquetStream": lambda: (
        aa.ParquetStream,
        {"label": "s", "path": "d.parquet", **COLUMNS, "batch_size": 4, "buffer_size": 8},
    ),
    "ParquetStream.batches": lambda: (
        lambda epoch: list(aa.ParquetStream("s", "d.parquet", features="x", target="y").batches(epoch)),
        {"epoch": 0},
    ),
    "Plan.device": lambda: (history()[0].plan.device, {"node": "net"}),
    "Plan.from_json": lambda: (aa.Plan.from_json, {"text": history()[0].plan.to_json()}),
    "Plan.diff": lambda: (history()[0].plan.diff, {"other": history()[0].plan}),
    "Plan.from_dict": lambda: (aa.Plan.from_dict, {"given": history()[0].plan.to_dict()}),
    "Plan.explain": lambda: (history()[0].plan.explain, {"node": "net"}),
    "Reference": lambda: (aa.Reference, {"feature_set": data(), **COLUMNS, "stream": None}),
    "Reference.from_config": lambda: (
        aa.Reference.from_config,
        {"config": data().reference().get_config(), "feature_sets": {"data": data()}},
    ),
    "Schedule": lambda: (aa.Schedule, {"name": "cosine", "warmup": 1, "steps": 10, "final": 0.1}),
    "Schedule exponential": lambda: (aa.Schedule, {"name": "exponential", "rate": 0.9, "every": 10}),
    "Schedule.from_config": lambda: (aa.Schedule.from_config, {"config": {"name": "constant"}}),
    "SequentialCNN": lambda: (aa.SequentialCNN, {**MLP, "channels": (8,), "kernel_size": 3, "pool": 2}),
    "SequentialMLP": lambda: (aa.SequentialMLP, {**MLP, "n_layers": 1, "hidden_dim": 2}),
    "SimpleSampler": lambda: (
        aa.SimpleSampler,
        {"batch_size": 2, "shuffle": True, "drop_last": False, "seed": 0},
    ),
    "SimpleSampler.batches": lambda: (aa.SimpleSampler(2).batches, {"n": 3}),
    "SimpleSampler.epoch_orders": lambda: (aa.SimpleSampler(2).epoch_orders, {"rows": {"data": data()}}),
    "SimpleSampler.from_config": lambda: (aa.SimpleSampler.from_config, {"config": {"batch_size": 2}}),
    "SimpleSampler.order": lambda: (aa.SimpleSampler(2, shuffle=True).order, {"n": 3, "epoch": 0}),
    "SimpleSampler.shuffled": lambda: (
        aa.SimpleSampler(2, shuffle=True).shuffled,
        {"orders": aa.SimpleSampler(2).epoch_orders({"data": data()}), "epoch": 0},
    ),
    "SimpleSampler.steps": lambda: (aa.SimpleSampler(2).steps, {"n": 3}),
    "TabularMLP": lambda: (
        aa.TabularMLP,
        {"n_numbers": 2, "cardinalities": (3,), "n_outputs": 1, "hidden": (4,)}
        | {"dropout": 0.5, "category_dropout": 0.1, "dtype": "float32"},
    ),
    "TrainPhase": lambda: (
        planned(aa.TrainPhase),
        {"label": "t", "data": "train", "losses": [LOSS], "batch_size": 4, "schedule": None, "epochs": 1}
        | {
            "validation": "val",
            "validate_every": 1,
            "accumulate": 1,
            "microbatching": "exact",
            "on_nan": "warn",
            "step": None,
            "replicas": None,
            "per_replica": False,
            "deterministic": False,
            "loss_scale": None,
            "sharding": None,
            "sync_batchnorm": False,
            **PHASE,
            **MODES,
        },
    ),
    "TrainPhase.from_config": lambda: (aa.TrainPhase.from_config, {"config": train().get_config()}),
    "TrainPhase.from_split": lambda: (aa.TrainPhase.from_split, {"label": "t", "split": "val"}),
    "TrainResults.save": lambda: (history()[0].save, {"folder": saved_results(0)}),
    "TrainResults.curve": lambda: (history()[0].curve, {"name": "loss"}),
    "TrainResults.figure": lambda: (history()[0].figure, {"name": "loss"}),
    "TrainResults.losses": lambda: (history()[0].losses, {"label": "net"}),
    "TrainResults.plot": lambda: (one(history()[0].plot), {"given": "loss", "ax": None}),
    "best_device": lambda: (aa.best_device, {"i": 0, "framework": "numpy"}),
    "compare": lambda: (one(aa.compare), {"given": history()[0], "figures": "loss"}),
    "copy_weights": lambda: (
        aa.copy_weights,
        {"source": graph().build()["net"].model, "target": graph().build()["net"].model, "names": None},
    ),
    "device_of": lambda: (aa.device_of, {"obj": X}),
    "devices": lambda: (aa.devices, {"kind": "cpu", "framework": "numpy"}),
    "devices_or_cpu": lambda: (aa.devices_or_cpu, {"kind": "cpu"}),
    "move": lambda: (aa.move, {"obj": X, "where": "cpu", "framework": "numpy"}),
    "place": lambda: (aa.place, {"obj": aa.SequentialMLP(1), "where": "cpu"}),
    "scope": lambda: (aa.scope, {"where": "cpu", "framework": "numpy"}),
    "simulate": lambda: (simulated, {"count": 1, "capacity": 10**6, "float64": True}),
    "suggested_num_workers": lambda: (aa.suggested_num_workers, {"devices": 1, "cores": 2}),
    # public in modules below
    "Activation": lambda: (numpy_backend.Activation, {"name": "relu"}),
    "BatchNorm": lambda: (numpy_backend.BatchNorm, {"momentum": 0.1, "eps": 1e-5, "dtype": "float32"}),
    "Conv2d": lambda: (numpy_backend.Conv2d, {"channels": 2, "kernel_size": 3, "dtype": "float32"}),
    "Dense": lambda: (numpy_backend.Dense, {"features": 2, "bias": True, "dtype": "float32"}),
    "Dropout": lambda: (numpy_backend.Dropout, {"rate": 0.5}),
    "MaxPool2d": lambda: (numpy_backend.MaxPool2d, {"size": 2}),
    "Sequential": lambda: (one(numpy_backend.Sequential), {"given": numpy_backend.Dense(1)}),
    "sampler_from_config": lambda: (sampler_from_config, {"config": {"batch_size": 2}}),
}

CONTRACT = ("Backend", "Compute", "Exchange", "Memory", "MultiStepProgram", "Program", "Callback", "Progress")
"""Classes whose methods others write and core calls."""
RECORDS = ("AsyncCopy", "CompileEstimate", "Comparison", "EpochOrders", "EvalResults", "Event", "Plan")
"""What core or a plugin makes and a user reads."""
UNCHECKED = {
    *("FeatureSet.fit_transform", "FeatureSet.inverse", "FeatureSet.transform_like"),  # in anyaccel-sklearn
    *("ModelGraph.visualize", "Plan.to_html"),  # in anyaccel-devtools
    *(*CONTRACT, *RECORDS, "TrainResults", "BatchSource", "Sampler", "Source"),  # abstract, too
    *("Optimizer.rate", "Schedule.factor"),  # called in every step
    "Experiment.from_active_context",  # always an error
    "ModelGraph.exchange_model",  # called when models are placed
    # called when a graph is planned
    *("Accelerator.at", "Accelerator.on_one_device", "Accelerator.refused", "Accelerator.requested_devices"),
    "hookimpl",  # of pluggy
}
PROTOCOLS = {"mask", "read", "window", "apply", "build", "compute", "fit", "partial_fit", "restore", "read_settings"}
PROTOCOLS |= {
    "epoch_orders",
    "after_loading",
    "epoch_end",
    "step_end",
    "example",
    "mark_fitted",
    "phase_start",
    "before_placement",
    "phase_end",
    *("held_states", "hold_again", "load_random_states", "loop_extensions", "check_monitors"),
    *(
        "draw",
        "execute",
        "kept_nodes",
        "learners",
        "loop_extensions",
        "next_to_fit",
        "plan_notes",
        "results_of",
        "run_on",
        "run_once",
    ),
}
"""Methods of conditions, models, sources and phases that core calls with what it has checked."""


def done() -> aa.Experiment:
    finished = experiment()
    finished.history.extend(history())
    return finished


def public() -> Iterator[tuple[str, Any]]:
    """Every public callable that takes arguments: `NAME` or `NAME.METHOD`, and the function."""
    for name in aa.__all__:
        value = getattr(aa, name)
        if callable(value) and name not in UNCHECKED:
            yield name, value
        for member, function in inspect.getmembers_static(value) if inspect.isclass(value) else ():
            defined = next(base.__name__ for base in value.__mro__ if member in vars(base))
            plain = getattr(function, "__func__", function)
            abstract = getattr(plain, "__isabstractmethod__", False)
            if not (member.startswith("_") or abstract or defined in CONTRACT) and inspect.isfunction(plain):
                own = not isinstance(function, staticmethod)
                if member not in PROTOCOLS and len(inspect.signature(plain).parameters) > own:
                    yield f"{name}.{member}", plain


def guest(name: str) -> str:
    """The library that a call needs and core does not depend on; `""` if it needs none."""
    return "matplotlib" if name.endswith(".plot") else "pandas" if name.endswith("_pandas") else ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_an_error_with_a_hint_or_valid(name: str) -> None:
    if guest(name):
        pytest.importorskip(guest(name))
    wrong = wrongly_taken(name, CALLS[name])
    assert not wrong, "\n".join(wrong)


def test_every_public_callable_is_tried() -> None:
    """Once, also where several classes inherit it."""
    tried = {function for name, function in public() if name in CALLS}
    missing = [name for name, function in public() if name not in UNCHECKED and function not in tried]
    assert not missing


# -- configurations ----------------------------------------------------------------------------------------------------


def configured() -> dict[str, Any]:
    nodes = [
        aa.ModelNode(
            "a",
            aa.SequentialMLP(2),
            data().reference(stream="anchor"),
            "cpu",
            optimizer=aa.Optimizer("sgd", schedule=aa.Schedule("cosine", steps=5), clip_norm=1.0),
        ),
        aa.ModelNode("b", aa.SequentialMLP(2), "a", outputs=["o"]),
        aa.ConcatNode("c", ["a", "b.o"]),
    ]
    phases = [
        train(validation=aa.EvalPhase("v", data="val", metrics=["mse"])),
        aa.EvalPhase("v", data={"data": "val"}, sampler=aa.SimpleSampler(2), accelerator="cpu", final_device="cpu"),
    ]
    return aa.Experiment("e", aa.ModelGraph(nodes, "adam"), phases).get_config()


def test_a_wrong_value_in_a_configuration_is_an_error_with_a_hint_or_valid() -> None:
    wrong = wrongly_read(configured(), lambda config: aa.Experiment.from_config(config, feature_sets=[data()]))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (
            ("graph", "nodes", 0, "frozen"),
            "false",
            r"node 'a': frozen='false' is not True or False. Hint: write frozen=True",
        ),
        (("phases", 0, "strict"), "no", r"phase 't': strict='no' is not True or False. Hint: write strict=True"),
        (("phases", 1, "accelerator", "pin_memory"), 1, r"pin_memory must be True or False, got 1\."),
        (("phases", 0, "sampler", "shuffle"), "false", r"shuffle='false' is not True or False"),
        (("graph", "nodes", 0, "optimizer", "nesterov"), "no", r"nesterov='no' is not True or False"),
    ],
)
def test_text_is_no_flag_of_a_configuration(at: tuple[Any, ...], value: Any, message: str) -> None:
    with pytest.raises(AnyaccelError, match=message):
        aa.Experiment.from_config(replaced(configured(), at, value), feature_sets=[data()])
