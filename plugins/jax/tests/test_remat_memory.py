"""What plans say that `remat` saves, beside the residuals that JAX prints of a function by hand."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from jax.ad_checkpoint import print_saved_residuals

import anyaccel as aa
from anyaccel_jax import Function, SequentialMLP

ROWS, WIDTH = 16, 12
X = np.random.default_rng(0).normal(size=(3 * ROWS, WIDTH)).astype("float32")
RESIDUAL = re.compile(r"(\w+)\[([\d,]*)\] (.*)")


class Attention(linen.Module):
    """Two blocks of a transformer, over rows as sequences."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.Dense(8)(x[..., None])
        for _ in range(2):
            x = x + linen.MultiHeadDotProductAttention(num_heads=2)(linen.LayerNorm()(x))
            x = x + linen.Dense(8)(linen.gelu(linen.Dense(16)(linen.LayerNorm()(x))))
        return linen.Dense(1)(x.mean(1))


class Norm(nnx.Module):
    """With running statistics and dropout."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first, self.last = nnx.Linear(WIDTH, 16, rngs=rngs), nnx.Linear(16, 1, rngs=rngs)
        self.norm, self.drop = nnx.BatchNorm(16, rngs=rngs), nnx.Dropout(0.2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(self.drop(jax.nn.tanh(self.norm(self.first(x)))))


def planned(*models: Any, remat: str | None = "blocks", **settings: Any) -> aa.Plan:
    data = aa.FeatureSet.from_dict("d", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    nodes = [aa.ModelNode("n0", models[0], data.reference(), remat=remat)]
    nodes += [aa.ModelNode(f"n{i}", model, f"n{i - 1}", remat=remat) for i, model in enumerate(models) if i]
    losses = [aa.AppliedLoss("mse", on=nodes[-1].label)]
    phase = aa.TrainPhase("t", data="all", losses=losses, **{"batch_size": ROWS, **settings})
    return aa.Experiment("e", aa.ModelGraph(nodes, "adam"), progress="none").plan(phase)


def printed(capsys: pytest.CaptureFixture[str], function: Any, *arguments: Any) -> int:
    """Bytes of the residuals that JAX prints, but for the arguments and constants of a function."""
    capsys.readouterr()
    print_saved_residuals(function, *arguments)
    total = 0
    for line in capsys.readouterr().out.splitlines():
        dtype, shape, origin = RESIDUAL.match(line).groups()  # type: ignore[union-attr]
        if not origin.startswith(("from the argument", "from a constant", "from a literal")):
            size = {"f32": 4, "i32": 4, "u32": 4, "bool": 1, "bf16": 2}[dtype]
            total += size * int(np.prod([int(n) for n in shape.split(",") if n], dtype=int))
    return total


def test_activations_are_outputs_and_the_residuals_that_jax_prints(capsys: pytest.CaptureFixture[str]) -> None:
    module = Attention()
    parameters = module.init(jax.random.key(0), jnp.ones((1, WIDTH)))["params"]
    (activations,) = planned(module).activations
    expected = printed(capsys, lambda p, x: module.apply({"params": p}, x), parameters, X[:ROWS])
    assert activations.rows == ROWS and activations.gap == ""
    assert activations.without_remat == expected + ROWS * 1 * 4
    assert activations.kept == ROWS * 1 * 4
    again = jax.checkpoint(lambda p, x: module.apply({"params": p}, x))
    assert printed(capsys, again, parameters, X[:ROWS]) == 0


def test_compiled_code_gives_as_much_from_its_forward_to_its_backward_pass() -> None:
    """XLA's own figure of what a compiled forward pass gives out: outputs and residuals."""

    def forward(parameters: Any, x: Any) -> Any:
        return jnp.tanh(jnp.sin(x @ parameters["w"]) @ parameters["v"])

    parameters = {"w": jnp.ones((WIDTH, 32)), "v": jnp.ones((32, 1))}
    (activations,) = planned(Function(lambda p, x: forward(p, x), parameters)).activations
    x = X[:ROWS]
    for function, figure in ((forward, activations.without_remat), (jax.checkpoint(forward), activations.kept)):
        compiled = jax.jit(lambda p, f=function: jax.vjp(lambda p: f(p, x), p)).lower(parameters).compile()
        given = compiled.memory_analysis().output_size_in_bytes
        held = sum(each.nbytes for each in parameters.values())
        assert figure <= given <= figure + held + x.nbytes + 256  # which may be among what is given


def test_each_node_of_a_chain_has_its_own_figure_in_any_precision() -> None:
    for precision in (None, "bf16-mixed"):
        first, second = planned(Norm(), SequentialMLP((1,), n_layers=3), precision=precision).activations
        assert (first.node, second.node) == ("n0", "n1")
        assert first.kept == second.kept == ROWS * 4
        assert first.saved > ROWS * 16 * 2 and second.saved > ROWS * 16 * 2  # type: ignore[operator]


def test_nothing_is_shown_without_remat_and_values_stay() -> None:
    model = Norm()
    before = jax.tree.map(jnp.array, nnx.state(model, nnx.Param, nnx.BatchStat))
    assert planned(model, remat=None).activations == ()
    assert planned(model).activations[0].kept == ROWS * 4
    after = nnx.state(model, nnx.Param, nnx.BatchStat)
    assert all(map(jnp.array_equal, jax.tree.leaves(before), jax.tree.leaves(after)))


def test_measured_steps_have_activations() -> None:
    class Watch(aa.Callback):
        def after_loading(self, run: Any) -> None:
            self.stats = run.measure_step()

    watch = Watch()
    data = aa.FeatureSet.from_dict("d", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("n0", SequentialMLP((1,)), data.reference())], "adam")
    losses = [aa.AppliedLoss("mse", on="n0")]
    graph.run(aa.TrainPhase("t", data="all", losses=losses, batch_size=ROWS, callbacks=[watch]))
    assert watch.stats.nodes[0].activations > ROWS * 16 * 4
    assert "does not count operations" in watch.stats.not_covered["flops_per_step"]
