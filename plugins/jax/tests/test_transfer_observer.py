"""What the ledger sees of JAX: planted cases, and counts beside those of JAX's own transfer guard."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import FrameType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import CapabilityError, DeviceMismatchError, TransferError
from anyaccel.machine import is_older
from anyaccel_jax import transfer_observer
from anyaccel_jax.error_translation import translate_errors

NP = np.ones(3, "float32")
pytestmark = [
    pytest.mark.usefixtures("arrays_on_cpu"),
    pytest.mark.skipif(is_older(jax.__version__, "0.10"), reason="this JAX copies past what is observed"),
]


@pytest.fixture(scope="module")
def x() -> jax.Array:
    with jax.default_device(jax.devices("cpu")[0]):
        return jnp.arange(3.0)


@jax.jit
def doubled(tree: dict[str, jax.Array]) -> jax.Array:
    return tree["x"] * 2 + tree["y"]


def other_device() -> jax.Device:
    return jax.devices("cpu")[1]


PLANTED: dict[str, tuple[Callable[[jax.Array], object], list[tuple[str, int, int]]]] = {
    "zeros": (lambda x: jnp.zeros(()), []),
    "ones": (lambda x: jnp.ones((4, 4)), []),
    "a number": (lambda x: x + 1, []),
    "a random key": (lambda x: jax.random.normal(jax.random.key(0), (3,)), []),
    "an array": (lambda x: jnp.asarray(NP), [("host to device", 12, 0)]),
    "a list": (lambda x: jnp.array([1.0, 2.0]), [("host to device", 8, 0)]),
    "device_put": (lambda x: jax.device_put(NP), [("host to device", 12, 0)]),
    "device_put of a tree": (lambda x: jax.device_put({"a": NP, "b": x}), [("host to device", 12, 0)]),
    "where it is": (lambda x: jax.device_put(x, jax.devices("cpu")[0]), []),
    "to another device": (lambda x: jax.device_put(x, other_device()), [("device to device", 12, 0)]),
    "an argument of a compiled function": (lambda x: doubled({"x": x, "y": NP}), [("host to device", 12, 0)]),
    "an operand": (lambda x: x * NP, [("host to device", 12, 0)]),
    "beside another device's": (
        lambda x: jax.device_put(NP, other_device()) + x,
        [("host to device", 12, 0), ("device to device", 12, 0)],
    ),
    "CPU to NumPy": (lambda x: np.asarray(x), [("device to host", 12, 1)]),
    "np.array": (lambda x: np.array(x), [("device to host", 12, 1)]),
    "device_get": (lambda x: jax.device_get(x), [("device to host", 12, 1)]),
    "item": (lambda x: x.sum().item(), [("device to host", 4, 1)]),
    "float": (lambda x: float(x.sum()), [("device to host", 4, 1)]),
    "print": (lambda x: print(x), [("device to host", 12, 1)]),
    "a list of numbers": (lambda x: x.tolist(), [("device to host", 12, 1)]),
    "if tensor": (lambda x: bool(x.sum() > 0), [("device to host", 1, 1)]),
    "block_until_ready": (lambda x: x.block_until_ready(), [("wait", 0, 1)]),
    "block_until_ready of a tree": (lambda x: jax.block_until_ready([x, x]), [("wait", 0, 1)]),
}


@pytest.mark.parametrize("case", PLANTED)
def test_planted_cases(case: str, x: jax.Array) -> None:
    """The first call, which is compiled, and a later one, which JAX runs without Python, count the same."""
    function, expected = PLANTED[case]
    for _ in range(3):
        with aa.ledger() as moved:
            function(x)
        assert [(each.kind, each.nbytes, each.waits) for each in moved.rows] == expected
        assert {each.line.rpartition(":")[0] for each in moved.rows} <= {__file__}
    if not expected:
        with aa.no_transfers(["jax"]):
            function(x)
    else:
        with pytest.raises(TransferError), aa.no_transfers(["jax"]):
            function(x)


def test_a_mask_is_read_and_its_places_go_back(x: jax.Array) -> None:
    with aa.ledger() as moved:
        x[x > 1]
    kinds = {name: total.transfers for name, total in moved.by("kind").items()}
    assert kinds["device to host"] == 1 and kinds["host to device"] >= 1


def test_numpy_takes_all_that_it_takes_without_a_ledger(x: jax.Array) -> None:
    """Also None, which is an argument like any, and arguments by keyword."""
    with aa.ledger() as moved:
        assert np.asarray(None).dtype == object and np.array(object=[1, 2]).tolist() == [1, 2]
        with pytest.raises(TypeError, match="missing"):
            np.asarray()
        assert moved.transfers == 0
        assert np.asarray(x, "float64").dtype == np.float64
    assert moved.transfers == 1


def test_everything_is_put_back(x: jax.Array) -> None:
    before = (np.asarray, np.array, jax.block_until_ready, vars(type(x))["_value"], type(x).block_until_ready)
    with pytest.raises(ZeroDivisionError), aa.ledger():
        assert np.asarray is not before[0]
        raise ZeroDivisionError
    assert (np.asarray, np.array, jax.block_until_ready, vars(type(x))["_value"], type(x).block_until_ready) == before
    with aa.ledger() as moved:
        pass
    np.asarray(x)
    assert moved.transfers == 0


def test_the_search_for_nan_goes_on(x: jax.Array) -> None:
    """It uses the same hook, and leaves one of this thread behind."""
    with jax.debug_nans(True):
        with aa.ledger() as moved, pytest.raises(FloatingPointError):
            jnp.log(x - NP)
        assert moved.transfers
        with pytest.raises(FloatingPointError):
            jnp.log(x - 1)
    with aa.ledger() as moved:
        x * NP
    assert moved.transfers == 1


def test_a_jax_without_a_name_is_not_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_observer, "_PATCHED", ((jax, "no_such_name"),))
    with aa.ledger() as moved:
        jax.device_put(NP)
    assert moved.transfers == 0
    assert moved.not_covered == (
        "jax: this version of JAX has no jax.no_such_name, which is needed to observe transfers",
    )
    with pytest.raises(CapabilityError, match=r"jax\.no_such_name"), aa.no_transfers(["jax"]):
        pass


GUARDED = """
import json, jax, jax.numpy as jnp, numpy as np, anyaccel as aa
ONES, OTHER = np.ones(3, "float32"), jax.devices()[1]
x = jnp.arange(3.0)
step = jax.jit(lambda a, b: a * b)

def work():
    for i in range(5):
        y = step(x, ONES)
        jax.device_put(ONES)
        if i % 2:
            jax.device_put(y, OTHER)

with aa.ledger() as moved:
    work()
with jax.transfer_guard("log_explicit"):
    work()
print(json.dumps({kind: total.transfers for kind, total in moved.by("kind").items()}))
"""


def test_counts_are_those_of_the_transfer_guard() -> None:
    """Which logs each transfer; those of numbers, which it does not let pass either, are not in this work."""
    on_cpus = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True, check=False, env=on_cpus)
    assert done.returncode == 0, done.stderr
    logged = re.findall(r"(host-to-device|device-to-device) transfer:", done.stderr)
    counts = {kind: logged.count(kind.replace(" ", "-")) for kind in ("host to device", "device to device")}
    assert counts == json.loads(done.stdout) == {"host to device": 10, "device to device": 2}


def test_reads_are_those_of_pythons_profiler(x: jax.Array) -> None:
    """Which sees each first call of JAX's own property by which an array becomes NumPy's."""
    code, calls = inspect.unwrap(vars(type(x))["_value"].fget).__code__, []

    def profiled(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is code and getattr(frame.f_locals["self"], "_npy_value", 0) is None:
            calls.append(1)

    def work() -> None:
        for i in range(4):
            loss = jnp.square(x - i).sum()
            if loss > 3 and float(loss) > 4:
                str(x + i)
        jax.device_get(x + 1), (x + 2).tolist()

    with aa.ledger() as moved:
        before, _ = sys.getprofile(), sys.setprofile(profiled)
        try:
            work()
        finally:
            sys.setprofile(before)
    assert moved.totals("device to host").transfers == len(calls) >= 6


# -- errors of operations over several devices -----------------------------------------------------------------------


def line_of(text: str) -> str:
    lines = Path(__file__).read_text("utf-8").splitlines()
    (number,) = [i for i, each in enumerate(lines, 1) if each.strip().endswith(f"# {text}")]
    return f"{__file__}:{number}"


def add(here: jax.Array, there: jax.Array) -> str:
    with pytest.raises(DeviceMismatchError) as caught, translate_errors("a sum"):
        here + there  # mixes
    return str(caught.value)


def test_an_error_names_the_line_the_arrays_and_who_moved_them() -> None:
    """Arrays that a model holds are moved by JAX itself; outside of compiled functions it refuses."""
    here = jax.device_put(jnp.ones(1), jax.devices("cpu")[0])
    with aa.ledger():
        there = aa.move(jnp.ones(1), "cpu:1")  # moves
        text = add(here, there)
    named = f"here on cpu:0, there on cpu:1, moved there at {line_of('moves')}; "
    assert text.startswith(f"a sum: arrays are on several devices; at {line_of('mixes')}, with {named}")
    assert "Hint: create arrays on the device of the inputs" in text
    assert "moved there" not in add(here, there)


def test_a_version_that_copies_past_what_is_observed_has_no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX 0.8 and 0.9 have the functions that are replaced, and call others: counts would be too small in silence."""
    with monkeypatch.context() as patch:
        patch.setattr(transfer_observer, "replaced", lambda owner, name, value: nullcontext())
        transfer_observer.unseen_kinds.cache_clear()
        text = r"copies from host to device past the functions .* JAX 0\.10 does"
        with pytest.raises(CapabilityError, match=text), aa.no_transfers():
            jax.device_put(NP)
    transfer_observer.unseen_kinds.cache_clear()
    with pytest.raises(TransferError), aa.no_transfers():
        jax.device_put(NP)
