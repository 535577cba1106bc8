"""The commands run in this process: output as text and JSON, and exit status."""

from __future__ import annotations

import json
import re

import pytest

from anyaccel import simulate
from anyaccel.cli.console import format_size
from anyaccel.cli.demo import best_device_of, choose_framework
from anyaccel.device import Device
from anyaccel.distributions import COMMANDS, OFFERED
from anyaccel.errors import FrameworkError
from anyaccel.plugin_loader import own_distribution
from anyaccel.plugin_testing import TinyBackend, plugin_module
from anyaccel.printable import printable
from anyaccel.registry import registry


def parse_json(text: str) -> object:
    """Parse JSON as other tools do: without NaN."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def register(*backends: object) -> None:
    for i, backend in enumerate(backends):
        registry().register(plugin_module(f"p{i}", backends=lambda backend=backend: [backend]), f"p{i}")


# -- help --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize(
    "command",
    [
        (),
        ("completion",),
        ("demo",),
        ("devices",),
        ("plugins",),
    ],
)
def test_examples_in_the_help_are_valid_commands(flag, command, call):
    answer = call(*command, flag)
    assert answer.exit_code == 0
    examples = re.findall(r"^ {4}anyaccel (.*?)(?: {3}.*)?$", answer.stdout.partition("Examples:")[2], re.MULTILINE)
    assert examples
    for example in examples:
        assert call(*example.split(), "--help").exit_code == 0


def test_the_help_lists_every_command_with_a_sentence(call):
    listed = call("--help").stdout.partition("Commands:")[2].strip().splitlines()
    offered = " ".join(OFFERED[COMMANDS].values()).split()  # by other distributions, where they are installed
    names = [
        "completion",
        "demo",
        "devices",
        "plugins",
    ]
    assert [line.split()[0] for line in listed if line.split()[0] not in offered] == names
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)


def test_the_version_is_printed(call):
    answer = call("--version")
    assert answer.exit_code == 0 and answer.stdout.startswith("anyaccel, version ")


# -- demo --------------------------------------------------------------------------------------------------------------


def test_the_demo_learns(call):
    answer = call("demo", "--epochs", "4", "--json")
    assert answer.exit_code == 0 and answer.stderr == ""
    report = parse_json(answer.stdout)
    assert report["accuracy"] > 0.85
    assert report["loss"] == sorted(report["loss"], reverse=True) and len(report["loss"]) == report["epochs"] == 4
    assert (report["framework"], report["device"]) == ("numpy", "cpu:0")
    assert report["steps_per_second"] > 0
    assert [each["node"] for each in report["plan"]["assignments"]] == ["encoder", "head"]


def test_the_demo_is_the_same_for_a_seed(call):
    first, same, other = (parse_json(call("demo", "--epochs", "1", "--seed", seed, "--json").stdout) for seed in "112")
    assert first["loss"] == same["loss"] != other["loss"]


def test_the_demo_shows_the_plan_and_the_result(call):
    answer = call("demo", "--epochs", "1")
    lines = answer.stdout.splitlines()
    assert lines[0] == "plan of 'train' on 'digits-demo'"
    assert "load  digits.pixels -> numpy cpu:0: float32[8, 8]" in lines
    assert re.fullmatch(r"test accuracy 0\.\d{4} on cpu:0 with numpy, [\d,]+ steps/s over 1 epochs", lines[-1])


@pytest.mark.parametrize("device", ["sim:0", "sim:1"])
def test_the_demo_runs_on_the_given_device(device, call):
    with simulate(2) as devices:
        report = parse_json(call("demo", "--epochs", "1", "--device", device, "--json").stdout)
        assert report["device"] == device
        assert {each["device"] for each in report["plan"]["assignments"]} == {device}
        assert devices[int(device[-1])].transfers.into.number > 0


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (("demo", "--device", "gpu:0"), "FrameworkError", ("no framework here computes on gpu:0", "numpy on cpu:0")),
        (("demo", "--device", "sim:0"), "FrameworkError", ("no framework here computes on sim:0",)),
        (("demo", "--device", "no where"), "DeviceParseError", ("'no where' does not name a device",)),
        (
            ("demo", "--framework", "torch"),
            "FrameworkError",
            ("'torch' is loaded", "plugins/torch"),
        ),
        (
            ("demo", "--framework", "numpy", "--device", "mps"),
            "DeviceUnavailableError",
            ("'mps' is not on this machine",),
        ),
        (("devices", "--framework", "nope"), "FrameworkError", ("no plugin for the framework 'nope' is loaded",)),
    ],
)
def test_an_error_is_one_line_or_one_json_document_with_status_2(arguments, kind, words, call):
    answer = call(*arguments)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert answer.stderr.startswith("error: ") and answer.stderr.count("\n") == 1
    assert all(word in answer.stderr for word in words)
    answer = call(*arguments, "--json")
    assert (answer.exit_code, answer.stderr) == (2, "")
    report = parse_json(answer.stdout)["error"]
    assert report["type"] == kind
    assert all(word in report["message"] for word in words)
    assert report["problem"] in report["message"] and report["hint"] in report["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("demo", "--epochs", "0"),
        ("demo", "--epochs", "x"),
        ("demo", "--nope"),
        ("devices", "extra"),
        ("plugins", "--framework", "x"),
    ],
)
def test_wrong_usage_is_status_2_and_json_with_json(arguments, call):
    answer = call(*arguments)
    assert (answer.exit_code, answer.stdout) == (2, "") and "Usage: anyaccel" in answer.stderr
    answer = call(*arguments, "--json")
    assert (answer.exit_code, answer.stderr) == (2, "")
    error = parse_json(answer.stdout)["error"]
    assert error["message"] == error["problem"] and error["hint"]


def test_the_demo_prefers_a_framework_with_a_device_other_than_the_cpu():
    assert choose_framework(registry(), None) == "numpy"
    with simulate(1):
        assert best_device_of(registry(), "numpy") == Device("cpu")
    register(TinyBackend("tiny", ("gpu:1", "cpu")))
    assert best_device_of(registry(), "tiny") == Device("gpu", 1)
    assert choose_framework(registry(), None) == "numpy", "a framework that cannot compute was chosen"
    with pytest.raises(FrameworkError, match=r"no framework here computes on gpu:1.*tiny on gpu:1, cpu:0"):
        choose_framework(registry(), Device("gpu", 1))


def test_the_demo_refuses_a_framework_that_cannot_compute(call):
    register(TinyBackend("tiny", ("gpu:1", "cpu")))
    answer = call("demo", "--framework", "tiny", "--device", "gpu:1")
    assert answer.exit_code == 2
    assert "the backend of tiny cannot compute" in answer.stderr


# -- devices and plugins -----------------------------------------------------------------------------------------------


def test_devices_are_listed_with_native_names(call):
    with simulate(2, capacity=3 * 2**20):
        lines = call("devices", "--probe").stdout.splitlines()
        assert lines[0].split() == ["device", "native", "name", "product", "vendor", "memory", "identity"]
        assert [line.split()[:3] for line in lines[1:]] == [
            ["cpu:0", "numpy", "cpu"],
            ["sim:0", "numpy", "sim:0"],
            ["sim:1", "numpy", "sim:1"],
        ]
        assert "3.0 MiB" in lines[2]
        (report,) = parse_json(call("devices", "--probe", "--json").stdout)["frameworks"]
        assert [each["device"] for each in report["devices"]] == ["cpu:0", "sim:0", "sim:1"]
        assert report["devices"][1]["total_memory"] == 3 * 2**20 and report["missing"] == []


def test_missing_devices_are_listed_with_the_reason(call):
    answer = call("devices", "--framework", "numpy")
    assert (
        "no sim for numpy: none exists; use anyaccel.simulate(1) or ANYACCEL_SIMULATE=1 to create it" in answer.stdout
    )
    (report,) = parse_json(call("devices", "--json").stdout)["frameworks"]
    assert report["missing"][0]["kind"] == "sim"


def test_plugins_are_listed_with_their_capabilities(call):
    register(TinyBackend("tiny", ("gpu:0", "cpu")))
    lines = [line.split("  ") for line in call("plugins").stdout.splitlines()]
    assert [line[0] for line in lines] == ["plugin", "numpy", "p0"]
    answer = call("plugins", "--json")
    assert answer.exit_code == 0
    first, second = parse_json(answer.stdout)["plugins"]
    assert first == {
        "name": "numpy",
        "distribution": "anyaccel",
        "version": own_distribution()[1],
        "status": "ok",
        "backends": [
            {"framework": "numpy", "kinds": ["cpu", "sim"], "capabilities": ["exchange", "compute", "memory"]}
        ],
        "hooks": [],
        "cause": "",
        "hint": "",
    }
    assert second["backends"] == [{"framework": "tiny", "kinds": ["gpu", "cpu"], "capabilities": []}]


def no_policy():
    """A hook that offers nothing."""
    return {}


def test_plugins_without_backends_are_listed_with_their_hooks(call):
    hooks = {"phase_end": lambda run: None, "epoch_end": lambda run: None, "phase_start": lambda phase: None}
    registry().register(plugin_module("tracker", **hooks), "tracker")
    registry().register(plugin_module("packer", policies=no_policy), "packer")
    registry().register(plugin_module("empty"), "empty")
    title, *rows = [re.split(" {2,}", line.strip()) for line in call("plugins").stdout.splitlines()]
    assert title == ["plugin", "distribution", "status", "serves", "capabilities", "hooks"]
    assert rows[1:] == [
        ["tracker", "ok", "hooks only", "phase_start, epoch_end, phase_end"],
        ["packer", "ok", "hooks only", "policies"],
        ["empty", "ok"],
    ]
    report = {each["name"]: each for each in parse_json(call("plugins", "--json").stdout)["plugins"]}
    assert report["tracker"]["hooks"] == ["phase_start", "epoch_end", "phase_end"]
    assert (report["packer"]["hooks"], report["empty"]["hooks"]) == (["policies"], [])
    assert all(report[name]["backends"] == [] for name in ("tracker", "packer", "empty"))


def test_a_plugin_may_have_a_backend_and_hooks(call):
    both = plugin_module("both", backends=lambda: [TinyBackend("tiny", ("gpu:0", "cpu"))], phase_end=lambda run: None)
    registry().register(both, "both")
    assert "tiny on gpu, cpu" in call("plugins").stdout
    assert parse_json(call("plugins", "--json").stdout)["plugins"][1]["hooks"] == ["phase_end"]


# -- what is printed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain [bold]text[/bold]", "plain [bold]text[/bold]"),
        ("two\nlines", "two\nlines"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("right\u202eleft", "right\\u202eleft"),
        ("ünïcödé 日本", "ünïcödé 日本"),
    ],
)
def test_control_characters_are_escaped(text, expected):
    assert printable(text) == expected


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (0, ""),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 * 2**29, "1.5 GiB"),
        (2**40, "1.0 TiB"),
        (2**51, "2048.0 TiB"),
    ],
)
def test_sizes_have_units(nbytes, expected):
    assert format_size(nbytes) == expected
