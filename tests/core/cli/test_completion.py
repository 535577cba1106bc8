"""`anyaccel completion`: valid scripts, and completions of commands, options and names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from anyaccel.plugin_testing import TinyBackend, plugin_module, write_distribution
from anyaccel.registry import registry


def completions(spawn, line: str, **further: str) -> list[str]:
    """The completions of the last word of a line, by the protocol that the scripts use."""
    words = line.split(" ")
    answer = spawn(_ANYACCEL_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1), **further)
    assert answer.returncode == 0, answer.stderr
    return [each.partition(",")[2] for each in answer.stdout.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_valid_in_its_shell(shell, call):
    script = call("completion", shell).stdout
    assert "_ANYACCEL_COMPLETE" in script and "anyaccel" in script
    program = shutil.which(shell)
    if program:
        checked = subprocess.run([program, "-n"], input=script, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


def test_an_unknown_shell_is_an_error(call):
    answer = call("completion", "cmd")
    assert answer.exit_code == 2 and "'cmd' is not one of 'bash', 'zsh', 'fish'" in answer.stderr


def test_commands_options_and_names_are_completions(spawn):
    assert completions(spawn, "anyaccel dem") == ["demo"]
    assert completions(spawn, "anyaccel demo --fr") == ["--framework"]
    assert completions(spawn, "anyaccel demo --framework n") == ["numpy"]
    assert completions(spawn, "anyaccel demo --device s") == ["sim"]
    assert completions(spawn, "anyaccel completion f") == ["fish"]


def test_errors_of_plugins_give_no_completions(monkeypatch):
    from anyaccel.cli import completion

    registry().register(plugin_module("p", backends=lambda: [TinyBackend("tiny", ("gpu:1", "cpu"))]), "p")
    offered = [item.value for item in completion.kinds(None, None, "")]  # type: ignore[arg-type]
    assert offered == ["cpu", "gpu", "sim"]
    assert [item.value for item in completion.plugins(None, None, "n")] == ["numpy"]  # type: ignore[arg-type]

    def broken() -> None:
        raise RuntimeError("no")

    monkeypatch.setattr("anyaccel.registry.registry", broken)
    assert completion.plugins(None, None, "") == []  # type: ignore[arg-type]


def test_what_a_plugin_prints_is_not_a_completion(tmp_path, spawn):
    source = "import sys; print('plain,hello'); print('oh', file=sys.stderr)"
    write_distribution(tmp_path, "anyaccel-loud", entry_points={"loud": "loud"}, modules={"loud": source})
    assert completions(spawn, "anyaccel demo --framework ", ANYACCEL_PLUGINS="loud") == ["numpy"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_after_the_line_of_the_help(environment, tmp_path):
    wrapper = tmp_path / "anyaccel"
    wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m anyaccel "$@"\n')
    wrapper.chmod(0o755)
    script = (
        'eval "$(anyaccel completion bash)"; COMP_WORDS=(anyaccel devices); COMP_CWORD=1; '
        '_anyaccel_completion anyaccel; echo "${COMPREPLY[@]}"'
    )
    settings = environment(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    answer = subprocess.run(["bash", "-c", script], env=settings, capture_output=True, text=True, check=False)
    assert answer.stdout.split() == ["devices"], answer.stderr
