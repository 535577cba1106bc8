"""`anyaccel env`: what a bug report needs, and nothing private."""

from __future__ import annotations

import getpass
import json
import platform
import sys
from importlib import metadata
from pathlib import Path

import pytest

from anyaccel import simulate
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.plugin_testing import TinyBackend, entry, plugin_module
from anyaccel.registry import Registry, registry
from anyaccel_devtools.commands import env


class NamesVariables(TinyBackend):
    environment = ("TINY_DEVICES", "TINY_API_KEY")


def register(backend: object) -> None:
    registry().register(plugin_module("tiny", backends=lambda: [backend]), "tiny")


def test_it_lists_versions_plugins_and_devices(call):
    with simulate(2, capacity=3 * 2**20):
        text = call("env").stdout
    lines = text.splitlines()
    assert lines[0] == "### anyaccel env"
    assert f"Python {platform.python_version()} (" in text and platform.platform() in text
    for name in ("numpy", "pluggy", "pyarrow", "rich", "click"):
        assert f"{name} {metadata.version(name)}" in text
    assert "| plugin | distribution | status |" in lines
    assert "| sim:1 | numpy sim:1 |" in text and "| 3.0 MiB |" in text


def test_json_has_the_same_facts(call):
    report = json.loads(call("env", "--json").stdout)
    assert report["packages"]["numpy"] == metadata.version("numpy")
    assert [each["framework"] for each in report["frameworks"]] == ["numpy"]
    assert report["frameworks"][0]["missing"][0]["kind"] == "sim"
    assert report["cores"] >= 1 and report["plugins"][0]["status"] == "ok"


def test_missing_devices_are_listed_with_the_reason(call):
    assert "- no sim for numpy: none exists; use anyaccel.simulate(1)" in call("env").stdout


def test_only_known_variables_are_printed(call, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    monkeypatch.setenv("DATABASE_URL", "postgres://me:verysecret@db")
    for arguments in (("env",), ("env", "--json")):
        text = call(*arguments).stdout
        assert "CUDA_VISIBLE_DEVICES" in text and "1,0" in text
        assert "verysecret" not in text and "HF_TOKEN" not in text


def test_a_backend_adds_its_own_variables_and_secrets_are_hidden(monkeypatch):
    register(NamesVariables("tiny", ("cpu",)))
    monkeypatch.setenv("TINY_DEVICES", "3")
    monkeypatch.setenv("TINY_API_KEY", "verysecret")
    report = env.collect()["variables"]
    assert report["TINY_DEVICES"] == "3" and report["TINY_API_KEY"] == "(set)"


def test_folders_users_hosts_and_serial_numbers_are_left_out(call, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", str(Path.home() / "devices"))

    def refuse() -> None:
        raise OSError(f"no file {Path.home()}/x")

    registry_of_one = Registry(NumpyBackend, lambda: [entry("bad", plugin_module("bad", backends=refuse))])
    monkeypatch.setattr("anyaccel.registry._registry", [registry_of_one])
    monkeypatch.delenv("ANYACCEL_PLUGINS")
    with simulate(1):
        text = call("env", "--json").stdout
    assert str(Path.home()) not in text and "~/devices" in text
    assert platform.node() not in text.replace(platform.platform(), "")
    assert "OSError: no file ~/x" in text
    assert "identity" not in text and "memory_space" not in text
    assert getpass.getuser() not in json.dumps(json.loads(text)["variables"])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("--xla_dump_to=/data/users/me/x --b=/tmp/q", "--xla_dump_to=.../x --b=.../q"),
        ("/srv/acme/a:/srv/acme/b/c", ".../a:.../c"),
        (r"C:\Users\me\x.dll", ".../x.dll"),
        (r"\\host\share\x.dll", ".../x.dll"),
        ("http://me:verysecret@proxy:80/x", "http://...@proxy:80/x"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("/dev/nvidia0 /usr/lib/x/libcuda.so", "/dev/nvidia0 /usr/lib/x/libcuda.so"),
        ("/job:localhost/device:GPU:0", "/job:localhost/device:GPU:0"),
        ("MIG-GPU-1/2/3,and/or", "MIG-GPU-1/2/3,and/or"),
    ],
)
def test_folders_and_credentials_are_redacted(value, expected, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert env.variables(())["CUDA_VISIBLE_DEVICES"] == expected


def test_markdown_and_html_are_escaped(call, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "a`b\n<script>|\x1b[2J")
    line = next(each for each in call("env").stdout.splitlines() if each.startswith("- variables:"))
    assert "`CUDA_VISIBLE_DEVICES=a'b <script>|\\x1b[2J`" in line  # inside code, where it is text
    assert env.markdown(
        {
            **env.collect(),
            "plugins": [{"name": "x|y", "distribution": "<b>", "status": "broken", "cause": "two\nlines"}],
        }
    ).count("| x\\|y | &lt;b> | broken: two lines |")


def test_a_long_value_is_cut(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1," * 1000)
    assert len(env.variables(())["CUDA_VISIBLE_DEVICES"]) == 200


def test_a_plugin_whose_requirements_are_not_installed_says_so(monkeypatch):
    monkeypatch.setattr(
        env.metadata, "requires", lambda name: ["nosuchthing>=3; python_version>'3'", "x; extra == 'y'"]
    )
    assert env.packages(["anyaccel"])["nosuchthing"] == "not installed"
    assert "x" not in env.packages(["anyaccel"])


def test_drivers_are_found_in_the_files_of_the_system(tmp_path, monkeypatch):
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\nGCC version: 12.2\n")
    monkeypatch.setattr(env, "_DRIVER_FILES", {"NVIDIA": version, "amdgpu": tmp_path / "nothing"})
    monkeypatch.setattr(env, "_NVIDIA", ("no-such-tool",))
    assert env.drivers() == {"NVIDIA": "580.65.06"}


@pytest.mark.parametrize(
    ("script", "expected"),
    [("print('581.1')", {"NVIDIA": "581.1"}), ("print('broken'); raise SystemExit(9)", {}), ("print('none')", {})],
)
def test_driver_versions_come_from_the_vendors_tool(script, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(env, "_DRIVER_FILES", {"NVIDIA": tmp_path / "nothing"})
    monkeypatch.setattr(env, "_NVIDIA", (sys.executable, "-c", script))
    assert env.drivers() == expected


def test_a_tool_that_does_not_answer_is_skipped(tmp_path, monkeypatch):
    def never(*_: object, timeout: float, **__: object) -> None:
        raise env.subprocess.TimeoutExpired("tool", timeout)

    monkeypatch.setattr(env, "_DRIVER_FILES", {"NVIDIA": tmp_path / "nothing"})
    monkeypatch.setattr(env, "_NVIDIA", (sys.executable,))
    monkeypatch.setattr(env.subprocess, "run", never)
    assert env.drivers() == {}
