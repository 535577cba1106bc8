"""Accelerator: equality, configuration, availability, vendors."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel import Accelerator, Device
from anyaccel.errors import ConfigError, DeviceParseError, DeviceUnavailableError, FrameworkError, PluginError
from anyaccel.plugin_testing import TinyBackend

spellings = st.sampled_from(
    ["cpu", "cuda", "cuda:0", "GPU", "gpu:1", "rocm:1", "mps", "metal", "mps:0", "xpu:3", "my_chip"]
)


# -- the value ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "same", [("gpu", "gpu:0", " GPU "), ("cuda", "cuda:0", "CUDA"), ("mps", "mps:0", "metal"), ("cpu", "cpu:0")]
)
def test_accelerators_of_one_device_are_equal(same):
    """In the predecessor, Accelerator('cuda') != Accelerator('cuda:0')."""
    assert len({Accelerator(text) for text in same}) == 1
    assert len({Accelerator(Device.parse(text)) for text in same}) == 1


def test_a_vendor_is_part_of_what_is_asked_for():
    assert len({Accelerator("cuda"), Accelerator("rocm"), Accelerator("gpu")}) == 3
    assert Accelerator("cuda").device == Accelerator("rocm").device == Accelerator("gpu").device == Device("gpu")


@pytest.mark.parametrize("text", ["xpu", "npu:1", "tpu:7", "hpu", "meta", "mps:0"])
def test_any_kind_is_accepted(text):
    """In the predecessor all of these were a ValueError."""
    assert str(Accelerator(text)) == str(Device.parse(text))


def test_a_missing_device_is_an_error_only_when_it_is_checked(use):
    """The predecessor accepted 'cuda:99' and never checked it."""
    use(TinyBackend("a", ("gpu:0",)))
    request = Accelerator("cuda:99")
    assert not request.is_available()
    with pytest.raises(DeviceUnavailableError, match=r"gpu:99 is not on this machine for a.*Available: gpu:0"):
        request.check("a")


def test_an_accelerator_from_a_frameworks_own_device():
    """The predecessor refused the text it had itself made from a model's device."""
    assert Accelerator(SimpleNamespace(type="mps", index=0)) == Accelerator("mps")
    assert Accelerator(SimpleNamespace(type="cpu", index=None)) == Accelerator.cpu()


def test_a_frameworks_own_device_object_implies_no_vendor(use):
    """PyTorch calls an AMD device 'cuda', too: what a framework answers is a place, not what a user wrote."""
    use(TinyBackend("a", ("gpu:0",), vendor="amd"))
    assert Accelerator(SimpleNamespace(type="cuda", index=0)).is_available("a")


@given(spellings, st.booleans())
def test_from_config_restores_what_get_config_gave(text, pinned):
    """The predecessor: an export dropped pin_memory."""
    accelerator = Accelerator(text, pin_memory=pinned)
    again = Accelerator.from_config(accelerator.get_config())
    assert again == accelerator
    assert (again.spec, again.vendor, again.pin_memory) == (accelerator.spec, accelerator.vendor, pinned)
    assert all(isinstance(value, (str, bool)) for value in accelerator.get_config().values())


@given(spellings, st.booleans())
def test_copies_and_those_sent_to_other_processes_are_equal(text, pinned):
    accelerator = Accelerator(text, pin_memory=pinned)
    for again in (copy.deepcopy(accelerator), pickle.loads(pickle.dumps(accelerator))):
        assert again == accelerator
        assert again.spec == accelerator.spec


def test_pin_memory_is_part_of_the_value():
    assert Accelerator("gpu", pin_memory=True) != Accelerator("gpu")


def test_it_cannot_be_changed():
    with pytest.raises((AttributeError, TypeError)):
        Accelerator("gpu").pin_memory = True


@pytest.mark.parametrize(
    "wrong", [{}, {"device": "gpu", "x": 1}, {"pin_memory": True}, [("device", "gpu")], "gpu", None]
)
def test_a_malformed_configuration_is_refused_with_an_example(wrong):
    with pytest.raises(ConfigError, match=r"is not the configuration of an accelerator.*keys device and pin_memory"):
        Accelerator.from_config(wrong)


@pytest.mark.parametrize("wrong", ["yes", 1, None])
def test_pin_memory_is_true_or_false(wrong):
    with pytest.raises(ConfigError, match="must be True or False"):
        Accelerator("cpu", pin_memory=wrong)


@pytest.mark.parametrize("wrong", ["", "gpu:-1", None, 3, [], ["foo"], "H100:x"])
def test_text_that_names_no_device_is_refused_at_once(wrong):
    with pytest.raises(DeviceParseError):
        Accelerator(wrong)


def test_named_constructors():
    assert Accelerator() == Accelerator.cpu() == Accelerator("cpu")
    assert Accelerator.gpu(2) == Accelerator("gpu:2") and Accelerator.cuda(2) == Accelerator("cuda:2")
    assert Accelerator.gpu(pin_memory=True) == Accelerator("gpu", pin_memory=True)
    assert Accelerator.cuda(pin_memory=True) == Accelerator("cuda", pin_memory=True)
    assert Accelerator.mps() == Accelerator("metal")
    assert Accelerator.cuda().vendor == "nvidia" and Accelerator.gpu().vendor == ""


def test_of_returns_accelerators_as_they_are_and_converts_the_rest():
    accelerator = Accelerator("gpu", pin_memory=True)
    assert Accelerator.of(accelerator) is accelerator
    assert Accelerator.of(Device("gpu")) == Accelerator("gpu") and Accelerator.of("cuda") == Accelerator("cuda")


def test_repr_shows_what_was_written_and_str_the_device():
    assert repr(Accelerator(" CUDA ")) == "Accelerator('cuda')"
    assert repr(Accelerator("gpu:1", pin_memory=True)) == "Accelerator('gpu:1', pin_memory=True)"
    assert str(Accelerator("cuda")) == "gpu:0"


# -- what it asks ------------------------------------------------------------------------------------------------------


def test_creating_one_asks_no_plugin(monkeypatch):
    from anyaccel import accelerator

    monkeypatch.setattr(accelerator, "registry", pytest.fail)
    made = Accelerator("cuda:5")
    assert (str(made), repr(made), made.vendor, made == Accelerator("gpu:5")) == (
        "gpu:5",
        "Accelerator('cuda:5')",
        "nvidia",
        False,
    )


@pytest.mark.parametrize(
    ("text", "there"), [("gpu", True), ("rocm", True), ("cuda", False), ("gpu:1", False), ("mps", False)]
)
def test_a_vendor_word_stays_a_constraint(use, text, there):
    use(TinyBackend("a", ("gpu:0",), vendor="amd"))
    assert Accelerator(text).is_available("a") is there
    assert Accelerator(text).is_available() is there


def test_a_device_of_another_vendor_is_refused(use):
    use(TinyBackend("a", ("gpu:0",), vendor="amd"))
    with pytest.raises(DeviceUnavailableError, match="gpu:0 is a device of amd, not of nvidia"):
        Accelerator("cuda").check("a")


def test_a_framework_without_the_device_does_not_answer_for_another(use):
    """The predecessor asked torch first and stopped there."""
    use(TinyBackend("torch", ("cpu",)), TinyBackend("tensorflow", ("cpu", "gpu:0")))
    assert Accelerator("gpu").is_available()
    assert Accelerator("gpu").is_available("tensorflow")
    assert not Accelerator("gpu").is_available("torch")


def test_is_available_is_false_for_a_framework_without_a_plugin(use):
    use()
    assert not Accelerator("cpu").is_available("jax")


def test_check_passes_for_a_usable_device(use):
    use(TinyBackend("a", ("gpu:0",)))
    Accelerator("gpu").check("a")
    with pytest.raises(FrameworkError, match="no installed plugin runs a on 'mps'"):
        Accelerator("mps").check("a")


def test_device_string_and_scope_come_from_the_backend(use):
    backend = TinyBackend("a", ("cpu", "gpu:0", "gpu:1"))
    use(backend)
    assert Accelerator("cuda:1").device_string("a") == "a gpu 1"
    with Accelerator("gpu:1").scope("a"):
        assert backend.new().device == Device("gpu", 1)


def test_scope_on_a_missing_device_is_an_error(use):
    use(TinyBackend("a", ("gpu:0",)))
    with pytest.raises(DeviceUnavailableError):
        Accelerator("gpu:1").scope("a")


def test_a_native_name_that_is_wrong_is_an_error_and_never_a_guess(use):
    backend = TinyBackend("a", ("gpu:0",))
    backend.device_string = lambda device: 7
    use(backend)
    with pytest.raises(
        PluginError, match=r"device_string\(\) of the backend for a returned 7, not a text.*Hint: update"
    ):
        Accelerator("gpu").device_string("a")
