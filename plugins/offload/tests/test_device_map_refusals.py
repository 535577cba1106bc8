"""`anyaccel device-map`: what it refuses without a framework that divides models; tests of torch have the plans."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from anyaccel.cli.main import group

MODULE = """
import anyaccel as aa

def build():
    return aa.SequentialMLP(1)

def fails():
    raise KeyError("mine")

def text():
    return "no model"

number = 3
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(MODULE)
    return str(tmp_path / "model.py")


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("build", ["--on", "cpu 1GB"], "numpy cannot split models on 1x cpu"),
        ("fails", ["--on", "cpu 1GB"], "fails() fails: KeyError: 'mine'"),
        ("text", ["--on", "cpu 1GB"], "returns a str, which no installed plugin supports as a model"),
        ("number", ["--on", "cpu 1GB"], "is a int, not a model or a function that returns one"),
        ("build", ["--on", "2x 24"], "'24' is neither a kind of device"),
        ("build", ["--on", "cpu", "--file", "x"], "--on and --file both give a machine"),
        ("build", ["--on", "cpu", "--input", "long"], "--input 'long' is not a tensor"),
    ],
)
def test_what_is_no_model_or_no_machine_is_refused(module: str, name: str, options: list[str], says: str) -> None:
    result = CliRunner().invoke(group, ["device-map", f"{module}:{name}", *options])
    shown = " ".join((result.output + str(result.exception)).split())
    assert says in shown and result.exit_code != 0
