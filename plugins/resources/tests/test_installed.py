"""What core sees of this distribution: it is imported when it is used, and core knows which texts are requests."""

from __future__ import annotations

import subprocess
import sys

import pytest

import anyaccel as aa
from anyaccel.device import REQUEST
from anyaccel_resources.grammar import KINDS
from anyaccel_resources.products import product_names

CODE = """
import sys
import numpy as np
import anyaccel as aa

x = np.ones((8, 2), "float32")
assert aa.move(aa.place(x, "cpu"), aa.Accelerator("cpu")) is x
fitted = aa.fit(aa.SequentialMLP(1), (x, x[:, :1]), loss="mse", epochs=1, progress="none")
fitted.predict(x)
assert "anyaccel_resources" not in sys.modules
assert str(aa.Accelerator("any").device_string("numpy")) and "anyaccel_resources" in sys.modules
"""


def test_it_is_imported_when_a_request_is_made_and_not_before() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [*product_names(), "any"])
def test_core_knows_the_names_of_products(name: str) -> None:
    """For the message where this distribution is not installed."""
    for text in (name, name.lower(), f"{name}:2", f" {name}-80GB", f"{name}!"):
        assert REQUEST.fullmatch(text), text


@pytest.mark.parametrize("kind", [*KINDS, "my_chip", "gpuu", "ipu", "hl225"])
def test_kinds_are_no_products(kind: str) -> None:
    for text in (kind, f"{kind}:1", f" {kind.upper()}:x", f"{kind}:-1", f"{kind} 0"):
        assert not REQUEST.fullmatch(text), text
    assert type(aa.Accelerator(kind)) is aa.Accelerator
