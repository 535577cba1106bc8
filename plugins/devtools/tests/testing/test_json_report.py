"""The message of a failure in the report of `anyaccel conform`: one line that says what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

TESTS = """
import numpy as np
import pytest
from hypothesis import given, strategies

names = ["", "b"]

def test_a_condition():
    assert all(isinstance(name, str) and name for name in names)

def test_two_numbers():
    assert len(set(names)) == len([1])

def test_several_lines():
    assert (
        len(names)
        == 5
    )

def test_texts():
    assert "cpu" == "gpu"

def test_arrays():
    np.testing.assert_array_equal(np.zeros(3), np.ones(3), err_msg="weight")

def test_an_exception():
    raise OSError("no board\\nin this machine")

def test_no_message():
    raise AssertionError

def test_a_message():
    assert names == [], "names are left"

@given(strategies.integers())
def test_an_example(n):
    assert n < 3

@given(strategies.integers())
def test_two_examples(n):
    if n > 100:
        raise OSError("big")
    if n < -100:
        raise OSError("small")

@pytest.fixture
def board():
    raise OSError("no board")

def test_a_fixture(board): ...

def test_fail():
    pytest.fail("the kit needs it", pytrace=False)
"""

MESSAGES = {
    "a_condition": "assert all(isinstance(name, str) and name for name in names)",
    "two_numbers": "assert len(set(names)) == len([1]) (2 == 1)",
    "several_lines": "assert ( len(names) == 5 ) (2 == 5)",
    "texts": "assert 'cpu' == 'gpu'",
    "arrays": "Arrays are not equal; weight; Mismatched elements: 3 / 3 (100%); Max absolute difference",
    "an_exception": "OSError: no board",
    "no_message": "raise AssertionError",
    "a_message": "names are left",
    "an_example": "assert n < 3 (3 < 3)",
    "two_examples": "OSError: ",
    "a_fixture": "OSError: no board",
    "fail": "Failed: the kit needs it",
}


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    """The message of each test, from one run."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-c", "pytest.ini", "-p", "no:cacheprovider"]
    command += ["-p", "anyaccel_devtools.testing.json_report", "--anyaccel-report=report", "test_it.py"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run(command, cwd=folder, capture_output=True, check=False, env=environment)
    lines = map(json.loads, (folder / "report").read_text().splitlines())
    return {line["test"].removeprefix("test_"): line["message"] for line in lines if "test" in line}


@pytest.mark.parametrize("name", MESSAGES)
def test_the_first_informative_line_is_shown(messages, name):
    assert messages[name].startswith(MESSAGES[name])
    assert "\n" not in messages[name]
