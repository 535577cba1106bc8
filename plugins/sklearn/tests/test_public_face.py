"""The public names of the distribution: `tests/public_face` has the lines that are compared."""

from __future__ import annotations

import inspect
import subprocess
import sys

import public_face
import pytest
import wrong_calls

import anyaccel as aa
import anyaccel_sklearn


def test_the_public_face_is_as_it_is_written() -> None:
    changes = public_face.changes("anyaccel_sklearn")
    assert not changes, f"{changes}\n{public_face.HOW_TO_WRITE}"


OLD = {"Estimator": "numpy_backend estimators", "FitPhase": "phases", "FitResults": "results"}
PAIRS = ["Beyond", "Different", "PairCondition", "PairSampler", "Same", "TripletSampler", "Where", "Within"]
OLD |= dict.fromkeys(PAIRS, "data")


@pytest.mark.parametrize("name", OLD)
def test_old_names_are_the_same_objects(name: str) -> None:
    assert getattr(aa, name) is getattr(anyaccel_sklearn, name)
    for module in OLD[name].split():
        namespace: dict[str, object] = {}
        exec(f"from anyaccel.{module} import {name}", namespace)  # noqa: S102 - as users have written it
        assert namespace[name] is getattr(anyaccel_sklearn, name)


def test_what_users_call_has_the_parameters_that_it_had() -> None:
    assert list(inspect.signature(aa.Estimator).parameters) == ["estimator", "method", "output_dtype"]
    first = list(inspect.signature(aa.FitPhase).parameters)
    assert first[:4] == ["label", "data", "nodes", "batch_size"]
    settings = ["shuffle", "drop_last", "seed"]
    pairs = ["batch_size", "match", "unlike", "per_anchor", "unlike_per_anchor", *settings]
    assert list(inspect.signature(aa.PairSampler).parameters) == pairs
    triplets = ["batch_size", "positive", "negative", "per_anchor", *settings]
    assert list(inspect.signature(aa.TripletSampler).parameters) == triplets
    for condition, parameters in ((aa.Same, "column"), (aa.Within, "column distance"), (aa.Where, "column function")):
        assert list(inspect.signature(condition).parameters) == parameters.split()


CALLS = wrong_calls.offered(anyaccel_sklearn, of_core={"FitPhase", "FitResults", "PairCondition"})


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_that_there_is_not_is_an_error_with_those_that_there_are(name: str) -> None:
    wrong_calls.check_refused(CALLS[name])


UNUSED = """
import sys
import numpy as np
import anyaccel as aa

x = np.random.default_rng(0).normal(size=(20, 2)).astype("float32")
net = aa.SequentialMLP(1, n_layers=1)
assert aa.place(net, aa.Accelerator("cpu")) is net and aa.move({"x": x}, "cpu")["x"] is x
assert len(aa.fit(net, (x, x[:, :1]), loss="mse", epochs=2, progress="none").predict(x)) == 20
assert not [name for name in sys.modules if name.partition(".")[0] in ("anyaccel_sklearn", "sklearn")]
"""


def test_what_has_no_estimator_does_not_import_it() -> None:
    done = subprocess.run([sys.executable, "-c", UNUSED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
