"""Own loops of TensorFlow: losses and weights are those of a loop by hand, in one process and in several."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa
from anyaccel.errors import AnyaccelError, CapabilityError, ConfigError, DataError, FrameworkError, StateError
from anyaccel_tensorflow.own_loop import LoopFunction
from anyaccel_tensorflow.replica_group import join_cluster

SCRIPT = Path(__file__).with_name("own_loop_script.py")
_spec = importlib.util.spec_from_file_location("own_loop_script", SCRIPT)
assert _spec is not None and _spec.loader is not None
script: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(script)

BY_HAND = {name.removeprefix("by_hand_"): case for name, case in vars(script).items() if name.startswith("by_hand_")}
BOTH = [
    "accumulated", "one_row", "token_means", "eager", "statistics", "evaluation", "values", "refused", "averaged",
    "adversarial", "tokenless", "exchanges",
]  # fmt: skip
COUNTS = ["several_counts", "several_counts_eager", "one_batch_several_counts"]
CASES = {size: [*BOTH, *COUNTS, "updates", "single_precision", "scaled"] for size in (2, 3)}
if not os.environ.get("ANYACCEL_TEST_FULL"):  # each case is traced in each process
    CASES[2] = ["accumulated", "token_means", "statistics", "evaluation", "values", "refused", "updates", "scaled"]


def started(size: int, cases: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "anyaccel", "run", "--replicas", str(size), str(SCRIPT), cases]
    return subprocess.run(command, capture_output=True, text=True, timeout=560, check=False)


def told(run: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    assert lines, run.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.whole)])
def several(request: pytest.FixtureRequest) -> tuple[int, dict[str, Any]]:
    """How many processes, and what each case found in them."""
    return request.param, told(started(request.param, ",".join(CASES[request.param])))


def assert_alike(found: dict[str, Any], expected: dict[str, Any], atol: float = 1e-6) -> None:
    for name, value in expected.items():
        if name == "weights":
            for ours, theirs in zip(found[name], value, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)
        else:
            np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=atol, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES[2] if name in BY_HAND])
def test_several_processes_train_as_one_by_hand(several: tuple[int, dict[str, Any]], name: str) -> None:
    """107 rows of 16, a last batch of one row, short windows, tokens, two optimizers, a skipped step."""
    found = several[1]
    assert_alike(found[name], BY_HAND[name]())
    assert found[name].get("alike", 1) == 1, "all processes have the same"


@pytest.mark.slow
def test_a_step_is_traced_twice_for_ragged_batches(several: tuple[int, dict[str, Any]]) -> None:
    _, found = several
    assert found["updates"]["traces"] <= 3  # TensorFlow counts one that makes variables twice
    assert found["accumulated"]["traces"] <= 6
    assert found["updates"]["steps"] == 21
    assert found["accumulated"]["steps"] == 15


@pytest.mark.slow
def test_rows_of_an_evaluation_come_once_and_in_order(several: tuple[int, dict[str, Any]]) -> None:
    _, found = several
    assert found["evaluation"] == {"found": [True, 103, True, 103], "kind": "tuple", "ragged": [3, 6]}


def test_rows_of_an_evaluation_come_in_order_in_one_process() -> None:
    assert script.evaluation() == {"found": [True, 103, True, 103], "kind": "tuple", "ragged": [3, 6]}


@pytest.mark.slow
@pytest.mark.whole
def test_a_mean_over_no_token_is_zero(several: tuple[int, dict[str, Any]]) -> None:
    for found in (several[1]["tokenless"], script.tokenless()):
        assert found == {"means": [0.0] * 3, "same": True}


@pytest.mark.slow
@pytest.mark.whole
def test_gradients_are_exchanged_once_an_update(several: tuple[int, dict[str, Any]]) -> None:
    """14 batches by three, twice: five updates each; only the trace of the third batch has an exchange."""
    found = several[1]["exchanges"]
    assert (found["eager"], found["steps"]) == (5, 10)
    assert found["traced"][:2] == [0, 0] and found["traced"][2] > 0


@pytest.mark.slow
def test_moving_averages_are_alike_and_dropout_is_not(several: tuple[int, dict[str, Any]]) -> None:
    size, found = several
    assert found["statistics"] == {"alike": size, "drops": size, "moved": True}


@pytest.mark.slow
def test_values_of_all_processes(several: tuple[int, dict[str, Any]]) -> None:
    values = several[1]["values"]
    np.testing.assert_allclose(values["reduced"], values["expected"])
    assert values["broadcast"]
    assert values["any"] == [True, False]
    assert values["drawn"] == 1, "with a seed, models are made of the same random numbers"


@pytest.mark.slow
def test_what_several_processes_refuse(several: tuple[int, dict[str, Any]]) -> None:
    size, found = several
    texts = found["refused"]
    assert f"different numbers of batches in the processes: {', '.join(['7', '8', '9'][:size])}" in texts["lengths"]
    assert "the data set returns other rows in each process" in texts["rows"]
    assert "without shard()" in texts["other rows"]
    assert "has none of the 1 rows of batch 2" in texts["by hand"]
    assert "Hint: write Loop(sync_batchnorm=False)" in texts["norm"]
    assert "GroupNormalization" in texts["sync"]
    assert "XLA does not compile" in texts["xla"]
    assert "'layers.1.bias' of process 1 differs from process 0" in texts["weights"]


@pytest.mark.parametrize(
    "name", ["accumulated", "token_means", "eager", "scaled", "updates", "averaged", "adversarial", "one_row", *COUNTS]
)
def test_one_process_trains_as_by_hand(name: str) -> None:
    assert_alike(getattr(script, name)(), BY_HAND[name]())


# -- going on ----------------------------------------------------------------------------------------------------------


class _StopError(Exception):
    pass


@contextlib.contextmanager
def interrupted(after: int) -> Iterator[None]:
    """The script is interrupted instead of killed."""
    with pytest.MonkeyPatch.context() as patch:

        def stop(*_: Any) -> None:
            raise _StopError

        patch.setattr(script.os, "kill", stop)
        with pytest.raises(_StopError):
            yield
    assert after


def test_a_loop_goes_on_within_an_epoch_and_again(tmp_path: Path) -> None:
    """Dropout, the order of rows and Adam go on to the bit; the second time in the same epoch, too."""
    expected = script.resumed(str(tmp_path / "a"))
    folder = str(tmp_path / "b")
    for stop in (19, 5):
        with interrupted(stop):
            script.resumed(folder, str(stop), "0")
    found = script.resumed(folder)
    assert found["steps"] == expected["steps"] == 14
    assert found["losses"] == {place: expected["losses"][place] for place in found["losses"]}
    assert 0 < len(found["losses"]) < 10
    assert found["weights"] == expected["weights"]


@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.parametrize("size", [2, 3])
def test_killed_processes_go_on_and_so_does_another_number(tmp_path: Path, size: int) -> None:
    expected = told(started(size, f"resumed:{tmp_path / 'a'}"))["resumed"]
    folder = tmp_path / "b"
    assert started(size, f"resumed:{folder}:19").returncode != 0
    found = told(started(size, f"resumed:{folder}"))["resumed"]
    assert found["losses"] == {place: expected["losses"][place] for place in found["losses"]}
    assert 0 < len(found["losses"]) < 14
    assert found["weights"] == expected["weights"]
    loop = script.loop_of(accumulate=2)
    drop = keras.layers.Dropout(0.3, dtype="float64")
    model, _, _ = loop.prepare(script.model_of("float64", drop), keras.optimizers.Adam(0.01), script.data(size=8))
    loop.load(folder)
    assert script.weights_of(model)[0] == expected["weights"][0], "one process reads what several wrote"


def test_another_order_of_rows_is_found_when_a_loop_goes_on(tmp_path: Path) -> None:
    with interrupted(3):
        script.resumed(str(tmp_path / "a"), "5", "0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "data", lambda size: tf.data.Dataset.from_tensor_slices(script.rows(107)).batch(size))
        with pytest.raises(StateError, match="other rows than in the run that wrote the checkpoint"):
            script.resumed(str(tmp_path / "a"))


def test_state_is_of_models_optimizers_and_others(tmp_path: Path) -> None:
    class Counter:
        value = 0

        def state_dict(self) -> dict[str, int]:
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.value = state["value"]

    def prepared() -> Any:
        loop = script.loop_of()
        model = script.model_of()
        return loop, *loop.prepare(model, script.optimizer_of(), Counter(), script.data())

    loop, model, optimizer, counter, batches = prepared()
    train_one(loop, model, optimizer, next(iter(batches)))
    counter.value = 7
    loop.save(tmp_path / "saved", extra={"note": [1, "a"]})
    loop, model, optimizer, counter, batches = prepared()
    assert loop.load(tmp_path / "saved") == {"note": [1, "a"]}
    assert (loop.step, counter.value) == (1, 7)
    train_one(loop, model, optimizer, next(iter(batches)))  # the optimizer is built here, and has the momentum
    assert int(optimizer.iterations) == 2
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(script.rows()[0]))
    assert tape.gradient(loss, model.trainable_variables)
    other = script.loop_of()
    wide = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    other.prepare(wide, script.optimizer_of(), Counter(), script.data())
    with pytest.raises(StateError, match=r"another model: 'layers.0.kernel' has shape \[5, 8\] there, but \[5, 3\]"):
        other.load(tmp_path / "saved")
    fewer = script.loop_of()
    fewer.prepare(script.model_of(), script.data())
    with pytest.raises(StateError, match="has 1 optimizers, but this loop has 0"):
        fewer.load(tmp_path / "saved")
    adam = script.loop_of()
    built = keras.optimizers.Adam(0.1)
    model = script.model_of()
    built.build(model.trainable_variables)
    adam.prepare(model, built, Counter(), script.data())
    with pytest.raises(StateError, match="to another optimizer: 5 variables"):
        adam.load(tmp_path / "saved")


def train_one(loop: Any, model: Any, optimizer: Any, batch: Any) -> Any:
    x, y = batch
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(script.squares(model, x, y))
    gradients = loop.gradient(tape, loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


# -- precision and functions -------------------------------------------------------------------------------------------


def test_bfloat16_computes_as_under_a_policy_of_keras() -> None:
    loop = script.loop_of(precision="bf16-mixed")
    model = loop.prepare(script.model_of("float32"))
    layers = [keras.layers.Dense(8, activation="tanh", dtype="mixed_bfloat16")]
    by_hand = keras.Sequential([keras.Input((5,)), *layers, keras.layers.Dense(1, dtype="mixed_bfloat16")])
    by_hand.set_weights(model.get_weights())
    x = script.rows()[0].astype(np.float32)
    assert model(x).dtype == tf.bfloat16
    assert {variable.dtype for variable in model.variables} == {"float32"}
    np.testing.assert_array_equal(np.asarray(model(x), np.float32), np.asarray(by_hand(x), np.float32))


def test_a_function_may_be_a_part_of_another_and_a_method() -> None:
    loop = script.loop_of()

    class Steps:
        @loop.function(autograph=False)
        def twice(self, x: Any) -> Any:
            return 2 * x

    @loop.function
    def step(x: Any) -> Any:
        """Adds one."""
        return Steps().twice(x) + 1

    assert isinstance(step, LoopFunction)
    assert step.__doc__ == "Adds one."
    assert float(step(tf.constant(3.0))) == 7
    assert float(Steps().twice(tf.constant(3.0))) == 6
    assert step.experimental_get_tracing_count() == 1, "one that computes no gradients is traced for all batches alike"


def test_numbers_that_change_are_warned_of() -> None:
    loop = script.loop_of()

    @loop.function
    def scaled(x: Any, rate: float) -> Any:
        return x * rate

    with pytest.warns(RuntimeWarning, match=r"scaled\(\) was traced 6 times"):
        for i in range(7):
            scaled(tf.constant(1.0), 0.1 * i)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(7):
            scaled(tf.constant(1.0), tf.constant(0.1 * i))


def test_gradients_that_a_step_leaves_are_applied_outside() -> None:
    loop = script.loop_of()
    model, optimizer, batches = loop.prepare(script.model_of(), script.optimizer_of(), script.data())

    @loop.function
    def gradients_of(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(script.squares(model, x, y))
        return loop.gradient(tape, loss, model.trainable_variables)

    for x, y in batches:
        gradients = gradients_of(x, y)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        with pytest.raises(ConfigError, match=r"that do not come from loop\.gradient"):
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    assert loop.step == 7


# -- what is refused ---------------------------------------------------------------------------------------------------


def refusals() -> dict[str, tuple[type[AnyaccelError], str, Any]]:
    """By name: the error, a part of its text, and what raises it."""

    def tape_of(model: Any, *, mean: bool = True) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            loss = script.squares(model, *script.rows(4))
            loss = tf.reduce_mean(loss) if mean else loss
        return tape, loss

    def prepared(**settings: Any) -> tuple[Any, Any]:
        loop = script.loop_of(**settings)
        return loop, loop.prepare(script.model_of())

    def gradient_without_rows() -> None:
        loop, model = prepared(accumulate=2)
        loop.gradient(*tape_of(model), model.trainable_variables)

    def traced_by_others() -> None:
        loop, model = prepared()
        step = tf.function(lambda: loop.gradient(*tape_of(model), model.trainable_variables), autograph=False)
        loop.function(lambda: step())()

    def not_prepared() -> None:
        loop, other = prepared()[0], script.model_of()
        loop.gradient(*tape_of(other), other.trainable_variables)

    def no_mean() -> None:
        loop, model = prepared()
        loop.gradient(*tape_of(model, mean=False), model.trainable_variables)

    def other_calls() -> None:
        loop = script.loop_of(accumulate=2)
        model, batches = loop.prepare(script.model_of(), script.data(32))
        for number, _ in enumerate(batches):
            for _ in range(number + 1):
                loop.gradient(*tape_of(model), model.trainable_variables, count=4)

    def own_gradients() -> None:
        loop = script.loop_of()
        model, optimizer = loop.prepare(script.model_of(), script.optimizer_of())
        tape, loss = tape_of(model)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables, strict=True))

    def unscaled() -> None:
        loop = script.loop_of()
        scaling = keras.optimizers.LossScaleOptimizer(script.optimizer_of())
        model, scaling = loop.prepare(script.model_of(), scaling)
        gradients = loop.gradient(*tape_of(model), model.trainable_variables)
        scaling.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    def with_and_without_count() -> None:
        loop, model = prepared()
        step = loop.function(lambda x: loop.gradient(*tape_of(model), model.trainable_variables, count=x.shape[0]))
        for n in (4, 3, 2):
            step(tf.ones((n, 1)))

    def not_in_the_last_batch() -> None:
        loop = script.loop_of(accumulate=2)
        model, batches = loop.prepare(script.model_of(), script.data())
        for _ in batches:
            variables = model.trainable_variables[: 1 if loop.is_update else 4]
            loop.gradient(*tape_of(model), variables)

    def twice() -> None:
        loop, model = prepared()
        loop.prepare(model)

    def optimizer_twice() -> None:
        loop, optimizer = script.loop_of(), script.optimizer_of()
        loop.prepare(optimizer)
        loop.prepare(optimizer)

    def accumulates_twice() -> None:
        script.loop_of(accumulate=2).prepare(keras.optimizers.SGD(gradient_accumulation_steps=2))

    def within_a_window() -> None:
        loop = script.loop_of(accumulate=2)
        model, batches = loop.prepare(script.model_of(), script.data())
        x, y = next(iter(batches))
        for x, y in batches:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(script.squares(model, x, y))
            loop.gradient(tape, loss, model.trainable_variables)
            loop.save("never")

    return {
        "rows": (ConfigError, "does not know the number of rows in the mean of the loss", gradient_without_rows),
        "function": (ConfigError, "use @loop.function instead of @tf.function", traced_by_others),
        "prepared": (ConfigError, "not a variable of a prepared", not_prepared),
        "mean": (DataError, "which is not a mean over rows", no_mean),
        "other calls": (ConfigError, "a different number of times", other_calls),
        "own gradients": (ConfigError, "gradients that do not come from loop.gradient()", own_gradients),
        "unscaled": (ConfigError, "a loss scale, but the loss was not multiplied by it", unscaled),
        "count": (ConfigError, "count=tf.shape(x)[0]", with_and_without_count),
        "variables": (ConfigError, "some batches of an update, but not for the last", not_in_the_last_batch),
        "twice": (ConfigError, "this Sequential is prepared already", twice),
        "optimizer twice": (ConfigError, "this SGD is prepared already", optimizer_twice),
        "accumulates": (ConfigError, "would accumulate twice", accumulates_twice),
        "window": (StateError, "save() was called between updates", within_a_window),
        "unbuilt": (
            ConfigError,
            "has no variables yet",
            lambda: script.loop_of().prepare(keras.Sequential([keras.layers.Dense(1)])),
        ),
        "scale": (
            ConfigError,
            "has no loss scale until it is built",
            lambda: script.loop_of().prepare(keras.optimizers.LossScaleOptimizer(script.optimizer_of())),
        ),
        "metric": (
            DataError,
            "each process would see only its own rows",
            lambda: script.loop_of().prepare(keras.metrics.Mean()),
        ),
        "nothing to prepare": (DataError, "cannot prepare a int", lambda: script.loop_of().prepare(3)),
        "epoch": (
            ConfigError,
            "set_epoch() of a tf.data.Dataset",
            lambda: script.loop_of().prepare(script.data()).set_epoch(2),
        ),
        "fp16": (
            ConfigError,
            "keras.optimizers.LossScaleOptimizer(optimizer)",
            lambda: script.loop_of(precision="fp16-mixed"),
        ),
        "float64": (
            ConfigError,
            "changes the dtype of a model's variables",
            lambda: script.loop_of(precision="float64"),
        ),
        "bf16": (
            ConfigError,
            "is for Keras layers, but Affine has none",
            lambda: script.loop_of(precision="bf16-mixed").prepare(script.Affine()),
        ),
        "sharding": (CapabilityError, "which TensorFlow does not", lambda: script.loop_of(sharding="full")),
        "options": (ConfigError, "TensorFlow loops have no engine", lambda: script.loop_of(options={"a": 1})),
    }


@pytest.mark.parametrize("name", list(refusals()))
def test_refused(name: str) -> None:
    error, text, call = refusals()[name]
    with pytest.raises(error) as raised:
        call()
    assert text in str(raised.value)
    assert "Hint: " in str(raised.value)


def test_a_launcher_finds_tensorflow_started(monkeypatch: pytest.MonkeyPatch) -> None:
    tf.constant(1.0)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(FrameworkError, match="TensorFlow was started in replica 0 of 2"):
        aa.Loop("cpu", framework="tensorflow")
    assert join_cluster.__doc__
