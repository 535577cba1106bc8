"""`anyaccel doctor`: the table, the exit status, and computing on every device."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from anyaccel.machine import Machine
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.registry import registry
from anyaccel_devtools.commands.compute_probe import probe


@pytest.fixture
def machine(monkeypatch):
    """Sets the facts that are found."""

    def given(**facts):
        monkeypatch.setattr(Machine, "detect", classmethod(lambda cls: cls(system="linux", cores=4, **facts)))

    given()
    return given


def test_a_sound_machine_is_status_0(call, machine):
    answer = call("doctor")
    assert answer.exit_code == 0
    assert answer.stdout.splitlines()[1].split() == ["PASS", "accelerators", "only", "the", "CPU"]


def test_a_warning_is_status_1_and_says_what_to_do(call, machine):
    machine(shared_memory=1 << 20)
    answer = call("doctor")
    assert answer.exit_code == 1
    assert answer.stdout.endswith("shared memory: start the container with --shm-size=8g, or with --ipc=host\n")


def test_a_failure_is_status_2_also_in_json(call, machine):
    machine(pci_vendors=("nvidia",), shared_memory=1 << 20)
    answer = call("doctor", "--json")
    told = json.loads(answer.stdout)
    assert answer.exit_code == 2 and told["status"] == "FAIL"
    assert {each["status"] for each in told["checks"]} == {"PASS", "WARN", "FAIL"}
    assert all(each["fix"] for each in told["checks"] if each["status"] != "PASS")


def test_probing_computes_on_every_device(call, machine):
    told = json.loads(call("doctor", "--probe", "--json").stdout)
    checks = {each["name"]: each for each in told["checks"]}
    assert checks["numpy on cpu:0"]["message"].startswith("a small network trains the same as with NumPy, loss ")


def test_a_process_that_hangs_or_crashes_is_told(call, machine, monkeypatch):
    answer = call("doctor", "--probe", "--timeout", "0.01")
    assert answer.exit_code == 2 and "numpy computes" in answer.stdout
    assert "did not end within 0.01 s" in answer.stdout and "try it again with a larger --timeout" in answer.stdout
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert "the process that computes on its devices ended with status 1" in call("doctor", "--probe").stdout


def test_a_device_that_computes_something_else_fails(monkeypatch):
    class Wrong(NumpyBackend):
        framework = "wrong"
        import_roots = ("wrong",)

        def from_host(self, array, device, *, pinned=False):
            return super().from_host(array * 2 if array.dtype.kind == "f" and array.ndim == 2 else array, device)

    class Module:
        contract = 2

        @staticmethod
        def backends():
            return [Wrong()]

    from anyaccel.hookspecs import hookimpl

    Module.backends = hookimpl(Module.backends)
    registry().register(Module, "wrong")
    (check,) = [check for check in probe("wrong", 0) if check.name == "wrong on cpu:0"]
    assert check.status == "FAIL" and "anyaccel env" in check.fix


def test_nothing_is_initialised_and_no_framework_imported(environment):
    code = "import sys; from anyaccel.cli.main import group; group(['doctor'], standalone_mode=False)"
    command = [sys.executable, "-X", "importtime", "-c", code]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "anyaccel.machine.facts" in imported, done.stderr
    assert not imported & {"torch", "jax", "tensorflow", "keras", "pyarrow", "pynvml"}
