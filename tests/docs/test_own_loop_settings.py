"""The table of a phase's settings in the guide to own loops: it has each setting, and what it says of them is so.

What a phase shows and writes (plans, offload, checkpoints, trackers, profiles, the ledger, the doctor) is there in an
own loop of each framework, by the same words, or an error that says what to write.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.adapter.step_profiler import read_trace
from anyaccel.errors import AnyaccelError, ArgumentError, ConfigError

pytest.importorskip("anyaccel_torch")

PAGE = Path(__file__).parents[2] / "docs/how-to/keep-your-loop.md"
SECTION = PAGE.read_text("utf-8").partition("## Settings of a training phase")[2].partition("\n## ")[0]
ROWS = [[cell.strip() for cell in row.split("|")[1:3]] for row in SECTION.splitlines() if row.startswith("| `")]
CELL_OF = {name: cell for names, cell in ROWS for name in re.findall(r"`(\w+)`", names)}
OF_LOOP = set(inspect.signature(aa.Loop).parameters)
SAME = "the same argument of `Loop`"


def test_each_setting_of_a_phase_has_a_row() -> None:
    assert set(CELL_OF) == set(inspect.signature(aa.TrainPhase).parameters)


@pytest.mark.parametrize("name", CELL_OF)
def test_a_setting_that_a_loop_lacks_is_an_error_that_leads_on(name: str) -> None:
    if name in OF_LOOP:
        assert CELL_OF[name].startswith(SAME) or f"Loop({name}=" in CELL_OF[name]
        return
    with pytest.raises(ArgumentError, match=f"Loop has no argument {name!r}. Hint: ") as raised:
        aa.Loop("cpu", framework="torch", **{name: 1})
    assert "use one of these names" not in str(raised.value)


@pytest.mark.parametrize("call", re.findall(r"`(?:\w+ = )?(?:if )?loop\.(\w+)|Loop\((\w+)=", SECTION))
def test_what_the_table_writes_exists(call: tuple[str, str]) -> None:
    method, argument = call
    loop = aa.Loop("cpu", framework="torch")
    of_jax = method == "compile"
    assert argument in OF_LOOP if argument else of_jax or hasattr(loop, method)


# -- each framework ----------------------------------------------------------------------------------------------------

ROWS = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")


class Batches:
    def __iter__(self) -> Any:
        yield from (ROWS[i : i + 8] for i in range(0, 32, 8))


def torch_loop(loop: Any) -> None:
    import torch

    net = torch.nn.Linear(4, 1)
    net, optimizer = loop.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    loader = loop.prepare(torch.utils.data.DataLoader(torch.from_numpy(ROWS), batch_size=8))
    for _ in loop.epochs(1):
        for x in loader:
            loop.backward(net(x).square().mean())
            optimizer.step()


def jax_loop(loop: Any) -> None:
    import jax
    import jax.numpy as jnp

    state, loader = loop.prepare({"w": jnp.ones(4)}, Batches())
    gradients = loop.value_and_grad(lambda state, x: jnp.mean((x @ state["w"]) ** 2))

    @loop.compile
    def step(state: Any, x: Any) -> Any:
        value, grads = gradients(state, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value

    for _ in loop.epochs(1):
        for x in loader:
            state, _ = step(state, x)


def tensorflow_loop(loop: Any) -> None:
    import keras
    import tensorflow as tf

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    dataset = tf.data.Dataset.from_tensor_slices(ROWS).batch(8)
    model, optimizer, dataset = loop.prepare(model, keras.optimizers.SGD(0.1), dataset)

    @loop.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        gradients = loop.gradient(tape, loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905

    for _ in loop.epochs(1):
        for x in dataset:
            step(x)


TRAIN: dict[str, Callable[[Any], None]] = {"torch": torch_loop, "jax": jax_loop, "tensorflow": tensorflow_loop}


@pytest.fixture(params=TRAIN)
def framework(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    pytest.importorskip(name)
    pytest.importorskip(f"anyaccel_{name}")
    if name == "tensorflow" and pytest.importorskip("keras").backend.backend() != name:
        pytest.skip("Keras runs on another framework in this process")
    if name == "jax":
        pytest.importorskip("optax")
    return name


def test_checkpoints_trackers_profiles_and_the_ledger_are_those_of_phases(framework: str, tmp_path: Path) -> None:
    profile = aa.Profile((1, 3), str(tmp_path / "traces"))
    loop = aa.Loop("cpu:0", framework=framework, precision="bf16-mixed", log=tmp_path / "log", profile=profile)
    assert loop.accelerator.device == aa.Device("cpu", 0) and loop.precision == "bf16-mixed"
    with aa.ledger() as moved:
        TRAIN[framework](loop)
    # tensors of torch stay where they are on a CPU; the other frameworks copy rows of NumPy into tensors of theirs
    assert (moved.totals().nbytes == 0) == (framework == "torch")
    (file,) = profile.files
    steps = {event["name"] for event in read_trace(file) if event.get("name", "").startswith("step ")}
    assert steps == {"step 1", "step 2"}
    loop.log({"loss": 0.5})
    assert loop.tracking.history == [{"step": 4, "loss": 0.5}] and (tmp_path / "log/metrics.jsonl").exists()
    loop.save(tmp_path / "saved")
    with pytest.raises(AnyaccelError, match="another run"):
        other = aa.Loop("cpu", framework=framework)
        TRAIN[framework](other)
        other.save(tmp_path / "saved")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("plan simulate explain memory", r"a graph has a plan: experiment\.plan\(phase\)"),
        ("doctor devices", "`anyaccel doctor` checks the machine"),
        ("ledger report transfers", r"write with aa\.ledger\(\) as moved"),
        ("history metrics results", r"read loop\.tracking\.history"),
        ("offload device_map residency", "a TrainPhase offloads"),
        ("profile profiler", r"Loop\(profile=aa\.Profile"),
        ("trackers get_tracker", r"Loop\(log='runs/a'\)"),
    ],
)
def test_what_a_loop_cannot_show_is_an_error_that_says_what_does(framework: str, words: str, hint: str) -> None:
    loop = aa.Loop("cpu", framework=framework)
    for word in words.split():
        with pytest.raises(AttributeError, match=f"{word}.*Hint: .*{hint}"):
            getattr(loop, word)


def test_offload_and_deterministic_sums_are_refused(framework: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown sharding='full offload'.*Hint: .*TrainPhase, which offloads"):
        aa.Loop("cpu", framework=framework, sharding="full offload")
    settings: dict[str, Any]
    for settings, hint in (
        ({"offload": True}, "TrainPhase, which offloads"),
        ({"residency": "stream"}, "TrainPhase, which offloads"),
        ({"deterministic": True}, "deterministic=True"),
    ):
        with pytest.raises(ArgumentError, match=f"Hint: .*{hint}"):
            aa.Loop("cpu", framework=framework, **settings)
