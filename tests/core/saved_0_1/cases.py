"""What is written and read, by name, with the built-in backend: see `write.py`. Old and new versions both run this."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

import anyaccel as aa
from anyaccel.numpy_backend import Activation, BatchNorm, Dense, Dropout, Sequential
from anyaccel.phases import Phase
from anyaccel.precision import LossScale

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(24, 3)).astype("float32")
KINDS = np.array(["ant", "bee", "cat"])[np.arange(24) % 3]


def data() -> aa.FeatureSet:
    columns = {"x": X, "z": X[:, :2] * 2, "y": X[:, :1] - X[:, 1:2], "kind": np.arange(24) % 3, "row": np.arange(24)}
    table = aa.FeatureSet.from_dict("data", columns, ["x", "z"], ["y", "kind"], ["row"])
    table.split_random({"train": 0.75, "val": 0.25}, seed=0)
    return table


def plain(array: Any) -> list[Any]:
    """An array as a flat list."""
    values: list[Any] = np.asarray(array).reshape(-1).tolist()
    return values


def state_of(graph: aa.ModelGraph) -> dict[str, Any]:
    return {f"state of {name}": plain(array) for name, array in graph.state().items()}


def outputs_of(graph: aa.ModelGraph, **given: Any) -> dict[str, Any]:
    """Predictions of every output node."""
    results = aa.Experiment("p", graph, progress="none").run_phase(aa.EvalPhase("p", data="all", **given))
    return {f"outputs of {name}": plain(array) for name, array in results.predictions.items()}


def network(**settings: Any) -> aa.ModelGraph:
    """Two branches, one of them frozen, and a head over both."""
    rows = data()
    left = Sequential(Dense(3), BatchNorm(), Activation("relu"), Dropout(0.2))
    frozen = aa.ModelNode("frozen", aa.SequentialMLP((2,), n_layers=1, hidden_dim=2), rows.reference(["z"], []))
    frozen.frozen = True
    nodes = [
        aa.ModelNode("left", left, rows.reference(["x"], [])),
        frozen,
        aa.ConcatNode("both", ["left", "frozen"]),
        aa.ModelNode("head", aa.SequentialMLP((1,), n_layers=1, dtype="float32"), "both"),
    ]
    schedule = aa.Schedule("cosine", steps=20, final=0.1, warmup=3)
    optimizer = aa.Optimizer("adamw", lr=0.05, clip_norm=1.0, schedule=schedule, weight_decay=0.01)
    return aa.ModelGraph(nodes, settings.pop("optimizer", optimizer), label="network", seed=4)


MSE = aa.AppliedLoss("mse", on="head", inputs=["outputs", "data.y"], label="fit")


def training(**settings: Any) -> aa.TrainPhase:
    given = {"data": "train", "losses": [MSE], "sampler": aa.SimpleSampler(4, shuffle=True, seed=2), "epochs": 3}
    return aa.TrainPhase("train", **{**given, **settings})


# -- graphs ------------------------------------------------------------------------------------------------------------


def write_graph(folder: Path) -> dict[str, Any]:
    graph = network()
    aa.Experiment("e", graph, progress="none").run_phase(training())
    graph.save(folder / "graph")
    return state_of(graph)


def models() -> dict[str, Any]:
    """The models that have no registered name."""
    return {"left": Sequential(Dense(3), BatchNorm(), Activation("relu"), Dropout(0.2))}


def read_graph(folder: Path) -> dict[str, Any]:
    graph = aa.ModelGraph.load(folder / "graph", models=models(), feature_sets=[data()])
    values = {**state_of(graph), **outputs_of(graph), "frozen": graph["frozen"].frozen}
    results = aa.Experiment("e", graph, progress="none").run_phase(training(epochs=1))
    return {**values, "losses of one more epoch": plain(results.loss)}  # so the optimizer's state has been taken


def write_weights(folder: Path) -> None:
    graph = network()
    aa.Experiment("e", graph, progress="none").run_phase(training())
    graph.save_weights(folder / "all.safetensors")
    graph.save_weights(folder / "head.safetensors", "head")


def read_weights(folder: Path) -> dict[str, Any]:
    graph, head = network(), network()
    graph.load_weights(folder / "all.safetensors")
    head.load_weights(folder / "head.safetensors", "head")
    return {
        **outputs_of(graph),
        **{f"head: {name}": value for name, value in state_of(head).items() if "/head" in name},
    }


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"nesterov": True},
    "adam": {},
    "adamw": {"groups": {"*bias": {"weight_decay": 0.0, "lr": 0.01}}},
}


def write_optimizers(folder: Path) -> None:
    for name, settings in OPTIMIZERS.items():
        optimizer = aa.Optimizer(name, lr=0.01, **settings)
        rows = data()
        node = aa.ModelNode("head", aa.SequentialMLP((1,), n_layers=1, hidden_dim=2), rows.reference(["x"], ["y"]))
        graph = aa.ModelGraph([node], optimizer, seed=1)
        aa.Experiment("e", graph, progress="none").run_phase(training(epochs=1, losses=[aa.AppliedLoss("mse")]))
        graph.save(folder / name)


def read_optimizers(folder: Path) -> dict[str, Any]:
    values = {}
    for saved in sorted(path for path in folder.iterdir() if path.is_dir()):
        graph = aa.ModelGraph.load(saved, feature_sets=[data()])
        values[f"{saved.name}: arrays"] = sorted(graph.state())
        results = graph.run(training(epochs=1, losses=[aa.AppliedLoss("mse")]), progress="none")
        values[f"{saved.name}: losses of one more epoch"] = plain(results.loss)
    return values


# -- experiments and results -------------------------------------------------------------------------------------------


class Means:
    """An estimator in the style of scikit-learn."""

    def __init__(self, shrink: float = 1.0) -> None:
        self.shrink = shrink

    def fit(self, features: Any, targets: Any) -> None:
        self.mean_ = self.shrink * np.asarray(targets, dtype="float64").mean(axis=0)

    def predict(self, features: Any) -> Any:
        return np.zeros(len(features)) + self.mean_ + features[:, 0]


def mixed_network() -> aa.ModelGraph:
    rows = data()
    nodes = [
        aa.ModelNode("means", Means(0.5), rows.reference(["x"], ["y"])),
        aa.ModelNode("classes", aa.SequentialMLP((3,), n_layers=1, hidden_dim=2), rows.reference(["x"], ["kind"])),
    ]
    return aa.ModelGraph(nodes, "adam", label="mixed", seed=2)


def phases() -> list[Any]:
    losses = [aa.AppliedLoss("cross_entropy", on="classes", label="ce")]
    val = aa.EvalPhase("val", data="val", losses=losses, metrics=[aa.Metric("accuracy", on="classes")])
    stopping = aa.EarlyStopping("val_loss", patience=4, restore_best=True)
    return [
        aa.FitPhase("fit", data="train", nodes=["means"]),
        aa.TrainPhase(
            "train", data="train", losses=losses, batch_size=6, epochs=2, validation=val, callbacks=[stopping]
        ),
        aa.EvalPhase("test", data="val", losses=losses, metrics=[aa.Metric("f1_macro", on="classes")]),
    ]


def told(results: Any) -> dict[str, Any]:
    """What results show, as plain values."""
    values: dict[str, Any] = {"label": results.label, "kind": type(results).__name__, "number": results.number}
    values["n_events"] = len(results.events) > 0
    values["error"] = None if results.error is None else str(results.error)
    if results.plan is not None:
        values["devices"] = [f"{each.node} {each.device} {each.framework}" for each in results.plan.assignments]
    if isinstance(results, aa.TrainResults):
        values |= {"losses": plain(results.loss), "stop": results.stop_reason}
        values |= {name: plain(results.figure(name)) for name in results.figures}
    if isinstance(results, aa.EvalResults):
        values |= {f"outputs of {name}": plain(array) for name, array in results.predictions.items()}
        values |= {name: float(value) for name, value in results.metrics.items()}
        values["table"] = results.to_arrow().column_names
    if type(results).__name__ == "FitResults":
        values["fitted"] = sorted(results.nodes)
    return values


def write_experiment(folder: Path) -> None:
    experiment = aa.Experiment("mine", mixed_network(), phases(), callbacks=[aa.EarlyStopping()], progress="none")
    for phase in experiment.phases:
        experiment.run_phase(phase)
    experiment.save(folder / "experiment")
    for i, results in enumerate(experiment.history):
        results.save(folder / f"results-{i}")


def read_experiment(folder: Path) -> dict[str, Any]:
    given: dict[str, Any] = {"feature_sets": [data()], "allow": [Means], "models": {"means": Means(0.5)}}
    experiment = aa.Experiment.load(folder / "experiment", progress="none", **given)
    values: dict[str, Any] = {"phases": [phase.label for phase in experiment.phases]}
    for i, results in enumerate(experiment.history):
        alone = type(results).load(folder / f"results-{i}")
        values |= {f"{i}: {name}": value for name, value in told(results).items()}
        values |= {f"{i} alone: {name}": value for name, value in told(alone).items()}
    values["runs compared"] = len(aa.compare(experiment.history[1:]).rows)
    return {**values, "losses of one more run": plain(experiment.run_phase(experiment.phases[1]).loss)}


def errors() -> list[Exception]:
    out_of_memory = aa.errors.OutOfMemoryError("it is full", available="64 MB", hint="take less")
    out_of_memory.add_note("while it was tried")
    return [out_of_memory, ValueError("a value", 3), aa.errors.DataError("no rows"), KeyboardInterrupt()]  # type: ignore[list-item]


def write_failed(folder: Path) -> None:
    for i, error in enumerate(errors()):
        aa.TrainResults(label="t", epochs=(), error=error).save(folder / str(i))


def read_failed(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for i in range(len(errors())):
        error: Any = aa.TrainResults.load(folder / str(i)).error
        values[str(i)] = [type(error).__name__, str(error), *getattr(error, "__notes__", [])]
    return values


# -- fit ---------------------------------------------------------------------------------------------------------------

TABLE = {"a": X[:, 0].tolist(), "b": X[:, 1].tolist(), "c": X[:, 2].tolist()}


def write_fit(folder: Path) -> None:
    for name in ("standard", "minmax", "robust"):
        given: dict[str, Any] = {"epochs": 3, "batch_size": 8, "scaler": name, "seed": 0, "progress": "none"}
        table = {**TABLE, "y": (5 * X[:, 0] + 100).tolist()}
        model = aa.SequentialMLP(n_layers=1, hidden_dim=2)
        aa.fit(model, table, target="y", loss="mse", **given).save(folder / f"values-{name}")
        table = {**TABLE, "kind": KINDS.tolist()}
        model = aa.SequentialMLP((3,), n_layers=1, hidden_dim=2)
        if name == "standard":
            aa.fit(model, table, target="kind", loss="cross_entropy", **given).save(folder / f"classes-{name}")
    table = {**TABLE, "sure": (X[:, 0] > 0).tolist()}
    model = aa.SequentialMLP(n_layers=1, hidden_dim=2)
    aa.fit(model, table, target="sure", loss="binary_cross_entropy", epochs=3, progress="none").save(folder / "binary")


def read_fit(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for saved in sorted(path for path in folder.iterdir() if path.is_dir()):
        model = aa.load(saved)
        values[f"{saved.name}: predictions"] = plain(model.predict(TABLE))
        values[f"{saved.name}: outputs"] = plain(model.predict(TABLE, outputs=True))
        values[f"{saved.name}: losses"] = plain(model.results.loss)
    return values


# -- checkpoints -------------------------------------------------------------------------------------------------------


class BreakOff(aa.Callback):
    """Ctrl-C after so many steps; 0 for never."""

    def __init__(self, at: int) -> None:
        self.left = at

    def step_end(self, run: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


class LastScale(aa.Callback):
    """Keeps the loss scale after the last epoch."""

    value = 0.0

    def epoch_end(self, run: Any) -> None:
        if run.loss_scale is not None:
            self.value = float(run.loss_scale.scale)


class Steps(aa.Callback):
    """Keeps how many steps it has seen, and an array."""

    def __init__(self) -> None:
        self.seen = 0

    def step_end(self, run: Any) -> None:
        self.seen += 1

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "squares": np.arange(self.seen) ** 2}

    def load_state_dict(self, state: Any) -> None:
        assert len(state["squares"]) == state["seen"]
        self.seen = int(state["seen"])


def batches() -> Iterator[tuple[Any, Any]]:
    for at in range(0, 24, 4):
        yield X[at : at + 4], X[at : at + 4, :1]


class Rows:
    """A dataset read by numbers."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> Any:
        return {"x": X[i], "y": X[i, :1]}


def one_node(rows: Any, optimizer: Any = "adam", **node: Any) -> aa.ModelGraph:
    model = aa.SequentialMLP((1,), n_layers=1, hidden_dim=2, dropout=0.2)
    return aa.ModelGraph([aa.ModelNode("head", model, rows.reference(["x"], ["y"]), **node)], optimizer, seed=3)


class ReduceLROnPlateau(aa.ReduceLROnPlateau):
    """One that changes no rate, which 0.1 accepted as a callback; only an override may still be one."""

    def epoch_end(self, run: Any) -> None:
        super().epoch_end(run)


def run_whole(folder: Path | None, at: int) -> Any:
    """Several nodes, one frozen, callbacks of every kind with a state, validation, a schedule."""
    callbacks = [
        Steps(),
        BreakOff(at),
        aa.EarlyStopping("val_loss", patience=9, mode="max", restore_best=True),  # the first epoch, in the checkpoint
        ReduceLROnPlateau("val_loss", patience=0, factor=0.5, mode="max"),
    ]
    val = aa.EvalPhase("val", data="val", losses=[MSE])
    given: dict[str, Any] = {"validation": val, "callbacks": callbacks, "checkpoint": checkpoint(folder)}
    return run(network(), training(**given), folder)


def run_averaged(folder: Path | None, at: int) -> Any:
    callbacks = [BreakOff(at), aa.WeightAveraging(0.9)]
    graph = one_node(data(), aa.Optimizer("momentum", lr=0.1, clip_value=0.5, schedule=aa.Schedule("linear", steps=15)))
    losses = [aa.AppliedLoss("mse")]
    return run(graph, training(losses=losses, callbacks=callbacks, checkpoint=checkpoint(folder), accumulate=2), folder)


def run_scaled(folder: Path | None, at: int) -> Any:
    """Half precision with a loss scale that grows."""
    given: dict[str, Any] = {"precision": "fp16-mixed", "loss_scale": LossScale(256.0, growth_interval=3)}
    losses = [aa.AppliedLoss("mse")]
    return run(
        one_node(data()),
        training(losses=losses, callbacks=[BreakOff(at), LastScale()], checkpoint=checkpoint(folder), **given),
        folder,
    )


def run_pairs(folder: Path | None, at: int) -> Any:
    """Rows drawn in pairs, with a loss of two streams' outputs."""
    rows = data()
    sampler = aa.PairSampler(4, match=[aa.Same("kind")], unlike=[aa.Different("kind")], shuffle=True, seed=6)
    pair = aa.AppliedLoss("mse", on="head", inputs=["outputs", "data.y"], label="pair")
    losses, callbacks = [pair], [BreakOff(at)]
    given: dict[str, Any] = {"losses": losses, "callbacks": callbacks, "checkpoint": checkpoint(folder)}
    return run(one_node(rows), training(sampler=sampler, **given), folder)


def run_source(folder: Path | None, at: int) -> Any:
    source = aa.IterableSource("data", lambda: batches(), features="x", target="y")
    return of_source(source, folder, at)


def run_map(folder: Path | None, at: int) -> Any:
    source = aa.MapSource("data", Rows(), features="x", target="y")
    return of_source(source, folder, at, sampler=aa.SimpleSampler(4, shuffle=True, seed=5))


def run_parquet(folder: Path | None, at: int) -> Any:
    """Rows of a file, shuffled in a buffer."""
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary, "rows.parquet")
        columns = {"a": X[:, 0], "b": X[:, 1], "y": X[:, 0] - X[:, 1]}
        parquet.write_table(pyarrow.table(columns), file, row_group_size=6)
        sampler = aa.SimpleSampler(4, shuffle=True, seed=5)
        given: dict[str, Any] = {"sampler": sampler, "buffer_size": 10}
        source = aa.ParquetStream("data", file, features=["a", "b"], target="y", **given)
        model = aa.SequentialMLP((1,), n_layers=1, hidden_dim=2, dropout=0.2)
        graph = aa.ModelGraph([aa.ModelNode("head", model, source.reference(["a", "b"], ["y"]))], "adam", seed=3)
        loss = aa.AppliedLoss("mse", on="head")
        given = {"losses": [loss], "callbacks": [BreakOff(at)], "checkpoint": checkpoint(folder)}
        return run(graph, aa.TrainPhase("train", data=source, epochs=3, **given), folder)


def run_triplets(folder: Path | None, at: int) -> Any:
    """One model over three rows at a time, with a loss over its outputs."""
    rows = data()
    sampler = aa.TripletSampler(4, aa.Same("kind"), aa.Different("kind"), shuffle=True, seed=6)
    names = ("anchor", "positive", "negative")
    nodes = [
        aa.ModelNode(name, aa.SequentialMLP((1,), n_layers=1, hidden_dim=2), rows.reference(["x"], ["y"], stream=name))
        for name in names
    ]
    graph = aa.ModelGraph(nodes, aa.Optimizer("adam", lr=0.01), seed=3)
    losses = [aa.AppliedLoss("mse", on=name, label=name, weight=0.5) for name in names]
    given: dict[str, Any] = {"losses": losses, "callbacks": [BreakOff(at)], "checkpoint": checkpoint(folder)}
    return run(graph, training(sampler=sampler, **given), folder)


def of_source(source: Any, folder: Path | None, at: int, **given: Any) -> Any:
    given = {"losses": [aa.AppliedLoss("mse")], "callbacks": [BreakOff(at)], "checkpoint": checkpoint(folder), **given}
    return run(one_node(source), aa.TrainPhase("train", data=source, epochs=3, **given), folder)


def run_estimator(folder: Path | None, at: int) -> Any:
    """A fitted estimator before a node that is trained."""
    rows = data()
    nodes = [
        aa.ModelNode("means", Means(), rows.reference(["x"], ["y"])),
        aa.ModelNode("head", aa.SequentialMLP((1,), n_layers=1, hidden_dim=2), rows.reference(["x"], ["y"])),
    ]
    graph = aa.ModelGraph(nodes, "adam", seed=3)
    graph.run(aa.FitPhase("fit", data="train", nodes=["means"]), progress="none")
    loss = aa.AppliedLoss("mse", on="head")
    return run(graph, training(losses=[loss], callbacks=[BreakOff(at)], checkpoint=checkpoint(folder)), folder)


def checkpoint(folder: Path | None) -> aa.Checkpoint | None:
    return None if folder is None else aa.Checkpoint(folder, every="epoch", keep=1)


def run(graph: aa.ModelGraph, phase: Any, folder: Path | None) -> Any:
    """Losses and the last state as plain values; None for a run that was broken off."""
    experiment = aa.Experiment("e", graph, progress="none")
    try:
        results = experiment.run_phase(phase, resume="never" if folder is None else "auto")
    except KeyboardInterrupt:
        return None
    values = {"losses": plain(results.loss), **state_of(graph)}
    if phase.validation is not None:
        values["val_loss"] = plain(results.figure("val_loss"))
    steps = [callback.seen for callback in phase.callbacks if isinstance(callback, Steps)]
    scales = [callback.value for callback in phase.callbacks if isinstance(callback, LastScale)]
    return {**values, "steps seen": steps, "loss scale": scales}


RUNS = {
    "nodes": run_whole,
    "averaged": run_averaged,
    "scaled": run_scaled,
    "pairs": run_pairs,
    "source": run_source,
    "map": run_map,
    "estimator": run_estimator,
    "parquet": run_parquet,
    "triplets": run_triplets,
}


def write_checkpoint(name: str) -> Any:
    def write(folder: Path) -> dict[str, Any]:
        whole: dict[str, Any] = RUNS[name](None, 0)
        assert RUNS[name](folder / "run", 5 if name in ("averaged",) else 7) is None
        return whole

    return write


def read_checkpoint(name: str) -> Any:
    def read(folder: Path) -> dict[str, Any]:
        values: dict[str, Any] = RUNS[name](folder / "run", 0)
        return values

    return read


def write_epoch_end(folder: Path) -> None:
    """Two epochs of three are done, the best one is kept, too."""
    graph = network()
    saved = aa.Checkpoint(folder / "run", keep=1, keep_best="val_loss")
    phase = training(epochs=2, validation=aa.EvalPhase("val", data="val", losses=[MSE]), checkpoint=saved)
    run(graph, phase, folder)


def read_epoch_end(folder: Path) -> dict[str, Any]:
    """The last epoch is trained; each folder is a graph, too."""
    values: dict[str, Any] = {"folders": sorted(path.name for path in (folder / "run").iterdir() if path.is_dir())}
    for name in values["folders"]:
        graph = aa.ModelGraph.load(folder / "run" / name, models=models(), feature_sets=[data()])
        values |= {f"{name}: {key}": value for key, value in outputs_of(graph).items()}
    saved = aa.Checkpoint(folder / "run", keep=1, keep_best="val_loss")
    phase = training(epochs=3, validation=aa.EvalPhase("val", data="val", losses=[MSE]), checkpoint=saved)
    return {**values, **run(network(), phase, folder)}


# -- plans, configurations --------------------------------------------------------------------------------


def write_plans(folder: Path) -> None:
    experiment = aa.Experiment("e", network(), progress="none")
    (folder / "plan.json").write_text(experiment.plan(training()).to_json())
    (folder / "machine.json").write_text(experiment.plan(training(precision="bf16-mixed"), "2x T4").to_json())


def read_plans(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in ("plan", "machine"):
        plan = aa.Plan.from_json((folder / f"{name}.json").read_text())
        values[f"{name}: text"] = str(plan).splitlines()
        values[f"{name}: differs from itself"] = bool(plan.diff(aa.Plan.from_json(plan.to_json())))
    return values


def configured() -> dict[str, Any]:
    """Everything with a configuration, in many settings."""
    rows = data()
    val = aa.EvalPhase("val", data="val", losses=[MSE], metrics=["mse", aa.Metric("r2", on="head", targets="data.y")])
    every: dict[str, Any] = {
        "accelerator": aa.Accelerator("cpu"),
        "accelerator gpu": aa.Accelerator("gpu:1", pin_memory=True),
        "reference": rows.reference(["x"], ["y"], ["row"]),
        "stream": rows.reference(["x"], ["y"], stream="second"),
        "sampler": aa.SimpleSampler(8, shuffle=True, drop_last=True, seed=3),
        "loss scale": LossScale(1024.0, growth=4.0, backoff=0.25, growth_interval=10),
        "mlp": aa.SequentialMLP((2,), n_layers=3, hidden_dim=7, activation="tanh", dropout=0.1, dtype="float64"),
        "cnn": aa.SequentialCNN((4,), channels=[2, 3], kernel_size=3, pool=2, activation="relu"),
        "applied loss": aa.AppliedLoss("mae", on="head", inputs=["outputs", "data.y"], weight=0.5, label="h"),
        "phase train": training(
            validation=val,
            epochs=7,
            validate_every=2,
            accumulate=2,
            on_nan="stop",
            loss_scale=LossScale(8.0),
            precision="fp16-mixed",
            checkpoint=aa.Checkpoint(
                "runs/a", every="10min", keep=2, keep_best="val_loss", on_failure="stop", wait=True
            ),
            accelerator="cpu",
            strict=True,
            final_device="cpu",
            compile="off",
            residency="streamed",
        ),
        "phase eval": aa.EvalPhase("e", data="val", losses=[MSE], metrics=["mae"], outputs=["head"], batch_size=5),
        "graph": network(),
        "experiment": aa.Experiment("mine", network(), [training(validation=val)], progress="none"),
        "early stopping": aa.EarlyStopping("val_acc", patience=2, min_delta=0.1, mode="max", restore_best=True),
        "settings": aa.FrameworkSettings({"torch.backends.cudnn.benchmark": True}),
        "checkpoint": aa.Checkpoint("runs/b", every=500, keep_best="val_acc"),
    }
    if find_spec("anyaccel_devtools") is not None:
        every["profile"] = aa.Profile(steps=(2, 4), folder="traces")
    if find_spec("anyaccel_sklearn") is not None:
        near = aa.PairSampler(4, match=[aa.Within("x", 0.5)], unlike=[aa.Beyond("x", 2.0)], seed=1)
        triplets = aa.TripletSampler(4, positive=[aa.Same("kind")], negative=[aa.Different("kind")], seed=1)
        every |= {"pairs": near, "triplets": triplets, "phase pairs": training(sampler=near)}
        every["phase fit"] = aa.FitPhase("f", data="train", nodes=["means"], batch_size=9)
    every |= {f"optimizer {name}": aa.Optimizer(name, lr=0.1, clip_norm=2.0) for name in OPTIMIZERS}
    every["optimizer groups"] = aa.Optimizer("adamw", groups={"*bias": {"weight_decay": 0.0}}, schedule="constant")
    every |= {f"loss {name}": aa.Loss(name) for name in ("mse", "mae", "cross_entropy", "binary_cross_entropy")}
    every["loss classes"] = aa.Loss("cross_entropy", ignore_index=-1, class_weights=[1.0, 2.0], label_smoothing=0.1)
    schedules: dict[str, dict[str, Any]] = {
        "constant": {},
        "linear": {"steps": 9},
        "cosine": {"steps": 9, "final": 0.1},
        "exponential": {"rate": 0.9},
        "step": {"every": 3, "rate": 0.5},
    }
    every |= {f"schedule {name}": aa.Schedule(name, warmup=2, **given) for name, given in schedules.items()}
    from anyaccel import metrics

    names = metrics.metric_names() if hasattr(metrics, "metric_names") else metrics.METRICS  # of 0.1
    every |= {f"metric {name}": aa.Metric(name, on="head", targets="data.y", label="m") for name in names}
    return every


CONSTRUCTED = {"mlp", "cnn", "early stopping", "profile", "settings", "checkpoint"}
"""Whose configuration is what the class is called with."""


def write_configs(folder: Path) -> None:
    configs = {name: value.get_config() for name, value in configured().items()}
    (folder / "configs.json").write_text(json.dumps(configs, indent=1) + "\n")


def read_again(name: str, value: Any, config: Any) -> Any:
    """What is made of a configuration."""
    if name in CONSTRUCTED:
        return type(value)(**config)
    if name.startswith("phase"):
        return Phase.from_config(config)
    if name in ("graph", "experiment"):
        return type(value).from_config(config, feature_sets=[data()], models=models())
    if name in ("reference", "stream"):
        return type(value).from_config(config, {"data": data()})
    if name == "applied loss":
        return config
    return type(value).from_config(config)


def read_configs(folder: Path) -> dict[str, Any]:
    """Each is made of its configuration, and has that configuration: keys that came later are left out."""
    configs = json.loads((folder / "configs.json").read_text())
    every = configured()
    values = {}
    for name, config in configs.items():
        if name not in every:  # of another distribution; the test compares the names
            continue
        made = read_again(name, every[name], config)
        again = json.loads(json.dumps(config if made is config else made.get_config()))
        now = renamed(config)
        assert left_out(again, now) == now, name
        values[name] = "is the same"
    return values


def renamed(config: Any) -> Any:
    """A configuration of 0.1 with the keys that its settings have now."""
    if isinstance(config, dict):
        return {{"n_epochs": "epochs"}.get(name, name): renamed(value) for name, value in config.items()}
    return [renamed(value) for value in config] if isinstance(config, list) else config


def left_out(config: Any, old: Any) -> Any:
    """A configuration without the keys that the old one has not."""
    if isinstance(config, dict) and isinstance(old, dict):
        return {name: left_out(value, old[name]) for name, value in config.items() if name in old}
    if isinstance(config, list) and isinstance(old, list) and len(config) == len(old):
        return [left_out(value, before) for value, before in zip(config, old, strict=True)]
    return config


CASES: dict[str, tuple[Any, Any]] = {
    "graph": (write_graph, read_graph),
    "weights": (write_weights, read_weights),
    "optimizers": (write_optimizers, read_optimizers),
    "experiment": (write_experiment, read_experiment),
    "failed": (write_failed, read_failed),
    "fit": (write_fit, read_fit),
    "epoch_end": (write_epoch_end, read_epoch_end),
    "plans": (write_plans, read_plans),
    "configs": (write_configs, read_configs),
    **{f"run_{name}": (write_checkpoint(name), read_checkpoint(name)) for name in RUNS},
}
OF_SKLEARN = {"experiment", "fit", "run_estimator", "run_pairs", "run_triplets"}
"""What anyaccel-sklearn reads, whose tests run it, too."""
CONFIGS_OF_SKLEARN = {"pairs", "phase fit", "phase pairs", "triplets"}
"""Of `configs`, those that it reads, besides metrics."""
