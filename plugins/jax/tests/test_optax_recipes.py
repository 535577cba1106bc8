"""Recipes of the guides of Optax, Flax and Equinox, each with Linen, NNX and Equinox, and a loop of that library."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import SpecError
from anyaccel_jax import Function
from anyaccel_jax.models.equinox import Equinox
from anyaccel_jax.models.linen import Linen

optax = pytest.importorskip("optax", reason="Optax is not installed")
eqx = pytest.importorskip("equinox", reason="Equinox is not installed")
pytest.importorskip("flax", reason="Flax is not installed")
from flax import linen, nnx, traverse_util  # noqa: E402
from flax.core import freeze  # noqa: E402
from flax.training.train_state import TrainState  # noqa: E402

BATCH, EPOCHS = 4, 2
Tree = Any
Make = Callable[[Tree], Any]
"""From the parameters, as a loop by hand has them, to a transformation."""


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """x [12, 3] and y [12, 1]."""
    draw = np.random.default_rng(3)
    x = draw.normal(size=(12, 3)).astype("float32")
    return x, (x[:, :1] * 2 - x[:, 1:2]).astype("float32")


class LinenNet(linen.Module):
    """Two layers."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """[batch, 1]."""
        return linen.Dense(1, name="head")(jnp.tanh(linen.Dense(4, name="backbone")(x)))


class NnxNet(nnx.Module):
    """The same."""

    def __init__(self) -> None:
        self.backbone = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
        self.head = nnx.Linear(4, 1, rngs=nnx.Rngs(1))

    def __call__(self, x: Any) -> Any:
        """[batch, 1]."""
        return self.head(jnp.tanh(self.backbone(x)))


class EquinoxNet(eqx.Module):  # type: ignore[misc]
    """The same for single samples."""

    backbone: Any
    head: Any
    activation: Callable[..., Any]

    def __init__(self) -> None:
        first, second = jax.random.split(jax.random.key(0))
        self.backbone, self.head = eqx.nn.Linear(3, 4, key=first), eqx.nn.Linear(4, 1, key=second)
        self.activation = jnp.tanh

    def __call__(self, x: Any) -> Any:
        """[1]."""
        return self.head(self.activation(self.backbone(x)))


def squared(output: Any, y: Any) -> Any:
    return ((output - y) ** 2).mean()


def batches(rows: tuple[np.ndarray, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    x, y = rows
    return [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(x), BATCH)] * EPOCHS


def functional_loop(apply: Any, params: Tree, make: Make, rows: Any, *, with_value: bool) -> tuple[list[Any], Any]:
    """The loop of Optax's "Getting started"."""
    tx = make(params)

    @jax.jit
    def step(params: Tree, state: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(lambda p: squared(apply(p, x), y))(params)
        updates, state = tx.update(grads, state, params, **({"value": loss} if with_value else {}))
        return optax.apply_updates(params, updates), state, loss

    state, losses = tx.init(params), []
    for x, y in batches(rows):
        params, state, loss = step(params, state, x, y)
        losses.append(float(loss))
    return jax.tree.leaves(params), losses


def by_linen(make: Make, rows: Any, with_value: bool) -> tuple[Any, Any, list[Any], Any]:
    net = LinenNet()
    variables = net.init(jax.random.key(0), rows[0][:1])
    apply = lambda p, x: net.apply({"params": p}, x)  # noqa: E731
    expected, losses = functional_loop(apply, variables["params"], make, rows, with_value=with_value)
    model = Linen(net, variables)
    return model, make(variables["params"]), expected, losses, lambda: jax.tree.leaves(model.variables["params"])


def by_nnx(make: Make, rows: Any, with_value: bool) -> tuple[Any, Any, list[Any], Any]:
    """The loop of "NNX basics"."""
    ours, model = NnxNet(), NnxNet()
    as_pure = getattr(nnx, "as_pure", nnx.pure)  # before Flax 0.12.7, it has the second name alone
    tx = make(as_pure(nnx.state(model, nnx.Param)))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda m: squared(m(x), y))(model)
        optimizer.update(model, grads, **({"value": loss} if with_value else {}))
        return loss

    losses = [float(step(model, optimizer, x, y)) for x, y in batches(rows)]
    leaves = lambda m: jax.tree.leaves(nnx.state(m, nnx.Param))  # noqa: E731
    return ours, make(as_pure(nnx.state(ours, nnx.Param))), leaves(model), losses, lambda: leaves(ours)


def by_equinox(make: Make, rows: Any, with_value: bool) -> tuple[Any, Any, list[Any], Any]:
    """The loop of Equinox's examples."""
    module = EquinoxNet()
    ours = Equinox(module)
    made = make(eqx.filter(module, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model: Any, state: Any, x: Any, y: Any) -> Any:
        loss, grads = eqx.filter_value_and_grad(lambda m: squared(jax.vmap(m)(x), y))(model)
        params = eqx.filter(model, eqx.is_inexact_array)
        updates, state = made.update(grads, state, params, **({"value": loss} if with_value else {}))
        return eqx.apply_updates(model, updates), state, loss

    state, losses = made.init(eqx.filter(module, eqx.is_inexact_array)), []
    tx = make(eqx.filter(module, eqx.is_inexact_array))
    for x, y in batches(rows):
        module, state, loss = step(module, state, x, y)
        losses.append(float(loss))
    leaves = lambda m: jax.tree.leaves(eqx.filter(m, eqx.is_inexact_array))  # noqa: E731
    return ours, tx, leaves(module), losses, lambda: leaves(ours.module)


SYSTEMS = {"linen": by_linen, "nnx": by_nnx, "equinox": by_equinox}


def trained(model: Any, tx: Any, rows: Any, **settings: Any) -> np.ndarray:
    """The losses of epochs."""
    data = aa.FeatureSet.from_dict("d", {"x": rows[0], "y": rows[1]}, ["x"], ["y"])
    optimizer = tx if isinstance(tx, aa.Optimizer) else aa.Optimizer(tx)
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference(), optimizer=optimizer)])
    settings = {"sampler": aa.SimpleSampler(BATCH), "epochs": EPOCHS, **settings}
    phase = aa.TrainPhase("t", data=data, losses=[aa.AppliedLoss("mse", on="net")], **settings)
    return np.asarray(aa.Experiment("e", graph, progress="none").run_phase(phase).loss)


def on_path(choose: Callable[[str], Any]) -> Callable[[Tree], Tree]:
    """A function of a tree that chooses by the path of each leaf."""
    return lambda tree: jax.tree_util.tree_map_with_path(lambda path, _: choose(jax.tree_util.keystr(path)), tree)


def kind_of(path: str) -> str:
    return "frozen" if "backbone" in path else "trained"


def is_matrix(tree: Tree) -> Tree:
    return jax.tree.map(lambda w: w.ndim > 1, tree)


def no_bias(path: str) -> bool:
    return "bias" not in path


def rules() -> dict[str, Any]:
    return {"frozen": optax.set_to_zero(), "trained": optax.adam(0.05)}


EXPONENTIAL = lambda: optax.exponential_decay(0.05, 3, 0.5)  # noqa: E731
RECIPES: dict[str, Make] = {
    "freeze a backbone by a function of paths": lambda p: optax.multi_transform(rules(), on_path(kind_of)),
    # a tree of labels as a function: optax calls everything that can be called, as modules of Equinox
    "freeze a backbone by a tree of labels": lambda p: optax.multi_transform(
        rules(), (lambda labels: lambda _: labels)(on_path(kind_of)(p))
    ),
    "freeze a backbone by partition": lambda p: optax.partition(rules(), on_path(kind_of)),
    "freeze by masked zeros": lambda p: optax.chain(
        optax.adam(0.05), optax.masked(optax.set_to_zero(), on_path(lambda path: "backbone" in path))
    ),
    "freeze by a mask": lambda p: optax.chain(
        optax.sgd(0.1), optax.transforms.freeze(on_path(lambda path: "backbone" in path)(p))
    ),
    "selective_transform": lambda p: optax.transforms.selective_transform(
        optax.adam(0.05), freeze_mask=on_path(lambda path: "backbone" in path)(p)
    ),
    "decay matrices": lambda p: optax.adamw(0.05, weight_decay=0.3, mask=is_matrix),
    "decay no biases, by path": lambda p: optax.adamw(0.05, weight_decay=0.3, mask=on_path(no_bias)),
    "decay no biases, by a tree": lambda p: optax.adamw(0.05, weight_decay=0.3, mask=on_path(no_bias)(p)),
    "rates of layers": lambda p: optax.multi_transform(
        {"frozen": optax.adam(1e-3), "trained": optax.sgd(0.1, momentum=0.9)}, on_path(kind_of)
    ),
    "warm-up, cosine, clipping": lambda p: optax.chain(
        optax.clip_by_global_norm(0.5), optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 6))
    ),
    "gradient accumulation": lambda p: optax.MultiSteps(optax.adam(0.05), every_k_schedule=2),
    "gradient accumulation with a mask": lambda p: optax.MultiSteps(
        optax.adamw(0.05, weight_decay=0.3, mask=on_path(no_bias)), every_k_schedule=2
    ).gradient_transformation(),
    "restarts": lambda p: optax.sgd(
        optax.sgdr_schedule(
            [
                {"init_value": 0.0, "peak_value": 0.1, "decay_steps": 3, "warmup_steps": 1, "end_value": 0.01},
                {"init_value": 0.01, "peak_value": 0.05, "decay_steps": 3, "warmup_steps": 1, "end_value": 0.0},
            ]
        )
    ),
    "exponential decay with a mask": lambda p: optax.adamw(EXPONENTIAL(), weight_decay=0.2, mask=on_path(no_bias)(p)),
}
# What these do depends on shapes or values alone, so that each is always tried with one library.
OTHERS: dict[str, Make] = {
    "lion": lambda p: optax.lion(0.01, weight_decay=0.1, mask=is_matrix),
    "adafactor": lambda p: optax.adafactor(0.05, min_dim_size_to_factor=2, weight_decay_rate=0.01),
    "lamb": lambda p: optax.lamb(0.05, weight_decay=0.1, mask=is_matrix),
    "lars": lambda p: optax.lars(0.5, weight_decay=0.1, weight_decay_mask=is_matrix, trust_ratio_mask=is_matrix),
    "sharpness-aware": lambda p: optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.01)),
    "muon": lambda p: optax.contrib.muon(0.05),
    "prodigy": lambda p: optax.contrib.prodigy(1.0),
    "schedule-free": lambda p: optax.contrib.schedule_free_sgd(0.1, warmup_steps=2),
    "injected hyperparameters": lambda p: optax.inject_hyperparams(optax.adamw)(
        optax.linear_schedule(0.1, 0.01, 6), weight_decay=0.1
    ),
    "injected hyperparameters with a mask": lambda p: optax.inject_hyperparams(optax.adamw, static_args=("mask",))(
        0.05, weight_decay=0.1, mask=on_path(no_bias)
    ),
    "apply_if_finite": lambda p: optax.apply_if_finite(optax.adam(0.05), max_consecutive_errors=3),
    "averages of updates": lambda p: optax.chain(optax.adam(0.05), optax.ema(0.9)),
    "noise": lambda p: optax.noisy_sgd(0.05, key=jax.random.key(0)),
    "adaptive clipping": lambda p: optax.chain(
        optax.adaptive_grad_clip(0.05), optax.sgd(0.1, nesterov=True, momentum=0.9)
    ),
    "centralized gradients": lambda p: optax.chain(optax.centralize(), optax.zero_nans(), optax.rmsprop(0.02)),
    "conditionally_transform": lambda p: optax.chain(
        optax.sgd(0.1), optax.conditionally_transform(optax.scale(0.1), lambda step: step >= 2)
    ),
}
WITH_VALUE: dict[str, Make] = {
    "polyak": lambda p: optax.polyak_sgd(max_learning_rate=0.5),
    "reduce on plateau with labels": lambda p: optax.chain(
        optax.multi_transform(rules(), on_path(kind_of)),
        optax.contrib.reduce_on_plateau(factor=0.5, patience=1, accumulation_size=2),
    ),
}


EVERY = {**RECIPES, **WITH_VALUE, **OTHERS}
CASES = [(recipe, [*SYSTEMS][i % len(SYSTEMS)]) for i, recipe in enumerate(EVERY)]
if os.environ.get("ANYACCEL_TEST_FULL"):  # otherwise a part of the recipes, each with one library
    CASES += [both for both in product({**RECIPES, **WITH_VALUE}, SYSTEMS) if both not in CASES]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("recipe", "system"), CASES)
def test_a_recipe_equals_a_loop_by_hand(rows: Any, recipe: str, system: str) -> None:
    model, tx, expected, losses, leaves = SYSTEMS[system](EVERY[recipe], rows, recipe in WITH_VALUE)
    result = trained(model, tx, rows)
    np.testing.assert_allclose(result, np.reshape(losses, (EPOCHS, -1)).mean(axis=1), rtol=1e-5)
    for value, wanted in zip(leaves(), expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


# -- other ways to give parameters -------------------------------------------------------------------------------------


def linear(params: Any, x: Any) -> Any:
    """Two layers, from a list of pairs."""
    (w1, b1), (w2, b2) = params
    return jnp.tanh(x @ w1 + b1) @ w2 + b2


def layers() -> list[tuple[Any, Any]]:
    draw = np.random.default_rng(1)
    shapes = ((3, 4), (4,)), ((4, 1), (1,))
    return [tuple(jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in layer) for layer in shapes]


TREES: dict[str, tuple[Callable[..., Any], Callable[[], Any], Make]] = {
    "a list of pairs": (
        linear,
        layers,
        lambda p: optax.multi_transform(rules(), [("frozen", "frozen"), ("trained", "trained")]),
    ),
    "a pair": (
        lambda p, x: x @ p[0] + p[1],
        lambda: (jnp.ones((3, 1)), jnp.zeros(1)),
        lambda p: optax.chain(optax.adamw(0.05, weight_decay=0.3, mask=(True, False)), optax.identity()),
    ),
    "one array": (lambda p, x: x @ p, lambda: jnp.ones((3, 1)), lambda p: optax.adamw(0.05, mask=is_matrix)),
    "modules of Haiku": (
        lambda p, x: x @ p["mlp/~/linear_0"]["w"] + p["mlp/~/linear_0"]["b"],
        lambda: {"mlp/~/linear_0": {"w": jnp.ones((3, 1)), "b": jnp.zeros(1)}},
        lambda p: optax.adamw(0.05, weight_decay=0.3, mask={"mlp/~/linear_0": {"w": True, "b": False}}),
    ),
    "variables of Linen": (
        lambda p, x: LinenNet().apply(p, x),
        lambda: LinenNet().init(jax.random.key(0), jnp.ones((1, 3))),
        lambda p: optax.multi_transform(
            rules(), traverse_util.path_aware_map(lambda path, _: "frozen" if "backbone" in path else "trained", p)
        ),
    ),
    "a FrozenDict": (
        lambda p, x: LinenNet().apply(p, x),
        lambda: freeze(LinenNet().init(jax.random.key(0), jnp.ones((1, 3)))),
        lambda p: optax.multi_transform(rules(), freeze({"params": {"backbone": "frozen", "head": "trained"}})),
    ),
}


@pytest.mark.parametrize("kind", TREES)
def test_a_function_gets_the_tree_that_it_was_given(rows: Any, kind: str) -> None:
    apply, create, make = TREES[kind]
    expected, _ = functional_loop(apply, create(), make, rows, with_value=False)
    model = Function(apply, create())
    trained(model, make(create()), rows)
    for value, wanted in zip(jax.tree.leaves(model.tree), expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


def test_a_train_state_goes_on_with_labels(rows: Any) -> None:
    """Its own steps, then ours, then its own again are those of one loop."""
    net = LinenNet()
    params = net.init(jax.random.key(0), rows[0][:1])["params"]
    make: Make = lambda p: optax.multi_transform(rules(), on_path(kind_of)(p))  # noqa: E731
    expected, _ = functional_loop(lambda p, x: net.apply({"params": p}, x), params, make, rows, with_value=False)
    state = TrainState.create(apply_fn=net.apply, params=params, tx=make(params))
    (x, y), *_ = batches(rows)
    grads = jax.grad(lambda p: squared(net.apply({"params": p}, x), y))(params)
    node_model = state.apply_gradients(grads=grads)
    data = aa.FeatureSet.from_dict("d", {"x": rows[0], "y": rows[1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", node_model, data.reference(), optimizer=aa.Optimizer(state.tx))])
    for i in range(1, 3):
        part = aa.FeatureSet.from_dict("d", {"x": rows[0][4 * i :][:4], "y": rows[1][4 * i :][:4]}, ["x"], ["y"])
        phase = aa.TrainPhase("t", data=part, losses=[aa.AppliedLoss("mse", on="net")], sampler=aa.SimpleSampler(4))
        aa.Experiment("e", graph, progress="none").run_phase(phase)
    after = graph["net"].model.train_state
    for x, y in batches(rows)[3:]:
        grads = jax.grad(lambda p, x=x, y=y: squared(net.apply({"params": p}, x), y))(after.params)
        after = after.apply_gradients(grads=grads)
    assert int(after.step) == 6
    for value, wanted in zip(jax.tree.leaves(after.params), expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


def test_each_node_of_a_graph_has_the_tree_of_its_model(rows: Any) -> None:
    """One optimizer of the graph asks for paths of both models."""
    data = aa.FeatureSet.from_dict("d", {"x": rows[0], "y": rows[1]}, ["x"], ["y"])
    seen: list[str] = []

    def labels(tree: Tree) -> Tree:
        seen.append(str(jax.tree.structure(tree)))
        return on_path(kind_of)(tree)

    first = aa.ModelNode("first", Linen(LinenNet()), data.reference())
    last = aa.ModelNode("last", Function(lambda p, x: x * p["w"], {"w": jnp.ones(1)}), first)
    graph = aa.ModelGraph([first, last], aa.Optimizer(optax.multi_transform(rules(), labels)))
    graph.build()
    before = graph.state()
    phase = aa.TrainPhase("t", data=data, losses=[aa.AppliedLoss("mse", on="last")], sampler=aa.SimpleSampler(4))
    aa.Experiment("e", graph, progress="none").run_phase(phase)
    moved = {name: np.abs(graph.state()[name] - before[name]).max() > 0 for name in before if "/parameters/" in name}
    assert {name for name, has_moved in moved.items() if not has_moved} == {
        "first/parameters/backbone.bias",
        "first/parameters/backbone.kernel",
    }
    assert {"PyTreeDef({'w': *})"} < set(seen)


def test_parameter_groups_have_the_tree_with_their_parameters_alone(rows: Any) -> None:
    net = LinenNet()
    variables = net.init(jax.random.key(0), rows[0][:1])
    model = Linen(net, variables)
    seen: list[str] = []

    def mask(tree: Tree) -> Tree:
        seen.append(str(jax.tree.structure(tree)))
        return on_path(no_bias)(tree)

    factory = lambda learning_rate: optax.adamw(learning_rate, weight_decay=0.3, mask=mask)  # noqa: E731
    trained(model, aa.Optimizer(factory, lr=0.05, groups={"head.*": {"lr": 0.01}}), rows)
    expected, _ = functional_loop(
        lambda p, x: net.apply({"params": p}, x),
        variables["params"],
        lambda p: optax.multi_transform(
            {
                name: optax.adamw(rate, weight_decay=0.3, mask=on_path(no_bias))
                for name, rate in (("frozen", 0.05), ("trained", 0.01))
            },
            on_path(kind_of),
        ),
        rows,
        with_value=False,
    )
    for value, wanted in zip(jax.tree.leaves(model.variables["params"]), expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
    assert "PyTreeDef({'backbone': {'bias': None, 'kernel': None}, 'head': {'bias': *, 'kernel': *}})" in seen


def test_a_schedule_reaches_injected_hyperparameters(rows: Any) -> None:
    """`inject_hyperparams` keeps the rate in its state, and reads no other."""
    schedule = aa.Schedule("linear", steps=6, final=0.1)
    losses = [
        trained(Function(linear, layers()), aa.Optimizer(kind, lr=0.1, schedule=schedule), rows)
        for kind in (optax.sgd, optax.inject_hyperparams(optax.sgd))
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)


# -- state -------------------------------------------------------------------------------------------------------------


def test_slots_have_the_names_of_0_1(rows: Any) -> None:
    """Then parameters came as a flat dict, and checkpoints have these names."""
    labels = on_path(kind_of)
    kinds: dict[str, tuple[Any, Any]] = {
        "dicts": (Linen(LinenNet()), optax.adam(0.1)),
        "lists": (Function(linear, layers()), optax.multi_transform({"a/b": optax.adam(0.1)}, [("a/b",) * 2] * 2)),
        "labels": (Linen(LinenNet()), optax.multi_transform(rules(), labels)),
        "boxes": (NnxNet(), optax.chain(optax.trace(0.9), optax.adafactor(0.1))),
        "by parameter": (Function(linear, layers()), by_parameter()),
    }
    names = {}
    for kind, (model, tx) in kinds.items():
        data = aa.FeatureSet.from_dict("d", {"x": rows[0], "y": rows[1]}, ["x"], ["y"])
        graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference(), optimizer=aa.Optimizer(tx))])
        phase = aa.TrainPhase("t", data=data, losses=[aa.AppliedLoss("mse", on="net")])
        aa.Experiment("e", graph, progress="none").run_phase(phase)
        found = (name.removeprefix("net/optimizer/") for name in graph.state() if name.startswith("net/optimizer/"))
        names[kind] = sorted(found)
    both = ("backbone.bias", "backbone.kernel", "head.bias", "head.kernel")
    pairs = ("0.0", "0.1", "1.0", "1.1")
    inner = "inner_states.{}.inner_state.0."
    assert names["dicts"] == sorted(["0.count/backbone.bias", *(f"0.{m}/{n}" for m in ("mu", "nu") for n in both)])
    a = inner.format("a|b")
    assert names["lists"] == sorted([f"{a}count/0.0", *(f"{a}{m}/{n}" for m in ("mu", "nu") for n in pairs)])
    t = inner.format("trained")
    assert names["labels"] == sorted(
        [f"{t}count/backbone.bias", *(f"{t}{m}/{n}" for m in ("mu", "nu") for n in both[2:])]
    )
    flat = dict.fromkeys(both, jnp.ones((4, 4)))
    assert names["boxes"] == sorted(names_of_0_1(kinds["boxes"][1].init(flat), flat))
    assert "1.0.v_row/head.kernel" in names["boxes"]
    assert names["by parameter"] == sorted([*(f"m/{n}" for n in pairs), *(f"v/{n}" for n in pairs)])


def names_of_0_1(state: Any, parameters: Tree) -> list[str]:
    """The names of slots of a state over a flat dict."""
    names = []
    for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]:
        at = next((i for i in reversed(range(len(path))) if getattr(path[i], "key", None) in parameters), None)
        rest = path if at is None else (*path[:at], *path[at + 1 :])
        slot = jax.tree_util.keystr(rest, simple=True, separator=".").replace("/", "|")
        names.append(f"{slot}/{min(parameters) if at is None else path[at].key}")
    return names


def by_parameter() -> Any:
    """A transformation that keeps a dict for each parameter."""

    def init(params: Any) -> Any:
        return jax.tree.map(lambda p: {"m": jnp.zeros_like(p), "v": jnp.zeros_like(p)}, params)

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        return jax.tree.map(lambda g: -0.1 * g, grads), state

    return optax.GradientTransformation(init, update)


def test_a_random_key_of_an_optimizer_is_saved(rows: Any) -> None:
    data = aa.FeatureSet.from_dict("d", {"x": rows[0], "y": rows[1]}, ["x"], ["y"])

    def graph() -> Any:
        tx = optax.noisy_sgd(0.05, key=jax.random.key(0))
        node = aa.ModelNode("net", Function(linear, layers()), data.reference(), optimizer=aa.Optimizer(tx))
        return aa.ModelGraph([node])

    def train(target: Any, epochs: int) -> Any:
        losses = [aa.AppliedLoss("mse", on="net")]
        phase = aa.TrainPhase("t", data=data, losses=losses, sampler=aa.SimpleSampler(4), epochs=epochs)
        aa.Experiment("e", target, progress="none").run_phase(phase)
        return target.state()

    whole, half = train(graph(), 2), train(graph(), 1)
    after = train(graph().load_state(half), 1)
    for name, value in whole.items():
        if "/parameters/" in name:
            np.testing.assert_allclose(after[name], value, rtol=1e-6)


# -- what is refused ---------------------------------------------------------------------------------------------------


def refused(rows: Any, model: Any, tx: Any) -> str:
    with pytest.raises(SpecError) as caught:
        trained(model, tx, rows)
    return str(caught.value)


def test_labels_of_another_tree_are_refused_and_the_hint_works(rows: Any) -> None:
    net = LinenNet()
    variables = net.init(jax.random.key(0), rows[0][:1])
    message = refused(rows, Linen(net, variables), optax.multi_transform(rules(), on_path(kind_of)(variables)))
    assert "they are variables['params'] of the module, with the leaves ['backbone']['bias']" in message
    assert "pass labels and masks as functions of such a tree, or create them with jax.tree.map from" in message
    labels = on_path(kind_of)
    results = [
        trained(Linen(net, variables), optax.multi_transform(rules(), given), rows)
        for given in (labels, labels(variables["params"]))
    ]
    np.testing.assert_array_equal(*results)
    flat = {name: name for name in ("backbone.bias", "backbone.kernel")}
    assert "variables['params']" in refused(rows, Linen(net, variables), optax.multi_transform(rules(), flat))
    assert "eqx.filter(module, eqx.is_inexact_array)" in refused(
        rows, EquinoxNet(), optax.adamw(0.1, mask={"backbone": True})
    )
    assert "nnx.state(module, nnx.Param)" in refused(rows, NnxNet(), optax.adamw(0.1, mask={"body": True}))
    assert "the pytree of parameters that Function was given" in refused(
        rows, Function(linear, layers()), optax.adamw(0.1, mask={"body": True})
    )


def test_labels_that_can_be_called_are_refused_and_the_hint_works(rows: Any) -> None:
    labels = on_path(kind_of)(eqx.filter(EquinoxNet(), eqx.is_inexact_array))
    message = refused(rows, EquinoxNet(), optax.multi_transform(rules(), labels))
    assert "if the labels are in a callable module, such as an Equinox module, pass lambda _: labels" in message
    model = Equinox(EquinoxNet())
    before = np.array(model.parameters["backbone.weight"])
    trained(model, optax.multi_transform(rules(), lambda _: labels), rows)
    np.testing.assert_array_equal(model.parameters["backbone.weight"], before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: optax.lookahead(optax.sgd(0.1), 5, 0.5), "needs other parameters than the pytree of parameters that"),
        (lambda: optax.lbfgs(), "needs more than gradients, state, parameters and the value of the loss"),
    ],
    ids=["lookahead", "lbfgs"],
)
def test_an_optimizer_with_another_update_is_refused_before_the_first_step(rows: Any, make: Any, text: str) -> None:
    model = Function(linear, layers())
    message = refused(rows, model, make())
    assert text in message and "Hint: use an optimizer that" in message
    for value, before in zip(jax.tree.leaves(model.tree), jax.tree.leaves(layers()), strict=True):
        np.testing.assert_array_equal(value, before)


# -- values that compiled steps have read ------------------------------------------------------------------------------


class Listening(aa.Callback):
    """Hears every step."""

    def step_end(self, run: aa.Run) -> None:
        """Nothing."""


@pytest.mark.parametrize("scheduled", [True, False])
def test_what_a_schedule_changes_itself_while_it_is_traced_is_no_change(rows: Any, scheduled: bool) -> None:
    """`optax.cosine_decay_schedule` makes a float of its `decay_steps`, with a mask in the first step alone."""
    rate = optax.cosine_decay_schedule(0.05, 6) if scheduled else 0.05
    make: Make = lambda p: optax.adamw(rate, weight_decay=0.1, mask=on_path(no_bias)(p))  # noqa: E731
    net = LinenNet()
    variables = net.init(jax.random.key(0), rows[0][:1])
    expected, _ = functional_loop(
        lambda p, x: net.apply({"params": p}, x), variables["params"], make, rows, with_value=False
    )
    model = Linen(net, variables)
    trained(model, make(variables["params"]), rows, callbacks=[Listening()])
    for value, wanted in zip(jax.tree.leaves(model.variables["params"]), expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


def counted(rate: Any) -> Any:
    """A transformation whose update changes a value that it reads, as a cache does."""
    memory = {"calls": 0}

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        memory["calls"] = min(memory["calls"] + 1, 3)
        return jax.tree.map(lambda g: -rate["rate"] * g, grads), state

    return optax.GradientTransformation(lambda p: (), update)


def test_what_an_update_changes_itself_is_no_change_and_what_a_callback_changes_is_one(rows: Any) -> None:
    trained(Function(linear, layers()), counted({"rate": 0.05}), rows, callbacks=[Listening()])
    rate = {"rate": 0.05}

    class Changing(aa.Callback):
        def step_end(self, run: aa.Run) -> None:
            rate["rate"] /= 2

    with pytest.raises(aa.errors.CompileError, match=r"rate\['rate'\] of the optimizer .* changed between steps"):
        trained(Function(linear, layers()), counted(rate), rows, callbacks=[Changing()])
