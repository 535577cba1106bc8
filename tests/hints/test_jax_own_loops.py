"""Hints of own loops of JAX."""

from __future__ import annotations

import collections
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")  # read when JAX is imported

jax = pytest.importorskip("jax")
pytest.importorskip("anyaccel_jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp  # noqa: E402

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
Y = X[:, :1].copy()


class Batches:
    def __iter__(self) -> Iterator[Any]:
        yield from ((X[i : i + 16], Y[i : i + 16]) for i in range(0, 24, 16))


def params_of(n_in: int = 3) -> dict[str, Any]:
    return {"w": jnp.ones((n_in, 1)) / 3}


def loss(params: Any, x: Any, y: Any) -> Any:
    return jnp.mean((x @ params["w"] - y) ** 2)


def loop_of(**settings: Any) -> Any:
    make: Any = aa.Loop
    return make("cpu", framework="jax", **settings)


def step_of(loop: Any) -> Any:
    def step(state: Any, x: Any, y: Any) -> Any:
        value, grads = loop.value_and_grad(loss)(state, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value

    return step


def test_settings(hint: Any) -> None:
    with hint("write precision='bf16-mixed'"):
        loop_of(precision="fp16-mixed")
    assert loop_of(precision="bf16-mixed").precision == "bf16-mixed"
    with hint("write precision='bf16-mixed', or cast the parameters before prepare()"):
        loop_of(precision="bf16")
    assert loop_of(precision="bf16-mixed").step == 0
    low = jax.tree.map(lambda array: array.astype(jnp.bfloat16), params_of())
    assert loop_of().prepare(low)["w"].dtype == jnp.bfloat16
    with hint("write options={'mesh': mesh}"):
        loop_of(options={"bucket_cap_mb": 1})
    mesh = jax.make_mesh((2,), ("data",))
    assert loop_of(options={"mesh": mesh}).mesh is mesh


def test_words_of_other_loops(hint: Any) -> None:
    loop, params = loop_of(), params_of()
    with hint("compute gradients with loop.value_and_grad(loss)(params, x, y), inside the step"):
        loop.backward  # noqa: B018
    assert loop.value_and_grad(loss)(params, X, Y)[0] > 0
    with hint("precision= casts inside loop.value_and_grad(loss)"):
        loop.autocast  # noqa: B018
    assert loop_of(precision="bf16-mixed").value_and_grad(loss)(params, X, Y)[0] > 0
    for word in ("accumulate", "no_backward_sync"):
        with hint("write loop.value_and_grad(loss, accumulate=4)"):
            getattr(loop, word)
    for word in ("unwrap_model", "save_model"):
        with pytest.raises(AttributeError, match="Hint: use the model itself: it is not wrapped"):
            getattr(loop, word)
    assert loop.value_and_grad(loss, accumulate=4)(params, X, Y)[0] > 0
    with hint(
        "clip in the optimizer: optax.chain(optax.clip_by_global_norm(1.0), ...); gradients are already averaged over "
        "all processes"
    ):
        loop.clip_grad_norm_  # noqa: B018
    assert optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)).init(params)


def test_states_and_steps(hint: Any, tmp_path: Path) -> None:
    loop = loop_of()
    with hint("write state, loader = loop.prepare(state, loader)"):
        loop.state  # noqa: B018
    state, loader = loop.prepare(params_of(), Batches())
    assert loop.state is state
    with hint("write state, loader = loop.prepare(state, loader)"):
        loop.prepare(object())
    with hint("write loop.state = state"):
        loop.state = {}
    loop.state = state
    with hint(
        "prepare each state only once, and use the result of prepare(); copy it for a second one: "
        "jax.tree.map(jnp.copy, state)"
    ):
        loop.prepare(state)
    other = loop_of()
    assert other.prepare(other.prepare(params_of()) and jax.tree.map(jnp.copy, state))
    with hint("use loader.mask inside the loop"):
        loader.mask  # noqa: B018
    assert [int(loader.mask.sum()) for _ in loader] == [16, 8]
    with hint("compile the step: step = loop.compile(step); or set each new state: loop.state = state"):
        loop.save(tmp_path / "a")
    loop.state = state
    loop.save(tmp_path / "a")
    step = loop.compile(step_of(loop))
    for x, y in loader:
        state, value = step(state, x, y)
    loop.save(tmp_path / "a")
    loop.load(tmp_path / "a")
    with hint("use the state of the checkpoint: state = loop.state"):
        step(state, X, Y)
    state = loop.state
    kept = jax.tree.map(jnp.copy, state)
    new, value = step(state, X, Y)
    with hint(
        "continue with the result of the step: state, value = step(state, x, y); or keep a copy: "
        "jax.tree.map(jnp.copy, state)"
    ):
        step(state, X, Y)
    state, value = step(new, X, Y)
    assert step(jax.tree.map(jnp.copy, kept), X, Y)[1] > value
    with hint("write state = loop.prepare(state), and step(state, x, y)"):
        step_of_other = loop_of().compile(step_of(loop_of()))
        step_of_other(state, X, Y)
    other = loop_of()
    state = other.prepare(params_of())
    step = other.compile(step_of(other))
    assert step(state, X, Y)[1] > 0
    evaluate = lambda state: loss(state, X, Y)  # noqa: E731
    state = other.state
    with hint("compile functions that only evaluate with jax.jit(evaluate)"):
        other.compile(evaluate)(state)
    assert jax.jit(evaluate)(state) > 0


def test_losses(hint: Any) -> None:
    loop, params = loop_of(), params_of()
    rows = lambda params, x, y: ((x @ params["w"] - y) ** 2)[:, 0]  # noqa: E731
    with hint("reduce it, for example with jnp.mean(); for additional outputs, use value_and_grad(loss, has_aux=True)"):
        loop.value_and_grad(lambda params, x, y: x @ params["w"])(params, X, Y)
    assert loop.value_and_grad(lambda params, x, y: jnp.mean(x @ params["w"]))(params, X, Y)
    both = lambda params, x, y: (loss(params, x, y), jnp.float32(1))  # noqa: E731
    assert loop.value_and_grad(both, has_aux=True)(params, X, Y)[0][1] == 1
    mask = X[:, 0] > 0
    with hint("count with mask.astype(int).sum(); if it is not a count, use value_and_grad(loss, has_aux=True)"):
        loop.value_and_grad(both)(params, X, Y)
    counted = lambda params, x, y: ((rows(params, x, y) * mask).sum(), mask.astype(int).sum())  # noqa: E731
    assert loop.value_and_grad(counted)(params, X, Y)[0] > 0
    assert loop.value_and_grad(both, has_aux=True)(params, X, Y)[0][1] == 1
    with hint("return [rows] from the loss, and let value_and_grad() compute the mean"):
        loop.value_and_grad(loss)(params, X, Y, mask=mask)
    assert loop.value_and_grad(rows)(params, X, Y, mask=mask)[0] > 0
    with hint("leave accumulate out"):
        loop.value_and_grad(lambda params: params["w"].sum(), accumulate=2)(params)
    assert loop.value_and_grad(lambda params: params["w"].sum())(params)[0] > 0
    with hint("write accumulate=4"):
        loop.value_and_grad(loss, accumulate=0)
    assert loop.value_and_grad(loss, accumulate=4)(params, X, Y)[0] > 0
    with hint("leave accumulate out, or compute it separately"):
        loop.value_and_grad(both, accumulate=2, has_aux=True)
    mixed = loop_of(precision="bf16-mixed")
    state = mixed.prepare(params_of())
    with hint("write value, grads = loop.value_and_grad(loss)(params, x, y), or leave precision out"):
        mixed.compile(lambda state: state)(state)
    step = mixed.compile(lambda state: (state, mixed.value_and_grad(loss)(state, X, Y)[0]))
    value = step(state)[1]
    assert value > 0
    plain = loop_of()
    assert plain.compile(lambda state: state)(plain.prepare(params_of()))


def test_padding(hint: Any) -> None:
    loop = loop_of(options={"mesh": jax.make_mesh((2,), ("data",))})
    params, loader = loop.prepare(params_of(), Batches(), batch="padded")
    with hint(
        "write value, grads = loop.value_and_grad(loss)(params, x, y, mask=loader.mask), or leave batch='padded' out"
    ):
        list(loader)
    rows = lambda params, x, y: ((x @ params["w"] - y) ** 2)[:, 0]  # noqa: E731
    for x, y in loader:
        value, _ = jax.jit(loop.value_and_grad(rows))(params, x, y, mask=loader.mask)
    np.testing.assert_allclose(value, rows(params_of(), X[16:], Y[16:]).mean(), rtol=1e-6)
    assert len(list(loop.prepare(Batches(), batch="global"))) == 2  # and not batch='padded'


LATE = """
import os
os.environ["JAX_PLATFORMS"] = "cpu"
import anyaccel as aa, jax.numpy as jnp
jnp.zeros(1)
aa.Loop(framework='jax')
"""
SEVERAL = """
import os
os.environ["JAX_PLATFORMS"] = "cpu"
import anyaccel as aa, jax
from anyaccel.errors import AnyaccelError

loop = aa.Loop(framework='jax')
for call in (
    lambda: aa.Loop(framework='jax', sync_batchnorm=False),
    lambda: loop.prepare(jax.random.normal(jax.random.key(loop.process_index), (3,))),
):
    try:
        call()
    except AnyaccelError as error:
        loop.print(error)
print(aa.Loop(framework='jax').prepare(jax.random.normal(jax.random.key(0), (3,))).shape)
"""


@pytest.mark.slow
def test_several_processes(hint: Any, tmp_path: Path) -> None:
    def run(source: str) -> str:
        script = tmp_path / "script.py"
        script.write_text(source)
        command = [sys.executable, "-m", "anyaccel", "run", "--replicas", "2", str(script)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        return " ".join((done.stdout + done.stderr).split())

    with hint("create the Loop first, at the top of the script: loop = aa.Loop(framework='jax')") as printed:
        printed.text = run(LATE)
    followed = run(SEVERAL)  # loop = aa.Loop(framework='jax') comes first
    with hint("leave sync_batchnorm out") as printed:
        printed.text = followed
    with hint("create it from the same key in all processes: jax.random.key(0)") as printed:
        printed.text = followed
    assert "(3,)" in followed  # jax.random.key(0), the second Loop(framework='jax')


def test_a_list_of_batches(hint: Any) -> None:
    batches = list(Batches())
    loop = loop_of(accumulate=2)
    state, given = loop.prepare(params_of(), batches)
    with hint("prepare batches in another iterable: loop.prepare(state, collections.deque(batches))"):
        loop.compile(step_of(loop))(state, *given[0])
    with hint("prepare batches in another iterable: loop.prepare(state, collections.deque(batches))"):
        loop.compile(lambda state, batch: step_of(loop)(state, *batch))(state, given[0])
    loop = loop_of(accumulate=2)
    state, loader = loop.prepare(params_of(), collections.deque(batches))
    step = loop.compile(step_of(loop))
    for x, y in loader:
        state, value = step(state, x, y)
    assert loop.step == 1, "an update over the two batches"
    whole = jax.value_and_grad(loss)(params_of(), X, Y)
    np.testing.assert_allclose(value, whole[0], rtol=1e-5)
    np.testing.assert_allclose(state["w"], params_of()["w"] - 0.1 * whole[1]["w"], rtol=1e-5)
    loop = loop_of()
    layers = loop.prepare([params_of(), {"w": jnp.ones((1, 1))}])
    (new, _) = loop.compile(lambda layers, x: ([layers[0], layers[1]], x))(layers, X)
    assert len(new) == 2, "a list of layers is a state"
