"""Mistakes of a first day with a model of Flax: what is said, and that obeying its hint works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import anyaccel as aa

linen = pytest.importorskip("flax.linen")

RNG = np.random.default_rng(0)
X, CLASSES = RNG.standard_normal((60, 4)).astype("float32"), np.arange(60) % 3


def net_with(call: Callable[..., Any]) -> Any:
    return type("Mine", (linen.Module,), {"__call__": linen.compact(call)})()


def data(*features: str) -> aa.FeatureSet:
    names = list(features or ("x",))
    return aa.FeatureSet.from_dict("data", {**dict.fromkeys(names, X), "y": CLASSES}, names, ["y"])


def run(model: Any, features: Any = None) -> Any:
    feed = data().reference() if features is None else features
    losses = [aa.AppliedLoss("cross_entropy", on="net")]
    graph = aa.ModelGraph([aa.ModelNode("net", model, feed)], "adam")
    return aa.Experiment("e", graph, progress="none").run_phase(aa.TrainPhase("t", data="all", losses=losses))


def with_two_inputs() -> Any:
    two = data("a", "b")
    return run(net_with(lambda self, u, v: linen.Dense(3)(u + v)), [two.reference("a"), two.reference("b")])


def good() -> Any:
    return run(net_with(lambda self, x: linen.Dense(3)(x)))


ROWS: dict[str, tuple[Callable[[], Any], str, Callable[[], Any]]] = {
    "the class of a module": (
        lambda: run(linen.Dense),
        r"is the class Dense\. Hint: create one: Dense\(",
        lambda: run(linen.Dense(3)),
    ),
    "parameters in place of a model": (
        lambda: run({"params": {}}),
        r"is a dict.*Hint: if this is the state of a model, create the model",
        good,
    ),
    "no return": (
        lambda: run(net_with(lambda self, x: None)),
        r"the model returned None.*Hint: end its forward, call or __call__ with `return",
        good,
    ),
    "an attribute that is not there": (
        lambda: run(net_with(lambda self, x: linen.Dense(3)(x).view_as(x))),
        r"raised AttributeError in <lambda>, line \d+.*view_as\. Hint: fix the model's code",
        good,
    ),
    "an input too few": (
        lambda: run(net_with(lambda self, u, v: linen.Dense(3)(u))),
        r"missing 1 required positional argument: 'v'\. Hint: pass every argument of its call",
        with_two_inputs,
    ),
    "a decision by values": (
        lambda: run(net_with(lambda self, x: linen.Dense(3)(x) if x.sum() > 0 else linen.Dense(3)(-x))),
        r"Hint: use jax\.numpy\.where or jax\.lax\.cond for conditions",
        lambda: run(net_with(lambda self, x: linen.Dense(3)(jnp.where(x.sum() > 0, x, -x)))),
    ),
    "a function of NumPy": (
        lambda: run(net_with(lambda self, x: np.tanh(np.asarray(linen.Dense(3)(x))))),
        r"Hint: use functions of jax\.numpy instead of numpy in the model",
        lambda: run(net_with(lambda self, x: jnp.tanh(linen.Dense(3)(x)))),
    ),
    "the mean out of a model": (
        lambda: run(net_with(lambda self, x: linen.Dense(3)(x).mean())),
        r"returns \[\] for a batch of 2.*Hint: keep the batch as the first axis",
        good,
    ),
    "another name of JAX": (
        lambda: aa.devices(framework="flax"),
        r"Hint: did you mean 'jax'\?",
        lambda: aa.devices(framework="jax"),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_mistake_is_told_with_a_hint_that_helps(name: str) -> None:
    wrong, message, right = ROWS[name]
    with pytest.raises(aa.errors.AnyaccelError, match=f"(?s){message}"):
        wrong()
    right()
