"""What test_mesh.py compares: training on one virtual CPU, on two and four, and with divided parameters, as JSON."""

import gc
import json
import os
import tempfile
from pathlib import Path

os.environ["JAX_NUM_CPU_DEVICES"] = "4"
os.environ["JAX_PLATFORMS"] = "cpu"  # also where there is a GPU

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import anyaccel as aa
from anyaccel_jax import SequentialMLP
from anyaccel_jax.mesh_program import DeviceMesh

X = np.random.default_rng(0).normal(size=(107, 8)).astype(np.float32)
Y = (2 * X[:, :1] + np.sin(X[:, 1:2])).astype(np.float32)
WEIGHTS = np.abs(X[:, 2])


class Linen(nn.Module):
    """A perceptron with dropout."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.Dropout(0.2, deterministic=not train)(nn.relu(nn.LayerNorm()(nn.Dense(16)(x))))
        return nn.Dense(1)(x)


class Nnx(nnx.Module):
    """Two layers."""

    def __init__(self):
        self.first = nnx.Linear(8, 16, rngs=nnx.Rngs(0))
        self.last = nnx.Linear(16, 1, rngs=nnx.Rngs(1))

    def __call__(self, x):
        return self.last(nnx.relu(self.first(x)))


class Mixing(nn.Module):
    """Rows are mixed, and each is sorted: XLA cannot divide the gradient of the latter unevenly."""

    sorts: bool = True

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(16)(x)
        return nn.Dense(1)(jnp.sort(x, axis=1) if self.sorts else nn.relu(x - x.mean(0)))


MODELS = {
    "sorting": Mixing,
    "mixing": lambda: Mixing(sorts=False),
    "plain": lambda: SequentialMLP((1,), hidden_dim=16, n_layers=2),
    "dropout": lambda: SequentialMLP((1,), hidden_dim=16, n_layers=2, dropout=0.3),
    "linen": Linen,
    "nnx": Nnx,
}
ADAM = aa.Optimizer("adam", lr=0.01)
SGD = aa.Optimizer("sgd", lr=0.05)  # gradients of a bias before a mean of rows are rounding, which Adam amplifies
WAYS = {
    "plain": ("plain", ADAM, {}),
    "clipped and accumulated": ("dropout", aa.Optimizer("adamw", lr=0.01, clip_norm=0.1), {"accumulate": 2}),
    "streamed": ("plain", ADAM, {"residency": "streamed"}),
    "not compiled": ("dropout", ADAM, {"compile": "off"}),
    "sorting": ("sorting", ADAM, {"batch_size": 17}),
    "mixing": ("mixing", SGD, {"batch_size": 17}),
    "bf16": ("plain", ADAM, {"precision": "bf16-mixed"}),
    "nnx": ("nnx", ADAM, {}),
    "all at once": (
        "linen",
        aa.Optimizer(optax.adamw, lr=0.01, clip_norm=0.1),
        {"accumulate": 2, "remat": "blocks", "sample_weight": "d.w"},
    ),
}
IS_FULL = bool(os.environ.get("ANYACCEL_TEST_FULL"))
PLACES = {
    "one": {"replicas": 1},
    "two": {"replicas": 2},
    "divided": {"replicas": 2, "sharding": "full"},
}


def rows():
    return aa.FeatureSet.from_dict("d", {"x": X, "y": Y, "w": WEIGHTS}, ["x"], ["y"], ["w"])


def trained(model, optimizer, epochs=2, callbacks=(), resume="never", remat=None, sample_weight=None, **settings):
    data = rows()
    nodes = [aa.ModelNode("net", model, data.reference(), remat=remat)]
    if sample_weight is not None:  # and a node that is never divided
        nodes.append(aa.ModelNode("last", SequentialMLP((1,), hidden_dim=8, n_layers=2), "net", sharding="none"))
    graph = aa.ModelGraph(nodes, optimizer, seed=3)
    losses = [aa.AppliedLoss("mse", on=nodes[-1].label, sample_weight=sample_weight)]
    settings = {"accelerator": "cpu", "validation": aa.EvalPhase("again", data="all"), "batch_size": 16, **settings}
    settings["sampler"] = aa.SimpleSampler(settings.pop("batch_size"), shuffle=True, seed=1)
    phase = aa.TrainPhase("train", data=data, losses=losses, epochs=epochs, **settings)
    phase.callbacks = tuple(callbacks)
    results = aa.Experiment(graph, progress="none").run_phase(phase, resume=resume)
    values = {name: np.asarray(value).tolist() for name, value in graph.state().items()}
    epochs = [[epoch.loss, *epoch.validation.values()] for epoch in results.epochs]
    return {"epochs": epochs, "values": values, "notes": results.plan.notes}, graph


class Fault(Exception):
    """Ends a phase."""


class CountsBytes(aa.Callback):
    """Bytes on each device of arrays that have the shape of a parameter, after a step in which nothing was read."""

    def __init__(self, shapes):
        self.shapes, self.nbytes = shapes, {}

    def step_end(self, run):
        if run.epoch != 0 or run.step != 3:
            return
        gc.collect()
        buffers = {}
        for array in jax.live_arrays():
            if array.shape in self.shapes:
                for shard in array.addressable_shards:
                    key = shard.device.id, shard.data.unsafe_buffer_pointer()
                    buffers[key] = shard.data.nbytes
        for (device, _), nbytes in buffers.items():
            self.nbytes[device] = self.nbytes.get(device, 0) + nbytes
        raise Fault("a fault in the middle of an epoch")


def counted(place):
    """Bytes per device as a part of parameters and two slots; then a fault, and where the model is after it."""
    model = SequentialMLP((1,), hidden_dim=256, n_layers=3)
    graph = aa.ModelGraph([aa.ModelNode("net", model, rows().reference())], ADAM, seed=3)
    graph.build()
    arrays = list(model.parameters.values())
    counts = CountsBytes({array.shape for array in arrays})
    whole = 3 * sum(array.nbytes for array in arrays)
    del arrays, graph
    try:
        trained(model, ADAM, epochs=1, callbacks=[counts], **PLACES[place])
    except Fault:
        arrays = model.parameters.values()
    devices = sorted({str(array.devices()) for array in arrays})
    finite = all(bool(np.isfinite(array).all()) for array in arrays)
    parts = [counts.nbytes.get(device, 0) / whole for device in (0, 1)]
    return {"parts": parts, "devices": devices, "finite": finite}


class ReadsParts(aa.Callback):
    """Which part of each node's parameters the first device has, after a step in which nothing was read."""

    def __init__(self, models):
        self.models, self.parts = models, {}

    def step_end(self, run):
        for name, model in self.models.items():
            arrays = list(model.parameters.values())
            own = sum(array.addressable_shards[0].data.nbytes for array in arrays)
            self.parts[name] = own / sum(array.nbytes for array in arrays)


def of_nodes(way, **settings):
    """Two epochs of a graph whose first node alone is divided: as it says itself, or as the other one says."""
    own = {"first": ({"sharding": "full"}, {}), "below": ({}, {"sharding": "none"}), "one": ({}, {})}[way]
    models = {name: SequentialMLP((n,), hidden_dim=64, n_layers=2) for name, n in (("first", 8), ("last", 1))}
    data = rows()
    nodes = [
        aa.ModelNode("first", models["first"], data.reference(), **own[0]),
        aa.ModelNode("last", models["last"], "first", **own[1]),
    ]
    graph = aa.ModelGraph(nodes, aa.Optimizer("adamw", lr=0.01, clip_norm=0.1), seed=3)
    losses = [aa.AppliedLoss("mse", on="last", sample_weight="d.w")]
    sampler, reads = aa.SimpleSampler(16, shuffle=True, seed=1), ReadsParts(models)
    phase = aa.TrainPhase("train", data=data, losses=losses, sampler=sampler, epochs=1, accelerator="cpu", **settings)
    phase.callbacks = (reads,)
    told = [aa.Experiment(graph, progress="none").run_phase(phase) for _ in range(2)]  # goes on with the states
    values = {name: np.asarray(value).tolist() for name, value in graph.state().items()}
    epochs = [epoch.loss for results in told for epoch in results.epochs]
    return {"epochs": epochs, "values": values, "notes": told[0].plan.notes, "parts": reads.parts}


def gone_on():
    """One epoch on two devices with divided parameters, and one more on one."""
    model, optimizer, more = WAYS["all at once"]
    with tempfile.TemporaryDirectory() as folder:
        for epochs, place in ((1, "divided"), (2, "one")):
            checkpoint = aa.Checkpoint(Path(folder), every=4, wait=True)
            settings = {"checkpoint": checkpoint, "epochs": epochs, "resume": "auto", **more, **PLACES[place]}
            told, graph = trained(MODELS[model](), optimizer, **settings)
    return {**told, "devices": sorted({str(array.devices()) for array in graph["net"].model.parameters.values()})}


def long(epochs):
    """Losses of so many epochs of 7 steps."""
    places = {**PLACES, "four divided": {"replicas": 4, "sharding": "full"}}
    return {
        name: [epoch[0] for epoch in trained(MODELS["plain"](), ADAM, epochs=epochs, **place)[0]["epochs"]]
        for name, place in places.items()
    }


def divided_work(n_rows):
    """By what a step does with so many rows, the part of its operations that each of two devices has."""
    two, one = (DeviceMesh(jax.devices()[:n], divides=False) for n in (2, 1))
    told = {}
    for name, last in (("plain", jnp.square), ("sorting", lambda x: jnp.sort(x, axis=1))):
        counts = []
        for mesh in (two, one):

            def gradient(weights, rows, mesh=mesh, last=last):
                rows = mesh.divide(rows)
                return jax.grad(lambda weights: jnp.mean(last(jnp.tanh(rows @ weights))))(weights)

            given = [mesh.put(np.ones((n, 64), np.float32), mesh.everywhere) for n in (64, n_rows)]
            compiled = jax.jit(mesh.dividing_rows(gradient)).lower(*given).compile()
            counts.append(compiled.cost_analysis()["flops"])
        told[name] = counts[0] / counts[1]
    return told


def main():
    ways = {name: WAYS[name] for name in WAYS if IS_FULL or name in ("all at once", "sorting", "mixing")}
    told = {
        name: {
            place: trained(MODELS[model](), optimizer, **more, **PLACES[place])[0]
            for place in PLACES
            if IS_FULL or place != "two"
        }
        for name, (model, optimizer, more) in ways.items()
    }
    nodes = {}
    if IS_FULL:
        nodes |= {"one": of_nodes("one", replicas=1), "first": of_nodes("first", replicas=2)}
        nodes["below"] = of_nodes("below", replicas=2, sharding="full")
        nodes["not compiled"] = of_nodes("first", replicas=2, compile="off")
    report = {
        "nodes": nodes,
        "ways": told,
        "counted": counted("divided"),
        "gone on": gone_on(),
        "work": {n_rows: divided_work(n_rows) for n_rows in (1000, 1001)},
        "long": long(15) if IS_FULL else {},
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
