"""Device: parsing, aliases, equality; text that names no device is refused."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel import Device
from anyaccel.device import ALIASES, spelling, vendor_of
from anyaccel.errors import AnyaccelError, DeviceParseError

words = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True)
indices = st.integers(0, 99_999)


@given(words, indices)
def test_str_parses_back_to_an_equal_value(word, index):
    device = Device(word, index)
    assert Device.parse(str(device)) == device
    assert hash(Device.parse(str(device))) == hash(device)


@given(words, indices)
def test_a_kind_is_never_an_alias(word, index):
    assert Device(word, index).kind not in ALIASES


@given(words, indices, st.sampled_from(["{}:{}", " {}:{}\n", "\t{}:{} "]))
def test_case_and_space_around_do_not_matter(word, index, frame):
    assert Device.parse(frame.format(word.upper(), index)) == Device(word, index)


@given(st.text(max_size=12))
def test_any_text_is_a_device_or_a_named_error(text):
    try:
        device = Device.parse(text)
    except DeviceParseError as error:
        assert repr(text.strip().lower()) in str(error)
    else:
        assert Device.parse(str(device)) == device


@given(words)
def test_a_device_without_an_index_is_number_zero(word):
    assert Device.parse(word) == Device(word, 0) == Device.parse(f"{word}:0")


@pytest.mark.parametrize(
    ("written", "kind", "vendor"),
    [
        ("cuda", "gpu", "nvidia"),
        ("rocm", "gpu", "amd"),
        ("metal", "mps", "apple"),
        ("gpu", "gpu", ""),
        ("mps", "mps", "apple"),
    ],
)
def test_vendor_words_are_aliases_of_kinds(written, kind, vendor):
    assert Device.parse(written) == Device(written) == Device(kind)
    assert Device.parse(f"{written}:3") == Device(kind, 3)
    assert vendor_of(written) == vendor_of(f"{written}:3") == vendor


def test_index_less_spellings_are_the_same_device():
    """The predecessor compared text, so that 'cuda' was never where 'cuda:0' is, and all was sent again."""
    assert Device.parse("cuda") == Device.parse("cuda:0") == Device.parse("gpu") == Device.parse("gpu:0")
    assert Device.parse("mps") == Device.parse("mps:0")
    assert len({Device.parse(text) for text in ("cuda", "cuda:0", "gpu", "gpu:0", "rocm", "GPU:0")}) == 1


def test_what_a_framework_calls_its_device_parses():
    """The predecessor built 'mps:0' from a model's own device, and its pattern refused it."""
    assert Device.parse("mps:0") == Device("mps")
    assert Device.parse(SimpleNamespace(type="mps", index=0)) == Device("mps")
    assert Device.parse(SimpleNamespace(type="cpu", index=None)) == Device("cpu")


@pytest.mark.parametrize("kind", ["xpu", "npu", "tpu", "hpu", "meta", "sim", "my_chip2"])
def test_kinds_are_an_open_set(kind):
    """The predecessor knew four words."""
    assert str(Device.parse(f"{kind}:2")) == f"{kind}:2"


MALFORMED = [
    "", " ", ":", ":0", "gpu:", "gpu:-1", "gpu:1:2", "gpu 1", "gpu:01", "gpu:1.0", "gpu:one", "gpu:100000", "1gpu",
    "_gpu", "g-pu", "gpu/0", "/gpu:0", "gpu:0,1", "gpu:\u0661", "\uff47pu", "gpu\x00", "gpu:0\nx",
]  # fmt: skip


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_device_is_quoted_in_the_error(text):
    with pytest.raises(DeviceParseError) as caught:
        Device.parse(text)
    assert caught.value.problem == f"{text.strip()!r} does not name a device"
    assert "kind:index" in caught.value.available
    assert "anyaccel devices" in caught.value.hint
    assert isinstance(caught.value, AnyaccelError) and isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "value", [None, 0, 1.5, True, b"gpu", ["gpu"], object(), SimpleNamespace(type="gpu", index="0")]
)
def test_what_is_neither_text_nor_a_device_is_refused(value):
    with pytest.raises(DeviceParseError):
        Device.parse(value)


@pytest.mark.parametrize(
    ("kind", "index"),
    [("gpu", -1), ("gpu", 1.0), ("gpu", True), ("gpu", None), ("gpu", "0"), ("GPU", 0), ("gpu:1", 0), (3, 0)],
)
def test_a_device_is_checked_when_it_is_made(kind, index):
    with pytest.raises(DeviceParseError):
        Device(kind, index)


@given(words, indices, indices)
def test_devices_of_a_kind_are_ordered_by_number(word, i, j):
    assert (Device(word, i) < Device(word, j)) == (i < j)


def test_a_device_cannot_be_changed_and_can_be_copied():
    device = Device("gpu", 1)
    with pytest.raises((AttributeError, TypeError)):
        device.index = 2
    assert copy.deepcopy(device) == pickle.loads(pickle.dumps(device)) == device


def test_spelling_keeps_the_word_and_drops_case_and_space():
    assert spelling(" CUDA:1 ") == "cuda:1"
    assert spelling(Device("cuda", 1)) == "gpu:1"
