"""The commands in processes of their own: what plugins print or do wrong, completion, help and working folders."""

from __future__ import annotations

import json
import re

import pytest

from anyaccel.plugin_testing import write_distribution

COMMANDS = ("checkpoint", "conform", "doctor", "env", "estimate", "explain", "new-plugin", "plan")
RUN = "import os, sys; {}; os.execv(sys.executable, [sys.executable, '-P', '-m', 'anyaccel', *sys.argv[1:]])"

WRONG = """
from anyaccel.device import Device
from anyaccel.hookspecs import hookimpl
from anyaccel.plugin_testing import TinyBackend

contract = 2

class Wrong(TinyBackend):
    def devices(self):
        return [Device("npu")]

@hookimpl
def backends():
    return [Wrong("wrong", ("gpu",))]
"""


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize(
    "command", ["checkpoint", "conform", "doctor", "env", "estimate", "explain", "new-plugin", "plan"]
)
def test_examples_in_the_help_are_valid_commands(flag, command, call):
    answer = call(command, flag)
    assert answer.exit_code == 0
    examples = re.findall(r"^ {4}anyaccel (.*?)(?: {3}.*)?$", answer.stdout.partition("Examples:")[2], re.MULTILINE)
    assert examples
    for example in examples:
        assert call(*example.split(), "--help").exit_code == 0


def test_each_command_is_listed_with_a_sentence(call):
    listed = call("--help").stdout.partition("Commands:")[2].strip().splitlines()
    found = {line.split()[0]: line for line in listed}
    for name in COMMANDS:
        assert found[name].endswith(".") and not found[name].endswith("...") and "Not usable" not in found[name]


def test_plugins_are_completions(tmp_path, spawn):
    source = "import sys; print('plain,hello'); print('oh', file=sys.stderr)"
    write_distribution(tmp_path, "anyaccel-loud", entry_points={"loud": "loud"}, modules={"loud": source})
    settings = {"_ANYACCEL_COMPLETE": "bash_complete", "COMP_WORDS": "anyaccel conform ", "COMP_CWORD": "2"}
    answer = spawn(ANYACCEL_PLUGINS="loud", **settings)
    assert (answer.returncode, answer.stdout.splitlines()) == (0, ["plain,loud", "plain,numpy"])


def test_env_shows_a_wrong_answer_of_a_plugin(tmp_path, spawn):
    write_distribution(tmp_path, "anyaccel-wrong", entry_points={"wrong": "wrong"}, modules={"wrong": WRONG})
    answer = spawn("env", ANYACCEL_PLUGINS="wrong")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "devices() of its backend for wrong returned (Device(kind='npu', index=0),), not devices" in answer.stdout


def test_output_of_a_plugin_is_not_in_the_json_of_env(tmp_path, spawn):
    write_distribution(tmp_path, "anyaccel-loud", entry_points={"loud": "loud"}, modules={"loud": "print('hello')"})
    answer = spawn("env", "--json", ANYACCEL_PLUGINS="loud")
    assert (answer.returncode, answer.stderr) == (0, "hello\n")
    json.loads(answer.stdout)


@pytest.mark.parametrize("command", [("new-plugin", "chip"), ("conform", "numpy")])
def test_a_deleted_working_folder_is_an_error_with_a_hint(python, tmp_path, command):
    gone = tmp_path / "gone"
    gone.mkdir()
    answer = python(RUN.format("os.rmdir(os.getcwd())"), *command, cwd=gone)
    assert answer.stderr.startswith("error: the working folder cannot be read: ")
    assert "Hint: change to a folder that exists." in answer.stderr and answer.returncode == 2


@pytest.mark.parametrize("seconds", ["nan", "inf"])
def test_a_timeout_that_is_no_number_is_a_usage_error(spawn, seconds):
    answer = spawn("conform", "numpy", "--timeout", seconds)
    assert answer.returncode == 2 and f"{seconds} is not a number of seconds" in answer.stderr
    assert "Traceback" not in answer.stderr
