"""`anyaccel conform`: which plugin, which Subject, what is counted, and what goes wrong."""

from __future__ import annotations

import importlib.util
import json

import pytest

from anyaccel.errors import PluginError
from anyaccel.plugin_loader import Plugin
from anyaccel.plugin_testing import TinyBackend, plugin_module, write_distribution
from anyaccel.registry import registry
from anyaccel_devtools.commands import conform
from anyaccel_devtools.numpy_subject import NumpySubject
from anyaccel_devtools.testing import subject_selection
from anyaccel_devtools.testing.subject import Subject
from anyaccel_devtools.testing.subject_discovery import canonical_name, published_subject

pytestmark = pytest.mark.slow

PLUGIN = """
import os
from anyaccel.hookspecs import hookimpl
from anyaccel.plugin_testing import TinyBackend

class Odd(TinyBackend):
    {body}

contract = 2

@hookimpl
def backends():
    return [{made}]
"""
SUBJECT = """
import pytest
import numpy as np
from anyaccel_devtools.testing import Subject
from odd_plugin import Odd

class OddSubject(Subject):
    @pytest.fixture
    def backend(self):
        return Odd("odd", ("gpu:0", "cpu"))

    @pytest.fixture
    def new_tensor(self, backend):
        return lambda: backend.new(0.0)

    @pytest.fixture
    def from_numpy(self, backend):
        return lambda array: backend.new(np.array(array))

    @pytest.fixture
    def to_numpy(self):
        return lambda cell: np.array(cell.value)
"""


@pytest.fixture
def odd(tmp_path):
    """`odd(body=..., made=..., subject=...)`: an installed distribution, anyaccel-odd, with one plugin."""

    def write(*, body="pass", made='Odd("odd", ("gpu:0", "cpu"))', subject="", entry="odd_kit:OddSubject", name="odd"):
        modules = {"odd_plugin": PLUGIN.format(body=body, made=made)}
        if subject:
            modules["odd_kit"] = subject
        write_distribution(tmp_path, "anyaccel-odd", entry_points={"odd": "odd_plugin"}, modules=modules)
        if subject:
            with (tmp_path / "anyaccel_odd-0.1.dist-info/entry_points.txt").open("a") as file:
                file.write(f"[anyaccel.conformance]\n{name} = {entry}\n")

    return write


@pytest.fixture
def conform_json(spawn):
    """`conform_json("numpy")`: status and what `--json` prints."""

    def run(*arguments, **environment):
        answer = spawn("conform", *arguments, "--json", **{"ANYACCEL_PLUGINS": "odd", **environment})
        assert answer.stderr == "", answer.stderr
        return answer.returncode, json.loads(answer.stdout)

    return run


def test_a_plugin_that_could_not_be_imported_is_an_error_with_the_cause():
    hanging = Plugin("hangs", "anyaccel-hangs", "1.0", PluginError("its import did not end within 30 s"))
    with pytest.raises(PluginError, match=r"hangs \(anyaccel-hangs 1.0\) is broken: its import did not end"):
        conform.find_plugin("hangs", [hanging])


def test_a_plugin_that_was_too_slow_is_an_error_that_gives_it_more_time():
    slow = Plugin("slow", "anyaccel-slow", "1.0", delays=["its import did not end within 30 s"])
    with pytest.raises(PluginError, match=r"slow \(anyaccel-slow 1.0\) is slow: its import.*--timeout 300"):
        conform.find_plugin("slow", [slow])


# -- core's own --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared():
    """What several tests look at is made once."""
    return {}


@pytest.fixture
def simulated(shared, conform_json):
    """The card of numpy on simulated devices."""
    if "simulated" not in shared:
        shared["simulated"] = conform_json("numpy", "--device", "sim:0", ANYACCEL_SIMULATE="2")
    return shared["simulated"]


def test_core_itself_conforms(simulated):
    status, report = simulated
    assert (status, report["conforms"], report["plugin"], report["distribution"]) == (0, True, "numpy", "anyaccel")
    (backend,) = report["backends"]
    assert (backend["framework"], backend["kinds"], backend["devices"]) == (
        "numpy",
        ["cpu", "sim"],
        ["cpu:0", "sim:0", "sim:1"],
    )
    assert (backend["device"], backend["backend"]) == ("sim:0", "anyaccel.numpy_backend.backend:NumpyBackend")
    assert list(backend["capabilities"]) == ["backend", "exchange", "compute", "multi_step", "memory"]
    for name, counts in backend["capabilities"].items():
        # calls by keyword, the axis of the batch, own steps, files of weights, offload
        without = backend["not_testable_here"].get("anyaccel-offload is not installed", 0)
        undeclared = 34 - without if name == "compute" else 0
        assert counts["passed"] > 5 and (counts["failed"], counts["not_declared"]) == (0, undeclared), name
    assert (backend["failures"], backend["missing_fixtures"]) == ([], ["mutating_model"])
    assert not [reason for reason in backend["not_testable_here"] if "device" in reason or "Subject" in reason]


def test_versions_are_reported(simulated):
    versions = simulated[1]["versions"]
    assert {"python", "numpy", "pytest", "hypothesis"} <= set(versions)
    assert all(versions.values()) and simulated[1]["platform"]


def test_without_json_it_prints_tables(spawn):
    answer = spawn("conform", "numpy", ANYACCEL_PLUGINS="")
    assert (answer.returncode, answer.stderr) == (0, "")
    first, title, *rows = answer.stdout.splitlines()
    assert first.startswith("numpy on cpu, sim, from anyaccel") and first.endswith("tested on cpu:0")
    assert title.split("  ")[0] == "capability" and "not testable here" in title
    assert [row.split()[0] for row in rows[:5]] == ["backend", "exchange", "compute", "multi_step", "memory"]
    assert any(row.startswith("not testable here: ") and row.endswith("(one device only)") for row in rows[5:])
    assert "to test more, define in the Subject: mutating_model" in rows


def test_a_chosen_capability_is_tested_alone(conform_json):
    status, report = conform_json("numpy", "--capability", "memory", "--capability", "backend", ANYACCEL_PLUGINS="")
    (backend,) = report["backends"]
    assert (status, list(backend["capabilities"])) == (0, ["backend", "memory"])
    assert all(counts["passed"] > 5 for counts in backend["capabilities"].values())


def test_the_capabilities_that_can_be_chosen_are_those_of_the_kit(call):
    answer = call("conform", "numpy", "--capability", "speed")
    assert answer.exit_code == 2
    names = ", ".join(f"'{name}'" for name in conform.CAPABILITIES)
    assert f"'speed' is not one of {names}" in answer.stderr


# -- which plugin ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("nope",),
            (
                "no plugin or distribution called 'nope' is installed",
                "Available: numpy",
                "`anyaccel plugins` lists what is installed",
            ),
        ),
        (("numpy", "--device", "gpu:0"), ("plugin numpy (anyaccel", "does not support gpu:0", "numpy on cpu, sim")),
        (("numpy", "--device", "no where"), ("'no where' does not name a device",)),
    ],
)
def test_an_unknown_plugin_or_device_is_reported(arguments, words, call):
    answer = call("conform", *arguments)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert all(word in answer.stderr for word in words), answer.stderr
    answer = call("conform", *arguments, "--json")
    assert (answer.exit_code, answer.stderr) == (2, "")
    assert all(word in json.loads(answer.stdout)["error"]["message"] for word in words)


def test_a_device_that_is_not_on_this_machine_is_reported_with_the_reason(spawn):
    answer = spawn("conform", "numpy", "--device", "sim:1", ANYACCEL_PLUGINS="", ANYACCEL_SIMULATE="1")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "numpy has no device sim:1 on this machine (1 simulated device was made" in answer.stderr
    assert "Available: cpu:0, sim:0" in answer.stderr


def no_policy():
    """A hook that offers nothing."""
    return {}


@pytest.mark.parametrize(
    ("hooks", "has"),
    [
        ({"phase_end": lambda run: None, "phase_start": lambda phase: None}, ", only hooks (phase_start, phase_end)"),
        ({"policies": no_policy}, ", only hooks (policies)"),
        ({}, " and no hooks"),
    ],
)
def test_a_plugin_without_a_backend_is_an_error(hooks, has, call):
    registry().register(plugin_module("moments", **hooks), "moments")
    words = (
        f"plugin moments (not a distribution) has no backend to test{has}",
        "Available: plugins with a backend: numpy. Hint: name one of these",
    )
    answer = call("conform", "moments")
    assert (answer.exit_code, answer.stdout) == (2, "") and all(word in answer.stderr for word in words), answer.stderr
    answer = call("conform", "moments", "--json")
    assert (answer.exit_code, answer.stderr) == (2, "")
    error = json.loads(answer.stdout)["error"]
    assert error["type"] == "CapabilityError" and all(word in error["message"] for word in words)


def test_a_broken_plugin_is_reported_with_cause_and_hint(tmp_path, spawn):
    write_distribution(
        tmp_path, "anyaccel-odd", entry_points={"odd": "odd_plugin"}, modules={"odd_plugin": "import not_there"}
    )
    answer = spawn("conform", "odd", ANYACCEL_PLUGINS="odd")
    assert answer.returncode == 2
    assert "plugin odd (anyaccel-odd 0.1) is broken: ModuleNotFoundError" in answer.stderr
    assert "install the module 'not_there'" in answer.stderr


@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_a_missing_requirement_is_reported_with_the_line_that_installs_it(missing, call, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(conform, "find_spec", lambda name: None if name == missing else found(name))
    answer = call("conform", "numpy")
    assert answer.exit_code == 2
    assert f"the conformance kit needs pytest and hypothesis, but {missing} cannot be imported" in answer.stderr
    assert f"python -m pip install {missing}" in answer.stderr


def test_a_kit_that_does_not_finish_in_time_is_an_error(odd, spawn):
    odd(body="def devices(self):\n        import time; time.sleep(60)")
    answer = spawn("conform", "odd", "--timeout", "3", ANYACCEL_PLUGINS="odd")
    assert answer.returncode == 2
    assert "the kit did not finish on plugin odd within 3 s" in answer.stderr and "--timeout" in answer.stderr


# -- which Subject -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["odd", "Anyaccel_Odd"])
def test_without_a_subject_tests_that_need_its_fixtures_are_not_testable(name, odd, conform_json):
    odd()
    status, report = conform_json(name)
    (backend,) = report["backends"]
    assert (status, backend["subject"], backend["device"]) == (0, "derived", "gpu:0")
    counts = backend["capabilities"]["backend"]
    assert counts["failed"] == 0 and counts["passed"] >= 15
    reasons = backend["not_testable_here"]
    assert reasons["the plugin publishes no Subject with the fixture 'new_tensor'"] == 5
    assert reasons["the plugin publishes no Subject with the fixture 'from_numpy'"] > 5
    for capability in ("exchange", "compute", "multi_step", "memory"):
        assert set(backend["capabilities"][capability]) == {"passed", "failed", "not_declared", "not_testable_here"}
        assert backend["capabilities"][capability]["not_declared"] > 5, capability


@pytest.mark.parametrize("name", ["odd", "odd.odd.cpu"])
def test_a_published_subject_is_used(name, odd, conform_json):
    odd(subject=SUBJECT, name=name)
    status, report = conform_json("odd")
    (backend,) = report["backends"]
    assert (status, backend["subject"]) == (0, "odd_kit:OddSubject")
    assert backend["capabilities"]["backend"]["not_testable_here"] <= 2, backend["not_testable_here"]


def test_the_device_option_is_used(odd, conform_json):
    odd(subject=SUBJECT)
    assert conform_json("odd", "--device", "cpu")[1]["backends"][0]["device"] == "cpu:0"


def test_each_backend_has_its_own_report(odd, conform_json, spawn):
    odd(made='Odd("odd", ("gpu:0", "cpu")), Odd("even", ("cpu",))', subject=SUBJECT, name="odd.odd")
    status, report = conform_json("odd")
    assert status == 0
    assert [(each["framework"], each["subject"]) for each in report["backends"]] == [
        ("odd", "odd_kit:OddSubject"),
        ("even", "derived"),
    ]
    assert [each["framework"] for each in conform_json("odd", "--device", "gpu:0")[1]["backends"]] == ["odd"]
    shown = spawn("conform", "odd", ANYACCEL_PLUGINS="odd").stdout
    assert "odd on gpu, cpu, from anyaccel-odd 0.1" in shown and "even on cpu, from anyaccel-odd 0.1" in shown


@pytest.mark.parametrize(
    ("subject", "entry", "words"),
    [
        ("raise ImportError('no kit')", "odd_kit:OddSubject", "ImportError: no kit"),
        ("OddSubject = 3", "odd_kit:OddSubject", "odd_kit:OddSubject is not a Subject"),
        (SUBJECT, "odd_kit:Other", "has no attribute 'Other'"),
    ],
)
def test_a_subject_that_cannot_be_used_is_reported(subject, entry, words, odd, spawn):
    odd(subject=subject, entry=entry)
    answer = spawn("conform", "odd", ANYACCEL_PLUGINS="odd")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "the kit cannot run on odd: " in answer.stderr and words in answer.stderr
    assert f"fix {entry}" in answer.stderr


def test_a_subject_of_another_distribution_is_ignored(odd, tmp_path, conform_json):
    odd()
    info = tmp_path / "stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[anyaccel.conformance]\nodd = stranger_kit:Nope\n")
    assert conform_json("odd")[1]["backends"][0]["subject"] == "derived"


def test_the_most_specific_name_is_used(odd, tmp_path, monkeypatch):
    odd(subject=SUBJECT)
    with (tmp_path / "anyaccel_odd-0.1.dist-info/entry_points.txt").open("a") as file:
        file.write("odd.tiny = a:B\nodd.tiny.gpu = c:D\n")
    monkeypatch.syspath_prepend(tmp_path)
    one, other = TinyBackend("tiny", ("gpu:0",)), TinyBackend("tiny", ("cpu",))
    plugin = Plugin("odd", "Anyaccel.odd", "0.1", backends=(one, other))
    assert [published_subject(plugin, each) for each in plugin.backends] == ["c:D", "a:B"]
    assert published_subject(Plugin("odd", "anyaccel-odd", "0.1", backends=(TinyBackend("else"),)), TinyBackend("else"))
    assert not published_subject(Plugin("odd", "anyaccel-odd", "0.1", backends=(one, other)), TinyBackend("else"))


def test_distribution_names_are_compared_as_indexes_do():
    assert canonical_name("My__Chip.for-X") == "my-chip-for-x"


def test_a_derived_subject_has_the_registrys_own_backend():
    registry().register(plugin_module("tiny", backends=lambda: [TinyBackend("tiny", ("cpu",))]), "tiny")
    derived = subject_selection.select_subject("tiny", 0, "", "")
    assert issubclass(derived, subject_selection.DerivedSubject) and issubclass(derived, Subject)
    assert issubclass(subject_selection.select_subject("numpy", 0, "", "cpu:0"), NumpySubject)


# -- results ----------------------------------------------------------------------------------------------------------


def test_a_failed_test_is_reported_with_the_first_informative_line(odd, conform_json, spawn):
    odd(body='def device_string(self, device):\n        return ""')
    status, report = conform_json("odd")
    assert (status, report["conforms"]) == (1, False)
    (failure,) = report["backends"][0]["failures"]
    assert failure["id"] == "TestBackend::test_device_strings_are_distinct_texts"
    assert failure["capability"] == "backend"
    assert failure["message"] == "assert all(isinstance(name, str) and name for name in names)"
    assert report["backends"][0]["capabilities"]["backend"]["failed"] == 1
    answer = spawn("conform", "odd", ANYACCEL_PLUGINS="odd")
    assert answer.returncode == 1
    assert "failed: TestBackend::test_device_strings_are_distinct_texts: assert" in answer.stdout


def test_an_error_before_or_after_a_test_is_a_failure(odd, conform_json, tmp_path):
    before = "        raise OSError('no board')\n        return lambda: backend.new(0.0)"
    after = 'yield Odd("odd", ("gpu:0", "cpu"))\n        raise OSError("not closed")'
    odd(subject=SUBJECT.replace("        return lambda: backend.new(0.0)", before))
    status, report = conform_json("odd")
    assert status == 1
    failed = report["backends"][0]["failures"]
    assert len(failed) == 5 and {each["message"] for each in failed} == {"OSError: no board"}
    (tmp_path / "odd_kit.py").write_text(SUBJECT.replace('return Odd("odd", ("gpu:0", "cpu"))', after))
    status, report = conform_json("odd")
    counts = report["backends"][0]["capabilities"]["backend"]
    assert (status, counts["passed"]) == (1, 0) and counts["failed"] > 30
    assert {each["message"] for each in report["backends"][0]["failures"]} == {"OSError: not closed"}


def test_an_expected_failure_is_a_failure(odd, conform_json):
    marked = SUBJECT.replace(
        "    @pytest.fixture\n    def new_tensor",
        "    @pytest.fixture(autouse=True)\n    def known(self, request):\n"
        "        request.applymarker(pytest.mark.xfail(reason='known'))\n\n    @pytest.fixture\n    def new_tensor",
    )
    odd(subject=marked, body='def device_string(self, device):\n        return ""')
    status, report = conform_json("odd")
    assert status == 1
    assert [each["id"] for each in report["backends"][0]["failures"]] == [
        "TestBackend::test_device_strings_are_distinct_texts"
    ]


def test_a_crash_of_the_process_still_gives_a_report(odd, conform_json):
    odd(body="def device_info(self, device):\n        os._exit(7)")
    status, report = conform_json("odd")
    assert (status, report["conforms"]) == (1, False)
    (backend,) = report["backends"]
    assert [failure["id"] for failure in backend["failures"]] == ["TestBackend::test_device_info_is_well_formed"]
    assert "the process ended with status 7 in this test, and no test after it ran" in backend["failures"][0]["message"]
    assert backend["capabilities"]["backend"]["passed"] > 2


def test_a_process_that_ends_at_once_is_reported(odd, spawn):
    odd(subject="import os, sys; print('no licence', file=sys.stderr); os._exit(3)")
    answer = spawn("conform", "odd", ANYACCEL_PLUGINS="odd")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "the kit cannot run on odd: " in answer.stderr


def test_pytest_settings_of_the_user_change_nothing(odd, conform_json, tmp_path):
    odd(subject=SUBJECT)
    here = tmp_path / "here"
    here.mkdir()
    (here / "conftest.py").write_text("raise SystemExit('a stranger')")
    status, report = conform_json(
        "odd", PYTEST_ADDOPTS="-k nothing_at_all --nonsense", PYTEST_PLUGINS="not_there", cwd=here
    )
    assert status == 0 and report["backends"][0]["capabilities"]["backend"]["passed"] > 30
    assert [each.name for each in here.iterdir()] == ["conftest.py"]
