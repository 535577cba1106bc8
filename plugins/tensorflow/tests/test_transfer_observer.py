"""What the ledger sees of TensorFlow: planted cases, and counts beside those of TensorFlow and of Python's profiler."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python import pywrap_tfe

import anyaccel as aa
from anyaccel.errors import CapabilityError, DeviceMismatchError, TransferError
from anyaccel_tensorflow import transfer_observer

NP = np.ones(3, "float32")
ONE = "/CPU:1"


@pytest.fixture(scope="module")
def x() -> tf.Tensor:
    return tf.constant(np.arange(3, dtype="float32"))


@pytest.fixture(scope="module")
def there() -> tf.Tensor:
    with tf.device(ONE):
        return tf.constant(NP)


@tf.function
def doubled(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return a * 2 + b


def on_one(function: Callable[[], object]) -> object:
    with tf.device(ONE):
        return function()


def variable_of(value: object) -> object:
    return tf.Variable(tf.zeros(3)).assign(value)


PLANTED: dict[str, tuple[Callable[[tf.Tensor, tf.Tensor], object], list[tuple[str, int, int]]]] = {
    "zeros": (lambda x, there: tf.zeros(()), []),
    "ones": (lambda x, there: tf.ones((4, 4)), []),
    "a number": (lambda x, there: x + 1, []),
    "a random draw": (lambda x, there: tf.random.normal((3,)), []),
    "a slice": (lambda x, there: x[1:], []),
    "a sum": (lambda x, there: tf.reduce_sum(x), []),
    "a shape": (lambda x, there: tf.reshape(x, [3, 1]), []),
    "where it is": (lambda x, there: tf.identity(x), []),
    "a compiled function": (lambda x, there: doubled(x, x), []),
    "an array": (lambda x, there: tf.constant(NP), [("host to device", 12, 0)]),
    "a list": (lambda x, there: tf.constant([1.0, 2.0]), [("host to device", 8, 0)]),
    "an operand": (lambda x, there: x * NP, [("host to device", 12, 0)]),
    "an operand in a list": (lambda x, there: tf.concat([x, NP], 0), [("host to device", 12, 0)]),
    "an argument of a compiled function": (lambda x, there: doubled(x, NP), [("host to device", 12, 0)]),
    "into a variable": (lambda x, there: variable_of(NP), [("host to device", 12, 0)]),
    "to another device": (lambda x, there: on_one(lambda: tf.identity(x)), [("device to device", 12, 0)]),
    "move": (lambda x, there: aa.move(x, "cpu:1"), [("device to device", 12, 0)]),
    "a copy by hand": (lambda x, there: there.cpu(), [("device to device", 12, 0)]),
    "beside another device's": (lambda x, there: x + there, [("device to device", 12, 0)]),
    "another device's, twice": (lambda x, there: tf.stack([x, there, there]), [("device to device", 24, 0)]),
    "a variable of another device": (lambda x, there: variable_of(there), [("device to device", 12, 0)]),
    "to NumPy": (lambda x, there: x.numpy(), [("device to host", 12, 1)]),
    "np.asarray": (lambda x, there: np.asarray(x), [("device to host", 12, 1)]),
    "np.array": (lambda x, there: np.array(x), [("device to host", 12, 1)]),
    "item": (lambda x, there: x[1].numpy().item(), [("device to host", 4, 1)]),
    "float": (lambda x, there: float(x[1]), [("device to host", 4, 1)]),
    "format": (lambda x, there: f"{x[1]:.2f}", [("device to host", 4, 1)]),
    "print": (lambda x, there: print(x), [("device to host", 12, 1)]),
    "tf.print": (lambda x, there: tf.print(x), [("device to host", 12, 1)]),
    "a function of NumPy": (
        lambda x, there: tf.numpy_function(np.sin, [x], tf.float32),
        [("device to host", 12, 1), ("host to device", 12, 0)],
    ),
    "if tensor": (lambda x, there: bool(tf.reduce_sum(x) > 0), [("device to host", 1, 1)]),
    "a mask": (lambda x, there: tf.boolean_mask(x, x > 1), [("wait", 0, 1)]),
    "a mask of the host": (
        lambda x, there: tf.boolean_mask(x, np.array([True, False, True])),
        [("host to device", 3, 0), ("wait", 0, 1)],
    ),
    "int32": (lambda x, there: int(tf.constant([1, 2])[0]), []),
}


@pytest.mark.parametrize("case", PLANTED)
def test_planted_cases(case: str, x: tf.Tensor, there: tf.Tensor) -> None:
    function, expected = PLANTED[case]
    for _ in range(2):
        with aa.ledger() as moved:
            function(x, there)
        assert [(each.kind, each.nbytes, each.waits) for each in moved.rows] == expected
        assert {each.line.rpartition(":")[0] for each in moved.rows} <= {__file__}
    if expected:
        with pytest.raises(TransferError), aa.no_transfers(["tensorflow"], partial=True):
            function(x, there)
    else:
        with aa.no_transfers(["tensorflow"], partial=True):
            function(x, there)


def test_operations_of_a_backward_pass_and_of_other_threads_are_seen(x: tf.Tensor, there: tf.Tensor) -> None:
    """The gradient is computed on the first device, with an operand of the other, which no code of the user says."""

    def work() -> None:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = on_one(lambda: tf.identity(x) * there)
        tape.gradient(y, x)

    with aa.ledger() as moved:
        thread = threading.Thread(target=work, name="worker")
        thread.start()
        thread.join()
    ends = [(each.source, each.target, each.operation) for each in moved.rows]
    assert ends == [("cpu:0", "cpu:1", "Identity"), ("cpu:1", "cpu:0", "Mul")]


WARNED = """
import json, numpy as np, tensorflow as tf, anyaccel as aa
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
ONES, rows = np.ones((4, 4), "float32"), tf.constant([0, 1], tf.int64)
x = tf.constant(ONES)

def work():
    with tf.device("/CPU:1"):
        w = tf.Variable(ONES)
    for i in range(5):
        with tf.device("/CPU:1"), tf.GradientTape() as tape:
            y = tf.matmul(x, w)
            z = tf.gather(y, rows)
            loss = tf.square(tf.concat([z, ONES[:2]], 0) - x)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        if i % 2:
            w.assign(y + x)

with aa.ledger() as moved:
    work()
tf.config.experimental.set_device_policy("warn")
work()
print(json.dumps({name: total.transfers for name, total in moved.by("operation").items()}))
"""


def test_counts_are_those_of_tensorflows_own_warnings() -> None:
    """Which it logs for each input of an operation that it copies, and for conversions for another device."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1"}
    command = [sys.executable, "-c", WARNED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    warned = Counter(re.findall(r"before computing (\w+) input #", done.stderr))
    counts = Counter(json.loads(done.stdout))
    assert counts.pop("EagerTensor") + counts.pop("ConcatV2") == warned.pop("_EagerConst") == 6
    assert counts == warned and warned.total() == 29


def test_reads_are_those_of_pythons_profiler(x: tf.Tensor) -> None:
    """Which sees the calls of TensorFlow's own function that makes arrays."""
    calls = []

    def profiled(frame: object, event: str, function: object) -> None:
        if event == "c_call" and getattr(function, "__name__", "") == "_numpy_internal":
            calls.append(1)

    def work() -> None:
        for i in range(4):
            loss = tf.reduce_sum(tf.square(x - float(i)))
            if loss > 3 and float(loss) > 4:
                str(x)
        variable_of(x).numpy()

    with aa.ledger() as moved:
        before, _ = sys.getprofile(), sys.setprofile(profiled)
        try:
            work()
        finally:
            sys.setprofile(before)
    assert moved.totals("device to host").transfers == len(calls) >= 9


def test_everything_is_put_back(x: tf.Tensor) -> None:
    base = type(x).__mro__[1]
    names = ("TFE_Py_FastPathExecute", "TFE_Py_Execute", "TFE_Py_ExecuteCancelable")
    owners = [(pywrap_tfe, name) for name in names] + [(np, "asarray"), (np, "array")]
    owners += [(type(x), "__init__"), (base, "_numpy"), (base, "_copy_nograd")]
    before = [vars(owner)[name] for owner, name in owners]
    with pytest.raises(ZeroDivisionError), aa.ledger() as moved:
        assert all(vars(owner)[name] is not own for (owner, name), own in zip(owners, before, strict=True))
        raise ZeroDivisionError
    assert [vars(owner)[name] for owner, name in owners] == before
    np.asarray(x), x.numpy(), tf.constant(NP)
    assert moved.transfers == 0


def test_a_tensorflow_without_a_name_is_not_covered(monkeypatch: pytest.MonkeyPatch, x: tf.Tensor) -> None:
    monkeypatch.setattr(transfer_observer, "_PATCHED", ((pywrap_tfe, "no_such_name"),))
    with aa.ledger() as moved:
        x.numpy()
    assert moved.transfers == 0
    (told,) = (each for each in moved.not_covered if each.startswith("tensorflow"))
    assert "has no tensorflow.python.pywrap_tfe.no_such_name, which is needed to observe transfers" in told
    for partial in (False, True):
        with pytest.raises(CapabilityError, match="no_such_name"), aa.no_transfers(["tensorflow"], partial=partial):
            pass


def unseen(function: Callable[[], object]) -> list[str]:
    with aa.ledger() as moved:
        function()
    return [each for each in moved.not_covered if each.startswith("tensorflow: ") and "compiled" in each]


def test_what_compiled_functions_hide_is_named(x: tf.Tensor, there: tf.Tensor) -> None:
    @tf.function
    def prints(a: tf.Tensor) -> tf.Tensor:
        tf.print(a)
        return a + 1

    @tf.function
    def calls(a: tf.Tensor) -> tf.Tensor:
        return tf.cond(a[0] > 0, lambda: prints(a), lambda: a)

    @tf.function
    def spreads(a: tf.Tensor) -> tf.Tensor:
        with tf.device(ONE):
            return a * 2

    printed = "tensorflow: reads of tf.print inside the compiled function"
    assert unseen(lambda: doubled(x, x)) == []
    assert unseen(lambda: prints(x)) == [f"{printed} 'prints'"]
    assert unseen(lambda: calls(x)) == [f"{printed} 'calls'"]
    spread = "tensorflow: copies between the devices of the compiled function"
    assert unseen(lambda: spreads(x)) == [f"{spread} 'spreads'"]
    assert unseen(lambda: doubled(x, there)) == [f"{spread} 'doubled'"]
    assert unseen(lambda: on_one(lambda: doubled(there, there))) == []
    assert unseen(lambda: doubled(x, x)) == []  # of another block


def test_what_it_cannot_see_is_named_and_refused() -> None:
    with aa.ledger() as moved:
        pass
    assert [each.partition(",")[0] for each in moved.not_covered if each.startswith("tensorflow")] == [
        "tensorflow: values of int32",
        "tensorflow: reads by functions of NumPy",
    ]
    with pytest.raises(CapabilityError, match=r"values of int32.*partial=True"), aa.no_transfers(["tensorflow"]):
        pass


def test_a_phase_is_counted() -> None:
    """What crosses between two nodes, in each step; it is not seen where both are in one compiled function."""
    data = aa.FeatureSet.from_dict("data", {"x": np.ones((32, 3), "f"), "y": np.ones((32, 1), "f")}, ["x"], ["y"])
    nodes = [
        aa.ModelNode("body", tf.keras.Sequential([tf.keras.layers.Dense(4)]), data.reference(), accelerator="cpu:0"),
        aa.ModelNode("head", tf.keras.Sequential([tf.keras.layers.Dense(1)]), "body", accelerator="cpu:1"),
    ]
    losses = [aa.AppliedLoss("mse", on="head")]
    phase = aa.TrainPhase("fit", data=data, losses=losses, batch_size=8, epochs=2, compile="off")
    with aa.ledger() as moved:
        aa.Experiment("e", aa.ModelGraph(nodes, "adam")).run(phase)
    edges = {name: (total.transfers, total.nbytes) for name, total in moved.by("edge").items() if name}
    steps = 2 * 4
    assert edges == {"outputs of 'body'": (steps, steps * 8 * 16), "gradients of 'body'": (steps, steps * 8 * 16)}
    assert set(moved.by("phase")) == {"fit"}
    assert not [each for each in moved.not_covered if "compiled" in each]


# -- errors of operations over several devices -----------------------------------------------------------------------


class Shifted(tf.Module):
    """Adds a tensor that nobody has placed."""

    def __init__(self, shift: tf.Tensor) -> None:
        super().__init__()
        self.weight, self.shift = tf.Variable(tf.ones((3, 1))), shift

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return x @ self.weight + self.shift  # mixes


def train_shifted(shift: tf.Tensor) -> str:
    data = aa.FeatureSet.from_dict("data", {"x": np.ones((4, 3), "f"), "y": np.ones((4, 1), "f")}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("shifts", Shifted(shift), data.reference(), accelerator="cpu:0")], "sgd")
    with pytest.raises(DeviceMismatchError) as caught:
        graph.run(aa.TrainPhase("fit", data=data, losses=[aa.AppliedLoss("mse", on="shifts")], batch_size=2))
    return str(caught.value)


def line_of(text: str) -> str:
    lines = Path(__file__).read_text("utf-8").splitlines()
    (number,) = [i for i, each in enumerate(lines, 1) if each.strip().endswith(f"# {text}")]
    return f"{__file__}:{number}"


def test_an_error_names_the_node_the_line_the_tensors_and_who_moved_them() -> None:
    with aa.ledger():
        shift = aa.move(tf.ones(1), "cpu:1")  # moves
        text = train_shifted(shift)
    assert text.startswith("node 'shifts' in ")
    assert "AddV2 computes on cpu:0, but its input #1 is on cpu:1" in text
    there = f"self.shift on cpu:1, moved there at {line_of('moves')}. Hint: "
    assert f"; at {line_of('mixes')}, with x on cpu:0, self.weight on cpu:0, {there}" in text
    assert "moved there" not in train_shifted(shift)
