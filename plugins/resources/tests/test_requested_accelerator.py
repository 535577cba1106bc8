"""Requests wherever an accelerator is accepted: values that are resolved on this machine when they are used."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.backend import DeviceInfo
from anyaccel.errors import ConfigError, DeviceParseError, DeviceUnavailableError, FrameworkError
from anyaccel.plugin_testing import TinyBackend
from anyaccel.registry import Registry
from anyaccel_resources import RequestedAccelerator, machine_of


class Cards(TinyBackend):
    """A framework with an L4 and two H100."""

    def device_info(self, device):
        names = {"gpu:0": ("NVIDIA L4", 24), "cpu:0": ("x86", 64)}
        name, gb = names.get(str(device), ("NVIDIA H100 80GB HBM3", 80))
        return DeviceInfo(name, vendor="nvidia", total_memory=gb * 10**9)


@pytest.fixture(autouse=True)
def known(serve) -> Registry:
    """The NumPy backend and one with cards."""
    return serve(Cards("cards", ("gpu:0", "gpu:1", "gpu:2", "cpu:0")))


ASKED = ["any", "H100:2, any", "40GB+", "{H100, cpu}", "gpu[bf16]", ["H100", "cpu"], {"cpu"}, ["gpu:1"], "A100-80GB"]


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_a_request_is_a_value(asked):
    accelerator = aa.Accelerator(asked, pin_memory=True)
    assert isinstance(accelerator, RequestedAccelerator)
    again = [pickle.loads(pickle.dumps(accelerator)), copy.deepcopy(accelerator), copy.copy(accelerator)]
    again += [aa.Accelerator(asked, pin_memory=True), aa.Accelerator.from_config(accelerator.get_config())]
    assert all(each == accelerator and hash(each) == hash(accelerator) for each in again)
    assert accelerator != aa.Accelerator(asked) and accelerator != aa.Accelerator("cpu", pin_memory=True)
    assert repr(accelerator) == f"Accelerator({str(accelerator)!r}, pin_memory=True)"
    with pytest.raises(AttributeError):
        accelerator.pin_memory = False


@pytest.mark.parametrize("plain", ["cpu", "gpu:1", " CUDA ", "mps", "sim:3", "tpu", "my_chip:2", aa.Device("chip", 1)])
def test_one_device_of_any_kind_is_no_request(plain):
    assert type(aa.Accelerator(plain)) is aa.Accelerator


def test_creating_one_looks_at_nothing(monkeypatch):
    monkeypatch.setattr("anyaccel_resources.device_request.Inventory.detect", pytest.fail)
    monkeypatch.setattr("anyaccel_resources.requested_accelerator.machine_of", pytest.fail)
    assert str(aa.Accelerator("h100:2, ANY")) == "H100:2, any"
    assert "H100" in aa.Accelerator("H100!")._repr_html_()


@pytest.mark.parametrize("wrong", ["H100:x", "40GB", "gpu[bf17]", ["foo"], [], "A100-60GB"])
def test_what_is_no_request_is_refused_at_once(wrong):
    with pytest.raises(DeviceParseError):
        aa.Accelerator(wrong)
    with pytest.raises(DeviceParseError):
        aa.TrainPhase("t", data="all", accelerator=wrong)


@pytest.mark.parametrize(
    ("asked", "native"),
    [("any", "cards gpu 1"), ("gpu[bf16]", "cards gpu 1"), ("L4", "cards gpu 0"), ("40GB+", "cards gpu 1")],
)
def test_a_request_is_resolved_among_the_devices_of_the_framework(asked, native):
    assert aa.Accelerator(asked).device_string("cards") == native
    assert aa.Accelerator(asked).is_available("cards")


def test_place_and_move_use_the_framework_of_the_object():
    array = np.ones(2)
    for asked in ("any", "H100, any", {"cpu", "H100"}):
        assert aa.move(array, asked) is array and aa.place([array], asked)[0] is array
    with aa.scope("any", "numpy"):
        pass
    assert aa.Accelerator("any").is_available("numpy") and not aa.Accelerator("H100").is_available("numpy")
    with pytest.raises(DeviceUnavailableError, match=r"no device fits 'H100'.*Available: cpu"):
        aa.place(array, "H100")
    with pytest.raises(FrameworkError, match="no plugin for the framework 'nothing'"):
        aa.Accelerator("any").check("nothing")


def test_an_object_is_on_one_device():
    with pytest.raises(ConfigError, match=r"'H100:2' is for 2 devices, but an object is on one.*--replicas 2"):
        aa.Accelerator("H100:2").check("cards")


def test_an_accelerator_that_is_no_request_is_on_its_one_device():
    plain = aa.Accelerator("gpu:7")
    assert plain.on_one_device("cards") is plain
    found = aa.Accelerator("H100", pin_memory=True).on_one_device("cards")
    assert type(found) is aa.Accelerator and (found.device, found.spec) == (aa.Device("gpu", 1), "H100")
    assert found.pin_memory


def test_a_machine_of_several_frameworks_has_what_all_of_them_use():
    assert [str(d.device) for d in machine_of(["cards", "numpy"]).devices] == ["cpu:0"]
    machine = machine_of(["cards", "numpy"], of_all=False)
    assert [d.label for d in machine.devices] == ["L4", "H100-80GB", "H100-80GB", "cpu"]
    assert machine.cores > 0 and machine.source == "this machine"


@pytest.mark.parametrize(
    ("asked", "replicas", "found"),
    [
        ("H100:2", None, "gpu:1 gpu:2"),
        ("H100", 2, "gpu:1 gpu:2"),
        ("H100", None, "gpu:1"),
        ("H100:2", 3, "gpu:1 gpu:2"),
        ("gpu:1", 2, ""),
    ],
)
def test_a_request_for_one_device_is_for_as_many_as_there_are_replicas(asked, replicas, found):
    devices = aa.Accelerator(asked).requested_devices(["cards"], replicas=replicas)
    assert " ".join(map(str, devices)) == found


# -- in phases ---------------------------------------------------------------------------------------------------------


def experiment(**settings) -> aa.Experiment:
    x = np.ones((8, 3), "float32")
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
    node = aa.ModelNode("net", aa.SequentialMLP(1), data.reference(), **settings)
    return aa.Experiment("e", aa.ModelGraph([node], "sgd"), progress="none")


def train(**settings) -> aa.TrainPhase:
    return aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")], **settings)


@pytest.mark.parametrize("asked", ["any", "H100, any", ["H100", "sim:1"], {"cpu"}, "H100, any cores=1"])
def test_a_phase_runs_on_what_its_request_gets(asked):
    with aa.simulate(2):
        results = experiment().run_phase(train(accelerator=asked, final_device="any"))
        expected = "sim:1" if isinstance(asked, list) else "cpu:0"
        assert str(results.plan.device("net")) == expected
        wish = str(aa.DeviceRequest.parse(asked))
        assert f"the phase requests {wish!r}" in results.plan.explain("net")


def test_a_phase_says_why_nothing_fits():
    with pytest.raises(DeviceUnavailableError, match=r"no device fits 'H100' \(H100 on cpu: it is another product\)"):
        experiment().run_phase(train(accelerator="H100"))
    with pytest.raises(DeviceUnavailableError, match="the request is strict: only its first alternative is used"):
        experiment().run_phase(train(accelerator="H100, any", strict=True))
    with pytest.raises(DeviceUnavailableError, match="any:2 on cpu: there is 1"):
        experiment().run_phase(train(accelerator="any:2"))


def test_a_node_has_a_request_of_its_own():
    with aa.simulate(2):
        plan = experiment(accelerator="H100, sim:1").plan(train())
        assert str(plan.device("net")) == "sim:1" and "its own accelerator is 'H100, sim:1'" in plan.explain("net")
    with pytest.raises(DeviceUnavailableError, match="no device fits 'H100'"):
        experiment(accelerator="H100").plan(train())


def test_a_phase_with_a_request_is_saved_and_loaded():
    phase = train(accelerator="H100:2, any", final_device=["cpu"])
    again = aa.TrainPhase.from_config(phase.get_config())
    assert again.accelerator == phase.accelerator and again.final_device == phase.final_device


def test_the_environment_has_the_default(monkeypatch):
    with aa.simulate(2):
        monkeypatch.setenv("ANYACCEL_DEVICE", "H100, sim:1")
        plan = experiment().plan(train())
        assert str(plan.device("net")) == "sim:1"
        assert (
            "neither the node nor the phase requests a device, and 'ANYACCEL_DEVICE=H100, sim:1' is set"
            in plan.explain("net")
        )
        assert str(experiment().plan(train(accelerator="sim:0")).device("net")) == "sim:0"
        assert str(experiment(accelerator="cpu").plan(train()).device("net")) == "cpu:0"
        monkeypatch.setenv("ANYACCEL_DEVICE", "gpu")  # on which no plugin runs numpy: as a phase's wish, to the CPU
        assert experiment().plan(train())["net"].reason == "fallback"
        monkeypatch.setenv("ANYACCEL_DEVICE", "foo:x")
        with pytest.raises(DeviceParseError, match="'foo' is neither a kind of device"):
            experiment().plan(train())
        monkeypatch.setenv("ANYACCEL_DEVICE", " ")
        assert experiment().plan(train())["net"].reason == "default"
