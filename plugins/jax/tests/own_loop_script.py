"""Own loops of JAX in as many processes as a launcher made; each writes what its loops gave to a folder.

Arguments: the folder, and the cases with commas between. `test_own_loop.py` calls the cases in its own process, too.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"  # also where there is a GPU, which two processes cannot share

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import anyaccel as aa
from anyaccel.errors import AnyaccelError

Loop: Any = aa.Loop
Result = dict[str, Any]


class Rows:
    """Batches of rows; each epoch has an order of its own, of NumPy's global generator."""

    def __init__(self, n_rows: int = 107, size: int = 16, *, shuffle: bool = True, length: int | None = None) -> None:
        self.n_rows, self.size, self.shuffle = n_rows, size, shuffle
        self.length = -(-n_rows // size) if length is None else length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        x, y = table(self.n_rows)
        order = np.random.permutation(self.n_rows) if self.shuffle else np.arange(self.n_rows)
        for first in range(0, self.n_rows, self.size):
            rows = order[first : first + self.size]
            yield x[rows], y[rows]


def table(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(n_rows, 5)).astype(np.float32)
    return x, (2 * x[:, :1] + np.sin(x[:, 1:2])).astype(np.float32)


def parameters() -> Any:
    draw = np.random.default_rng(1)
    shapes = {"a": (5, 8), "b": (8,), "c": (8, 1)}
    return {name: jnp.asarray(draw.normal(size=shape).astype(np.float32) / 3) for name, shape in shapes.items()}


def apply(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["a"] + params["b"]) @ params["c"]


def mean_loss(params: Any, x: Any, y: Any) -> Any:
    return jnp.mean((apply(params, x) - y) ** 2)


def row_losses(params: Any, x: Any, y: Any) -> Any:
    return ((apply(params, x) - y) ** 2).mean(axis=1)


def token_loss(params: Any, x: Any, y: Any) -> Any:
    """Only rows of one kind are counted: some batches and shares have none."""
    counts = x[:, 2] > 0.8
    return jnp.where(counts, row_losses(params, x, y), 0).sum(), counts.sum()


def thirds(params: Any, x: Any, y: Any) -> Any:
    """A sum over three times the rows."""
    return jnp.abs(apply(params, x) - y).sum(), jnp.asarray(3 * len(x))


TX = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(optax.exponential_decay(0.1, 5, 0.8), momentum=0.9))


def trained(
    loop: Any, loss: Any = mean_loss, rows: Any = None, epochs: int = 3, batch: str = "global", **gradients: Any
) -> Result:
    """A loop as a user writes it."""
    params, loader, test = loop.prepare(parameters(), rows or Rows(), Rows(103, 20, shuffle=False), batch=batch)
    opt_state = loop.prepare(TX.init(params))
    grads_of = loop.value_and_grad(loss, **gradients)
    traces = 0

    @loop.compile
    def step(params: Any, opt_state: Any, x: Any, y: Any, mask: Any = None) -> Any:
        nonlocal traces
        traces += 1
        value, grads = grads_of(params, x, y, mask=mask) if batch == "padded" else grads_of(params, x, y)
        updates, opt_state = TX.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    np.random.seed(7)
    losses = []
    for _ in loop.epochs(epochs):
        for x, y in loader:
            more = (loader.mask,) if batch == "padded" else ()
            params, opt_state, value = step(params, opt_state, x, y, *more)
            losses.append(loop.reduce(value))
    outputs = loop.gather(apply(params, x) for x, _ in test)
    return {
        "losses": [float(value) for value in losses],
        "params": {name: array.tolist() for name, array in loop.broadcast(params).items()},
        "outputs": outputs.ravel().tolist(),
        "traces": traces,
        "steps": loop.step,
        "part": sum(shard.data.nbytes for a in params.values() for shard in a.addressable_shards),
    }


def ragged() -> Result:
    return trained(Loop("cpu", framework="jax"))


def one_row() -> Result:
    return trained(Loop("cpu", framework="jax"), rows=Rows(33, 16))


def tokens() -> Result:
    return trained(Loop("cpu", framework="jax"), token_loss, Rows(107, 6))


def accumulated() -> Result:
    return trained(Loop("cpu", framework="jax", accumulate=3), rows=Rows(220, 16))


def micro_batches() -> Result:
    return trained(Loop("cpu", framework="jax"), token_loss, Rows(220, 48), accumulate=3)


def several_counts() -> Result:
    """Two losses of one model and one of another, each divided by a count of its own."""
    loop = Loop("cpu", framework="jax", accumulate=3)
    one, other, loader = loop.prepare(parameters(), {"a": jnp.ones((5, 1))}, Rows(220, 16))
    of_tokens, of_thirds = loop.value_and_grad(token_loss), loop.value_and_grad(thirds)
    of_other = loop.value_and_grad(lambda params, x, y: (((x @ params["a"] - y) ** 2).sum(), jnp.asarray(7 * len(x))))

    @loop.compile
    def step(one: Any, other: Any, x: Any, y: Any) -> Any:
        first, grads = of_tokens(one, x, y)
        second, more = of_thirds(one, x, y)
        third, others = of_other(other, x, y)
        one = jax.tree.map(lambda p, a, b: p - 0.1 * (a + b), one, grads, more)
        return one, jax.tree.map(lambda p, grad: p - 0.1 * grad, other, others), (first, second, third)

    losses = []
    np.random.seed(7)
    for x, y in loader:
        one, other, values = step(one, other, x, y)
        losses += [float(loop.reduce(value)) for value in values]
    params = {**loop.broadcast(one), "other": loop.broadcast(other)["a"]}
    return {"losses": losses, "params": {k: v.tolist() for k, v in params.items()}, "steps": loop.step}


def padded() -> Result:
    return trained(Loop("cpu", framework="jax"), row_losses, batch="padded")


def divided() -> Result:
    return trained(Loop("cpu", framework="jax", sharding="full"))


def bf16() -> Result:
    return trained(Loop("cpu", framework="jax", precision="bf16-mixed"))


class Net(nnx.Module):
    """With statistics over a batch, and dropout."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first, self.norm = nnx.Linear(5, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs)
        self.drop, self.last = nnx.Dropout(0.3, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(self.drop(nnx.relu(self.norm(self.first(x)))))


def net_loss(net: Any, x: Any, y: Any) -> Any:
    return jnp.mean((net(x) - y) ** 2)


def interrupted() -> Result:
    """Evaluation within a loop, which is left early, and a loop that is left early itself."""
    loop = Loop("cpu", framework="jax", accumulate=2)
    params, loader, test = loop.prepare(parameters(), Rows(107, 16), Rows(40, 8, shuffle=False))
    grads_of = loop.value_and_grad(mean_loss)

    @loop.compile
    def step(params: Any, x: Any, y: Any) -> Any:
        value, grads = grads_of(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    np.random.seed(7)
    losses = []
    for stop in (2, 20):
        for number, (x, y) in enumerate(loader):
            loop.gather(apply(params, a) for a, _ in test)
            for _ in test:
                break
            params, value = step(params, x, y)
            losses.append(float(loop.reduce(value)))
            if number == stop - 1:
                break
    return {"losses": losses, "params": told_of(loop, params), "steps": loop.step}


def twice_loss(params: Any, x: Any, y: Any) -> Any:
    return mean_loss(params, x, y) + mean_loss(params, 0.5 * x, y)


def twice() -> Result:
    """A model that is called twice in one loss."""
    return trained(Loop("cpu", framework="jax"), twice_loss)


def told_of(loop: Any, params: Any) -> Any:
    return {name: array.tolist() for name, array in loop.broadcast(params).items()}


FIRST, SECOND = optax.adam(0.01), optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.05))


def generator_loss(generator: Any, judge: Any, x: Any) -> Any:
    return jnp.mean(jax.nn.softplus(-apply(judge, jnp.tanh(x @ generator["w"]))))


def judge_loss(judge: Any, generator: Any, x: Any) -> Any:
    made = jnp.tanh(x @ generator["w"])
    return jnp.mean(jax.nn.softplus(-apply(judge, x)) + jax.nn.softplus(apply(judge, made)))


def adversaries() -> Result:
    """Two models with an optimizer each; one has an average, and a row of the fourth batch is infinite."""
    loop = Loop("cpu", framework="jax")
    finite = optax.apply_if_finite(FIRST, 5)
    generator = {"w": jnp.eye(5)}
    one = {"params": generator, "optimizer": finite.init(generator), "average": jax.tree.map(jnp.copy, generator)}
    two = {"params": parameters(), "optimizer": SECOND.init(parameters())}
    one, two, loader = loop.prepare(one, two, Infinite())
    of_judge, of_generator = loop.value_and_grad(judge_loss), loop.value_and_grad(generator_loss)

    @loop.compile
    def step(one: Any, two: Any, x: Any) -> Any:
        first, grads = of_judge(two["params"], one["params"], jnp.where(jnp.isfinite(x), x, 0))
        updates, own = SECOND.update(grads, two["optimizer"])
        two = {"params": optax.apply_updates(two["params"], updates), "optimizer": own}
        second, grads = of_generator(one["params"], two["params"], x)
        updates, own = finite.update(grads, one["optimizer"])
        params = optax.apply_updates(one["params"], updates)
        average = optax.incremental_update(params, one["average"], 0.2 * own.last_finite)
        return {"params": params, "optimizer": own, "average": average}, two, (first, second)

    losses, skipped = [], []
    for (x,) in loader:
        one, two, values = step(one, two, x)
        losses.append(float(values[0]))
        skipped.append(not bool(one["optimizer"].last_finite))
    params = {**loop.broadcast(two["params"]), "w": loop.broadcast(one["params"])["w"]}
    params["average"] = loop.broadcast(one["average"])["w"]
    return {"losses": losses, "params": {k: v.tolist() for k, v in params.items()}, "steps": loop.step, "skip": skipped}


class Infinite:
    """Six batches of 16 rows, and one row of the fourth is infinite, which the last process has."""

    def __iter__(self) -> Iterator[Any]:
        x = table(96)[0].copy()
        x[63] = np.inf
        yield from ((x[i : i + 16],) for i in range(0, 96, 16))


def tokenless() -> Result:
    """No token counts anywhere: nothing is trained, and nothing is NaN."""
    return trained(Loop("cpu", framework="jax"), lambda params, x, y: (
        jnp.where(x[:, 2] > 99, row_losses(params, x, y), 0).sum(), (x[:, 2] > 99).sum()
    ), Rows(40, 16), epochs=1)  # fmt: skip


def modules() -> Result:
    """An NNX module and its optimizer, changed in place."""
    loop = Loop("cpu", framework="jax")
    net = Net()
    net, optimizer, loader = loop.prepare(net, nnx.Optimizer(net, optax.adam(0.01), wrt=nnx.Param), Rows())
    grads_of = loop.value_and_grad(net_loss)

    @loop.compile
    def step(net: Any, optimizer: Any, x: Any, y: Any) -> Any:
        value, grads = grads_of(net, x, y)
        optimizer.update(net, grads)
        return value

    np.random.seed(7)
    losses = [step(net, optimizer, x, y) for _ in range(2) for x, y in loader]
    arrays = jax.tree.leaves(nnx.state(net))
    params = {str(i): array.tolist() for i, array in enumerate(loop.broadcast(arrays)) if array.dtype == np.float32}
    return {"losses": [float(v) for v in losses], "params": params, "steps": loop.step}


def own_steps() -> Result:
    """A step that the user has compiled, and a loop that is told of its states; keys of dropout."""
    loop = Loop("cpu", framework="jax", seed=3)
    params, loader = loop.prepare(parameters(), Rows(96, 16))
    traces = 0

    @jax.jit
    def step(params: Any, key: Any, x: Any, y: Any) -> Any:
        nonlocal traces
        traces += 1
        x = x * jax.random.bernoulli(key, 0.7, x.shape)
        value, grads = jax.value_and_grad(mean_loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    np.random.seed(7)
    losses = []
    for _ in loop.epochs(2):
        for x, y in loader:
            params, value = step(params, loop.key(), x, y)
            loop.state = params
            losses.append(float(value))
    return {"losses": losses, "traces": traces, "steps": loop.step}


def exchanges() -> Result:
    """How often an update of four batches exchanges the gradients of `a`: in a loop over the batches, and at once."""
    loop = Loop("cpu", framework="jax", accumulate=4)
    params, loader = loop.prepare(parameters(), Rows(192, 24))
    x, y = next(iter(loader))
    counts = {}
    for n_micro in (4, 1):
        grads_of = loop.value_and_grad(mean_loss, accumulate=n_micro)
        program = jax.jit(grads_of.__call__).lower(params, x, y).compile().as_text()
        assert ("known_trip_count" in program) is (n_micro > 1)
        parts = re.split(r"\n(?=\S)", program)  # the entry, the body of the loop and others
        found = [len(re.findall(r" = .*\[(?:5,8|8,5)\].* all-reduce(?:-start)?\(", part)) for part in parts]
        times = [1 if part.startswith("ENTRY") else n_micro for part in parts]
        counts[str(n_micro)] = sum(a * b for a, b in zip(found, times, strict=True))
    return {"exchanges": counts, "rows": len(x)}


def values() -> Result:
    """What is gathered, added up and told."""
    loop = Loop("cpu", framework="jax")
    texts = [{"x": np.arange(n, dtype=np.float32).reshape(n, 1), "t": [f"{n}-{i}" for i in range(n)]} for n in (8, 5)]

    class Texts:
        def __iter__(self) -> Iterator[Any]:
            yield from texts

    loader = loop.prepare(Texts())
    double = jax.jit(lambda x: {"twice": x * 2, "pair": (x, None), "sum": x.sum()})
    given = loop.gather({**double(batch["x"]), "t": batch["t"]} for batch in loader)
    rank = loop.process_index
    return {
        "twice": given["twice"].ravel().tolist(),
        "pair": [type(given["pair"]).__name__, given["pair"][0].ravel().tolist(), given["pair"][1]],
        "sum": given["sum"],
        "t": given["t"],
        "own": [
            float(loop.reduce(float(rank))),
            float(loop.reduce(float(rank), "max")),
            float(loop.reduce(1.0, "sum")),
        ],
        "counted": float(loop.reduce(float(rank), count=2)),
        "any": [loop.any(rank == loop.num_processes - 1), loop.any(False)],
        "told": loop.broadcast({"a": np.arange(3) + rank}, source=loop.num_processes - 1)["a"].tolist(),
        "local": np.asarray(loop.gather(np.full((rank + 1, 1), rank))).ravel().tolist() if loader.share is None else [],
    }


def resumed(folder: Path) -> Result:
    """Ends within an epoch, and goes on in another loop; and again from what was saved, in whatever processes."""

    def run(save: Path | None, stop: int = 99, resume: str = "auto", every: Any = 3) -> tuple[Any, list[float]]:
        np.random.seed(7)
        loop = Loop("cpu", framework="jax", seed=5, sharding="full")
        state = {"params": parameters(), "key": jax.random.key(1), "n": 0}
        state, loader = loop.prepare(state, Rows())
        losses = []

        @loop.compile
        def step(state: Any, key: Any, x: Any, y: Any) -> Any:
            x = x * jax.random.bernoulli(key, 0.7, x.shape)
            value, grads = loop.value_and_grad(mean_loss)(state["params"], x, y)
            params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)
            return {"params": params, "key": jax.random.fold_in(state["key"], 1), "n": state["n"] + 1}, value

        for _ in loop.epochs(3, save=save, every=every, resume=resume):
            state = loop.state
            for x, y in loader:
                state, value = step(state, loop.key(), x, y)
                losses.append(float(value))
                if loop.step == stop:
                    return loop, losses
        state = loop.state
        return loop, [*losses, float(state["n"]), float(jax.random.uniform(state["key"]))]

    result: Result = {"whole": run(None)[1]}
    own = folder / f"run-{jax.process_count()}"
    loop, result["before"] = run(own, stop=11)
    loop.barrier()
    loop, result["after"] = run(own)
    if (folder / "run-2").exists() and jax.process_count() != 2:
        import shutil

        other = folder / f"copy-{jax.process_count()}"
        if loop.is_main_process:
            shutil.copytree(folder / "run-2", other)
            for name in sorted(p.name for p in other.glob("step-*"))[1:]:
                shutil.rmtree(other / name)
        loop.barrier()
        result["other"] = run(other)[1]
    return result


def refused() -> Result:
    """What several processes must not do."""
    told: Result = {}

    def tell(name: str, call: Any) -> None:
        try:
            call()
            told[name] = "no error"
        except AnyaccelError as error:
            told[name] = str(error)

    loop = Loop("cpu", framework="jax")
    rank = loop.process_index
    uneven = loop.prepare(Rows(length=7 + rank))
    tell("uneven", lambda: next(iter(uneven)))

    class NoRows:
        def __iter__(self) -> Iterator[Any]:
            yield {"scale": 1.0}

    bare = loop.prepare(NoRows())
    tell("no rows", lambda: next(iter(bare)))
    tell("different", lambda: loop.prepare({"w": jnp.full(3, float(rank)), "v": jnp.ones(2)}))
    tell("local statistics", lambda: Loop("cpu", framework="jax", sync_batchnorm=False))
    return told


CASES = {
    case.__name__: case
    for case in (
        ragged, one_row, tokens, accumulated, micro_batches, several_counts, padded, divided, bf16, modules,
        own_steps, values, refused, interrupted, twice, adversaries, tokenless, exchanges,
    )
}  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    Loop("cpu", framework="jax")  # joins
    results = {name: CASES[name]() for name in sys.argv[2].split(",")}
    results["resumed"] = resumed(folder)
    (folder / f"of-{jax.process_count()}-{jax.process_index()}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
