"""All checks of a machine: plugins that are broken, lack their framework, or check something themselves."""

from __future__ import annotations

from collections.abc import Iterable

from anyaccel.errors import PluginError
from anyaccel.machine import Machine
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.plugin_loader import Plugin
from anyaccel.plugin_testing import TinyBackend
from anyaccel_devtools.doctor import Check, HealthChecks, check_machine, cuda_driver_checks

MACHINE = Machine(system="linux", cores=2)


class Cores(HealthChecks):
    """Checks something."""

    def health_checks(self, machine: Machine) -> Iterable[Check]:
        yield Check(name="tiny", status="WARN", message=f"{machine.cores} cores", fix="buy more")


class Raises(HealthChecks):
    """Checks that raise."""

    def health_checks(self, machine: Machine) -> Iterable[Check]:
        raise ZeroDivisionError("nothing to divide")


class Checked(TinyBackend):
    """A backend that checks something."""

    capabilities = {HealthChecks: Cores}

    def __init__(self, root: str = "json") -> None:
        super().__init__()
        self.import_roots = (root, "no_such_package")


class Failing(Checked):
    """A backend whose checks raise."""

    capabilities = {HealthChecks: Raises}


class Absent(Checked):
    """A backend whose framework is not installed."""

    def __init__(self) -> None:
        super().__init__("no_such_framework")


def checks_of(*backends: type, error: BaseException | None = None) -> list[Check]:
    plugin = Plugin("tiny", "anyaccel-tiny", "1.0", error, tuple(backend() for backend in backends))
    return [check for check in check_machine(MACHINE, [plugin]) if check.name not in ("accelerators", "threads")]


def test_a_plugin_that_works_passes_and_adds_its_checks():
    assert checks_of(Checked) == [
        Check(name="plugin tiny", status="PASS", message="anyaccel-tiny 1.0"),
        Check(name="tiny", status="WARN", message="2 cores", fix="buy more"),
    ]


def test_an_older_plugin_without_checks_passes():
    assert [check.status for check in checks_of(TinyBackend) if check.name == "plugin tiny"] == ["PASS"]


def test_a_broken_plugin_fails_with_its_cause_and_hint():
    (check,) = checks_of(error=PluginError("it is broken", hint="mend it"))
    assert (check.status, check.message, check.fix) == ("FAIL", "it is broken.", "mend it")


def test_a_plugin_without_its_framework_is_warned_of_and_not_asked():
    check = checks_of(Absent)[-1]
    assert (check.name, check.status) == ("tiny", "WARN")
    assert check.message == "plugin tiny is installed, but no_such_framework is not"
    assert check.fix == "python -m pip install no_such_framework"


def test_checks_that_raise_are_a_fault_of_their_plugin():
    check = checks_of(Failing)[-1]
    assert (check.status, check.name) == ("FAIL", "plugin tiny")
    assert check.message == "its checks of the machine fail: ZeroDivisionError: nothing to divide"
    assert check.fix == "update anyaccel-tiny"


def test_checks_that_another_plugin_brought_are_its_own_fault():
    brought = type("Brought", (Raises,), {"__module__": "vendor_checks.health"})
    failing = type("Served", (Checked,), {"capabilities": {HealthChecks: brought}})
    check = checks_of(failing)[-1]
    assert (check.status, check.name, check.fix) == ("FAIL", "checks of vendor_checks", "update vendor_checks")


def test_the_built_in_backend_is_no_plugin_to_be_told_of():
    plugin = Plugin("numpy", "anyaccel", "0.1", backends=(NumpyBackend(),))
    assert [check.name for check in check_machine(MACHINE, [plugin])] == ["accelerators", "threads"]


def test_drivers_that_are_too_old_for_a_cuda():
    def status(driver: str, cuda: str) -> list[str]:
        machine = Machine(driver_versions={"nvidia": driver} if driver else {})
        return [f"{check.status} {check.message}" for check in cuda_driver_checks(machine, "made-up", cuda)]

    assert status("535.104.05", "13.0") == [
        "FAIL made-up is built with CUDA 13.0, which needs driver 580 or newer, but the driver is 535.104.05"
    ]
    assert status("580.65.06", "13.0") == ["PASS CUDA 13.0 with driver 580.65.06"]
    assert status("535.104.05", "12") == ["PASS CUDA 12 with driver 535.104.05"]
    assert status("", "13.0") == status("535.1", "99.0") == []  # nothing is known of these


def test_variables_that_nothing_reads_are_told():
    environment = {
        "ANYACCEL_DEVCE": "gpu",
        "ANYACCEL_DEVICE": "cpu",
        "ANYACCEL_TINY_SIZE": "3",
        "ANYACCEL_COLOUR": "red",
    }
    machine = Machine(system="linux", cores=2, environment=environment)
    plugin = Plugin(name="tiny", distribution="tiny", version="1", backends=(TinyBackend(),))
    told = {
        check.name: check
        for check in check_machine(machine, [plugin])
        if check.name != "tiny" and check.status == "WARN"
    }
    assert set(told) == {"ANYACCEL_DEVCE", "ANYACCEL_COLOUR"}
    assert told["ANYACCEL_DEVCE"].message == "ANYACCEL_DEVCE=gpu has no effect"
    assert told["ANYACCEL_DEVCE"].fix == "unset ANYACCEL_DEVCE; did you mean 'ANYACCEL_DEVICE'?"
    assert "anyaccel reads ANYACCEL_DEVICE, " in told["ANYACCEL_COLOUR"].fix


def test_plugins_that_are_named_and_not_installed_are_told():
    machine = Machine(system="linux", cores=2, environment={"ANYACCEL_PLUGINS": "tiny,tinny"})
    checks = check_machine(machine, [Plugin(name="tiny", distribution="tiny", version="1")])
    (told,) = [check for check in checks if check.status == "WARN"]
    assert "names 'tinny', but no plugin with this name is installed" in told.message
    assert told.fix == "did you mean 'tiny'?"
