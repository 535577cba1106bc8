"""What is written and read, by name, with each framework: see `tests/core/saved_0_1/write.py`, which runs this, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import anyaccel as aa

X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
KINDS = np.array(["ant", "bee", "cat"])[np.arange(24) % 3]
TABLE = {"a": X[:, 0].tolist(), "b": X[:, 1].tolist(), "c": X[:, 2].tolist()}


# -- models ------------------------------------------------------------------------------------------------------------


def torch_model(width: int = 1) -> Any:
    import torch

    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.2), nn.Linear(4, width))


def nnx_model(width: int = 1) -> Any:
    from flax import nnx

    rngs = nnx.Rngs(0)
    first, norm, last = nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs), nnx.Linear(4, width, rngs=rngs)
    return nnx.Sequential(first, norm, nnx.relu, nnx.Dropout(0.2, rngs=rngs), last)


def linen_model(width: int = 1) -> Any:
    from flax import linen

    import anyaccel_jax

    return anyaccel_jax.Linen(linen.Sequential([linen.Dense(4), linen.relu, linen.Dense(width)]))


def equinox_model(width: int = 1) -> Any:
    import equinox
    import jax

    import anyaccel_jax

    return anyaccel_jax.Equinox(equinox.nn.MLP(3, width, 4, 1, key=jax.random.key(0)))


def keras_model(width: int = 1) -> Any:
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    hidden = [layers.Dense(4), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.2)]
    return keras.Sequential([layers.Input((3,)), *hidden, layers.Dense(width)])


def builtin(framework: str) -> Callable[..., Any]:
    def make(width: int = 1) -> Any:
        from anyaccel.registry import registry

        mlp: Any = registry().computing(framework).models()["SequentialMLP"]
        return mlp((width,), n_layers=1, hidden_dim=4, dropout=0.2)

    return make


MODELS: dict[str, Callable[..., Any]] = {
    "torch": torch_model,
    "torch_builtin": builtin("torch"),
    "jax_nnx": nnx_model,
    "jax_linen": linen_model,
    "jax_equinox": equinox_model,
    "jax_builtin": builtin("jax"),
    "tensorflow_keras": keras_model,
    "tensorflow_builtin": builtin("tensorflow"),
}
"""By the name of the framework and a word."""


# -- optimizers of frameworks ------------------------------------------------------------------------------------------


def optax_chain() -> Any:
    import optax

    rate = optax.exponential_decay(0.05, 2, 0.9)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, weight_decay=0.01))


def optax_lion() -> Any:
    import optax

    return optax.lion(0.01)


def optax_masked() -> Any:
    """Momentum for matrices alone."""
    import jax
    import optax

    matrices = lambda tree: jax.tree.map(lambda leaf: leaf.ndim > 1, tree)  # noqa: E731
    return optax.chain(optax.masked(optax.trace(0.9), matrices), optax.sgd(0.05))


def optax_multisteps() -> Any:
    import optax

    return optax.MultiSteps(optax.adam(0.05), every_k_schedule=2)


def torch_rmsprop() -> Any:
    import torch

    return aa.Optimizer(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True)


def torch_scheduled() -> Any:
    import torch

    import anyaccel_torch

    schedule = anyaccel_torch.TorchSchedule(lambda it: torch.optim.lr_scheduler.StepLR(it, 2, 0.5))
    return aa.Optimizer(torch.optim.Adam, lr=0.05, schedule=schedule)


def keras_own(name: str, **settings: Any) -> Callable[[], Any]:
    def make() -> Any:
        import keras

        return aa.Optimizer(getattr(keras.optimizers, name), **settings)

    return make


OWN: dict[str, Callable[[], Any]] = {
    **{f"jax_{model}_chain": optax_chain for model in ("nnx", "linen", "equinox", "builtin")},
    **{f"jax_{model}_masked": optax_masked for model in ("nnx", "linen", "equinox")},
    "jax_linen_lion": optax_lion,
    "jax_nnx_multisteps": optax_multisteps,
    "torch_rmsprop": torch_rmsprop,
    "torch_scheduled": torch_scheduled,
    "tensorflow_keras_nadam": keras_own("Nadam", lr=0.01),
    "tensorflow_keras_adamw": keras_own("AdamW", lr=0.01, clip_norm=1.0),
}
"""By the name of a model and a word."""


def adamw() -> aa.Optimizer:
    schedule = aa.Schedule("cosine", steps=20, final=0.1, warmup=3)
    return aa.Optimizer("adamw", lr=0.05, clip_norm=1.0, schedule=schedule, groups={"*bias": {"weight_decay": 0.0}})


# -- runs --------------------------------------------------------------------------------------------------------------


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


def plain(array: Any) -> list[Any]:
    """An array as a flat list."""
    values: list[Any] = np.asarray(array).reshape(-1).tolist()
    return values


def rows() -> aa.FeatureSet:
    table = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1] - X[:, 1:2]}, ["x"], ["y"])
    table.split_random({"train": 0.75, "val": 0.25}, seed=0)
    return table


def graph_of(model: Any, optimizer: Any) -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", model, rows().reference())], optimizer, seed=3)


def training(**settings: Any) -> aa.TrainPhase:
    given = {"data": "train", "losses": [aa.AppliedLoss("mse")], "epochs": 3}
    sampler = aa.SimpleSampler(4, shuffle=True, seed=2)
    return aa.TrainPhase("train", **{"sampler": sampler, **given, **settings})


def run(graph: aa.ModelGraph, folder: Path | None, at: int, **settings: Any) -> Any:
    """Losses and the last state as plain values; None for a run that was broken off."""
    checkpoint = None if folder is None else aa.Checkpoint(folder, keep=1)
    if "step" in settings:
        settings |= {"losses": [], "validation": None}
    phase = training(
        **{"validation": "val", "callbacks": [BreakOff(at), LastScale()], "checkpoint": checkpoint, **settings}
    )
    return finished(graph, phase, "never" if at or not folder else "auto")


def outputs_of(graph: aa.ModelGraph) -> list[Any]:
    results = aa.Experiment("p", graph, progress="none").run_phase(aa.EvalPhase("p", data="all"))
    return plain(results.prediction("net"))


def of_run(make: Callable[[], Any], optimizer: Callable[[], Any], **settings: Any) -> tuple[Any, Any]:
    """A run that was broken off within its second epoch."""

    def write(folder: Path) -> Any:
        assert run(graph_of(make(), optimizer()), folder / "run", 7, **settings) is None
        return run(graph_of(make(), optimizer()), None, 0, **settings)

    def read(folder: Path) -> Any:
        return run(graph_of(make(), optimizer()), folder / "run", 0, **settings)

    return write, read


def of_graph(make: Callable[[], Any], suffixes: tuple[str, ...]) -> tuple[Any, Any]:
    """A trained graph, its files of weights, and its experiment."""

    def write(folder: Path) -> None:
        graph = graph_of(make(), adamw())
        experiment = aa.Experiment("e", graph, [training(epochs=2)], progress="none")
        experiment.run()
        experiment.run_phase(aa.EvalPhase("test", data="val", losses=[aa.AppliedLoss("mse")], metrics=["mae"]))
        graph.save(folder / "graph")
        experiment.save(folder / "experiment")
        for suffix in suffixes:
            graph.save_weights(folder / f"weights{suffix}", "net")
        (folder / "plan.json").write_text(experiment.plan(training()).to_json())
        (folder / "config.json").write_text(json.dumps(graph.get_config()))

    def read(folder: Path) -> Any:
        given: Any = {"models": {"net": make()}, "feature_sets": [rows()]}
        graph = aa.ModelGraph.load(folder / "graph", **given)
        values: dict[str, Any] = {"outputs": outputs_of(graph)}
        values |= {f"state of {name}": plain(array) for name, array in graph.state().items()}
        results = aa.Experiment("e", graph, progress="none").run_phase(training(epochs=1))
        values["losses of one more epoch"] = plain(results.loss)
        given["models"] = {"net": make()}
        experiment = aa.Experiment.load(folder / "experiment", progress="none", **given)
        values["history"] = [plain(experiment.history[0].loss), plain(experiment.history[1].prediction("net"))]
        values["history"] = [number for numbers in values["history"] for number in numbers]
        for suffix in suffixes:
            fresh = graph_of(make(), "adam")
            fresh.load_weights(folder / f"weights{suffix}", "net")
            values[f"outputs of {suffix}"] = outputs_of(fresh)
        values["plan"] = str(aa.Plan.from_json((folder / "plan.json").read_text())).splitlines()
        given["models"] = {"net": make()}
        again = aa.ModelGraph.from_config(json.loads((folder / "config.json").read_text()), **given)
        return {**values, "optimizer": json.dumps(again.get_config()["optimizer"])}

    return write, read


def of_fit(make: Callable[..., Any]) -> tuple[Any, Any]:
    """Folders of `fit`."""

    def write(folder: Path) -> None:
        given: Any = {"epochs": 2, "batch_size": 8, "scaler": "standard", "seed": 0, "progress": "none"}
        values = {**TABLE, "y": (5 * X[:, 0] + 100).tolist()}
        aa.fit(make(), values, target="y", loss="mse", **given).save(folder / "values")
        classes = {**TABLE, "kind": KINDS.tolist()}
        aa.fit(make(3), classes, target="kind", loss="cross_entropy", **given).save(folder / "classes")

    def read(folder: Path) -> Any:
        values = aa.load(folder / "values", models={"model": make()})
        classes = aa.load(folder / "classes", models={"model": make(3)})
        return {
            "values": plain(values.predict(TABLE)),
            "classes": plain(classes.predict(TABLE)),
            "scores": plain(classes.predict(TABLE, outputs=True)),
            "losses": plain(values.results.loss),
        }

    return write, read


def of_mixed() -> tuple[Any, Any]:
    """A graph over three frameworks, one node frozen, in half precision: a run that was broken off."""

    def make() -> aa.ModelGraph:
        table = rows()
        nodes = [
            aa.ModelNode("a", torch_model(2), table.reference(["x"], [])),
            aa.ModelNode("b", nnx_model(2), table.reference(["x"], [])),
            aa.ConcatNode("both", ["a", "b"]),
            aa.ModelNode("net", keras_head(), "both"),
        ]
        nodes[1].frozen = True
        return aa.ModelGraph(nodes, adamw(), seed=3)

    losses = [aa.AppliedLoss("mse", on="net", inputs=["outputs", "data.y"])]

    def write(folder: Path) -> Any:
        assert run(make(), folder / "run", 7, losses=losses) is None
        return run(make(), None, 0, losses=losses)

    return write, lambda folder: run(make(), folder / "run", 0, losses=losses)


def keras_head() -> Any:
    import keras

    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])


def suffixes_of(name: str) -> tuple[str, ...]:
    return (".safetensors", ".pt") if name.startswith("torch") else (".safetensors",)


def of_source(make: Callable[[], Any], source: Callable[[], Any]) -> tuple[Any, Any]:
    """A run over a source of a framework, which draws the order of its rows, broken off within its second epoch."""

    def goes(folder: Path | None, at: int) -> Any:
        given = source()
        node = aa.ModelNode("net", make(), aa.IterableSource("data", given, features="x", target="y").reference())
        graph = aa.ModelGraph([node], adamw(), seed=3)
        checkpoint = None if folder is None else aa.Checkpoint(folder, keep=1)
        losses = [aa.AppliedLoss("mse")]
        rows_of = aa.IterableSource("data", given, features="x", target="y")
        callbacks = [BreakOff(at)]
        phase = aa.TrainPhase(
            "train", data=rows_of, losses=losses, epochs=3, callbacks=callbacks, checkpoint=checkpoint
        )
        return finished(graph, phase, "never" if at or not folder else "auto")

    def write(folder: Path) -> Any:
        assert goes(folder / "run", 8) is None
        return goes(None, 0)

    return write, lambda folder: goes(folder / "run", 0)


def finished(graph: aa.ModelGraph, phase: aa.TrainPhase, resume: str) -> Any:
    """Losses and the last state as plain values; None for a run that was broken off."""
    try:
        results = aa.Experiment("e", graph, progress="none").run_phase(phase, resume=resume)
    except KeyboardInterrupt:
        return None
    values = {"losses": plain(results.loss)}
    scales = [callback.value for callback in phase.callbacks if isinstance(callback, LastScale) and callback.value]
    values |= {"loss scale": scales} if scales else {}
    if phase.validation is not None:
        values["val_loss"] = plain(results.figure("val_loss"))
    return {**values, **{f"state of {name}": plain(array) for name, array in graph.state().items()}}


def torch_loader() -> Any:
    import torch

    rows_of = torch.utils.data.TensorDataset(torch.from_numpy(X.copy()), torch.from_numpy(X[:, :1].copy()))
    torch.manual_seed(11)
    return torch.utils.data.DataLoader(rows_of, batch_size=4, shuffle=True)


def tf_data() -> Any:
    import tensorflow

    tensorflow.random.set_seed(3)
    return tensorflow.data.Dataset.from_tensor_slices((X, X[:, :1])).shuffle(24, seed=4).batch(4)


def torch_step(models: Any, batch: Any, optimizers: Any) -> Any:
    import torch

    optimizers["net"].zero_grad()
    outputs = models["net"](batch["x"])
    loss = torch.nn.functional.mse_loss(outputs, batch["y"])
    loss.backward()
    optimizers["net"].step()
    return {"loss": loss, "mae": (outputs - batch["y"]).abs().mean()}


def model_of(name: str) -> Callable[..., Any]:
    """The model of the longest name with which this one begins."""
    return MODELS[max((model for model in MODELS if name.startswith(model)), key=len)]


HALF: dict[str, Any] = {"precision": "fp16-mixed", "loss_scale": aa.LossScale(256.0, growth_interval=3)}

CASES: dict[str, tuple[Any, Any]] = {
    **{f"graph_{name}": of_graph(make, suffixes_of(name)) for name, make in MODELS.items()},
    **{f"fit_{name}": of_fit(MODELS[name]) for name in ("torch", "jax_linen", "tensorflow_keras")},
    **{f"run_{name}": of_run(make, adamw) for name, make in MODELS.items()},
    **{f"half_{name}": of_run(MODELS[name], adamw, **HALF) for name in ("torch", "jax_nnx", "tensorflow_keras")},
    **{f"own_{name}": of_run(model_of(name), optimizer) for name, optimizer in OWN.items()},
    "source_torch_loader": of_source(torch_model, torch_loader),
    "source_tensorflow_data": of_source(builtin("tensorflow"), tf_data),
    "step_torch": of_run(torch_model, adamw, step=torch_step),
    "devices_jax_builtin": of_run(lambda: MODELS["jax_builtin"](), adamw, accelerator="cpu", replicas=2),
    "mixed": of_mixed(),
}
