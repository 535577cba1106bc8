"""`anyaccel resolve`: every candidate, the chosen one, and why not the others."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest


def test_every_candidate_and_the_chosen_one_are_shown(call):
    answer = call("resolve", "H100:2, L4, any", "--on", "1x H100-80GB, 2x L4")
    assert answer.exit_code == 0, answer.stderr
    lines = [" ".join(line.split()) for line in answer.stdout.splitlines()]
    assert "H100:2 H100-80GB there is 1" in lines
    assert "* L4 2x L4 gpu:1 chosen" in lines
    assert "any cpu cpu:0 fits, but L4 is preferred" in lines
    assert lines[-1] == "'H100:2, L4, any' is gpu:1"


def test_nothing_that_fits_is_status_1(call):
    answer = call("resolve", "H100", "--on", "cpu")
    assert answer.exit_code == 1 and answer.stdout.endswith("nothing fits 'H100'\n")
    assert call("resolve", "H100, any", "--on", "T4", "--strict").exit_code == 1
    assert call("resolve", "any").exit_code == 0


def test_json_and_a_machine_in_a_file(call, tmp_path):
    file = tmp_path / "node.json"
    file.write_text('{"devices": [{"product": "T4", "count": 2}]}')
    answer = json.loads(call("resolve", "T4:2", "--file", str(file), "--json").stdout)
    assert answer["devices"] == ["gpu:0", "gpu:1"] and answer["on"] == "in node.json"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("H100:x",), "character 6: 'x' is not a count"),
        (("any", "--on", "foo"), "the inventory 'foo'"),
        (("any", "--file", "none.json"), "none.json: the file does not exist"),
        (("any", "--on", "T4", "--file", "x"), "both --on and --file describe a machine"),
    ],
)
def test_errors_are_status_2(arguments, message, call):
    answer = call("resolve", *arguments)
    assert answer.exit_code == 2 and message in answer.stderr
    answer = json.loads(call("resolve", *arguments, "--json").stdout)
    assert message in answer["error"]["problem"] and answer["error"]["hint"]


def test_the_examples_of_the_help_are_valid(call):
    page = call("resolve", "--help").stdout
    examples = [shlex.split(line) for line in page.splitlines() if line.strip().startswith("anyaccel resolve ")]
    assert len(examples) == 4 and "  resolve " in call("--help").stdout
    for example in examples:
        assert call(*example[1:], "--help").exit_code == 0


def test_no_framework_and_no_plugin_is_loaded():
    code = "from anyaccel.cli import main; main()"
    command = [sys.executable, "-X", "importtime", "-c", code, "resolve", "any"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "anyaccel_resources.grammar" in imported
    assert not imported & {"torch", "jax", "tensorflow", "pyarrow", "anyaccel.numpy_backend"}
