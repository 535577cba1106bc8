"""The description of the CPU, and NVML where it does not answer."""

from __future__ import annotations

import sys

import pytest

from anyaccel.adapter.device_description import cpu_info, nvml_session, start_nvml


def test_without_the_package_there_is_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert start_nvml() is None
    with nvml_session() as nvml:
        assert nvml is None


def test_the_cpu_has_a_name_and_the_hosts_memory():
    info = cpu_info()
    assert info.name and info.memory_space == "host" and info.total_memory > 2**20
