"""The command line in a child process: status, pipes, terminals, and plugins that fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from anyaccel.plugin_testing import write_distribution

COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|38|9[0-7])[;\dm]")

PLUGIN = """
from contextlib import nullcontext
from anyaccel.backend import Backend
from anyaccel.device import Device
from anyaccel.hookspecs import hookimpl

class Odd(Backend):
    framework, kinds, import_roots = {name!r}, ("gpu",), ({name!r},)
    def devices(self):
        {body}
        return [Device("gpu")]
    def device_of(self, obj): return None
    def place(self, obj, device): return obj
    def move(self, tensor, device, *, pinned=False): return tensor
    def scope(self, device): return nullcontext()
    def device_string(self, device): return "odd 0"

contract = 2

@hookimpl
def backends():
    return [Odd()]
"""


def odd(folder, name, body="pass"):
    """A distribution that works, but for what its devices() does when it is called."""
    source = PLUGIN.format(name=name, body=body)
    write_distribution(
        folder, f"anyaccel-{name}", entry_points={name: f"{name}_plugin"}, modules={f"{name}_plugin": source}
    )


# -- plugins -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def broken(tmp_path):
    """Three installed distributions: one that works, one whose import fails, one without its framework."""
    odd(tmp_path, "good")
    for name, source in (
        ("hurt", "raise RuntimeError('first\\nsecond \\x1b[31mred')"),
        ("lost", "import a_framework_that_is_not_there"),
    ):
        write_distribution(
            tmp_path,
            f"anyaccel-{name}",
            entry_points={name: f"{name}_plugin"},
            modules={f"{name}_plugin": source},
            version="2.1",
        )
    return {"ANYACCEL_PLUGINS": "good,hurt,lost"}


def test_a_broken_plugin_is_listed_with_cause_and_hint(broken, spawn):
    answer = spawn("plugins", **broken)
    assert (answer.returncode, answer.stderr) == (1, "")
    lines = answer.stdout.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["plugin", "numpy", "good", "hurt", "lost"]
    assert lines[5:] == [
        "hurt is broken: RuntimeError: first second \\x1b[31mred",
        "  Hint: update or uninstall anyaccel-hurt, or exclude it with ANYACCEL_PLUGINS",
        "lost is broken: ModuleNotFoundError: No module named 'a_framework_that_is_not_there'",
        "  Hint: install the module 'a_framework_that_is_not_there', or uninstall anyaccel-lost",
    ]
    assert "anyaccel-hurt 2.1" in lines[3] and "broken" in lines[3]
    assert "\x1b" not in answer.stdout


def test_a_broken_plugin_is_in_the_json(broken, spawn):
    answer = spawn("plugins", "--json", **broken)
    assert (answer.returncode, answer.stderr) == (1, "")
    report = {each["name"]: each for each in json.loads(answer.stdout)["plugins"]}
    assert {name: each["status"] for name, each in report.items()} == {
        "numpy": "ok",
        "good": "ok",
        "hurt": "broken",
        "lost": "broken",
    }
    assert report["lost"]["cause"].startswith("ModuleNotFoundError") and "\n" not in report["hurt"]["cause"]
    assert report["lost"]["hint"] and report["lost"]["distribution"] == "anyaccel-lost"


def test_a_broken_plugin_breaks_neither_the_devices_nor_the_demo(broken, spawn):
    answer = spawn("devices", "--json", **broken)
    assert (answer.returncode, answer.stderr) == (0, "")
    listings = {each["framework"]: each["devices"] for each in json.loads(answer.stdout)["frameworks"]}
    assert [each["native"] for each in listings["good"]] == ["odd 0"]
    assert [each["device"] for each in listings["numpy"]] == ["cpu:0"]
    assert spawn("demo", "--epochs", "1", "--json", **broken).returncode == 0


def test_plugins_can_be_switched_off(broken, spawn):
    answer = spawn("plugins", ANYACCEL_PLUGINS="")
    assert answer.returncode == 0
    assert len(answer.stdout.splitlines()) == 2


# -- devices -----------------------------------------------------------------------------------------------------------

FAILURES = {
    "raises": ("raise ValueError('no driver')", "ValueError: no driver"),
    "leaves": ("import os; os._exit(7)", "ended with status 7"),
    "leaves quietly": ("import os; os._exit(0)", "returned no list: ''"),
    "says other things": (
        "import os; print('[1]', '{}', sep='\\n', flush=True); os._exit(0)",
        "returned no list: '[1]",
    ),
}


EXPECTING = """
from contextlib import nullcontext
from anyaccel.backend import Backend, DeviceInfo
from anyaccel.device import Device
from anyaccel.machine import ExpectedDevices
from anyaccel.hookspecs import hookimpl

class Expected(ExpectedDevices):
    def expected_of_kind(self, kind, machine):
        {body}

class Foreseen(Backend):
    framework, kinds, import_roots = "foreseen", ("gpu",), ("foreseen",)
    capabilities = {{ExpectedDevices: Expected}}
    def devices(self):
        return [Device("gpu"), Device("gpu", 1)]
    def device_info(self, device):
        return DeviceInfo("asked")
    def device_of(self, obj): return None
    def place(self, obj, device): return obj
    def move(self, tensor, device, *, pinned=False): return tensor
    def scope(self, device): return nullcontext()
    def device_string(self, device): return f"chip {{device.index}}"

contract = 2

@hookimpl
def backends():
    return [Foreseen()]
"""


@pytest.mark.parametrize(
    ("body", "option", "names", "cause"),
    [
        ("return [DeviceInfo('told')]", (), ["told"], ""),
        ("return [DeviceInfo('told')]", ("--probe",), ["asked", "asked"], ""),
        ("return None", (), ["asked", "asked"], ""),
        ("1 / 0", (), ["asked", "asked"], "expected_devices() of its backend raised ZeroDivisionError: division by"),
        ("import os; os._exit(3)", (), ["asked", "asked"], ""),
    ],
)
def test_a_framework_is_asked_only_where_its_backend_cannot_tell(tmp_path, spawn, body, option, names, cause):
    modules = {"chip": EXPECTING.format(body=body)}
    write_distribution(tmp_path, "anyaccel-foreseen", entry_points={"foreseen": "chip"}, modules=modules)
    answer = spawn("devices", "--json", *option, ANYACCEL_PLUGINS="foreseen")
    assert (answer.returncode, answer.stderr) == (0, "")
    report = json.loads(answer.stdout)
    assert [each["name"] for each in report["frameworks"][1]["devices"]] == names
    assert [each["cause"].startswith(cause) for each in report["broken"]] == [True] * bool(cause)


def test_a_framework_that_fails_does_not_affect_others(tmp_path, spawn):
    """Each is listed in a child process, all at once."""
    names = {f"odd{i}": said for i, (_, said) in enumerate(FAILURES.values())}
    for name, (body, _) in zip(names, FAILURES.values(), strict=True):
        odd(tmp_path, name, body)
    odd(tmp_path, "talks", "print('hello')")
    answer = spawn("devices", "--json", ANYACCEL_PLUGINS=",".join([*names, "talks"]))
    assert (answer.returncode, answer.stderr) == (0, "")
    listings = {each["framework"]: each for each in json.loads(answer.stdout)["frameworks"]}
    assert list(listings) == ["numpy", *names, "talks"]
    assert [each["device"] for each in listings["talks"]["devices"]] == ["gpu:0"]
    assert [each["device"] for each in listings["numpy"]["devices"]] == ["cpu:0"]
    for name, said in names.items():
        assert listings[name]["devices"] == []
        assert said in listings[name]["missing"][0]["reason"]


def test_plugins_that_hang_or_abort_are_listed_and_harm_no_other(tmp_path, spawn):
    odd(tmp_path, "good")
    odd(tmp_path, "hangs", "import time; time.sleep(600)")
    odd(tmp_path, "aborts", "import os; os.abort()")
    imports = {"import_hangs": "import time; time.sleep(600)", "import_aborts": "import os; os.abort()"}
    for name, source in imports.items():
        write_distribution(
            tmp_path, f"anyaccel-{name}", entry_points={name: f"{name}_plugin"}, modules={f"{name}_plugin": source}
        )
    names = ["good", "hangs", "aborts", *imports]
    answer = spawn("plugins", "--json", "--timeout", "10", ANYACCEL_PLUGINS=",".join(names))
    assert answer.returncode == 1
    assert answer.stderr == "waiting for plugin import_hangs (import)\n"
    found = {each["name"]: each for each in json.loads(answer.stdout)["plugins"]}
    assert set(found) == {"numpy", *names}
    assert [name for name, each in found.items() if each["status"] == "ok"] == ["numpy", "good"]
    process = "the process that lists the devices of its backend for"
    assert {name: each["cause"] for name, each in found.items() if each["status"] == "broken"} == {
        "aborts": f"{process} aborts ended with status -6",
        "import_aborts": "its import ends the process with status -6.",
    }
    assert {name: each["cause"] for name, each in found.items() if each["status"] == "slow"} == {
        "hangs": f"{process} hangs did not answer within 10 s",
        "import_hangs": "its import did not end within 10 s",
    }
    assert found["import_hangs"]["distribution"] == "anyaccel-import_hangs" and found["import_hangs"]["hint"]


def test_a_hanging_import_is_found_with_a_timeout_in_which_python_does_not_even_start(tmp_path, spawn):
    """It was then taken for a plugin that works, and imported without any limit."""
    modules = {"stuck_plugin": "import time; time.sleep(600)"}
    write_distribution(tmp_path, "anyaccel-stuck", entry_points={"stuck": "stuck_plugin"}, modules=modules)
    answer = spawn("plugins", "--json", "--timeout", "0.01", ANYACCEL_PLUGINS="stuck")
    causes = {each["name"]: each["cause"] for each in json.loads(answer.stdout)["plugins"]}
    assert causes == {"numpy": "", "stuck": "its import did not end within 0.01 s"} and answer.returncode == 1


def test_a_plugin_that_is_slow_to_import_is_no_broken_one_and_the_hint_brings_it_back(tmp_path, spawn):
    """It was called broken, with the hint to update or uninstall it; a larger --timeout did not count for imports."""
    source = PLUGIN.format(name="slow", body="pass")
    modules = {"slow": f"import time; time.sleep(6)\n{source}"}
    write_distribution(tmp_path, "anyaccel-slow", entry_points={"slow": "slow"}, modules=modules)
    environment = {"ANYACCEL_PLUGINS": "slow"}
    answer = spawn("plugins", "--timeout", "2", **environment)
    lines = answer.stdout.splitlines()
    assert lines[-2] == "slow is slow: its import did not end within 2 s"
    assert lines[-1].startswith("  Hint: allow more time, such as --timeout 300") and "uninstall" not in answer.stdout
    assert answer.returncode == 1
    again = spawn("plugins", "--json", "--timeout", "300", **environment)
    assert [each["status"] for each in json.loads(again.stdout)["plugins"]] == ["ok", "ok"]
    assert again.returncode == 0


def test_backends_of_one_framework_are_asked_each_in_a_process_of_its_own(tmp_path, spawn):
    """A chip's plugin that aborts leaves the devices of the framework's own."""
    odd(tmp_path, "good")
    source = PLUGIN.format(name="good", body="import os; os.abort()").replace('("gpu",)', '("npu",)')
    write_distribution(tmp_path, "anyaccel-chip", entry_points={"chip": "chip"}, modules={"chip": source})
    answer = spawn("devices", ANYACCEL_PLUGINS="good,chip")
    assert (answer.returncode, answer.stderr) == (0, "")
    lines = answer.stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["cpu:0", "numpy"], ["gpu:0", "good"]]
    assert (
        lines[-2] == "chip is broken: the process that lists the devices of its backend for good ended with status -6"
    )
    assert lines[-1] == "  Hint: update or uninstall anyaccel-chip, or exclude it with ANYACCEL_PLUGINS"


def test_a_wrong_answer_is_shown_by_plugins_and_devices(tmp_path, spawn):
    odd(tmp_path, "wrong", "return [Device('cpu')]")
    cause = "devices() of its backend for wrong returned (Device(kind='cpu', index=0),), not devices of its kinds"
    for command, status in (("plugins", 1), ("devices", 0)):
        answer = spawn(command, ANYACCEL_PLUGINS="wrong")
        assert (answer.returncode, answer.stderr) == (status, "")
        assert cause in answer.stdout, command


def test_a_conflict_is_shown_and_only_the_holder_lists_the_devices(tmp_path, spawn):
    odd(tmp_path, "good")
    source = PLUGIN.format(name="good", body="pass").replace('("gpu",)', '("gpu", "npu")')
    write_distribution(tmp_path, "anyaccel-alien", entry_points={"alien": "alien"}, modules={"alien": source})
    answer = spawn("devices", "--json", ANYACCEL_PLUGINS="good,alien")
    report = json.loads(answer.stdout)
    assert [each["device"] for each in report["frameworks"][1]["devices"]] == ["gpu:0"]
    (broken,) = report["broken"]
    assert broken["name"] == "alien"
    assert broken["cause"] == "it is refused for good on gpu, which good (anyaccel-good 0.1) serves"


OTHER_OUTPUT = {
    "half a line": "print('hello', end='')",
    "at the end": "import atexit; atexit.register(print, '{}')",
    "in no known letters": "import os; os.write(1, b'\\xff\\xfe'); os.write(2, b'\\xff')",
}


def test_other_output_of_a_framework_is_ignored(tmp_path, spawn):
    names = [f"talks{i}" for i in range(len(OTHER_OUTPUT))]
    for name, body in zip(names, OTHER_OUTPUT.values(), strict=True):
        odd(tmp_path, name, body)
    answer = spawn("devices", "--json", ANYACCEL_PLUGINS=",".join(names))
    assert (answer.returncode, answer.stderr) == (0, "")
    listings = {each["framework"]: each["devices"] for each in json.loads(answer.stdout)["frameworks"]}
    assert [listings[name][0]["device"] for name in names] == ["gpu:0"] * len(OTHER_OUTPUT)


@pytest.mark.parametrize("command", [("plugins",), ("devices",), ("demo", "--epochs", "1")])
def test_output_of_a_plugin_is_not_in_the_json(command, tmp_path, spawn):
    write_distribution(tmp_path, "anyaccel-loud", entry_points={"loud": "loud"}, modules={"loud": "print('hello')"})
    answer = spawn(*command, "--json", ANYACCEL_PLUGINS="loud")
    assert (answer.returncode, answer.stderr) == (0, "" if command == ("devices",) else "hello\n")
    json.loads(answer.stdout)


def test_files_of_the_working_directory_are_not_imported(tmp_path, spawn):
    odd(tmp_path, "good")
    here = tmp_path / "here"
    here.mkdir()
    for name in ("json", "numpy", "anyaccel", "good_plugin"):
        here.joinpath(f"{name}.py").write_text("raise SystemExit('a stranger')")
    answer = spawn("devices", "--json", cwd=here, ANYACCEL_PLUGINS="good")
    listings = {each["framework"]: each for each in json.loads(answer.stdout)["frameworks"]}
    assert [each["device"] for each in listings["good"]["devices"]] == ["gpu:0"]


# -- pipes and terminals -----------------------------------------------------------------------------------------------


def test_the_demo_runs_on_a_device_of_the_environment(spawn):
    answer = spawn("demo", "--epochs", "3", "--device", "sim:0", "--json", ANYACCEL_SIMULATE="1")
    assert (answer.returncode, answer.stderr) == (0, "")
    report = json.loads(answer.stdout)
    assert report["device"] == "sim:0" and report["accuracy"] > 0.85


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("demo", "--epochs", "1"), r"load  digits\.pixels -> numpy cpu:0: float32\[8, 8\]"),
        (("devices",), r"sim:0   numpy sim:0  simulated device 0"),
        (("plugins",), r"numpy +anyaccel[ .0-9]+ok +numpy on cpu, sim +exchange, compute, memory"),
        (
            ("demo", "--device", "gpu:9"),
            r"error: no framework here computes on gpu:9\. Available: .* why others are missing\.",
        ),
    ],
)
def test_piped_output_is_not_cut_and_has_no_escape_codes(arguments, line, spawn):
    answer = spawn(*arguments, COLUMNS="20", TERM="xterm-256color", ANYACCEL_SIMULATE="1")
    text = answer.stdout + answer.stderr
    assert not set("\x1b\r…") & set(text)
    assert any(re.fullmatch(line, each.rstrip()) for each in text.splitlines()), text


def test_a_terminal_gets_colours_unless_no_color_is_set(broken, terminal):
    assert COLOUR.search(terminal("plugins", **broken))
    plain = terminal("plugins", NO_COLOR="1", **broken)
    assert not COLOUR.search(plain) and "hurt is broken: RuntimeError" in plain


def test_control_characters_in_a_message_are_escaped_in_a_terminal(broken, terminal):
    assert "second \\x1b[31mred" in terminal("plugins", NO_COLOR="1", **broken)


def test_a_terminal_sees_progress_and_the_result(terminal):
    text = terminal("demo", "--epochs", "2")
    assert "test accuracy" in text and "over 2 epochs" in text
    assert text.count("plan of 'train'") == 1


def test_the_command_without_arguments_shows_the_help(spawn):
    answer = spawn()
    assert "Usage: anyaccel [OPTIONS] COMMAND" in answer.stdout + answer.stderr
    assert "demo" in answer.stdout + answer.stderr


# -- standard streams and folders that are gone ------------------------------------------------------------------------

RUN = "import os, sys; {}; os.execv(sys.executable, [sys.executable, '-P', '-m', 'anyaccel', *sys.argv[1:]])"


@pytest.mark.parametrize(("closed", "said"), [(1, "error: standard output is closed. Hint: run"), (2, "")])
def test_a_closed_standard_stream_is_no_traceback(python, tmp_path, closed, said):
    answer = python(RUN.format(f"os.close({closed})"), "plugins", cwd=tmp_path)
    assert answer.stderr.startswith(said) and "Traceback" not in answer.stderr + answer.stdout
    assert answer.returncode == (2 if closed == 1 else 0)


FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this system")


@FULL
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "arguments", ["devices", "--help", "plugins --json", "completion bash", "devices --nonsense --json"]
)
def test_a_full_standard_output_is_an_error_in_one_line(environment, tmp_path, arguments):
    command = [sys.executable, "-P", "-m", "anyaccel", *arguments.split()]
    with Path("/dev/full").open("w") as full:
        answer = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), cwd=tmp_path, check=False
        )
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: standard output cannot be written: No space left on device. Hint: write")
    assert answer.stderr.count("\n") == 1
    there = tmp_path / "answer.txt"  # a place with free space, and a pipe
    with there.open("w") as file:
        subprocess.run(command, stdout=file, stderr=subprocess.PIPE, env=environment(), check=False)
    piped = subprocess.run(command, capture_output=True, env=environment(), check=False)
    assert there.read_bytes() == piped.stdout != b""


@pytest.mark.parametrize("arguments", ["devices", "plugins --json"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_that_nobody_reads_ends_the_command_without_a_word(environment, arguments, unbuffered):
    read, write = os.pipe()
    os.close(read)
    settings = environment(PYTHONUNBUFFERED=unbuffered)
    command = [sys.executable, "-P", "-m", "anyaccel", *arguments.split()]
    answer = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, env=settings, check=False)
    os.close(write)
    assert (answer.returncode, answer.stderr) == (2, "")


@FULL
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("arguments", "status"), [("devices", 0), ("plugins", 1), ("nonsense", 2)])
def test_a_full_standard_error_leaves_output_and_status_as_they_are(environment, tmp_path, arguments, status):
    broken = {"broken": "raise RuntimeError('no driver')"}
    write_distribution(tmp_path, "anyaccel-broken", entry_points={"broken": "broken"}, modules=broken)
    settings = environment(ANYACCEL_PLUGINS="broken")
    command = [sys.executable, "-P", "-m", "anyaccel", *arguments.split()]
    usual = subprocess.run(command, capture_output=True, env=settings, check=False)
    with Path("/dev/full").open("w") as full:
        answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, env=settings, check=False)
    assert answer.returncode == usual.returncode == status and answer.stdout == usual.stdout
