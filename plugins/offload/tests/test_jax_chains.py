"""Chains whose parameters rest in page-locked host memory: values and losses of resident ones, two slots, refusals."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from anyaccel.errors import AnyaccelError, CapabilityError, ConfigError
from anyaccel_offload import jax as big_models
from anyaccel_offload.jax import HOST, OffloadedChain

DEPTH, WIDTH = 12, 24
BLOCK = 4 * (WIDTH * WIDTH + WIDTH)


def layer(p: Any, x: Any) -> Any:
    return x + jnp.tanh(x @ p["w"] + p["b"])


def mse(y: Any, target: Any) -> Any:
    return jnp.mean((y - target) ** 2)


def weights() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {"w": rng.normal(size=(WIDTH, WIDTH)).astype("float32") / WIDTH, "b": np.zeros(WIDTH, "float32")}
        for _ in range(DEPTH)
    ]


def whole(trees: Any, x: Any) -> Any:
    for p in trees:
        x = layer(p, x)
    return x


X, Y = (np.random.default_rng(i).normal(size=(8, WIDTH)).astype("float32") for i in (1, 2))


def kinds(chain: OffloadedChain) -> list[str]:
    return [p["w"].sharding.memory_kind for p in chain.parameters]


@pytest.mark.parametrize("memory", [None, 5 * BLOCK, "1MB"])
def test_a_chain_computes_what_the_resident_one_does(memory: Any) -> None:
    given = weights()
    chain = OffloadedChain(layer, given, max_memory=memory)
    for p in given:
        p["w"][:] = 0  # the arrays were taken, and are not looked at again
    np.testing.assert_allclose(chain(X), jax.jit(whole)(weights(), X), rtol=1e-5, atol=1e-6)
    resting = {None: DEPTH, 5 * BLOCK: DEPTH - 3, "1MB": 0}[memory]
    assert kinds(chain).count(HOST) == resting  # beside the two slots three have room
    assert (chain.plan is None) == (memory is None)


@pytest.mark.parametrize("memory", [None, 4 * BLOCK])
def test_fifty_steps_of_adam_have_the_losses_of_resident_training(memory: Any) -> None:
    adam = optax.adam(1e-2)
    chain = OffloadedChain(layer, weights(), max_memory=memory)
    states = chain.map(adam.init)

    def step(p: Any, g: Any, s: Any) -> Any:
        updates, s = adam.update(g, s, p)
        return optax.apply_updates(p, updates), s

    trees: Any = weights()
    state = adam.init(trees)

    @jax.jit
    def resident(trees: Any, state: Any) -> Any:
        value, grads = jax.value_and_grad(lambda t: mse(whole(t, X), Y))(trees)
        updates, state = adam.update(grads, state, trees)
        return value, optax.apply_updates(trees, updates), state

    for _ in range(50):
        value, grads = chain.value_and_gradients(mse, X, Y)
        (states,) = chain.update(step, grads, states)
        expected, trees, state = resident(trees, state)
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-6)
    assert float(value) < 0.5
    for rests, *others in zip(kinds(chain), grads, states, strict=True):
        assert all(leaf.sharding.memory_kind == rests for leaf in jax.tree.leaves(others))


def test_at_most_two_blocks_are_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = OffloadedChain(layer, weights())
    chain(X)
    put, there = jax.device_put, []

    def on_device() -> int:
        live = (array for array in jax.live_arrays() if array.shape == (WIDTH, WIDTH))
        return sum(array.sharding.memory_kind != HOST for array in live)

    def counting(value: Any, where: Any) -> Any:
        made = put(value, where)
        there.append(on_device())
        return made

    before = on_device()
    monkeypatch.setattr(jax, "device_put", counting)
    chain(X)
    assert len(there) == 1 + DEPTH  # the input, and each block once
    assert [each - before for each in there] == [0, 1, *[2] * (DEPTH - 1)]  # the next comes while one computes


def test_threads_compute_the_right_values() -> None:
    chain, wrong = OffloadedChain(layer, weights()), []
    inputs = [X * i for i in range(4)]
    expected = [np.asarray(chain(x)) for x in inputs]

    def requests(i: int) -> None:
        wrong.extend(i for _ in range(10) if not np.array_equal(chain(inputs[i]), expected[i]))

    threads = [threading.Thread(target=requests, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_an_error_in_a_block_leaves_the_chain_as_it_was() -> None:
    chain = OffloadedChain([layer] * (DEPTH - 1) + [lambda p, x: x @ jnp.ones((3, 3))], weights())
    for call in (lambda: chain(X), lambda: chain.value_and_gradients(mse, X, Y)):
        with pytest.raises(TypeError, match="dot_general"):
            call()
    assert kinds(chain) == [HOST] * DEPTH


def test_a_device_without_page_locked_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(big_models, "memory_kinds", lambda device: ["device"])
    with pytest.raises(CapabilityError, match=r"has no memory of kind 'pinned_host'.*Available: device") as raised:
        OffloadedChain(layer, weights())
    assert raised.value.hint


@pytest.mark.parametrize(
    "function", [lambda p, g: None, lambda p, g: p["w"], lambda p, g: jax.tree.map(lambda a: a.astype("bfloat16"), p)]
)
def test_an_update_that_gives_no_parameters_changes_nothing(function: Any) -> None:
    chain = OffloadedChain(layer, weights())
    before = chain(X)
    with pytest.raises(ConfigError, match="update returns parameters of another tree, shape or dtype for block 0"):
        chain.update(function, chain.parameters)
    np.testing.assert_array_equal(chain(X), before)


def test_parameters_may_be_a_tuple() -> None:
    pairs = [(each["w"], each["b"]) for each in weights()]
    chain = OffloadedChain(lambda pair, x: layer({"w": pair[0], "b": pair[1]}, x), pairs)
    with pytest.raises(ConfigError, match=r"Hint: .*\(PARAMETERS, \.\.\.\)"):
        chain.update(lambda pair: (pair[0], pair[1]))
    assert chain.update(lambda pair: (pair,)) == []
    np.testing.assert_array_equal(chain(X), OffloadedChain(layer, weights())(X))


REFUSED: list[tuple[Any, str]] = [
    (lambda: OffloadedChain(layer, []), r"parameters=\[\] is not a list with an item for each block"),
    (lambda: OffloadedChain([layer], weights()), "there are 1 functions and parameters for 12 blocks"),
    (lambda: OffloadedChain(["layer"] * DEPTH, weights()), "is not a list of functions"),
    (lambda: OffloadedChain(layer, [{"w": 3}]), r"\['w'\] of block 0 is a int, not an array"),
    (lambda: OffloadedChain(layer, [{"w": np.zeros(3)}]), "float64"),
    (lambda: OffloadedChain(layer, [{"key": jax.random.key(0)}]), r"\['key'\] of block 0 has dtype key<"),
    (lambda: OffloadedChain(layer, weights(), device="cpu"), "device='cpu' is not a device of JAX"),
    (lambda: OffloadedChain(layer, weights(), max_memory="20 apples"), "is not a size"),
    (lambda: OffloadedChain(layer, weights(), max_memory=100), "the model does not fit"),
    (lambda: OffloadedChain(layer, weights()).map(jnp.sum, [1]), "is not lists of 12 items"),
    (
        lambda: OffloadedChain(layer, [{"w": np.zeros(3, "int32")}]).value_and_gradients(mse, X, Y),
        r"parameter \['w'\] of block 0 is int32, which has no gradient",
    ),
]


@pytest.mark.parametrize(("call", "says"), REFUSED)
def test_what_cannot_be_is_refused_with_what_to_do(call: Any, says: str) -> None:
    with pytest.raises(AnyaccelError, match=says) as raised:
        call()
    assert raised.value.hint
