"""Trains with JAX in as many processes as a launcher made; each writes what it found to a folder.

Arguments: the folder, and what to do, or several with commas between. One process has two virtual CPUs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # also where there is a GPU, which two processes cannot share

import jax
import numpy as np
from flax import nnx

import anyaccel as aa
from anyaccel.errors import FrameworkError
from anyaccel_distributed import is_main_process, join
from anyaccel_jax import SequentialMLP

PLACE = join("jax")
if PLACE is None:
    jax.config.update("jax_num_cpu_devices", 2)
FULL = os.environ.get("ANYACCEL_TEST_FULL") == "1"
RANK = 0 if PLACE is None else PLACE.rank
OUT = Path(sys.argv[1])


class Net(nnx.Module):
    """JAX starts as it is made."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first, self.last = nnx.Linear(5, 16, rngs=rngs), nnx.Linear(16, 1, rngs=rngs)
        self.drop = nnx.Dropout(0.3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(self.drop(nnx.relu(self.first(x))))


def data() -> aa.FeatureSet:
    x = np.random.default_rng(0).normal(size=(107, 5)).astype(np.float32)
    y = (2 * x[:, :1] + np.sin(x[:, 1:2])).astype(np.float32)
    return aa.FeatureSet.from_dict("d", {"x": x, "y": y, "w": np.maximum(x[:, 2] - 0.5, 0)}, ["x"], ["y"], ["w"])


def tell(name: str, **values: Any) -> None:
    (OUT / f"{name}-{RANK}.json").write_text(json.dumps(values))


def trained(name: str, model: Any = None, optimizer: aa.Optimizer | None = None, **settings: Any) -> None:
    """Steps over shuffled rows with a ragged last batch, and a validation with a metric."""
    rows = data()
    node = aa.ModelNode("net", model or SequentialMLP((1,)), rows.reference())
    graph = aa.ModelGraph([node], optimizer or aa.Optimizer("adam", lr=0.01, clip_norm=1.0), seed=3)
    loss = aa.AppliedLoss("mse", "net", ["outputs", "d.y"])
    judged = aa.EvalPhase("v", data=rows, batch_size=20, metrics=[aa.Metric("mae", targets="d.y")])
    given = {"data": rows, "epochs": 1, **({} if "sampler" in settings else {"batch_size": 16})}
    given |= {"losses": [loss], "validation": judged}
    phase = aa.TrainPhase("train", **{**given, **settings})
    experiment = aa.Experiment(graph, progress="none")
    results = experiment.run_phase(phase, resume="auto" if "checkpoint" in settings else "never")
    epochs = [[epoch.loss, epoch.validation["loss"], epoch.validation["mae"]] for epoch in results.epochs]
    outputs: list[Any] = []
    if FULL:
        parts = aa.EvalPhase("e", data=rows, losses=[loss], batch_size=20, replicas=None)
        outputs = experiment.run_phase(parts).prediction("net").tolist()
    state = {key: np.asarray(value).tobytes().hex() for key, value in graph.state().items()}
    tell(name, epochs=epochs, outputs=outputs, state=state)


def plain() -> None:
    trained("plain", epochs=15 if FULL else 2)


def accumulated() -> None:
    trained("accumulated", accumulate=3)


def weighed() -> None:
    """Most rows weigh nothing, in some steps all of a replica; the last of the batches has 5 rows."""
    trained(
        "weighed",
        epochs=2,
        sampler=aa.SimpleSampler(17, shuffle=True),
        losses=[aa.AppliedLoss("mse", "net", ["outputs", "d.y"], sample_weight="d.w")],
    )


def sourced() -> None:
    """Batches of a source, of which each process puts a part on its device; with dropout, and a ragged last one."""
    source = aa.IterableSource("d", batches, features="x", target="y", tags="w")
    loss = aa.AppliedLoss("mse", "net", ["outputs", "d.y"], sample_weight="d.w")
    trained("sourced", Net(), data={"d": source}, batch_size=16, epochs=2, losses=[loss])


def fixed() -> None:
    """Equal to the last bit: dropout, and losses that weigh rows."""
    loss = aa.AppliedLoss("mse", "net", ["outputs", "d.y"], sample_weight="d.w")
    one = {} if PLACE else {"accelerator": "cpu", "replicas": 2}
    trained("fixed", Net() if FULL else None, deterministic=True, losses=[loss], **one)


class ReadsParts(aa.Callback):
    """Which part of each node's parameters this process has, after a step in which nothing was read."""

    every_n_steps = 4

    def __init__(self, models: dict[str, Any]) -> None:
        self.models, self.parts = models, dict[str, float]()

    def step_end(self, run: Any) -> None:
        for name, model in self.models.items():
            arrays = list(model.parameters.values())
            own = sum(array.addressable_shards[0].data.nbytes for array in arrays)
            self.parts[name] = own / sum(array.nbytes for array in arrays)


def batches() -> Any:
    """The rows in batches of their own."""
    rows = data()
    for start in range(0, 107, 16):
        yield {name: rows.array(name)[start : start + 16] for name in ("x", "y", "w")}


def divided_graph(sharding: str | None = "full") -> tuple[dict[str, Any], aa.ModelGraph]:
    """A first node that is divided, and a last one with dropout that is not."""
    models = {
        "first": SequentialMLP((8,), hidden_dim=64, n_layers=2),
        "net": SequentialMLP((1,), hidden_dim=16, n_layers=2, dropout=0.3),
    }
    nodes = [
        aa.ModelNode("first", models["first"], data().reference(), sharding=sharding),
        aa.ModelNode("net", models["net"], "first"),
    ]
    return models, aa.ModelGraph(nodes, aa.Optimizer("adamw", lr=0.01, clip_norm=0.1), seed=3)


def divided() -> None:
    """One node divided, and one whole: accumulated, weighed, with a validation; also in two phases, from a source."""
    models, graph = divided_graph()
    rows, reads = data(), ReadsParts(models)
    loss = aa.AppliedLoss("mse", "net", ["outputs", "d.y"], sample_weight="d.w")
    judged = aa.EvalPhase("v", data=rows, metrics=[aa.Metric("mae", targets="d.y")])
    settings: dict[str, Any] = {"losses": [loss], "accumulate": 2, "validation": judged}
    phase = aa.TrainPhase("train", data=rows, sampler=aa.SimpleSampler(16, shuffle=True), **settings)
    phase.callbacks = (reads,)
    results = [aa.Experiment(graph, progress="none").run_phase(phase)]
    if FULL:
        results.append(aa.Experiment(graph, progress="none").run_phase(phase))  # with the states of the first
        source = aa.IterableSource("d", batches, features="x", target="y", tags="w")
        phase = aa.TrainPhase("more", data={"d": source}, losses=[loss])
        results.append(aa.Experiment(graph, progress="none").run_phase(phase))
    epochs = [value for each in results for epoch in each.epochs for value in (epoch.loss, *epoch.validation.values())]
    state = {key: np.asarray(value).tolist() for key, value in graph.state().items()}
    tell("divided", epochs=epochs, values=state, parts=reads.parts, notes=results[0].plan.notes)


class HearsCalls(aa.Callback):
    """How many steps each call takes, and the losses of all steps in their order."""

    def __init__(self) -> None:
        self.calls, self.losses = list[int](), list[float]()

    def steps_done(self, run: Any, steps: Any) -> None:
        self.calls.append(len(steps.numbers))
        (losses,) = steps.losses().values()
        self.losses += losses.tolist()


def divided_calls() -> None:
    """Several steps in a call; and losses that are scaled for float16, of which some steps are not finite."""
    settings: dict[str, Any] = {"sharding": "full", "epochs": 15 if FULL else 2}
    heard = HearsCalls()
    trained("divided_steps", callbacks=[heard], **settings)
    tell("divided_calls", calls=heard.calls, losses=heard.losses)


class Normalizes(nnx.Module):
    """A perceptron whose batches are normalized."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first, self.last = nnx.Linear(5, 16, rngs=rngs), nnx.Linear(16, 1, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(nnx.relu(self.norm(self.first(x))))


def normalized() -> None:
    """With whole and with divided parameters. By SGD, as a bias before a normalization has gradients of rounding."""
    for name, sharding in (("normalized", None), ("normalized_divided", "full")):
        settings: dict[str, Any] = {"sharding": sharding, "sync_batchnorm": True, "epochs": 2}
        trained(name, Normalizes(), optimizer=aa.Optimizer("sgd", lr=0.05), **settings)


class HearsScales(aa.Callback):
    """The loss scale after each step."""

    def __init__(self) -> None:
        self.scales = list[float]()

    def step_end(self, run: Any) -> None:
        self.scales.append(run.loss_scale.scale)


def scaled() -> None:
    """In float16 with divided parameters: one row is more than it holds; step by step, and several in a call."""
    x, y = data().array("x").copy(), data().array("y")
    x[20] = 1e6
    rows = aa.FeatureSet.from_dict("d", {"x": x, "y": y}, ["x"], ["y"])
    told: dict[str, Any] = {}
    ways: list[tuple[str, HearsScales | None]] = [("several", None), ("single", HearsScales())]
    for name, heard in ways if FULL else ways[:1]:
        model = SequentialMLP((1,), hidden_dim=16)
        graph = aa.ModelGraph([aa.ModelNode("net", model, rows.reference())], aa.Optimizer("adam", lr=0.01), seed=3)
        phase = aa.TrainPhase(
            "train",
            data=rows,
            losses=[aa.AppliedLoss("mse", "net", ["outputs", "d.y"])],
            batch_size=16,
            epochs=2,
            sharding="full",
            precision="fp16-mixed",
            loss_scale=aa.LossScale(initial=1024.0, growth_interval=2),
            on_nan="ignore",
            callbacks=[] if heard is None else [heard],
        )
        results = aa.Experiment(graph, progress="none").run_phase(phase)
        told[f"{name} scales"] = [] if heard is None else heard.scales
        told[f"{name} events"] = [event.message for event in results.events if event.kind == "precision"]
        told[f"{name} steps"] = graph.optimizer_states["net"].step
        told[f"{name} values"] = [float(v) for _, array in sorted(graph.state().items()) for v in np.ravel(array)]
    tell("scaled", **told)


def divided_resumed() -> None:
    """Goes on from the newest checkpoint with a divided node, where a process may be killed."""
    _, graph = divided_graph()
    kept = aa.Checkpoint(OUT / "checkpoints", every=2, wait=True)
    settings: dict[str, Any] = {"batch_size": 16, "epochs": 4, "checkpoint": kept, "callbacks": [Killed()]}
    phase = aa.TrainPhase("train", data=data(), losses=[aa.AppliedLoss("mse", "net", ["outputs", "d.y"])], **settings)
    try:
        aa.Experiment(graph, progress="none").run_phase(phase, resume="auto")
    except FrameworkError as error:
        tell("divided_lost", message=str(error), notes=getattr(error, "__notes__", []))
        raise
    tell("divided_resumed", state={key: np.asarray(value).tolist() for key, value in graph.state().items()})


class Fails(aa.Callback):
    """Fails in the last replica, in the middle of an epoch."""

    def step_end(self, run: Any) -> None:
        if not is_main_process() and run.epoch == 1 and run.step == 1:
            raise ValueError("a fault of one replica")


def fail() -> None:
    """One replica raises; the other is waiting for its gradients."""
    began = time.monotonic()
    try:
        trained("never", epochs=500, callbacks=[Fails()])
    except FrameworkError as error:
        tell("fail", message=str(error), seconds=time.monotonic() - began)
        raise


class Killed(aa.Callback):
    """Kills its process at a step of the whole run, if the plan names it, and nobody was killed before."""

    def __init__(self) -> None:
        plan = OUT / "kill.json"
        self.rank, self.at, self.by = json.loads(plan.read_text()) if plan.exists() else (None, -1, 0)
        self.done = 0

    def epoch_start(self, run: Any) -> None:
        self.done = sum(epoch.steps for epoch in run.history)

    def step_end(self, run: Any) -> None:
        mark = OUT / "killed"
        if self.rank == RANK and self.done + run.step == self.at and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), self.by)


def resumed() -> None:
    """Goes on from the newest checkpoint."""
    kept = aa.Checkpoint(OUT / "checkpoints", every=2, wait=True)
    try:
        trained("resumed", epochs=5, checkpoint=kept, callbacks=[Killed()])
    except FrameworkError as error:
        tell("lost", message=str(error))
        raise


if __name__ == "__main__":
    every = (
        plain,
        weighed,
        sourced,
        accumulated,
        fixed,
        fail,
        resumed,
        divided,
        divided_calls,
        divided_resumed,
        normalized,
        scaled,
    )
    ways = {each.__name__: each for each in every}
    for way in sys.argv[2].split(","):
        ways[way]()
